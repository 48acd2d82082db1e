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
struct Memory {
    kind: u32,
    size: usize,
    /// The processor's view; null until it is mapped.
    mapped: usize,
    layout: Option<Layout>,
    device: Vec<u8>,
    address: u64,
    /// Of a DEV buffer: where it is in the heap.
    heap_offset: usize,
}

#[derive(Default)]
struct State {
    faults: Faults,
    kernel: Option<Kernel>,
    calls: Vec<u64>,
    events: Vec<String>,
    violations: Vec<String>,
    buffers: HashMap<u32, Memory>,
    next_handle: u32,
    heap: Option<u32>,
    heap_used: usize,
    /// Contexts with the PDI that each is configured with.
    contexts: HashMap<u32, Option<u32>>,
    syncobjs: Vec<u32>,
    queue: VecDeque<(u64, u32, Vec<u32>)>,
    sequence: u64,
    commands: usize,
    open: bool,
}

/// The stand-in; clone the `Arc` to look at it afterwards.
#[derive(Default)]
pub struct Fake {
    state: Mutex<State>,
}

const HEAP: usize = 64 << 20;
const WINDOW: u64 = 0x400_0000;
const FD: RawFd = 7000;

unsafe fn read<T: Copy>(at: *const c_void, offset: usize) -> T {
    unsafe { at.cast::<u8>().add(offset).cast::<T>().read_unaligned() }
}

unsafe fn write<T>(at: *mut c_void, offset: usize, value: T) {
    unsafe { at.cast::<u8>().add(offset).cast::<T>().write_unaligned(value) }
}

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

impl State {
    fn violation(&mut self, text: impl Into<String>) {
        self.violations.push(text.into());
    }

    fn rule(&mut self, holds: bool, text: &str) {
        if !holds {
            self.violation(text);
        }
    }

    unsafe fn create_buffer(&mut self, argument: *mut c_void) -> Result<(), Errno> {
        let (flags, size, kind) =
            unsafe { (read::<u64>(argument, 0), read::<u64>(argument, 16), read::<u32>(argument, 24)) };
        self.rule(flags == 0, "CREATE_BO flags");
        let size = (size as usize).next_multiple_of(4096);
        self.next_handle += 1;
        let handle = self.next_handle;
        let mut heap_offset = 0;
        let address = match kind {
            1 | 4 if self.faults.shared_page_tables => u64::MAX,
            1 | 4 => 0x1_0000_0000 + u64::from(handle) * 0x1000_0000,
            2 => {
                self.rule(self.heap.is_none() && size == HEAP, "one heap of 64 MiB");
                self.heap = Some(handle);
                WINDOW
            }
            3 => {
                let Some(heap) = self.heap else { return Err(libc::ENOENT) };
                if self.buffers[&heap].mapped == 0 {
                    return Err(libc::EAGAIN);
                }
                heap_offset = self.heap_used;
                self.heap_used += size.next_multiple_of(32 << 10);
                if self.heap_used > HEAP {
                    return Err(libc::ENOMEM);
                }
                WINDOW + heap_offset as u64
            }
            _ => return Err(libc::EINVAL),
        };
        // What the device sees is anything but zeros until it is flushed.
        let device = if kind == 2 { Vec::new() } else { vec![0xCD; size] };
        let memory = Memory { kind, size, mapped: 0, layout: None, device, address, heap_offset };
        self.buffers.insert(handle, memory);
        unsafe { write(argument, 28, handle) };
        Ok(())
    }

    unsafe fn buffer_info(&mut self, argument: *mut c_void) -> Result<(), Errno> {
        let handle = unsafe { read::<u32>(argument, 16) };
        let heap = self.heap.and_then(|heap| self.buffers.get(&heap)).map_or(0, |heap| heap.mapped);
        let Some(memory) = self.buffers.get(&handle) else { return Err(libc::ENOENT) };
        let user = match memory.kind {
            3 => (heap + memory.heap_offset) as u64,
            _ => u64::MAX,
        };
        unsafe {
            write(argument, 24, if memory.kind == 3 { u64::MAX } else { u64::from(handle) << 32 });
            write(argument, 32, user);
            write(argument, 40, memory.address);
        }
        Ok(())
    }

    fn processor_view(&self, memory: &Memory) -> *mut u8 {
        match memory.kind {
            3 => {
                let heap = &self.buffers[&self.heap.unwrap()];
                (heap.mapped + memory.heap_offset) as *mut u8
            }
            _ => memory.mapped as *mut u8,
        }
    }

    unsafe fn sync(&mut self, argument: *mut c_void) -> Result<(), Errno> {
        let (handle, direction): (u32, u32) =
            unsafe { (read(argument, 0), read(argument, 4)) };
        let (offset, size): (u64, u64) = unsafe { (read(argument, 8), read(argument, 16)) };
        let (offset, size) = (offset as usize, size as usize);
        let Some(mut memory) = self.buffers.remove(&handle) else { return Err(libc::ENOENT) };
        if offset + size > memory.size {
            self.buffers.insert(handle, memory);
            return Err(libc::EINVAL);
        }
        let view = self.processor_view(&memory);
        let device = &mut memory.device[offset..offset + size];
        unsafe {
            match direction {
                0 => view.add(offset).copy_to_nonoverlapping(device.as_mut_ptr(), size),
                _ => view.add(offset).copy_from_nonoverlapping(device.as_ptr(), size),
            }
        }
        self.buffers.insert(handle, memory);
        Ok(())
    }

    unsafe fn create_context(&mut self, argument: *mut c_void) -> Result<(), Errno> {
        let qos: u64 = unsafe { read(argument, 16) };
        if qos == 0 {
            return Err(libc::EFAULT);
        }
        if self.heap.is_none() {
            return Err(libc::ENOENT);
        }
        let (ext, flags): (u64, u64) = unsafe { (read(argument, 0), read(argument, 8)) };
        let (opc, tiles): (u32, u32) = unsafe { (read(argument, 32), read(argument, 36)) };
        self.rule(ext == 0 && flags == 0, "CREATE_HWCTX extensions");
        self.rule(opc == 2048, "operations a cycle are the xclbin's");
        self.rule(tiles == 16, "four columns of four cores");
        if self.faults.contexts + self.contexts.len() >= 6 {
            return Err(libc::EINVAL);
        }
        self.next_handle += 1;
        let (handle, syncobj) = (self.next_handle, self.next_handle + 5000);
        self.contexts.insert(handle, None);
        self.syncobjs.push(syncobj);
        unsafe {
            write(argument, 48, handle);
            write(argument, 52, syncobj);
        }
        Ok(())
    }

    unsafe fn configure(&mut self, argument: *mut c_void) -> Result<(), Errno> {
        let (handle, kind): (u32, u32) = unsafe { (read(argument, 0), read(argument, 4)) };
        let (value, size): (u64, u32) = unsafe { (read(argument, 8), read(argument, 16)) };
        let config = value as *const c_void;
        let (count, unit): (u16, u32) = unsafe { (read(config, 0), read(config, 8)) };
        self.rule(kind == 0 && count == 1 && size == 16, "one unit in sixteen bytes");
        let flushed = self.buffers.get(&unit).is_some_and(|memory| {
            memory.kind == 3 && memory.device.starts_with(&(0..200).collect::<Vec<u8>>())
        });
        self.rule(flushed, "the unit's PDI is in a flushed DEV buffer");
        match self.contexts.get_mut(&handle) {
            Some(pdi @ None) => *pdi = Some(unit),
            _ => return Err(libc::EINVAL),
        }
        Ok(())
    }

    unsafe fn execute(&mut self, argument: *mut c_void) -> Result<(), Errno> {
        let (context, kind): (u32, u32) = unsafe { (read(argument, 16), read(argument, 20)) };
        let (command, list): (u64, u64) = unsafe { (read(argument, 24), read(argument, 32)) };
        let (count, arguments): (u32, u32) = unsafe { (read(argument, 40), read(argument, 44)) };
        self.rule(kind == 0 && count == 1, "one command buffer");
        if !matches!(self.contexts.get(&context), Some(Some(_))) {
            return Err(libc::EINVAL);
        }
        let list = list as *const c_void;
        let handles: Vec<u32> =
            (0..arguments as usize).map(|index| unsafe { read(list, index * 4) }).collect();
        let mut unique = handles.clone();
        unique.sort_unstable();
        unique.dedup();
        if unique.len() != handles.len() {
            return Err(libc::EALREADY);
        }
        self.queue.push_back((self.sequence, command as u32, handles));
        let in_flight = self.queue.len();
        self.rule(in_flight <= 4, "at most four commands in flight");
        unsafe { write(argument, 48, self.sequence) };
        self.sequence += 1;
        Ok(())
    }

    unsafe fn wait(&mut self, argument: *mut c_void) -> Result<(), Errno> {
        let (handles, points): (u64, u64) = unsafe { (read(argument, 0), read(argument, 8)) };
        let (deadline, count): (i64, u32) = unsafe { (read(argument, 16), read(argument, 24)) };
        let (syncobj, point): (u32, u64) =
            unsafe { (read(handles as *const c_void, 0), read(points as *const c_void, 0)) };
        self.rule(count == 1 && deadline > 0, "one point and an absolute time");
        self.rule(self.syncobjs.contains(&syncobj), "the context's timeline");
        if self.faults.hang {
            return Err(libc::ETIME);
        }
        while self.queue.front().is_some_and(|(sequence, ..)| *sequence <= point) {
            let (_, command, handles) = self.queue.pop_front().unwrap();
            self.run(command, &handles);
        }
        Ok(())
    }

    /// The words of a command, which the kernel reads through the processor's view.
    fn words(&mut self, handle: u32) -> Vec<u32> {
        let Some(memory) = self.buffers.get(&handle) else { return Vec::new() };
        let is_command = memory.kind == 4 && memory.mapped != 0;
        let view = memory.mapped as *const c_void;
        if !is_command {
            self.violation("a command is no mapped CMD buffer");
            return Vec::new();
        }
        let header: u32 = unsafe { read(view, 0) };
        let count = header as usize >> 12 & 0x7FF;
        (0..=count).map(|index| unsafe { read(view, index * 4) }).collect()
    }

    fn run(&mut self, handle: u32, handles: &[u32]) {
        let words = self.words(handle);
        if words.is_empty() {
            return;
        }
        self.rule(words[0] & 0xF == 1 && words[0] >> 28 == 3, "a new command of type 3");
        match words[0] >> 23 & 0x1F {
            0 => self.run_one(&words, handles),
            19 => {
                let count = words[1] as usize;
                self.rule(words.len() == 7 + 2 * count && count <= 36, "a chain's length");
                for index in 0..count {
                    let inner = self.words(words[7 + 2 * index]);
                    if !inner.is_empty() {
                        self.run_one(&inner, handles);
                    }
                }
            }
            opcode => self.violation(format!("opcode {opcode}")),
        }
        let state = self.faults.state.unwrap_or(4);
        let view = self.buffers[&handle].mapped as *mut c_void;
        unsafe { write(view, 0, words[0] & !0xF | state) };
    }

    fn run_one(&mut self, words: &[u32], handles: &[u32]) {
        let long = |index: usize| u64::from(words[index]) | u64::from(words[index + 1]) << 32;
        self.rule(words.len() == 17 && words[1] == 1 && long(2) == 3, "a START_CU packet");
        let instructions = self.at_address(long(4));
        let length = words[6] as usize * 4;
        let stream = instructions.and_then(|handle| {
            self.rule(handles.contains(&handle), "instructions are among the arguments");
            let memory = &self.buffers[&handle];
            (memory.kind == 3).then(|| memory.device[..length].to_vec())
        });
        let sound = stream.is_some_and(|stream| {
            stream[..4] == 0x0603_0100_u32.to_le_bytes()
                && stream[12..16] == (length as u32).to_le_bytes()
        });
        self.rule(sound, "flushed instructions in a DEV buffer, with their length in words");
        let mut found = Vec::new();
        for address in (7..17).step_by(2).map(long).take_while(|&address| address != 0) {
            match self.at_address(address) {
                Some(handle) => found.push(handle),
                None => self.violation("a data buffer's address"),
            }
        }
        let named = found.iter().all(|handle| handles.contains(handle));
        self.rule(named, "data buffers are among the arguments");
        let mut data: Vec<Vec<u8>> =
            found.iter().map(|handle| self.buffers[handle].device.clone()).collect();
        if let Some(kernel) = &self.kernel {
            kernel(&mut data);
        }
        for (handle, data) in found.iter().zip(data) {
            self.buffers.get_mut(handle).unwrap().device = data;
        }
        self.commands += 1;
    }

    fn at_address(&self, address: u64) -> Option<u32> {
        let is_at = |memory: &Memory| match memory.address {
            u64::MAX => memory.mapped as u64 == address,
            start => start == address,
        };
        let mut buffers = self.buffers.iter();
        buffers.find(|(_, memory)| memory.kind != 2 && is_at(memory)).map(|(&handle, _)| handle)
    }

    unsafe fn info(&mut self, argument: *mut c_void) -> Result<(), Errno> {
        let (parameter, size): (u32, u32) = unsafe { (read(argument, 0), read(argument, 4)) };
        let buffer = unsafe { read::<u64>(argument, 8) } as *mut c_void;
        unsafe {
            match parameter {
                1 if size == 64 => {
                    write(buffer, 0, 0x20_0000_u32);
                    write(buffer, 4, [5_u16, 6]);
                    write(buffer, 8, [1_u32, 1]);
                    write(buffer, 16, [4_u16, 2]);
                    write(buffer, 32, [1_u16, 1]);
                    write(buffer, 48, [1_u16, 0]);
                }
                2 if size == 8 => write(buffer, 0, [1_u32, 1]),
                5 => {
                    let count = self.faults.contexts + self.contexts.len();
                    for index in 0..count {
                        write(buffer, index * 64, [index as u32, 1, 4, 0]);
                        write(buffer, index * 64 + 16, 4321_i64);
                    }
                    write(argument, 4, count as u32 * 64);
                }
                8 if size == 16 => write(buffer, 0, [1_u32, 5, 2, 388]),
                _ => return Err(libc::EINVAL),
            }
        }
        Ok(())
    }

    unsafe fn version(&mut self, argument: *mut c_void) {
        let name = self.faults.name.unwrap_or("amdxdna_accel_driver").as_bytes();
        unsafe {
            write(argument, 0, [0_i32, 6, 0]);
            let room: u64 = read(argument, 16);
            let target = read::<u64>(argument, 24) as *mut u8;
            let length = name.len().min(room as usize);
            target.copy_from_nonoverlapping(name.as_ptr(), length);
            write(argument, 16, name.len() as u64);
        }
    }

    unsafe fn request(&mut self, number: u64, argument: *mut c_void) -> Result<(), Errno> {
        let handle = unsafe { read::<u32>(argument, 0) };
        match number {
            0xC040_6400 => unsafe { self.version(argument) },
            0xC010_6447 => return unsafe { self.info(argument) },
            0xC020_6443 => return unsafe { self.create_buffer(argument) },
            0xC030_6444 => return unsafe { self.buffer_info(argument) },
            0xC018_6445 => return unsafe { self.sync(argument) },
            0xC038_6440 => return unsafe { self.create_context(argument) },
            0xC018_6442 => return unsafe { self.configure(argument) },
            0xC038_6446 => return unsafe { self.execute(argument) },
            0xC030_64CA => return unsafe { self.wait(argument) },
            0xC008_6441 => {
                let known = self.contexts.remove(&handle).is_some();
                self.rule(known, "a context is destroyed once");
                self.queue.clear();
            }
            0xC008_64C0 => self.syncobjs.retain(|&syncobj| syncobj != handle),
            0x4008_6409 => match self.buffers.remove(&handle) {
                Some(memory) => {
                    self.rule(memory.mapped == 0, "a buffer is unmapped before it is closed");
                    let heap_in_use = memory.kind == 2
                        && (self.buffers.values().any(|memory| memory.kind == 3)
                            || !self.contexts.is_empty());
                    self.rule(!heap_in_use, "the heap goes after what is in it");
                    let in_use = self.contexts.values().any(|&pdi| pdi == Some(handle));
                    self.rule(!in_use, "PDIs stay until the context is gone");
                }
                None => return Err(libc::EINVAL),
            },
            0xC00C_642D => unsafe { write(argument, 8, 9000_i32 + handle as i32) },
            0xC00C_642E => {
                let fd: i32 = unsafe { read(argument, 8) };
                let of = self.buffers.get(&((fd - 9000) as u32));
                let Some(size) = of.map(|memory| memory.size) else { return Err(libc::EBADF) };
                self.next_handle += 1;
                let address = 0x9_0000_0000 + u64::from(self.next_handle) * 0x1000_0000;
                let (device, layout) = (vec![0; size], None);
                let memory =
                    Memory { kind: 1, size, mapped: 0, layout, device, address, heap_offset: 0 };
                self.buffers.insert(self.next_handle, memory);
                unsafe { write(argument, 0, self.next_handle) };
            }
            _ => return Err(libc::ENOTTY),
        }
        Ok(())
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
            _ => unsafe { state.request(request, argument) },
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
        let sound = length == memory.size && memory.mapped == 0 && (!is_heap || alignment == HEAP);
        let address = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).unwrap();
        memory.mapped = address.as_ptr() as usize;
        memory.layout = Some(layout);
        state.rule(sound, "a buffer is mapped once and whole, the heap 64 MiB-aligned");
        Ok(address)
    }

    unsafe fn munmap(&self, address: NonNull<u8>, length: usize) {
        let mut state = self.state();
        state.events.push("unmap".into());
        let at = address.as_ptr() as usize;
        let memory = state.buffers.values_mut().find(|memory| memory.mapped == at);
        let layout = memory.and_then(|memory| {
            memory.mapped = 0;
            memory.layout.take()
        });
        match layout {
            Some(layout) => {
                state.rule(layout.size() == length, "a mapping ends whole");
                unsafe { std::alloc::dealloc(address.as_ptr(), layout) };
            }
            None => state.violation("munmap of what is not mapped"),
        }
    }
}

impl State {
    fn rule_open(&mut self) {
        let empty = self.buffers.is_empty() && self.contexts.is_empty();
        self.rule(self.open && empty, "the node is closed last");
    }
}
