//! Plays of a single row whose kernels wait for one another by themselves, without barriers in between.

use super::{Recorded, VulkanRecording};
use crate::decode::{ChainTrial, Decode, chain_refusal};
use crate::describe::GpuKind;
use crate::memory::{Memory, Purpose, Region};
use crate::policy::chain as policy;
use crate::policy::spins;
use crate::program::{CHAIN_HEADER, ChainMemory, ChainedProgram, Dispatch};
use crate::step::write_step;
use crate::upload::Uploader;
use ash::vk;
use pianola_plan::{DeviceError, Step};

/// What a recording keeps for such plays.
pub(super) struct Chain {
    trial: ChainTrial,
    memory: ChainMemory,
    /// Not 0 once a workgroup has given up.
    gave_up: *const u32,
    /// Whether single rows are played so.
    pub active: bool,
}

impl Chain {
    fn new(memory: &mut Memory, chain: Region, trial: ChainTrial) -> Result<Chain, DeviceError> {
        let notice = memory.allocate(Purpose::Readback, 16, "chained kernels")?;
        let gave_up = memory.mapped(notice).expect("visible to the host").cast::<u32>();
        // SAFETY: mapped, and nothing plays yet.
        unsafe { gave_up.write(0) };
        Ok(Chain { trial, memory: ChainMemory { chain, notice }, gave_up, active: false })
    }

    /// Whether a workgroup has given up.
    pub fn gave_up(&self) -> bool {
        // SAFETY: mapped for as long as the recording lives; the device writes whole words.
        unsafe { self.gave_up.read_volatile() != 0 }
    }
}

impl VulkanRecording {
    /// Makes ready to play single rows as `decode` asks. [`Decode::Auto`] leaves them to dispatches with barriers where
    /// they cannot be chained.
    pub(super) fn choose_decode(
        &mut self,
        decode: Decode,
        trial: ChainTrial,
    ) -> Result<(), DeviceError> {
        let programmer = self.programmer(0, &self.tuning);
        if programmer.chain(decode, &self.gpu.exchange_lacks)?.is_none() {
            return Ok(());
        }
        match self.set_up_chain(trial) {
            Err(DeviceError::Unsupported(_) | DeviceError::UnsupportedOption(_))
                if decode == Decode::Auto =>
            {
                if self.gave_up() {
                    self.chain = None;
                    self.set_notice("did not overlap in the test at load: single tokens are computed with barriers between kernels");
                }
                Ok(())
            }
            other => other,
        }
    }

    /// Makes ready to chain single rows; fails where the dispatches of a test do not overlap.
    fn set_up_chain(&mut self, trial: ChainTrial) -> Result<(), DeviceError> {
        self.idle()?;
        let software = self.gpu.description().kind == GpuKind::Software;
        let chain = Chain::new(&mut self.memory, self.resources.chain, trial)?;
        let header = chain.memory.chain.slice(0, CHAIN_HEADER);
        self.chain = Some(chain);
        self.write_chain_header(header, spins(software))?;
        let probe = policy::probe(software, self.limits());
        self.probe_chain(&probe)?;
        if self.gave_up() {
            return Err(chain_refusal("its dispatches did not overlap in the test at load"));
        }
        if let Some(most_asked) = trial.most_asked {
            self.write_chain_header(header, most_asked)?;
        }
        self.set_chained(true).map(|_| ())
    }

    fn write_chain_header(&mut self, to: Region, most_asked: u32) -> Result<(), DeviceError> {
        let mut uploader = Uploader::new(&self.gpu)?;
        let header = [0, most_asked, 0, 0, 0, 0, 0, 0];
        uploader.copy(&self.memory, to, bytemuck::cast_slice(&header))?;
        uploader.finish()
    }

    /// The test at load: dispatches that do nothing but wait for one another.
    fn probe_chain(&mut self, probe: &ChainedProgram) -> Result<(), DeviceError> {
        // SAFETY: mapped, and nothing plays yet.
        unsafe { write_step(self.slots[0].start, &Step::default()) };
        let (commands, _) = self.record_chain(0, probe)?;
        self.submit_one(Some(0), commands)?;
        self.finish(0)?;
        self.recorder.free(commands);
        Ok(())
    }

    /// A command buffer of a chain: its counts are written, then it plays.
    fn record_chain(
        &mut self,
        slot: usize,
        program: &ChainedProgram,
    ) -> Result<(vk::CommandBuffer, u32), DeviceError> {
        let memory = self.chain.as_ref().expect("set up before").memory;
        let counts = program.count_bytes();
        let to = memory.chain.slice(CHAIN_HEADER, counts.len() as u64);
        let mut dispatches: Vec<Dispatch> = program.dispatches(&memory);
        // The barrier that ends the play before stands before the counts instead. A first kernel that does not read them may
        // run beside their update.
        dispatches[0].barrier = program.begins_chained();
        let set = self.slots[slot].set;
        let launches = self.recorder.realise(&mut self.pipelines, &dispatches)?;
        let commands = self.recorder.allocate()?;
        self.recorder.write(commands, |recorder| {
            recorder.barrier(commands);
            recorder.update(commands, to, &counts);
            recorder.launches(commands, set, &launches, |_, _| ());
            recorder.to_host(commands);
        })?;
        Ok((commands, dispatches.len() as u32))
    }

    /// Records a slot's body of one row as a chain, where chains play it.
    pub(super) fn prepare_chain(&mut self, slot: usize) -> Result<(), DeviceError> {
        let active = self.chain.as_ref().is_some_and(|chain| chain.active);
        if !active || self.slots[slot].chained.is_some() || self.gave_up() {
            return Ok(());
        }
        let mut program = self.programmer(slot, &self.tuning).chain_or_refusal(&[])?;
        if self.chain.as_ref().is_some_and(|chain| chain.trial.absent) {
            program.await_one_more();
        }
        let (commands, dispatches) = self.record_chain(slot, &program)?;
        self.slots[slot].chained = Some(Recorded { commands: vec![commands], dispatches });
        Ok(())
    }

    /// Chains single rows or leaves them to dispatches with barriers, in a recording that was made ready for chains. Says whether it
    /// was, and still is.
    pub fn set_chained(&mut self, on: bool) -> Result<bool, DeviceError> {
        self.idle()?;
        let fit = !self.gave_up();
        Ok(self.chain.as_mut().is_some_and(|chain| {
            chain.active = on && fit;
            fit
        }))
    }

    /// Whether single rows are chained.
    pub fn is_chained(&self) -> bool {
        self.chain.as_ref().is_some_and(|chain| chain.active)
    }
}
