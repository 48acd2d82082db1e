//! Copies between a shared buffer and memory that the host sees.

use crate::gpu::Gpu;
use crate::memory::{Memory, Purpose, Region};
use ash::vk;
use pianola_plan::{DeviceError, WAIT_LIMIT};
use std::sync::Arc;

/// Staging memory and one command buffer.
pub(super) struct Copier {
    gpu: Arc<Gpu>,
    pool: vk::CommandPool,
    commands: vk::CommandBuffer,
    fence: vk::Fence,
    staged: Vec<(Purpose, Staged)>,
    memory: Memory,
}

/// Memory that the host sees.
#[derive(Clone, Copy)]
pub(super) struct Staged {
    pub region: Region,
    pub start: *mut u8,
}

// SAFETY: the pointers lead to memory that lives as long as this does, whatever thread it is on.
unsafe impl Send for Copier {}

/// A copy from or to a shared buffer.
pub(super) struct CopyCommands {
    pub from: vk::Buffer,
    pub to: vk::Buffer,
    pub copy: [vk::BufferCopy; 1],
    pub shared: vk::Buffer,
    /// The queue family that stands for its other owners.
    pub others: u32,
}

impl Drop for Copier {
    fn drop(&mut self) {
        if self.gpu.is_hung() {
            return;
        }
        // SAFETY: every submission was waited for.
        unsafe {
            self.gpu.raw.destroy_fence(self.fence, None);
            self.gpu.raw.destroy_command_pool(self.pool, None);
        }
    }
}

impl Copier {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Copier, DeviceError> {
        let create = vk::CommandPoolCreateInfo::default()
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER)
            .queue_family_index(gpu.family);
        let memory = Memory::new(gpu.clone(), None);
        // SAFETY: a live device; what was made is destroyed if a later call fails.
        unsafe {
            let pool = gpu.raw.create_command_pool(&create, None);
            let pool = pool.map_err(|error| gpu.failure("making a command pool", error))?;
            let allocate = vk::CommandBufferAllocateInfo::default()
                .command_pool(pool)
                .level(vk::CommandBufferLevel::PRIMARY)
                .command_buffer_count(1);
            let made = gpu.raw.allocate_command_buffers(&allocate).and_then(|commands| {
                let fence = gpu.raw.create_fence(&vk::FenceCreateInfo::default(), None)?;
                Ok((commands[0], fence))
            });
            let (commands, fence) = made.map_err(|error| {
                gpu.raw.destroy_command_pool(pool, None);
                gpu.failure("making a command buffer", error)
            })?;
            Ok(Copier { gpu: gpu.clone(), pool, commands, fence, staged: Vec::new(), memory })
        }
    }

    /// Staging memory of at least so many bytes, kept for the next copy.
    pub fn stage(&mut self, purpose: Purpose, bytes: usize) -> Result<Staged, DeviceError> {
        let fits = |(known, staged): &&(Purpose, Staged)| {
            *known == purpose && staged.region.size >= bytes as u64
        };
        if let Some((_, staged)) = self.staged.iter().find(fits) {
            return Ok(*staged);
        }
        let region = self.memory.allocate(purpose, bytes as u64, "a staging buffer")?;
        let start = self.memory.mapped(region).expect("staging memory is visible to the host");
        let staged = Staged { region, start };
        self.staged.push((purpose, staged));
        Ok(staged)
    }

    /// Takes the shared buffer over, copies, gives it back, and waits.
    pub fn run(&mut self, copy: &CopyCommands) -> Result<(), DeviceError> {
        let raw = &self.gpu.raw;
        let begin = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        let barrier =
            vk::BufferMemoryBarrier2::default().buffer(copy.shared).offset(0).size(vk::WHOLE_SIZE);
        let (stage, access) = (
            vk::PipelineStageFlags2::COPY,
            vk::AccessFlags2::TRANSFER_READ | vk::AccessFlags2::TRANSFER_WRITE,
        );
        let acquire = [barrier
            .src_queue_family_index(copy.others)
            .dst_queue_family_index(self.gpu.family)
            .dst_stage_mask(stage)
            .dst_access_mask(access)];
        let release = [barrier
            .src_queue_family_index(self.gpu.family)
            .dst_queue_family_index(copy.others)
            .src_stage_mask(stage)
            .src_access_mask(access)];
        // What was copied to staging memory is read by the host.
        let host = [vk::MemoryBarrier2::default()
            .src_stage_mask(stage)
            .src_access_mask(vk::AccessFlags2::TRANSFER_WRITE)
            .dst_stage_mask(vk::PipelineStageFlags2::HOST)
            .dst_access_mask(vk::AccessFlags2::HOST_READ)];
        let before = vk::DependencyInfo::default().buffer_memory_barriers(&acquire);
        let after =
            vk::DependencyInfo::default().buffer_memory_barriers(&release).memory_barriers(&host);
        // SAFETY: the command buffer is idle; the copy lies inside both buffers.
        let recorded = unsafe {
            raw.begin_command_buffer(self.commands, &begin).and_then(|()| {
                raw.cmd_pipeline_barrier2(self.commands, &before);
                raw.cmd_copy_buffer(self.commands, copy.from, copy.to, &copy.copy);
                raw.cmd_pipeline_barrier2(self.commands, &after);
                raw.end_command_buffer(self.commands)
            })
        };
        let what = "a copy of shared memory";
        recorded.map_err(|error| self.gpu.failure(what, error))?;
        let commands = [vk::CommandBufferSubmitInfo::default().command_buffer(self.commands)];
        let submit = [vk::SubmitInfo2::default().command_buffer_infos(&commands)];
        self.gpu.submit(&submit, self.fence, what)?;
        self.gpu.wait(self.fence, WAIT_LIMIT, what)?;
        // SAFETY: waited for.
        unsafe { raw.reset_fences(&[self.fence]) }.map_err(|error| self.gpu.failure(what, error))
    }
}
