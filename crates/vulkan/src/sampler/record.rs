//! Recording what sampling plays.

use super::report::LogProbReport;
use super::{SampleCommands, WholeCommands};
use crate::memory::Region;
use crate::recording::{VulkanRecording, logit_bucket};
use crate::sample::whole::{RawLogits, Stage};
use crate::sample::{MOST_PLAYS, MOST_ROWS, Outcome, SampleProgram};
use ash::vk;
use pianola_plan::DeviceError;

impl VulkanRecording {
    /// Records what sampling for this many rows needs and is not there yet; `whole`: also from the
    /// whole vocabulary.
    pub(crate) fn prepare_sampling(
        &mut self,
        slot: usize,
        logits: usize,
        whole: bool,
    ) -> Result<(), DeviceError> {
        let wanted = logit_bucket(logits, &self.plan);
        let at = slot % self.samplers.len();
        let program = self.sample_program(slot, wanted);
        if !self.samplers[at].recorded[slot].contains_key(&wanted) {
            let best = self.record(slot, &program.best())?;
            let bytes = u64::from(program.rows) * size_of::<Outcome>() as u64;
            let outcomes = self.samplers[at].buffers.outcomes.slice(0, bytes);
            let collect = self.record_copy(outcomes, self.samplers[at].readback)?;
            let commands = SampleCommands { best, collect, whole: None };
            self.samplers[at].recorded[slot].insert(wanted, commands);
        }
        if !whole || self.samplers[at].recorded[slot][&wanted].whole.is_some() {
            return Ok(());
        }
        let regions = self.samplers[at].buffers.whole(&mut self.memory)?.regions;
        let report = match self.samplers[at].report.take() {
            Some(report) => report,
            None => LogProbReport::new(&mut self.memory, self.samplers[at].buffers.room.rows)?,
        };
        let report = self.samplers[at].report.insert(report).readback;
        let mut stages = [vk::CommandBuffer::null(); Stage::ALL.len()];
        for (commands, stage) in stages.iter_mut().zip(Stage::ALL) {
            *commands = self.record(slot, &program.whole(stage, &regions))?;
        }
        let bytes = u64::from(program.rows) * (MOST_PLAYS * size_of::<RawLogits>()) as u64;
        let collect = self.record_copy(regions.logprobs.slice(0, bytes), report)?;
        let commands = self.samplers[at].recorded[slot].get_mut(&wanted).expect("recorded above");
        commands.whole = Some(WholeCommands { stages, collect });
        Ok(())
    }

    /// The sampling of a slot's rows, of which there are `wanted` in its head.
    fn sample_program(&self, slot: usize, wanted: u32) -> SampleProgram {
        let from = self.logits_of(slot, wanted as usize).0;
        let at = slot % self.samplers.len();
        SampleProgram {
            regions: self.samplers[at].buffers.regions(from, self.slots[slot].step),
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
