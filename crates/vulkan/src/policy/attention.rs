//! How attention is cut.

use super::Limits;

/// Query heads that one workgroup serves: the largest divisor of the heads that share a key head
/// which registers and shared memory bear. A large card has nothing better to do in a play of one
/// row than to give each head a workgroup of its own; what they read twice comes from its caches.
pub(crate) fn heads(limits: &Limits, rows: u32, queries_a_key: u32) -> u32 {
    let most = if rows == 1 && limits.parallelism >= 1 << 16 { 1 } else { 4 };
    (1..=most).rev().find(|&heads| queries_a_key.is_multiple_of(heads)).unwrap_or(1)
}

/// Whether values are fetched before the scores are known. A play of one row on a large card waits
/// for memory more than for anything else, and has registers to spare.
pub(crate) fn early(limits: &Limits, rows: u32) -> bool {
    rows == 1 && limits.parallelism >= 1 << 16
}

/// Parts that the visible pages of a row are cut into. One row alone would leave most of a GPU
/// idle; many rows fill it by themselves.
pub(crate) fn splits(rows: u32, pages: u32) -> u32 {
    let most: u32 = match rows {
        1 => 32,
        2..=8 => 8,
        _ => 1,
    };
    most.min(pages.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_divide_their_group() {
        let limits =
            Limits { subgroup: 32, parallelism: 1 << 14, shared_memory: 1 << 15, matrices: 0 };
        for group in 1..20 {
            assert_eq!(group % heads(&limits, 1, group), 0);
        }
        assert_eq!(heads(&limits, 8, 8), 4);
        assert_eq!(heads(&limits, 8, 6), 3);
        assert_eq!(heads(&Limits { parallelism: 1 << 17, ..limits }, 1, 8), 1);
    }

    #[test]
    fn short_contexts_are_not_cut() {
        assert_eq!(splits(1, 1), 1);
        assert_eq!(splits(512, 100), 1);
        assert_eq!(splits(1, 1000), 32);
    }
}
