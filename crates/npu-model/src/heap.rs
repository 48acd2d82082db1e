//! Where DEV buffers lie in the heap.

use std::sync::{Arc, Mutex, PoisonError};

use crate::config::{DEV_ALIGNMENT, HEAP_SIZE};
use crate::errno::Errno;

/// Taken ranges of the heap, sorted by start.
#[derive(Default)]
pub(crate) struct Heap {
    taken: Mutex<Vec<(u64, u64)>>,
}

/// A range of the heap, given back when dropped.
pub(crate) struct HeapRange {
    heap: Arc<Heap>,
    /// Bytes from the heap's start.
    pub(crate) start: u64,
}

impl Heap {
    /// The smallest gap that takes `size` bytes at the device's alignment, as the kernel chooses.
    pub(crate) fn take(self: &Arc<Heap>, size: u64) -> Result<HeapRange, Errno> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut best: Option<(u64, u64)> = None;
        let mut free_from = 0u64;
        for (start, end) in taken.iter().copied().chain([(HEAP_SIZE, HEAP_SIZE)]) {
            let aligned = free_from.next_multiple_of(DEV_ALIGNMENT);
            if aligned + size <= start && best.is_none_or(|(_, gap)| start - free_from < gap) {
                best = Some((aligned, start - free_from));
            }
            free_from = end;
        }
        let (start, _) = best.ok_or(Errno::ENOSPC)?;
        taken.push((start, start + size));
        taken.sort_unstable();
        Ok(HeapRange { heap: self.clone(), start })
    }
}

impl Drop for HeapRange {
    fn drop(&mut self) {
        let mut taken = self.heap.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|(start, _)| *start != self.start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_aligned_and_come_back() {
        let heap = Arc::new(Heap::default());
        let first = heap.take(4096).unwrap();
        let second = heap.take(4096).unwrap();
        assert_eq!((first.start, second.start), (0, DEV_ALIGNMENT));
        assert!(matches!(heap.take(HEAP_SIZE), Err(Errno::ENOSPC)));
        drop(first);
        assert_eq!(heap.take(8192).unwrap().start, 0, "the smallest gap that fits");
        drop(second);
        assert_eq!(heap.take(HEAP_SIZE).unwrap().start, 0);
    }
}
