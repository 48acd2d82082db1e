//! A model small enough for thousands of plays, with a window layer and a global one.

#![allow(dead_code, reason = "each test uses a part")]

use pianola_cpu::CpuOptions;
use pianola_engine::{Engine, EngineError, LoadOptions};
use pianola_formats::TensorType;
use pianola_model::{Config, Dialect, Family, RopeConfig, RopeScaling};
use pianola_plan::{Activation, Device, RopePairing};
use pianola_vulkan::VulkanOptions;
use std::sync::Arc;

/// Numbers that look random and are the same every time.
pub struct Random(pub u64);

impl Random {
    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((self.0 >> 33) as usize) % end.max(1)
    }
}

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

/// A GPU, if there is one, and one thread of the processor: more would only wait for one another. Memory
/// is given, because what is free may decide how weights are kept.
pub fn one_thread(gpu: Option<VulkanOptions>) -> Vec<Arc<dyn Device>> {
    let cpu = CpuOptions { threads: 1, memory: Some(16 << 30), ..CpuOptions::default() };
    LoadOptions::devices(gpu.into_iter().collect(), cpu)
}

/// An engine of such a model, with random weights.
pub fn tiny_engine(mut options: LoadOptions) -> Result<Engine, EngineError> {
    options.devices = one_thread(options.gpu().map(|gpu| gpu.options.clone()));
    let name = "tiny".to_string();
    Engine::random_of(name, tiny_config(), TensorType::Q8_0, options, &mut |_, _| ())
}
