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
    let upper = keyword.ends_with("aximum");
    let beyond = match number.as_i64() {
        // The compiler adds 1 to an exclusive bound, or subtracts it.
        Some(bound) if keyword.starts_with("exclusive") => (bound <= -EXACT, bound >= EXACT),
        Some(bound) => (bound < -EXACT, bound > EXACT),
        None => {
            // What was written may have been rounded to the limit.
            let bound = number.as_f64()?;
            (bound <= -(EXACT as f64), bound >= EXACT as f64)
        }
    };
    match beyond {
        (false, false) => Some(value.clone()),
        (false, true) if upper => Some(Value::from(EXACT)),
        (true, false) if !upper => Some(Value::from(-EXACT)),
        _ => None,
    }
}

/// The least common multiple of all `multipleOf`, in millionths. Where they meet in one number, the
/// compiler computes that of some of them without a look at overflow.
pub(super) struct Multiples(u64);

impl Default for Multiples {
    fn default() -> Multiples {
        Multiples(1)
    }
}

impl Multiples {
    /// Adds one. False, and nothing changes, if the common multiple becomes too large.
    pub fn add(&mut self, value: &Value) -> bool {
        const MILLION: f64 = 1e6;
        const MAX: u64 = 1 << 50;
        let Some(multiple) = value.as_f64().map(f64::abs) else {
            // Not a number, which the compiler refuses.
            return true;
        };
        let scaled = multiple * MILLION;
        if scaled.fract() != 0.0 || !(1.0..MAX as f64).contains(&scaled) {
            return false;
        }
        let (mut a, mut b) = (self.0, scaled as u64);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        match (self.0 / a).checked_mul(scaled as u64) {
            Some(common) if common <= MAX => {
                self.0 = common;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bounds_that_are_no_f64_are_not_rounded() {
        let limit = EXACT;
        for (keyword, value, expected) in [
            ("minimum", json!(limit + 1), None),
            ("minimum", json!(limit), Some(json!(limit))),
            ("maximum", json!(limit + 3), Some(json!(limit))),
            ("maximum", json!(-limit - 1), None),
            ("maximum", json!(-limit), Some(json!(-limit))),
            ("minimum", json!(-limit - 1), Some(json!(-limit))),
            ("exclusiveMinimum", json!(limit), None),
            ("exclusiveMinimum", json!(limit - 1), Some(json!(limit - 1))),
            ("exclusiveMaximum", json!(limit), Some(json!(limit))),
            ("exclusiveMaximum", json!(-limit), None),
            ("minimum", json!(9007199254740993.0), None),
            ("minimum", json!(u64::MAX), None),
            ("maximum", json!(1.5), Some(json!(1.5))),
        ] {
            assert_eq!(bound(keyword, &value), expected, "{keyword} {value}");
        }
    }
}
