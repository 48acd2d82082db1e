//! How attention is cut.

use super::{Limits, REPRODUCIBLE_ROWS, single};
use pianola_plan::{AttentionSpec, KvType, PAGE_TOKENS, PlanOptions};

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

/// How `AttentionSingle` cuts the attention of rows, each of another sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SingleCut {
    /// Invocations of a workgroup.
    pub workgroup: u32,
    /// Parts that the visible pages of a row are cut into, at most.
    pub splits: u32,
    /// Fewest pages of a part.
    pub least_pages: u32,
}

/// Subgroups of a workgroup of `AttentionSingle`: as many as hide the waits of a single row, and fewer
/// where other rows do.
fn subgroups(rows: u32) -> u32 {
    if rows == 1 { 8 } else { 4 }
}
/// Vectors of keys that an invocation fetches at once, as in the kernel.
const AT_ONCE: u32 = 8;
/// Most rows that it is used for.
const MOST_SINGLE_ROWS: u32 = 64;

/// The cut of the attention of rows of different sequences where `AttentionSingle` computes it: a head's
/// values must be a power of two vectors of 16 bytes.
pub(crate) fn choose_single(
    limits: &Limits,
    options: &PlanOptions,
    rows: u32,
    (spec, ty): (&AttentionSpec, KvType),
) -> Option<SingleCut> {
    let vectors = (spec.head_dim * ty.bytes() / 16) as u32;
    let counted = single::applies(limits) && !options.reproducible;
    if rows > MOST_SINGLE_ROWS || !counted || !vectors.is_power_of_two() {
        return None;
    }
    // Tokens that the subgroups have under way at once.
    let chunk = (AT_ONCE * limits.subgroup / vectors).clamp(1, limits.subgroup);
    let AttentionCut { splits, .. } = choose(limits, options, rows, spec);
    let subgroups = subgroups(rows);
    // Parts of other rows fill the device; as was measured, about a page for each of them.
    let least_pages = match rows {
        1 => (subgroups * chunk).div_ceil(PAGE_TOKENS as u32),
        _ => rows.clamp(2, 16),
    };
    Some(SingleCut { workgroup: subgroups * limits.subgroup, splits, least_pages })
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
    use pianola_plan::{KvSlot, Numeric};

    fn limits(parallelism: u32) -> Limits {
        let (shared_memory, matrices, fragments) = (1 << 15, 0, None);
        Limits {
            subgroup: 32,
            parallelism,
            units: 0,
            byte_depth: 0,
            shared_memory,
            matrices,
            fragments,
        }
    }

    #[test]
    fn single_rows_have_a_kernel_where_units_are_counted_and_vectors_are_a_power_of_two() {
        let options = PlanOptions {
            numeric: Numeric::Fast,
            kv_type: None,
            max_rows: 512,
            max_logit_rows: 1,
            context: 4096,
            sequences: 1,
            kv_bytes: None,
            fusion: true,
            reproducible: false,
        };
        let card = Limits { units: 132, ..limits(1 << 17) };
        let chosen = |limits: &Limits, options: &PlanOptions, rows, head_dim| {
            let (kv, window, soft_cap) = (KvSlot { group: 0, layer: 0 }, None, None);
            let (heads, kv_heads, scale) = (32, 16, 1.0);
            let spec = AttentionSpec { kv, heads, kv_heads, head_dim, scale, window, soft_cap };
            choose_single(limits, options, rows, (&spec, KvType::F16))
        };
        let cut = |least_pages| Some(SingleCut { workgroup: 256, splits: 32, least_pages });
        assert_eq!(chosen(&card, &options, 1, 128), cut(2));
        assert_eq!(chosen(&card, &options, 1, 256), cut(1));
        assert_eq!(chosen(&card, &options, 1, 96), None);
        // Of several rows, parts have about as many pages, and workgroups are half as large.
        let lanes = |rows| chosen(&card, &options, rows, 128);
        let pages = |rows| lanes(rows).map(|cut| (cut.workgroup, cut.least_pages));
        assert_eq!(
            [pages(2), pages(8), pages(32)],
            [Some((128, 2)), Some((128, 8)), Some((128, 16))]
        );
        assert_eq!(lanes(65), None);
        assert_eq!(chosen(&limits(1 << 17), &options, 1, 128), None);
        let reproducible = PlanOptions { reproducible: true, ..options };
        assert_eq!(chosen(&card, &reproducible, 1, 128), None);
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
