//! What a plan keeps in the memory of each device, whether that fits, and how much there is for weights.

use std::sync::Arc;

use pianola_engine::{Engine, EngineError, LoadOptions};
use pianola_hub::catalogue::Entry;
use pianola_plan::{AllocationKind, Device, HeapShare, Plan};
use pianola_vulkan::{GpuKind, Instance};

use crate::failure::Failure;

/// What a device has to keep.
pub struct DeviceMemory {
    /// The device in words.
    pub name: String,
    /// Bytes of weights.
    pub weights: u64,
    /// Bytes of weights in a second form, for prompts; 0 where it is not kept.
    pub prompt_weights: u64,
    /// Bytes of keys and values.
    pub kv: u64,
    /// Bytes of everything else.
    pub working: u64,
    /// What is taken of which heap; none if it does not fit.
    pub heaps: Option<Vec<HeapShare>>,
    /// Bytes that the device grants now, where it says so.
    pub granted: Option<u64>,
    /// Bytes of these that may be used: the CPU leaves some to other programs.
    pub usable: Option<u64>,
}

impl DeviceMemory {
    /// Of every device of a plan.
    pub fn of(plan: &Plan, devices: &[Arc<dyn Device>]) -> Result<Vec<DeviceMemory>, Failure> {
        let part = |(id, device): (_, &Arc<dyn Device>)| {
            let allocations = device.allocations(plan, id).map_err(EngineError::from)?;
            let of = |kind: AllocationKind| -> u64 {
                let alike = allocations.iter().filter(|allocation| allocation.kind == kind);
                alike.map(|allocation| allocation.bytes).sum()
            };
            Ok(DeviceMemory {
                name: device.description(),
                weights: of(AllocationKind::Weights),
                prompt_weights: of(AllocationKind::PromptWeights),
                kv: of(AllocationKind::Kv),
                working: of(AllocationKind::Working),
                heaps: device.heaps(&allocations),
                granted: device.memory(),
                usable: device.heaps(&[]).map(|all| all.iter().map(|heap| heap.free).sum()),
            })
        };
        plan.device_ids().zip(devices).map(part).collect()
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.weights + self.prompt_weights + self.kv + self.working
    }
}

/// Bytes that weights may take: of the GPU that `--device auto` would take if it has memory of its own,
/// else of the machine.
pub fn for_weights() -> Option<u64> {
    let gpus = Instance::load().and_then(|instance| pianola_vulkan::describe(&instance));
    let own = gpus
        .into_iter()
        .flatten()
        .filter(|gpu| gpu.kind == GpuKind::Discrete && gpu.missing.is_empty());
    let local = own.map(|gpu| {
        gpu.heaps.iter().filter(|heap| heap.device_local).map(|heap| heap.budget).max().unwrap_or(0)
    });
    let available = || pianola_cpu::describe().memory.map(|(_, available)| available);
    // An eighth of what the machine has is left to others.
    local.max().or_else(|| available().map(|bytes| bytes - bytes / 8))
}

/// Tokens of context that memory is listed for, or all that a model allows if that is less.
pub const LISTED_CONTEXT: usize = 4096;

/// What a model of the catalogue needs with few tokens of context: the number that lists show.
pub struct ListedMemory {
    /// Tokens of context.
    pub context: usize,
    /// Bytes of weights, of keys and values, and of working memory.
    pub bytes: u64,
    /// Whether the CPU alone holds them.
    pub fits: bool,
}

impl ListedMemory {
    /// On the CPU alone. Free memory decides only whether it fits.
    pub fn of(entry: &Entry, options: &LoadOptions) -> Result<ListedMemory, Failure> {
        let context = LISTED_CONTEXT.min(entry.shape().config().context);
        let alone = LoadOptions {
            devices: options.devices[options.devices.len() - 1..].to_vec(),
            context: Some(context),
            kv_memory: Some(u64::MAX),
            ..options.clone()
        };
        let plan = Engine::plan_of_shape(entry.shape(), &entry.mixture(), &alone)?;
        let parts = DeviceMemory::of(&plan, &alone.devices)?;
        Ok(ListedMemory {
            context,
            bytes: parts.iter().map(DeviceMemory::bytes).sum(),
            fits: parts.iter().all(|part| part.heaps.is_some()),
        })
    }
}
