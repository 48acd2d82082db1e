//! Zeroed memory that several workers may write at once.

use memmap2::{MmapMut, MmapOptions};

/// A block of bytes, zeroed and aligned to huge pages. Large ones lie on huge pages where the kernel
/// grants them: weights are read end to end for every token, and with 4 KiB pages the page-table walks
/// cost measurable time. Untouched pages cost nothing; in small blocks, of which a short sequence uses a
/// little here and there, huge pages would cost much more than is used.
pub(crate) struct Memory {
    map: MmapMut,
    /// First aligned byte, behind up to a huge page that is never touched.
    skipped: usize,
    start: *mut u8,
}

const HUGE_PAGE: usize = 2 << 20;
/// Bytes from which on a block lies on huge pages.
#[cfg(target_os = "linux")]
const HUGE_FROM: usize = 32 << 20;

impl Memory {
    /// `None` if the system cannot grant that much.
    pub fn zeroed(bytes: usize) -> Option<Memory> {
        let mut map = MmapOptions::new().len(bytes.checked_add(HUGE_PAGE)?).map_anon().ok()?;
        #[cfg(target_os = "linux")]
        if bytes >= HUGE_FROM {
            // A kernel without huge pages refuses; ordinary pages work, only slower.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if bytes >= HUGE_FROM
            && let Some(nodes) = crate::topology::nodes()
        {
            // Workers of all nodes read all of it: by turns, no node's memory serves them alone. Where
            // that is refused, pages lie where they are packed, which is by turns, too.
            crate::system::interleave(&mut map, &nodes);
        }
        let skipped = map.as_ptr().align_offset(HUGE_PAGE);
        let start = map[skipped..].as_mut_ptr();
        Some(Memory { map, skipped, start })
    }

    /// First byte. Callers that write through it divide the block among themselves.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Size of the block.
    pub fn len(&self) -> usize {
        self.map.len() - self.skipped
    }

    /// The bytes; no worker may be writing.
    pub fn bytes(&self) -> &[u8] {
        &self.map[self.skipped..]
    }

    /// The bytes, to be written; no worker may be using them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.skipped..]
    }
}

// SAFETY: plain bytes, owned; `start` points into `map`, which does not move its bytes. Whoever
// writes through `start` divides the block so that no two workers write, or one reads while
// another writes, the same bytes.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}
