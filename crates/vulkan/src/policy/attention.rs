//! How attention is cut.

use super::Limits;

/// Query heads that one workgroup serves: the largest divisor of the heads that share a key head
/// which registers and shared memory bear. A large card has nothing better to do in a play of few
/// rows than to give each head a workgroup of its own; what they read twice comes from its caches.
pub(crate) fn heads(limits: &Limits, rows: u32, queries_a_key: u32) -> u32 {
    let most = if early(limits, rows) { 1 } else { 4 };
    (1..=most).rev().find(|&heads| queries_a_key.is_multiple_of(heads)).unwrap_or(1)
}

/// Whether values are fetched before the scores are known. A play of few rows on a large card waits
/// for memory more than for anything else, and has registers to spare.
pub(crate) fn early(limits: &Limits, rows: u32) -> bool {
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
pub(crate) fn splits(limits: &Limits, rows: u32, groups: u32, pages: u32) -> u32 {
    let wanted = SURPLUS * limits.parallelism / (rows * groups * WORKGROUP).max(1);
    let most = wanted.max(MOST_SPLITS / rows).clamp(1, MOST_SPLITS);
    (1 << most.ilog2()).min(pages.max(1))
}

/// Fewest pages of a part: a second page costs less than another workgroup, which forms its queries
/// anew and whose result has to be combined, unless workgroups are few.
pub(crate) fn least_pages(rows: u32) -> u32 {
    if rows == 1 { 1 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(parallelism: u32) -> Limits {
        Limits { subgroup: 32, parallelism, shared_memory: 1 << 15, matrices: 0, fragments: None }
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
