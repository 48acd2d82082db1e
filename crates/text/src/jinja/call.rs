//! Calls: macros, functions, methods and loops.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::ast::{Expression, Macro, Parameter, Suffix};
use super::evaluate::{Evaluator, only_data};
use super::expression::Arguments;
use super::fault::Fault;
use super::operators::{equal, insert};
use super::value::{Closure, Frame, Function, LoopState, Value};
use super::{lists, methods};
use crate::template::time;

impl Evaluator<'_> {
    /// Calls a value; `name` is what the template calls it.
    pub(super) fn call(
        &mut self,
        callee: &Value,
        arguments: Arguments,
        name: &str,
    ) -> Result<Value, Fault> {
        match callee {
            Value::Function(function) => self.function(*function, &arguments),
            Value::Macro(closure) => self.deeper(|this| this.call_macro(closure, arguments)),
            Value::Loop(state) if state.definition.recursive => {
                let items = arguments.required(0, "iterable")?.clone();
                self.deeper(|this| {
                    this.written(|this| this.for_loop(&state.definition, &items, state.level + 1))
                })
            }
            _ => Err(Fault::failed(format!("{name} is {}, which cannot be called", callee.kind()))),
        }
    }

    fn call_macro(&mut self, closure: &Rc<Closure>, arguments: Arguments) -> Result<Value, Fault> {
        let Macro { name, parameters, body } = &*closure.definition;
        let variables: usize = closure.frames.iter().map(Frame::len).sum();
        self.budget.memory((closure.frames.len() + variables + parameters.len()) * 64)?;
        // Every name is looked for among all parameters, and every parameter among all names.
        self.budget.work(parameters.len() * arguments.named.len() / 16)?;
        if arguments.positional.len() > parameters.len() {
            return Err(Fault::failed(format!("the macro '{name:.40}' takes fewer arguments")));
        }
        let known =
            |given: &str| given == "caller" || parameters.iter().any(|(it, _)| **it == *given);
        if let Some((unknown, _)) = arguments.named.iter().find(|(given, _)| !known(given)) {
            return Err(Fault::failed(format!(
                "the macro '{name:.40}' takes no argument '{unknown:.40}'"
            )));
        }
        let outside = std::mem::replace(&mut self.frames, closure.frames.clone());
        self.frames.push(Frame::new());
        let written =
            self.bind(parameters, &arguments).and_then(|()| self.capture(Frame::new(), body));
        self.frames = outside;
        written
    }

    /// Gives a macro's parameters their values, defaults where nothing is given.
    fn bind(&mut self, parameters: &[Parameter], arguments: &Arguments) -> Result<(), Fault> {
        if let Some(caller) = arguments.get(usize::MAX, "caller") {
            self.store(&"caller".into(), caller.clone());
        }
        for (place, (parameter, default)) in parameters.iter().enumerate() {
            let value = match (arguments.get(place, parameter), default) {
                (Some(given), _) => given.clone(),
                (None, Some(default)) => self.evaluate(default)?,
                (None, None) => Value::Undefined,
            };
            self.store(parameter, value);
        }
        Ok(())
    }

    /// `{% call %}`: the last call of the expression is made with one argument more.
    pub(super) fn call_block(
        &mut self,
        callee: &Expression,
        caller: &Arc<Macro>,
    ) -> Result<Value, Fault> {
        let Expression::Suffixed(base, suffixes) = callee else {
            return Err(Fault::failed("a call block calls nothing"));
        };
        let [before @ .., Suffix::Call(given)] = &**suffixes else {
            return Err(Fault::failed("a call block calls nothing"));
        };
        let mut value = self.evaluate(base)?;
        for suffix in before {
            value = self.suffix(value, suffix)?;
        }
        let mut arguments = self.arguments(given)?;
        arguments.named.push(("caller".into(), self.closure(caller)?));
        self.call(&value, arguments, "a value")
    }

    fn function(&mut self, function: Function, arguments: &Arguments) -> Result<Value, Fault> {
        match function {
            Function::Range => lists::range(self.budget, arguments),
            Function::Namespace => {
                let mut frame = Frame::new();
                for (key, value) in self.entries(arguments)? {
                    let Value::Text(name) = key else {
                        let kind = key.kind();
                        return Err(Fault::failed(format!("{kind} is no name for a namespace")));
                    };
                    self.budget.memory(64)?;
                    self.budget.read(name.len())?;
                    only_data(&value)?;
                    frame.insert(name, value);
                }
                Ok(Value::Namespace(Rc::new(RefCell::new(frame))))
            }
            Function::Dict => {
                let entries = self.entries(arguments)?;
                self.budget.map(entries)
            }
            Function::RaiseException => {
                Err(Fault::refused(arguments.text(0, "message")?.unwrap_or_default()))
            }
            Function::StrftimeNow => {
                let format = arguments.required_text(0, "format")?;
                // No directive writes more than some tens of bytes.
                self.budget.memory(format.len().saturating_mul(16))?;
                self.budget.text(&time::format(self.now, format))
            }
        }
    }

    /// What `dict` and `namespace` are given: a mapping or pairs, and then named values.
    fn entries(&self, arguments: &Arguments) -> Result<Vec<(Value, Value)>, Fault> {
        let mut entries = Vec::new();
        match arguments.positional.first() {
            None => {}
            Some(Value::Map(map)) => {
                self.budget.items(2 * map.entries.len())?;
                entries.clone_from(&map.entries);
            }
            Some(given) => {
                for pair in &given.iterate(self.budget)?.items {
                    let pair = pair.iterate(self.budget)?;
                    let [key, value] = &*pair.items else {
                        return Err(Fault::failed("a mapping is made of pairs"));
                    };
                    self.budget.items(2)?;
                    insert(self.budget, &mut entries, key.clone(), value.clone())?;
                }
            }
        }
        for (name, value) in &arguments.named {
            insert(self.budget, &mut entries, Value::Text(name.clone()), value.clone())?;
        }
        Ok(entries)
    }

    pub(super) fn call_method(
        &mut self,
        value: &Value,
        name: &str,
        arguments: &Arguments,
    ) -> Result<Value, Fault> {
        self.budget.work(1)?;
        if let Value::Loop(state) = value {
            return self.loop_method(state, name, arguments);
        }
        if let Some(result) = methods::call(self.budget, value, name, arguments)? {
            return Ok(result);
        }
        let callee = self.attribute(value, name)?;
        let arguments =
            Arguments { positional: arguments.positional.clone(), named: arguments.named.clone() };
        match callee {
            Value::Undefined => {
                Err(Fault::failed(format!("{} has no method '{name:.40}'", value.kind())))
            }
            callee => self.call(&callee, arguments, name),
        }
    }

    fn loop_method(
        &mut self,
        state: &Rc<LoopState>,
        name: &str,
        arguments: &Arguments,
    ) -> Result<Value, Fault> {
        match name {
            "cycle" if !arguments.positional.is_empty() => {
                let place = state.index.get() % arguments.positional.len();
                Ok(arguments.positional[place].clone())
            }
            "changed" => {
                self.budget.items(arguments.positional.len())?;
                let given = self.budget.list(arguments.positional.clone())?;
                if !given.is_plain() {
                    return Err(Fault::failed("loop.changed compares data only"));
                }
                let before = state.changed.replace(Some(given.clone()));
                let same = before.map(|before| equal(self.budget, &before, &given)).transpose()?;
                Ok(Value::Bool(same != Some(true)))
            }
            _ => Err(Fault::failed(format!("a loop has no method '{name:.40}' that takes this"))),
        }
    }
}
