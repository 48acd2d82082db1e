//! Recording what sampling plays.

use super::report::LogProbReport;
use super::{SampleCommands, WholeCommands};
use crate::device::{VulkanRecording, logit_bucket};
use crate::memory::Region;
use crate::sample::whole::{RawLogits, Stage};
use crate::sample::{MOST_PLAYS, MOST_ROWS, Outcome, SampleProgram};
use ash::vk;
use pianola_plan::DeviceError;

impl VulkanRecording {
    /// Records what sampling for this many rows needs and is not there yet; `whole`: also from the
    /// whole vocabulary.
    pub(crate) fn prepare_sampling(
        &mut self,
        take: usize,
        logits: usize,
        whole: bool,
    ) -> Result<(), DeviceError> {
        let wanted = logit_bucket(logits, &self.plan);
        let program = self.sample_program(take, wanted);
        if !self.sampler.recorded[take].contains_key(&wanted) {
            let best = self.record(take, &program.best())?;
            let bytes = u64::from(program.rows) * size_of::<Outcome>() as u64;
            let outcomes = self.sampler.buffers.outcomes.slice(0, bytes);
            let collect = self.record_copy(outcomes, self.sampler.readback)?;
            let commands = SampleCommands { best, collect, whole: None };
            self.sampler.recorded[take].insert(wanted, commands);
        }
        if !whole || self.sampler.recorded[take][&wanted].whole.is_some() {
            return Ok(());
        }
        let regions = self.sampler.buffers.whole(&mut self.memory)?.regions;
        let report = match self.sampler.report.take() {
            Some(report) => report,
            None => LogProbReport::new(&mut self.memory, self.sampler.buffers.room.rows)?,
        };
        let report = self.sampler.report.insert(report).readback;
        let mut stages = [vk::CommandBuffer::null(); Stage::ALL.len()];
        for (commands, stage) in stages.iter_mut().zip(Stage::ALL) {
            *commands = self.record(take, &program.whole(stage, &regions))?;
        }
        let bytes = u64::from(program.rows) * (MOST_PLAYS * size_of::<RawLogits>()) as u64;
        let collect = self.record_copy(regions.logprobs.slice(0, bytes), report)?;
        let commands = self.sampler.recorded[take].get_mut(&wanted).expect("recorded above");
        commands.whole = Some(WholeCommands { stages, collect });
        Ok(())
    }

    /// The sampling of a take's rows, of which there are `wanted` in its head.
    fn sample_program(&self, take: usize, wanted: u32) -> SampleProgram {
        let from = self.logits_of(wanted as usize).0;
        SampleProgram {
            regions: self.sampler.buffers.regions(from, self.takes[take].step),
            vocabulary: self.plan.graph.vocabulary as u32,
            rows: wanted.min(MOST_ROWS as u32),
            op: self.plan.ops.len() - 1,
        }
    }

    fn record_copy(&mut self, from: Region, to: Region) -> Result<vk::CommandBuffer, DeviceError> {
        let commands = self.recorder.allocate()?;
        self.recorder.write(commands, |recorder| recorder.copy(commands, from, to))?;
        Ok(commands)
    }
}
