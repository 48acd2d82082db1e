//! One request under way: its tokens, its sampler, its text.

use crate::error::EngineError;
use crate::load::Text;
use crate::request::{Answer, Finish, Request, RequestId, Timing};
use crate::sampler::Sampler;
use crate::scheduler::{Limits, SampleOptions, SampledBy};
use crate::stop::StopMatcher;
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
    /// Tokens that the sampler has been given.
    sampler_seen: usize,
    /// The prompt, and what was generated since.
    pub tokens: Vec<u32>,
    pub timing: Timing,
    /// How often another request was served first, or this one preempted.
    pub overtaken: u32,
    stop: StopMatcher,
    decoder: Option<Decoder>,
    /// Text of the last tokens; and what of it is certain.
    piece: String,
    certain: String,
    submitted: Instant,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl Lane {
    pub fn new(
        id: RequestId,
        request: Request,
        options: Arc<SampleOptions>,
        limits: &Limits,
        text: Option<&Text>,
    ) -> Result<Lane, EngineError> {
        let sampler = Sampler::new(options.sampling.clone(), limits.vocabulary)?;
        let timing = Timing { prompt_tokens: request.prompt.len(), ..Timing::default() };
        /// Room for tokens that is there from the start, where no end is set.
        const USUAL: usize = 1024;
        let mut tokens = Vec::with_capacity(
            request.prompt.len() + request.max_tokens.unwrap_or(USUAL).min(USUAL),
        );
        tokens.extend_from_slice(&request.prompt);
        Ok(Lane {
            id,
            options,
            by: SampledBy::Host,
            sampler,
            sampler_seen: 0,
            tokens,
            timing,
            overtaken: 0,
            stop: StopMatcher::new(request.stop.clone()),
            decoder: text.map(|text| text.tokenizer.decoder(false)),
            piece: String::new(),
            certain: String::new(),
            submitted: Instant::now(),
            admitted: None,
            first_token: None,
            last_token: None,
            request,
        })
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
        let window = self.options.sampling.penalty_window;
        &self.tokens[self.tokens.len().saturating_sub(window)..]
    }

    /// The request leaves the queue, `cached` of its tokens being there already.
    pub fn admit(&mut self, cached: usize) {
        if self.admitted.is_none() {
            self.admitted = Some(Instant::now());
            self.timing.cached_tokens = cached;
            self.timing.queue_seconds = self.submitted.elapsed().as_secs_f64();
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
    /// answer ends here, if it does.
    pub fn take(&mut self, token: u32, text: Option<&Text>, context: usize) -> Option<Finish> {
        let now = Instant::now();
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.tokens.push(token);
        self.piece.clear();
        self.certain.clear();
        if self.options.stop_tokens.contains(&token) {
            return Some(Finish::EndOfTurn);
        }
        match (&mut self.decoder, text) {
            (Some(decoder), Some(text)) => decoder.push(&text.tokenizer, token, &mut self.piece),
            // Writing to a string cannot fail.
            _ => drop(write!(self.piece, "{token} ")),
        }
        if self.stop.push(&self.piece, &mut self.certain) {
            return Some(Finish::StopText);
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
        let seconds = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), Some(to)) => to.duration_since(from).as_secs_f64(),
            _ => 0.0,
        };
        let begun = self.first_token.or_else(|| Some(Instant::now()));
        self.timing.prompt_seconds = seconds(self.admitted, begun);
        self.timing.generation_seconds = seconds(self.first_token, self.last_token);
        self.timing.generated_tokens = self.generated().len();
        Answer { tokens: self.generated().to_vec(), finish, timing: self.timing }
    }
}
