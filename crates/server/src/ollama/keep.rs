//! `keep_alive`: how long a model stays loaded after a request.

use crate::call::Call;
use crate::error::ApiError;
use crate::fields::Fields;
use serde_json::Value;
use std::time::Duration;

/// What stands for "until the server ends": longer than any server runs, short enough for calendars.
pub(super) const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

const MUST: &str =
    "a number of seconds or a duration such as \"5m\"; -1: for ever, 0: unload at once";

/// Reads `keep_alive`; none where the request does not say.
pub(super) fn read(fields: &Fields<'_>) -> Result<Option<Duration>, ApiError> {
    let wrong = || fields.wrong("keep_alive", MUST);
    let seconds = match fields.value("keep_alive") {
        None => return Ok(None),
        Some(Value::Number(seconds)) => seconds.as_f64().ok_or_else(wrong)?,
        Some(Value::String(text)) => parse(text).ok_or_else(wrong)?,
        Some(_) => return Err(wrong()),
    };
    let forever = seconds < 0.0 || seconds >= FOREVER.as_secs_f64();
    Ok(Some(if forever { FOREVER } else { Duration::from_secs_f64(seconds) }))
}

/// Seconds of a duration in Go's form: `1h30m`, `300ms`, `-1`; a bare number counts seconds.
fn parse(text: &str) -> Option<f64> {
    let (negative, mut rest) = match text.trim().strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.trim()),
    };
    let seconds = match rest.parse::<f64>() {
        Ok(seconds) => seconds,
        Err(_) => {
            let mut sum = 0.0;
            while !rest.is_empty() {
                let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
                let (number, after) = rest.split_at(digits);
                let unit = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
                let (unit, after) = after.split_at(unit);
                let factor = match unit {
                    "ns" => 1e-9,
                    "us" | "µs" => 1e-6,
                    "ms" => 1e-3,
                    "s" => 1.0,
                    "m" => 60.0,
                    "h" => 3600.0,
                    _ => return None,
                };
                sum += number.parse::<f64>().ok()? * factor;
                rest = after;
            }
            sum
        }
    };
    let plain = !text.trim().is_empty() && seconds.is_finite() && seconds >= 0.0;
    plain.then_some(if negative { -seconds } else { seconds })
}

/// Applies what the request said to a model that is loaded.
pub(super) fn apply(call: &Call, id: &str, keep: Option<Duration>) {
    if let Some(keep) = keep {
        call.state.hub.set_idle(id, keep);
    }
}

/// Unloads a model now, or as soon as the requests that use it have ended.
pub(super) async fn unload(call: &Call, id: String) {
    let hub = call.state.hub.clone();
    hub.set_idle(&id, Duration::ZERO);
    // Freeing gigabytes takes a while and would block other connections.
    let _ = tokio::task::spawn_blocking(move || hub.unload(&id)).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn durations_are_numbers_or_in_the_form_of_go() {
        assert_eq!(parse("5m"), Some(300.0));
        assert_eq!(parse("1h30m"), Some(5400.0));
        assert_eq!(parse("300ms"), Some(0.3));
        assert_eq!(parse("2.5s"), Some(2.5));
        assert_eq!(parse("-1"), Some(-1.0));
        assert_eq!(parse("-1m"), Some(-60.0));
        assert_eq!(parse("0"), Some(0.0));
        for wrong in ["", "m", "5x", "5m3", "inf", "nan", "--1", "1e999", "5 m"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn negative_and_enormous_times_are_for_ever() {
        let read = |value: Value| read(&Fields::of(&json!({ "keep_alive": value }), "").unwrap());
        assert_eq!(read(json!(null)).unwrap(), None);
        assert_eq!(read(json!(-1)).unwrap(), Some(FOREVER));
        assert_eq!(read(json!(1e300)).unwrap(), Some(FOREVER));
        assert_eq!(read(json!("10s")).unwrap(), Some(Duration::from_secs(10)));
        assert_eq!(read(json!(0)).unwrap(), Some(Duration::ZERO));
        assert!(read(json!("soon")).is_err());
        assert!(read(json!(true)).is_err());
    }
}
