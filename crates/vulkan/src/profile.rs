//! Timestamps behind every dispatch.

use crate::gpu::Gpu;
use crate::lab::query_pool;
use crate::program::{Body, Dispatch};
use crate::recording::{VulkanRecording, logit_bucket};
use crate::step::write_step;
use crate::transfer::Direction;
use ash::vk;
use pianola_plan::{DeviceError, KernelTime, Step};

/// Collects the times of plays.
pub(crate) struct Profiler {
    pool: Option<vk::QueryPool>,
    size: u32,
    /// Seconds of a tick.
    tick: f64,
    first: Option<u64>,
    plays: usize,
    times: Vec<KernelTime>,
}

impl Profiler {
    /// None where the device keeps no time.
    pub fn new(gpu: &Gpu) -> Option<Profiler> {
        let tick = f64::from(gpu.description().tick?) * 1e-9;
        Some(Profiler { pool: None, size: 0, tick, first: None, plays: 0, times: Vec::new() })
    }

    /// A pool of at least `count` queries.
    pub fn queries(&mut self, gpu: &Gpu, count: u32) -> Result<vk::QueryPool, DeviceError> {
        match self.pool {
            Some(pool) if self.size >= count => Ok(pool),
            _ => {
                self.destroy(gpu);
                let pool = query_pool(gpu, count)?;
                self.pool = Some(pool);
                self.size = count;
                Ok(pool)
            }
        }
    }

    /// Reads the times of a play that is done.
    pub fn collect(
        &mut self,
        gpu: &Gpu,
        program: &[Dispatch],
        step: &Step,
    ) -> Result<(), DeviceError> {
        let pool = self.pool.expect("asked for before the play");
        let mut ticks = vec![0u64; program.len() + 1];
        let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
        // SAFETY: the play that wrote the queries is done.
        unsafe { gpu.raw.get_query_pool_results(pool, 0, &mut ticks, flags) }
            .map_err(|error| gpu.failure("reading timestamps", error))?;
        let first = *self.first.get_or_insert(ticks[0]);
        let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 * self.tick;
        let context = step.rows.last().map_or(0, |row| row.position as usize + 1);
        for (dispatch, pair) in program.iter().zip(ticks.windows(2)) {
            self.times.push(KernelTime {
                op: Some(dispatch.op),
                kernel: dispatch.variant.shader.name().to_string(),
                play: self.plays,
                rows: step.rows.len(),
                logits: step.logits.len(),
                context,
                start: seconds(first, pair[0]),
                seconds: seconds(pair[0], pair[1]),
            });
        }
        self.plays += 1;
        Ok(())
    }

    /// All times so far.
    pub fn finish(mut self, gpu: &Gpu) -> Vec<KernelTime> {
        self.destroy(gpu);
        self.times
    }

    fn destroy(&mut self, gpu: &Gpu) {
        if let Some(pool) = self.pool.take() {
            // SAFETY: every play that used it was waited for.
            unsafe { gpu.raw.destroy_query_pool(pool, None) };
        }
    }
}

impl VulkanRecording {
    /// Plays a segment with a timestamp behind every dispatch.
    pub(crate) fn play_timed(
        &mut self,
        segment: usize,
        slot: usize,
        step: &Step,
    ) -> Result<(), DeviceError> {
        let programmer = self.programmer(slot, &self.tuning);
        let mut program = programmer.body(Body::of(segment, step))?;
        let wanted = logit_bucket(step.logits.len(), &self.plan);
        if wanted > 0 {
            program.extend(programmer.head(segment, wanted)?);
        }
        let counts = [Body::of(segment, step).rows as usize, wanted as usize];
        let import = self.record_transfers(slot, segment, Direction::Import, counts)?;
        let export = self.record_transfers(slot, segment, Direction::Export, counts)?;
        self.idle()?;
        // SAFETY: mapped, and nothing plays.
        unsafe { write_step(self.slots[slot].start, step) };
        let commands = self.recorder.allocate()?;
        let set = self.slots[slot].set;
        let mut profiler = self.profiler.take().expect("timed plays have a profiler");
        let queries = profiler.queries(&self.gpu, program.len() as u32 + 1)?;
        let rows = step.logits.len();
        let here = rows > 0 && self.plan.head_device() == self.device;
        let copy = here.then(|| self.logits_of(slot, rows));
        let launches = self.recorder.realise(&mut self.pipelines, &program)?;
        let gpu = self.gpu.clone();
        self.recorder.write(commands, |recorder| {
            let stage = vk::PipelineStageFlags2::ALL_COMMANDS;
            let stamp = |commands: vk::CommandBuffer, index: u32| {
                // SAFETY: being recorded; the pool has a query for each dispatch and one more.
                unsafe { gpu.raw.cmd_write_timestamp2(commands, stage, queries, index) };
            };
            // SAFETY: as above.
            unsafe {
                gpu.raw.cmd_reset_query_pool(commands, queries, 0, program.len() as u32 + 1);
            }
            recorder.barrier(commands);
            stamp(commands, 0);
            recorder.launches(commands, set, &launches, |commands, index| {
                stamp(commands, index as u32 + 1);
            });
            if let Some((from, to)) = copy {
                recorder.copy(commands, from, to);
            }
        })?;
        if let Some(moved) = import {
            self.submit_one(None, moved)?;
        }
        self.submit_one(if export.is_some() { None } else { Some(slot) }, commands)?;
        if let Some(moved) = export {
            self.submit_one(Some(slot), moved)?;
        }
        self.finish(slot)?;
        import.into_iter().chain(export).for_each(|moved| self.recorder.free(moved));
        profiler.collect(&self.gpu, &program, step)?;
        self.recorder.free(commands);
        self.profiler = Some(profiler);
        Ok(())
    }
}
