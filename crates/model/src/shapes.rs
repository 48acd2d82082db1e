//! Shapes of known models, for benchmarks without a file.

use crate::config::{Architecture, Config, Dialect, RopeConfig, RopeScaling};
use pianola_plan::{Activation, RopePairing};

/// The numbers that make a model's shape.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shape {
    /// Name, such as `gemma3:27b`.
    pub name: &'static str,
    architecture: Architecture,
    layers: usize,
    hidden: usize,
    feed_forward: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocabulary: usize,
    context: usize,
    window: Option<usize>,
    /// Base of the attention scale, `1 / sqrt(base)`.
    scale_base: usize,
    rope_base: f64,
    rope_factor: f64,
}

const fn gemma3(
    name: &'static str,
    layers: usize,
    hidden: usize,
    feed_forward: usize,
    heads: usize,
    kv_heads: usize,
) -> Shape {
    Shape {
        name,
        architecture: Architecture::Gemma3,
        layers,
        hidden,
        feed_forward,
        heads,
        kv_heads,
        head_dim: 256,
        vocabulary: 262_144,
        context: 131_072,
        window: Some(1024),
        scale_base: 256,
        rope_base: 1e6,
        rope_factor: 8.0,
    }
}

/// Shapes that `bench --shape` knows.
pub const SHAPES: [Shape; 7] = [
    Shape {
        context: 32_768,
        window: Some(512),
        rope_factor: 1.0,
        ..gemma3("gemma3:270m", 18, 640, 2048, 4, 1)
    },
    Shape {
        context: 32_768,
        window: Some(512),
        rope_factor: 1.0,
        ..gemma3("gemma3:1b", 26, 1152, 6912, 4, 1)
    },
    gemma3("gemma3:4b", 34, 2560, 10_240, 8, 4),
    gemma3("gemma3:12b", 48, 3840, 15_360, 16, 8),
    Shape { head_dim: 128, scale_base: 168, ..gemma3("gemma3:27b", 62, 5376, 21_504, 32, 16) },
    Shape {
        name: "smollm2:135m",
        architecture: Architecture::Llama,
        layers: 30,
        hidden: 576,
        feed_forward: 1536,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        vocabulary: 49_152,
        context: 8192,
        window: None,
        scale_base: 64,
        rope_base: 1e5,
        rope_factor: 1.0,
    },
    Shape {
        name: "llama3:8b",
        architecture: Architecture::Llama,
        layers: 32,
        hidden: 4096,
        feed_forward: 14_336,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        vocabulary: 128_256,
        context: 8192,
        window: None,
        scale_base: 128,
        rope_base: 5e5,
        rope_factor: 1.0,
    },
];

/// The shape of that name.
pub fn shape(name: &str) -> Option<&'static Shape> {
    SHAPES.iter().find(|shape| shape.name.eq_ignore_ascii_case(name))
}

impl Shape {
    /// The same widths with fewer layers and a smaller vocabulary: enough to check every kernel
    /// of a model that would take minutes as a whole.
    pub fn reduced(self, layers: usize, vocabulary: usize) -> Shape {
        Shape {
            layers: self.layers.min(layers),
            vocabulary: self.vocabulary.min(vocabulary),
            ..self
        }
    }

    /// A configuration of this shape, in GGUF's conventions.
    pub fn config(&self) -> Config {
        let gemma = self.architecture == Architecture::Gemma3;
        let scaling = match self.rope_factor {
            1.0 => RopeScaling::None,
            factor => RopeScaling::Linear { factor },
        };
        Config {
            architecture: self.architecture,
            dialect: Dialect::Gguf,
            prefix: String::new(),
            name: Some(format!("random {}", self.name)),
            context: self.context,
            vocabulary: self.vocabulary,
            hidden: self.hidden,
            feed_forward: self.feed_forward,
            layers: self.layers,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            epsilon: 1e-6,
            activation: if gemma { Activation::GeluTanh } else { Activation::Silu },
            attention_scale: 1.0 / (self.scale_base as f32).sqrt(),
            rope: RopeConfig { base: self.rope_base, scaling },
            window_rope: gemma.then_some(RopeConfig { base: 10_000.0, scaling: RopeScaling::None }),
            pairing: if gemma { RopePairing::Halves } else { RopePairing::Adjacent },
            windows: (0..self.layers)
                .map(|layer| self.window.filter(|_| (layer + 1) % 6 != 0))
                .collect(),
            attention_soft_cap: None,
            final_soft_cap: None,
            tied: gemma || self.name.starts_with("smollm2"),
            attention_bias: false,
            output_bias: false,
            feed_forward_bias: false,
        }
    }
}
