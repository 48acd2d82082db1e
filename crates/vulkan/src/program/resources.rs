//! Memory that kernels share: listed once, for a recording, a dry run and a budget alike.

use super::ChainedProgram;
use crate::memory::Region;
use crate::policy::fragments::MOST_GATE_ROWS;
use crate::policy::{Limits, attention};
use pianola_plan::{
    Allocation, AllocationKind, AttentionSpec, BUCKETS, DeviceError, DeviceId, Kernel, KvSlot, Op,
    PAGE_TOKENS, Plan, PlanOp, bucket,
};

/// Finds memory for an allocation.
pub(crate) type Allocate<'a> = dyn FnMut(&Allocation) -> Result<Region, DeviceError> + 'a;

/// Device memory that kernels share.
pub(crate) struct Resources {
    /// One for each arena of the plan.
    pub arenas: Vec<Region>,
    /// Input rows of the product that comes next.
    pub operand: Region,
    pub metas: Region,
    /// Input rows that a kernel leaves for the next one, in plays of one row: codes and metas.
    pub handed: [(Region, Region); 2],
    /// Counts the workgroups of a kernel that have finished.
    pub finished: Region,
    /// What the parts of an attention leave for the last of them.
    pub partials: Region,
    pub arrivals: Region,
    /// What chained kernels wait by.
    pub chain: Region,
    /// Pages of each layer, `[group][layer]`; of no size where another device has them.
    pub pages: Vec<Vec<Region>>,
    /// First entry of each group in the page tables, and entries a sequence.
    pub tables: Vec<u32>,
    pub entries: u32,
}

impl Resources {
    /// Everything but the weights that a recording of a device's part of `plan` keeps in device
    /// memory, in the order in which it is allocated.
    pub fn new(
        plan: &Plan,
        device: DeviceId,
        limits: &Limits,
        allocate: &mut Allocate<'_>,
    ) -> Result<Resources, DeviceError> {
        let scratch = Scratch::of(plan, device, limits);
        let mut shared = |bytes: u64, what: &str| {
            allocate(&Allocation {
                kind: AllocationKind::Working,
                what: what.to_string(),
                bytes,
                layer: None,
            })
        };
        let arenas = (0..plan.arenas())
            .map(|_| shared(plan.arena.bytes as u64, "activations"))
            .collect::<Result<Vec<Region>, DeviceError>>()?;
        let operand = shared(scratch.operand, "activations")?;
        let metas = shared(scratch.metas, "activations")?;
        let partials = shared(scratch.partials, "attention")?;
        let arrivals = shared(scratch.arrivals, "attention")?;
        let chain = shared(scratch.chain, "activations")?;
        let mut hand = || {
            let (codes, metas) = scratch.handed;
            Ok::<_, DeviceError>((shared(codes, "activations")?, shared(metas, "activations")?))
        };
        let handed = [hand()?, hand()?];
        let finished = shared(4, "activations")?;
        let mut pages = Vec::new();
        for (index, group) in plan.graph.kv_groups.iter().enumerate() {
            let layers = (0..group.layers).map(|layer| {
                let slot = KvSlot { group: index, layer };
                if plan.kv_device(slot) != device {
                    return Ok(Region::dry_run(0));
                }
                let what = "the KV pages; a smaller context needs less".to_string();
                let (bytes, layer) = (page_bytes(plan, index), plan.kv_layer(slot));
                allocate(&Allocation { kind: AllocationKind::Kv, what, bytes, layer })
            });
            pages.push(layers.collect::<Result<Vec<Region>, DeviceError>>()?);
        }
        let entries = plan.options.context.div_ceil(PAGE_TOKENS);
        let table = |group| (group * plan.options.sequences * entries) as u32;
        Ok(Resources {
            arenas,
            operand,
            metas,
            handed,
            finished,
            partials,
            arrivals,
            chain,
            pages,
            tables: (0..plan.graph.kv_groups.len()).map(table).collect(),
            entries: entries as u32,
        })
    }

    /// Where a gate leaves fragments while it reads some itself: in the second halves of both buffers. Fragments of
    /// [`MOST_GATE_ROWS`] rows fill a quarter of them at most.
    pub fn gate_fragments(&self) -> (Region, Region) {
        let second = |region: Region| region.slice(region.size / 2, region.size / 2);
        (second(self.operand), second(self.metas))
    }
}

/// Bytes of a layer's KV pages.
pub(crate) fn page_bytes(plan: &Plan, group: usize) -> u64 {
    (plan.kv_pages[group] * PAGE_TOKENS * plan.graph.kv_groups[group].token_bytes()) as u64
}

/// Bytes of the buffers in [`Resources`] that the plan does not place.
struct Scratch {
    operand: u64,
    metas: u64,
    handed: (u64, u64),
    partials: u64,
    arrivals: u64,
    chain: u64,
}

impl Scratch {
    fn of(plan: &Plan, device: DeviceId, limits: &Limits) -> Scratch {
        let options = &plan.options;
        let mine = |op: &usize| plan.runs_on(*op, device);
        let ops = || (0..plan.ops.len()).filter(mine).map(|op| &plan.ops[op]);
        let widest = ops()
            .filter_map(|op| match &op.kernel {
                Kernel::Project(project) => Some(plan.graph.tensor(project.input).width),
                _ => None,
            })
            .max()
            .unwrap_or(0) as u64;
        // Tiles read whole tiles of rows, and fragments come in fours; refined rows are two.
        const { assert!(4 * MOST_GATE_ROWS <= 64, "fragments of a gate fill a quarter") };
        let rows = (options.max_rows.max(2 * options.max_logit_rows) as u64).next_multiple_of(64);
        let widest = widest.next_multiple_of(128);
        let attention = ops().filter_map(|op| attention_of(plan, op));
        let partials = attention.flat_map(|spec| {
            let most = bucket(options.max_rows).unwrap_or(options.max_rows);
            BUCKETS.into_iter().filter(move |&rows| rows <= most).map(move |rows| {
                let cut = attention::choose(limits, options, rows as u32, &spec);
                (rows * cut.splits as usize * spec.heads * (spec.head_dim + 2)) as u64
            })
        });
        let heads = ops().filter_map(|op| attention_of(plan, op)).map(|spec| spec.heads);
        Scratch {
            operand: 4 * rows * widest,
            metas: 8 * rows * widest.div_ceil(32),
            handed: (widest, 8 * widest.div_ceil(32)),
            partials: 4 * partials.max().unwrap_or(0),
            arrivals: 4 * (options.max_rows * heads.max().unwrap_or(0)) as u64,
            chain: ChainedProgram::most_bytes(ops().count()),
        }
    }
}

/// The attention that a kernel computes, fused or not.
fn attention_of(plan: &Plan, op: &PlanOp) -> Option<AttentionSpec> {
    match &op.kernel {
        Kernel::Attend(attend) => Some(attend.spec),
        Kernel::Single(node) => match plan.graph.nodes[*node].op {
            Op::Attention(spec) => Some(spec),
            _ => None,
        },
        Kernel::Project(_) => None,
    }
}
