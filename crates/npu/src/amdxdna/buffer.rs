//! Memory that the device reads and writes.

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use super::abi::{self, NO_ADDRESS};
use super::calls::Calls;
use super::device::{Device, HEAP_BYTES, Shared};
use super::error::DriverError;
use super::mapping::Mapping;
use super::node::Failure;

/// Where a buffer lives and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// Tensors: pages of the system's, which other drivers can share.
    Share,
    /// Instructions and array configurations: inside the device heap.
    Device,
    /// A command packet.
    Command,
}

impl BufferKind {
    /// The kernel's number.
    fn number(self) -> u32 {
        match self {
            BufferKind::Share => abi::BUFFER_SHARE,
            BufferKind::Device => abi::BUFFER_DEVICE,
            BufferKind::Command => abi::BUFFER_COMMAND,
        }
    }
}

/// The memory behind a buffer.
#[derive(Debug)]
enum Memory {
    /// A mapping of its own; none only while the buffer is dropped.
    Own(Option<Mapping>),
    /// A part of the device heap, from this offset on.
    Heap(usize),
}

/// A buffer, given back when dropped. The device does not see the processor's caches:
/// [`Buffer::flush`] before the device reads (or first writes) it, [`Buffer::invalidate`] before
/// the processor reads what the device wrote.
#[derive(Debug)]
pub struct Buffer {
    device: Arc<Shared>,
    handle: u32,
    kind: BufferKind,
    length: usize,
    address: u64,
    memory: Memory,
}

const PAGE: usize = 4096;

impl Buffer {
    /// A new buffer of at least `length` bytes, whole pages.
    pub fn new(device: &Device, kind: BufferKind, length: usize) -> Result<Buffer, DriverError> {
        let length = length.max(1).next_multiple_of(PAGE);
        let shared = device.shared.clone();
        let bytes = length as u64;
        let handle = shared.node.create_buffer(kind.number(), bytes).map_err(|failure| {
            match (kind, failure.errno) {
                // Newer drivers answer `EAGAIN` where a larger heap would help.
                (BufferKind::Device, libc::ENOMEM | libc::ENOSPC | libc::EAGAIN) => {
                    DriverError::HeapFull { needed: bytes, heap: HEAP_BYTES as u64 }
                }
                _ => DriverError::memory(failure, bytes),
            }
        })?;
        shared.retain_handle(handle);
        Buffer::adopt(shared, handle, kind, length)
    }

    /// Makes a buffer of a handle that was counted for it, and is released if that fails.
    fn adopt(
        device: Arc<Shared>,
        handle: u32,
        kind: BufferKind,
        length: usize,
    ) -> Result<Buffer, DriverError> {
        let memory = Memory::Own(None);
        let mut buffer = Buffer { device, handle, kind, length, address: 0, memory };
        let info = buffer.device.node.buffer_info(handle)?;
        if kind == BufferKind::Device {
            let offset = heap_offset(&buffer.device, &info, length)?;
            buffer.memory = Memory::Heap(offset);
            buffer.address = info.device_address;
            return Ok(buffer);
        }
        let node = &buffer.device.node;
        let mapping = Mapping::new(&node.calls, node.fd, info.map_offset, length, PAGE)
            .map_err(|errno| DriverError::memory(Failure { call: "mmap", errno }, length as u64))?;
        // Where the device uses the process's page tables, it has no address of its own.
        buffer.address = match info.device_address {
            NO_ADDRESS => mapping.address(),
            address => address,
        };
        buffer.memory = Memory::Own(Some(mapping));
        Ok(buffer)
    }

    /// A buffer that another driver exported, `length` bytes of it. The descriptor stays the
    /// caller's.
    ///
    /// # Safety
    /// The memory has other owners: the buffer that was exported, further imports of it, another
    /// driver's mapping. While one thread of this process writes through any of them, no other may
    /// read or write through this one, and the reverse. (Nothing here can see to that: an import by
    /// another open file of the device has another handle.)
    #[allow(unsafe_code)]
    pub unsafe fn import(device: &Device, fd: RawFd, length: usize) -> Result<Buffer, DriverError> {
        let shared = device.shared.clone();
        let version = shared.identity.driver;
        let handle =
            shared.import_handle(fd).map_err(|failure| DriverError::prime(failure, version))?;
        Buffer::adopt(shared, handle, BufferKind::Share, length.max(1).next_multiple_of(PAGE))
    }

    /// A descriptor by which another driver can use the buffer (Vulkan:
    /// `VK_EXT_external_memory_dma_buf`).
    pub fn export(&self) -> Result<DmaBuf, DriverError> {
        if self.kind != BufferKind::Share {
            return Err(DriverError::NotShareable);
        }
        let version = self.device.identity.driver;
        let fd = self.device.node.export(self.handle);
        let fd = fd.map_err(|failure| DriverError::prime(failure, version))?;
        Ok(DmaBuf { calls: self.device.node.calls.clone(), fd: Some(fd) })
    }

    /// Bytes, whole pages.
    #[allow(clippy::len_without_is_empty)] // No buffer is empty.
    pub fn len(&self) -> usize {
        self.length
    }

    /// The address that the device uses.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The kernel's handle.
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// What it is for.
    pub fn kind(&self) -> BufferKind {
        self.kind
    }

    fn place(&self) -> (&Mapping, usize) {
        match &self.memory {
            Memory::Own(mapping) => {
                (mapping.as_ref().expect("a buffer is mapped until it is dropped"), 0)
            }
            Memory::Heap(offset) => (self.device.heap(), *offset),
        }
    }

    fn check(&self, offset: usize, length: usize) {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.length), "outside of the buffer");
    }

    /// Copies out of the buffer.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.check(offset, out.len());
        let (mapping, start) = self.place();
        mapping.read(start + offset, out);
    }

    /// Copies into the buffer.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    #[allow(unsafe_code)]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        let (mapping, start) = self.place();
        // SAFETY: the range is inside this buffer, which `&mut self` makes ours alone: a mapping
        // has one buffer, and the kernel gives no part of the heap to two. Of memory that was
        // imported, the caller of `import` promised that nobody else uses it meanwhile.
        unsafe { mapping.write(start + offset, bytes) };
    }

    /// Sets a range to one byte.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    #[allow(unsafe_code)]
    pub fn fill(&mut self, offset: usize, length: usize, byte: u8) {
        self.check(offset, length);
        let (mapping, start) = self.place();
        // SAFETY: as in `write`.
        unsafe { mapping.fill(start + offset, length, byte) };
    }

    /// Moves the first `length` bytes from the processor's caches to memory.
    pub fn flush(&self, length: usize) -> Result<(), DriverError> {
        self.check(0, length);
        Ok(self.device.node.sync_buffer(self.handle, false, 0, length as u64)?)
    }

    /// Drops the first `length` bytes from the processor's caches.
    pub fn invalidate(&self, length: usize) -> Result<(), DriverError> {
        self.check(0, length);
        Ok(self.device.node.sync_buffer(self.handle, true, 0, length as u64)?)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.memory = Memory::Own(None);
        self.device.release_handle(self.handle);
    }
}

/// Where in the heap the driver put a buffer: by its address in this process, or, where it gives
/// none, by its address on the device.
fn heap_offset(
    device: &Shared,
    info: &abi::BufferInfo,
    length: usize,
) -> Result<usize, DriverError> {
    let (address, base) = match info.user_address {
        0 | NO_ADDRESS => (info.device_address, device.heap_address),
        address => (address, device.heap().address()),
    };
    let offset = address.checked_sub(base).and_then(|offset| usize::try_from(offset).ok());
    let fits = |offset: &usize| offset.checked_add(length).is_some_and(|end| end <= HEAP_BYTES);
    offset.filter(fits).ok_or(DriverError::BadAddress { address })
}

/// A buffer's descriptor for another driver; closed when dropped.
pub struct DmaBuf {
    calls: Arc<dyn Calls>,
    fd: Option<RawFd>,
}

impl DmaBuf {
    /// The descriptor, which stays this value's.
    pub fn fd(&self) -> RawFd {
        self.fd.expect("a descriptor is there until it is given away, which consumes the value")
    }

    /// Another descriptor of the same memory, which is the caller's. Fails where a model's descriptors are
    /// not real.
    #[allow(unsafe_code)]
    pub fn to_owned_fd(&self) -> std::io::Result<OwnedFd> {
        // SAFETY: it is open for as long as `self` is there.
        unsafe { BorrowedFd::borrow_raw(self.fd()) }.try_clone_to_owned()
    }

    /// The descriptor, which becomes the caller's to close: Vulkan takes it over on import.
    pub fn into_fd(mut self) -> RawFd {
        let fd = self.fd();
        self.fd = None;
        fd
    }
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        if let Some(fd) = self.fd {
            self.calls.close(fd);
        }
    }
}
