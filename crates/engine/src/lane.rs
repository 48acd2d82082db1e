//! One request under way: its tokens, its sampler, its text.

use crate::constraint::Constraint;
use crate::embed::{Pooled, Pooling};
use crate::error::EngineError;
use crate::request::{
    Answer, EmbedRequest, Finish, PenaltyScope, Request, RequestId, Timing, Usage,
};
use crate::sampler::Sampler;
use crate::scheduler::{Limits, SampleOptions, SampledBy};
use crate::stop::StopMatcher;
use crate::text::Text;
use pianola_text::Decoder;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

/// A request, waiting or running.
pub(crate) struct Lane {
    pub id: RequestId,
    pub request: Request,
    pub options: Arc<SampleOptions>,
    /// Who can sample its tokens.
    pub by: SampledBy,
    /// Samples where no device does; see [`Lane::update_sampler`].
    pub sampler: Sampler,
    /// Tokens that the sampler was given, or need not be given.
    sampler_seen: usize,
    /// The prompt, and what was generated since.
    pub tokens: Vec<u32>,
    pub usage: Usage,
    /// How often another request was served first, or this one preempted.
    pub overtaken: u32,
    /// Follows the answer; guesses are taken back at once.
    pub constraint: Option<Box<dyn Constraint>>,
    /// The rows so far of a request that asks for an embedding, and not for an answer.
    pub pooled: Option<Pooled>,
    stop: StopMatcher,
    decoder: Option<Decoder>,
    /// Text of the last tokens; and what of it is certain.
    piece: String,
    certain: String,
    times: Times,
}

/// When what happened to a request.
struct Times {
    submitted: Instant,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl Times {
    fn timing(&self) -> Timing {
        let seconds = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), Some(to)) => to.duration_since(from).as_secs_f64(),
            _ => 0.0,
        };
        let first_token = self.first_token.or_else(|| Some(Instant::now()));
        Timing {
            queue_seconds: seconds(Some(self.submitted), self.admitted),
            prompt_seconds: seconds(self.admitted, first_token),
            generation_seconds: seconds(self.first_token, self.last_token),
        }
    }
}

impl Lane {
    pub fn new(
        id: RequestId,
        mut request: Request,
        options: SampleOptions,
        limits: &Limits,
        text: Option<&Text>,
    ) -> Result<Lane, EngineError> {
        let sampler = Sampler::new(options.sampling.clone(), limits.vocabulary)?;
        /// Room for tokens that is there from the start, where no end is set.
        const USUAL: usize = 1024;
        let mut tokens = Vec::with_capacity(
            request.prompt.len() + request.max_tokens.unwrap_or(USUAL).min(USUAL),
        );
        tokens.extend_from_slice(&request.prompt);
        Ok(Lane {
            id,
            options: Arc::new(options),
            by: SampledBy::Host,
            sampler,
            sampler_seen: match request.penalties {
                PenaltyScope::PromptAndAnswer => 0,
                PenaltyScope::Answer => request.prompt.len(),
            },
            usage: Usage { prompt_tokens: tokens.len(), ..Usage::default() },
            tokens,
            overtaken: 0,
            constraint: request.constraint.take(),
            pooled: None,
            stop: StopMatcher::new(request.stop.clone()),
            decoder: text.map(|text| text.tokenizer.decoder(request.show_special)),
            piece: String::new(),
            certain: String::new(),
            times: Times {
                submitted: Instant::now(),
                admitted: None,
                first_token: None,
                last_token: None,
            },
            request,
        })
    }

    /// A request that generates nothing.
    pub fn embedding(
        id: RequestId,
        request: EmbedRequest,
        limits: &Limits,
    ) -> Result<Lane, EngineError> {
        let EmbedRequest { tokens, pooling, priority, tenant } = request;
        let request = Request { max_tokens: Some(0), priority, tenant, ..Request::new(tokens) };
        let options = SampleOptions::of(&request, &[]);
        let lane = Lane::new(id, request, options, limits, None)?;
        Ok(Lane { pooled: Some(Pooled::new(pooling)), ..lane })
    }

    pub fn pooling(&self) -> Option<Pooling> {
        self.pooled.as_ref().map(Pooled::pooling)
    }

    /// Gives the sampler all tokens so far, and `guesses` behind them: those it has not seen yet.
    /// A request that a device samples never needs it.
    pub fn update_sampler(&mut self, guesses: &[u32]) {
        let Lane { sampler, tokens, sampler_seen, .. } = self;
        let known = tokens.iter().chain(guesses);
        known.skip(*sampler_seen).for_each(|&token| {
            sampler.accept(token);
            *sampler_seen += 1;
        });
    }

    /// The tokens that penalties look at.
    pub fn penalised(&self) -> &[u32] {
        let first = match self.request.penalties {
            PenaltyScope::PromptAndAnswer => 0,
            PenaltyScope::Answer => self.request.prompt.len(),
        };
        let window = self.options.sampling.penalty_window;
        &self.tokens[self.tokens.len().saturating_sub(window).max(first)..]
    }

    /// The request leaves the queue, `cached` of its tokens being there already.
    pub fn admit(&mut self, cached: usize) {
        if self.times.admitted.is_none() {
            self.times.admitted = Some(Instant::now());
            self.usage.cached_tokens = cached;
        }
    }

    /// Tokens generated so far.
    pub fn generated(&self) -> &[u32] {
        &self.tokens[self.request.prompt.len()..]
    }

    /// Tokens that may still come in a context of `context` tokens.
    pub fn left(&self, context: usize) -> usize {
        let asked = self.request.max_tokens.unwrap_or(usize::MAX) - self.generated().len();
        asked.min(context + 1 - self.tokens.len())
    }

    /// Takes the next token: what it makes certain is then in [`Lane::text`]. Returns why the
    /// answer ends here, if it does. An error if the constraint does not allow it.
    pub fn take(
        &mut self,
        token: u32,
        text: Option<&Text>,
        context: usize,
    ) -> Result<Option<Finish>, EngineError> {
        if let Some(constraint) = &mut self.constraint
            && !self.options.stop_tokens.contains(&token)
            && !constraint.advance(token)
        {
            return Err(self.constraint_error());
        }
        Ok(self.append(token, text, context))
    }

    /// The error of a request whose constraint allows no token.
    pub fn constraint_error(&self) -> EngineError {
        let position = self.tokens.len();
        match self.constraint.as_ref().and_then(|constraint| constraint.failure()) {
            Some(reason) => EngineError::ConstraintFailed { position, reason },
            None => EngineError::ConstraintUnmet { position },
        }
    }

    fn append(&mut self, token: u32, text: Option<&Text>, context: usize) -> Option<Finish> {
        let now = Instant::now();
        self.times.first_token.get_or_insert(now);
        self.times.last_token = Some(now);
        self.tokens.push(token);
        self.piece.clear();
        self.certain.clear();
        if self.options.stop_tokens.contains(&token) {
            return Some(match self.request.stop_tokens.contains(&token) {
                true => Finish::StopToken,
                false => Finish::EndOfTurn,
            });
        }
        match (&mut self.decoder, text) {
            (Some(decoder), Some(text)) => decoder.push(&text.tokenizer, token, &mut self.piece),
            // Writing to a string cannot fail.
            _ => drop(write!(self.piece, "{token} ")),
        }
        if self.stop.push(&self.piece, &mut self.certain) {
            return Some(Finish::StopText);
        }
        if self.constraint.as_ref().is_some_and(|constraint| constraint.is_complete()) {
            return Some(Finish::Complete);
        }
        if self.request.max_tokens.is_some_and(|most| self.generated().len() >= most) {
            return Some(Finish::MaxTokens);
        }
        (self.tokens.len() > context).then_some(Finish::ContextFull)
    }

    /// Text that the last token made certain.
    pub fn text(&self) -> &str {
        &self.certain
    }

    /// Ends the answer: what was held back is certain now, and is added to [`Lane::text`].
    pub fn finish(&mut self, finish: Finish) -> Answer {
        if finish != Finish::StopText {
            self.piece.clear();
            if let Some(decoder) = &mut self.decoder {
                decoder.finish(&mut self.piece);
            }
            self.stop.push(&self.piece, &mut self.certain);
            self.stop.finish(&mut self.certain);
        }
        self.usage.generated_tokens = self.generated().len();
        Answer {
            tokens: self.generated().to_vec(),
            finish,
            stop_text: self.stop.matched().map(str::to_string),
            seed: self.options.sampling.seed,
            usage: self.usage,
            timing: self.times.timing(),
        }
    }
}
