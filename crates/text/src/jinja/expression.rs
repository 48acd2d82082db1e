//! Evaluates expressions.

use super::ast::{CallArguments, Expression, Suffix};
use super::budget::Writer;
use super::evaluate::Evaluator;
use super::fault::Fault;
use super::operators::{self, compare, insert};
use super::value::{Function, LoopState, Value};
use super::{filters, lists, python, tests};
use std::sync::Arc;

/// The arguments of a call.
#[derive(Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(Arc<str>, Value)>,
}

impl Arguments {
    /// The argument at a place or with a name.
    pub(super) fn get(&self, place: usize, name: &str) -> Option<&Value> {
        let named =
            || self.named.iter().find(|(other, _)| **other == *name).map(|(_, value)| value);
        self.positional.get(place).or_else(named)
    }

    pub(super) fn text(&self, place: usize, name: &str) -> Result<Option<&str>, Fault> {
        let wrong = |value: &Value| {
            Fault::failed(format!("'{name}' must be a string, not {}", value.kind()))
        };
        let given = self.get(place, name).filter(|value| !matches!(value, Value::None));
        given.map(|value| value.as_text().ok_or_else(|| wrong(value))).transpose()
    }

    pub(super) fn integer(&self, place: usize, name: &str) -> Result<Option<i64>, Fault> {
        let wrong = |value: &Value| {
            Fault::failed(format!("'{name}' must be an integer, not {}", value.kind()))
        };
        let given = self.get(place, name).filter(|value| !matches!(value, Value::None));
        given.map(|value| value.as_integer().ok_or_else(|| wrong(value))).transpose()
    }

    pub(super) fn flag(&self, place: usize, name: &str) -> bool {
        self.get(place, name).is_some_and(Value::is_true)
    }

    pub(super) fn required(&self, place: usize, name: &str) -> Result<&Value, Fault> {
        self.get(place, name)
            .ok_or_else(|| Fault::failed(format!("the argument '{name}' is missing")))
    }

    pub(super) fn required_text(&self, place: usize, name: &str) -> Result<&str, Fault> {
        self.text(place, name)?
            .ok_or_else(|| Fault::failed(format!("the argument '{name}' is missing")))
    }
}

impl Evaluator<'_> {
    pub(super) fn evaluate(&mut self, expression: &Expression) -> Result<Value, Fault> {
        self.budget.work(1)?;
        match expression {
            Expression::None => Ok(Value::None),
            Expression::Bool(value) => Ok(Value::Bool(*value)),
            Expression::Int(value) => Ok(Value::Int(*value)),
            Expression::Float(value) => Ok(Value::Float(*value)),
            Expression::Text(text) => Ok(Value::Text(text.clone())),
            Expression::Name(name) => {
                // Each scope hashes the name.
                self.budget.work(self.frames.len() * (16 + name.len()) / 64)?;
                Ok(self.named(name))
            }
            _ => self.deeper(|this| this.compound(expression)),
        }
    }

    fn named(&self, name: &str) -> Value {
        let function = || Function::named(name).map_or(Value::Undefined, Value::Function);
        self.variable(name).cloned().unwrap_or_else(function)
    }

    fn compound(&mut self, expression: &Expression) -> Result<Value, Fault> {
        match expression {
            Expression::List(items) => {
                let items = self.items(items)?;
                self.budget.list(items)
            }
            Expression::Tuple(items) => {
                let items = self.items(items)?;
                self.budget.tuple(items)
            }
            Expression::Map(entries) => self.map(entries),
            Expression::Not(inner) => Ok(Value::Bool(!self.evaluate(inner)?.is_true())),
            Expression::Negative(inner) => operators::negative(&self.evaluate(inner)?),
            Expression::Positive(inner) => self.evaluate(inner),
            Expression::And(parts) => self.first(parts, false),
            Expression::Or(parts) => self.first(parts, true),
            Expression::Compare(first, others) => {
                let mut left = self.evaluate(first)?;
                for (comparison, right) in others {
                    let right = self.evaluate(right)?;
                    if !compare(self.budget, *comparison, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Expression::Arithmetic(first, others) => {
                let mut value = self.evaluate(first)?;
                for (operator, right) in others {
                    let right = self.evaluate(right)?;
                    value = operators::apply(self.budget, *operator, &value, &right)?;
                }
                Ok(value)
            }
            Expression::Concatenation(parts) => {
                let mut text = Writer::new(self.budget);
                for part in parts {
                    python::print(&self.evaluate(part)?, &mut text)?;
                }
                text.into_value()
            }
            Expression::If(parts) => match self.evaluate(&parts.condition)?.is_true() {
                true => self.evaluate(&parts.then),
                false => {
                    parts.otherwise.as_ref().map_or(Ok(Value::Undefined), |it| self.evaluate(it))
                }
            },
            Expression::Suffixed(base, suffixes) => self.suffixed(base, suffixes),
            // The others are no compounds.
            _ => Ok(Value::Undefined),
        }
    }

    fn items(&mut self, items: &[Expression]) -> Result<Vec<Value>, Fault> {
        self.budget.items(items.len())?;
        items.iter().map(|item| self.evaluate(item)).collect()
    }

    fn map(&mut self, entries: &[(Expression, Expression)]) -> Result<Value, Fault> {
        let mut made: Vec<(Value, Value)> = Vec::new();
        for (key, value) in entries {
            let (key, value) = (self.evaluate(key)?, self.evaluate(value)?);
            insert(self.budget, &mut made, key, value)?;
        }
        self.budget.map(made)
    }

    /// The first part whose truth is this, else the last.
    fn first(&mut self, parts: &[Expression], truth: bool) -> Result<Value, Fault> {
        let mut value = Value::Undefined;
        for part in parts {
            value = self.evaluate(part)?;
            if value.is_true() == truth {
                break;
            }
        }
        Ok(value)
    }

    fn suffixed(&mut self, base: &Expression, suffixes: &[Suffix]) -> Result<Value, Fault> {
        let mut value = self.evaluate(base)?;
        let mut rest = suffixes;
        while let [suffix, after @ ..] = rest {
            rest = after;
            self.budget.work(1)?;
            if let (Suffix::Attribute(name), [Suffix::Call(given), after @ ..]) = (suffix, after) {
                let arguments = self.arguments(given)?;
                value = self.call_method(&value, name, &arguments)?;
                rest = after;
            } else {
                // Errors name what was called or asked for.
                let name = if let Expression::Name(name) = base { name } else { "a value" };
                value = self.suffix_of(value, suffix, name)?;
            }
        }
        Ok(value)
    }

    pub(super) fn suffix(&mut self, value: Value, suffix: &Suffix) -> Result<Value, Fault> {
        self.suffix_of(value, suffix, "a value")
    }

    fn suffix_of(&mut self, value: Value, suffix: &Suffix, name: &str) -> Result<Value, Fault> {
        match suffix {
            Suffix::Attribute(attribute) => self.attribute(&value, attribute),
            Suffix::Item(item) => {
                let item = self.evaluate(item)?;
                self.item(&value, &item)
            }
            Suffix::Slice(parts) => {
                let mut bounds = [None; 3];
                for (bound, part) in bounds.iter_mut().zip(&**parts) {
                    *bound = part.as_ref().map(|part| self.bound(part)).transpose()?.flatten();
                }
                lists::slice(self.budget, &value, bounds)
            }
            Suffix::Call(given) => {
                let arguments = self.arguments(given)?;
                self.call(&value, arguments, name)
            }
            Suffix::Filter(filter, given) => {
                let arguments = self.arguments(given)?;
                filters::apply(self.budget, filter, &value, &arguments)
            }
            Suffix::Test { name, negated, arguments } => {
                let arguments = self.arguments(arguments)?;
                let holds = tests::holds(self.budget, name, &value, &arguments)?;
                Ok(Value::Bool(holds != *negated))
            }
        }
    }

    fn bound(&mut self, part: &Expression) -> Result<Option<i64>, Fault> {
        match self.evaluate(part)? {
            Value::None => Ok(None),
            value => match value.as_integer() {
                Some(bound) => Ok(Some(bound)),
                None => Err(Fault::failed(format!(
                    "a bound of a slice must be an integer, not {}",
                    value.kind()
                ))),
            },
        }
    }

    pub(super) fn arguments(&mut self, given: &CallArguments) -> Result<Arguments, Fault> {
        let mut arguments = Arguments::default();
        for value in &given.positional {
            arguments.positional.push(self.evaluate(value)?);
        }
        for (name, value) in &given.named {
            arguments.named.push((name.clone(), self.evaluate(value)?));
        }
        Ok(arguments)
    }

    pub(super) fn attribute(&self, value: &Value, name: &str) -> Result<Value, Fault> {
        self.budget.work(1)?;
        match value {
            Value::Undefined => {
                Err(Fault::failed(format!("an undefined value has no attribute '{name:.40}'")))
            }
            Value::Namespace(space) => {
                self.budget.read(name.len())?;
                Ok(space.borrow().get(name).cloned().unwrap_or(Value::Undefined))
            }
            Value::Loop(state) => Ok(loop_attribute(state, name)),
            _ => lists::attribute(self.budget, value, name),
        }
    }

    fn item(&self, value: &Value, item: &Value) -> Result<Value, Fault> {
        match (value, item) {
            (Value::Undefined, _) => Err(Fault::failed("an undefined value has no items")),
            (Value::Namespace(_) | Value::Loop(_), Value::Text(name)) => {
                self.attribute(value, name)
            }
            _ => lists::item(self.budget, value, item),
        }
    }
}

fn loop_attribute(state: &LoopState, name: &str) -> Value {
    let (index, length) = (state.index.get(), state.items.items.len());
    let number = |value: usize| Value::Int(value as i64);
    let neighbour = |place: Option<usize>| {
        place.and_then(|place| state.items.items.get(place)).cloned().unwrap_or(Value::Undefined)
    };
    match name {
        "index" => number(index + 1),
        "index0" => number(index),
        "revindex" => number(length - index),
        "revindex0" => number(length - index - 1),
        "first" => Value::Bool(index == 0),
        "last" => Value::Bool(index + 1 == length),
        "length" => number(length),
        "depth" => number(state.level + 1),
        "depth0" => number(state.level),
        "previtem" => neighbour(index.checked_sub(1)),
        "nextitem" => neighbour(index.checked_add(1)),
        _ => Value::Undefined,
    }
}
