//! What `/api/chat` and `/api/generate` have in common: a line of JSON for each part of an answer, and
//! counts in the last.

use super::{keep, options};
use crate::call::Call;
use crate::error::{ApiError, Dialect};
use crate::fields::Fields;
use crate::generation::Generation;
use crate::log::timestamp;
use crate::model::LoadedModel;
use crate::openai::chat::token_logprobs;
use crate::reply::{self, ClientGone, Reply, Writer};
use crate::running::{End, FinishReason, Running, Update, UpdateEvent};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The endpoint that answers: they differ in where the text stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OllamaEndpoint {
    Chat,
    Generate,
}

/// What a request says besides its prompt.
pub(super) struct OllamaRequest {
    endpoint: OllamaEndpoint,
    /// The model's name as the client wrote it.
    name: Option<String>,
    stream: bool,
    keep: Option<Duration>,
    started: Instant,
    /// How long it took until the model was loaded.
    load_time: Duration,
}

impl OllamaRequest {
    pub fn read(fields: &Fields<'_>, endpoint: OllamaEndpoint) -> Result<OllamaRequest, ApiError> {
        Ok(OllamaRequest {
            endpoint,
            name: fields.text("model")?.map(str::to_string),
            stream: fields.flag("stream")?.unwrap_or(true),
            keep: keep::read(fields)?,
            started: Instant::now(),
            load_time: Duration::ZERO,
        })
    }

    /// The model, loaded, if it can answer such a request.
    pub async fn model(
        &mut self,
        call: &Call,
        fields: &Fields<'_>,
    ) -> Result<Arc<LoadedModel>, ApiError> {
        let model = call.model(self.name.as_deref()).await?;
        self.load_time = self.started.elapsed();
        options::check_context(fields, &model)?;
        Ok(model)
    }

    /// Answers a request without a prompt, which loads the model, or unloads it with `keep_alive: 0`.
    pub async fn load_or_unload(self, call: &Call) -> Result<Reply, ApiError> {
        let unload = self.keep == Some(Duration::ZERO);
        let id = match unload {
            true => {
                let id = call.state.hub.find(self.name.as_deref())?.id;
                keep::unload(call, id.clone()).await;
                id
            }
            false => {
                let id = call.model(self.name.as_deref()).await?.id.clone();
                keep::apply(call, &id, self.keep);
                id
            }
        };
        let mut line = LineHead::new(&self, &id).line(Part::default());
        line["done"] = true.into();
        line["done_reason"] = if unload { "unload" } else { "load" }.into();
        Ok(reply::ok(&line))
    }

    /// Generates the answer.
    pub async fn answer(
        self,
        call: &Arc<Call>,
        model: Arc<LoadedModel>,
        generation: Generation,
    ) -> Result<Reply, ApiError> {
        let running = Running::start(call.clone(), model, generation).await?;
        keep::apply(call, &running.model().id, self.keep);
        let head = LineHead::new(&self, &running.model().id);
        match self.stream {
            true => Ok(stream_answer(call.clone(), running, head)),
            false => whole_answer(running, &head).await,
        }
    }
}

/// What all lines of an answer have in common.
struct LineHead {
    endpoint: OllamaEndpoint,
    model: String,
    started: Instant,
    load_time: Duration,
}

/// A part of an answer, or all of it.
#[derive(Default)]
struct Part {
    text: String,
    thinking: String,
    calls: Vec<Value>,
    logprobs: Vec<Value>,
}

impl LineHead {
    fn new(request: &OllamaRequest, id: &str) -> LineHead {
        LineHead {
            endpoint: request.endpoint,
            model: request.name.clone().filter(|name| !name.is_empty()).unwrap_or(id.to_string()),
            started: request.started,
            load_time: request.load_time,
        }
    }

    fn line(&self, part: Part) -> Value {
        let mut line = json!({ "model": self.model, "created_at": timestamp(), "done": false });
        if !part.logprobs.is_empty() {
            line["logprobs"] = part.logprobs.into();
        }
        let thinking = (!part.thinking.is_empty()).then_some(part.thinking);
        match self.endpoint {
            OllamaEndpoint::Generate => {
                line["response"] = part.text.into();
                if let Some(thinking) = thinking {
                    line["thinking"] = thinking.into();
                }
            }
            OllamaEndpoint::Chat => {
                // Clients want the role and the content in every line.
                let mut message = json!({ "role": "assistant", "content": part.text });
                if let Some(thinking) = thinking {
                    message["thinking"] = thinking.into();
                }
                if !part.calls.is_empty() {
                    message["tool_calls"] = part.calls.into();
                }
                line["message"] = message;
            }
        }
        line
    }

    /// The last line, or the only one.
    fn last(&self, part: Part, end: &End) -> Value {
        let mut line = self.line(part);
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // Clients divide by these.
        let measured = |seconds: f64| ((seconds * 1e9) as u64).max(1);
        let facts: [(&str, Value); 8] = [
            ("done", true.into()),
            (
                "done_reason",
                if end.reason == FinishReason::Length { "length" } else { "stop" }.into(),
            ),
            ("total_duration", nanoseconds(self.started.elapsed()).into()),
            ("load_duration", nanoseconds(self.load_time).into()),
            ("prompt_eval_count", end.usage.prompt_tokens.into()),
            ("prompt_eval_duration", measured(end.timing.prompt_seconds).into()),
            ("eval_count", end.usage.generated_tokens.into()),
            ("eval_duration", measured(end.timing.generation_seconds).into()),
        ];
        for (name, value) in facts {
            line[name] = value;
        }
        line
    }
}

/// Puts updates together to parts: a call is sent once it is complete, as Ollama does.
struct Parts {
    model: Arc<LoadedModel>,
    /// Id, name and arguments so far of the call under way.
    call: Option<(String, String, String)>,
    calls: usize,
    /// Whether there can be no text.
    only_calls: bool,
}

impl Parts {
    fn new(running: &Running) -> Parts {
        let only_calls = running.only_calls();
        Parts { model: running.model().clone(), call: None, calls: 0, only_calls }
    }

    /// What an update adds to the answer.
    fn take(&mut self, event: UpdateEvent) -> Part {
        match event {
            UpdateEvent::CallArguments { text, .. } => {
                if let Some((_, _, arguments)) = &mut self.call {
                    arguments.push_str(&text);
                }
                Part::default()
            }
            UpdateEvent::CallStart { id, name, .. } => {
                let part = self.finish_call();
                self.call = Some((id, name, String::new()));
                part
            }
            UpdateEvent::Text { text, logprobs } => {
                // Log probabilities alone come with tokens inside a call, too.
                let mut part = if text.is_empty() { Part::default() } else { self.finish_call() };
                part.text.push_str(&text);
                part.logprobs =
                    logprobs.iter().map(|info| token_logprobs(&self.model, info)).collect();
                part
            }
            UpdateEvent::Reasoning(thinking) => Part { thinking, ..self.finish_call() },
            UpdateEvent::TokenId(_) | UpdateEvent::End(_) | UpdateEvent::Failed(_) => {
                self.finish_call()
            }
        }
    }

    fn finish_call(&mut self) -> Part {
        let Some((id, name, arguments)) = self.call.take() else { return Part::default() };
        let written = if arguments.trim().is_empty() { "{}" } else { &arguments };
        match serde_json::from_str(written) {
            Ok(arguments @ Value::Object(_)) => {
                let function = json!({ "index": self.calls, "name": name, "arguments": arguments });
                self.calls += 1;
                Part { calls: vec![json!({ "id": id, "function": function })], ..Part::default() }
            }
            _ if self.only_calls => Part::default(),
            // Cut off by the limit of tokens: no call, but nothing that the model wrote is lost.
            _ => Part { text: format!("{name} {arguments}"), ..Part::default() },
        }
    }
}

impl Part {
    fn is_empty(&self) -> bool {
        self.text.is_empty()
            && self.thinking.is_empty()
            && self.calls.is_empty()
            && self.logprobs.is_empty()
    }

    fn add(&mut self, other: Part) {
        self.text.push_str(&other.text);
        self.thinking.push_str(&other.thinking);
        self.calls.extend(other.calls);
        self.logprobs.extend(other.logprobs);
    }
}

async fn whole_answer(mut running: Running, head: &LineHead) -> Result<Reply, ApiError> {
    let mut parts = Parts::new(&running);
    let mut whole = Part::default();
    while let Some(Update { event, .. }) = running.next().await {
        match event {
            UpdateEvent::Failed(error) => return Err(error),
            UpdateEvent::End(end) => {
                whole.add(parts.finish_call());
                return Ok(reply::ok(&head.last(whole, &end)));
            }
            event => whole.add(parts.take(event)),
        }
    }
    Err(ApiError::new(crate::error::ErrorKind::Internal, "the answer has no end"))
}

fn stream_answer(call: Arc<Call>, running: Running, head: LineHead) -> Reply {
    reply::stream("application/x-ndjson", move |writer| async move {
        write_lines(&call, running, &head, &writer).await
    })
}

async fn write_lines(
    call: &Call,
    mut running: Running,
    head: &LineHead,
    writer: &Writer,
) -> Result<(), ClientGone> {
    let mut parts = Parts::new(&running);
    // A line without text keeps the connection open while a long prompt is processed.
    let idle = || line(&head.line(Part::default()));
    while let Some(Update { event, .. }) = running.next_or_send(writer, idle).await? {
        match event {
            UpdateEvent::Failed(error) => {
                call.set_error(&error);
                return writer.send(line(&error.body(Dialect::Ollama, &call.id))).await;
            }
            UpdateEvent::End(end) => {
                let last = head.last(parts.finish_call(), &end);
                writer.send(line(&last)).await?;
                call.set_complete();
            }
            event => {
                let part = parts.take(event);
                if !part.is_empty() {
                    writer.send(line(&head.line(part))).await?;
                }
            }
        }
    }
    Ok(())
}

/// A line of a stream.
pub(super) fn line(value: &Value) -> String {
    format!("{value}\n")
}
