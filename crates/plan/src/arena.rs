//! Arena: a byte offset for every buffer, so that nothing is allocated while playing.

/// Offsets of all buffers in one block of memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Arena {
    /// Offset of each buffer.
    pub offsets: Vec<usize>,
    /// Size of the block.
    pub bytes: usize,
}

/// Whole cache lines and vectors, and the coarsest offset at which a GPU may bind a buffer.
const ALIGNMENT: usize = 256;

/// A buffer's size and the kernels between which it is alive, both ends included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetime {
    pub bytes: usize,
    pub first: usize,
    pub last: usize,
}

impl Arena {
    /// Gives buffers that are never alive together the same bytes: each takes the lowest gap
    /// that is free for its whole lifetime, larger buffers first.
    pub(crate) fn assign(lifetimes: &[Lifetime]) -> Arena {
        let mut order: Vec<usize> = (0..lifetimes.len()).collect();
        order.sort_by_key(|&index| (std::cmp::Reverse(lifetimes[index].bytes), index));
        let mut offsets = vec![0; lifetimes.len()];
        let mut placed: Vec<usize> = Vec::new();
        let mut bytes = 0;
        for index in order {
            let buffer = lifetimes[index];
            let mut neighbours: Vec<(usize, usize)> = placed
                .iter()
                .filter(|&&other| {
                    lifetimes[other].first <= buffer.last && buffer.first <= lifetimes[other].last
                })
                .map(|&other| (offsets[other], offsets[other] + lifetimes[other].bytes))
                .collect();
            neighbours.sort_unstable();
            let mut offset: usize = 0;
            for (start, end) in neighbours {
                if offset + buffer.bytes <= start {
                    break;
                }
                offset = offset.max(end.next_multiple_of(ALIGNMENT));
            }
            offsets[index] = offset;
            bytes = bytes.max(offset + buffer.bytes);
            placed.push(index);
        }
        Arena { offsets, bytes: bytes.next_multiple_of(ALIGNMENT) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buffers_alive_together_never_overlap(
            spec in proptest::collection::vec((1usize..5000, 0usize..40, 0usize..10), 1..60)
        ) {
            let lifetimes: Vec<Lifetime> = spec
                .iter()
                .map(|&(bytes, first, length)| Lifetime { bytes, first, last: first + length })
                .collect();
            let arena = Arena::assign(&lifetimes);
            for (a, left) in lifetimes.iter().enumerate() {
                prop_assert_eq!(arena.offsets[a] % ALIGNMENT, 0);
                prop_assert!(arena.offsets[a] + left.bytes <= arena.bytes);
                for (b, right) in lifetimes.iter().enumerate().skip(a + 1) {
                    let alive = left.first <= right.last && right.first <= left.last;
                    let apart = arena.offsets[a] + left.bytes <= arena.offsets[b]
                        || arena.offsets[b] + right.bytes <= arena.offsets[a];
                    prop_assert!(!alive || apart);
                }
            }
        }
    }

    #[test]
    fn a_chain_needs_two_buffers() {
        let lifetimes: Vec<Lifetime> =
            (0..50).map(|op| Lifetime { bytes: 1000, first: op, last: op + 1 }).collect();
        assert!(Arena::assign(&lifetimes).bytes <= 2 * 1024);
    }
}
