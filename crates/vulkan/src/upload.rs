//! From the file to device memory, through a bounded ring of staging buffers where the device's
//! memory is not mapped.

use crate::gpu::Gpu;
use crate::memory::{Memory, Purpose, Region};
use ash::vk;
use pianola_plan::{DeviceError, WAIT_LIMIT};
use std::sync::Arc;

/// Bytes of one staging buffer; all of the host memory that loading takes is three of them.
pub(crate) const STAGE: u64 = 32 << 20;
const STAGES: usize = 3;

struct Stage {
    region: Region,
    start: *mut u8,
    commands: vk::CommandBuffer,
    fence: vk::Fence,
    busy: bool,
}

/// Writes regions of device memory.
pub(crate) struct Uploader {
    gpu: Arc<Gpu>,
    pool: vk::CommandPool,
    stages: Vec<Stage>,
    next: usize,
    // Holds the staging buffers.
    memory: Memory,
}

impl Drop for Uploader {
    fn drop(&mut self) {
        for stage in &self.stages {
            if stage.busy {
                // An error here was reported before.
                let _ = self.gpu.wait(stage.fence, WAIT_LIMIT, "an upload");
            }
        }
        if self.gpu.is_hung() {
            return;
        }
        // SAFETY: waited for, or the device is lost and no longer uses it.
        unsafe {
            for stage in &self.stages {
                self.gpu.raw.destroy_fence(stage.fence, None);
            }
            self.gpu.raw.destroy_command_pool(self.pool, None);
        }
    }
}

impl Uploader {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Uploader, DeviceError> {
        let create = vk::CommandPoolCreateInfo::default()
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER)
            .queue_family_index(gpu.family);
        // SAFETY: a live device.
        let pool = unsafe { gpu.raw.create_command_pool(&create, None) }
            .map_err(|error| gpu.failure("making a command pool", error))?;
        let memory = Memory::new(gpu.clone(), None);
        Ok(Uploader { gpu: gpu.clone(), pool, stages: Vec::new(), next: 0, memory })
    }

    /// Lets `fill` write pieces of device memory: `pieces` are (offset in `region`, length), and
    /// `fill` gets a slice for each. Returns before the bytes have arrived; see
    /// [`Uploader::finish`].
    ///
    /// # Panics
    /// If the pieces are longer than a stage together.
    pub fn write(
        &mut self,
        memory: &Memory,
        region: Region,
        pieces: &[(u64, u64)],
        fill: impl FnOnce(Vec<&mut [u8]>),
    ) -> Result<(), DeviceError> {
        if let Some(start) = memory.mapped(region) {
            let mut slices = Vec::with_capacity(pieces.len());
            for &(offset, length) in pieces {
                assert!(offset + length <= region.size);
                // SAFETY: inside the mapped region, and pieces of a plane do not overlap; nothing that is
                // under way on the device uses the region: it is filled before the first submission, or after
                // all were waited for.
                slices.push(unsafe {
                    std::slice::from_raw_parts_mut(start.add(offset as usize), length as usize)
                });
            }
            fill(slices);
            return Ok(());
        }
        let total: u64 = pieces.iter().map(|piece| piece.1.next_multiple_of(16)).sum();
        assert!(total <= STAGE, "{total} bytes at once");
        if self.stages.len() < STAGES {
            let stage = self.stage()?;
            self.stages.push(stage);
        }
        let at = self.next % self.stages.len();
        self.next += 1;
        let stage = &mut self.stages[at];
        if stage.busy {
            self.gpu.wait(stage.fence, WAIT_LIMIT, "an upload")?;
            // SAFETY: waited for.
            unsafe { self.gpu.raw.reset_fences(&[stage.fence]) }
                .map_err(|error| self.gpu.failure("resetting a fence", error))?;
            stage.busy = false;
        }
        let mut slices = Vec::with_capacity(pieces.len());
        let mut copies = Vec::with_capacity(pieces.len());
        let mut used = 0;
        for &(offset, length) in pieces {
            if length > 0 {
                copies.push(vk::BufferCopy {
                    src_offset: stage.region.offset + used,
                    dst_offset: region.offset + offset,
                    size: length,
                });
            }
            // SAFETY: pieces follow one another inside the stage, which nothing else uses.
            slices.push(unsafe {
                std::slice::from_raw_parts_mut(stage.start.add(used as usize), length as usize)
            });
            used += length.next_multiple_of(16);
        }
        fill(slices);
        let begin = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        let commands = [vk::CommandBufferSubmitInfo::default().command_buffer(stage.commands)];
        let submit = [vk::SubmitInfo2::default().command_buffer_infos(&commands)];
        let raw = &self.gpu.raw;
        // SAFETY: the command buffer is idle; regions lie inside their buffers.
        let recorded = unsafe {
            raw.begin_command_buffer(stage.commands, &begin)
                .map(|()| {
                    raw.cmd_copy_buffer(
                        stage.commands,
                        stage.region.buffer,
                        region.buffer,
                        &copies,
                    );
                })
                .and_then(|()| raw.end_command_buffer(stage.commands))
        };
        recorded.map_err(|error| self.gpu.failure("an upload", error))?;
        self.gpu.submit(&submit, stage.fence, "an upload")?;
        stage.busy = true;
        Ok(())
    }

    /// Writes bytes that are at hand, however many.
    pub fn copy(
        &mut self,
        memory: &Memory,
        region: Region,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        for (index, part) in bytes.chunks(STAGE as usize).enumerate() {
            let pieces = [(index as u64 * STAGE, part.len() as u64)];
            self.write(memory, region, &pieces, |mut slices| slices[0].copy_from_slice(part))?;
        }
        Ok(())
    }

    /// Waits until everything written has arrived.
    pub fn finish(mut self) -> Result<(), DeviceError> {
        for stage in &mut self.stages {
            if stage.busy {
                self.gpu.wait(stage.fence, WAIT_LIMIT, "an upload")?;
                stage.busy = false;
            }
        }
        Ok(())
    }

    fn stage(&mut self) -> Result<Stage, DeviceError> {
        let region = self.memory.allocate(Purpose::Staging, STAGE, "a staging buffer")?;
        let start = self.memory.mapped(region).expect("staging memory is visible to the host");
        let gpu = &self.gpu;
        let allocate = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        // SAFETY: a live device and its pool.
        unsafe {
            let commands = gpu
                .raw
                .allocate_command_buffers(&allocate)
                .map_err(|error| gpu.failure("making a command buffer", error))?[0];
            let fence = gpu
                .raw
                .create_fence(&vk::FenceCreateInfo::default(), None)
                .map_err(|error| gpu.failure("making a fence", error))?;
            Ok(Stage { region, start, commands, fence, busy: false })
        }
    }
}
