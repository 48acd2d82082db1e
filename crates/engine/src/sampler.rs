//! Chooses the next token from a row of logits.
//!
//! The steps and their order, each skipped when its option is off:
//!
//! ```text
//! logits ─► bias ─► penalties ─► temperature ─► top-k ─► top-p ─► min-p ─► draw
//! ```
//!
//! Bias comes first, so that a banned token (bias -inf) stays banned whatever follows. Temperature
//! comes before the cuts, as in Hugging Face transformers: top-p and min-p then judge the
//! probabilities that are really drawn from, and a hotter temperature lets more tokens in. Top-p
//! measures its mass among what top-k left. Min-p compares each token with the best one only, a
//! ratio no earlier cut changes.
//!
//! Randomness is a pure function of (seed, position): the same request draws the same tokens alone
//! or in a batch, after a preemption, and with or without speculation.
//!
//! The vocabulary is never sorted. Greedy is one scan; the cuts find a threshold by partial
//! selection, and candidates stay in the order of their ids.

mod candidates;
mod numeric;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};

use candidates::Candidates;
pub use numeric::uniform;

/// How the next token is chosen. The default is the model's own distribution: temperature 1, no cuts.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 always takes the best token (greedy) and ignores the cuts and the seed.
    pub temperature: f32,
    /// Keeps this many of the best tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of best tokens whose probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this fraction as probable as the best one; 0 keeps all.
    pub min_p: f32,
    /// Divides the positive and multiplies the negative logits of tokens seen before; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every token seen before.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token once for each time it was seen before.
    pub frequency_penalty: f32,
    /// How many of the last accepted tokens the three penalties look at; `usize::MAX`: all of them.
    pub penalty_window: usize,
    /// (token, amount) added to logits; -inf bans the token. Amounts for the same token add up.
    pub logit_bias: Vec<(u32, f32)>,
    /// The request's seed.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: usize::MAX,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// Why a [`Sampling`] cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// A number lies outside what its field allows.
    #[error("{field} is {value}, allowed is {allowed}")]
    OutOfRange {
        /// The field's name.
        field: &'static str,
        /// What it was set to.
        value: f32,
        /// The range it must lie in, in words.
        allowed: &'static str,
    },
    /// A biased token is not in the vocabulary.
    #[error("logit_bias names token {token}, allowed are 0 to {} of this model", .vocabulary.saturating_sub(1))]
    UnknownToken {
        /// The token that was named.
        token: u32,
        /// How many tokens the model has.
        vocabulary: usize,
    },
    /// The model has no tokens, or more than ids can number.
    #[error("a vocabulary of {0} tokens cannot be sampled from, allowed is 1 to 4294967295")]
    Vocabulary(usize),
}

impl Sampling {
    /// Always the most probable token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Checks every number; an error names the field, its value and what is allowed.
    pub fn validate(&self) -> Result<(), SamplingError> {
        // Written as "must hold", so that NaN, for which no comparison holds, is refused.
        let check = |holds: bool, field, value, allowed| {
            if holds { Ok(()) } else { Err(SamplingError::OutOfRange { field, value, allowed }) }
        };
        let fraction = |value: f32| (0.0..=1.0).contains(&value);
        let positive = |value: f32| value.is_finite() && value > 0.0;
        let finite = "any finite number";

        let temperature = self.temperature.is_finite() && self.temperature >= 0.0;
        check(temperature, "temperature", self.temperature, "a finite number, 0 or above")?;
        check(fraction(self.top_p), "top_p", self.top_p, "0 to 1")?;
        check(fraction(self.min_p), "min_p", self.min_p, "0 to 1")?;
        let repetition = self.repetition_penalty;
        check(positive(repetition), "repetition_penalty", repetition, "a finite number above 0")?;
        let presence = self.presence_penalty;
        check(presence.is_finite(), "presence_penalty", presence, finite)?;
        let frequency = self.frequency_penalty;
        check(frequency.is_finite(), "frequency_penalty", frequency, finite)?;
        for &(_, bias) in &self.logit_bias {
            check(!bias.is_nan(), "logit_bias", bias, "any number but NaN; -inf bans the token")?;
        }
        Ok(())
    }

    fn penalises(&self) -> bool {
        self.penalty_window > 0
            && (self.repetition_penalty != 1.0
                || self.presence_penalty != 0.0
                || self.frequency_penalty != 0.0)
    }
}

/// Log-probabilities of one row, from [`Sampler::logprobs`].
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbs {
    /// Of the chosen token; -inf when its logit is -inf or NaN.
    pub chosen: f32,
    /// (token, log-probability) of the best tokens, best first, ties by lowest id. Shorter than
    /// asked when fewer tokens have any probability.
    pub top: Vec<(u32, f32)>,
}

/// The sampling state of one sequence: its options, its history, and scratch that is kept between
/// tokens so that choosing one allocates nothing after the first.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    vocabulary: usize,
    history: History,
    candidates: Candidates,
}

impl Sampler {
    /// A sampler over the ids 0 to `vocabulary` - 1. Logits rows may be longer (a padded head):
    /// the columns beyond are never chosen.
    pub fn new(sampling: Sampling, vocabulary: usize) -> Result<Self, SamplingError> {
        sampling.validate()?;
        if vocabulary == 0 || u32::try_from(vocabulary).is_err() {
            return Err(SamplingError::Vocabulary(vocabulary));
        }
        for &(token, _) in &sampling.logit_bias {
            if token as usize >= vocabulary {
                return Err(SamplingError::UnknownToken { token, vocabulary });
            }
        }
        let history = History::default();
        Ok(Self { sampling, vocabulary, history, candidates: Candidates::default() })
    }

    /// The options this sampler was made with.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Adds a token to the history the penalties look at. [`Sampler::sample`] does not do it by
    /// itself: a speculated token may yet be taken back. Feed the prompt too, if it should count.
    pub fn accept(&mut self, token: u32) {
        if self.sampling.penalises() {
            self.history.push(token, self.sampling.penalty_window);
        }
    }

    /// Chooses the token at `position`, writing bias and penalties into `logits`.
    ///
    /// Never panics: NaN counts as -inf; +inf always wins; where every logit is -inf, or the row
    /// is empty, the answer is token 0. Ties of the greedy choice go to the lowest id.
    pub fn sample(&mut self, logits: &mut [f32], position: u64) -> u32 {
        let columns = logits.len().min(self.vocabulary);
        let logits = &mut logits[..columns];
        self.shape(logits);

        let best = numeric::maximum(logits);
        if best == f32::NEG_INFINITY {
            return 0;
        }
        if self.sampling.temperature == 0.0 || best == f32::INFINITY {
            return numeric::first_equal(logits, best);
        }
        self.cut(logits, best);
        self.candidates.draw(uniform(self.sampling.seed, position))
    }

    /// Log-probabilities of a row at temperature 1 and without cuts: of `chosen`, and of the `top`
    /// best. Call it before [`Sampler::sample`] for the model's own, after it to include bias and
    /// penalties.
    pub fn logprobs(&mut self, logits: &[f32], chosen: u32, top: usize) -> LogProbs {
        let logits = &logits[..logits.len().min(self.vocabulary)];
        let best = numeric::maximum(logits);
        let log_of_sum = if best == f32::INFINITY {
            // The tokens at +inf share all probability, the rest have none.
            (logits.iter().filter(|&&logit| logit == best).count() as f64).ln()
        } else {
            numeric::sum_of_exponentials(logits, best).ln()
        };
        let log_probability = |logit: f32| {
            if logit.is_nan() || logit == f32::NEG_INFINITY {
                f32::NEG_INFINITY
            } else if logit == best {
                -log_of_sum as f32
            } else {
                ((logit as f64 - best as f64) - log_of_sum) as f32
            }
        };

        self.candidates.gather_best(logits, top);
        let mut ranked: Vec<(u32, f32)> = self.candidates.iter().collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        ranked.iter_mut().for_each(|(_, value)| *value = log_probability(*value));
        let chosen = logits.get(chosen as usize).copied().unwrap_or(f32::NEG_INFINITY);
        LogProbs { chosen: log_probability(chosen), top: ranked }
    }

    /// Bias and penalties, in place.
    fn shape(&self, logits: &mut [f32]) {
        let sampling = &self.sampling;
        for &(token, bias) in &sampling.logit_bias {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
        for (&token, &count) in &self.history.counts {
            if let Some(logit) = logits.get_mut(token as usize) {
                // Dividing alone would make an unlikely (negative) token more likely.
                if *logit > 0.0 {
                    *logit /= sampling.repetition_penalty;
                } else {
                    *logit *= sampling.repetition_penalty;
                }
                *logit -= sampling.presence_penalty + sampling.frequency_penalty * count as f32;
            }
        }
    }

    /// Leaves in `candidates` the tokens to draw from, with weights relative to the best token's 1.
    fn cut(&mut self, logits: &[f32], best: f32) {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        if top_k > 0 && top_k < logits.len() {
            self.candidates.gather_best(logits, top_k);
        } else {
            // Below this floor the weight is zero in f32.
            let floor = best - numeric::EXPONENT_RANGE * temperature;
            self.candidates.gather_from(logits, floor);
        }
        self.candidates.weigh(best, temperature);
        if top_p < 1.0 {
            self.candidates.keep_mass(top_p);
        }
        if min_p > 0.0 {
            self.candidates.keep_from(min_p);
        }
    }
}

/// How often each of the last tokens occurred.
#[derive(Clone, Debug, Default)]
struct History {
    counts: HashMap<u32, u32>,
    /// In order of arrival; stays empty while the window is unbounded and nothing ever leaves.
    recent: VecDeque<u32>,
}

impl History {
    fn push(&mut self, token: u32, window: usize) {
        *self.counts.entry(token).or_default() += 1;
        if window == usize::MAX {
            return;
        }
        self.recent.push_back(token);
        if self.recent.len() > window
            && let Some(oldest) = self.recent.pop_front()
            && let Some(count) = self.counts.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
    }
}
