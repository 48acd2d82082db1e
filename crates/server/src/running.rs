//! A generation under way: from the engine's thread to the task that writes the answer.
//!
//! ```text
//! Generation ─► prompt tokens ─► Service::submit_to ──events──► Running::next ─► updates
//! ```
//!
//! Dropping it cancels its requests.

use crate::call::Call;
use crate::error::ApiError;
use crate::generation::{Generation, Prompt};
use crate::model::LoadedModel;
use crate::output::Output;
use crate::reply::{self, ClientGone, Writer};
use hyper::body::Bytes;
use pianola_engine::{
    Answer, Constraint, EngineError, Event, EventSink, Finish, RequestId, Timing, TokenLogProbs,
    Usage,
};
use pianola_text::{Conversation, SpecialTokens};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Something new of one of the choices.
pub(crate) struct Update {
    pub choice: usize,
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

enum Message {
    Token { id: u32, text: String, info: Option<TokenInfo> },
    Finished(Answer),
    Failed(ApiError),
}

/// A generation under way.
pub(crate) struct Running {
    call: Arc<Call>,
    model: Arc<LoadedModel>,
    generation: Generation,
    prompt: Vec<u32>,
    messages: UnboundedReceiver<(usize, Message)>,
    /// For sinks; none once all choices are submitted, so that the end of the sinks is noticed.
    sender: Option<UnboundedSender<(usize, Message)>>,
    constraint: Option<Box<dyn Constraint>>,
    show_special: bool,
    ids: Vec<RequestId>,
    /// Choices that have ended.
    ended: usize,
    outputs: Vec<Output>,
    /// Updates that one message gave besides the first.
    pending: VecDeque<Update>,
}

/// The tokens of a prompt.
pub(crate) fn encode(model: &LoadedModel, generation: &Generation) -> Result<Vec<u32>, ApiError> {
    match &generation.prompt {
        Prompt::Tokens(tokens) => Ok(tokens.clone()),
        Prompt::Text(text) => {
            Ok(model.text()?.tokenizer.encode_prompt(text, SpecialTokens::Parse)?)
        }
        Prompt::Chat(conversation) => {
            let tools = generation.tools.for_template();
            model.render(Conversation { tools, ..conversation.clone() })
        }
    }
}

impl Running {
    /// Renders the prompt, compiles the constraint and submits the first choice. What is wrong with
    /// the request is said here.
    pub async fn start(
        call: Arc<Call>,
        model: Arc<LoadedModel>,
        generation: Generation,
    ) -> Result<Running, ApiError> {
        let permit = call.state.preparing.clone().acquire_owned().await;
        // Long prompts and schemas take milliseconds, which other connections shall not wait for.
        let prepared = tokio::task::spawn_blocking(move || {
            // Held to the end, also where the client has gone meanwhile.
            let _permit = permit;
            let prompt = encode(&model, &generation)?;
            let constraint = model.constraint(&generation)?;
            Ok::<_, ApiError>((model, generation, prompt, constraint))
        });
        let (model, generation, prompt, constraint) =
            prepared.await.map_err(|_| internal("the prompt could not be prepared"))??;
        let (sender, messages) = unbounded_channel();
        let reading = model.reading(&generation, &prompt);
        let outputs: Vec<Output> =
            (0..generation.choices).map(|_| reading.output(&call.state)).collect();
        let show_special = reading.show_special;
        let mut running = Running {
            call,
            model,
            generation,
            prompt,
            messages,
            sender: Some(sender),
            constraint,
            show_special,
            ids: Vec::new(),
            ended: 0,
            outputs,
            pending: VecDeque::new(),
        };
        running.submit(0)?;
        Ok(running)
    }

    /// The model that answers.
    pub fn model(&self) -> &Arc<LoadedModel> {
        &self.model
    }

    /// Answers to come.
    pub fn choices(&self) -> usize {
        self.generation.choices
    }

    /// Whether log probabilities were asked for.
    pub fn wants_logprobs(&self) -> bool {
        self.generation.logprobs.is_some()
    }

    /// Tokens of the prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt.len()
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

    fn submit(&mut self, choice: usize) -> Result<(), ApiError> {
        let mut request = self.generation.request(self.prompt.clone(), choice);
        request.constraint.clone_from(&self.constraint);
        request.show_special = self.show_special;
        request.tenant = self.call.tenant;
        let last = choice + 1 == self.generation.choices;
        let sender = if last { self.sender.take() } else { self.sender.clone() };
        let sender = sender.ok_or_else(|| internal("a choice was submitted twice"))?;
        let sink = sink(choice, sender);
        self.ids.push(self.model.service().submit_to(request, sink)?);
        Ok(())
    }

    /// The next update; none after the end of all choices.
    pub async fn next(&mut self) -> Option<Update> {
        loop {
            if let Some(update) = self.pending.pop_front() {
                return Some(update);
            }
            if self.ended == self.generation.choices {
                return None;
            }
            let message = tokio::select! {
                biased;
                message = self.messages.recv() => message,
                () = self.call.state.until_cut_off() => {
                    self.fail(0, ApiError::going_down());
                    continue;
                }
            };
            match message {
                Some((choice, message)) => self.take(choice, message),
                // The engine ended without a word.
                None => self.fail(0, EngineError::Stopped.into()),
            }
        }
    }

    fn take(&mut self, choice: usize, message: Message) {
        // The others share the pages of the first one's prompt, once it is processed.
        let begun = matches!(message, Message::Token { .. } | Message::Finished(_));
        if choice == 0 && begun && self.ids.len() < self.generation.choices {
            for other in self.ids.len()..self.generation.choices {
                if let Err(error) = self.submit(other) {
                    self.fail(other, error);
                    return;
                }
            }
        }
        match message {
            Message::Token { id, text, info } => {
                self.call.count_token();
                if self.generation.token_ids {
                    self.push(choice, UpdateEvent::TokenId(id));
                }
                let events = self.outputs[choice].push(&text, info);
                self.pending.extend(events.into_iter().map(|event| Update { choice, event }));
            }
            Message::Finished(answer) => {
                self.ended += 1;
                let (events, called) = self.outputs[choice].finish();
                self.pending.extend(events.into_iter().map(|event| Update { choice, event }));
                let end = End {
                    reason: match answer.finish {
                        Finish::MaxTokens | Finish::ContextFull => FinishReason::Length,
                        _ if called => FinishReason::ToolCalls,
                        _ => FinishReason::Stop,
                    },
                    stop_text: answer.stop_text,
                    usage: answer.usage,
                    timing: answer.timing,
                };
                self.call.count_end(&end);
                self.push(choice, UpdateEvent::End(Box::new(end)));
            }
            Message::Failed(error) => self.fail(choice, error),
        }
    }

    fn push(&mut self, choice: usize, event: UpdateEvent) {
        self.pending.push_back(Update { choice, event });
    }

    /// One failure ends all choices.
    fn fail(&mut self, choice: usize, error: ApiError) {
        self.ended = self.generation.choices;
        self.push(choice, UpdateEvent::Failed(error));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Does nothing for those that are over.
        self.ids.iter().for_each(|&id| self.model.service().cancel(id));
    }
}

fn internal(message: &str) -> ApiError {
    ApiError::new(crate::error::ErrorKind::Internal, message)
}

/// Called on the engine's thread; what it sends is taken by [`Running::next`].
fn sink(choice: usize, messages: UnboundedSender<(usize, Message)>) -> EventSink {
    Box::new(move |event| {
        let message = match event {
            Event::Prompt if messages.is_closed() => return ControlFlow::Break(()),
            Event::Prompt => return ControlFlow::Continue(()),
            Event::Token(token) => Message::Token {
                id: token.id,
                text: token.text.to_string(),
                info: token.logprobs.map(|found| info(token.id, found)),
            },
            Event::Finished(answer) => Message::Finished(answer),
            Event::Failed(error) => Message::Failed(error.into()),
            Event::Embedding(_) => return ControlFlow::Continue(()),
        };
        match messages.send((choice, message)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })
}

fn info(token: u32, found: TokenLogProbs<'_>) -> TokenInfo {
    TokenInfo { token, logprob: found.sampled, top: found.top.to_vec() }
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
