//! How attention is cut.

/// Query heads that one workgroup serves: the largest divisor of the heads that share a key head
/// which registers and shared memory bear.
pub(crate) fn heads(queries_a_key: u32) -> u32 {
    (1..=4).rev().find(|&heads| queries_a_key.is_multiple_of(heads)).unwrap_or(1)
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
        for group in 1..20 {
            assert_eq!(group % heads(group), 0);
        }
        assert_eq!(heads(8), 4);
        assert_eq!(heads(6), 3);
    }

    #[test]
    fn short_contexts_are_not_cut() {
        assert_eq!(splits(1, 1), 1);
        assert_eq!(splits(512, 100), 1);
        assert_eq!(splits(1, 1000), 32);
    }
}
