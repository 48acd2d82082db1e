//! Comparison and arithmetic, as in Python. Whatever compares or makes something long pays for it.

use std::cmp::Ordering;

use super::ast::{Comparison, Operator};
use super::budget::{Budget, Writer};
use super::fault::Fault;
use super::value::{Form, Value};

/// Whether two values are equal: integers and floats by their value, lists and maps by their
/// contents, everything that can change by its identity.
pub(super) fn equal(budget: &Budget, left: &Value, right: &Value) -> Result<bool, Fault> {
    use std::rc::Rc;
    budget.work(1)?;
    Ok(match (left, right) {
        (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => true,
        (Value::Text(left), Value::Text(right)) => {
            budget.read(if left.len() == right.len() { left.len() } else { 0 })?;
            left == right
        }
        (Value::List(left), Value::List(right)) => {
            if left.form != right.form || left.items.len() != right.items.len() {
                return Ok(false);
            }
            for (left, right) in left.items.iter().zip(&right.items) {
                if !equal(budget, left, right)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Map(left), Value::Map(right)) => {
            if left.entries.len() != right.entries.len() {
                return Ok(false);
            }
            for (key, value) in &left.entries {
                let other = lookup(budget, &right.entries, key)?;
                if !other.map_or(Ok(false), |other| equal(budget, value, other))? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Namespace(left), Value::Namespace(right)) => Rc::ptr_eq(left, right),
        (Value::Macro(left), Value::Macro(right)) => Rc::ptr_eq(left, right),
        (Value::Loop(left), Value::Loop(right)) => Rc::ptr_eq(left, right),
        (Value::Function(left), Value::Function(right)) => left == right,
        _ => match (left.as_integer(), right.as_integer()) {
            (Some(left), Some(right)) => left == right,
            _ => left.as_float().zip(right.as_float()).is_some_and(|(left, right)| left == right),
        },
    })
}

/// The value of a key.
pub(super) fn lookup<'v>(
    budget: &Budget,
    entries: &'v [(Value, Value)],
    key: &Value,
) -> Result<Option<&'v Value>, Fault> {
    for (other, value) in entries {
        if equal(budget, other, key)? {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// Gives a key a value, instead of the one it has or at the end.
pub(super) fn insert(
    budget: &Budget,
    entries: &mut Vec<(Value, Value)>,
    key: Value,
    value: Value,
) -> Result<(), Fault> {
    for entry in entries.iter_mut() {
        if equal(budget, &entry.0, &key)? {
            entry.1 = value;
            return Ok(());
        }
    }
    entries.push((key, value));
    Ok(())
}

/// Which of two values comes first.
pub(super) fn order(budget: &Budget, left: &Value, right: &Value) -> Result<Ordering, Fault> {
    budget.work(1)?;
    match (left, right) {
        (Value::Text(left), Value::Text(right)) => {
            budget.read(left.len().min(right.len()))?;
            Ok(left.cmp(right))
        }
        (Value::List(left), Value::List(right)) => {
            for (left, right) in left.items.iter().zip(&right.items) {
                match order(budget, left, right)? {
                    Ordering::Equal => {}
                    unequal => return Ok(unequal),
                }
            }
            Ok(left.items.len().cmp(&right.items.len()))
        }
        _ => match (left.as_integer(), right.as_integer(), left.as_float(), right.as_float()) {
            (Some(left), Some(right), ..) => Ok(left.cmp(&right)),
            (_, _, Some(left), Some(right)) => {
                Ok(left.partial_cmp(&right).unwrap_or_else(|| left.total_cmp(&right)))
            }
            _ => Err(Fault::failed(format!("{} and {} have no order", left.kind(), right.kind()))),
        },
    }
}

pub(super) fn compare(
    budget: &Budget,
    comparison: Comparison,
    left: &Value,
    right: &Value,
) -> Result<bool, Fault> {
    Ok(match comparison {
        Comparison::Equal => equal(budget, left, right)?,
        Comparison::Unequal => !equal(budget, left, right)?,
        Comparison::Less => order(budget, left, right)?.is_lt(),
        Comparison::LessOrEqual => order(budget, left, right)?.is_le(),
        Comparison::Greater => order(budget, left, right)?.is_gt(),
        Comparison::GreaterOrEqual => order(budget, left, right)?.is_ge(),
        Comparison::In => contains(budget, right, left)?,
        Comparison::NotIn => !contains(budget, right, left)?,
    })
}

/// Whether a container has a value: an item, a key, or a part of a text.
pub(super) fn contains(budget: &Budget, container: &Value, value: &Value) -> Result<bool, Fault> {
    match (container, value) {
        (Value::Undefined, _) => Ok(false),
        (Value::Text(text), Value::Text(part)) => {
            budget.read(text.len() + part.len())?;
            Ok(text.contains(&**part))
        }
        (Value::List(list), _) => {
            for item in &list.items {
                if equal(budget, item, value)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (Value::Map(map), _) => Ok(lookup(budget, &map.entries, value)?.is_some()),
        (Value::Namespace(space), Value::Text(name)) => {
            budget.read(name.len())?;
            Ok(space.borrow().contains_key(&**name))
        }
        _ => Err(Fault::failed(format!("{} cannot contain {}", container.kind(), value.kind()))),
    }
}

pub(super) fn negative(value: &Value) -> Result<Value, Fault> {
    match (value.as_integer(), value) {
        (Some(integer), _) => integer.checked_neg().map(Value::Int).ok_or_else(too_large),
        (None, Value::Float(float)) => Ok(Value::Float(-float)),
        _ => Err(Fault::failed(format!("{} cannot be negated", value.kind()))),
    }
}

pub(super) fn too_large() -> Fault {
    Fault::failed("a number is too large")
}

/// The integer that is left of a float without its decimals.
pub(super) fn truncated(float: f64) -> Result<i64, Fault> {
    // -2^63 is a float, 2^63 - 1 is none.
    let range = i64::MIN as f64..-(i64::MIN as f64);
    if range.contains(&float.trunc()) { Ok(float as i64) } else { Err(too_large()) }
}

pub(super) fn apply(
    budget: &Budget,
    operator: Operator,
    left: &Value,
    right: &Value,
) -> Result<Value, Fault> {
    match (operator, left, right) {
        (Operator::Add, Value::Text(left), Value::Text(right)) => {
            let mut text = Writer::new(budget);
            text.push(left)?;
            text.push(right)?;
            text.into_value()
        }
        (Operator::Add, Value::List(left), Value::List(right)) if left.form == right.form => {
            budget.items(left.items.len() + right.items.len())?;
            budget.sequence(left.form, [&*left.items, &*right.items].concat()).map(Value::List)
        }
        (Operator::Multiply, Value::Text(_) | Value::List(_), _) => repeat(budget, left, right),
        (Operator::Multiply, _, Value::Text(_) | Value::List(_)) => repeat(budget, right, left),
        (Operator::Modulo, Value::Text(format), _) => {
            let values = match right {
                Value::List(list) if list.form == Form::Tuple => &list.items,
                other => std::slice::from_ref(other),
            };
            super::format::percent(budget, format, values)
        }
        _ => match (left.as_integer(), right.as_integer(), left.as_float(), right.as_float()) {
            (Some(left), Some(right), ..) => integers(operator, left, right),
            (_, _, Some(left), Some(right)) => floats(operator, left, right),
            _ => Err(Fault::failed(format!(
                "{} and {} cannot be combined by this operator",
                left.kind(),
                right.kind()
            ))),
        },
    }
}

fn repeat(budget: &Budget, value: &Value, count: &Value) -> Result<Value, Fault> {
    let count = count.as_integer().ok_or_else(|| Fault::failed("a repetition needs an integer"))?;
    let count = usize::try_from(count).unwrap_or(0);
    match value {
        Value::List(list) => {
            let count = if list.items.is_empty() { 0 } else { count };
            budget.items(list.items.len().saturating_mul(count))?;
            let items = (0..count).flat_map(|_| list.items.iter().cloned()).collect();
            budget.sequence(list.form, items).map(Value::List)
        }
        _ => {
            let text = value.as_text().unwrap_or_default();
            budget.memory(text.len().saturating_mul(count))?;
            budget.text(&text.repeat(count))
        }
    }
}

fn integers(operator: Operator, left: i64, right: i64) -> Result<Value, Fault> {
    let checked = match operator {
        Operator::Add => left.checked_add(right),
        Operator::Subtract => left.checked_sub(right),
        Operator::Multiply => left.checked_mul(right),
        Operator::FloorDivide | Operator::Modulo if right == 0 => return Err(by_zero()),
        Operator::FloorDivide => left.checked_div_euclid(right).map(|quotient| {
            // Euclid rounds away from a negative divisor, Python rounds down.
            let exact = left.checked_rem_euclid(right) == Some(0);
            if right < 0 && !exact { quotient - 1 } else { quotient }
        }),
        Operator::Modulo => left.checked_rem_euclid(right).map(|remainder| {
            if right < 0 && remainder != 0 { remainder + right } else { remainder }
        }),
        Operator::Power if right >= 0 => {
            u32::try_from(right).ok().and_then(|power| left.checked_pow(power))
        }
        _ => return floats(operator, left as f64, right as f64),
    };
    checked.map(Value::Int).ok_or_else(too_large)
}

fn floats(operator: Operator, left: f64, right: f64) -> Result<Value, Fault> {
    let divides = matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Modulo);
    let inverts = operator == Operator::Power && left == 0.0 && right < 0.0;
    if divides && right == 0.0 || inverts {
        return Err(by_zero());
    }
    Ok(Value::Float(match operator {
        Operator::Add => left + right,
        Operator::Subtract => left - right,
        Operator::Multiply => left * right,
        Operator::Divide => left / right,
        Operator::FloorDivide => ((left - modulo(left, right)) / right).round(),
        Operator::Modulo => modulo(left, right),
        Operator::Power => left.powf(right),
    }))
}

/// The remainder that has the sign of the divisor.
fn modulo(left: f64, right: f64) -> f64 {
    let remainder = left % right;
    if remainder != 0.0 && (remainder < 0.0) != (right < 0.0) {
        remainder + right
    } else {
        remainder
    }
}

fn by_zero() -> Fault {
    Fault::failed("division by zero")
}

/// Sorts by keys, equal ones in the order they came. A merge sort of our own, because an order that
/// fails, or that contradicts itself as large numbers can, must not panic.
pub(super) fn sort(
    budget: &Budget,
    mut items: Vec<(Value, Value)>,
) -> Result<Vec<(Value, Value)>, Fault> {
    let mut run = 1;
    while run < items.len() {
        budget.items(2 * items.len())?;
        let mut merged = Vec::with_capacity(items.len());
        for pair in items.chunks(2 * run) {
            let (mut left, mut right) = pair.split_at(run.min(pair.len()));
            while let ([first, after @ ..], [second, behind @ ..]) = (left, right) {
                if order(budget, &second.0, &first.0)?.is_lt() {
                    merged.push(second.clone());
                    right = behind;
                } else {
                    merged.push(first.clone());
                    left = after;
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        items = merged;
        run *= 2;
    }
    Ok(items)
}
