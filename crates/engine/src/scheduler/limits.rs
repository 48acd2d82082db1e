//! What a request has to keep to, and what the scheduler knows of the device.

use crate::cache::CacheLayout;
use crate::error::EngineError;
use crate::request::Request;
use crate::sampler::Sampler;

/// What the scheduler is made with: plain data, so that it runs without a device.
#[derive(Clone, Debug)]
pub(crate) struct SchedulerOptions {
    pub limits: Limits,
    pub pages: CacheLayout,
    /// Most rows of a step.
    pub max_rows: usize,
    /// Most rows with logits of a step.
    pub max_logit_rows: usize,
    /// Most rows that a device samples at once; 0 where none samples.
    pub max_sample_rows: usize,
    /// Most tokens of a row that a device samples in one submission.
    pub max_tokens_per_submit: usize,
    /// Whether a step costs as much as one rounded up to a bucket of rows.
    pub rounds_rows: bool,
    /// Tokens to sample in one submission; none leaves it to the clock.
    pub tokens_per_submit: Option<usize>,
}

/// What a request has to keep to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    pub vocabulary: usize,
    /// Tokens that a sequence may have.
    pub context: usize,
    /// Tokens that the model was made for.
    pub model_context: usize,
    /// Requests that run at once.
    pub lanes: usize,
    /// Requests that wait for a lane.
    pub queue: usize,
}

/// Most stop texts of a request, and most bytes of all of them: each token is compared with all, on
/// the thread that serves everyone.
const MAX_STOP_TEXTS: usize = 64;
const MAX_STOP_BYTES: usize = 4096;
/// Most log probabilities beside a token's own.
const MAX_LOGPROBS: usize = 1024;

impl Limits {
    /// Whether the engine could serve the request at all.
    pub fn check(&self, request: &Request) -> Result<(), EngineError> {
        self.check_prompt(&request.prompt)?;
        let stop_bytes = request.stop.iter().map(String::len).sum();
        let biases = request.sampling.logit_bias.len();
        let (tokens, vocabulary) = (request.stop_tokens.len(), self.vocabulary);
        for (field, what, found, most) in [
            ("stop", "texts", request.stop.len(), MAX_STOP_TEXTS),
            ("stop", "bytes", stop_bytes, MAX_STOP_BYTES),
            ("logprobs", "tokens", request.logprobs.unwrap_or(0), MAX_LOGPROBS),
            // One for each token is more than anyone can use.
            ("stop_tokens", "tokens", tokens, vocabulary),
            ("logit_bias", "tokens", biases, vocabulary),
        ] {
            if found > most {
                return Err(EngineError::TooMany { field, what, found, most });
            }
        }
        self.check_tokens("stop_tokens", &request.stop_tokens)?;
        Ok(Sampler::check(&request.sampling, self.vocabulary)?)
    }

    /// Whether there are tokens, all of the vocabulary and no more than the context holds.
    pub fn check_prompt(&self, tokens: &[u32]) -> Result<(), EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        self.check_tokens("prompt", tokens)?;
        self.check_length(tokens.len())
    }

    /// Whether a sequence of `needed` tokens fits the context.
    pub fn check_length(&self, needed: usize) -> Result<(), EngineError> {
        let Limits { context, model_context: model, .. } = *self;
        match needed > context {
            true => Err(EngineError::ContextLength { needed, context, model }),
            false => Ok(()),
        }
    }

    /// Whether these are tokens of the vocabulary.
    pub fn check_tokens(&self, field: &'static str, tokens: &[u32]) -> Result<(), EngineError> {
        let vocabulary = self.vocabulary;
        match tokens.iter().find(|&&token| token as usize >= vocabulary) {
            Some(&token) => Err(EngineError::UnknownToken { field, token, vocabulary }),
            None => Ok(()),
        }
    }

    /// Requests that may be under way at once, waiting or running.
    pub fn max_open(&self) -> usize {
        self.lanes + self.queue
    }
}
