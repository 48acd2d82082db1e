//! Where buffers are mapped, in a table without a lock.

use std::sync::atomic::{AtomicUsize, Ordering};

/// More buffers than a driver maps at once; what is beyond is not forgotten when it is unmapped.
const SLOTS: usize = 16384;

/// Addresses of mappings; zero where a slot is free.
static STARTS: [AtomicUsize; SLOTS] = [const { AtomicUsize::new(0) }; SLOTS];
/// Slots that were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Notes a mapping.
pub(crate) fn add(start: usize) {
    for (index, slot) in STARTS.iter().enumerate() {
        if slot.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            USED.fetch_max(index + 1, Ordering::AcqRel);
            return;
        }
    }
}

/// Forgets the mappings that start in a range, and says whether there were any.
pub(crate) fn remove(address: usize, length: usize) -> bool {
    let range = address..address.saturating_add(length.max(1));
    let mut found = false;
    for slot in &STARTS[..USED.load(Ordering::Acquire)] {
        let start = slot.load(Ordering::Acquire);
        if start != 0 && range.contains(&start) {
            found |= slot.compare_exchange(start, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        }
    }
    found
}
