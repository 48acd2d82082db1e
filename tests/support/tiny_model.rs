//! The shape of a model small enough for thousands of plays.

use pianola_model::{Config, Dialect, Family, RopeConfig, RopeScaling};
use pianola_plan::{Activation, RopePairing};

/// With a window layer and a global one.
pub fn tiny_config() -> Config {
    Config {
        family: Family::named("gemma3").unwrap(),
        dialect: Dialect::Gguf,
        prefix: String::new(),
        name: None,
        context: 4096,
        vocabulary: 97,
        hidden: 64,
        feed_forward: 96,
        layers: 2,
        heads: 2,
        kv_heads: 1,
        head_dim: 32,
        epsilon: 1e-6,
        activation: Activation::GeluTanh,
        attention_scale: 1.0 / 32f32.sqrt(),
        rope: RopeConfig { base: 10_000.0, scaling: RopeScaling::None },
        window_rope: None,
        pairing: RopePairing::Halves,
        windows: vec![Some(100), None],
        attention_soft_cap: None,
        final_soft_cap: None,
        tied: true,
        attention_bias: false,
        output_bias: false,
        feed_forward_bias: false,
    }
}
