//! The five system calls that the driver makes, behind a trait: the kernel's, or a model of the
//! device that lives in the process.

use std::ffi::{CStr, c_void};
use std::os::fd::RawFd;
use std::ptr::NonNull;

/// A number of `errno`.
pub type Errno = i32;

/// System calls. The driver makes no others on a device.
///
/// [`SystemCalls`] goes through the C library, so that a preloaded library sees `open`, `ioctl`,
/// `mmap`, `munmap` and `close`. A device model in the process implements the trait itself; the
/// descriptors it hands out need not be real.
#[allow(unsafe_code)]
pub trait Calls: Send + Sync {
    /// Opens a device node for reading and writing.
    fn open(&self, path: &CStr) -> Result<RawFd, Errno>;

    /// Closes a descriptor that [`Calls::open`] or a request returned. Errors are of no use here.
    fn close(&self, fd: RawFd);

    /// Makes a request. An interrupted one (`EINTR`) is made again.
    ///
    /// # Safety
    /// `argument` must point to the structure that `request` takes, writable, and every address
    /// and length inside it must describe memory that is valid for what the request does with it.
    unsafe fn ioctl(&self, fd: RawFd, request: u64, argument: *mut c_void) -> Result<(), Errno>;

    /// Maps `length` bytes of `fd` at `offset`, readable, writable and shared, at an address that
    /// is a multiple of `alignment` (a power of two, at least a page).
    ///
    /// # Safety
    /// `offset` must be one that the driver gave for a buffer of at least `length` bytes. What is
    /// returned is valid for `length` bytes until it is unmapped.
    unsafe fn mmap(
        &self,
        fd: RawFd,
        offset: u64,
        length: usize,
        alignment: usize,
    ) -> Result<NonNull<u8>, Errno>;

    /// Ends a mapping.
    ///
    /// # Safety
    /// `address` and `length` must be of a mapping made by [`Calls::mmap`], whole and not used
    /// afterwards.
    unsafe fn munmap(&self, address: NonNull<u8>, length: usize);
}

/// The kernel's own calls, by way of the C library.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemCalls;

/// The smallest page of the processors that have this device.
const PAGE: usize = 4096;

fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

#[allow(unsafe_code)]
impl Calls for SystemCalls {
    fn open(&self, path: &CStr) -> Result<RawFd, Errno> {
        // SAFETY: `path` ends in a zero; no mode is needed, because nothing is created.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if fd < 0 { Err(last_errno()) } else { Ok(fd) }
    }

    fn close(&self, fd: RawFd) {
        // SAFETY: a plain call; whoever closes a descriptor owns it.
        unsafe { libc::close(fd) };
    }

    unsafe fn ioctl(&self, fd: RawFd, request: u64, argument: *mut c_void) -> Result<(), Errno> {
        loop {
            // SAFETY: the caller vouches for `argument`.
            if unsafe { libc::ioctl(fd, request as _, argument) } >= 0 {
                return Ok(());
            }
            // `EAGAIN` is an answer of this driver's, not a reason to repeat.
            match last_errno() {
                libc::EINTR => {}
                errno => return Err(errno),
            }
        }
    }

    unsafe fn mmap(
        &self,
        fd: RawFd,
        offset: u64,
        length: usize,
        alignment: usize,
    ) -> Result<NonNull<u8>, Errno> {
        let offset = libc::off_t::try_from(offset).map_err(|_| libc::EOVERFLOW)?;
        if alignment <= PAGE {
            // SAFETY: the kernel chooses an address that is free.
            return unsafe { map_at(std::ptr::null_mut(), length, Some((fd, offset))) };
        }
        // Address space for the mapping and the room to move it in; the mapping replaces a part
        // of the reservation, and what is left on either side is given back.
        let room = length.checked_add(alignment).ok_or(libc::EINVAL)?;
        // SAFETY: the kernel chooses an address that is free.
        let reserved = unsafe { map_at(std::ptr::null_mut(), room, None) }?;
        let start = reserved.as_ptr() as usize;
        let head = start.next_multiple_of(alignment) - start;
        // SAFETY: `head <= alignment`, so the target lies in the reservation, which nothing uses.
        let mapped = unsafe {
            let target = reserved.as_ptr().add(head);
            map_at(target.cast(), length, Some((fd, offset)))
        };
        match mapped {
            Ok(mapped) => {
                // SAFETY: head and tail are what is left of the reservation.
                unsafe {
                    release(reserved.as_ptr(), head);
                    release(mapped.as_ptr().add(length), room - head - length);
                }
                Ok(mapped)
            }
            Err(errno) => {
                // SAFETY: the reservation is whole and unused.
                unsafe { release(reserved.as_ptr(), room) };
                Err(errno)
            }
        }
    }

    unsafe fn munmap(&self, address: NonNull<u8>, length: usize) {
        // SAFETY: the caller hands over a whole mapping.
        unsafe { release(address.as_ptr(), length) };
    }
}

/// Maps a device's memory, or reserves address space where there is no `source`.
///
/// # Safety
/// `target` is null, or `length` bytes there are mapped already and may be replaced.
#[allow(unsafe_code)]
unsafe fn map_at(
    target: *mut c_void,
    length: usize,
    source: Option<(RawFd, libc::off_t)>,
) -> Result<NonNull<u8>, Errno> {
    let fixed = if target.is_null() { 0 } else { libc::MAP_FIXED };
    let (protection, flags, fd, offset) = match source {
        Some((fd, offset)) => {
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | fixed, fd, offset)
        }
        None => {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            (libc::PROT_NONE, flags, -1, 0)
        }
    };
    // SAFETY: as promised by the caller.
    let address = unsafe { libc::mmap(target, length, protection, flags, fd, offset) };
    if address == libc::MAP_FAILED {
        return Err(last_errno());
    }
    NonNull::new(address.cast()).ok_or(libc::EFAULT)
}

/// # Safety
/// Nothing uses the range any more.
#[allow(unsafe_code)]
unsafe fn release(address: *mut u8, length: usize) {
    if length > 0 {
        // SAFETY: as promised by the caller.
        unsafe { libc::munmap(address.cast(), length) };
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;

    /// A file that can be mapped like a device; removed when dropped.
    struct MappedFile(std::path::PathBuf);

    impl MappedFile {
        fn new(length: usize) -> MappedFile {
            let path = std::env::temp_dir().join(format!("npu-calls-{}", std::process::id()));
            std::fs::File::create(&path).unwrap().set_len(length as u64).unwrap();
            MappedFile(path)
        }
    }

    impl Drop for MappedFile {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn the_heap_is_mapped_at_its_alignment() {
        const LENGTH: usize = 64 << 20;
        let file = MappedFile::new(LENGTH + PAGE);
        let path = std::ffi::CString::new(file.0.to_str().unwrap()).unwrap();
        let calls = SystemCalls;
        let fd = calls.open(&path).unwrap();
        // SAFETY: the file has a page and `LENGTH` bytes; each mapping is ended below.
        let (heap, page) = unsafe {
            let heap = calls.mmap(fd, PAGE as u64, LENGTH, LENGTH).unwrap();
            (heap, calls.mmap(fd, PAGE as u64, PAGE, PAGE).unwrap())
        };
        assert_eq!(heap.as_ptr() as usize % LENGTH, 0);
        // SAFETY: both mappings are of these pages; the last byte is inside the heap.
        unsafe {
            heap.as_ptr().add(LENGTH - 1).write(5);
            heap.as_ptr().add(7).write(9);
            assert_eq!(page.as_ptr().add(7).read(), 9, "the mapping is shared");
            calls.munmap(page, PAGE);
            calls.munmap(heap, LENGTH);
        }
        let mut argument = 0_u64;
        // SAFETY: a request that no file knows; the argument is writable.
        let refused = unsafe { calls.ioctl(fd, 0xC010_6447, (&raw mut argument).cast()) };
        assert_eq!(refused, Err(libc::ENOTTY));
        calls.close(fd);
        assert_eq!(calls.open(c"/dev/accel/accel-none"), Err(libc::ENOENT));
    }
}
