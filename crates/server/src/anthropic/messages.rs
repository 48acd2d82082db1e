//! `system` and `messages`: from Anthropic's blocks to the messages of chat templates.

use crate::blocks::{AssistantParts, tool_call};
use crate::error::ApiError;
use crate::fields::Fields;
use pianola_text::Message;
use serde_json::Value;

/// What Claude Code's system prompt begins with: a line for Anthropic's accounting that differs in every
/// request, so that the prefix cache would never match.
const BILLING: &str = "x-anthropic-billing-header:";

/// Reads `system` and `messages`.
pub(super) fn read(fields: &Fields<'_>) -> Result<Vec<Message>, ApiError> {
    let list = fields.list("messages")?.ok_or_else(|| fields.missing("messages"))?;
    if list.is_empty() {
        return Err(ApiError::invalid("messages", "messages must have at least one message"));
    }
    let mut messages = Vec::with_capacity(list.len() + 1);
    if let Some(system) = fields.value("system") {
        let text = read_system(system, &fields.name("system"))?;
        if !text.is_empty() {
            messages.push(Message::new("system", text));
        }
    }
    for (index, message) in list.iter().enumerate() {
        let message = Fields::of(message, &format!("messages[{index}]"))?;
        let content = message.value("content").ok_or_else(|| message.missing("content"))?;
        match message.required_text("role")? {
            "user" => read_user(content, &message.name("content"), &mut messages)?,
            "assistant" => messages.push(read_assistant(content, &message.name("content"))?),
            "system" => {
                let text = join(texts(content, &message.name("content"))?);
                messages.push(Message::new("system", text));
            }
            _ => return Err(message.wrong("role", "user, assistant or system")),
        }
    }
    match messages.last() {
        Some(last) if last.role == "assistant" => Err(ApiError::invalid(
            "messages",
            "prefilled answers are not supported: the last message must not be the assistant's",
        )),
        _ => Ok(messages),
    }
}

/// The blocks of a content; a string is one block of text.
fn blocks<'a>(content: &'a Value, name: &str) -> Result<Vec<(String, Fields<'a>)>, ApiError> {
    let Some(list) = content.as_array() else {
        let message = format!("{name} must be a string or a list of content blocks");
        return Err(ApiError::invalid(name, message));
    };
    let block = |(index, block)| {
        let fields = Fields::of(block, &format!("{name}[{index}]"))?;
        Ok((fields.required_text("type")?.to_string(), fields))
    };
    list.iter().enumerate().map(block).collect()
}

/// The system prompt, without the line for accounting.
fn read_system(content: &Value, name: &str) -> Result<String, ApiError> {
    let texts = texts(content, name)?.into_iter().map(without_billing);
    Ok(join(texts))
}

/// The texts of a content that has nothing else.
fn texts<'a>(content: &'a Value, name: &str) -> Result<Vec<&'a str>, ApiError> {
    if let Some(text) = content.as_str() {
        return Ok(vec![text]);
    }
    let text = |(kind, block): (String, Fields<'a>)| match kind.as_str() {
        "text" => block.required_text("text"),
        other => Err(unsupported(other, &block)),
    };
    blocks(content, name)?.into_iter().map(text).collect()
}

/// Texts in one, each on lines of its own.
fn join<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let texts: Vec<&str> = texts.into_iter().filter(|text| !text.is_empty()).collect();
    texts.join("\n")
}

fn without_billing(text: &str) -> &str {
    match text.starts_with(BILLING) {
        true => text.split_once('\n').map_or("", |(_, rest)| rest),
        false => text,
    }
}

fn unsupported(kind: &str, block: &Fields<'_>) -> ApiError {
    let what = match kind {
        "image" => "images",
        "document" => "documents",
        other => other,
    };
    let name = block.name("type");
    ApiError::invalid(&name, format!("no model here takes {what} ({name} is {kind})"))
}

/// Results of tools and texts, in their order.
fn read_user(content: &Value, name: &str, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    if let Some(text) = content.as_str() {
        messages.push(Message::new("user", text));
        return Ok(());
    }
    let mut texts: Vec<&str> = Vec::new();
    let flush = |texts: &mut Vec<&str>, messages: &mut Vec<Message>| {
        if !texts.is_empty() {
            messages.push(Message::new("user", texts.join("\n")));
            texts.clear();
        }
    };
    for (kind, block) in blocks(content, name)? {
        match kind.as_str() {
            "text" => texts.push(block.required_text("text")?),
            "tool_result" => {
                flush(&mut texts, messages);
                messages.push(read_result(&block)?);
            }
            other => return Err(unsupported(other, &block)),
        }
    }
    flush(&mut texts, messages);
    Ok(())
}

fn read_result(block: &Fields<'_>) -> Result<Message, ApiError> {
    let text = match block.value("content") {
        None => String::new(),
        Some(content) => join(texts(content, &block.name("content"))?),
    };
    let failed = block.flag("is_error")?.unwrap_or(false);
    let text = if failed { format!("Error: {text}") } else { text };
    let id = block.required_text("tool_use_id")?.to_string();
    Ok(Message { tool_call_id: Some(id), ..Message::new("tool", text) })
}

fn read_assistant(content: &Value, name: &str) -> Result<Message, ApiError> {
    let mut parts = AssistantParts::default();
    if let Some(text) = content.as_str() {
        parts.text = text.to_string();
        return Ok(parts.message());
    }
    let mut texts: Vec<&str> = Vec::new();
    for (kind, block) in blocks(content, name)? {
        match kind.as_str() {
            "text" => texts.push(block.required_text("text")?),
            "thinking" => parts.reasoning.push_str(block.required_text("thinking")?),
            // Encrypted by Anthropic.
            "redacted_thinking" => {}
            "tool_use" => {
                let input = block.value("input").map_or("{}".to_string(), Value::to_string);
                let (id, name) = (block.required_text("id")?, block.required_text("name")?);
                parts.calls.push(tool_call(id, name, &input));
            }
            other => return Err(unsupported(other, &block)),
        }
    }
    parts.text = texts.join("\n");
    Ok(parts.message())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn messages(body: &Value) -> Result<Vec<Message>, ApiError> {
        read(&Fields::of(body, "")?)
    }

    fn roles(messages: &[Message]) -> Vec<&str> {
        messages.iter().map(|message| message.role.as_str()).collect()
    }

    #[test]
    fn a_round_of_tools() {
        let body = json!({
            "system": [
                { "type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=36ee5;" },
                { "type": "text", "text": "Be brief.", "cache_control": { "type": "ephemeral" } },
                { "type": "text", "text": "Be kind." },
            ],
            "messages": [
                { "role": "user", "content": "What is in a.txt?" },
                { "role": "system", "content": [{ "type": "text", "text": "A reminder." }] },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "I read it.", "signature": "s" },
                    { "type": "redacted_thinking", "data": "d" },
                    { "type": "text", "text": "Reading." },
                    { "type": "tool_use", "id": "t1", "name": "Read", "input": { "path": "a.txt", "n": 1 } },
                    { "type": "tool_use", "id": "t2", "name": "List", "input": {} },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "t1",
                      "content": [{ "type": "text", "text": "one" }, { "type": "text", "text": "two" }],
                      "cache_control": { "type": "ephemeral" } },
                    { "type": "tool_result", "tool_use_id": "t2", "content": "denied", "is_error": true },
                    { "type": "tool_result", "tool_use_id": "t3" },
                    { "type": "text", "text": "And now?" },
                ] },
                { "role": "user", "content": "Well?" },
            ],
        });
        let found = messages(&body).unwrap();
        let expected =
            ["system", "user", "system", "assistant", "tool", "tool", "tool", "user", "user"];
        assert_eq!(roles(&found), expected);
        assert_eq!(found[0].content, "Be brief.\nBe kind.");
        assert_eq!(found[3].content, "Reading.");
        assert_eq!(found[3].other["reasoning_content"], "I read it.");
        let calls = found[3].tool_calls.as_ref().unwrap();
        assert_eq!(calls[0], tool_call("t1", "Read", r#"{"path":"a.txt","n":1}"#));
        assert_eq!(calls[1]["function"]["arguments"], "{}");
        assert_eq!(found[4].content, "one\ntwo");
        assert_eq!(found[4].tool_call_id.as_deref(), Some("t1"));
        assert_eq!(found[5].content, "Error: denied");
        assert_eq!(found[6].content, "");
        assert_eq!(found[7].content, "And now?");
    }

    #[test]
    fn only_the_line_for_accounting_is_left_out() {
        let system = "x-anthropic-billing-header: cc_version=2.1; cch=0aaa9;\nBe brief.";
        let result = json!({ "type": "tool_result", "tool_use_id": "t", "content": system });
        let body = json!({ "system": system, "messages": [
            { "role": "user", "content": [result] }, { "role": "system", "content": system },
        ] });
        let found = messages(&body).unwrap();
        let contents: Vec<&Value> = found.iter().map(|message| &message.content).collect();
        // What the conversation itself says stays as it is.
        assert_eq!(contents, ["Be brief.", system, system]);
    }

    #[test]
    fn what_is_not_taken_is_named() {
        let of = |content: Value| {
            let body = json!({ "messages": [{ "role": "user", "content": content }] });
            messages(&body).unwrap_err()
        };
        let image = of(json!([{ "type": "text", "text": "x" }, { "type": "image", "source": {} }]));
        assert!(image.message.contains("images"), "{}", image.message);
        assert_eq!(image.param.as_deref(), Some("messages[0].content[1].type"));
        assert!(of(json!([{ "type": "document" }])).message.contains("documents"));
        let inside = json!([{ "type": "tool_result", "tool_use_id": "t", "content": [{ "type": "image" }] }]);
        assert!(of(inside).message.contains("messages[0].content[0].content[0].type"));
        assert!(of(json!([{ "type": "tool_result" }])).message.contains("tool_use_id is missing"));
        assert!(of(json!(5)).message.contains("a string or a list"));
        let prefill = json!({ "messages": [
            { "role": "user", "content": "hi" }, { "role": "assistant", "content": "The answer is (" },
        ] });
        assert!(messages(&prefill).unwrap_err().message.contains("prefilled"));
        assert!(messages(&json!({ "messages": [] })).is_err());
        assert!(messages(&json!({})).unwrap_err().message.contains("messages is missing"));
        let role = json!({ "messages": [{ "role": "bot", "content": "hi" }] });
        assert_eq!(messages(&role).unwrap_err().param.as_deref(), Some("messages[0].role"));
    }
}
