//! What is asked of the engine, and what comes back.

use crate::error::EngineError;
use crate::sampler::Sampling;

/// What to generate.
#[derive(Clone, Debug)]
pub struct Request {
    /// The whole conversation so far, as tokens.
    pub prompt: Vec<u32>,
    /// How tokens are sampled.
    pub sampling: Sampling,
    /// Most tokens to generate; none: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// Go on past end-of-turn tokens.
    pub ignore_end: bool,
    /// Requests of a higher priority are served first.
    pub priority: i32,
}

impl Request {
    /// A request for an answer to `prompt`, sampled greedily until the model ends its turn.
    pub fn new(prompt: Vec<u32>) -> Request {
        Request {
            prompt,
            sampling: Sampling::greedy(),
            max_tokens: None,
            stop: Vec::new(),
            ignore_end: false,
            priority: 0,
        }
    }
}

/// A request that was submitted. Later ones are greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub(crate) u64);

/// Why generation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finish {
    /// The model ended its turn.
    EndOfTurn,
    /// A stop text appeared.
    StopText,
    /// As many tokens as asked for.
    MaxTokens,
    /// The context is full; the answer is cut short.
    ContextFull,
    /// The caller broke off.
    Cancelled,
}

/// Counts and seconds of one generation.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Timing {
    /// Seconds before a lane was free.
    pub queue_seconds: f64,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were in the KV pages already.
    pub cached_tokens: usize,
    /// Seconds to process the rest.
    pub prompt_seconds: f64,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Seconds from the first generated token to the last.
    pub generation_seconds: f64,
    /// Tokens that were guessed ahead, and those of them that were right.
    pub drafted_tokens: usize,
    /// See `drafted_tokens`.
    pub accepted_tokens: usize,
    /// Times that the request made room for another, or an embedding, and was computed anew.
    pub preemptions: usize,
}

/// A finished generation.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// Tokens generated, an end token included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// How long it took.
    pub timing: Timing,
}

/// What happens to a request.
#[derive(Debug)]
pub enum Event<'a> {
    /// A part of the prompt was processed.
    Prompt,
    /// A token came, and this text became certain; none where the token completed none.
    Text(&'a str),
    /// The answer is whole.
    Finished(Answer),
    /// There will be no answer.
    Failed(EngineError),
}
