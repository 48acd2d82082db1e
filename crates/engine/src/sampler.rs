//! Samples the next token from a row of logits.
//!
//! The steps and their order, each skipped when its option is off:
//!
//! ```text
//! logits ─► bias ─► penalties ─► temperature ─► top-k ─► top-p ─► min-p ─► sample
//! ```
//!
//! Bias comes first, so that a banned token (bias -inf) stays banned whatever follows. Temperature
//! comes before the cuts, as in Hugging Face transformers: top-p and min-p then judge the
//! probabilities that are really sampled from, and a hotter temperature lets more tokens in. Top-p
//! measures its mass among what top-k left. Min-p compares each token with the best one only, a
//! ratio no earlier cut changes.
//!
//! Randomness is a pure function of (seed, position): the same request samples the same tokens alone
//! or in a batch, after a preemption, and with or without speculation.
//!
//! The vocabulary is never sorted. Greedy is one scan; the cuts find a threshold by partial
//! selection, and candidates stay in the order of their ids.

mod boundary;
mod candidates;
mod numeric;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};

pub use boundary::is_at_boundary;
use candidates::Candidates;
pub use numeric::uniform;
pub use pianola_plan::{Sampling, SamplingError};

/// The sampling state of one sequence: its options, its history, and scratch that is kept between
/// tokens so that sampling one allocates nothing after the first.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    vocabulary: usize,
    history: History,
    candidates: Candidates,
}

impl Sampler {
    /// A sampler over the ids 0 to `vocabulary` - 1. Logits rows may be longer (a padded head):
    /// the columns beyond are never sampled.
    pub fn new(sampling: Sampling, vocabulary: usize) -> Result<Self, SamplingError> {
        Sampler::check(&sampling, vocabulary)?;
        let history = History::default();
        Ok(Self { sampling, vocabulary, history, candidates: Candidates::default() })
    }

    /// Whether one can sample so from a vocabulary.
    pub fn check(sampling: &Sampling, vocabulary: usize) -> Result<(), SamplingError> {
        sampling.validate()?;
        if vocabulary == 0 || u32::try_from(vocabulary).is_err() {
            return Err(SamplingError::Vocabulary(vocabulary));
        }
        for &(token, _) in &sampling.logit_bias {
            if token as usize >= vocabulary {
                return Err(SamplingError::UnknownToken { token, vocabulary });
            }
        }
        Ok(())
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

    /// Samples the token at `position`, writing bias and penalties into `logits`.
    ///
    /// Never panics: NaN counts as -inf; +inf always wins; where every logit is -inf, or the row
    /// is empty, the answer is token 0. Greedy ties go to the lowest id.
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
        self.candidates.sample(uniform(self.sampling.seed, position))
    }

    /// Log probabilities of a row at temperature 1 and without cuts: appends (token, log
    /// probability) of the `count` best to `top`, best first, ties by lowest id, fewer where fewer
    /// tokens have any probability; and returns that of `token`, -inf when its logit is -inf or NaN.
    /// Call it before [`Sampler::sample`], which writes bias and penalties into the row.
    pub fn logprobs(
        &mut self,
        logits: &[f32],
        token: u32,
        count: usize,
        top: &mut Vec<(u32, f32)>,
    ) -> f32 {
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

        self.candidates.gather_best(logits, count);
        let start = top.len();
        top.extend(self.candidates.iter());
        let ranked = &mut top[start..];
        // Zeros of both signs are equal, which total_cmp would tell apart; there is no NaN.
        let falling = |a: f32, b: f32| b.partial_cmp(&a).unwrap_or(Ordering::Equal);
        ranked.sort_unstable_by(|a, b| falling(a.1, b.1).then(a.0.cmp(&b.0)));
        ranked.iter_mut().for_each(|(_, value)| *value = log_probability(*value));
        log_probability(logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY))
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

    /// Leaves in `candidates` the tokens to sample from, with weights relative to the best token's 1.
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
