//! Hazards: which kernels must see another's writes, found from byte ranges.

/// Memory that kernels share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    /// The arena.
    Arena,
    /// Pages of a KV group; the range counts layers.
    Kv(usize),
}

/// Bytes (or layers) `start..end` of a space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// Which memory.
    pub space: Space,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Range {
    fn overlaps(&self, other: &Range) -> bool {
        self.space == other.space && self.start < other.end && other.start < self.end
    }
}

/// What one kernel reads and writes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// Ranges read.
    pub reads: Vec<Range>,
    /// Ranges written.
    pub writes: Vec<Range>,
}

impl Access {
    fn conflicts(&self, earlier: &Access) -> bool {
        let clash = |a: &[Range], b: &[Range]| a.iter().any(|x| b.iter().any(|y| x.overlaps(y)));
        clash(&self.reads, &earlier.writes)
            || clash(&self.writes, &earlier.reads)
            || clash(&self.writes, &earlier.writes)
    }
}

/// For each kernel, whether it needs a barrier before it: since the last barrier a range that it
/// accesses was accessed, and one of the two accesses writes.
pub fn barriers(accesses: &[Access]) -> Vec<bool> {
    let mut open = 0;
    let mut result = Vec::with_capacity(accesses.len());
    for (index, access) in accesses.iter().enumerate() {
        let needed = accesses[open..index].iter().any(|earlier| access.conflicts(earlier));
        if needed {
            open = index;
        }
        result.push(needed);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(reads: &[(usize, usize)], writes: &[(usize, usize)]) -> Access {
        let ranges = |list: &[(usize, usize)]| {
            list.iter().map(|&(start, end)| Range { space: Space::Arena, start, end }).collect()
        };
        Access { reads: ranges(reads), writes: ranges(writes) }
    }

    #[test]
    fn only_real_hazards_get_a_barrier() {
        let list = [
            access(&[], &[(0, 10)]),
            access(&[], &[(10, 20)]),
            access(&[(5, 15)], &[(20, 30)]),
            access(&[(0, 5)], &[(30, 40)]),
            access(&[], &[(0, 1)]),
        ];
        assert_eq!(barriers(&list), [false, false, true, false, true]);
    }

    #[test]
    fn spaces_are_apart() {
        let mut kv = access(&[(0, 10)], &[]);
        kv.reads[0].space = Space::Kv(0);
        assert_eq!(barriers(&[access(&[], &[(0, 10)]), kv]), [false, false]);
    }
}
