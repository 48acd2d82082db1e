//! A model small enough for thousands of plays, with a window layer and a global one.

#![allow(dead_code, reason = "each test uses a part")]

pub use super::tiny_model::tiny_config;
use pianola_cpu::CpuOptions;
use pianola_engine::{Engine, EngineError, LoadOptions};
use pianola_formats::TensorType;
use pianola_plan::Device;
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
