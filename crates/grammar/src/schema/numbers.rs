//! Numbers of schemas, which the compiler holds as f64.

use serde_json::{Number, Value};

/// Up to here every integer is an f64.
const EXACT: i64 = 1 << 53;

/// An integer among the values that is no f64.
pub(super) fn inexact(value: &Value) -> Option<&Number> {
    match value {
        Value::Number(number) => {
            let small = number.as_i64().is_some_and(|integer| (-EXACT..=EXACT).contains(&integer));
            (!small && (number.is_i64() || number.is_u64())).then_some(number)
        }
        Value::Array(items) => items.iter().find_map(inexact),
        Value::Object(map) => map.values().find_map(inexact),
        _ => None,
    }
}

/// A bound, brought nearer where it is no exact integer: fewer values are then allowed, all of them
/// valid. None if no value would be left that the compiler tells apart.
pub(super) fn bound(keyword: &str, value: &Value) -> Option<Value> {
    let Value::Number(number) = value else {
        // Booleans of draft 4; anything else the compiler refuses.
        return Some(value.clone());
    };
    let (bound, limit) = (number.as_f64()?, EXACT as f64);
    let upper = keyword.ends_with("aximum");
    match (bound < -limit, bound > limit) {
        (false, false) => Some(value.clone()),
        (false, true) if upper => Some(Value::from(EXACT)),
        (true, false) if !upper => Some(Value::from(-EXACT)),
        _ => None,
    }
}
