//! Puts the model of an NPU, `npu (emulated)`, in place of a device node, for programs that know
//! nothing of it: `LD_PRELOAD=libpianola_npu_shim.so program`.
//!
//! `open`, `close`, `ioctl`, `mmap` and `munmap` of the node go to a [`Model`] in the process; all
//! other calls go on to the C library. Listing and checking the node's folder is not replaced: where a
//! program does that, let the node be a plain empty file, whose name is all that matters.
//!
//! | variable | meaning |
//! |---|---|
//! | `PIANOLA_NPU_MODEL_NODE` | the node's path, `/dev/accel/accel0` if it is not set |
//! | `PIANOLA_NPU_MODEL_KERNELS` | a file of kernel descriptions (`pianola_npu_model::parse_kernels`) |
//! | `PIANOLA_NPU_MODEL_FAULTS` | what goes wrong (`pianola_npu_model::Faults`), as `timeout@3,nan@7` |
//! | `PIANOLA_NPU_MODEL_ADDRESSES` | `user` (as not set), `implied` or `dma`: how SHARE buffers are addressed |
//! | `PIANOLA_NPU_MODEL_HANG_MS` | when the kernel gives up a command that hangs, 60000 |
//! | `PIANOLA_NPU_MODEL_LOG` | a file that gets the reasons of failures, or `stderr` |
//!
//! A variable that makes no sense ends the program with a message when the node is first opened.
//! Descriptors that were duplicated, and `poll`, are not supported.
#![allow(unsafe_code)]

mod forward;
mod mapping;
mod settings;

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use pianola_npu_model::{Errno, Model};

use settings::Settings;

/// Which descriptors are the model's, a bit each. A table without a lock: the C library and the model
/// itself call the functions below at any time, also while the model holds its lock.
static OURS: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

fn bit(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OURS.get(fd / 64)?, 1 << (fd % 64)))
}

fn is_ours(fd: c_int) -> bool {
    bit(fd).is_some_and(|(word, mask)| word.load(Ordering::Acquire) & mask != 0)
}

static DEVICE: OnceLock<Device> = OnceLock::new();

/// The device, made when the node is first opened.
struct Device {
    model: Model,
    settings: Settings,
}

impl Device {
    fn get() -> &'static Device {
        DEVICE.get_or_init(|| {
            let settings = Settings::of_environment();
            Device { model: settings.model(), settings }
        })
    }

    /// Writes down why something failed.
    fn log(&self) {
        self.settings.log(self.model.complaints());
    }
}

/// `errno` and the value that goes with it.
fn fail(errno: Errno) -> c_int {
    // SAFETY: the C library's variable of this thread.
    unsafe { *libc::__errno_location() = errno.0 };
    -1
}

fn answer(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(fail)
}

/// Opens the model if `path` is the node.
///
/// # Safety
/// `path` is a C string or null.
unsafe fn open_node(path: *const c_char) -> Option<c_int> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    if !settings::is_node(path.to_bytes()) {
        return None;
    }
    let device = Device::get();
    Some(answer(device.model.open().and_then(|fd| {
        let (word, mask) = bit(fd).ok_or(Errno(libc::EMFILE))?;
        word.fetch_or(mask, Ordering::Release);
        Ok(fd)
    })))
}

/// `open`, whose third argument only counts with some flags; reading it is harmless on this machine.
///
/// # Safety
/// As `open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's promises.
    unsafe { open_node(path).unwrap_or_else(|| (forward::next().open)(path, flags, mode)) }
}

/// `open64`.
///
/// # Safety
/// As `open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's promises.
    unsafe { open_node(path).unwrap_or_else(|| (forward::next().open64)(path, flags, mode)) }
}

/// `openat`. The node is recognised by its absolute path.
///
/// # Safety
/// As `openat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        open_node(path).unwrap_or_else(|| (forward::next().openat)(folder, path, flags, mode))
    }
}

/// `openat64`.
///
/// # Safety
/// As `openat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat64(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        open_node(path).unwrap_or_else(|| (forward::next().openat64)(folder, path, flags, mode))
    }
}

/// `close`.
///
/// # Safety
/// As `close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the caller's promises.
        return unsafe { (forward::next().close)(fd) };
    }
    if let Some((word, mask)) = bit(fd) {
        word.fetch_and(!mask, Ordering::Release);
    }
    let device = Device::get();
    device.log();
    answer(device.model.close(fd).map(|()| 0))
}

/// `ioctl`, whose third argument is a pointer in every request of the node.
///
/// # Safety
/// As `ioctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the caller's promises.
        return unsafe { (forward::next().ioctl)(fd, request, argument) };
    }
    let device = Device::get();
    // SAFETY: the caller's promises are those of the model.
    let result = unsafe { device.model.ioctl(fd, request, argument.cast()) };
    device.log();
    answer(result)
}

/// Maps a buffer, if the descriptor is the model's.
///
/// # Safety
/// As `mmap`.
unsafe fn map_node(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: c_long,
) -> *mut c_void {
    // SAFETY: the caller's promises are those of the model.
    let mapped = unsafe {
        Device::get().model.mmap(fd, address.cast(), length, protection, flags, offset as u64)
    };
    match mapped {
        Ok(mapped) => {
            mapping::add(mapped as usize);
            mapped.cast()
        }
        Err(errno) => {
            fail(errno);
            libc::MAP_FAILED
        }
    }
}

/// `mmap`.
///
/// # Safety
/// As `mmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: c_long,
) -> *mut c_void {
    // SAFETY: the caller's promises.
    unsafe {
        if is_ours(fd) {
            return map_node(address, length, protection, flags, fd, offset);
        }
        (forward::next().mmap)(address, length, protection, flags, fd, offset)
    }
}

/// `mmap64`.
///
/// # Safety
/// As `mmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: c_long,
) -> *mut c_void {
    // SAFETY: the caller's promises.
    unsafe {
        if is_ours(fd) {
            return map_node(address, length, protection, flags, fd, offset);
        }
        (forward::next().mmap64)(address, length, protection, flags, fd, offset)
    }
}

/// `munmap`. The model has to know, since a buffer's address is that of its mapping. It is only asked
/// about ranges that hold one: an allocator may unmap pages while the model holds its lock.
///
/// # Safety
/// As `munmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, length: usize) -> c_int {
    if mapping::remove(address as usize, length)
        && let Some(device) = DEVICE.get()
    {
        device.model.forget(address.cast(), length);
    }
    // SAFETY: the caller's promises.
    unsafe { (forward::next().munmap)(address, length) }
}
