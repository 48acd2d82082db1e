//! `/api/generate`.

use super::answer::{self, OllamaEndpoint};
use super::chat::refuse_images;
use super::options;
use crate::call::Call;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::Prompt;
use crate::model::LoadedModel;
use crate::reply::Reply;
use pianola_text::{Conversation, Message};
use serde_json::Value;
use std::sync::Arc;

/// Answers a prompt; without one, loads or unloads the model.
pub(crate) async fn answer(call: &Arc<Call>, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    refuse_impossible(&fields)?;
    let prompt = fields.text("prompt")?.unwrap_or_default();
    let mut request = answer::OllamaRequest::read(&fields, OllamaEndpoint::Generate)?;
    if prompt.is_empty() {
        return request.load_or_unload(call).await;
    }
    let mut generation = options::generation(Prompt::Text(prompt.to_string()));
    options::read(&fields, &mut generation)?;
    let model = request.model(call, &fields).await?;
    generation.prompt = read_prompt(&fields, prompt, &model)?;
    generation.split_reasoning = matches!(generation.prompt, Prompt::Chat(_));
    request.answer(call, model, generation).await
}

/// Fields that would change the answer and cannot be followed.
fn refuse_impossible(fields: &Fields<'_>) -> Result<(), ApiError> {
    let instead = [
        ("template", "the model's own template is used; with raw: true, none is"),
        ("suffix", "text cannot be filled in here; send what comes before it alone"),
        ("context", "send the messages so far to /api/chat instead"),
    ];
    for (field, instead) in instead {
        let empty = |value: &Value| {
            value.as_str() == Some("") || value.as_array().is_some_and(Vec::is_empty)
        };
        if fields.value(field).is_some_and(|value| !empty(value)) {
            return Err(ApiError::invalid(field, format!("{field} is not supported: {instead}")));
        }
    }
    refuse_images(fields)
}

/// The prompt in the model's template, or as it is where `raw` says so or the model has no template.
fn read_prompt(fields: &Fields<'_>, prompt: &str, model: &LoadedModel) -> Result<Prompt, ApiError> {
    let system = fields.text("system")?.filter(|system| !system.is_empty());
    let raw = fields.flag("raw")?.unwrap_or(false);
    let mut conversation = Conversation::new(Vec::new());
    options::read_think(fields, &mut conversation)?;
    if raw || model.text()?.template.is_none() {
        let needs_template = |field: &str, instead: &str| {
            let message = format!(
                "{field} needs a chat template, and none is used (raw: true, or the model has none); {instead}"
            );
            Err(ApiError::invalid(field, message))
        };
        return match (system, conversation.extra.get("enable_thinking")) {
            (Some(_), _) => needs_template("system", "put it into the prompt"),
            (None, Some(Value::Bool(true))) => needs_template("think", "leave it out"),
            (None, _) => Ok(Prompt::Text(prompt.to_string())),
        };
    }
    let mut messages: Vec<Message> =
        system.into_iter().map(|text| Message::new("system", text)).collect();
    messages.push(Message::new("user", prompt));
    conversation.messages = messages;
    Ok(Prompt::Chat(conversation))
}
