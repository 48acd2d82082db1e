//! Requests to an engine, and the events that answer them.

use crate::constraint::Constraint;
use crate::embed::Pooling;
use crate::error::EngineError;
use crate::sampler::Sampling;
use pianola_plan::TokenLogProbs;
use std::ops::ControlFlow;

/// What to generate.
#[derive(Clone, Debug)]
pub struct Request {
    /// The whole conversation so far, as tokens.
    pub prompt: Vec<u32>,
    /// How tokens are sampled. Its seed is replaced by that of the request.
    pub sampling: Sampling,
    /// Seed of the random numbers; none: a random one, which the answer tells.
    pub seed: Option<u64>,
    /// The tokens that penalties look at.
    pub penalties: PenaltyScope,
    /// Most tokens to generate; none: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// Tokens that end the answer, beside the model's end-of-turn tokens; they are not part of its
    /// text.
    pub stop_tokens: Vec<u32>,
    /// Go on past end-of-turn tokens.
    pub ignore_end: bool,
    /// Spell special tokens out in the text.
    pub show_special: bool,
    /// Log probabilities to report with each token: its own, and those of this many of the most
    /// probable tokens. None: no log probabilities.
    pub logprobs: Option<usize>,
    /// Which tokens the answer may have.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Requests of a higher priority are served first; one that is overtaken often enough is
    /// served all the same.
    pub priority: i32,
    /// Whose request it is. What was computed for a request is reused only for requests of the same
    /// tenant, so that neither [`Usage::cached_tokens`] nor the time to the first token tells a tenant
    /// what others asked.
    pub tenant: u64,
}

impl Request {
    /// A request for an answer to `prompt`, sampled greedily until the model ends its turn.
    pub fn new(prompt: Vec<u32>) -> Request {
        Request {
            prompt,
            sampling: Sampling::greedy(),
            seed: None,
            penalties: PenaltyScope::default(),
            max_tokens: None,
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_end: false,
            show_special: false,
            logprobs: None,
            constraint: None,
            priority: 0,
            tenant: 0,
        }
    }
}

/// The tokens that repetition, presence and frequency penalties look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PenaltyScope {
    /// Prompt and answer, as llama.cpp and Ollama do.
    #[default]
    PromptAndAnswer,
    /// The answer alone, as OpenAI does.
    Answer,
}

/// What to embed: its answer is [`Event::Embedding`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EmbedRequest {
    /// The text, as tokens.
    pub tokens: Vec<u32>,
    /// How the rows of its tokens become one vector.
    pub pooling: Pooling,
    /// Requests of a higher priority are served first.
    pub priority: i32,
    /// Whose request it is. An embedding neither reuses nor leaves anything, so tenants never meet.
    pub tenant: u64,
}

/// A request that was submitted. Later ones are greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub(crate) u64);

/// Why generation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finish {
    /// The model ended its turn.
    EndOfTurn,
    /// One of the request's stop tokens came; it is the last of the answer's tokens.
    StopToken,
    /// A stop text appeared; [`Answer::stop_text`] says which.
    StopText,
    /// The constraint allows nothing further.
    Complete,
    /// As many tokens as asked for.
    MaxTokens,
    /// The context is full; the answer is cut short.
    ContextFull,
    /// The request was cancelled.
    Cancelled,
}

/// Tokens that a request took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were in the KV pages already.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Tokens that were guessed ahead, and those of them that were right.
    pub drafted_tokens: usize,
    /// See `drafted_tokens`.
    pub accepted_tokens: usize,
    /// Times that the request made room for another and was computed anew.
    pub preemptions: usize,
}

/// Seconds that a request took.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Timing {
    /// Before a lane was free.
    pub queue_seconds: f64,
    /// To process what was not cached of the prompt.
    pub prompt_seconds: f64,
    /// From the first generated token to the last.
    pub generation_seconds: f64,
}

/// A finished generation.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// Tokens generated, an end token included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// The stop text that ended it.
    pub stop_text: Option<String>,
    /// The seed that gives the same answer again.
    pub seed: u64,
    /// Tokens that it took.
    pub usage: Usage,
    /// How long it took.
    pub timing: Timing,
}

/// A generated token.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Token<'a> {
    /// Its id.
    pub id: u32,
    /// Text that became certain with it: empty while a character or a stop text may still be
    /// incomplete, and then more than the token's own.
    pub text: &'a str,
    /// Log probabilities, where the request asked for them.
    pub logprobs: Option<TokenLogProbs<'a>>,
}

/// How far the prompt of a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PromptProgress {
    /// Tokens that are in the KV pages, those that were there before included.
    pub processed: usize,
    /// Tokens that were there before.
    pub cached: usize,
    /// Tokens of the prompt.
    pub total: usize,
}

/// What happens while [`crate::Engine::generate_watched`] runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment<'a> {
    /// A part of the prompt was processed, and the first token is still to come.
    Prompt(PromptProgress),
    /// Text that became certain with a token; empty where it completed none.
    Text(&'a str),
}

/// What happens to a request. The last three are its end.
#[derive(Debug)]
pub enum Event<'a> {
    /// A step was played, and the first token is still to come: sent for each part of the prompt.
    Prompt,
    /// A token was generated.
    Token(Token<'a>),
    /// The answer is complete.
    Finished(Answer),
    /// The vector that an [`EmbedRequest`] asked for, of length one.
    Embedding(Vec<f32>),
    /// There will be no answer.
    Failed(EngineError),
}

impl Event<'_> {
    /// Whether it is the last event of its request.
    pub fn is_end(&self) -> bool {
        !matches!(self, Event::Prompt | Event::Token(_))
    }
}

/// Called with each event of a request, on the thread that runs the engine; breaking off cancels
/// the request. Dropped after the last event; without one only where the engine was dropped, or its
/// thread has panicked or was ending already as the request came.
pub type EventSink = Box<dyn FnMut(Event<'_>) -> ControlFlow<()> + Send>;
