//! How long the device computes: timestamps around every submission, while someone asks for them.

use crate::commands::Recorder;
use crate::gpu::Gpu;
use crate::lab::query_pool;
use crate::recording::{VulkanRecording, info};
use ash::vk;
use pianola_plan::{DeviceError, SLOTS};

/// Two timestamps for each submission that may be in flight, used in turn.
pub(crate) struct BusyClock {
    queries: vk::QueryPool,
    /// What writes them, before and behind a submission.
    stamps: Vec<[vk::CommandBuffer; 2]>,
    /// Seconds of a tick.
    tick: f64,
    /// Submissions stamped so far, and those of them that were read.
    stamped: u64,
    read: u64,
    /// Tick at which the last of them ended: no time is counted twice.
    end: u64,
}

impl BusyClock {
    /// For at most `submissions` in flight; none where the queue keeps no time.
    fn new(
        gpu: &Gpu,
        recorder: &mut Recorder,
        submissions: usize,
    ) -> Result<Option<BusyClock>, DeviceError> {
        let Some(tick) = gpu.description().tick else { return Ok(None) };
        let queries = query_pool(gpu, 2 * submissions as u32)?;
        let mut clock = BusyClock {
            queries,
            stamps: Vec::with_capacity(submissions),
            tick: f64::from(tick) * 1e-9,
            stamped: 0,
            read: 0,
            end: 0,
        };
        for index in 0..submissions {
            match clock.record(gpu, recorder, index as u32) {
                Ok(stamps) => clock.stamps.push(stamps),
                Err(error) => {
                    clock.free(gpu, recorder);
                    return Err(error);
                }
            }
        }
        Ok(Some(clock))
    }

    /// The command buffers of one pair. Both stamps wait for all that was submitted before them, so
    /// that a submission's time begins where the one before it ended.
    fn record(
        &self,
        gpu: &Gpu,
        recorder: &mut Recorder,
        index: u32,
    ) -> Result<[vk::CommandBuffer; 2], DeviceError> {
        let stamps = [recorder.allocate()?, recorder.allocate()?];
        let stage = vk::PipelineStageFlags2::ALL_COMMANDS;
        for (commands, query) in stamps.into_iter().zip(2 * index..) {
            recorder.write(commands, |_| {
                // SAFETY: being recorded; the pool has two queries for each pair.
                unsafe {
                    gpu.raw.cmd_reset_query_pool(commands, self.queries, query, 1);
                    gpu.raw.cmd_write_timestamp2(commands, stage, self.queries, query);
                }
            })?;
        }
        Ok(stamps)
    }

    /// A submission with stamps around it.
    pub fn around<'a>(
        &mut self,
        list: &[vk::CommandBufferSubmitInfo<'a>],
    ) -> Vec<vk::CommandBufferSubmitInfo<'a>> {
        assert!(self.stamped - self.read < self.stamps.len() as u64, "a pair for each submission");
        let [begin, end] = self.stamps[(self.stamped % self.stamps.len() as u64) as usize];
        self.stamped += 1;
        std::iter::once(info(begin)).chain(list.iter().copied()).chain([info(end)]).collect()
    }

    /// Submissions stamped so far.
    pub fn stamped(&self) -> u64 {
        self.stamped
    }

    /// Seconds that the device computed since the last call, in the first `done` submissions, which
    /// were waited for.
    pub fn collect(&mut self, gpu: &Gpu, done: u64) -> Result<f64, DeviceError> {
        let mut ticks = 0;
        while self.read < done {
            let index = (self.read % self.stamps.len() as u64) as u32;
            let mut pair = [0u64; 2];
            let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
            // SAFETY: the submission that wrote both is done.
            unsafe { gpu.raw.get_query_pool_results(self.queries, 2 * index, &mut pair, flags) }
                .map_err(|error| gpu.failure("reading timestamps", error))?;
            ticks += pair[1].saturating_sub(pair[0].max(self.end));
            self.end = self.end.max(pair[1]);
            self.read += 1;
        }
        Ok(ticks as f64 * self.tick)
    }

    /// Frees what it made; nothing that was stamped may be in flight.
    pub fn free(self, gpu: &Gpu, recorder: &mut Recorder) {
        self.stamps.into_iter().flatten().for_each(|commands| recorder.free(commands));
        // SAFETY: the caller waited.
        unsafe { gpu.raw.destroy_query_pool(self.queries, None) };
    }
}

impl VulkanRecording {
    /// Begins or ends the counting of busy time; false where it is not counted.
    pub(crate) fn set_busy_clock(&mut self, on: bool) -> Result<bool, DeviceError> {
        if on == self.busy.is_some() {
            return Ok(on);
        }
        self.idle()?;
        if let Some(clock) = self.busy.take() {
            clock.free(&self.gpu, &mut self.recorder);
        }
        if on {
            // A play submits once for each kernel at most, and once more for its sampling.
            let most = SLOTS * (self.plan.ops.len() + 2);
            self.busy = BusyClock::new(&self.gpu, &mut self.recorder, most)?;
        }
        Ok(self.busy.is_some())
    }

    /// Counts the time of what `slot` waited for.
    pub(crate) fn count_busy(&mut self, slot: usize) -> Result<(), DeviceError> {
        if let Some(clock) = &mut self.busy {
            let seconds = clock.collect(&self.gpu, self.slots[slot].stamped)?;
            self.statistics.busy_seconds += seconds;
        }
        Ok(())
    }
}
