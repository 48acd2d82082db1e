//! `/api/chat`.

use super::answer::{self, OllamaEndpoint};
use super::options;
use crate::call::Call;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::Prompt;
use crate::openai;
use crate::reply::Reply;
use pianola_text::{Conversation, Message};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Answers a conversation; one without messages loads or unloads the model.
pub(crate) async fn answer(call: &Arc<Call>, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    let messages = fields.list("messages")?.unwrap_or_default();
    let mut request = answer::OllamaRequest::read(&fields, OllamaEndpoint::Chat)?;
    if messages.is_empty() {
        return request.load_or_unload(call).await;
    }
    let messages = read_messages(messages)?;
    refuse_prefilled(&messages)?;
    let mut conversation = Conversation::new(messages);
    options::read_think(&fields, &mut conversation)?;
    let mut generation = options::generation(Prompt::Chat(conversation));
    options::read(&fields, &mut generation)?;
    generation.tools = openai::read_tools(&fields)?;
    let model = request.model(call, &fields).await?;
    request.answer(call, model, generation).await
}

/// Messages, by way of OpenAI's form.
fn read_messages(messages: &[Value]) -> Result<Vec<Message>, ApiError> {
    let translated = messages.iter().enumerate().map(|(index, message)| {
        let fields = Fields::of(message, &format!("messages[{index}]"))?;
        refuse_images(&fields)?;
        let mut message: Map<String, Value> =
            fields.entries().map(|(name, value)| (name.clone(), value.clone())).collect();
        if fields.value("content").is_none() {
            message.insert("content".into(), "".into());
        }
        for (own, openai) in [("thinking", "reasoning_content"), ("tool_name", "name")] {
            if let Some(value) = message.remove(own) {
                message.insert(openai.into(), value);
            }
        }
        if let Some(calls) = fields.list("tool_calls")? {
            message.insert("tool_calls".into(), calls.iter().map(openai_call).collect());
        }
        Ok(Value::Object(message))
    });
    let translated = translated.collect::<Result<Vec<Value>, ApiError>>()?;
    openai::chat::read_messages(&translated)
}

/// Refuses a last message of the assistant, which asks to go on with it: templates close it.
fn refuse_prefilled(messages: &[Message]) -> Result<(), ApiError> {
    match messages.last() {
        Some(last) if last.role == "assistant" => Err(ApiError::invalid(
            "messages",
            "prefilled answers are not supported: the last message must not be the assistant's",
        )),
        _ => Ok(()),
    }
}

/// A call in OpenAI's form; its arguments stay an object, as templates take them.
fn openai_call(call: &Value) -> Value {
    let mut call = call.clone();
    if let Some(call) = call.as_object_mut() {
        call.entry("type").or_insert(json!("function"));
    }
    call
}

/// Refuses images: no model here takes them. An empty list is no image.
pub(super) fn refuse_images(fields: &Fields<'_>) -> Result<(), ApiError> {
    if fields.list("images")?.is_some_and(|images| !images.is_empty()) {
        let name = fields.name("images");
        let message = format!("no model here takes images ({name} must be absent or empty)");
        return Err(ApiError::invalid(name, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_those_of_templates() {
        let messages = read_messages(&[
            json!({ "role": "user", "content": "hi", "images": [] }),
            json!({ "role": "assistant", "thinking": "hm", "tool_calls": [
                { "function": { "name": "f", "arguments": { "x": 1 } } }
            ] }),
            json!({ "role": "tool", "content": "2", "tool_name": "f" }),
        ]);
        let messages = messages.unwrap();
        assert_eq!(messages[1].content, json!(""));
        assert_eq!(messages[1].other["reasoning_content"], json!("hm"));
        let call = &messages[1].tool_calls.as_ref().unwrap()[0];
        assert_eq!(call["function"]["arguments"], json!({ "x": 1 }));
        assert_eq!(call["type"], json!("function"));
        assert_eq!(messages[2].name.as_deref(), Some("f"));
    }

    #[test]
    fn prefilled_answers_are_refused() {
        let user = json!({ "role": "user", "content": "hi" });
        let assistant = json!({ "role": "assistant", "content": "Well," });
        let check = |list: &[Value]| refuse_prefilled(&read_messages(list).unwrap());
        assert!(check(&[user.clone(), assistant.clone(), user.clone()]).is_ok());
        let error = check(&[user, assistant]).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("messages"));
        assert!(error.message.contains("prefilled"));
    }

    #[test]
    fn images_are_refused_by_name() {
        let messages = [json!({ "role": "user", "content": "hi", "images": ["aGk="] })];
        assert!(read_messages(&messages).unwrap_err().message.contains("messages[0].images"));
    }
}
