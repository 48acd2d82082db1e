//! The fields of a request.

use super::input::{self, InputBudget};
use super::store::KeptResponse;
use super::tools::{self, Namespaces};
use crate::error::{ApiError, ErrorKind};
use crate::fields::Fields;
use crate::generation::{Generation, OutputRule, Prompt};
use crate::openai::{self, sampling};
use pianola_text::{Conversation, Message};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What a request asks for.
pub(super) struct Request {
    pub generation: Generation,
    pub stream: bool,
    pub store: bool,
    /// The conversation without instructions.
    pub history: Vec<Message>,
    /// Fields that the answer repeats.
    pub echo: Map<String, Value>,
    pub namespaces: Namespaces,
}

/// Reads a request; `kept` knows the answers that it may continue, `item` the items that it may refer to.
pub(super) fn read(
    fields: &Fields<'_>,
    mut budget: InputBudget,
    kept: impl Fn(&str) -> Option<Arc<KeptResponse>>,
    item: impl Fn(&str) -> Option<Value>,
) -> Result<Request, ApiError> {
    refuse(fields)?;
    let mut history = match fields.text("previous_response_id")? {
        None => Vec::new(),
        Some(id) => {
            let kept = kept(id).ok_or_else(|| previous_not_found(id))?;
            budget.take(&kept.history)?;
            kept.history.clone()
        }
    };
    history.extend(input::read(fields, &mut budget, item)?);
    let mut messages = Vec::with_capacity(history.len() + 1);
    if let Some(instructions) = fields.text("instructions")?.filter(|text| !text.is_empty()) {
        messages.push(Message::new("system", instructions));
    }
    messages.extend(history.iter().cloned());
    if messages.is_empty() {
        return Err(match fields.value("input") {
            Some(_) => fields.wrong("input", "a string or a list of at least one item"),
            None => fields.missing("input"),
        });
    }
    let mut conversation = Conversation::new(messages);
    conversation.extra = sampling::read_template_variables(fields)?;
    if reasoning_effort(fields)?.is_some_and(|effort| effort == "none") {
        conversation.extra.insert("enable_thinking".into(), false.into());
    }
    let mut generation = Generation::new(Prompt::Chat(conversation));
    sampling::read_sampler(fields, &mut generation)?;
    generation.max_tokens = sampling::read_positive(fields, "max_output_tokens")?;
    generation.output = read_format(fields)?;
    let (tools, namespaces) = tools::read(fields)?;
    generation.tools = tools;
    Ok(Request {
        echo: echo(fields, &generation),
        generation,
        stream: fields.flag("stream")?.unwrap_or(false),
        store: fields.flag("store")?.unwrap_or(true),
        history,
        namespaces,
    })
}

fn previous_not_found(id: &str) -> ApiError {
    let message =
        format!("the previous response '{id}' is not kept here; send the whole conversation");
    let param = Some("previous_response_id".to_string());
    ApiError { param, ..ApiError::new(ErrorKind::PreviousResponseNotFound, message) }
}

/// Fields that cannot be ignored without changing what the request means.
fn refuse(fields: &Fields<'_>) -> Result<(), ApiError> {
    let refused = |field: &str, why: &str| {
        Err(ApiError::invalid(field, format!("{field} is not supported here: {why}")))
    };
    if fields.flag("background")?.unwrap_or(false) {
        return refused("background", "answers are given to those who wait");
    }
    if fields.value("conversation").is_some() {
        return refused("conversation", "send the whole conversation, or previous_response_id");
    }
    if fields.value("prompt").is_some() {
        return refused("prompt", "the server has no stored prompts");
    }
    let include = fields.texts("include")?;
    let logprobs = include.iter().any(|one| one == "message.output_text.logprobs");
    if logprobs || fields.count("top_logprobs")?.is_some_and(|top| top > 0) {
        return refused("top_logprobs", "/v1/chat/completions has log probabilities");
    }
    // Both values are accepted: the context is never cut, so that `auto` is an error once it is full.
    match fields.text("truncation")?.unwrap_or("disabled") {
        "auto" | "disabled" => Ok(()),
        _ => Err(fields.wrong("truncation", "auto or disabled")),
    }
}

fn reasoning_effort<'a>(fields: &Fields<'a>) -> Result<Option<&'a str>, ApiError> {
    match fields.object("reasoning")? {
        Some(reasoning) => reasoning.text("effort"),
        None => Ok(None),
    }
}

/// Reads `text.format`.
fn read_format(fields: &Fields<'_>) -> Result<OutputRule, ApiError> {
    let format = match fields.object("text")? {
        Some(text) => text.object("format")?,
        None => None,
    };
    let Some(format) = format else { return Ok(OutputRule::Free) };
    match format.required_text("type")? {
        "text" => Ok(OutputRule::Free),
        "json_object" => Ok(OutputRule::JsonObject),
        "json_schema" => openai::tools::read_schema("text.format", &format),
        _ => Err(format.wrong("type", "text, json_object or json_schema")),
    }
}

/// A number as its shortest decimal form has it: 0.7, not 0.699999988.
fn shortest(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(number.into(), Value::from)
}

/// The fields of a request that its answer repeats, with the values that hold where none were given.
fn echo(fields: &Fields<'_>, generation: &Generation) -> Map<String, Value> {
    let given = |field: &str, default: Value| {
        (field.to_string(), fields.value(field).cloned().unwrap_or(default))
    };
    let reasoning = json!({ "effort": null, "summary": null });
    Map::from_iter([
        given("instructions", Value::Null),
        given("max_output_tokens", Value::Null),
        given("max_tool_calls", Value::Null),
        given("metadata", json!({})),
        given("parallel_tool_calls", true.into()),
        given("previous_response_id", Value::Null),
        given("prompt_cache_key", Value::Null),
        given("reasoning", reasoning),
        given("safety_identifier", Value::Null),
        given("store", true.into()),
        given("temperature", shortest(generation.sampling.temperature)),
        given("text", json!({ "format": { "type": "text" } })),
        given("tool_choice", "auto".into()),
        given("tools", json!([])),
        given("top_p", shortest(generation.sampling.top_p)),
        ("truncation".to_string(), "disabled".into()),
        given("user", Value::Null),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::JsonRule;

    fn request(body: Value) -> Result<Request, ApiError> {
        let kept = |id: &str| {
            let history = vec![Message::new("user", "one"), Message::new("assistant", "1")];
            (id == "resp_1").then(|| Arc::new(KeptResponse { response: json!({}), history }))
        };
        read(&Fields::of(&body, "")?, InputBudget::new(100_000), kept, |_| None)
    }

    fn error(body: Value) -> ApiError {
        match request(body) {
            Ok(_) => panic!("accepted"),
            Err(error) => error,
        }
    }

    fn conversation(request: &Request) -> &Conversation {
        match &request.generation.prompt {
            Prompt::Chat(conversation) => conversation,
            _ => panic!("not a chat"),
        }
    }

    #[test]
    fn an_empty_input_loads_a_model() {
        let found = request(json!({ "model": "m", "input": "", "max_output_tokens": 1 })).unwrap();
        assert_eq!(conversation(&found).messages, [Message::new("user", "")]);
        assert_eq!(found.generation.max_tokens, Some(1));
        assert!(found.store && !found.stream);
        assert_eq!(error(json!({})).message, "input is missing");
    }

    #[test]
    fn answers_are_continued() {
        let body =
            json!({ "input": "two", "instructions": "Count.", "previous_response_id": "resp_1" });
        let found = request(body).unwrap();
        let roles: Vec<&str> =
            conversation(&found).messages.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        // Instructions are not carried over.
        assert_eq!(found.history.len(), 3);
        let missing = error(json!({ "input": "two", "previous_response_id": "resp_2" }));
        assert_eq!(missing.kind.status(), 404);
        let body = missing.body(crate::error::Dialect::OpenAi, "");
        assert_eq!(body["error"]["code"], "previous_response_not_found");
        assert_eq!(body["error"]["param"], "previous_response_id");
    }

    #[test]
    fn what_coding_agents_send_is_accepted() {
        let found = request(json!({
            "input": [{ "type": "message", "id": "i", "role": "user",
                        "content": [{ "type": "input_text", "text": "hi" }] }],
            "tools": [{ "type": "function", "name": "f", "strict": false, "parameters": { "type": "object" } },
                      { "type": "web_search", "external_web_access": false }],
            "tool_choice": "auto", "parallel_tool_calls": true, "store": false, "stream": true,
            "reasoning": { "effort": "medium", "summary": "auto" },
            "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k",
            "client_metadata": { "x": "y" }, "truncation": "auto",
            "text": { "verbosity": "low", "format": {
                "type": "json_schema", "name": "n", "strict": true, "schema": { "type": "object" } } },
        }))
        .unwrap();
        assert!(found.stream && !found.store);
        assert_eq!(found.generation.tools.list.len(), 1);
        assert_eq!(
            found.generation.output,
            OutputRule::JsonSchema(JsonRule::strict("text.format", json!({ "type": "object" })))
        );
        assert_eq!(found.echo["prompt_cache_key"], "k");
        assert_eq!(found.echo["truncation"], "disabled");
        assert!(!conversation(&found).extra.contains_key("enable_thinking"));
        let quick = request(json!({ "input": "x", "reasoning": { "effort": "none" } })).unwrap();
        assert_eq!(conversation(&quick).extra["enable_thinking"], false);
    }

    #[test]
    fn what_is_impossible_is_refused_by_name() {
        for field in ["background", "conversation", "prompt", "top_logprobs"] {
            let value = match field {
                "background" => json!(true),
                "top_logprobs" => json!(3),
                _ => json!({ "id": "x" }),
            };
            let refused = error(json!({ "input": "hi", field: value }));
            assert_eq!(refused.param.as_deref(), Some(field));
            assert_eq!(refused.kind.status(), 400);
        }
        assert!(request(json!({ "input": "hi", "background": false })).is_ok());
        let none = error(json!({ "input": "hi", "max_output_tokens": 0 }));
        assert_eq!(none.param.as_deref(), Some("max_output_tokens"));
    }
}
