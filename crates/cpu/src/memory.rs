//! Zeroed memory that several workers may write at once.

use memmap2::{MmapMut, MmapOptions};

/// A block of bytes, zeroed and page-aligned, on huge pages where the kernel grants them: weights
/// are read end to end for every token, and with 4 KiB pages the walks of the page table show.
/// Pages that nobody touches cost nothing.
pub(crate) struct Memory {
    map: MmapMut,
    start: *mut u8,
}

impl Memory {
    /// `None` if the system has not that much.
    pub fn zeroed(bytes: usize) -> Option<Memory> {
        let mut map = MmapOptions::new().len(bytes.max(64)).map_anon().ok()?;
        #[cfg(target_os = "linux")]
        {
            // A kernel without huge pages refuses; ordinary ones serve as well, only slower.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        let start = map.as_mut_ptr();
        Some(Memory { map, start })
    }

    /// First byte. Writing through it is up to callers, who divide the block among themselves.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Size of the block.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// The bytes, while nobody else writes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

// SAFETY: plain bytes, owned; `start` points into `map`, which does not move its bytes. Whoever
// writes through `start` divides the block so that no two workers write, or one reads while
// another writes, the same bytes.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}
