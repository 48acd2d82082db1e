//! Memory that kernels share, and how much of it the plan does not place.

use crate::memory::Region;
use crate::policy::{Limits, attention};
use pianola_plan::{BUCKETS, DeviceKind, Kernel, Op, PAGE_TOKENS, Plan};

/// Device memory that kernels share.
pub(crate) struct Resources {
    pub arena: Region,
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
    /// Pages of each layer: `[group][layer]`.
    pub pages: Vec<Vec<Region>>,
    /// First entry of each group in the page tables, and entries a sequence.
    pub tables: Vec<u32>,
    pub entries: u32,
}

/// Bytes of the buffers in [`Resources`] that the plan does not place.
pub(crate) struct Scratch {
    pub operand: u64,
    pub metas: u64,
    pub handed: (u64, u64),
    pub partials: u64,
    pub arrivals: u64,
}

impl Scratch {
    pub fn of(plan: &Plan, limits: &Limits) -> Scratch {
        let options = &plan.options;
        let ops = || plan.ops.iter().filter(|op| op.device == DeviceKind::Vulkan);
        let widest = ops()
            .filter_map(|op| match &op.kernel {
                Kernel::Project(project) => Some(plan.graph.tensor(project.input).width),
                _ => None,
            })
            .max()
            .unwrap_or(0) as u64;
        // Tiles read whole tiles of rows, and fragments come in fours; refined rows are two.
        let rows = (options.max_rows.max(2 * options.max_logit_rows) as u64).next_multiple_of(64);
        let widest = widest.next_multiple_of(128);
        let pages = options.context.div_ceil(PAGE_TOKENS) as u32;
        let attention = || {
            ops().filter_map(|op| match &op.kernel {
                Kernel::Attend(attend) => Some(attend.spec),
                Kernel::Single(node) => match plan.graph.nodes[*node].op {
                    Op::Attention(spec) => Some(spec),
                    _ => None,
                },
                Kernel::Project(_) => None,
            })
        };
        let partials = attention().flat_map(|spec| {
            BUCKETS.map(|rows| {
                let rows = rows as u32;
                let queries = attention::heads(limits, rows, (spec.heads / spec.kv_heads) as u32);
                let groups = spec.heads as u32 / queries;
                u64::from(rows * attention::splits(limits, rows, groups, pages))
                    * (spec.heads * (spec.head_dim + 2)) as u64
            })
        });
        let heads = attention().map(|spec| spec.heads);
        Scratch {
            operand: 4 * rows * widest,
            metas: 8 * rows * widest.div_ceil(32),
            handed: (widest, 8 * widest.div_ceil(32)),
            partials: 4 * partials.max().unwrap_or(0),
            arrivals: 4 * (options.max_rows * heads.max().unwrap_or(0)) as u64,
        }
    }
}
