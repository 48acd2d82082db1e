//! What a chat template is given.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::Error;

/// One message of a conversation, in the form of OpenAI's API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// A string, a list of parts, or null.
    #[serde(default)]
    pub content: Value,
    /// Calls that the assistant made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Value>,
    /// The call that a `tool` message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// The tool that answers, or a participant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Fields that only the template understands.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Message {
    /// A message of text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: Value::String(content.into()), ..Message::default() }
    }
}

/// Everything a template may ask for.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// The messages so far.
    pub messages: Vec<Message>,
    /// Tool definitions, a list in OpenAI's form.
    pub tools: Option<Value>,
    /// Whether the text ends where the assistant is to begin.
    pub add_generation_prompt: bool,
    /// The time that `strftime_now` returns, in UTC; the present if `None`.
    pub now: Option<SystemTime>,
    /// Further variables, such as `enable_thinking` or `documents`.
    pub extra: Map<String, Value>,
}

impl Conversation {
    /// These messages, to be answered by the assistant.
    pub fn new(messages: Vec<Message>) -> Conversation {
        Conversation { messages, add_generation_prompt: true, ..Conversation::default() }
    }
}

/// The forms of `content` that a template understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentForm {
    Any,
    Text,
    Parts,
}

/// The messages as the template expects them.
pub(super) fn prepare(messages: &[Message], form: ContentForm) -> Result<Value, Error> {
    messages
        .iter()
        .map(|message| {
            let mut message = message.clone();
            message.content = match (form, message.content) {
                (ContentForm::Text, Value::Array(parts)) => Value::String(join_text(&parts)?),
                (ContentForm::Parts, Value::String(text)) => {
                    json!([{ "type": "text", "text": text }])
                }
                (_, content) => content,
            };
            message.tool_calls.iter_mut().for_each(parse_arguments);
            serde_json::to_value(message).map_err(|error| Error::Template(error.to_string()))
        })
        .collect()
}

fn join_text(parts: &[Value]) -> Result<String, Error> {
    let mut texts = Vec::with_capacity(parts.len());
    for part in parts {
        match part["text"].as_str() {
            Some(text) => texts.push(text),
            None => {
                return Err(Error::Template(format!(
                    "it takes text only, and a message has a part of type {}",
                    part["type"]
                )));
            }
        }
    }
    Ok(texts.join("\n"))
}

/// OpenAI sends the arguments of a call as a string of JSON; templates expect
/// the object and write the JSON themselves.
fn parse_arguments(calls: &mut Value) {
    for call in calls.as_array_mut().into_iter().flatten() {
        let arguments = call.pointer_mut("/function/arguments");
        if let Some(arguments) = arguments
            && let Some(text) = arguments.as_str()
            && let Ok(object @ Value::Object(_)) = serde_json::from_str(text)
        {
            *arguments = object;
        }
    }
}
