//! The `content` of messages: a string, or a list of parts.

use serde_json::{Value, json};

use super::words::to_json;

/// The text of a content of nothing but text.
pub(super) fn text(content: &Value) -> Option<String> {
    match content {
        Value::Null => Some(String::new()),
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts: Option<Vec<&str>> = parts.iter().map(|part| part["text"].as_str()).collect();
            texts.map(|texts| texts.join("\n"))
        }
        other => Some(to_json(other)),
    }
}

/// Whether it says nothing.
pub(super) fn is_empty(content: &Value) -> bool {
    text(content).is_some_and(|text| text.is_empty())
}

/// Both contents in one, an empty line between them.
pub(super) fn join(first: Value, second: Value) -> Value {
    if is_empty(&first) {
        return second;
    }
    if is_empty(&second) {
        return first;
    }
    if let (Some(first), Some(second)) = (text(&first), text(&second)) {
        return Value::String(format!("{first}\n\n{second}"));
    }
    let mut parts = parts(first);
    for part in self::parts(second) {
        // Templates write parts without anything between them.
        let last = parts.last().and_then(|last: &Value| last["text"].as_str());
        match (last, part["text"].as_str()) {
            (Some(last), Some(text)) => {
                let joined = json!({ "type": "text", "text": format!("{last}\n\n{text}") });
                parts.pop();
                parts.push(joined);
            }
            _ => parts.push(part),
        }
    }
    Value::Array(parts)
}

fn parts(content: Value) -> Vec<Value> {
    match content {
        Value::Array(parts) => parts,
        other => vec![json!({ "type": "text", "text": text(&other).unwrap_or_default() })],
    }
}
