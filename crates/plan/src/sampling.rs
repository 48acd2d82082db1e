//! Sampling: what a request asks for, and what a device that samples offers.

use crate::device::KernelVariant;
use crate::error::DeviceError;
use crate::step::Step;

/// How the next token is sampled. The default is the model's own distribution: temperature 1, no cuts.
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

    /// Whether penalties look at what was said before.
    pub fn penalises(&self) -> bool {
        self.penalty_window > 0
            && (self.repetition_penalty != 1.0
                || self.presence_penalty != 0.0
                || self.frequency_penalty != 0.0)
    }
}

/// How a device is to sample the token of one row with logits.
#[derive(Clone, Copy, Debug)]
pub struct SampleRow<'a> {
    /// What was asked for; its seed is in the uniform numbers already.
    pub sampling: &'a Sampling,
    /// Tokens after which the row's sequence is not played any further.
    pub stop_tokens: &'a [u32],
    /// Tokens that penalties count, oldest first; the row's own token is the last.
    pub history: &'a [u32],
    /// A random number in [0, 1) for each play, which greedy sampling ignores.
    pub uniforms: &'a [f32],
    /// One bit for each token of the vocabulary, the lowest bit of the first word being token 0's;
    /// only tokens whose bit is set may be sampled. None: all may.
    pub mask: Option<&'a [u32]>,
    /// Log probabilities to report beside the token: its own, and those of this many of the most
    /// probable tokens. None: no log probability.
    pub top_logprobs: Option<usize>,
}

/// Words of a [`SampleRow::mask`] for a vocabulary.
pub fn mask_words(vocabulary: usize) -> usize {
    vocabulary.div_ceil(u32::BITS as usize)
}

impl<'a> SampleRow<'a> {
    /// A row that nothing stops, masks or reports.
    pub fn new(sampling: &'a Sampling, uniforms: &'a [f32]) -> SampleRow<'a> {
        let (stop_tokens, history) = (&[][..], &[][..]);
        SampleRow { sampling, stop_tokens, history, uniforms, mask: None, top_logprobs: None }
    }
}

/// Log probabilities of one row: the model's own, at temperature 1 and before biases, penalties, cuts
/// and the mask.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TokenLogProbs<'a> {
    /// Of the sampled token.
    pub sampled: f32,
    /// The most probable tokens, the best first.
    pub top: &'a [(u32, f32)],
}

/// Samples tokens where the logits are, so that logits need not leave the device.
///
/// Rows are given in the order of `step.logits`. A row that is none is left to the host: its
/// logits are in [`crate::Recording::logits`] afterwards.
pub trait DeviceSampler {
    /// Why the device cannot sample a row this way; the host then does, from its logits.
    fn sampling_unsupported(&self, row: &SampleRow<'_>) -> Option<&'static str>;

    /// The kernel variants that sampling these rows launches.
    fn sampling_variants(&self, rows: &[Option<SampleRow<'_>>]) -> Vec<KernelVariant>;

    /// Most rows of one call.
    fn max_sample_rows(&self) -> usize;

    /// Most tokens of a row that one call of [`DeviceSampler::play_sampling`] samples.
    fn max_tokens_per_submit(&self) -> usize;

    /// Plays `step`, of a plan that has one segment, in slot 0 and samples a token for each of its rows with
    /// logits.
    ///
    /// There are as many plays as uniform numbers, of which every row has the same number. Where
    /// there are several, every row of the step must want logits, be sampled here, have no mask and
    /// be of another sequence: the sampled tokens become the rows of the next play, one position on,
    /// whose pages must be mapped. A sequence that sampled a stop token repeats its row instead, to
    /// no effect.
    fn play_sampling(
        &mut self,
        step: &Step,
        rows: &[Option<SampleRow<'_>>],
    ) -> Result<(), DeviceError>;

    /// Samples one token for each row with logits of the last play of `slot`, whose head was
    /// submitted with [`crate::LogitsTo::Sampler`], and waits for it.
    fn sample(&mut self, slot: usize, rows: &[Option<SampleRow<'_>>]) -> Result<(), DeviceError>;

    /// Tokens that were last sampled in `slot` for the `index`-th row with logits: one a play, until
    /// a stop token. None where the row was left to the host, where its mask leaves no token, or
    /// where a logit was not a number, which means that weights or a kernel are broken.
    fn sampled(&self, slot: usize, index: usize) -> Option<&[u32]>;

    /// Log probabilities of the `play`-th token of the `index`-th row; none where none were asked
    /// for.
    fn logprobs(&self, slot: usize, index: usize, play: usize) -> Option<TokenLogProbs<'_>>;
}
