//! `input`: from items to the messages of chat templates.

use super::tools::flat_name;
use crate::blocks::{AssistantParts, tool_call};
use crate::error::{ApiError, ErrorKind};
use crate::fields::Fields;
use crate::openai::chat;
use pianola_text::Message;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, Write};

/// Bytes of JSON that an input may still have: put together, with the items that it refers to and the
/// conversation that it continues, it may be as large as a body.
pub(super) struct InputBudget {
    left: usize,
    most: usize,
}

impl InputBudget {
    pub fn new(most: usize) -> InputBudget {
        InputBudget { left: most, most }
    }

    /// Takes the bytes of a part.
    pub fn take(&mut self, part: &impl Serialize) -> Result<(), ApiError> {
        match self.left.checked_sub(json_bytes(part)) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                let message = format!(
                    "the input has more than {} bytes with the items that it refers to and the response that it continues; send a shorter one",
                    self.most
                );
                let param = Some("input".to_string());
                Err(ApiError { param, ..ApiError::new(ErrorKind::TooLarge, message) })
            }
        }
    }
}

/// Bytes of a value as JSON.
fn json_bytes(value: &impl Serialize) -> usize {
    struct Counter(usize);
    impl Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    match serde_json::to_writer(&mut counter, value) {
        Ok(()) => counter.0,
        // What cannot be written as JSON does not fit.
        Err(_) => usize::MAX,
    }
}

/// Reads `input`; `find` knows the items that may be referred to.
pub(super) fn read(
    fields: &Fields<'_>,
    budget: &mut InputBudget,
    find: impl Fn(&str) -> Option<Value>,
) -> Result<Vec<Message>, ApiError> {
    let input = fields.value("input");
    budget.take(&input)?;
    let items = match input {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => return Ok(vec![Message::new("user", text.as_str())]),
        Some(Value::Array(items)) => items,
        Some(_) => return Err(fields.wrong("input", "a string or a list of items")),
    };
    let mut transcript = Transcript::default();
    for (index, item) in items.iter().enumerate() {
        let name = format!("input[{index}]");
        let fields = Fields::of(item, &name)?;
        match kind(&fields)? {
            "item_reference" => {
                let id = fields.required_text("id")?;
                let found = find(id).ok_or_else(|| {
                    let message =
                        format!("{name} refers to the item '{id}', which is not kept here");
                    let param = Some(name.clone());
                    ApiError { param, ..ApiError::new(ErrorKind::NotFound, message) }
                })?;
                budget.take(&found)?;
                transcript.push(&found, &name)?;
            }
            _ => transcript.push(item, &name)?,
        }
    }
    Ok(transcript.messages)
}

fn kind<'a>(item: &Fields<'a>) -> Result<&'a str, ApiError> {
    Ok(match item.text("type")? {
        Some(kind) => kind,
        None if item.value("role").is_some() => "message",
        None => "item_reference",
    })
}

/// Messages as they are put together from items.
#[derive(Default)]
struct Transcript {
    messages: Vec<Message>,
    /// Thoughts that the next message of the assistant begins with.
    reasoning: String,
}

impl Transcript {
    fn push(&mut self, item: &Value, name: &str) -> Result<(), ApiError> {
        let fields = Fields::of(item, name)?;
        match kind(&fields)? {
            "message" => self.push_message(chat::read_message(item, name)?),
            "function_call" => {
                let arguments = fields.text("arguments")?.unwrap_or_default();
                self.push_call(&fields, arguments)
            }
            "custom_tool_call" => {
                let arguments = json!({ "input": fields.required_text("input")? });
                self.push_call(&fields, &arguments.to_string())
            }
            "function_call_output" | "custom_tool_call_output" => self.push_result(&fields),
            "reasoning" => {
                self.reasoning.push_str(&read_reasoning(&fields)?);
                Ok(())
            }
            other => {
                let name = fields.name("type");
                Err(ApiError::invalid(
                    &name,
                    format!("{name} is {other}, which is not supported here"),
                ))
            }
        }
    }

    fn push_message(&mut self, mut message: Message) -> Result<(), ApiError> {
        let reasoning = std::mem::take(&mut self.reasoning);
        if message.role == "assistant" && !reasoning.is_empty() {
            message.other.insert("reasoning_content".into(), reasoning.into());
        }
        self.messages.push(message);
        Ok(())
    }

    /// A call belongs to the message of the assistant before it, if there is one.
    fn push_call(&mut self, fields: &Fields<'_>, arguments: &str) -> Result<(), ApiError> {
        let name = flat_name(fields.text("namespace")?, fields.required_text("name")?);
        let call = tool_call(fields.required_text("call_id")?, &name, arguments);
        let reasoning = std::mem::take(&mut self.reasoning);
        match self.messages.last_mut() {
            Some(last) if last.role == "assistant" && reasoning.is_empty() => {
                let calls = last.tool_calls.get_or_insert_with(|| json!([]));
                calls.as_array_mut().into_iter().for_each(|calls| calls.push(call.clone()));
            }
            _ => {
                let calls = vec![call];
                let parts = AssistantParts { reasoning, calls, ..AssistantParts::default() };
                self.messages.push(parts.message());
            }
        }
        Ok(())
    }

    fn push_result(&mut self, fields: &Fields<'_>) -> Result<(), ApiError> {
        let content = match fields.value("output") {
            None => Value::String(String::new()),
            Some(Value::String(text)) => text.as_str().into(),
            Some(Value::Array(parts)) => chat::read_parts(parts, &fields.name("output"))?,
            Some(_) => return Err(fields.wrong("output", "a string or a list of parts")),
        };
        self.messages.push(Message {
            role: "tool".into(),
            content,
            tool_call_id: Some(fields.required_text("call_id")?.to_string()),
            ..Message::default()
        });
        Ok(())
    }
}

/// The thoughts themselves where they are given, or else their summary.
fn read_reasoning(item: &Fields<'_>) -> Result<String, ApiError> {
    for field in ["content", "summary"] {
        let parts = item.list(field)?.unwrap_or_default();
        let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
        if !texts.is_empty() {
            return Ok(texts.join("\n"));
        }
    }
    Ok(String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 2_000;

    fn messages(input: Value) -> Result<Vec<Message>, ApiError> {
        let known = json!({ "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{ "type": "output_text", "text": "Kept.", "annotations": [] }] });
        let body = json!({ "input": input });
        let mut budget = InputBudget::new(MOST);
        read(&Fields::of(&body, "")?, &mut budget, |id| (id == "msg_1").then(|| known.clone()))
    }

    fn roles(messages: &[Message]) -> Vec<&str> {
        messages.iter().map(|message| message.role.as_str()).collect()
    }

    fn text(message: &Message) -> &str {
        message.content[0]["text"].as_str().or(message.content.as_str()).unwrap()
    }

    #[test]
    fn strings_are_the_users() {
        assert_eq!(messages(json!("")).unwrap(), [Message::new("user", "")]);
        assert_eq!(messages(json!("hi")).unwrap(), [Message::new("user", "hi")]);
        assert!(messages(json!([])).unwrap().is_empty());
        assert!(messages(json!(5)).is_err());
    }

    #[test]
    fn a_round_of_tools() {
        let found = messages(json!([
            { "type": "message", "id": "i1", "role": "developer",
              "content": [{ "type": "input_text", "text": "Be brief." }] },
            { "role": "user", "content": "Read a and b." },
            { "type": "reasoning", "id": "rs_1", "encrypted_content": null,
              "summary": [{ "type": "summary_text", "text": "Two files." }] },
            { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "Yes." }] },
            { "type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read", "arguments": "{\"p\":\"a\"}",
              "namespace": "files" },
            { "type": "function_call", "call_id": "c2", "name": "shell", "arguments": "{}" },
            { "type": "function_call_output", "id": "o1", "call_id": "c1", "output": "A" },
            { "type": "function_call_output", "call_id": "c2",
              "output": [{ "type": "input_text", "text": "B" }] },
            { "type": "reasoning", "summary": [], "content": [{ "type": "reasoning_text", "text": "More." }] },
            { "type": "function_call", "call_id": "c3", "name": "shell", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "c3", "output": "C" },
            { "type": "item_reference", "id": "msg_1" },
        ]))
        .unwrap();
        let expected =
            ["developer", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant"];
        assert_eq!(roles(&found), expected);
        assert_eq!(text(&found[0]), "Be brief.");
        assert_eq!(text(&found[2]), "Yes.");
        assert_eq!(found[2].other["reasoning_content"], "Two files.");
        let calls = found[2].tool_calls.as_ref().unwrap();
        assert_eq!(calls[0], tool_call("c1", "files__read", "{\"p\":\"a\"}"));
        assert_eq!(calls[1], tool_call("c2", "shell", "{}"));
        assert_eq!((text(&found[3]), found[3].tool_call_id.as_deref()), ("A", Some("c1")));
        assert_eq!(text(&found[4]), "B");
        assert_eq!(found[5].content, Value::Null);
        assert_eq!(found[5].other["reasoning_content"], "More.");
        assert_eq!(text(&found[7]), "Kept.");
    }

    /// A short list of references to one item is a long input.
    #[test]
    fn references_count_with_what_they_refer_to() {
        let references = |count: usize| json!(vec![json!({ "id": "msg_1" }); count]);
        assert_eq!(messages(references(3)).unwrap().len(), 3);
        let error = messages(references(50)).unwrap_err();
        assert!(references(50).to_string().len() < MOST);
        assert_eq!(error.kind, ErrorKind::TooLarge);
        assert!(error.message.contains("2000 bytes"), "{}", error.message);
    }

    #[test]
    fn what_is_not_taken_is_named() {
        let image =
            json!([{ "role": "user", "content": [{ "type": "input_image", "image_url": "x" }] }]);
        assert!(messages(image).unwrap_err().message.contains("images"));
        let unknown = messages(json!([{ "type": "computer_call", "call_id": "c" }])).unwrap_err();
        assert!(unknown.message.contains("input[0].type is computer_call"));
        let reference = messages(json!([{ "id": "msg_2" }])).unwrap_err();
        assert_eq!(reference.kind, ErrorKind::NotFound);
        let call = messages(json!([{ "type": "function_call", "name": "f" }])).unwrap_err();
        assert!(call.message.contains("input[0].call_id is missing"));
    }
}
