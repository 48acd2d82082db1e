//! Text inside of Lark grammars.

/// A text as Lark's literal, which is spelled as in JSON.
pub(crate) fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}
