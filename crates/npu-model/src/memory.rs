//! Pages with two views: the host's, which is really mapped, and the device's.
//!
//! The NPU is not coherent with the processor's cache. The host's view stands for the cache, the
//! device's for DRAM, and only `SYNC_BO` copies between them. So what a driver forgot to flush is
//! stale on the device, and what it forgot to invalidate is stale on the host.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use crate::errno::{self, Errno};

/// Bytes of a cache line: what is flushed or evicted at once.
const LINE: usize = 64;

/// The pages of one or more buffers.
pub(crate) struct Memory {
    file: OwnedFd,
    /// The model's own mapping of `file`.
    host: *mut u8,
    size: usize,
    views: Mutex<Views>,
}

struct Views {
    device: Vec<u8>,
    /// What the host's view held when it was last synchronised: a line that differs is dirty.
    baseline: Vec<u8>,
    /// Lines that were ever synchronised. Fresh pages are zeros in the cache, so dirty.
    synced: Vec<bool>,
}

// SAFETY: `host` is a mapping that lives as long as the object, only read and written by copies of
// bytes; the views are behind a mutex.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Fresh pages of zeros.
    pub(crate) fn new(size: usize) -> Result<Arc<Memory>, Errno> {
        // SAFETY: the name is a C string; the result is checked.
        let file = unsafe { libc::memfd_create(c"npu (emulated)".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return Err(errno::last());
        }
        // SAFETY: the descriptor was just made and belongs to nobody else.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        // SAFETY: `file` is a descriptor of ours.
        if unsafe { libc::ftruncate(file.as_raw_fd(), size as libc::off_t) } != 0 {
            return Err(errno::last());
        }
        Memory::of_file(file, size)
    }

    /// The pages of a file that another device exported.
    pub(crate) fn import(file: RawFd) -> Result<Arc<Memory>, Errno> {
        let (_, _, size) = identity(file)?;
        // SAFETY: duplicating any descriptor is sound; the result is checked.
        let copy = unsafe { libc::fcntl(file, libc::F_DUPFD_CLOEXEC, 0) };
        if copy < 0 {
            return Err(errno::last());
        }
        // SAFETY: the descriptor was just made and belongs to nobody else.
        Memory::of_file(unsafe { OwnedFd::from_raw_fd(copy) }, size)
    }

    fn of_file(file: OwnedFd, size: usize) -> Result<Arc<Memory>, Errno> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let host = unsafe {
            map(std::ptr::null_mut(), size, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        }?;
        let lines = size.div_ceil(LINE);
        let views =
            Views { device: vec![0; size], baseline: vec![0; size], synced: vec![false; lines] };
        Ok(Arc::new(Memory { file, host, size, views: Mutex::new(views) }))
    }

    /// Bytes of all pages.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Whether `file` is this memory under another number.
    pub(crate) fn is(&self, file: RawFd) -> bool {
        matches!((identity(self.file.as_raw_fd()), identity(file)), (Ok(ours), Ok(theirs)) if ours == theirs)
    }

    /// Another descriptor of the same pages, for export.
    pub(crate) fn duplicate(&self, close_on_exec: bool) -> Result<RawFd, Errno> {
        let command = if close_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
        // SAFETY: duplicating a descriptor of ours is sound; the result is checked.
        let copy = unsafe { libc::fcntl(self.file.as_raw_fd(), command, 0) };
        if copy < 0 { Err(errno::last()) } else { Ok(copy) }
    }

    /// Maps the pages for the caller, as `mmap` would.
    ///
    /// # Safety
    /// With `MAP_FIXED` the caller must own the pages at `address`.
    pub(crate) unsafe fn map(
        &self,
        address: *mut u8,
        length: usize,
        protection: i32,
        flags: i32,
    ) -> Result<*mut u8, Errno> {
        // SAFETY: the caller's promise about `address` is passed on.
        unsafe { map(address, length, protection, flags, self.file.as_raw_fd(), 0) }
    }

    /// What the host sees.
    pub(crate) fn read_host(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.size);
        let mut bytes = vec![0; length];
        // SAFETY: the range was checked; the caller's threads may write at the same time, which
        // gives any mixture of old and new bytes, as it would on the machine.
        unsafe {
            std::ptr::copy_nonoverlapping(self.host.add(offset), bytes.as_mut_ptr(), length);
        }
        bytes
    }

    /// Writes what the host sees.
    pub(crate) fn write_host(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.size);
        // SAFETY: as in `read_host`.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.host.add(offset), bytes.len());
        }
    }

    /// What the device sees.
    pub(crate) fn read_device(&self, offset: usize, length: usize) -> Vec<u8> {
        self.views().device[offset..offset + length].to_vec()
    }

    /// `SYNC_BO` to the device: whole lines go from the host's view to the device's.
    pub(crate) fn flush(&self, offset: usize, length: usize) {
        let (start, end) = self.lines(offset, length);
        let bytes = self.read_host(start, end - start);
        let mut views = self.views();
        views.device[start..end].copy_from_slice(&bytes);
        views.settle(start, &bytes);
    }

    /// `SYNC_BO` from the device: whole lines go from the device's view to the host's. A dirty line is
    /// written back instead, as the cache does. Returns the number of those.
    pub(crate) fn invalidate(&self, offset: usize, length: usize) -> usize {
        let (start, end) = self.lines(offset, length);
        let mut bytes = self.read_host(start, end - start);
        let mut views = self.views();
        let mut written_back = 0;
        for line in (start..end).step_by(LINE) {
            let stop = (line + LINE).min(end);
            let host = &mut bytes[line - start..stop - start];
            if views.is_dirty(line, host) {
                written_back += 1;
                views.device[line..stop].copy_from_slice(host);
            } else {
                host.copy_from_slice(&views.device[line..stop]);
            }
        }
        views.settle(start, &bytes);
        drop(views);
        self.write_host(start, &bytes);
        written_back
    }

    /// The device writes. A line that is dirty on the host is lost: the cache evicts it over the
    /// result, at the worst moment. Returns the number of lines lost.
    pub(crate) fn store(&self, offset: usize, bytes: &[u8]) -> usize {
        let (start, end) = self.lines(offset, bytes.len());
        let host = self.read_host(start, end - start);
        let mut views = self.views();
        views.device[offset..offset + bytes.len()].copy_from_slice(bytes);
        let mut lost = 0;
        for line in (start..end).step_by(LINE) {
            let stop = (line + LINE).min(end);
            let host = &host[line - start..stop - start];
            if views.is_dirty(line, host) {
                lost += 1;
                views.device[line..stop].copy_from_slice(host);
            }
        }
        lost
    }

    fn lines(&self, offset: usize, length: usize) -> (usize, usize) {
        let start = offset / LINE * LINE;
        (start, (offset + length).div_ceil(LINE).saturating_mul(LINE).min(self.size))
    }

    fn views(&self) -> std::sync::MutexGuard<'_, Views> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Views {
    fn is_dirty(&self, line: usize, host: &[u8]) -> bool {
        !self.synced[line / LINE] || self.baseline[line..line + host.len()] != *host
    }

    fn settle(&mut self, start: usize, bytes: &[u8]) {
        self.baseline[start..start + bytes.len()].copy_from_slice(bytes);
        let lines = start / LINE..(start + bytes.len()).div_ceil(LINE);
        self.synced[lines].fill(true);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the model's own mapping, which nothing refers to any more.
        let _ = unsafe { unmap(self.host, self.size) };
    }
}

/// Device, inode and size of an open file.
fn identity(file: RawFd) -> Result<(u64, u64, usize), Errno> {
    // SAFETY: all zeros is a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is live; a bad descriptor is an error.
    if unsafe { libc::fstat(file, &mut stat) } != 0 {
        return Err(errno::last());
    }
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG || stat.st_size <= 0 {
        return Err(Errno::EINVAL);
    }
    Ok((stat.st_dev, stat.st_ino, stat.st_size as usize))
}

/// The system call itself: a preloaded library that replaces `mmap` must not be asked by the model.
///
/// # Safety
/// As `mmap`.
unsafe fn map(
    address: *mut u8,
    length: usize,
    protection: i32,
    flags: i32,
    file: RawFd,
    offset: i64,
) -> Result<*mut u8, Errno> {
    // SAFETY: the caller's promise.
    let mapped =
        unsafe { libc::syscall(libc::SYS_mmap, address, length, protection, flags, file, offset) };
    if mapped == -1 { Err(errno::last()) } else { Ok(mapped as *mut u8) }
}

/// Pages without content at a multiple of `alignment`, for a mapping to take their place.
pub(crate) fn reserve(length: usize, alignment: usize) -> Result<*mut u8, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let size = length + alignment;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let start = unsafe { map(std::ptr::null_mut(), size, libc::PROT_NONE, flags, -1, 0) }?;
    let aligned = start.wrapping_add(start.align_offset(alignment));
    let (before, after) =
        (aligned as usize - start as usize, start as usize + size - (aligned as usize + length));
    for (address, length) in [(start, before), (aligned.wrapping_add(length), after)] {
        if length > 0 {
            // SAFETY: the ends of the mapping that was just made.
            unsafe { unmap(address, length) }?;
        }
    }
    Ok(aligned)
}

/// As [`map`].
///
/// # Safety
/// As `munmap`.
pub(crate) unsafe fn unmap(address: *mut u8, length: usize) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_munmap, address, length) };
    if result == -1 { Err(errno::last()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_meet_only_when_synchronised() {
        let memory = Memory::new(4096).unwrap();
        memory.write_host(0, &[7; 128]);
        assert_eq!(memory.read_device(0, 2), [0, 0]);
        memory.flush(0, 64);
        assert_eq!(memory.read_device(0, 1), [7]);
        assert_eq!(memory.read_device(64, 1), [0], "only the first line was flushed");
        assert_eq!(memory.store(0, &[9; 64]), 0);
        assert_eq!(memory.read_host(0, 1), [7], "stale until invalidated");
        assert_eq!(memory.invalidate(0, 64), 0);
        assert_eq!(memory.read_host(0, 1), [9]);
    }

    #[test]
    fn a_dirty_line_overwrites_the_result() {
        let memory = Memory::new(4096).unwrap();
        assert_eq!(memory.store(0, &[9; 64]), 1, "fresh pages are dirty until they were flushed");
        memory.flush(0, 4096);
        assert_eq!(memory.store(0, &[9; 128]), 0);
        memory.write_host(70, &[1]);
        assert_eq!(memory.store(0, &[8; 128]), 1);
        assert_eq!(memory.read_device(63, 2), [8, 0]);
        assert_eq!(memory.invalidate(0, 128), 1);
        assert_eq!(memory.read_host(70, 1), [1]);
    }
}
