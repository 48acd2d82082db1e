//! A generation under way: from the engine's thread to the task that writes the answer.
//!
//! ```text
//! Generation ─► prompt tokens ─► Service::submit_to ──events──► Running::next ─► updates
//! ```
//!
//! At most as many of its answers as the model has lanes are with the engine at once. Dropping it cancels
//! them.

use crate::answer_sink::{AnswerSender, Message, sink};
use crate::call::Call;
use crate::error::ApiError;
use crate::generation::{Generation, Prompt, Tools};
use crate::held_tokens::HeldTokens;
use crate::model::LoadedModel;
use crate::output::Output;
use crate::parts::{AdmittedParts, RETRY};
use crate::reply::{self, ClientGone, Writer};
use hyper::body::Bytes;
use pianola_engine::{Constraint, EngineError, Finish, Text, Timing, Usage};
use pianola_text::{Conversation, SpecialTokens};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

/// Something new of one of the answers.
pub(crate) struct Update {
    /// Number of the answer over all prompts: those to the first prompt come first.
    pub answer: usize,
    pub event: UpdateEvent,
}

pub(crate) enum UpdateEvent {
    /// Text of the answer, and the log probabilities of its tokens where asked for.
    Text {
        text: String,
        logprobs: Vec<TokenInfo>,
    },
    /// The id of a token, where asked for; its text comes before or later.
    TokenId(u32),
    /// Thoughts before the answer.
    Reasoning(String),
    /// The model calls a function.
    CallStart {
        index: usize,
        id: String,
        name: String,
    },
    /// More of the arguments' JSON.
    CallArguments {
        index: usize,
        text: String,
    },
    End(Box<End>),
    Failed(ApiError),
}

/// A token and its log probabilities.
#[derive(Clone, Debug)]
pub(crate) struct TokenInfo {
    pub token: u32,
    pub logprob: f32,
    /// The most probable tokens.
    pub top: Vec<(u32, f32)>,
}

/// Why an answer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FinishReason {
    Stop,
    Length,
    ToolCalls,
}

/// The end of an answer.
pub(crate) struct End {
    pub reason: FinishReason,
    /// The stop text that ended it.
    pub stop_text: Option<String>,
    pub usage: Usage,
    pub timing: Timing,
}

/// A generation under way.
pub(crate) struct Running {
    call: Arc<Call>,
    model: Arc<LoadedModel>,
    generation: Generation,
    prompts: Vec<EncodedPrompt>,
    messages: UnboundedReceiver<(usize, Message)>,
    /// For sinks.
    sender: UnboundedSender<(usize, Message)>,
    constraint: Option<Box<dyn Constraint>>,
    show_special: bool,
    admitted: AdmittedParts,
    /// Answers that the engine has still to be asked for.
    waiting: VecDeque<usize>,
    /// Answers that have ended.
    ended: usize,
    outputs: Vec<Output>,
    /// The log probabilities of each answer that are held back.
    held: Vec<HeldTokens>,
    /// Updates that one message gave besides the first.
    pending: VecDeque<Update>,
    /// When the last token of each answer came.
    last_tokens: Vec<Option<Instant>>,
    /// Whether its tokens show that the server is ready.
    is_first_model: bool,
    /// When to submit again after the queue was full.
    retry_at: Option<Instant>,
}

struct EncodedPrompt {
    tokens: Vec<u32>,
    /// Whether its first answer has begun: the others then share the pages of the prompt.
    begun: bool,
}

/// The tokens of a prompt.
pub(crate) fn encode(
    model: &LoadedModel,
    prompt: &Prompt,
    tools: &Tools,
) -> Result<Vec<u32>, ApiError> {
    match prompt {
        Prompt::Tokens(tokens) => Ok(tokens.clone()),
        Prompt::Text(text) => {
            Ok(model.text()?.tokenizer.encode_prompt(text, SpecialTokens::Parse)?)
        }
        Prompt::Chat(conversation) => {
            check_messages(conversation.messages.len(), model.service().info().context)?;
            let tools = tools.for_template();
            model.render(Conversation { tools, ..conversation.clone() })
        }
    }
}

/// Refuses a conversation that cannot fit before the time to render it is spent: every message has at least
/// one token.
fn check_messages(messages: usize, context: usize) -> Result<(), ApiError> {
    match messages > context {
        true => Err(ApiError::prompt_too_long(messages, context)),
        false => Ok(()),
    }
}

/// The tokens of all prompts of a generation.
fn encode_all(model: &LoadedModel, generation: &Generation) -> Result<Vec<Vec<u32>>, ApiError> {
    let all = std::iter::once(&generation.prompt).chain(&generation.further_prompts);
    all.map(|prompt| encode(model, prompt, &generation.tools)).collect()
}

impl Running {
    /// Renders the prompts, compiles the constraint and submits the first answer. Errors in the request are
    /// returned here, before the answer begins.
    pub async fn start(
        call: Arc<Call>,
        model: Arc<LoadedModel>,
        generation: Generation,
    ) -> Result<Running, ApiError> {
        let (model, generation, prompts, constraint) = call
            .state
            .prepare(move || {
                let prompts = encode_all(&model, &generation)?;
                let constraint = model.constraint(&generation)?;
                Ok((model, generation, prompts, constraint))
            })
            .await?;
        let (sender, messages) = unbounded_channel();
        let reader = model.output_reader(&generation, &prompts[0]);
        let answers = prompts.len() * generation.choices;
        let is_first_model = call.state.hub.find(None).is_ok_and(|first| first.id == model.id);
        let stops = !generation.stop_texts().is_empty();
        let encoded = |tokens| EncodedPrompt { tokens, begun: false };
        let mut running = Running {
            admitted: AdmittedParts::new(model.clone(), model.service().info().lanes),
            outputs: (0..answers).map(|_| reader.output(&call.state).with_stops(stops)).collect(),
            held: (0..answers).map(|_| HeldTokens::default()).collect(),
            show_special: reader.show_special,
            prompts: prompts.into_iter().map(encoded).collect(),
            waiting: (1..answers).collect(),
            call,
            model,
            generation,
            messages,
            sender,
            constraint,
            ended: 0,
            pending: VecDeque::new(),
            last_tokens: vec![None; answers],
            is_first_model,
            retry_at: None,
        };
        running.submit(0)?;
        Ok(running)
    }

    /// The model that answers.
    pub fn model(&self) -> &Arc<LoadedModel> {
        &self.model
    }

    /// Answers to come, for all prompts.
    pub fn answers(&self) -> usize {
        self.outputs.len()
    }

    /// Whether log probabilities were asked for.
    pub fn wants_logprobs(&self) -> bool {
        self.generation.logprobs.is_some()
    }

    /// Whether the answer can be nothing but calls.
    pub fn only_calls(&self) -> bool {
        self.generation.tools.forced().is_some()
    }

    /// Tokens of the first prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.prompts[0].tokens.len()
    }

    /// The next update of an answer that is streamed as server-sent events. Ends early where the client
    /// is gone; while there is nothing to tell for long, comments keep the connection open.
    pub async fn next_or_comment(&mut self, writer: &Writer) -> Result<Option<Update>, ClientGone> {
        self.next_or_send(writer, || reply::COMMENT).await
    }

    /// The same; what `idle` returns keeps the connection open.
    pub async fn next_or_send<Part: Into<Bytes>>(
        &mut self,
        writer: &Writer,
        mut idle: impl FnMut() -> Part,
    ) -> Result<Option<Update>, ClientGone> {
        loop {
            tokio::select! {
                biased;
                () = writer.closed() => return Err(ClientGone),
                update = self.next() => return Ok(update),
                () = tokio::time::sleep(reply::COMMENT_EVERY) => writer.send(idle()).await?,
            }
        }
    }

    /// Submits an answer; false where the queue is full.
    fn submit(&mut self, answer: usize) -> Result<bool, ApiError> {
        let (prompt, choice) = self.place(answer);
        let mut request = self.generation.request(self.prompts[prompt].tokens.clone(), choice);
        request.constraint.clone_from(&self.constraint);
        request.show_special = self.show_special;
        request.tenant = self.call.tenant;
        let sink = sink(AnswerSender::new(answer, self.sender.clone()));
        self.admitted.admit(answer, |service| service.submit_to(request, sink))
    }

    /// The prompt of an answer, and its number among the answers to that.
    fn place(&self, answer: usize) -> (usize, usize) {
        (answer / self.generation.choices, answer % self.generation.choices)
    }

    /// The next answer to submit.
    fn next_ready(&self) -> Option<usize> {
        let is_ready = |answer: usize| {
            let (prompt, choice) = self.place(answer);
            choice == 0 || self.prompts[prompt].begun
        };
        self.waiting.iter().copied().find(|&answer| is_ready(answer))
    }

    /// Submits answers while there is room for them. After the queue was full, not before [`RETRY`] has
    /// passed or an answer has ended: every attempt copies the prompt and the constraint.
    fn feed(&mut self) {
        if self.retry_at.is_some_and(|time| Instant::now() < time) {
            return;
        }
        self.retry_at = None;
        while self.admitted.has_room()
            && let Some(answer) = self.next_ready()
        {
            match self.submit(answer) {
                Ok(true) => self.waiting.retain(|&other| other != answer),
                Ok(false) => {
                    self.retry_at = Some(Instant::now() + RETRY);
                    return;
                }
                Err(error) => return self.fail(answer, error),
            }
        }
    }

    /// The next update; none after the end of all answers.
    pub async fn next(&mut self) -> Option<Update> {
        loop {
            self.feed();
            if let Some(update) = self.pending.pop_front() {
                return Some(update);
            }
            if self.ended == self.answers() {
                return None;
            }
            // The engine does not report when its queue has room again.
            let retry_at = self.retry_at;
            let retry =
                async { tokio::time::sleep_until(retry_at.unwrap_or_else(Instant::now)).await };
            let message = tokio::select! {
                biased;
                message = self.messages.recv() => message,
                () = self.call.state.until_cut_off() => {
                    self.fail(0, ApiError::shutting_down());
                    continue;
                }
                () = retry, if retry_at.is_some() => continue,
            };
            match message {
                Some((answer, message)) => self.take(answer, message),
                // The engine ended without reporting a failure.
                None => self.fail(0, EngineError::Stopped.into()),
            }
        }
    }

    fn take(&mut self, answer: usize, message: Message) {
        if matches!(message, Message::Token { .. } | Message::Finished(_)) {
            let (prompt, _) = self.place(answer);
            self.prompts[prompt].begun = true;
        }
        match message {
            Message::Token { id, text, info } => {
                let now = Instant::now();
                let before = self.last_tokens[answer].replace(now);
                self.call.count_token(before.map(|before| now - before));
                if self.is_first_model {
                    self.call.state.set_warm();
                }
                if self.generation.token_ids {
                    self.push(answer, UpdateEvent::TokenId(id));
                }
                let infos = match info {
                    Some(info) if !self.generation.stop.is_empty() => {
                        let bytes = self.shown_bytes(id);
                        self.held[answer].push(info, &bytes, &text)
                    }
                    info => info.into_iter().collect(),
                };
                let events = self.outputs[answer].push(&text, infos);
                self.pending.extend(events.into_iter().map(|event| Update { answer, event }));
            }
            Message::Finished(finished) => {
                self.ended += 1;
                self.admitted.end(answer);
                self.retry_at = None;
                let stopped = finished.stop_text.is_some();
                if !stopped {
                    let left = self.held[answer].finish();
                    let events = self.outputs[answer].push("", left);
                    self.pending.extend(events.into_iter().map(|event| Update { answer, event }));
                }
                let (events, called) = self.outputs[answer].finish(stopped);
                self.pending.extend(events.into_iter().map(|event| Update { answer, event }));
                let end = End {
                    reason: match finished.finish {
                        Finish::MaxTokens | Finish::ContextFull => FinishReason::Length,
                        _ if called => FinishReason::ToolCalls,
                        _ => FinishReason::Stop,
                    },
                    stop_text: finished.stop_text,
                    usage: finished.usage,
                    timing: finished.timing,
                };
                self.call.count_end(&end);
                self.push(answer, UpdateEvent::End(Box::new(end)));
            }
            Message::Failed(error) => self.fail(answer, error),
            Message::Dropped if self.admitted.is_lost(answer) => {
                self.fail(answer, EngineError::Stopped.into());
            }
            Message::Dropped => {}
        }
    }

    /// The bytes of a token in the text.
    fn shown_bytes(&self, token: u32) -> Vec<u8> {
        let is_special = |text: &Text| text.tokenizer.is_special(token);
        match !self.show_special && self.model.service().text().is_some_and(is_special) {
            true => Vec::new(),
            false => self.model.token_bytes(token),
        }
    }

    fn push(&mut self, answer: usize, event: UpdateEvent) {
        self.pending.push_back(Update { answer, event });
    }

    /// One failure ends all answers.
    fn fail(&mut self, answer: usize, error: ApiError) {
        self.waiting.clear();
        self.admitted.cancel();
        self.ended = self.answers();
        self.push(answer, UpdateEvent::Failed(error));
    }
}

/// Updates for tests.
#[cfg(test)]
pub(crate) mod made {
    use super::UpdateEvent;

    pub(crate) fn text(text: &str) -> UpdateEvent {
        UpdateEvent::Text { text: text.into(), logprobs: Vec::new() }
    }

    pub(crate) fn call(index: usize, id: &str, name: &str) -> UpdateEvent {
        UpdateEvent::CallStart { index, id: id.into(), name: name.into() }
    }

    pub(crate) fn arguments(index: usize, text: &str) -> UpdateEvent {
        UpdateEvent::CallArguments { index, text: text.into() }
    }
}
