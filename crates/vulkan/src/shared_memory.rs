//! Memory that passes between drivers as a file descriptor: a buffer of another driver's that the GPU
//! reads and writes, or one of the GPU's for another driver.
//!
//! ```text
//! NPU's driver ─ dma-buf ─► SharedBuffer::import ─► write, read (copies on the queue)
//! SharedBuffer::new ─► export ─ dma-buf ─► NPU's driver
//! ```
//!
//! The queue takes the buffer over from its other owners before each copy and gives it back after it, so
//! that caches between the two are dealt with by the drivers. What orders the accesses is the caller's wait:
//! every copy here has ended when its call returns.

mod copier;
mod error;

use crate::describe::GpuKind;
use crate::gpu::Gpu;
use crate::memory::Purpose;
use ash::{ext, khr, vk};
use copier::{Copier, CopyCommands};
pub use error::{HandleType, SharedMemoryError, Way};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

/// What a device's driver has for sharing memory.
pub(crate) struct Sharing {
    /// Functions of `VK_KHR_external_memory_fd`.
    functions: Option<khr::external_memory_fd::Device>,
    features: SharingFeatures,
}

/// Extensions of a device.
#[derive(Clone, Copy, Default)]
pub(crate) struct SharingFeatures {
    /// `VK_KHR_external_memory_fd`.
    descriptors: bool,
    /// `VK_EXT_external_memory_dma_buf`.
    dma_buf: bool,
    /// `VK_EXT_queue_family_foreign`: other drivers as owners of memory.
    foreign: bool,
}

impl SharingFeatures {
    pub fn of(has: &dyn Fn(&str) -> bool) -> SharingFeatures {
        let descriptors = has("VK_KHR_external_memory_fd");
        SharingFeatures {
            descriptors,
            dma_buf: descriptors && has("VK_EXT_external_memory_dma_buf"),
            foreign: descriptors && has("VK_EXT_queue_family_foreign"),
        }
    }

    /// The extensions to enable.
    pub fn names(self) -> impl Iterator<Item = *const std::ffi::c_char> {
        let names = [
            (self.descriptors, khr::external_memory_fd::NAME),
            (self.dma_buf, ext::external_memory_dma_buf::NAME),
            (self.foreign, ext::queue_family_foreign::NAME),
        ];
        names.into_iter().filter(|(has, _)| *has).map(|(_, name)| name.as_ptr())
    }

    /// For a device that was made with them.
    pub fn load(self, instance: &ash::Instance, device: &ash::Device) -> Sharing {
        let load = || khr::external_memory_fd::Device::new(instance, device);
        Sharing { functions: self.descriptors.then(load), features: self }
    }
}

/// A storage buffer whose memory other drivers use, too.
pub struct SharedBuffer {
    gpu: Arc<Gpu>,
    handle: HandleType,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    bytes: u64,
    allocated: u64,
    copier: Copier,
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        if self.gpu.is_hung() {
            return;
        }
        // SAFETY: every copy was waited for.
        unsafe {
            self.gpu.raw.destroy_buffer(self.buffer, None);
            self.gpu.raw.free_memory(self.memory, None);
        }
    }
}

impl SharedBuffer {
    /// A buffer of `bytes` in the GPU's memory, to be exported.
    pub fn new(
        gpu: &Arc<Gpu>,
        handle: HandleType,
        bytes: u64,
    ) -> Result<SharedBuffer, SharedMemoryError> {
        let made = Unbound::new(gpu, handle, Way::Export, bytes)?;
        let vk::MemoryRequirements { size, memory_type_bits, .. } = made.requirements;
        let mut export = vk::ExportMemoryAllocateInfo::default().handle_types(handle.flag());
        made.bind(size, memory_type_bits, &mut export, None)
    }

    /// The memory behind a descriptor, as a buffer of its first `bytes`. Of an opaque one `bytes` must be
    /// those that it was exported with. The descriptor is the driver's if this succeeds, and closed if not.
    ///
    /// What others do with the memory while the GPU copies changes what is copied, and nothing else.
    pub fn import(
        gpu: &Arc<Gpu>,
        handle: HandleType,
        fd: OwnedFd,
        bytes: u64,
    ) -> Result<SharedBuffer, SharedMemoryError> {
        let made = Unbound::new(gpu, handle, Way::Import, bytes)?;
        let (fd, size) = match handle {
            HandleType::DmaBuf => length(fd)?,
            // It has no length of its own: the driver compares sizes itself.
            HandleType::Opaque => (fd, made.requirements.size),
        };
        if size < made.requirements.size {
            let needed = made.requirements.size;
            return Err(SharedMemoryError::TooSmall { needed, found: size });
        }
        let types = made.requirements.memory_type_bits & made.types_of(&fd)?;
        let mut import =
            vk::ImportMemoryFdInfoKHR::default().handle_type(handle.flag()).fd(fd.as_raw_fd());
        made.bind(size, types, &mut import, Some(fd))
    }

    /// A descriptor of the memory, for another driver.
    pub fn export(&self) -> Result<OwnedFd, SharedMemoryError> {
        let functions = functions(&self.gpu, self.handle)?;
        let get =
            vk::MemoryGetFdInfoKHR::default().memory(self.memory).handle_type(self.handle.flag());
        // SAFETY: memory of this device, allocated for this type of handle.
        let fd = unsafe { functions.get_memory_fd(&get) }
            .map_err(|error| self.gpu.failure("exporting memory", error))?;
        // SAFETY: the call returns a new descriptor, which is the caller's.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Bytes of the buffer.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the memory behind it: what others may map.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Lets the GPU copy bytes into the start of the buffer, and waits for that.
    ///
    /// # Panics
    /// If there are more than the buffer has.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), SharedMemoryError> {
        assert!(bytes.len() as u64 <= self.bytes, "more bytes than the buffer has");
        let staged = self.copier.stage(Purpose::Staging, bytes.len())?;
        // SAFETY: a view of at least so many bytes that nothing uses: every copy was waited for.
        unsafe { staged.start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.copy((staged.region.buffer, staged.region.offset), (self.buffer, 0), bytes.len())
    }

    /// Lets the GPU copy the start of the buffer, and waits for that.
    ///
    /// # Panics
    /// If more is asked for than the buffer has.
    pub fn read(&mut self, bytes: &mut [u8]) -> Result<(), SharedMemoryError> {
        assert!(bytes.len() as u64 <= self.bytes, "more bytes than the buffer has");
        let staged = self.copier.stage(Purpose::Readback, bytes.len())?;
        self.copy((self.buffer, 0), (staged.region.buffer, staged.region.offset), bytes.len())?;
        // SAFETY: as in `write`; the copy has ended.
        unsafe { staged.start.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn copy(
        &mut self,
        from: (vk::Buffer, u64),
        to: (vk::Buffer, u64),
        bytes: usize,
    ) -> Result<(), SharedMemoryError> {
        if bytes == 0 {
            return Ok(());
        }
        let foreign = self.gpu.sharing.features.foreign && self.handle == HandleType::DmaBuf;
        let others = if foreign { vk::QUEUE_FAMILY_FOREIGN_EXT } else { vk::QUEUE_FAMILY_EXTERNAL };
        let copy = [vk::BufferCopy { src_offset: from.1, dst_offset: to.1, size: bytes as u64 }];
        let commands = CopyCommands { from: from.0, to: to.0, copy, shared: self.buffer, others };
        Ok(self.copier.run(&commands)?)
    }
}

/// A buffer without memory.
struct Unbound<'a> {
    gpu: &'a Arc<Gpu>,
    handle: HandleType,
    way: Way,
    bytes: u64,
    requirements: vk::MemoryRequirements,
    dedicated: bool,
    /// Destroyed with this, unless it got its memory.
    buffer: Option<vk::Buffer>,
}

impl Drop for Unbound<'_> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer {
            // SAFETY: nothing used it.
            unsafe { self.gpu.raw.destroy_buffer(buffer, None) };
        }
    }
}

impl<'a> Unbound<'a> {
    fn new(
        gpu: &'a Arc<Gpu>,
        handle: HandleType,
        way: Way,
        bytes: u64,
    ) -> Result<Unbound<'a>, SharedMemoryError> {
        functions(gpu, handle)?;
        if bytes == 0 || !bytes.is_multiple_of(4) {
            return Err(SharedMemoryError::Size(bytes));
        }
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let ask =
            vk::PhysicalDeviceExternalBufferInfo::default().usage(usage).handle_type(handle.flag());
        let mut answer = vk::ExternalBufferProperties::default();
        let instance = &gpu.instance.raw;
        // SAFETY: a device of this instance.
        unsafe {
            instance.get_physical_device_external_buffer_properties(
                gpu.physical,
                &ask,
                &mut answer,
            );
        }
        let features = answer.external_memory_properties.external_memory_features;
        let wanted = match way {
            Way::Import => vk::ExternalMemoryFeatureFlags::IMPORTABLE,
            Way::Export => vk::ExternalMemoryFeatureFlags::EXPORTABLE,
        };
        if !features.contains(wanted) {
            let device = gpu.description().name.clone();
            return Err(SharedMemoryError::Unsupported { device, way, handle });
        }
        let mut external =
            vk::ExternalMemoryBufferCreateInfo::default().handle_types(handle.flag());
        let create =
            vk::BufferCreateInfo::default().size(bytes).usage(usage).push_next(&mut external);
        let mut needs = vk::MemoryDedicatedRequirements::default();
        let mut requirements = vk::MemoryRequirements2::default().push_next(&mut needs);
        // SAFETY: a live device; the chains live through the calls.
        let buffer = unsafe {
            let buffer = gpu.raw.create_buffer(&create, None);
            let buffer = buffer.map_err(|error| gpu.failure("making a shared buffer", error))?;
            let ask = vk::BufferMemoryRequirementsInfo2::default().buffer(buffer);
            gpu.raw.get_buffer_memory_requirements2(&ask, &mut requirements);
            buffer
        };
        let requirements = requirements.memory_requirements;
        let dedicated = needs.requires_dedicated_allocation != 0
            || features.contains(vk::ExternalMemoryFeatureFlags::DEDICATED_ONLY);
        let buffer = Some(buffer);
        Ok(Unbound { gpu, handle, way, bytes, requirements, dedicated, buffer })
    }

    /// Memory types that a descriptor can be imported as.
    fn types_of(&self, fd: &OwnedFd) -> Result<u32, SharedMemoryError> {
        if self.handle == HandleType::Opaque {
            return Ok(u32::MAX);
        }
        let mut properties = vk::MemoryFdPropertiesKHR::default();
        let functions = functions(self.gpu, self.handle)?;
        let (flag, fd) = (self.handle.flag(), fd.as_raw_fd());
        // SAFETY: an open descriptor, which stays the caller's.
        unsafe { functions.get_memory_fd_properties(flag, fd, &mut properties) }
            .map_err(|error| self.gpu.failure("looking at a descriptor", error))?;
        Ok(properties.memory_type_bits)
    }

    /// Allocates memory of one of `types` and binds it; `fd` is the descriptor that is imported.
    fn bind(
        mut self,
        size: u64,
        types: u32,
        extension: &mut impl vk::ExtendsMemoryAllocateInfo,
        fd: Option<OwnedFd>,
    ) -> Result<SharedBuffer, SharedMemoryError> {
        let gpu = self.gpu;
        let copier = Copier::new(gpu)?;
        let (handle, way) = (self.handle, self.way);
        let Some(index) = memory_type(gpu, types) else {
            let device = gpu.description().name.clone();
            return Err(SharedMemoryError::NoMemoryType { device, way, handle });
        };
        let buffer = self.buffer.expect("it has a buffer until it is bound");
        let mut dedicated = vk::MemoryDedicatedAllocateInfo::default().buffer(buffer);
        let mut allocate = vk::MemoryAllocateInfo::default()
            .allocation_size(size)
            .memory_type_index(index)
            .push_next(extension);
        if self.dedicated {
            allocate = allocate.push_next(&mut dedicated);
        }
        // SAFETY: the chain lives through the call.
        let allocated = unsafe { gpu.raw.allocate_memory(&allocate, None) };
        // An allocation that succeeds takes the descriptor over; Mesa's software driver closes it in any case.
        if allocated.is_ok() || gpu.description().kind == GpuKind::Software {
            let _ = fd.map(IntoRawFd::into_raw_fd);
        }
        let memory = allocated.map_err(|error| gpu.failure("allocating shared memory", error))?;
        // SAFETY: a new buffer and new memory that is large enough; it is freed if it cannot be bound.
        unsafe {
            if let Err(error) = gpu.raw.bind_buffer_memory(buffer, memory, 0) {
                gpu.raw.free_memory(memory, None);
                return Err(gpu.failure("binding shared memory", error).into());
            }
        }
        self.buffer = None;
        let (bytes, allocated) = (self.bytes, size);
        Ok(SharedBuffer { gpu: gpu.clone(), handle, buffer, memory, bytes, allocated, copier })
    }
}

/// The best of some memory types: what the device calls its own first.
fn memory_type(gpu: &Gpu, types: u32) -> Option<u32> {
    let known = gpu.memory.memory_types_as_slice();
    let usable = || (0..known.len() as u32).filter(|index| types & (1 << index) != 0);
    let own = vk::MemoryPropertyFlags::DEVICE_LOCAL;
    usable().find(|&at| known[at as usize].property_flags.contains(own)).or_else(|| usable().next())
}

/// The functions for a type of handle, or the extension that is missing.
fn functions(
    gpu: &Gpu,
    handle: HandleType,
) -> Result<&khr::external_memory_fd::Device, SharedMemoryError> {
    let Sharing { functions, features } = &gpu.sharing;
    let missing = |extension| {
        let description = gpu.description();
        let (device, driver) = (description.name.clone(), description.driver.clone());
        SharedMemoryError::Missing { device, driver, extension, handle }
    };
    let functions = functions.as_ref().ok_or_else(|| missing("VK_KHR_external_memory_fd"))?;
    match handle == HandleType::DmaBuf && !features.dma_buf {
        true => Err(missing("VK_EXT_external_memory_dma_buf")),
        false => Ok(functions),
    }
}

/// A descriptor and its length.
fn length(fd: OwnedFd) -> Result<(OwnedFd, u64), SharedMemoryError> {
    let mut file = File::from(fd);
    let size = file.seek(SeekFrom::End(0));
    let size = size.and_then(|size| file.seek(SeekFrom::Start(0)).map(|_| size));
    Ok((OwnedFd::from(file), size.map_err(SharedMemoryError::Descriptor)?))
}
