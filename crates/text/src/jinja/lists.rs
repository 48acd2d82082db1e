//! Items, slices and ranges.

use super::budget::Budget;
use super::expression::Arguments;
use super::fault::Fault;
use super::operators::lookup;
use super::value::Value;
use std::sync::Arc;

/// `value.name`; undefined where there is none.
pub(super) fn attribute(budget: &Budget, value: &Value, name: &str) -> Result<Value, Fault> {
    let Value::Map(map) = value else { return Ok(Value::Undefined) };
    budget.read(name.len())?;
    let key = Value::Text(Arc::from(name));
    Ok(lookup(budget, &map.entries, &key)?.cloned().unwrap_or(Value::Undefined))
}

/// `value[item]`; undefined where there is none.
pub(super) fn item(budget: &Budget, value: &Value, item: &Value) -> Result<Value, Fault> {
    if let Value::Map(map) = value {
        return Ok(lookup(budget, &map.entries, item)?.cloned().unwrap_or(Value::Undefined));
    }
    let Some(index) = item.as_integer() else { return Ok(Value::Undefined) };
    let place = |length: usize| {
        let index = if index < 0 { index.saturating_add(length as i64) } else { index };
        usize::try_from(index).ok().filter(|place| *place < length)
    };
    match value {
        Value::List(list) => {
            Ok(place(list.items.len()).map_or(Value::Undefined, |place| list.items[place].clone()))
        }
        Value::Text(text) => {
            budget.scan(text)?;
            let found = place(text.chars().count()).and_then(|place| text.chars().nth(place));
            found.map_or(Ok(Value::Undefined), |it| budget.text(it.encode_utf8(&mut [0; 4])))
        }
        _ => Ok(Value::Undefined),
    }
}

/// `value[start:stop:step]`
pub(super) fn slice(
    budget: &Budget,
    value: &Value,
    bounds: [Option<i64>; 3],
) -> Result<Value, Fault> {
    match value {
        Value::List(list) => {
            let places = places(list.items.len(), bounds)?;
            budget.items(places.len())?;
            let items = places.into_iter().map(|place| list.items[place].clone()).collect();
            budget.sequence(list.form, items).map(Value::List)
        }
        Value::Text(text) => {
            // The characters and their places.
            budget.memory(12 * text.len())?;
            budget.scan(text)?;
            let characters: Vec<char> = text.chars().collect();
            let places = places(characters.len(), bounds)?;
            let sliced: String = places.into_iter().map(|place| characters[place]).collect();
            budget.text(&sliced)
        }
        _ => Err(Fault::failed(format!("{} cannot be sliced", value.kind()))),
    }
}

/// The places that Python's slice takes of a sequence.
fn places(length: usize, [start, stop, step]: [Option<i64>; 3]) -> Result<Vec<usize>, Fault> {
    let length = length as i64;
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(Fault::failed("a slice has steps of 0"));
    }
    let (lowest, highest) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let bound = |given: Option<i64>, otherwise: i64| match given {
        None => otherwise,
        Some(bound) if bound < 0 => bound.saturating_add(length).clamp(lowest, highest),
        Some(bound) => bound.clamp(lowest, highest),
    };
    let (first, last) = if step > 0 { (0, length) } else { (length - 1, -1) };
    let (mut at, end) = (bound(start, first), bound(stop, last));
    let mut places = Vec::new();
    while if step > 0 { at < end } else { at > end } {
        places.push(at as usize);
        at = at.saturating_add(step);
    }
    Ok(places)
}

/// `range(stop)`, `range(start, stop)`, `range(start, stop, step)`
pub(super) fn range(budget: &Budget, arguments: &Arguments) -> Result<Value, Fault> {
    let mut numbers = arguments
        .positional
        .iter()
        .map(|value| value.as_integer().ok_or_else(|| Fault::failed("a range needs integers")));
    let first = numbers.next().ok_or_else(|| Fault::failed("a range needs an end"))??;
    let (start, stop) = match numbers.next() {
        Some(stop) => (first, stop?),
        None => (0, first),
    };
    let step = numbers.next().unwrap_or(Ok(1))?;
    if step == 0 {
        return Err(Fault::failed("a range has steps of 0"));
    }
    let distance = if step > 0 {
        i128::from(stop) - i128::from(start)
    } else {
        i128::from(start) - i128::from(stop)
    };
    let width = i128::from(step).abs();
    let count = usize::try_from((distance.max(0) + width - 1) / width).unwrap_or(usize::MAX);
    budget.items(count)?;
    // The last number is within the bounds, but its distance from the first need not be.
    let number = |place: i128| Value::Int((i128::from(start) + place * i128::from(step)) as i64);
    budget.list((0..count as i128).map(number).collect())
}
