//! The CPU as a device: what it is, what it would allocate, and recording on it.

use crate::kept;
use crate::record::activation_bytes;
use crate::recording::CpuRecording;
use crate::simd::Level;
use crate::variants::{self, KernelChoice};
use crate::weights::packed_bytes;
use pianola_formats::TensorSource;
use pianola_plan::{
    Allocation, AllocationKind, Ceilings, Device, DeviceError, DeviceId, DeviceSpec, HeapShare,
    KernelVariant, KvSlot, Numeric, Plan, PromptWeights, Recording, WeightShape,
};
use std::sync::Arc;

/// How to use the processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuOptions {
    /// Instruction set.
    pub level: Level,
    /// Workers, at least one.
    pub threads: usize,
    /// Whether weights are kept in rotated form beside the file's. Auto: in plans on the processor alone, where the
    /// form is small or the plan has many sequences, and memory is plenty (`policy.rs`).
    pub prompt_weights: PromptWeights,
    /// Bytes of memory that may be used; none: what the system has available when it is asked.
    pub memory: Option<u64>,
}

impl CpuOptions {
    /// An instruction set and workers, without weights in rotated form.
    pub const fn bare(level: Level, threads: usize) -> CpuOptions {
        CpuOptions { level, threads, prompt_weights: PromptWeights::Off, memory: None }
    }

    /// Bytes of memory that may be used, where they were given or the system reports them.
    pub fn available(&self) -> Option<u64> {
        let now = || crate::available::memory().map(|(_, available)| available);
        self.memory.or_else(now)
    }
}

impl Default for CpuOptions {
    /// The best instruction set, and a worker for each core.
    fn default() -> Self {
        CpuOptions {
            level: Level::best(),
            threads: crate::topology::cores(),
            prompt_weights: PromptWeights::Auto,
            memory: None,
        }
    }
}

/// The processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuDevice {
    /// How to use it.
    pub options: CpuOptions,
}

impl CpuDevice {
    /// What a planner has to know of the processor.
    pub fn spec() -> DeviceSpec {
        DeviceSpec {
            name: "cpu".to_string(),
            layout: "tiles16",
            fuses: true,
            rounds_rows: false,
            asynchronous: false,
            lacks: Vec::new(),
        }
    }
}

impl Device for CpuDevice {
    fn spec(&self) -> DeviceSpec {
        CpuDevice::spec()
    }

    fn description(&self) -> String {
        let CpuOptions { level, threads, prompt_weights, .. } = self.options;
        let word = if threads == 1 { "thread" } else { "threads" };
        // Whether other plans keep a second form is known when they are recorded (`Engine::runs_on`).
        let forms = match prompt_weights {
            PromptWeights::Off if level.rotates() => ", weights in one form",
            _ => "",
        };
        format!("cpu ({level}, {threads} {word}{forms})")
    }

    /// What was given, or what the system has available now.
    fn memory(&self) -> Option<u64> {
        self.options.available()
    }

    fn allocations(&self, plan: &Plan, id: DeviceId) -> Result<Vec<Allocation>, DeviceError> {
        let mut all = allocations_of_file(plan, id);
        all.extend(kept::allocations(plan, id, self.options)?);
        Ok(all)
    }

    /// An eighth of what is available is left to others.
    fn heaps(&self, allocations: &[Allocation]) -> Option<Vec<HeapShare>> {
        let taken: u64 = allocations.iter().map(|allocation| allocation.bytes).sum();
        // Where the system does not say, it is tried.
        let free = self.memory().map_or(u64::MAX, |available| available - available / 8);
        (taken <= free).then(|| vec![HeapShare { name: "system memory", taken, free }])
    }

    fn record(
        &self,
        plan: &Arc<Plan>,
        id: DeviceId,
        source: &dyn TensorSource,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Box<dyn Recording>, DeviceError> {
        let recording = CpuRecording::new(plan.clone(), id, source, self.options, progress)?;
        Ok(Box::new(recording))
    }

    fn variants(&self, plan: &Plan, id: DeviceId) -> Result<Vec<KernelVariant>, DeviceError> {
        let kept = kept::is_kept(plan, id, self.options)?;
        Ok(variants::of_plan(plan, id, KernelChoice { level: self.options.level, kept }))
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn measure(&self, numeric: Numeric) -> Option<Ceilings> {
        crate::measure::measure(self.options, numeric)
    }
}

/// What a recording allocates whose weights are the file's alone: weights, pages, arenas and activations.
pub(crate) fn allocations_of_file(plan: &Plan, id: DeviceId) -> Vec<Allocation> {
    let allocation = |kind: AllocationKind, what: &str, bytes: u64, layer: Option<usize>| {
        Allocation { kind, what: what.to_string(), bytes, layer }
    };
    let arenas = (plan.arenas() * plan.arena.bytes) as u64;
    let mut all = vec![
        allocation(AllocationKind::Working, "the arena", arenas, None),
        allocation(AllocationKind::Working, "activations", activation_bytes(plan) as u64, None),
    ];
    for (index, group) in plan.graph.kv_groups.iter().enumerate() {
        let slots = (0..group.layers).map(|layer| KvSlot { group: index, layer });
        let page = (group.kv_heads * group.head_bytes()) as u64;
        let bytes = plan.kv_pages[index] as u64 * page;
        let mine = slots.filter(|&slot| plan.kv_device(slot) == id);
        all.extend(mine.map(|slot| {
            allocation(AllocationKind::Kv, "the KV pages", bytes, plan.kv_layer(slot))
        }));
    }
    let weights = plan.graph.weights.iter().enumerate();
    for (index, spec) in weights.filter(|(index, _)| plan.reads(id, *index)) {
        // Vectors are held beside the packed matrices.
        let bytes = match spec.shape {
            WeightShape::Matrix { .. } => packed_bytes(spec) as u64,
            WeightShape::Vector { .. } => spec.bytes(),
        };
        let layer = plan.weight_layer(index);
        all.push(allocation(AllocationKind::Weights, "the weights", bytes, layer));
    }
    all
}

pub(crate) fn out_of_memory(what: &str, bytes: u64) -> DeviceError {
    DeviceError::OutOfMemory { device: "cpu".to_string(), what: what.to_string(), bytes }
}
