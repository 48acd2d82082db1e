//! Conversations and what Python's Jinja makes of them: see chat.py.

use std::time::{Duration, UNIX_EPOCH};

use pianola_text::{ChatTemplate, Conversation, Error};
use serde_json::Value;

/// All cases of chat.json.
pub fn cases() -> Vec<Value> {
    serde_json::from_str(include_str!("chat.json")).unwrap()
}

/// The conversation of a case.
pub fn conversation(case: &Value) -> Conversation {
    let given = &case["conversation"];
    Conversation {
        messages: serde_json::from_value(given["messages"].clone()).unwrap(),
        tools: given.get("tools").filter(|tools| !tools.is_null()).cloned(),
        add_generation_prompt: given["add_generation_prompt"].as_bool().unwrap_or(true),
        now: Some(UNIX_EPOCH + Duration::from_secs(1_709_210_096)),
        extra: given["extra"].as_object().cloned().unwrap_or_default(),
    }
}

/// Renders a case and compares.
pub fn check(template: &ChatTemplate, case: &Value) {
    match (template.render(&conversation(case)), case["text"].as_str()) {
        (Ok(text), Some(expected)) => assert_eq!(text, expected, "{case}"),
        (Err(Error::Refused(message)), None) => assert_eq!(message, case["refused"], "{case}"),
        (other, _) => panic!("{other:?} for {case}"),
    }
}
