//! Buffer descriptors of the interface tiles' DMA, eight words each.
//!
//! ```text
//! word 0  length in words          word 4  wrap 29:20 and step - 1 19:0 of dimension 1
//! word 1  address, low             word 5  step - 1 19:0 of dimension 2
//! word 2  address, high 15:0       word 6  repeats - 1 25:20 and step - 1 19:0 of the iteration
//! word 3  wrap 29:20 and step - 1 19:0 of dimension 0
//! word 7  lock and chain
//! ```

/// What a descriptor reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// One past the last word that it reaches, counted from its address.
    extent_words: u64,
}

impl Descriptor {
    /// From the descriptor's words. Those that the stream does not write count as zero: no strides.
    pub(crate) fn decode(words: &[u32]) -> Descriptor {
        let word = |index: usize| words.get(index).copied().unwrap_or(0);
        let length = u64::from(word(0));
        let step = |value: u32| u64::from(value & 0xF_FFFF) + 1;
        let wrap = |value: u32| u64::from((value >> 20) & 0x3FF);
        let (inner, middle) = (wrap(word(3)), wrap(word(4)));
        // A wrap of zero: the dimension takes all that is left.
        let inner = if inner == 0 { length } else { inner.min(length) };
        let rows = length.div_ceil(inner.max(1));
        let middle = if middle == 0 { rows } else { middle.min(rows) };
        let planes = rows.div_ceil(middle.max(1));
        let repeats = u64::from((word(6) >> 20) & 0x3F);
        let last = inner.saturating_sub(1) * step(word(3))
            + middle.saturating_sub(1) * step(word(4))
            + planes.saturating_sub(1) * step(word(5))
            + repeats * step(word(6));
        Descriptor { extent_words: if length == 0 { 0 } else { last + 1 } }
    }

    /// Bytes from the descriptor's address to the end of what it reaches.
    pub(crate) fn bytes(self) -> u64 {
        4 * self.extent_words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents() {
        assert_eq!(Descriptor::decode(&[256]).bytes(), 1024);
        assert_eq!(Descriptor::decode(&[0]).bytes(), 0);
        // 16 words of each of 4 rows that are 128 words apart, twice, 1024 words apart.
        let strided = [64, 0, 0, 16 << 20, 4 << 20 | 127, 0, 1 << 20 | 1023, 0];
        assert_eq!(Descriptor::decode(&strided).bytes(), 4 * (15 + 3 * 128 + 1024 + 1));
        // The third dimension has the rest: 3 planes of 2 rows of 8 words.
        let planes = [48, 0, 0, 8 << 20, 2 << 20 | 31, 255, 0, 0];
        assert_eq!(Descriptor::decode(&planes).bytes(), 4 * (7 + 32 + 2 * 256 + 1));
        assert!(Descriptor::decode(&[u32::MAX; 8]).bytes() > 0);
    }
}
