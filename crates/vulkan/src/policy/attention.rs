//! How attention is cut.

use super::{Limits, REPRODUCIBLE_ROWS};
use pianola_plan::{AttentionSpec, PAGE_TOKENS, PlanOptions};

/// How the attention of a play is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AttentionCut {
    /// Query heads that one workgroup serves.
    pub heads: u32,
    /// Parts that the visible pages of a row are cut into, at most.
    pub splits: u32,
    /// Fewest pages of a part.
    pub least_pages: u32,
    /// Whether values are fetched before the scores are known.
    pub early: bool,
}

/// The cut for a play of `rows` rows. Where results must be reproducible, neither the rows nor the
/// context have a say, so that a row's parts depend on its own position only.
pub(crate) fn choose(
    limits: &Limits,
    options: &PlanOptions,
    rows: u32,
    spec: &AttentionSpec,
) -> AttentionCut {
    let (rows, pages) = match options.reproducible {
        true => (REPRODUCIBLE_ROWS, u32::MAX),
        false => (rows, options.context.div_ceil(PAGE_TOKENS) as u32),
    };
    let heads = heads(limits, rows, (spec.heads / spec.kv_heads) as u32);
    AttentionCut {
        heads,
        splits: splits(limits, rows, spec.heads as u32 / heads, pages),
        least_pages: least_pages(rows),
        early: early(limits, rows),
    }
}

/// Query heads that one workgroup serves: the largest divisor of the heads that share a key head
/// which registers and shared memory bear. A large card has nothing better to do in a play of few
/// rows than to give each head a workgroup of its own; what they read twice comes from its caches.
fn heads(limits: &Limits, rows: u32, queries_a_key: u32) -> u32 {
    let most = if early(limits, rows) { 1 } else { 4 };
    (1..=most).rev().find(|&heads| queries_a_key.is_multiple_of(heads)).unwrap_or(1)
}

/// Whether values are fetched before the scores are known. A play of few rows on a large card waits
/// for memory more than for anything else, and has registers to spare.
fn early(limits: &Limits, rows: u32) -> bool {
    rows <= 8 && limits.parallelism >= 1 << 16
}

/// Invocations of an attention's workgroup.
const WORKGROUP: u32 = 128;
/// Parts that are launched for each that the device runs at once.
const SURPLUS: u32 = 4;
/// Most parts of a row.
const MOST_SPLITS: u32 = 32;

/// Parts that the visible pages of a row are cut into, where a row has `groups` workgroups for each
/// part. Few rows would leave most of a GPU idle; many fill it by themselves. A part is a chain of
/// waits for memory, so that there may be several times as many as run at once.
fn splits(limits: &Limits, rows: u32, groups: u32, pages: u32) -> u32 {
    let wanted = SURPLUS * limits.parallelism / (rows * groups * WORKGROUP).max(1);
    let most = wanted.max(MOST_SPLITS / rows).clamp(1, MOST_SPLITS);
    (1 << most.ilog2()).min(pages.max(1))
}

/// Fewest pages of a part: a second page costs less than another workgroup, which forms its queries
/// anew and whose result has to be combined, unless workgroups are few.
fn least_pages(rows: u32) -> u32 {
    if rows == 1 { 1 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(parallelism: u32) -> Limits {
        Limits {
            subgroup: 32,
            parallelism,
            shared_memory: 1 << 15,
            matrices: 0,
            byte_depth: 0,
            fragments: None,
        }
    }

    #[test]
    fn heads_divide_their_group() {
        let limits = limits(1 << 14);
        for group in 1..20 {
            assert_eq!(group % heads(&limits, 1, group), 0);
        }
        assert_eq!(heads(&limits, 8, 8), 4);
        assert_eq!(heads(&limits, 8, 6), 3);
        assert_eq!(heads(&Limits { parallelism: 1 << 17, ..limits }, 1, 8), 1);
    }

    #[test]
    fn rows_are_cut_while_the_device_has_room() {
        let limits = limits(1 << 17);
        assert_eq!(splits(&limits, 1, 16, 1), 1);
        assert_eq!(splits(&limits, 1, 16, 1000), 32);
        assert_eq!(splits(&limits, 32, 16, 1000), 8);
        assert_eq!(splits(&limits, 512, 16, 1000), 1);
    }
}
