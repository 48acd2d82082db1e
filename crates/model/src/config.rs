//! The configuration of a transformer, however its file spells it.

use crate::error::ModelError;
use crate::family::Family;
use pianola_plan::{Activation, RopePairing};

/// Whose names and conventions a file follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// GGUF: norms hold `1 + w`, the rows of llama's q and k are permuted.
    Gguf,
    /// Hugging Face: tensors as trained, under a prefix such as `model.`
    HuggingFace,
}

/// How rotary frequencies are stretched beyond the training context.
#[derive(Clone, PartialEq, Debug)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided, high ones kept, a ramp between.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `original / low` are divided.
        low: f64,
        /// Wavelengths below `original / high` are kept.
        high: f64,
        /// Training context.
        original: f64,
    },
    /// YaRN: a ramp by the number of turns in the training context, and a magnitude.
    Yarn {
        /// Divisor of low frequencies.
        factor: f64,
        /// Turns above which a frequency is kept.
        fast: f64,
        /// Turns below which it is divided.
        slow: f64,
        /// Training context.
        original: f64,
        /// Multiplies cosines and sines.
        magnitude: f64,
    },
    /// A divisor for each pair, from the file.
    Factors(Vec<f32>),
    /// LongRoPE: divisors for each pair, from the file, of which the planned context chooses.
    Long {
        /// Divisors where at most `original` tokens of context are planned.
        short: Vec<f32>,
        /// Divisors where more are planned.
        long: Vec<f32>,
        /// Training context.
        original: usize,
        /// Multiplies cosines and sines.
        magnitude: f64,
    },
}

impl RopeScaling {
    /// What must be positive, and its name.
    fn positive_numbers(&self) -> Vec<(&'static str, f64)> {
        let each = |name: &'static str, factors: &[f32]| {
            factors.iter().map(|&factor| (name, f64::from(factor))).collect::<Vec<_>>()
        };
        match self {
            RopeScaling::None => vec![],
            RopeScaling::Linear { factor } => vec![("rope factor", *factor)],
            RopeScaling::Llama3 { factor, low, high, original } => vec![
                ("rope factor", *factor),
                ("rope low_freq_factor", *low),
                ("rope high_freq_factor less low_freq_factor", high - low),
                ("original context", *original),
            ],
            RopeScaling::Yarn { factor, fast, slow, original, magnitude } => vec![
                ("rope factor", *factor),
                ("rope beta_slow", *slow),
                ("rope beta_fast less beta_slow", fast - slow),
                ("original context", *original),
                ("rope attention factor", *magnitude),
            ],
            RopeScaling::Factors(factors) => each("rope factor", factors),
            RopeScaling::Long { short, long, original, magnitude } => [
                each("rope short factor", short),
                each("rope long factor", long),
                vec![("original context", *original as f64), ("rope attention factor", *magnitude)],
            ]
            .concat(),
        }
    }
}

/// A rotary table's parameters.
#[derive(Clone, PartialEq, Debug)]
pub struct RopeConfig {
    /// Base of the geometric series of wavelengths.
    pub base: f64,
    /// Stretching.
    pub scaling: RopeScaling,
}

/// What a model's file says about it.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Family.
    pub family: &'static Family,
    /// Conventions of the file.
    pub dialect: Dialect,
    /// Prefix of tensor names (Hugging Face).
    pub prefix: String,
    /// Name, if the file has one.
    pub name: Option<String>,
    /// Longest sequence.
    pub context: usize,
    /// Entries of the vocabulary.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward layer.
    pub feed_forward: usize,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Values in a head.
    pub head_dim: usize,
    /// Epsilon of the norms.
    pub epsilon: f32,
    /// Non-linearity of the feed-forward layer.
    pub activation: Activation,
    /// Multiplies `q . k`.
    pub attention_scale: f32,
    /// Rotary table of global layers.
    pub rope: RopeConfig,
    /// Rotary table of windowed layers, where it differs.
    pub window_rope: Option<RopeConfig>,
    /// Pairing of rotated values.
    pub pairing: RopePairing,
    /// For each layer its window, if it has one.
    pub windows: Vec<Option<usize>>,
    /// Soft cap on attention scores.
    pub attention_soft_cap: Option<f32>,
    /// Soft cap on logits.
    pub final_soft_cap: Option<f32>,
    /// The head is the embedding.
    pub tied: bool,
    /// q, k and v have biases.
    pub attention_bias: bool,
    /// The output projection has one too.
    pub output_bias: bool,
    /// The feed-forward layer has biases.
    pub feed_forward_bias: bool,
}

impl Config {
    /// Refuses what cannot be a model, so that arithmetic on these numbers is safe.
    pub(crate) fn validate(mut self) -> Result<Config, ModelError> {
        let positive = [
            ("context length", self.context, 1 << 28),
            ("vocabulary", self.vocabulary, 1 << 28),
            ("hidden size", self.hidden, 1 << 20),
            ("feed-forward size", self.feed_forward, 1 << 22),
            ("layers", self.layers, 1 << 12),
            ("heads", self.heads, 1 << 12),
            ("kv heads", self.kv_heads, 1 << 12),
            ("head size", self.head_dim, 1 << 12),
        ];
        for (key, found, most) in positive {
            if found == 0 || found > most {
                return Err(ModelError::value(
                    key,
                    found,
                    format!("it must be between 1 and {most}"),
                ));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let expected = format!("the {} heads must be a multiple of it", self.heads);
            return Err(ModelError::value("kv heads", self.kv_heads, expected));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(ModelError::value(
                "head size",
                self.head_dim,
                "it must be even to be rotated",
            ));
        }
        // A window longer than the context is no window.
        for window in &mut self.windows {
            *window = window.filter(|&window| window < self.context);
        }
        if self.windows.contains(&Some(0)) {
            return Err(ModelError::value("sliding window", 0, "it must be at least 1"));
        }
        let mut numbers = vec![
            ("norm epsilon", f64::from(self.epsilon)),
            ("attention scale", f64::from(self.attention_scale)),
        ];
        numbers.extend(self.attention_soft_cap.map(|cap| ("attention soft cap", f64::from(cap))));
        numbers.extend(self.final_soft_cap.map(|cap| ("logit soft cap", f64::from(cap))));
        for rope in std::iter::once(&self.rope).chain(&self.window_rope) {
            // At a base of 1 all wavelengths would be the same.
            numbers.push(("rope base less one", rope.base - 1.0));
            numbers.extend(rope.scaling.positive_numbers());
        }
        for (key, found) in numbers {
            if !(found.is_finite() && found > 0.0) {
                return Err(ModelError::value(key, found, "it must be a positive number"));
            }
        }
        Ok(self)
    }
}

/// Refuses a number of layers that no model has, before anything is made for each of them.
pub(crate) fn checked_layers(layers: usize) -> Result<usize, ModelError> {
    const MOST: usize = 1 << 12;
    match layers {
        1..=MOST => Ok(layers),
        _ => Err(ModelError::value("layers", layers, format!("it must be between 1 and {MOST}"))),
    }
}
