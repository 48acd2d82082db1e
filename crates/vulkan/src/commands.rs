//! Command buffers and descriptor sets: a program in the form that is submitted.

use crate::gpu::Gpu;
use crate::memory::Region;
use crate::pipeline::{Pipelines, Shader};
use crate::program::Dispatch;
use ash::vk;
use pianola_plan::DeviceError;
use std::collections::HashMap;
use std::sync::Arc;

/// Descriptor sets in one pool.
const SETS: u32 = 512;
/// Buffers in one pool; no kernel binds more than 20.
const DESCRIPTORS: u32 = SETS * 20;

/// Most bytes that a command can carry.
pub(crate) const MOST_UPDATED: usize = 65_536;

/// A dispatch with everything found that a command needs.
pub(crate) struct Launch {
    pipeline: vk::Pipeline,
    layout: vk::PipelineLayout,
    set: vk::DescriptorSet,
    push: Vec<u8>,
    groups: [u32; 3],
    barrier: bool,
}

/// Rows in memory, and the bytes between the starts of two of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub region: Region,
    pub stride: u64,
}

/// Makes command buffers and the descriptor sets they bind, each set once.
pub(crate) struct Recorder {
    gpu: Arc<Gpu>,
    commands: vk::CommandPool,
    pools: Vec<vk::DescriptorPool>,
    left: u32,
    sets: HashMap<(Shader, Vec<Region>), (vk::DescriptorPool, vk::DescriptorSet)>,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.gpu.is_hung() {
            return;
        }
        // SAFETY: the recording waited for its submissions before it drops this.
        unsafe {
            self.gpu.raw.destroy_command_pool(self.commands, None);
            self.pools.iter().for_each(|&pool| self.gpu.raw.destroy_descriptor_pool(pool, None));
        }
    }
}

impl Recorder {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Recorder, DeviceError> {
        let create = vk::CommandPoolCreateInfo::default()
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER)
            .queue_family_index(gpu.family);
        // SAFETY: a live device.
        let commands = unsafe { gpu.raw.create_command_pool(&create, None) }
            .map_err(|error| gpu.failure("making a command pool", error))?;
        Ok(Recorder {
            gpu: gpu.clone(),
            commands,
            pools: Vec::new(),
            left: 0,
            sets: HashMap::new(),
        })
    }

    /// A descriptor set with one buffer after another, written once.
    pub fn set(
        &mut self,
        layout: vk::DescriptorSetLayout,
        counts: &[u32],
        regions: &[Region],
    ) -> Result<vk::DescriptorSet, DeviceError> {
        let gpu = self.gpu.clone();
        if self.left == 0 {
            let sizes = [vk::DescriptorPoolSize {
                ty: vk::DescriptorType::STORAGE_BUFFER,
                descriptor_count: DESCRIPTORS,
            }];
            let create = vk::DescriptorPoolCreateInfo::default()
                .flags(vk::DescriptorPoolCreateFlags::FREE_DESCRIPTOR_SET)
                .max_sets(SETS)
                .pool_sizes(&sizes);
            // SAFETY: a live device.
            let pool = unsafe { gpu.raw.create_descriptor_pool(&create, None) }
                .map_err(|error| gpu.failure("making a descriptor pool", error))?;
            self.pools.push(pool);
            self.left = SETS;
        }
        let layouts = [layout];
        let allocate = vk::DescriptorSetAllocateInfo::default()
            .descriptor_pool(*self.pools.last().expect("made above"))
            .set_layouts(&layouts);
        // SAFETY: the pool has room for another set.
        let set = unsafe { gpu.raw.allocate_descriptor_sets(&allocate) }
            .map_err(|error| gpu.failure("making a descriptor set", error))?[0];
        self.left -= 1;
        assert_eq!(counts.iter().sum::<u32>() as usize, regions.len(), "a buffer for each slot");
        let infos: Vec<vk::DescriptorBufferInfo> = regions
            .iter()
            .map(|region| vk::DescriptorBufferInfo {
                buffer: region.buffer,
                offset: region.offset,
                range: region.size,
            })
            .collect();
        let mut rest = &infos[..];
        let mut writes = Vec::with_capacity(counts.len());
        for (binding, &count) in counts.iter().enumerate() {
            let (mine, others) = rest.split_at(count as usize);
            rest = others;
            writes.push(
                vk::WriteDescriptorSet::default()
                    .dst_set(set)
                    .dst_binding(binding as u32)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .buffer_info(mine),
            );
        }
        // SAFETY: a new set that nothing uses yet; regions lie inside their buffers.
        unsafe { gpu.raw.update_descriptor_sets(&writes, &[]) };
        Ok(set)
    }

    fn set_of(
        &mut self,
        pipelines: &mut Pipelines,
        dispatch: &Dispatch,
    ) -> Result<vk::DescriptorSet, DeviceError> {
        let shader = dispatch.variant.shader;
        let key = (shader, dispatch.bindings.clone());
        if let Some(&(_, set)) = self.sets.get(&key) {
            return Ok(set);
        }
        let (layout, _) = pipelines.layouts(shader)?;
        let set = self.set(layout, shader.bindings(), &dispatch.bindings)?;
        self.sets.insert(key, (*self.pools.last().expect("the set came from it"), set));
        Ok(set)
    }

    /// Drops the descriptor sets that bind any of `buffers`, which are about to be freed.
    pub fn forget(&mut self, buffers: &[vk::Buffer]) -> Result<(), DeviceError> {
        if buffers.is_empty() {
            return Ok(());
        }
        let old: Vec<(Shader, Vec<Region>)> = self
            .sets
            .keys()
            .filter(|(_, bound)| bound.iter().any(|region| buffers.contains(&region.buffer)))
            .cloned()
            .collect();
        for key in old {
            if let Some((pool, set)) = self.sets.remove(&key) {
                // SAFETY: the play that used the set is done; its pool allows freeing.
                unsafe { self.gpu.raw.free_descriptor_sets(pool, &[set]) }
                    .map_err(|error| self.gpu.failure("freeing a descriptor set", error))?;
            }
        }
        Ok(())
    }

    /// An empty command buffer.
    pub fn allocate(&mut self) -> Result<vk::CommandBuffer, DeviceError> {
        let allocate = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.commands)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        // SAFETY: a live device and its pool.
        let made = unsafe { self.gpu.raw.allocate_command_buffers(&allocate) };
        made.map(|list| list[0]).map_err(|error| self.gpu.failure("making a command buffer", error))
    }

    /// Gives back a command buffer that is done.
    pub fn free(&mut self, commands: vk::CommandBuffer) {
        // SAFETY: the caller waited for it.
        unsafe { self.gpu.raw.free_command_buffers(self.commands, &[commands]) };
    }

    /// Begins, lets `write` fill, and ends a command buffer that may be submitted again and again.
    pub fn write(
        &self,
        commands: vk::CommandBuffer,
        write: impl FnOnce(&Recorder),
    ) -> Result<(), DeviceError> {
        let begin = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::SIMULTANEOUS_USE);
        // SAFETY: the command buffer is not in flight.
        unsafe { self.gpu.raw.begin_command_buffer(commands, &begin) }
            .map_err(|error| self.gpu.failure("recording", error))?;
        write(self);
        // SAFETY: begun above.
        unsafe { self.gpu.raw.end_command_buffer(commands) }
            .map_err(|error| self.gpu.failure("recording", error))
    }

    /// Compiles what dispatches need and writes their descriptor sets.
    pub fn realise(
        &mut self,
        pipelines: &mut Pipelines,
        program: &[Dispatch],
    ) -> Result<Vec<Launch>, DeviceError> {
        let launch = |dispatch: &Dispatch| {
            Ok(Launch {
                pipeline: pipelines.pipeline(&dispatch.variant)?,
                layout: pipelines.layouts(dispatch.variant.shader)?.1,
                set: self.set_of(pipelines, dispatch)?,
                push: dispatch.push.clone(),
                groups: dispatch.groups,
                barrier: dispatch.barrier,
            })
        };
        let launches = program.iter().map(launch).collect();
        pipelines.save();
        launches
    }

    /// Writes launches into a command buffer that is being recorded.
    pub fn launches(
        &self,
        commands: vk::CommandBuffer,
        step: vk::DescriptorSet,
        launches: &[Launch],
        mut stamp: impl FnMut(vk::CommandBuffer, usize),
    ) {
        let raw = &self.gpu.raw;
        let point = vk::PipelineBindPoint::COMPUTE;
        let stage = vk::ShaderStageFlags::COMPUTE;
        for (index, launch) in launches.iter().enumerate() {
            let Launch { pipeline, layout, set, groups: [x, y, z], .. } = *launch;
            if launch.barrier {
                self.barrier(commands);
            }
            // SAFETY: the command buffer is being recorded; pipeline, layout and sets fit one
            // another because they come from the same shader's description.
            unsafe {
                raw.cmd_bind_pipeline(commands, point, pipeline);
                raw.cmd_bind_descriptor_sets(commands, point, layout, 0, &[step, set], &[]);
                raw.cmd_push_constants(commands, layout, stage, 0, &launch.push);
                raw.cmd_dispatch(commands, x, y, z);
            }
            stamp(commands, index);
        }
    }

    /// Makes all writes of kernels so far visible to the kernels and copies that follow.
    pub fn barrier(&self, commands: vk::CommandBuffer) {
        let compute = vk::PipelineStageFlags2::COMPUTE_SHADER;
        let copy = vk::PipelineStageFlags2::ALL_TRANSFER;
        let barrier = [vk::MemoryBarrier2::default()
            .src_stage_mask(compute | copy)
            .src_access_mask(
                vk::AccessFlags2::SHADER_STORAGE_WRITE | vk::AccessFlags2::TRANSFER_WRITE,
            )
            .dst_stage_mask(compute | copy)
            .dst_access_mask(
                vk::AccessFlags2::SHADER_STORAGE_READ
                    | vk::AccessFlags2::SHADER_STORAGE_WRITE
                    | vk::AccessFlags2::TRANSFER_READ
                    | vk::AccessFlags2::TRANSFER_WRITE,
            )];
        let dependency = vk::DependencyInfo::default().memory_barriers(&barrier);
        // SAFETY: the command buffer is being recorded.
        unsafe { self.gpu.raw.cmd_pipeline_barrier2(commands, &dependency) };
    }

    /// Writes some bytes into a region, behind the barrier before and ahead of the next one.
    pub fn update(&self, commands: vk::CommandBuffer, to: Region, bytes: &[u8]) {
        assert!(bytes.len() as u64 <= to.size && bytes.len() <= MOST_UPDATED);
        // SAFETY: being recorded; the bytes are whole words, and lie inside the region's buffer.
        unsafe { self.gpu.raw.cmd_update_buffer(commands, to.buffer, to.offset, bytes) };
    }

    /// Fills regions with bytes of all ones, NaN in every float, after the commands before and
    /// ahead of those behind.
    pub fn fill_with_nan(&self, commands: vk::CommandBuffer, regions: &[Region]) {
        let all = vk::PipelineStageFlags2::ALL_COMMANDS;
        let access = vk::AccessFlags2::MEMORY_READ | vk::AccessFlags2::MEMORY_WRITE;
        let barrier = [vk::MemoryBarrier2::default()
            .src_stage_mask(all)
            .src_access_mask(access)
            .dst_stage_mask(all)
            .dst_access_mask(access)];
        let dependency = vk::DependencyInfo::default().memory_barriers(&barrier);
        // SAFETY: being recorded; the regions lie inside their buffers, in whole words.
        unsafe {
            self.gpu.raw.cmd_pipeline_barrier2(commands, &dependency);
            for &Region { buffer, offset, size, .. } in regions {
                self.gpu.raw.cmd_fill_buffer(commands, buffer, offset, size, u32::MAX);
            }
            self.gpu.raw.cmd_pipeline_barrier2(commands, &dependency);
        }
    }

    /// Copies a region after the commands that wrote it; the host may read the copy.
    pub fn copy(&self, commands: vk::CommandBuffer, from: Region, to: Region) {
        self.barrier(commands);
        let regions = [vk::BufferCopy {
            src_offset: from.offset,
            dst_offset: to.offset,
            size: from.size.min(to.size),
        }];
        // SAFETY: as above; both regions lie inside their buffers.
        unsafe { self.gpu.raw.cmd_copy_buffer(commands, from.buffer, to.buffer, &regions) };
        self.to_host(commands);
    }

    /// Copies rows of `bytes` bytes after the commands that wrote them, for the copy's reader: a kernel
    /// or the host.
    pub fn copy_rows(
        &self,
        commands: vk::CommandBuffer,
        from: Rows,
        to: Rows,
        rows: usize,
        bytes: u64,
    ) {
        self.barrier(commands);
        let region = |row: u64, count: u64| vk::BufferCopy {
            src_offset: from.region.offset + row * from.stride,
            dst_offset: to.region.offset + row * to.stride,
            size: count * bytes,
        };
        let regions: Vec<vk::BufferCopy> = match from.stride == bytes && to.stride == bytes {
            true => vec![region(0, rows as u64)],
            false => (0..rows as u64).map(|row| region(row, 1)).collect(),
        };
        // SAFETY: being recorded; the rows lie inside their buffers.
        unsafe {
            self.gpu.raw.cmd_copy_buffer(commands, from.region.buffer, to.region.buffer, &regions);
        }
        self.barrier(commands);
        self.to_host(commands);
    }

    /// Makes what was written visible to the host.
    pub fn to_host(&self, commands: vk::CommandBuffer) {
        let written = [vk::MemoryBarrier2::default()
            .src_stage_mask(vk::PipelineStageFlags2::COPY | vk::PipelineStageFlags2::COMPUTE_SHADER)
            .src_access_mask(
                vk::AccessFlags2::TRANSFER_WRITE | vk::AccessFlags2::SHADER_STORAGE_WRITE,
            )
            .dst_stage_mask(vk::PipelineStageFlags2::HOST)
            .dst_access_mask(vk::AccessFlags2::HOST_READ)];
        let dependency = vk::DependencyInfo::default().memory_barriers(&written);
        // SAFETY: the command buffer is being recorded.
        unsafe { self.gpu.raw.cmd_pipeline_barrier2(commands, &dependency) };
    }
}
