//! Generation: prompt in, text out, piece by piece.

use crate::decode::Pace;
use crate::error::EngineError;
use crate::load::Engine;
use crate::sampler::{Sampler, Sampling};
use crate::sequence::Wanted;
use crate::stop::StopMatcher;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Instant;

/// What to generate.
#[derive(Clone, Debug)]
pub struct Request {
    /// The whole conversation so far, as tokens.
    pub prompt: Vec<u32>,
    /// How to choose tokens.
    pub sampling: Sampling,
    /// Most tokens to generate; none: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// Go on past end-of-turn tokens.
    pub ignore_end: bool,
    /// Most tokens that a GPU chooses in one submission; none leaves it to the clock.
    pub tokens_per_submit: Option<usize>,
}

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

impl Engine {
    /// Generates an answer; `emit` gets the text as it becomes certain and may break off. It is
    /// also called with nothing, before each part of the prompt and where a token completed no
    /// text, so that breaking off need not wait. A model without a tokeniser emits its tokens'
    /// ids, each with a space behind it.
    pub fn generate(
        &mut self,
        request: &Request,
        emit: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, EngineError> {
        if request.prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        // Before anything is thrown away: an over-long prompt leaves the sequence as it was.
        if request.prompt.len() > self.context() {
            return Err(EngineError::ContextLength {
                needed: request.prompt.len(),
                context: self.context(),
                model: self.config.context,
            });
        }
        let vocabulary = self.config.vocabulary;
        let mut sampler = Sampler::new(request.sampling.clone(), vocabulary)?;
        request.prompt.iter().for_each(|&token| sampler.accept(token));
        let mut stop = StopMatcher::new(request.stop.clone());
        let cached = self.keep_prefix(&request.prompt);
        let mut timing = Timing {
            prompt_tokens: request.prompt.len(),
            cached_tokens: cached,
            ..Timing::default()
        };
        let start = Instant::now();
        let rows = self.plan().options.max_rows;
        let mut parts = request.prompt[cached..].chunks(rows).peekable();
        while let Some(part) = parts.next() {
            if emit("").is_break() {
                timing.prompt_seconds = start.elapsed().as_secs_f64();
                return Ok(Answer { tokens: Vec::new(), finish: Finish::Cancelled, timing });
            }
            // Only the last part's last row is sampled from.
            let wanted = if parts.peek().is_some() { Wanted::Nothing } else { Wanted::Last };
            self.feed(part, rows, wanted, &mut |_, _| ())?;
        }
        timing.prompt_seconds = start.elapsed().as_secs_f64();

        let start = Instant::now();
        let mut tokens = Vec::with_capacity(request.max_tokens.unwrap_or(0).min(self.context()));
        let (mut piece, mut certain) = (String::new(), String::new());
        // Taken out, so that its decoder can live beside the engine that plays.
        let text = self.text.take();
        let mut decoder = text.as_ref().map(|text| text.tokenizer.decoder(false));
        let ends = text.as_ref().map_or(&[][..], |text| text.tokenizer.stop_tokens());
        let mut failure = None;
        let stop_tokens = if request.ignore_end { &[][..] } else { ends };
        let on_device = self.cannot_choose(&request.sampling, stop_tokens).is_none();
        let mut pace = Pace::new(request.tokens_per_submit, self.recording.most_plays());
        // Tokens that the device chose and nobody has seen yet.
        let mut pending = VecDeque::new();
        let finish = loop {
            if request.max_tokens.is_some_and(|most| tokens.len() >= most) {
                break Finish::MaxTokens;
            }
            let token = match pending.pop_front() {
                Some(token) => token,
                None => {
                    let logits = self.recording.logits(0);
                    // A sum is NaN if anything in it is: weights or kernels are broken, and any
                    // token would be a lie.
                    if logits.iter().sum::<f32>().is_nan() {
                        failure = Some(EngineError::NotANumber { position: self.tokens.len() });
                        break Finish::Cancelled;
                    }
                    sampler.sample(logits, self.tokens.len() as u64)
                }
            };
            sampler.accept(token);
            tokens.push(token);
            if !request.ignore_end && ends.contains(&token) {
                break Finish::EndOfTurn;
            }
            piece.clear();
            match &mut decoder {
                Some(decoder) => decoder.push(token, &mut piece),
                None => piece.push_str(&format!("{token} ")),
            }
            certain.clear();
            let stopped = stop.push(&piece, &mut certain);
            if emit(&certain).is_break() {
                break Finish::Cancelled;
            }
            if stopped {
                break Finish::StopText;
            }
            if request.max_tokens.is_some_and(|most| tokens.len() >= most) {
                break Finish::MaxTokens;
            }
            if !pending.is_empty() {
                continue;
            }
            if self.tokens.len() >= self.context() {
                break Finish::ContextFull;
            }
            let fed = if on_device {
                let most = request.max_tokens.map_or(usize::MAX, |most| most - tokens.len());
                let count = pace.tokens(most.min(self.context() - self.tokens.len()));
                let begun = Instant::now();
                let chosen = self.feed_choosing(token, count, &request.sampling, stop_tokens);
                chosen.map(|chosen| {
                    pace.took(chosen.len(), begun.elapsed().as_secs_f64());
                    pending.extend(chosen);
                })
            } else {
                self.feed(&[token], 1, Wanted::Last, &mut |_, _| ())
            };
            if let Err(error) = fed {
                failure = Some(error);
                break Finish::Cancelled;
            }
        };
        // What the device played beyond the end is no part of the sequence.
        let beyond = pending.len().saturating_sub(1);
        self.rewind(self.tokens.len().saturating_sub(beyond));
        certain.clear();
        piece.clear();
        if let Some(decoder) = &mut decoder
            && finish != Finish::StopText
        {
            decoder.finish(&mut piece);
            stop.push(&piece, &mut certain);
        }
        if finish != Finish::StopText {
            stop.finish(&mut certain);
        }
        drop(decoder);
        self.text = text;
        if let Some(error) = failure {
            return Err(error);
        }
        if !certain.is_empty() && finish != Finish::Cancelled {
            let _ = emit(&certain);
        }
        timing.generated_tokens = tokens.len();
        timing.generation_seconds = start.elapsed().as_secs_f64();
        Ok(Answer { tokens, finish, timing })
    }
}
