//! Weights in rotated form that are made once, at load, and kept beside those of the file.
//!
//! The panels are those that products of many rows otherwise make as they read the file's weights
//! (`simd/rotated.rs`), byte for byte. Kept, they cost a byte a weight, and serve steps whose rows are too few to
//! make up for making them.

use crate::device::{CpuOptions, allocations_of_file, out_of_memory};
use crate::memory::Memory;
use crate::pack::{PackedMatrix, TILE};
use crate::policy::{KeptBudget, keeps_panels, rotated_rows, rotated_zero, rotation};
use crate::pool::Pool;
use crate::simd::Level;
use crate::simd::rotated::{FloatChunk, PanelSource, chunk_bytes};
use crate::weights::Weight;
use pianola_plan::{Allocation, AllocationKind, DeviceError, DeviceId, Kernel, Numeric, Plan};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Panels of a device's weights.
pub(crate) struct KeptPanels {
    memory: Memory,
    /// First byte of each weight's panels, by the weight's index.
    starts: BTreeMap<usize, usize>,
}

/// Bytes of a tile's panels.
pub(crate) fn panel_bytes(columns: usize, chunk: usize) -> usize {
    columns / chunk * chunk_bytes(chunk)
}

/// Weights whose products have a rotated form, with the columns of a chunk: quantised ones of layers and head.
fn rotatable(plan: &Plan, device: DeviceId, level: Level) -> BTreeMap<usize, usize> {
    let ops = plan.ops.iter().enumerate();
    // A head of few rows never meets its panels.
    let heads = plan.options.max_logit_rows >= rotated_rows(level, true);
    let mine = ops.filter(|&(op, _)| plan.runs_on(op, device) && (heads || !plan.is_head(op)));
    let parts = mine.filter_map(|(_, planned)| match &planned.kernel {
        Kernel::Project(project) => Some(&project.parts),
        _ => None,
    });
    let weights = parts.flatten().map(|part| part.weight.0);
    weights
        .filter(|&weight| plan.graph.weights[weight].ty.is_quantized())
        .filter_map(|weight| {
            let columns = plan.graph.weights[weight].shape.rows().1;
            Some((weight, rotation(&plan.options, level, columns)?))
        })
        .collect()
}

/// A weight that panels are kept of.
struct Listed {
    weight: usize,
    /// Columns of a chunk.
    chunk: usize,
    allocation: Allocation,
}

/// What [`KeptPanels::new`] would allocate.
fn listed(plan: &Plan, device: DeviceId, level: Level) -> Vec<Listed> {
    let of_weight = |(weight, chunk): (usize, usize)| {
        let (rows, columns) = plan.graph.weights[weight].shape.rows();
        let bytes = (rows.div_ceil(TILE) * panel_bytes(columns, chunk)) as u64;
        let what = "the weights in rotated form".to_string();
        let (kind, layer) = (AllocationKind::PromptWeights, plan.weight_layer(weight));
        Listed { weight, chunk, allocation: Allocation { kind, what, bytes, layer } }
    };
    rotatable(plan, device, level).into_iter().map(of_weight).collect()
}

/// What a recording allocates for kept panels: nothing where it keeps none ([`PromptWeights`]).
pub(crate) fn allocations(
    plan: &Plan,
    device: DeviceId,
    options: CpuOptions,
) -> Result<Vec<Allocation>, DeviceError> {
    let list: Vec<Allocation> =
        listed(plan, device, options.level).into_iter().map(|one| one.allocation).collect();
    Ok(if keeps(plan, device, options, &list)? { list } else { Vec::new() })
}

/// Whether a recording keeps panels.
pub(crate) fn is_kept(
    plan: &Plan,
    device: DeviceId,
    options: CpuOptions,
) -> Result<bool, DeviceError> {
    Ok(!allocations(plan, device, options)?.is_empty())
}

fn keeps(
    plan: &Plan,
    device: DeviceId,
    options: CpuOptions,
    list: &[Allocation],
) -> Result<bool, DeviceError> {
    let obstacles = [
        (!options.level.rotates(), "the instruction set has no products in rotated form"),
        (plan.options.numeric == Numeric::Exact, "exact mode rounds nothing"),
        (plan.options.reproducible, "reproducible plans compute all rows alike"),
    ];
    let obstacle = obstacles.into_iter().find(|obstacle| obstacle.0);
    options.prompt_weights.decide(obstacle.map(|obstacle| obstacle.1), || {
        let bytes = |list: &[Allocation]| list.iter().map(|one| one.bytes).sum::<u64>();
        // Pages come and go; what stays is counted.
        let mut others = allocations_of_file(plan, device);
        others.retain(|allocation| allocation.kind != AllocationKind::Kv);
        let budget = KeptBudget {
            form: bytes(list),
            others: bytes(&others),
            available: options.available(),
        };
        // A plan on several devices has its context from what the weights leave of each.
        Ok(plan.devices.len() == 1 && keeps_panels(&plan.options, budget))
    })
}

impl KeptPanels {
    /// Makes the panels of all weights that have them, with all workers.
    pub fn new(
        plan: &Plan,
        device: DeviceId,
        (weights, level): (&[Weight], Level),
        pool: &Pool,
    ) -> Result<KeptPanels, DeviceError> {
        let list = listed(plan, device, level);
        let bytes: u64 = list.iter().map(|one| one.allocation.bytes).sum();
        let memory = Memory::zeroed(bytes as usize)
            .ok_or_else(|| out_of_memory("the weights in rotated form", bytes))?;
        let mut panels = KeptPanels { memory, starts: BTreeMap::new() };
        let mut next = 0;
        for Listed { weight, chunk, allocation } in list {
            panels.starts.insert(weight, next);
            panels.make(next, weights[weight].matrix(), (level, chunk), pool);
            next += allocation.bytes as usize;
        }
        Ok(panels)
    }

    /// Makes the panels of a matrix, a tile after another, the workers taking them in turn.
    fn make(
        &mut self,
        start: usize,
        matrix: &PackedMatrix,
        (level, chunk): (Level, usize),
        pool: &Pool,
    ) {
        let fill = (level.kernels().fill_panel)(matrix.ty).expect("a quantised type");
        let bytes = panel_bytes(matrix.columns, chunk);
        assert!(start + matrix.tiles() * bytes <= self.memory.len());
        let memory = &self.memory;
        let next = AtomicUsize::new(0);
        pool.run(&|_| {
            let mut room = Box::new(FloatChunk::ZERO);
            loop {
                let tile = next.fetch_add(1, Ordering::Relaxed);
                if tile >= matrix.tiles() {
                    break;
                }
                let source = PanelSource {
                    tile: matrix.tile(tile).as_ptr(),
                    chunk,
                    first: 0,
                    chunks: matrix.columns / chunk,
                    zero: rotated_zero(level),
                    #[cfg(any(test, feature = "test-hooks"))]
                    fault: None,
                };
                // SAFETY: the level is that of the recording, which is available; the tile's panels lie inside the
                // block, and this worker alone has taken the tile.
                unsafe { fill(&source, &mut room, memory.start().add(start + tile * bytes)) };
            }
        });
    }

    /// The panels of a weight's first tile; the others follow, [`panel_bytes`] each.
    pub fn of(&self, weight: usize) -> Option<*const u8> {
        let start = *self.starts.get(&weight)?;
        Some(self.memory.bytes()[start..].as_ptr())
    }
}
