//! A stand-in for the kernel's driver: it holds every call to the documented order, keeps what the
//! processor and the device see apart until a sync, and runs a function in place of a kernel.
//!
//! Offsets and numbers are written out here instead of taken from the crate.
#![allow(unsafe_code)] // It receives raw addresses, like the kernel.

use std::alloc::Layout;
use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, c_void};
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pianola_npu::amdxdna::{Calls, Errno};

use super::raw::Raw;
use super::requests::HEAP;

/// Computes on the data buffers of one command: their bytes from the address on.
pub type Kernel = Box<dyn Fn(&mut [Vec<u8>]) + Send>;

/// What the stand-in does wrong, or how it differs.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// The request that fails, from which time on (0 is the first), and how.
    pub fail: Option<(u64, usize, Errno)>,
    /// Errors of `open`.
    pub open: Option<Errno>,
    /// Errors of `mmap`.
    pub mmap: Option<Errno>,
    /// The driver's name.
    pub name: Option<&'static str>,
    /// Waits never end.
    pub hang: bool,
    /// The state that commands end in, in place of 4.
    pub state: Option<u32>,
    /// SHARE buffers have no device address, as with shared page tables.
    pub shared_page_tables: bool,
    /// Contexts that other programs hold.
    pub contexts: usize,
}

#[derive(Debug)]
pub(super) struct Memory {
    pub(super) kind: u32,
    pub(super) size: usize,
    /// The processor's view; null until it is mapped.
    pub(super) mapped: usize,
    pub(super) layout: Option<Layout>,
    /// Mappings of the same memory.
    pub(super) maps: usize,
    pub(super) device: Vec<u8>,
    pub(super) address: u64,
    /// Of a DEV buffer: where it is in the heap.
    pub(super) heap_offset: usize,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) faults: Faults,
    pub(super) kernel: Option<Kernel>,
    pub(super) calls: Vec<u64>,
    pub(super) events: Vec<String>,
    pub(super) violations: Vec<String>,
    pub(super) buffers: HashMap<u32, Memory>,
    pub(super) next_handle: u32,
    pub(super) heap: Option<u32>,
    pub(super) heap_used: usize,
    /// Contexts with the PDI that each is configured with.
    pub(super) contexts: HashMap<u32, Option<u32>>,
    pub(super) syncobjs: Vec<u32>,
    pub(super) queue: VecDeque<(u64, u32, Vec<u32>)>,
    pub(super) sequence: u64,
    pub(super) commands: usize,
    pub(super) open: bool,
}

/// The stand-in; clone the `Arc` to look at it afterwards.
#[derive(Default)]
pub struct Fake {
    state: Mutex<State>,
}

const FD: RawFd = 7000;

impl Fake {
    pub fn new(faults: Faults) -> Arc<Fake> {
        let fake = Fake::default();
        fake.state().faults = faults;
        Arc::new(fake)
    }

    pub fn with_kernel(kernel: impl Fn(&mut [Vec<u8>]) + Send + 'static) -> Arc<Fake> {
        let fake = Fake::new(Faults::default());
        fake.state().kernel = Some(Box::new(kernel));
        fake
    }

    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What happened, in short: one word a call.
    pub fn events(&self) -> Vec<String> {
        self.state().events.clone()
    }

    /// Commands that ran.
    pub fn commands(&self) -> usize {
        self.state().commands
    }

    /// Requests of a number.
    pub fn count(&self, request: u64) -> usize {
        self.state().calls.iter().filter(|&&call| call == request).count()
    }

    /// Checks that no rule was broken and that everything was given back.
    pub fn finish(&self) {
        let state = self.state();
        assert!(state.violations.is_empty(), "{:#?}", state.violations);
        assert!(!state.open, "the node is still open");
        assert!(state.buffers.is_empty() && state.contexts.is_empty() && state.syncobjs.is_empty());
    }
}

/// One word for a request.
fn word(number: u64) -> &'static str {
    match number {
        0xC040_6400 => "version",
        0xC010_6447 => "info",
        0xC020_6443 => "create",
        0xC030_6444 => "where",
        0xC018_6445 => "sync",
        0xC038_6440 => "context",
        0xC018_6442 => "configure",
        0xC038_6446 => "execute",
        0xC030_64CA => "wait",
        0xC008_6441 => "destroy",
        0xC008_64C0 => "unsync",
        0x4008_6409 => "close-buffer",
        0xC00C_642D => "export",
        0xC00C_642E => "import",
        _ => "unknown",
    }
}

impl Calls for Fake {
    fn open(&self, path: &CStr) -> Result<RawFd, Errno> {
        let mut state = self.state();
        if path.to_str() != Ok(super::NODE) {
            return Err(libc::ENOENT);
        }
        if let Some(errno) = state.faults.open {
            return Err(errno);
        }
        state.events.push("open".into());
        state.open = true;
        Ok(FD)
    }

    fn close(&self, fd: RawFd) {
        let mut state = self.state();
        if fd == FD {
            state.rule_open();
            state.open = false;
            state.events.push("close".into());
        } else {
            state.events.push("close-fd".into());
        }
    }

    unsafe fn ioctl(&self, fd: RawFd, request: u64, argument: *mut c_void) -> Result<(), Errno> {
        let mut state = self.state();
        state.rule(fd == FD, "the node's descriptor");
        let before = state.calls.iter().filter(|&&call| call == request).count();
        state.calls.push(request);
        state.events.push(word(request).into());
        match state.faults.fail {
            Some((failing, from, errno)) if failing == request && before >= from => Err(errno),
            _ => state.request(request, Raw::at(argument as u64)),
        }
    }

    unsafe fn mmap(
        &self,
        _fd: RawFd,
        offset: u64,
        length: usize,
        alignment: usize,
    ) -> Result<NonNull<u8>, Errno> {
        let mut state = self.state();
        state.events.push("map".into());
        if let Some(errno) = state.faults.mmap {
            return Err(errno);
        }
        let handle = (offset >> 32) as u32;
        let layout = Layout::from_size_align(length, alignment).map_err(|_| libc::EINVAL)?;
        let Some(memory) = state.buffers.get_mut(&handle) else { return Err(libc::EINVAL) };
        let is_heap = memory.kind == 2;
        let sound = length == memory.size && (!is_heap || alignment == HEAP && memory.maps == 0);
        memory.maps += 1;
        if memory.maps == 1 {
            // SAFETY: no buffer is empty.
            memory.mapped = unsafe { std::alloc::alloc_zeroed(layout) } as usize;
            memory.layout = Some(layout);
        }
        let address = NonNull::new(memory.mapped as *mut u8).unwrap();
        state.rule(sound, "a buffer is mapped whole, the heap once and 64 MiB-aligned");
        Ok(address)
    }

    unsafe fn munmap(&self, address: NonNull<u8>, length: usize) {
        let mut state = self.state();
        state.events.push("unmap".into());
        let at = address.as_ptr() as usize;
        let Some(memory) = state.buffers.values_mut().find(|memory| memory.mapped == at) else {
            state.violation("munmap of what is not mapped");
            return;
        };
        memory.maps -= 1;
        let whole = length == memory.size;
        if memory.maps == 0 {
            memory.mapped = 0;
            let layout = memory.layout.take().unwrap();
            // SAFETY: allocated by `mmap` with this layout; no mapping of it is left.
            unsafe { std::alloc::dealloc(address.as_ptr(), layout) };
        }
        state.rule(whole, "a mapping ends whole");
    }
}
