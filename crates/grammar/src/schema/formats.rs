//! Formats of strings.

use serde_json::Value;

/// Formats that have a rule.
pub(super) const KNOWN: [&str; 10] =
    ["date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// A day, of leap years the 29th of February too; no year 0.
const DATE: &str = concat!(
    r"(?:(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})-(?:",
    r"(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|",
    r"(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|",
    r"02-(?:0[1-9]|1[0-9]|2[0-8]))",
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
);
/// A time with its offset. Leap seconds are left out: which ones there were is no matter of syntax.
const TIME: &str = concat!(
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?",
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
);

/// The pattern of a format for which the compiler's own rule allows values that are not valid.
pub(super) fn pattern(format: &Value) -> Option<String> {
    match format.as_str()? {
        "date" => Some(format!("^{DATE}$")),
        "time" => Some(format!("^{TIME}$")),
        "date-time" => Some(format!("^{DATE}T{TIME}$")),
        _ => None,
    }
}

/// Formats that say how a value is shown or stored, not which values are valid.
const ANNOTATIONS: [&str; 8] =
    ["password", "binary", "byte", "textarea", "markdown", "html", "color", "multiline"];

/// Whether the format is enforced; no answer where it should be and has no rule.
pub(super) fn enforced(format: &Value) -> Option<bool> {
    let format = format.as_str()?;
    match (KNOWN.contains(&format), ANNOTATIONS.contains(&format)) {
        (true, _) => Some(true),
        (false, true) => Some(false),
        (false, false) => None,
    }
}
