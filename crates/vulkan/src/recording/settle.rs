//! Plays that a device may give up, and what follows if it does.
//!
//! Kernels that wait for other workgroups ([`super::chain`]) give up after a while, because Vulkan does not
//! promise that those run. Such a play is *unsettled* until its fence was waited for and no workgroup has said that it gave up. If one
//! has, the step is played again by dispatches with barriers, from the same state: keys and values of the row are written again. From
//! then on the recording stays with these.

use super::VulkanRecording;
use crate::step::write_step;
use crate::upload::Uploader;
use pianola_plan::{DeviceError, LogitsTo, Step};

/// How the body of a play is played.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PlayedBy {
    /// Dispatches with barriers.
    Dispatches,
    /// Dispatches that wait by themselves.
    Chain,
}

/// What workgroups did that gave up.
const GAVE_UP: &str = "did not run at once, or took too long: the token was computed again by dispatches, and so are all \
                                  that follow";

impl VulkanRecording {
    /// How a step is played: of one row with logits otherwise than by dispatches, where that is set up. Its results are always
    /// waited for, which is when the host sees whether workgroups gave up.
    pub(crate) fn played_by(&self, slot: usize, step: &Step) -> PlayedBy {
        let single = step.rows.len() == 1 && step.logits.len() == 1;
        let slot = &self.slots[slot];
        if !single {
            PlayedBy::Dispatches
        } else if self.is_chained() && slot.chained.is_some() {
            PlayedBy::Chain
        } else {
            PlayedBy::Dispatches
        }
    }

    /// Notes that a step that is about to be launched has to be settled.
    pub(super) fn note_unsettled(&mut self, slot: usize, step: &Step) {
        let unsettled = self.played_by(slot, step) != PlayedBy::Dispatches;
        let slot = &mut self.slots[slot];
        slot.unsettled = unsettled;
        if unsettled {
            slot.single.rows.clone_from(&step.rows);
            slot.single.logits.clone_from(&step.logits);
        }
    }

    /// Whether a workgroup has given up.
    pub(crate) fn gave_up(&self) -> bool {
        self.chain.as_ref().is_some_and(|chain| chain.gave_up())
    }

    /// Leaves single rows to dispatches from now on, because workgroups gave up, and has a notice that says so.
    pub(crate) fn fall_back(&mut self) -> Result<(), DeviceError> {
        if !self.is_chained() {
            return Ok(());
        }
        if let Some(chain) = &mut self.chain {
            chain.active = false;
        }
        self.set_notice(GAVE_UP);
        // Where nobody waits, attentions of several layers count their parts at once.
        self.clear_counters()
    }

    /// Sets what counts workgroups to zero, as every play leaves it.
    pub(super) fn clear_counters(&mut self) -> Result<(), DeviceError> {
        let mut uploader = Uploader::new(&self.gpu)?;
        for counters in [self.resources.arrivals, self.resources.finished] {
            uploader.copy(&self.memory, counters, &vec![0; counters.size as usize])?;
        }
        uploader.finish()
    }

    /// Keeps a line for the user that says what workgroups did.
    pub(super) fn set_notice(&mut self, what: &str) {
        let name = &self.gpu.description().name;
        self.notice =
            Some(format!("workgroups of {name} {what} (--decode dispatches avoids this)"));
    }

    /// Settles a slot that was waited for: plays its step again if workgroups gave up.
    pub(super) fn settle(&mut self, slot: usize) -> Result<(), DeviceError> {
        let unsettled = std::mem::take(&mut self.slots[slot].unsettled);
        if !unsettled || !self.gave_up() {
            return Ok(());
        }
        self.fall_back()?;
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
}
