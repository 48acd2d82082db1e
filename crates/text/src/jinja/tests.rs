//! Tests: what stands behind `is`.

use super::ast::Comparison;
use super::budget::Budget;
use super::expression::Arguments;
use super::fault::Fault;
use super::operators::compare;
use super::python;
use super::value::Value;

/// Whether a test holds for a value.
pub(super) fn holds(
    budget: &Budget,
    name: &str,
    value: &Value,
    arguments: &Arguments,
) -> Result<bool, Fault> {
    let compared = match name {
        "eq" | "equalto" | "==" => Some(Comparison::Equal),
        "ne" | "!=" => Some(Comparison::Unequal),
        "lt" | "lessthan" | "<" => Some(Comparison::Less),
        "le" | "<=" => Some(Comparison::LessOrEqual),
        "gt" | "greaterthan" | ">" => Some(Comparison::Greater),
        "ge" | ">=" => Some(Comparison::GreaterOrEqual),
        "in" => Some(Comparison::In),
        _ => None,
    };
    if let Some(comparison) = compared {
        return compare(budget, comparison, value, arguments.required(0, "other")?);
    }
    let integer = || {
        let wrong = || Fault::failed(format!("'{name}' is for integers, not {}", value.kind()));
        value.as_integer().ok_or_else(wrong)
    };
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined),
        "undefined" => matches!(value, Value::Undefined),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.as_float().is_some(),
        "string" => matches!(value, Value::Text(_)),
        "mapping" => matches!(value, Value::Map(_)),
        "sequence" => matches!(value, Value::Text(_) | Value::List(_) | Value::Map(_)),
        "iterable" => {
            matches!(value, Value::Undefined | Value::Text(_) | Value::List(_) | Value::Map(_))
        }
        "callable" => matches!(value, Value::Macro(_) | Value::Function(_)),
        "sameas" => same(value, arguments.required(0, "other")?),
        "odd" => integer()? % 2 != 0,
        "even" => integer()? % 2 == 0,
        "divisibleby" => match arguments.integer(0, "num")? {
            None | Some(0) => return Err(Fault::failed("division by zero")),
            Some(divisor) => integer()?.checked_rem(divisor).unwrap_or(0) == 0,
        },
        "lower" | "upper" => {
            let text = python::printed(budget, value)?;
            let (lower, upper) =
                (text.chars().any(char::is_lowercase), text.chars().any(char::is_uppercase));
            lower != upper && lower == (name == "lower")
        }
        _ => return Err(Fault::failed(format!("the test '{name:.40}' is unknown"))),
    })
}

/// Python's `is`, where it means something.
fn same(left: &Value, right: &Value) -> bool {
    use std::rc::Rc;
    match (left, right) {
        (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => true,
        (Value::Bool(left), Value::Bool(right)) => left == right,
        (Value::Int(left), Value::Int(right)) => left == right,
        (Value::Text(left), Value::Text(right)) => std::sync::Arc::ptr_eq(left, right),
        (Value::List(left), Value::List(right)) => Rc::ptr_eq(left, right),
        (Value::Map(left), Value::Map(right)) => Rc::ptr_eq(left, right),
        (Value::Namespace(left), Value::Namespace(right)) => Rc::ptr_eq(left, right),
        _ => false,
    }
}
