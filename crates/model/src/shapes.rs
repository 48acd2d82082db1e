//! Shapes of known models, for plans and benchmarks without a file.
//!
//! The numbers are those of the models' published configurations. Rotary frequencies are stretched by a
//! factor where that is all there is to it; Llama 3's ramp is left out, since it costs no time and no
//! memory.

use crate::config::{Config, Dialect, RopeConfig, RopeScaling};
use crate::family::{AttentionBias, Family};
use crate::{gemma2, gemma3, llama, mistral, phi3, qwen2, qwen3};

/// The numbers that make a model's shape.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shape {
    /// Name, such as `gemma3:27b`.
    pub name: &'static str,
    family: &'static Family,
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
    tied: bool,
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
        family: &gemma3::FAMILY,
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
        tied: true,
    }
}

const LLAMA3_8B: Shape = Shape {
    name: "llama3:8b",
    family: &llama::FAMILY,
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
    tied: false,
};

/// Qwen 3 but for its layers and widths; the small ones read out of their embedding.
const QWEN3: Shape = Shape {
    family: &qwen3::FAMILY,
    vocabulary: 151_936,
    context: 40_960,
    rope_base: 1e6,
    ..LLAMA3_8B
};

const MISTRAL_7B: Shape = Shape {
    name: "mistral:7b",
    family: &mistral::FAMILY,
    vocabulary: 32_000,
    context: 32_768,
    window: Some(4096),
    rope_base: 1e4,
    ..LLAMA3_8B
};

/// Shapes that are known by name.
pub const SHAPES: [Shape; 24] = [
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
        layers: 30,
        hidden: 576,
        feed_forward: 1536,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        vocabulary: 49_152,
        scale_base: 64,
        rope_base: 1e5,
        tied: true,
        ..LLAMA3_8B
    },
    LLAMA3_8B,
    Shape {
        name: "gemma2:9b",
        family: &gemma2::FAMILY,
        vocabulary: 256_000,
        context: 8192,
        window: Some(4096),
        rope_base: 1e4,
        rope_factor: 1.0,
        ..gemma3("", 42, 3584, 14_336, 16, 8)
    },
    Shape { name: "qwen3:8b", layers: 36, feed_forward: 12_288, ..QWEN3 },
    MISTRAL_7B,
    Shape {
        name: "phi3:mini",
        family: &phi3::FAMILY,
        hidden: 3072,
        feed_forward: 8192,
        kv_heads: 32,
        head_dim: 96,
        vocabulary: 32_064,
        context: 4096,
        window: Some(2047),
        scale_base: 96,
        rope_base: 1e4,
        ..LLAMA3_8B
    },
    Shape {
        name: "smollm2:1.7b",
        layers: 24,
        hidden: 2048,
        feed_forward: 8192,
        kv_heads: 32,
        head_dim: 64,
        vocabulary: 49_152,
        scale_base: 64,
        rope_base: 1.3e5,
        tied: true,
        ..LLAMA3_8B
    },
    Shape {
        name: "tinyllama:1.1b",
        layers: 22,
        hidden: 2048,
        feed_forward: 5632,
        kv_heads: 4,
        head_dim: 64,
        vocabulary: 32_000,
        context: 2048,
        scale_base: 64,
        rope_base: 1e4,
        ..LLAMA3_8B
    },
    Shape { name: "llama3.1:8b", context: 131_072, ..LLAMA3_8B },
    Shape {
        name: "llama3.2:1b",
        layers: 16,
        hidden: 2048,
        feed_forward: 8192,
        head_dim: 64,
        context: 131_072,
        scale_base: 64,
        tied: true,
        ..LLAMA3_8B
    },
    Shape {
        name: "llama3.2:3b",
        layers: 28,
        hidden: 3072,
        feed_forward: 8192,
        heads: 24,
        context: 131_072,
        tied: true,
        ..LLAMA3_8B
    },
    // From version 0.3 on without a window.
    Shape {
        name: "mistral:7b-v0.3",
        vocabulary: 32_768,
        window: None,
        rope_base: 1e6,
        ..MISTRAL_7B
    },
    Shape {
        name: "mistral-nemo:12b",
        layers: 40,
        hidden: 5120,
        vocabulary: 131_072,
        context: 131_072,
        window: None,
        rope_base: 1e6,
        ..MISTRAL_7B
    },
    // With a head of its own, which Qwen's GGUF files have although the model is tied.
    Shape {
        name: "qwen2.5:1.5b",
        family: &qwen2::FAMILY,
        layers: 28,
        hidden: 1536,
        feed_forward: 8960,
        heads: 12,
        kv_heads: 2,
        context: 32_768,
        ..QWEN3
    },
    Shape {
        name: "qwen2.5:7b",
        family: &qwen2::FAMILY,
        layers: 28,
        hidden: 3584,
        feed_forward: 18_944,
        heads: 28,
        kv_heads: 4,
        vocabulary: 152_064,
        context: 32_768,
        ..QWEN3
    },
    Shape {
        name: "qwen3:0.6b",
        layers: 28,
        hidden: 1024,
        feed_forward: 3072,
        heads: 16,
        tied: true,
        ..QWEN3
    },
    Shape {
        name: "qwen3:1.7b",
        layers: 28,
        hidden: 2048,
        feed_forward: 6144,
        heads: 16,
        tied: true,
        ..QWEN3
    },
    Shape { name: "qwen3:4b", layers: 36, hidden: 2560, feed_forward: 9728, tied: true, ..QWEN3 },
    Shape { name: "qwen3:14b", layers: 40, hidden: 5120, feed_forward: 17_408, heads: 40, ..QWEN3 },
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
        let family = self.family;
        let scaling = match self.rope_factor {
            1.0 => RopeScaling::None,
            factor => RopeScaling::Linear { factor },
        };
        let plain = |base: f64| RopeConfig { base, scaling: RopeScaling::None };
        Config {
            family,
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
            activation: family.activation,
            attention_scale: 1.0 / (self.scale_base as f32).sqrt(),
            rope: RopeConfig { base: self.rope_base, scaling },
            window_rope: family.window_rope_base.map(plain),
            pairing: family.gguf.pairing,
            windows: family.gguf.windows.layers(self.window, self.layers),
            attention_soft_cap: family.attention_soft_cap,
            final_soft_cap: family.final_soft_cap,
            tied: self.tied,
            attention_bias: family.hugging_face.attention_bias == AttentionBias::QueryKeyValue,
            output_bias: false,
            feed_forward_bias: false,
        }
    }
}
