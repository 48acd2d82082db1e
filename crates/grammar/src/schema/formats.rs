//! Formats of strings.

use serde_json::Value;

/// Formats that have a rule.
pub(super) const KNOWN: [&str; 10] = [
    "date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
];

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
