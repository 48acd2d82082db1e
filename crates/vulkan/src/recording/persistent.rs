//! Plays of a single row by one dispatch between two attentions.

use super::{Recorded, VulkanRecording};
use crate::decode::{PersistentTrial, refusal};
use crate::describe::GpuKind;
use crate::memory::{Memory, Purpose};
use crate::policy::{persistent as policy, spins};
use crate::program::{PersistentMemory, PersistentProgram};
use crate::statistics::registers;
use crate::step::write_step;
use crate::upload::Uploader;
use pianola_plan::{DeviceError, Step};

/// What a recording keeps for such plays.
pub(super) struct Persistent {
    trial: PersistentTrial,
    memory: PersistentMemory,
    /// Not 0 once a workgroup has given up.
    gave_up: *const u32,
    /// Whether single rows are played so.
    pub active: bool,
    registers: Option<u64>,
    workgroups: u32,
}

impl Persistent {
    /// Whether a workgroup has given up.
    pub fn gave_up(&self) -> bool {
        // SAFETY: mapped for as long as the recording lives; the device writes whole words.
        unsafe { self.gave_up.read_volatile() != 0 }
    }
}

impl VulkanRecording {
    /// Makes ready to play single rows by one dispatch between two attentions; an error says why that is not possible.
    /// Called again, it tries another way; what the first took of memory stays taken.
    pub fn set_up_persistent(&mut self, trial: PersistentTrial) -> Result<(), DeviceError> {
        self.idle()?;
        for slot in &mut self.slots {
            if let Some(recorded) = slot.persistent.take() {
                recorded.commands.into_iter().for_each(|commands| self.recorder.free(commands));
            }
        }
        self.try_persistent(trial).inspect_err(|_| self.persistent = None)
    }

    fn try_persistent(&mut self, trial: PersistentTrial) -> Result<(), DeviceError> {
        let gpu = self.gpu.clone();
        let software = gpu.description().kind == GpuKind::Software;
        let most_asked = Some(trial.spins.unwrap_or(spins(software)));
        let trial = PersistentTrial { spins: most_asked, ..trial };
        let programmer = self.programmer(0, &self.tuning);
        let program = programmer.persistent_or_refusal(&gpu.exchange_lacks, &trial)?;
        let pipeline = self.pipelines.pipeline_with_statistics(program.variant())?;
        let registers = registers(&gpu, pipeline);
        if !trial.resident {
            policy::check_registers(registers).map_err(|why| refusal(&why))?;
        }
        let memory = allocate(&mut self.memory, &program)?;
        let gave_up = self.memory.mapped(memory.notice).expect("visible to the host").cast::<u32>();
        // SAFETY: mapped, and nothing plays yet.
        unsafe { gave_up.write(0) };
        self.clear_persistent(&memory)?;
        let workgroups = program.workgroups;
        let active = true;
        self.persistent =
            Some(Persistent { trial, memory, gave_up, active, registers, workgroups });
        let meetings = (policy::exchanges(software), spins(software));
        self.meet(&program, &memory, meetings)?;
        match self.gave_up() {
            false => Ok(()),
            true => {
                Err(refusal("workgroups that should run at once did not meet in the test at load"))
            }
        }
    }

    /// Clears what workgroups exchange.
    fn clear_persistent(&mut self, memory: &PersistentMemory) -> Result<(), DeviceError> {
        let mut uploader = Uploader::new(&self.gpu)?;
        uploader.copy(&self.memory, memory.words, &vec![0; memory.words.size as usize])?;
        // Numbers begin with 1: words are 0.
        let mut control = vec![0u32; memory.control.size as usize / 4];
        control[0] = 1;
        uploader.copy(&self.memory, memory.control, bytemuck::cast_slice(&control))?;
        uploader.finish()
    }

    /// The test at load: all workgroups meet, again and again.
    fn meet(
        &mut self,
        program: &PersistentProgram,
        memory: &PersistentMemory,
        (exchanges, spins): (u32, u32),
    ) -> Result<(), DeviceError> {
        // SAFETY: mapped, and nothing plays yet.
        unsafe { write_step(self.slots[0].start, &Step::default()) };
        let commands = self.record_for_host(0, &program.meeting(memory, exchanges, spins))?;
        self.submit_one(Some(0), commands)?;
        self.finish(0)?;
        self.recorder.free(commands);
        Ok(())
    }

    /// Records a slot's body of one row with resident workgroups, where these play it.
    pub(super) fn prepare_persistent(&mut self, slot: usize) -> Result<(), DeviceError> {
        let Some(Persistent { trial, memory, .. }) = self.persistent else { return Ok(()) };
        if self.slots[slot].persistent.is_some() || self.gave_up() {
            return Ok(());
        }
        let program = self.programmer(slot, &self.tuning).persistent(&trial);
        let program = program.map_err(DeviceError::Unsupported)?.body(&memory);
        let dispatches = program.len() as u32;
        let commands = vec![self.record_for_host(slot, &program)?];
        self.slots[slot].persistent = Some(Recorded { commands, dispatches });
        Ok(())
    }

    /// Plays single rows by resident workgroups or by dispatches alone, in a recording that was made ready for both. Returns whether it
    /// was, and still is.
    pub fn set_persistent(&mut self, on: bool) -> Result<bool, DeviceError> {
        self.idle()?;
        let fit = !self.gave_up();
        Ok(self.persistent.as_mut().is_some_and(|persistent| {
            persistent.active = on && fit;
            fit
        }))
    }

    /// Whether single rows are played so.
    pub(super) fn is_persistent(&self) -> bool {
        self.persistent.as_ref().is_some_and(|persistent| persistent.active)
    }

    /// Workgroups of the dispatch that plays single rows, and registers of an invocation where the driver counts
    /// them; none where dispatches play them.
    pub fn persistent_fit(&self) -> Option<(u32, Option<u64>)> {
        let persistent = self.persistent.as_ref().filter(|persistent| persistent.active)?;
        Some((persistent.workgroups, persistent.registers))
    }
}

fn allocate(
    memory: &mut Memory,
    program: &PersistentProgram,
) -> Result<PersistentMemory, DeviceError> {
    let mut resident =
        |bytes: u64| memory.allocate(Purpose::Resident, bytes, "resident workgroups");
    Ok(PersistentMemory {
        words: resident(8 * program.words)?,
        control: resident(16)?,
        residual: resident(program.residual_bytes)?,
        notice: memory.allocate(Purpose::Readback, 16, "resident workgroups")?,
    })
}
