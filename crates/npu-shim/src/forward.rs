//! The C library's functions that the shim stands in front of.

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

type Open = unsafe extern "C" fn(*const c_char, c_int, libc::mode_t) -> c_int;
type OpenAt = unsafe extern "C" fn(c_int, *const c_char, c_int, libc::mode_t) -> c_int;
type Map = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, c_long) -> *mut c_void;

/// The next functions in the order of loading.
pub(crate) struct Next {
    pub(crate) open: Open,
    pub(crate) open64: Open,
    pub(crate) openat: OpenAt,
    pub(crate) openat64: OpenAt,
    pub(crate) close: unsafe extern "C" fn(c_int) -> c_int,
    pub(crate) ioctl: unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int,
    pub(crate) mmap: Map,
    pub(crate) mmap64: Map,
    pub(crate) munmap: unsafe extern "C" fn(*mut c_void, usize) -> c_int,
}

static NEXT: AtomicPtr<Next> = AtomicPtr::new(std::ptr::null_mut());

/// Found once, without a lock: two threads that come first at once find the same, and one table is
/// left over.
pub(crate) fn next() -> &'static Next {
    let known = NEXT.load(Ordering::Acquire);
    // SAFETY: only ever set below, to a leaked table.
    if let Some(known) = unsafe { known.as_ref() } {
        return known;
    }
    // SAFETY: the names have these types in every C library for Linux; variadic functions take their
    // optional argument in the same register as a fixed one.
    let found = unsafe {
        Next {
            open: std::mem::transmute::<*mut c_void, Open>(find(c"open")),
            open64: std::mem::transmute::<*mut c_void, Open>(find(c"open64")),
            openat: std::mem::transmute::<*mut c_void, OpenAt>(find(c"openat")),
            openat64: std::mem::transmute::<*mut c_void, OpenAt>(find(c"openat64")),
            close: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> c_int>(find(
                c"close",
            )),
            ioctl: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int,
            >(find(c"ioctl")),
            mmap: std::mem::transmute::<*mut c_void, Map>(find(c"mmap")),
            mmap64: std::mem::transmute::<*mut c_void, Map>(find(c"mmap64")),
            munmap: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(*mut c_void, usize) -> c_int,
            >(find(c"munmap")),
        }
    };
    let found = Box::leak(Box::new(found));
    NEXT.store(found, Ordering::Release);
    found
}

fn find(name: &CStr) -> *mut c_void {
    // SAFETY: `name` is a C string.
    let function = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if function.is_null() {
        // Without the function nothing can go on, a panic's message included.
        std::process::abort();
    }
    function
}
