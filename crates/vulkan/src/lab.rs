//! A bench for kernels: times dispatches on the device, without a model.

use crate::commands::Recorder;
use crate::describe::GpuKind;
use crate::gpu::Gpu;
use crate::memory::{Memory, Purpose, Region};
use crate::pipeline::Pipelines;
use crate::program::Dispatch;
use crate::step::{STEP_BYTES, write_step};
use ash::vk;
use pianola_plan::{DeviceError, Step, WAIT_LIMIT};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a measurement keeps a GPU busy at least.
const AWAKE: Duration = Duration::from_millis(40);

/// Memory, pipelines and a queue to try kernels on.
pub(crate) struct Lab {
    gpu: Arc<Gpu>,
    fence: vk::Fence,
    queries: Option<vk::QueryPool>,
    set: vk::DescriptorSet,
    /// The step that kernels see.
    pub step: Region,
    recorder: Recorder,
    pipelines: Pipelines,
    pub memory: Memory,
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.gpu.is_hung() {
            return;
        }
        // SAFETY: every timing waits for its submission.
        unsafe {
            self.gpu.raw.destroy_fence(self.fence, None);
            if let Some(queries) = self.queries {
                self.gpu.raw.destroy_query_pool(queries, None);
            }
        }
    }
}

impl Lab {
    /// A lab whose kernels see a step of one row, until another is written.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Lab, DeviceError> {
        let pipelines = Pipelines::new(gpu)?;
        let mut recorder = Recorder::new(gpu)?;
        let mut memory = Memory::new(gpu.clone(), None);
        let step = memory.allocate(Purpose::Step, STEP_BYTES, "a step")?;
        let table = memory.allocate(Purpose::Step, 256, "a page table")?;
        let set = recorder.set(pipelines.step_set, &[1, 1], &[step, table])?;
        let mut row = Step::default();
        row.push(0, 0, 0, true);
        // SAFETY: mapped, and nothing plays yet.
        unsafe { write_step(memory.mapped(step).expect("visible to the host"), &row) };
        // SAFETY: a live device.
        let fence = unsafe { gpu.raw.create_fence(&vk::FenceCreateInfo::default(), None) }
            .map_err(|error| gpu.failure("making a fence", error))?;
        let queries = gpu.description().tick.is_some().then(|| query_pool(gpu, 2)).transpose()?;
        Ok(Lab { gpu: gpu.clone(), fence, queries, set, step, recorder, pipelines, memory })
    }

    /// Room on the device, filled with `byte`.
    pub fn buffer(&mut self, bytes: u64, byte: u8) -> Result<Region, DeviceError> {
        let region = self.memory.allocate(Purpose::Resident, bytes, "a benchmark")?;
        let word = u32::from_ne_bytes([byte; 4]);
        self.run(|raw, commands| {
            // SAFETY: the region lies inside its buffer; being recorded.
            unsafe {
                raw.cmd_fill_buffer(commands, region.buffer, region.offset, region.size, word)
            }
        })?;
        Ok(region)
    }

    fn run(
        &mut self,
        write: impl FnOnce(&ash::Device, vk::CommandBuffer),
    ) -> Result<(), DeviceError> {
        let commands = self.recorder.allocate()?;
        let gpu = self.gpu.clone();
        self.recorder.write(commands, |_| write(&gpu.raw, commands))?;
        self.submit(commands)
    }

    fn submit(&self, commands: vk::CommandBuffer) -> Result<(), DeviceError> {
        let gpu = &self.gpu;
        let list = [vk::CommandBufferSubmitInfo::default().command_buffer(commands)];
        let submit = [vk::SubmitInfo2::default().command_buffer_infos(&list)];
        gpu.submit(&submit, self.fence, "a measurement")?;
        gpu.wait(self.fence, WAIT_LIMIT, "a measurement")?;
        // SAFETY: signalled, and in no submission.
        unsafe { gpu.raw.reset_fences(&[self.fence]) }
            .map_err(|error| gpu.failure("resetting a fence", error))
    }

    /// Plays a list once, and makes what it wrote visible to the host.
    pub fn play(&mut self, program: &[Dispatch]) -> Result<(), DeviceError> {
        let commands = self.recorder.allocate()?;
        let launches = self.recorder.realise(&mut self.pipelines, program)?;
        let set = self.set;
        self.recorder.write(commands, |recorder| {
            recorder.launches(commands, set, &launches, |_, _| ());
            recorder.to_host(commands);
        })?;
        self.submit(commands)?;
        self.recorder.free(commands);
        Ok(())
    }

    /// Seconds of the whole list on the device, the best of `rounds` after one that does not count, on
    /// a GPU that is kept busy long enough to run at its full clock.
    pub fn time_awake(&mut self, program: &[Dispatch], rounds: usize) -> Result<f64, DeviceError> {
        let warm = self.gpu.description().kind != GpuKind::Software;
        let commands = self.recorder.allocate()?;
        let (gpu, set, queries) = (self.gpu.clone(), self.set, self.queries);
        let launches = self.recorder.realise(&mut self.pipelines, program)?;
        self.recorder.write(commands, |recorder| {
            let stamp = |index: u32| {
                if let Some(queries) = queries {
                    let stage = vk::PipelineStageFlags2::COMPUTE_SHADER;
                    // SAFETY: being recorded; the pool has two queries.
                    unsafe { gpu.raw.cmd_write_timestamp2(commands, stage, queries, index) };
                }
            };
            if let Some(queries) = queries {
                // SAFETY: as above.
                unsafe { gpu.raw.cmd_reset_query_pool(commands, queries, 0, 2) };
            }
            recorder.barrier(commands);
            stamp(0);
            recorder.launches(commands, set, &launches, |_, _| ());
            recorder.barrier(commands);
            stamp(1);
        })?;
        let mut best = f64::INFINITY;
        let begun = Instant::now();
        let mut round = 0;
        // An idle GPU runs slowly for a while: short work is repeated until it is awake.
        while round <= rounds || (warm && begun.elapsed() < AWAKE) {
            let start = Instant::now();
            self.submit(commands)?;
            let wall = start.elapsed().as_secs_f64();
            let seconds = match (queries, self.gpu.description().tick) {
                (Some(queries), Some(tick)) => {
                    let mut ticks = [0u64; 2];
                    // SAFETY: the submission is done, so both queries are there.
                    unsafe {
                        self.gpu.raw.get_query_pool_results(
                            queries,
                            0,
                            &mut ticks,
                            vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT,
                        )
                    }
                    .map_err(|error| self.gpu.failure("reading timestamps", error))?;
                    ticks[1].saturating_sub(ticks[0]) as f64 * f64::from(tick) * 1e-9
                }
                _ => wall,
            };
            if round > 0 {
                best = best.min(seconds);
            }
            round += 1;
        }
        Ok(best)
    }
}

/// A pool of timestamps.
pub(crate) fn query_pool(gpu: &Gpu, count: u32) -> Result<vk::QueryPool, DeviceError> {
    let create =
        vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(count);
    // SAFETY: a live device.
    unsafe { gpu.raw.create_query_pool(&create, None) }
        .map_err(|error| gpu.failure("making a query pool", error))
}
