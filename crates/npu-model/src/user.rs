//! The caller's memory, read and written as the kernel does: a bad address is `EFAULT`, not a crash.
#![allow(unsafe_code)]

use crate::errno::{self, Errno};

/// Copies `length` bytes from the caller's `address`.
///
/// The addresses of this process are reached through `process_vm_readv`, which reports a bad one.
pub(crate) fn read(address: u64, length: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0u8; length];
    if length == 0 {
        return Ok(bytes);
    }
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: length };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: length };
    // SAFETY: `local` is a live buffer of `length` bytes; the kernel checks `remote` itself.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    check(copied, length)?;
    Ok(bytes)
}

/// Copies `bytes` to the caller's `address`.
pub(crate) fn write(address: u64, bytes: &[u8]) -> Result<(), Errno> {
    if bytes.is_empty() {
        return Ok(());
    }
    let local = libc::iovec { iov_base: bytes.as_ptr() as *mut libc::c_void, iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: `local` is only read; the kernel checks `remote` itself. That the caller's memory may
    // be overwritten is what the caller promises to `Model::ioctl`.
    let copied = unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) };
    check(copied, bytes.len())
}

/// Whether a number is an open file of this process.
pub(crate) fn is_open(file: i32) -> bool {
    // SAFETY: reading the flags of any number changes nothing.
    unsafe { libc::fcntl(file, libc::F_GETFD) != -1 }
}

/// The clock that absolute time limits of the kernel are on, in nanoseconds.
pub(crate) fn monotonic() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is live, and the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn check(copied: isize, length: usize) -> Result<(), Errno> {
    match copied {
        copied if copied == length as isize => Ok(()),
        -1 => Err(match errno::last() {
            Errno::EINVAL => Errno::EFAULT,
            other => other,
        }),
        _ => Err(Errno::EFAULT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_address_is_efault() {
        assert_eq!(read(0, 8), Err(Errno::EFAULT));
        assert_eq!(write(8, &[1, 2]), Err(Errno::EFAULT));
        assert_eq!(read(u64::MAX - 3, 8), Err(Errno::EFAULT));
        let value = 0x1122_3344u32;
        assert_eq!(read(&raw const value as u64, 4), Ok(value.to_le_bytes().to_vec()));
    }
}
