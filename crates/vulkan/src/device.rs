//! A GPU as a device: what it is, what it would allocate, and recording on it.

use crate::budget::Budget;
use crate::decode::{ChainTrial, Decode};
use crate::gpu::Gpu;
use crate::measure::measure;
use crate::recording::VulkanRecording;
use crate::statistics::reachable;
use crate::tuning::Tuning;
use pianola_formats::TensorSource;
use pianola_plan::{
    Allocation, Ceilings, Device, DeviceError, DeviceId, DeviceSpec, HeapShare, KernelVariant,
    Numeric, Plan, PromptWeights, Recording,
};
use std::path::PathBuf;
use std::sync::Arc;

/// How to use a GPU.
#[derive(Clone)]
pub struct VulkanOptions {
    /// The device.
    pub gpu: Arc<Gpu>,
    /// Most bytes of weights, pages and activations.
    pub memory: Option<u64>,
    /// Whether what the GPU's own memory, or that limit of it, does not hold lies in the host's memory,
    /// which a card reads over its bus. Without it layers go to another device.
    pub host_memory: bool,
    /// Measured choices.
    pub tuning: Tuning,
    /// Invocations that keep the device busy; none leaves it to a guess from the device's kind.
    pub parallelism: Option<u32>,
    /// Units, each of which runs a workgroup of 512; none leaves it to what the device says, 0 means
    /// that they are not counted.
    pub units: Option<u32>,
    /// Whether `project_fragments` is used where the device allows it; without it
    /// `project_matrix` takes its place.
    pub fragments: bool,
    /// Whether prompts have weights of their own. Auto: on a card with matrix units for int8, if it has memory left when
    /// everything else is placed and the model is not a small one.
    pub prompt_weights: PromptWeights,
    /// How single rows are played.
    pub decode: Decode,
    /// How [`Decode::Chained`] is tried.
    pub chain: ChainTrial,
    /// The file that keeps compiled pipelines between starts.
    pub pipeline_file: Option<PathBuf>,
}

impl VulkanOptions {
    /// A GPU as it is, without measured choices.
    pub fn new(gpu: Arc<Gpu>) -> VulkanOptions {
        VulkanOptions {
            gpu,
            memory: None,
            host_memory: false,
            tuning: Tuning::default(),
            parallelism: None,
            units: None,
            fragments: true,
            prompt_weights: PromptWeights::default(),
            decode: Decode::default(),
            chain: ChainTrial::default(),
            pipeline_file: None,
        }
    }
}

/// A GPU that plans may be placed on.
#[derive(Clone)]
pub struct VulkanDevice {
    /// Name in plans, which no two devices of a plan share: `vulkan`, `vulkan:1`.
    pub name: String,
    /// How to use it.
    pub options: VulkanOptions,
}

impl VulkanDevice {
    /// The only GPU of a plan.
    pub fn new(options: VulkanOptions) -> VulkanDevice {
        VulkanDevice { name: "vulkan".to_string(), options }
    }

    /// What a planner has to know of a GPU by this name.
    pub fn spec_named(name: &str) -> DeviceSpec {
        DeviceSpec {
            name: name.to_string(),
            layout: "planes",
            fuses: true,
            rounds_rows: true,
            asynchronous: true,
            lacks: Vec::new(),
        }
    }

    fn budget(&self) -> Budget {
        Budget::of(&self.options)
    }
}

impl Device for VulkanDevice {
    fn spec(&self) -> DeviceSpec {
        VulkanDevice::spec_named(&self.name)
    }

    fn description(&self) -> String {
        format!("{} ({})", self.name, self.options.gpu.description().name)
    }

    fn memory(&self) -> Option<u64> {
        Some(self.budget().bytes())
    }

    fn allocations(&self, plan: &Plan, id: DeviceId) -> Result<Vec<Allocation>, DeviceError> {
        self.budget().allocations(plan, id)
    }

    fn heaps(&self, allocations: &[Allocation]) -> Option<Vec<HeapShare>> {
        let sizes: Vec<u64> = allocations.iter().map(|allocation| allocation.bytes).collect();
        self.budget().share(&sizes)
    }

    fn record(
        &self,
        plan: &Arc<Plan>,
        id: DeviceId,
        source: &dyn TensorSource,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Box<dyn Recording>, DeviceError> {
        let options = self.options.clone();
        Ok(Box::new(VulkanRecording::new(plan.clone(), id, source, options, progress)?))
    }

    fn variants(&self, plan: &Plan, id: DeviceId) -> Result<Vec<KernelVariant>, DeviceError> {
        reachable(&self.options, plan, id)
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn measure(&self, numeric: Numeric) -> Option<Ceilings> {
        measure(&self.options.gpu, numeric).ok()
    }

    fn is_lost(&self) -> bool {
        self.options.gpu.is_lost()
    }
}
