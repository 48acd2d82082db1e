//! Plays of a single row by one dispatch between two attentions, and what follows if its workgroups give up.
//!
//! Such a play is *unsettled* until its fence was waited for and no workgroup has said that it gave up. If one has,
//! the step is played again by dispatches, from the same state: keys and values of the row are written again. From
//! then on the recording stays with dispatches.

use super::{Recorded, VulkanRecording};
use crate::decode::{PersistentTrial, refusal};
use crate::describe::GpuKind;
use crate::memory::{Memory, Purpose};
use crate::policy::persistent as policy;
use crate::program::{PersistentMemory, PersistentProgram};
use crate::statistics::registers;
use crate::step::write_step;
use crate::upload::Uploader;
use pianola_plan::{DeviceError, LogitsTo, Step};

/// What workgroups did that gave up.
const GAVE_UP: &str = "did not run at once, or took too long: the token was computed again by dispatches, and so are all \
                                  that follow";

/// What a recording keeps for such plays.
pub(super) struct Persistent {
    trial: PersistentTrial,
    memory: PersistentMemory,
    /// Not 0 once a workgroup has given up.
    gave_up: *const u32,
    /// Whether single rows are played so.
    active: bool,
    registers: Option<u64>,
    workgroups: u32,
    /// To be told once.
    pub notice: Option<String>,
}

/// Why single rows cannot be played by resident workgroups: in words, or an error of the device.
enum Obstacle {
    Words(String),
    Device(DeviceError),
}

impl From<String> for Obstacle {
    fn from(words: String) -> Obstacle {
        Obstacle::Words(words)
    }
}

impl From<DeviceError> for Obstacle {
    fn from(error: DeviceError) -> Obstacle {
        Obstacle::Device(error)
    }
}

impl VulkanRecording {
    /// Plays single rows so where that is possible and was measured to be faster, else by dispatches.
    pub(super) fn choose_persistent(&mut self, trial: PersistentTrial) -> Result<(), DeviceError> {
        let programmer = self.programmer(0, &self.tuning);
        if programmer.persistent_where_it_pays(&self.gpu.exchange_lacks, &trial).is_none() {
            return Ok(());
        }
        match self.try_persistent(trial) {
            Ok(()) => Ok(()),
            // The budget has no place for it: dispatches need none.
            Err(Obstacle::Device(DeviceError::OutOfMemory { .. })) => Ok(()),
            Err(Obstacle::Device(error)) => Err(error),
            Err(Obstacle::Words(_)) if self.gave_up() => {
                let what =
                    "did not meet in the test at load: single tokens are computed by dispatches";
                self.leave_to_dispatches(what);
                Ok(())
            }
            // Registers that the driver does not count, or too many of them.
            Err(Obstacle::Words(_)) => Ok(()),
        }
    }

    /// Makes ready to play single rows by one dispatch between two attentions; an error says why that is not possible.
    /// Called again, it tries another way; what the first took of memory stays taken.
    pub fn set_up_persistent(&mut self, trial: PersistentTrial) -> Result<(), DeviceError> {
        self.idle()?;
        for slot in &mut self.slots {
            if let Some(recorded) = slot.persistent.take() {
                recorded.commands.into_iter().for_each(|commands| self.recorder.free(commands));
            }
        }
        self.try_persistent(trial).map_err(|obstacle| {
            self.persistent = None;
            match obstacle {
                Obstacle::Device(error) => error,
                Obstacle::Words(why) => refusal(&why),
            }
        })
    }

    fn try_persistent(&mut self, trial: PersistentTrial) -> Result<(), Obstacle> {
        let gpu = self.gpu.clone();
        if !gpu.exchange_lacks.is_empty() {
            return Err(format!("the device lacks {}", gpu.exchange_lacks.join(", ")).into());
        }
        let software = gpu.description().kind == GpuKind::Software;
        let spins = Some(trial.spins.unwrap_or(policy::spins(software)));
        let trial = PersistentTrial { spins, ..trial };
        let program = self.programmer(0, &self.tuning).persistent(&trial)?;
        let pipeline = self.pipelines.pipeline_with_statistics(program.variant())?;
        let registers = registers(&gpu, pipeline);
        if !trial.resident {
            policy::check_registers(registers)?;
        }
        let memory = allocate(&mut self.memory, &program)?;
        let gave_up = self.memory.mapped(memory.notice).expect("visible to the host").cast::<u32>();
        // SAFETY: mapped, and nothing plays yet.
        unsafe { gave_up.write(0) };
        self.clear_persistent(&memory)?;
        let workgroups = program.workgroups;
        let active = true;
        let notice = None;
        self.persistent =
            Some(Persistent { trial, memory, gave_up, active, registers, workgroups, notice });
        let meetings = (policy::exchanges(software), policy::spins(software));
        self.meet(&program, &memory, meetings)?;
        match self.gave_up() {
            false => Ok(()),
            true => Err("workgroups that should run at once did not meet in the test at load"
                .to_string()
                .into()),
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

    /// Whether a step is played so: one row with logits. Its results are always waited for, which is
    /// when the host sees whether workgroups gave up.
    pub(crate) fn plays_persistent(&self, slot: usize, step: &Step) -> bool {
        let active = self.persistent.as_ref().is_some_and(|persistent| persistent.active);
        let single = step.rows.len() == 1 && step.logits.len() == 1;
        active && single && self.slots[slot].persistent.is_some()
    }

    /// Notes that a step that is about to be launched has to be settled.
    pub(super) fn note_persistent(&mut self, slot: usize, step: &Step) {
        let unsettled = self.plays_persistent(slot, step);
        let slot = &mut self.slots[slot];
        slot.unsettled = unsettled;
        slot.single.clear();
        // The same step as written: one row, with logits.
        for row in step.rows.iter().filter(|_| unsettled) {
            slot.single.push(row.token, row.sequence, row.position, true);
        }
    }

    /// Whether a workgroup has given up.
    pub(crate) fn gave_up(&self) -> bool {
        // SAFETY: mapped for as long as the recording lives; the device writes whole words.
        let given_up = |persistent: &Persistent| unsafe { persistent.gave_up.read_volatile() } != 0;
        self.persistent.as_ref().is_some_and(given_up)
    }

    /// Leaves single rows to dispatches, because workgroups gave up.
    pub(crate) fn fall_back(&mut self) {
        self.leave_to_dispatches(GAVE_UP);
    }

    /// Leaves single rows to dispatches from now on, and has a notice that says what workgroups did.
    fn leave_to_dispatches(&mut self, what: &str) {
        let name = &self.gpu.description().name;
        let line = format!("workgroups of {name} {what} (--decode dispatches avoids this)");
        if let Some(persistent) = &mut self.persistent
            && persistent.active
        {
            persistent.active = false;
            persistent.notice = Some(line);
        }
    }

    /// Settles a slot that was waited for: plays its step again if workgroups gave up.
    pub(super) fn settle(&mut self, slot: usize) -> Result<(), DeviceError> {
        let unsettled = std::mem::take(&mut self.slots[slot].unsettled);
        if !unsettled || !self.gave_up() {
            return Ok(());
        }
        self.fall_back();
        let step = self.slots[slot].single.clone();
        // SAFETY: the slot's step is mapped, and nothing plays it.
        unsafe { write_step(self.slots[slot].start, &step) };
        self.launch(0, slot, &step, LogitsTo::Host)?;
        self.slots[slot].replayed = true;
        self.finish(slot)
    }

    /// Settles all slots, so that no step is submitted behind one that has to be played again.
    pub(crate) fn settle_all(&mut self) -> Result<(), DeviceError> {
        (0..self.slots.len()).try_for_each(|slot| match self.slots[slot].unsettled {
            true => self.finish(slot),
            false => Ok(()),
        })
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
