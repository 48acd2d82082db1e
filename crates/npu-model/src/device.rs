//! The model's front: the system calls on a device node.
#![allow(unsafe_code)]

use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::config::Config;
use crate::description::{self, DescriptionError};
use crate::errno::{self, Errno};
use crate::fault::{FaultPlan, Faults};
use crate::kernel::{Kernel, KernelError};
use crate::memory;
use crate::request::{self, Request};
use crate::state::Shared;
use crate::{artefacts, context, execute, handle, info, prime, syncobj, user, worker};

const PAGE: usize = 4096;

/// A device, `npu (emulated)`. Its calls may come from any thread.
///
/// File descriptors are real ones (of `/dev/null`), so that no other file of the process has the same
/// number; memory is really mapped.
pub struct Model {
    shared: Arc<Shared>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl Model {
    /// A device without programs.
    pub fn new(config: Config) -> Model {
        Model { shared: Arc::new(Shared::new(config)), worker: Mutex::default() }
    }

    /// Says what a PDI computes: with any instruction stream, or with `stream` only, where one PDI
    /// serves several shapes.
    pub fn register(
        &self,
        pdi: &[u8],
        stream: Option<&[u8]>,
        kernel: Kernel,
    ) -> Result<(), KernelError> {
        kernel.check()?;
        let mut state = self.shared.lock();
        state.kernels.add(pdi.to_vec(), stream.map(<[u8]>::to_vec), kernel);
        Ok(())
    }

    /// Registers all programs that a file of descriptions names (see [`crate::parse_kernels`]).
    pub fn register_file(&self, path: &Path) -> Result<usize, DescriptionError> {
        let text = read(path).and_then(|bytes| {
            String::from_utf8(bytes).map_err(|error| DescriptionError::File {
                path: path.to_owned(),
                reason: error.to_string(),
            })
        })?;
        let descriptions = description::parse_kernels(&text)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        for description in &descriptions {
            let stream = match &description.instructions {
                Some(file) => Some(artefacts::stream_of_file(&read(&folder.join(file))?)),
                None => None,
            };
            let mut programs = Vec::new();
            if let Some(file) = &description.pdi {
                programs.push(read(&folder.join(file))?);
            }
            if let Some(file) = &description.xclbin {
                let path = folder.join(file);
                programs.extend(artefacts::pdis(&read(&path)?).map_err(|reason| {
                    DescriptionError::File { path, reason: reason.to_owned() }
                })?);
            }
            let mut state = self.shared.lock();
            for pdi in programs {
                state.kernels.add(pdi, stream.clone(), description.kernel.clone());
            }
        }
        Ok(descriptions.len())
    }

    /// Plans other faults; commands, allocations and contexts are counted from now on.
    pub fn set_faults(&self, faults: Faults) {
        let mut state = self.shared.lock();
        state.plan = FaultPlan::new(faults);
        state.change_power();
    }

    /// Why commands failed since the last call; the device itself would only say that they did.
    pub fn complaints(&self) -> Vec<String> {
        self.shared.lock().take_complaints()
    }

    /// Whether a descriptor is an open file of this device.
    pub fn owns(&self, fd: i32) -> bool {
        self.shared.lock().clients.contains_key(&fd)
    }

    /// `open` of the device node.
    pub fn open(&self) -> Result<i32, Errno> {
        let flags = libc::O_RDWR | libc::O_CLOEXEC;
        // SAFETY: the path is a C string. The system call itself, so that a preloaded `open` is not
        // asked.
        let fd = unsafe {
            libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/dev/null".as_ptr(), flags, 0)
        };
        if fd < 0 {
            return Err(errno::last());
        }
        self.shared.lock().open(fd as i32);
        Ok(fd as i32)
    }

    /// `close`: contexts are destroyed, handles gone; mappings stay. A descriptor that is not of the
    /// device's own files, as an exported buffer's, is just closed.
    pub fn close(&self, fd: i32) -> Result<(), Errno> {
        let mut state = self.shared.lock();
        if state.clients.contains_key(&fd) {
            state.close(fd)?;
        }
        drop(state);
        self.shared.wake();
        // SAFETY: the caller gives the descriptor up.
        match unsafe { libc::syscall(libc::SYS_close, fd) } {
            -1 => Err(errno::last()),
            _ => Ok(()),
        }
    }

    /// `ioctl`. Returns zero.
    ///
    /// # Safety
    /// The model writes through `argument` and through the pointers in it, as the kernel does. They
    /// must be meant for the request; an address that is not mapped is `EFAULT`.
    pub unsafe fn ioctl(&self, fd: i32, number: u64, argument: *mut u8) -> Result<i32, Errno> {
        if !self.owns(fd) {
            return Err(Errno::EBADF);
        }
        let (request, size, writes_back) = request::decode(number)?;
        let mut bytes = user::read(argument as u64, size)?;
        let result = self.answer(fd, request, &mut bytes);
        // The DRM core copies the argument back whether the request failed or not.
        if writes_back {
            user::write(argument as u64, &bytes)?;
        }
        result.map(|()| 0)
    }

    fn answer(&self, fd: i32, request: Request, argument: &mut [u8]) -> Result<(), Errno> {
        let (shared, config) = (&self.shared, &self.shared.config);
        // These wait, and so take the lock themselves.
        match request {
            Request::WaitTimeline => return syncobj::wait(shared, fd, argument),
            Request::DestroyContext => return context::destroy(shared, fd, argument),
            Request::Execute => {
                self.start_worker();
                return execute::submit(shared, fd, argument);
            }
            _ => {}
        }
        let mut state = shared.lock();
        let state = &mut *state;
        state.client(fd)?;
        match request {
            Request::Version => info::version(config, argument),
            Request::CloseHandle => handle::close(state, fd, argument),
            Request::HandleToFd => prime::export(state, fd, argument),
            Request::FdToHandle => prime::import(state, fd, config.foreign_import, argument),
            Request::DestroySyncobj => syncobj::destroy(state, fd, argument),
            Request::CreateContext => context::create(state, fd, argument),
            Request::ConfigContext => context::configure(state, fd, argument),
            Request::CreateBuffer => handle::create(state, fd, argument),
            Request::BufferInfo => handle::info(state, fd, config.addressing, argument),
            Request::SyncBuffer => handle::sync(state, fd, argument),
            Request::GetInfo => info::get(state, config, fd, argument),
            Request::GetArray => info::array(state, config, fd, argument),
            Request::SetState => info::set(state, config, fd, argument),
            Request::WaitTimeline | Request::DestroyContext | Request::Execute => Ok(()),
        }
    }

    /// `mmap` of a buffer, at the offset that `GET_BO_INFO` returned.
    ///
    /// # Safety
    /// With `MAP_FIXED`, the caller must own the pages at `address`, as with `mmap`.
    pub unsafe fn mmap(
        &self,
        fd: i32,
        address: *mut u8,
        length: usize,
        protection: i32,
        flags: i32,
        offset: u64,
    ) -> Result<*mut u8, Errno> {
        let mut state = self.shared.lock();
        let client = state.client(fd)?;
        if flags & libc::MAP_SHARED == 0 || length == 0 {
            return Err(Errno::EINVAL);
        }
        let found = client.buffers.values().find(|buffer| buffer.map_offset == offset);
        let buffer = found.ok_or(Errno::EINVAL)?.clone();
        let length = length.checked_next_multiple_of(PAGE).ok_or(Errno::EINVAL)?;
        if length > buffer.size {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's promise about `address`.
        let mapped = unsafe { buffer.memory.map(address, length, protection, flags) }?;
        // What the new mapping replaced is no mapping of another buffer any more.
        state.unmapped(mapped as u64, length as u64);
        buffer.mapped(mapped as u64, length as u64);
        Ok(mapped)
    }

    /// `mmap` of a buffer, readable, writable and shared, at a multiple of `alignment`: what a driver
    /// does to map the heap, done for it.
    pub fn mmap_aligned(
        &self,
        fd: i32,
        offset: u64,
        length: usize,
        alignment: usize,
    ) -> Result<NonNull<u8>, Errno> {
        if !alignment.is_power_of_two() || length == 0 || length > isize::MAX as usize - alignment {
            return Err(Errno::EINVAL);
        }
        let length = length.next_multiple_of(PAGE);
        let reservation = memory::reserve(length, alignment.max(PAGE))?;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: the pages were just reserved, and nobody else knows of them.
        let mapped = unsafe { self.mmap(fd, reservation, length, protection, flags, offset) };
        if mapped.is_err() {
            // SAFETY: as above; they hold nothing.
            unsafe { memory::unmap(reservation, length) }?;
        }
        NonNull::new(mapped?).ok_or(Errno::ENOMEM)
    }

    /// `munmap` of any range.
    ///
    /// # Safety
    /// As `munmap`: nothing may refer to the range any more.
    pub unsafe fn munmap(&self, address: *mut u8, length: usize) -> Result<(), Errno> {
        // Under the lock, so that no buffer is mapped to the same place in between.
        let mut state = self.shared.lock();
        // SAFETY: the caller's promise.
        unsafe { memory::unmap(address, length) }?;
        state.unmapped(address as u64, (length as u64).next_multiple_of(PAGE as u64));
        Ok(())
    }

    /// Forgets mappings in a range that the caller is about to unmap by itself.
    pub fn forget(&self, address: *mut u8, length: usize) {
        let length = (length as u64).next_multiple_of(PAGE as u64);
        self.shared.lock().unmapped(address as u64, length);
    }

    fn start_worker(&self) {
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.is_none() {
            let shared = self.shared.clone();
            *worker = Some(std::thread::spawn(move || worker::run(&shared)));
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let files: Vec<i32> = self.shared.lock().clients.keys().copied().collect();
        for fd in files {
            let _ = self.close(fd);
        }
        self.shared.lock().stopping = true;
        self.shared.wake();
        let worker = self.worker.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(worker) = worker {
            let _ = worker.join();
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, DescriptionError> {
    std::fs::read(path).map_err(|error| DescriptionError::File {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}
