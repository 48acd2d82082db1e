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
    match content {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(parts) => match &parts[..] {
            [] => true,
            [part] => part["text"] == "",
            // A line break stands between texts.
            _ => false,
        },
        _ => false,
    }
}

fn is_text(content: &Value) -> bool {
    content.as_array().is_none_or(|parts| parts.iter().all(|part| part["text"].is_string()))
}

/// Both contents in one, an empty line between them.
pub(super) fn join(first: Value, second: Value) -> Value {
    let mut joined = Joined::new(first);
    joined.add(second);
    joined.content
}

/// Contents in one, an empty line between them. To add one takes time in proportion to its own
/// length, whatever came before.
pub(super) struct Joined {
    content: Value,
    /// Whether the content is nothing but text.
    is_text: bool,
}

impl Joined {
    pub(super) fn new(content: Value) -> Joined {
        Joined { is_text: is_text(&content), content }
    }

    pub(super) fn add(&mut self, next: Value) {
        if is_empty(&self.content) {
            *self = Joined::new(next);
            return;
        }
        if is_empty(&next) {
            return;
        }
        let content = std::mem::take(&mut self.content);
        self.is_text &= is_text(&next);
        self.content = match self.is_text {
            true => {
                let mut text = into_text(content);
                text.push_str("\n\n");
                text.push_str(&into_text(next));
                text.into()
            }
            false => {
                let mut parts = into_parts(content);
                into_parts(next).into_iter().for_each(|part| add_part(&mut parts, part));
                // `into` would visit every part.
                Value::Array(parts)
            }
        };
    }

    pub(super) fn into_content(self) -> Value {
        self.content
    }
}

/// Adds a part; texts become one, because templates write parts without anything between them.
fn add_part(parts: &mut Vec<Value>, part: Value) {
    let last = parts.last_mut().filter(|last| last["text"].is_string());
    if let (Some(Value::Object(last)), Some(next)) = (last, part["text"].as_str())
        && let Some(Value::String(text)) = last.get_mut("text")
    {
        text.push_str("\n\n");
        text.push_str(next);
        last.insert("type".into(), "text".into());
    } else {
        parts.push(part);
    }
}

fn into_text(content: Value) -> String {
    match content {
        Value::String(text) => text,
        other => text(&other).unwrap_or_default(),
    }
}

fn into_parts(content: Value) -> Vec<Value> {
    match content {
        Value::Array(parts) => parts,
        other => vec![json!({ "type": "text", "text": into_text(other) })],
    }
}
