//! A buffer's memory in this process.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use super::calls::{Calls, Errno};

/// Memory that the processor and the device share. It is read and written by copying only: the
/// device may change it at any time, so that no reference into it could be sound.
pub(crate) struct Mapping {
    calls: Arc<dyn Calls>,
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory belongs to the mapping and not to a thread; `write` is unsafe and makes its
// caller exclude other accesses from this process.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a buffer of which the driver gave `offset`.
    pub(crate) fn new(
        calls: &Arc<dyn Calls>,
        fd: RawFd,
        offset: u64,
        length: usize,
        alignment: usize,
    ) -> Result<Mapping, Errno> {
        // SAFETY: callers in this module pass the offset and the size that the driver gave for
        // one buffer; the mapping ends with `Drop`.
        let address = unsafe { calls.mmap(fd, offset, length, alignment) }?;
        let mapping = Mapping { calls: calls.clone(), address, length };
        // An unaligned heap is refused by the firmware with nothing but "invalid argument".
        if !(address.as_ptr() as usize).is_multiple_of(alignment) {
            return Err(libc::EINVAL);
        }
        Ok(mapping)
    }

    /// The address in this process.
    pub(crate) fn address(&self) -> u64 {
        self.address.as_ptr() as u64
    }

    /// Copies out of the memory.
    ///
    /// # Panics
    /// If the range is not inside the mapping, which is a mistake of this crate's.
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) {
        self.check(offset, out.len());
        // SAFETY: the range is inside the mapping, and `out` is memory of Rust's, thus elsewhere.
        unsafe {
            let from = self.address.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len());
        }
    }

    /// Copies into the memory.
    ///
    /// # Safety
    /// No other thread of this process reads or writes the range meanwhile.
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub(crate) unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        // SAFETY: the range is inside the mapping and, by the caller's promise, not in use; `bytes`
        // is memory of Rust's, thus elsewhere.
        unsafe {
            let to = self.address.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// Sets a range to one byte.
    ///
    /// # Safety
    /// As for [`Mapping::write`].
    ///
    /// # Panics
    /// If the range is not inside the mapping.
    pub(crate) unsafe fn fill(&self, offset: usize, length: usize, byte: u8) {
        self.check(offset, length);
        // SAFETY: as in `write`.
        unsafe { std::ptr::write_bytes(self.address.as_ptr().add(offset), byte, length) };
    }

    fn check(&self, offset: usize, length: usize) {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.length), "outside of a device buffer");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is whole, and nothing outlives it, because it is only ever copied
        // from and to.
        unsafe { self.calls.munmap(self.address, self.length) };
    }
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mapping({:p}, {} bytes)", self.address, self.length)
    }
}
