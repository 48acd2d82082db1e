//! `/v1/chat/completions`.

use super::{refused, sampling, tools};
use crate::call::Call;
use crate::error::{ApiError, Dialect};
use crate::fields::Fields;
use crate::generation::{Generation, Prompt};
use crate::model::LoadedModel;
use crate::reply::{self, ClientGone, Reply, Writer};
use crate::running::{End, FinishReason, Running, TokenInfo, Update, UpdateEvent};
use crate::state::now;
use pianola_engine::Usage;
use pianola_text::{Conversation, Message};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Answers a conversation.
pub(crate) async fn answer(call: &Arc<Call>, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    let generation = read(call, &fields)?;
    let stream = fields.flag("stream")?.unwrap_or(false);
    let include_usage = sampling::read_include_usage(&fields)?;
    let running = call.generate(fields.text("model")?, generation).await?;
    let head = ChatHead {
        id: call.state.fresh_id("chatcmpl-"),
        created: now(),
        model: running.model().clone(),
    };
    match stream {
        true => Ok(stream_answer(call.clone(), running, head, include_usage)),
        false => whole_answer(running, &head).await,
    }
}

fn read(call: &Call, fields: &Fields<'_>) -> Result<Generation, ApiError> {
    refused::refuse(fields)?;
    let messages = fields.list("messages")?.ok_or_else(|| fields.missing("messages"))?;
    // The last message may be the assistant's: opencode ends its last step with one that says so. It is
    // closed, and an answer of its own follows.
    let mut conversation = Conversation::new(read_messages(messages)?);
    conversation.extra = sampling::read_template_variables(fields)?;
    let mut generation = Generation::new(Prompt::Chat(conversation));
    sampling::read(call, fields, &mut generation)?;
    if fields.flag("logprobs")?.unwrap_or(false) {
        let top = sampling::read_logprobs(fields, "top_logprobs")?;
        generation.logprobs = Some(top.unwrap_or(0));
    } else if fields.count("top_logprobs")?.is_some_and(|top| top > 0) {
        return Err(fields.wrong("logprobs", "true where top_logprobs is given"));
    }
    generation.tools = tools::read(fields)?;
    generation.output = tools::read_format(fields)?;
    Ok(generation)
}

/// Messages in OpenAI's form, which is also that of chat templates.
pub(crate) fn read_messages(messages: &[Value]) -> Result<Vec<Message>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "messages must have at least one message"));
    }
    let read = |(index, message)| read_message(message, &format!("messages[{index}]"));
    messages.iter().enumerate().map(read).collect()
}

/// A message that errors call `name`.
pub(crate) fn read_message(message: &Value, name: &str) -> Result<Message, ApiError> {
    let fields = Fields::of(message, name)?;
    let role = fields.required_text("role")?;
    if !["system", "developer", "user", "assistant", "tool", "function"].contains(&role) {
        return Err(fields.wrong("role", "system, developer, user, assistant or tool"));
    }
    let content = match fields.value("content") {
        None => Value::Null,
        Some(Value::String(text)) => Value::String(text.clone()),
        Some(Value::Array(parts)) => read_parts(parts, &fields.name("content"))?,
        Some(_) => return Err(fields.wrong("content", "a string or a list of parts")),
    };
    if content.is_null() && !["assistant", "tool"].contains(&role) {
        return Err(fields.missing("content"));
    }
    if fields.value("function_call").is_some() {
        let name = fields.name("function_call");
        let message = format!("{name} is not supported here: use tool_calls, its successor");
        return Err(ApiError::invalid(name, message));
    }
    let mut other = Map::new();
    if let Some(thoughts) = fields.text("reasoning_content")? {
        other.insert("reasoning_content".into(), thoughts.into());
    }
    let calls = fields.list("tool_calls")?.filter(|calls| !calls.is_empty());
    calls.iter().flat_map(|calls| calls.iter().enumerate()).try_for_each(|(at, call)| {
        let name = fields.name(&format!("tool_calls[{at}]"));
        let function = Fields::of(call, &name)?.object("function")?;
        let function = function
            .ok_or_else(|| ApiError::invalid(&name, format!("{name} must have a function")))?;
        function.required_text("name").map(|_| ())
    })?;
    Ok(Message {
        role: if role == "function" { "tool".into() } else { role.into() },
        content,
        tool_calls: calls.map(|calls| Value::Array(calls.to_vec())),
        tool_call_id: fields.text("tool_call_id")?.map(str::to_string),
        name: fields.text("name")?.map(str::to_string),
        other,
    })
}

/// Parts of a message: text, until a model takes more.
pub(crate) fn read_parts(parts: &[Value], name: &str) -> Result<Value, ApiError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        let fields = Fields::of(part, &format!("{name}[{index}]"))?;
        match fields.text("type")?.unwrap_or("text") {
            "text" | "input_text" | "output_text" => texts.push(fields.required_text("text")?),
            "refusal" => texts.push(fields.required_text("refusal")?),
            other => {
                let what = match other {
                    "image_url" | "image" | "input_image" => "images",
                    "input_audio" | "audio" => "audio",
                    "file" | "input_file" => "files",
                    other => other,
                };
                let message =
                    format!("no model here takes {what} ({name}[{index}] is of type {other})");
                return Err(ApiError::invalid(format!("{name}[{index}]"), message));
            }
        }
    }
    Ok(json!([{ "type": "text", "text": texts.join("\n") }]))
}

/// What all parts of an answer have in common.
struct ChatHead {
    id: String,
    created: u64,
    model: Arc<LoadedModel>,
}

impl ChatHead {
    fn chunk(&self, choices: Value) -> Value {
        json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created,
            "model": self.model.id, "system_fingerprint": null, "choices": choices,
        })
    }

    fn delta(&self, index: usize, delta: Value, logprobs: Value) -> Value {
        self.chunk(json!([
            { "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": null }
        ]))
    }
}

/// OpenAI's word for the end.
pub(crate) fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
    }
}

/// `timings` of an answer, which the page shows.
fn timings(end: &End) -> Value {
    let milliseconds = |seconds: f64| (seconds * 1e6).round() / 1e3;
    json!({
        "queue_ms": milliseconds(end.timing.queue_seconds),
        "prompt_ms": milliseconds(end.timing.prompt_seconds),
        "generation_ms": milliseconds(end.timing.generation_seconds),
        "prompt_tokens": end.usage.prompt_tokens,
        "cached_tokens": end.usage.cached_tokens,
        "generated_tokens": end.usage.generated_tokens,
    })
}

/// A token and its log probabilities in OpenAI's form.
pub(crate) fn token_logprobs(model: &LoadedModel, info: &TokenInfo) -> Value {
    let entry = |token: u32, logprob: f32| {
        let bytes = model.token_bytes(token);
        // OpenAI's clients parse minus infinity as an error.
        json!({ "token": String::from_utf8_lossy(&bytes), "logprob": logprob.max(-9999.0), "bytes": bytes })
    };
    let mut value = entry(info.token, info.logprob);
    value["top_logprobs"] =
        info.top.iter().map(|&(token, logprob)| entry(token, logprob)).collect();
    value
}

/// One answer as it grows.
#[derive(Default)]
struct Choice {
    text: String,
    reasoning: String,
    calls: Vec<Value>,
    arguments: Vec<String>,
    logprobs: Vec<Value>,
    end: Option<Box<End>>,
}

async fn whole_answer(mut running: Running, head: &ChatHead) -> Result<Reply, ApiError> {
    let wants_logprobs = running.wants_logprobs();
    let mut choices: Vec<Choice> = Vec::new();
    while let Some(Update { answer, event }) = running.next().await {
        if choices.len() <= answer {
            choices.resize_with(answer + 1, Choice::default);
        }
        let choice = &mut choices[answer];
        match event {
            UpdateEvent::TokenId(_) => {}
            UpdateEvent::Text { text, logprobs } => {
                choice.text.push_str(&text);
                let infos = logprobs.iter().map(|info| token_logprobs(&head.model, info));
                choice.logprobs.extend(infos);
            }
            UpdateEvent::Reasoning(text) => choice.reasoning.push_str(&text),
            UpdateEvent::CallStart { id, name, .. } => {
                choice
                    .calls
                    .push(json!({ "id": id, "type": "function", "function": { "name": name } }));
                choice.arguments.push(String::new());
            }
            UpdateEvent::CallArguments { index, text } => choice.arguments[index].push_str(&text),
            UpdateEvent::End(end) => choice.end = Some(end),
            UpdateEvent::Failed(error) => return Err(error),
        }
    }
    let mut all = Usage::default();
    let mut times = Value::Null;
    let mut list = Vec::new();
    for (index, mut choice) in choices.into_iter().enumerate() {
        let Some(end) = choice.end.take() else { continue };
        let first = all.prompt_tokens == 0;
        sampling::add_usage(&mut all, &end.usage, first);
        times = timings(&end);
        for (call, arguments) in choice.calls.iter_mut().zip(choice.arguments) {
            call["function"]["arguments"] = arguments.into();
        }
        let empty = choice.text.is_empty() && !choice.calls.is_empty();
        let content = if empty { Value::Null } else { choice.text.into() };
        let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
        if !choice.reasoning.is_empty() {
            message["reasoning_content"] = choice.reasoning.into();
        }
        if !choice.calls.is_empty() {
            message["tool_calls"] = choice.calls.into();
        }
        let logprobs = match wants_logprobs {
            true => json!({ "content": choice.logprobs, "refusal": null }),
            false => Value::Null,
        };
        list.push(json!({
            "index": index, "message": message, "logprobs": logprobs,
            "finish_reason": finish_reason(end.reason),
        }));
    }
    Ok(reply::ok(&json!({
        "id": head.id, "object": "chat.completion", "created": head.created, "model": head.model.id,
        "system_fingerprint": null, "choices": list, "usage": sampling::usage(&all), "timings": times,
    })))
}

fn stream_answer(call: Arc<Call>, running: Running, head: ChatHead, include_usage: bool) -> Reply {
    reply::stream("text/event-stream", move |writer| async move {
        let mut chunks = Chunks { head, writer, begun: Vec::new(), usage: Usage::default() };
        if chunks.write_all(&call, running, include_usage).await? {
            chunks.writer.send("data: [DONE]\n\n").await?;
            call.set_complete();
        }
        Ok(())
    })
}

/// Writes the chunks of a streamed answer.
struct Chunks {
    head: ChatHead,
    writer: Writer,
    /// Choices whose role was sent.
    begun: Vec<bool>,
    usage: Usage,
}

impl Chunks {
    /// Whether the answer came to its end.
    async fn write_all(
        &mut self,
        call: &Call,
        mut running: Running,
        include_usage: bool,
    ) -> Result<bool, ClientGone> {
        let mut times = Value::Null;
        while let Some(update) = running.next_or_comment(&self.writer).await? {
            let Update { answer, event } = update;
            if let UpdateEvent::End(end) = &event {
                let first = self.usage.prompt_tokens == 0;
                sampling::add_usage(&mut self.usage, &end.usage, first);
                times = timings(end);
            }
            if let UpdateEvent::Failed(error) = &event {
                call.set_error(error);
                let body = error.body(Dialect::OpenAi, &call.id);
                self.writer.send(reply::event(&body)).await?;
                return Ok(false);
            }
            self.write(answer, event).await?;
        }
        if include_usage {
            let mut chunk = self.head.chunk(json!([]));
            chunk["usage"] = sampling::usage(&self.usage);
            chunk["timings"] = times;
            self.writer.send(reply::event(&chunk)).await?;
        }
        Ok(true)
    }

    async fn write(&mut self, index: usize, event: UpdateEvent) -> Result<(), ClientGone> {
        if matches!(event, UpdateEvent::TokenId(_)) {
            return Ok(());
        }
        if self.begun.len() <= index {
            self.begun.resize(index + 1, false);
        }
        if !std::mem::replace(&mut self.begun[index], true) {
            let role = json!({ "role": "assistant", "content": "" });
            let chunk = self.head.delta(index, role, Value::Null);
            self.writer.send(reply::event(&chunk)).await?;
        }
        let chunk = match event {
            UpdateEvent::Text { text, logprobs } => {
                let infos = logprobs.iter().map(|info| token_logprobs(&self.head.model, info));
                let infos: Vec<Value> = infos.collect();
                let logprobs = match infos.is_empty() {
                    true => Value::Null,
                    false => json!({ "content": infos, "refusal": null }),
                };
                self.head.delta(index, json!({ "content": text }), logprobs)
            }
            UpdateEvent::Reasoning(text) => {
                self.head.delta(index, json!({ "reasoning_content": text }), Value::Null)
            }
            UpdateEvent::CallStart { index: at, id, name } => {
                let function = json!({ "name": name, "arguments": "" });
                let call =
                    json!([{ "index": at, "id": id, "type": "function", "function": function }]);
                self.head.delta(index, json!({ "tool_calls": call }), Value::Null)
            }
            UpdateEvent::CallArguments { index: at, text } => {
                let call = json!([{ "index": at, "function": { "arguments": text } }]);
                self.head.delta(index, json!({ "tool_calls": call }), Value::Null)
            }
            UpdateEvent::End(end) => self.head.chunk(json!([{
                "index": index, "delta": {}, "logprobs": null,
                "finish_reason": finish_reason(end.reason),
            }])),
            UpdateEvent::TokenId(_) | UpdateEvent::Failed(_) => return Ok(()),
        };
        self.writer.send(reply::event(&chunk)).await
    }
}
