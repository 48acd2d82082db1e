//! Device memory: large blocks, sub-allocated, freed together.
//!
//! Weights fill the device's own heap first, then the other one (on an integrated GPU both are the
//! same DRAM behind two budgets). A block is one allocation and one buffer over all of it; a
//! [`Region`] of it is what kernels bind.

use crate::describe::{GpuKind, Heap, heaps};
use crate::gpu::Gpu;
use ash::vk;
use pianola_plan::DeviceError;
use std::sync::Arc;

/// Coarsest offset at which any device may bind a storage buffer.
pub(crate) const ALIGNMENT: u64 = 256;
/// Size of a block unless something larger has to fit.
const BLOCK: u64 = 64 << 20;

/// A part of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Region {
    pub buffer: vk::Buffer,
    pub offset: u64,
    pub size: u64,
}

impl Region {
    /// A part of the region.
    pub fn slice(&self, offset: u64, size: u64) -> Region {
        assert!(offset + size <= self.size, "{offset} + {size} of {}", self.size);
        Region { buffer: self.buffer, offset: self.offset + offset, size }
    }

    /// A region of no buffer, for programs that are written but never played.
    pub fn dry_run(size: u64) -> Region {
        Region { buffer: vk::Buffer::null(), offset: 0, size }
    }
}

/// What memory is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Purpose {
    /// Weights, KV pages, activations: read and written by kernels.
    Resident,
    /// Activations that are allocated for one play, with the driver's calls for that and nothing else:
    /// no budget is asked for, and the host does not see them.
    OnePlay,
    /// Written by the host, read by kernels, small.
    Step,
    /// Written by the device, read by the host.
    Readback,
    /// Copied from.
    Staging,
}

struct Block {
    memory: vk::DeviceMemory,
    buffer: vk::Buffer,
    size: u64,
    used: u64,
    purpose: Purpose,
    /// Start of the host's view.
    mapped: Option<*mut u8>,
    device_local: bool,
}

/// Bytes by the kind of heap they lie in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeapUse {
    /// In the device's own heap.
    pub device_local: u64,
    /// In the other heap that the device reads directly.
    pub host: u64,
}

/// All memory of a recording.
pub(crate) struct Memory {
    gpu: Arc<Gpu>,
    blocks: Vec<Block>,
    /// Most bytes to take for [`Purpose::Resident`], where `host` is set in the device's own memory.
    limit: Option<u64>,
    /// Whether what the device's own memory does not hold may lie in the host's, even behind a bus.
    host: bool,
}

// SAFETY: mapped pointers lead to memory that lives as long as this does, whatever thread it is on.
unsafe impl Send for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.gpu.is_hung() {
            return;
        }
        for block in &self.blocks {
            // SAFETY: the recording waited for its submissions before it drops its memory.
            unsafe {
                self.gpu.raw.destroy_buffer(block.buffer, None);
                self.gpu.raw.free_memory(block.memory, None);
            }
        }
    }
}

impl Memory {
    pub fn new(gpu: Arc<Gpu>, limit: Option<u64>) -> Memory {
        Memory { gpu, blocks: Vec::new(), limit, host: false }
    }

    /// The same, with the host's memory for what the device's own does not hold.
    pub fn reaching_host(self, host: bool) -> Memory {
        let mut memory = self;
        memory.host = host;
        memory
    }

    /// Room for `size` bytes; `what` is named if there is none.
    pub fn allocate(
        &mut self,
        purpose: Purpose,
        size: u64,
        what: &str,
    ) -> Result<Region, DeviceError> {
        let size = region_size(size);
        let fits = |block: &&mut Block| block.purpose == purpose && block.size - block.used >= size;
        if let Some(block) = self.blocks.iter_mut().find(fits) {
            let region = Region { buffer: block.buffer, offset: block.used, size };
            block.used += size;
            return Ok(region);
        }
        let largest = self.gpu.description().largest_allocation;
        if size > largest {
            return Err(out_of_memory(&format!("{what} (at most {largest} at once)"), size));
        }
        // A last block smaller than usual may still fit where a whole one does not.
        let block = self
            .block(purpose, block_size(purpose, size, largest), what)
            .or_else(|_| self.block(purpose, size, what))?;
        Ok(self.keep(block, size))
    }

    /// Room with an allocation to itself.
    pub fn allocate_alone(
        &mut self,
        purpose: Purpose,
        size: u64,
        what: &str,
    ) -> Result<Region, DeviceError> {
        let size = region_size(size);
        let block = self.block(purpose, size, what)?;
        Ok(self.keep(block, size))
    }

    /// Takes over a new block, its first `size` bytes being used.
    fn keep(&mut self, block: Block, size: u64) -> Region {
        let region = Region { buffer: block.buffer, offset: 0, size };
        self.blocks.push(Block { used: size, ..block });
        region
    }

    /// What is left of every heap, by the driver's word where it gives one.
    fn budgets(&self) -> Vec<Heap> {
        let gpu = &self.gpu;
        if !gpu.budgets {
            return gpu.description().heaps.clone();
        }
        heaps(&gpu.instance, gpu.physical, &["VK_EXT_memory_budget".to_string()])
    }

    /// Heaps that weights, pages and activations fill, in that order, and what is left of them.
    pub fn resident_heaps(&self) -> Vec<Heap> {
        let budgets = self.budgets();
        self.resident_heap_indices().into_iter().map(|heap| budgets[heap]).collect()
    }

    /// The same by their places in the device's list.
    pub fn resident_heap_indices(&self) -> Vec<usize> {
        let mut order: Vec<usize> = Vec::new();
        for index in self.types(Purpose::Resident) {
            let heap = self.gpu.memory.memory_types[index as usize].heap_index as usize;
            if !order.contains(&heap) {
                order.push(heap);
            }
        }
        order
    }

    /// Memory types fit for a purpose, best first.
    fn types(&self, purpose: Purpose) -> Vec<u32> {
        use vk::MemoryPropertyFlags as Flags;
        let visible = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
        let types = self.gpu.memory.memory_types_as_slice();
        let all = |wanted: Flags| {
            (0..types.len() as u32)
                .filter(move |&index| types[index as usize].property_flags.contains(wanted))
        };
        let mut order: Vec<u32> = match purpose {
            // Mapped where all of the device's memory can be: the file then goes straight in.
            Purpose::Resident | Purpose::OnePlay => {
                let own = |index: &u32| {
                    let heap = types[*index as usize].heap_index as usize;
                    let largest = self.gpu.memory.memory_heaps_as_slice().iter();
                    let largest = largest
                        .filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
                        .map(|heap| heap.size)
                        .max();
                    Some(self.gpu.memory.memory_heaps[heap].size) == largest
                };
                // What a card has to read over the bus is better computed by the processor.
                let kind = self.gpu.description().kind;
                let shared = self.host || matches!(kind, GpuKind::Integrated | GpuKind::Software);
                all(Flags::DEVICE_LOCAL | visible)
                    .filter(own)
                    .chain(all(Flags::DEVICE_LOCAL))
                    .chain(all(visible).filter(|_| shared))
                    .collect()
            }
            Purpose::Step => all(Flags::DEVICE_LOCAL | visible).chain(all(visible)).collect(),
            Purpose::Readback => all(visible | Flags::HOST_CACHED).chain(all(visible)).collect(),
            Purpose::Staging => all(visible).collect(),
        };
        let mut seen = Vec::new();
        order.retain(|index| {
            let new = !seen.contains(index);
            seen.push(*index);
            new
        });
        order
    }

    fn block(&self, purpose: Purpose, size: u64, what: &str) -> Result<Block, DeviceError> {
        let counts = |block: &&Block| {
            block.purpose == Purpose::Resident && (block.device_local || !self.host)
        };
        let taken: u64 = self.blocks.iter().filter(counts).map(|block| block.size).sum();
        let over =
            purpose == Purpose::Resident && self.limit.is_some_and(|limit| taken + size > limit);
        if let Some(limit) = self.limit.filter(|_| over && !self.host) {
            return Err(out_of_memory(&format!("{what} within the limit of {limit} bytes"), size));
        }
        let gpu = &self.gpu;
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let create = vk::BufferCreateInfo::default().size(size).usage(usage);
        // SAFETY: a live device; each object made here is destroyed if a later call fails.
        unsafe {
            let buffer = gpu
                .raw
                .create_buffer(&create, None)
                .map_err(|error| gpu.failure("making a buffer", error))?;
            let needs = gpu.raw.get_buffer_memory_requirements(buffer);
            let budgets = (purpose != Purpose::OnePlay).then(|| self.budgets());
            for index in self.types(purpose) {
                let ty = gpu.memory.memory_types[index as usize];
                let fits = budgets.as_ref().is_none_or(|budgets| {
                    let heap = &budgets[ty.heap_index as usize];
                    heap.used + needs.size <= heap.budget
                });
                let own = ty.property_flags.contains(vk::MemoryPropertyFlags::DEVICE_LOCAL);
                if needs.memory_type_bits & (1 << index) == 0 || !fits || (over && own) {
                    continue;
                }
                let allocate = vk::MemoryAllocateInfo::default()
                    .allocation_size(needs.size)
                    .memory_type_index(index);
                let Ok(memory) = gpu.raw.allocate_memory(&allocate, None) else { continue };
                let visible = ty.property_flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE)
                    && purpose != Purpose::OnePlay;
                let map = || {
                    let flags = vk::MemoryMapFlags::empty();
                    gpu.raw.map_memory(memory, 0, vk::WHOLE_SIZE, flags).map(<*mut _>::cast)
                };
                let mapped = if visible { Some(map()) } else { None };
                let bound = gpu.raw.bind_buffer_memory(buffer, memory, 0);
                match (bound, mapped.transpose()) {
                    (Ok(()), Ok(mapped)) => {
                        let local = vk::MemoryPropertyFlags::DEVICE_LOCAL;
                        let device_local = ty.property_flags.contains(local);
                        return Ok(Block {
                            memory,
                            buffer,
                            size,
                            used: 0,
                            purpose,
                            mapped,
                            device_local,
                        });
                    }
                    _ => gpu.raw.free_memory(memory, None),
                }
            }
            gpu.raw.destroy_buffer(buffer, None);
        }
        Err(out_of_memory(what, size))
    }

    /// The host's view of a region, where there is one.
    pub fn mapped(&self, region: Region) -> Option<*mut u8> {
        let block = self.blocks.iter().find(|block| block.buffer == region.buffer)?;
        assert!(region.offset + region.size <= block.size);
        // SAFETY: inside the mapped block.
        block.mapped.map(|start| unsafe { start.add(region.offset as usize) })
    }

    /// All blocks.
    pub fn buffers(&self) -> Vec<vk::Buffer> {
        self.blocks.iter().map(|block| block.buffer).collect()
    }

    /// Bytes taken for weights, pages and activations.
    pub fn heap_use(&self) -> HeapUse {
        let resident = |local: bool| {
            let blocks = self.blocks.iter();
            let blocks = blocks.filter(|block| block.purpose == Purpose::Resident);
            blocks.filter(|block| block.device_local == local).map(|block| block.size).sum()
        };
        HeapUse { device_local: resident(true), host: resident(false) }
    }
}

/// Bytes that a region of `size` bytes takes.
pub(crate) fn region_size(size: u64) -> u64 {
    size.max(16).next_multiple_of(ALIGNMENT)
}

/// Bytes of a new block whose first region has `size` bytes.
pub(crate) fn block_size(purpose: Purpose, size: u64, largest: u64) -> u64 {
    let usual = if purpose == Purpose::Resident { BLOCK } else { 1 << 20 };
    usual.max(size).min(largest)
}

pub(crate) fn out_of_memory(what: &str, bytes: u64) -> DeviceError {
    DeviceError::OutOfMemory { device: "vulkan".to_string(), what: what.to_string(), bytes }
}
