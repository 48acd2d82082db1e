//! The gain of recording once: the same decode without it.
//!
//! Each play computes exactly what it would otherwise; only the host's part differs.

use crate::commands::Launch;
use crate::memory::{Memory, Purpose, Region};
use crate::pipeline::Shader;
use crate::program::{Body, Dispatch};
use crate::recording::{VulkanRecording, logit_bucket};
use crate::step::write_step;
use pianola_plan::{DeviceError, Step};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Instant;

/// What is done anew for every play.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ablation {
    /// Nothing: the other side of the comparison.
    Nothing,
    /// The command buffer is recorded again; buffers and descriptor sets stay.
    Record,
    /// Besides, every kernel gets a newly allocated buffer for its output, and new descriptor
    /// sets: an engine that allocates as it goes.
    Allocate,
}

/// A running experiment.
pub(crate) struct Ablated {
    pub kind: Ablation,
    /// Programs by rows and rows with logits, and their launches.
    programs: HashMap<(Body, u32), (Vec<Dispatch>, Vec<Launch>)>,
}

impl VulkanRecording {
    /// Plays without the recorded command buffers, until set back.
    pub fn ablate(&mut self, ablation: Option<Ablation>) -> Result<(), DeviceError> {
        self.idle()?;
        self.ablation = ablation.map(|kind| Ablated { kind, programs: HashMap::new() });
        Ok(())
    }

    pub(crate) fn play_ablated(
        &mut self,
        segment: usize,
        slot: usize,
        step: &Step,
    ) -> Result<(), DeviceError> {
        let start = Instant::now();
        let mut ablated = self.ablation.take().expect("an experiment is under way");
        self.idle()?;
        // SAFETY: mapped, and nothing plays.
        unsafe { write_step(self.slots[slot].start, step) };
        let body = Body::of(segment, step);
        let logits = logit_bucket(step.logits.len(), &self.plan);
        let (program, launches) = match ablated.programs.entry((body, logits)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => {
                let mut program = self.programmer(slot, &self.tuning).body(body)?;
                if logits > 0 {
                    program.extend(self.programmer(slot, &self.tuning).head(segment, logits)?);
                }
                let launches = self.recorder.realise(&mut self.pipelines, &program)?;
                vacant.insert((program, launches))
            }
        };
        let logits_region = self.logits_region(slot);
        let copy = (logits > 0).then(|| self.logits_of(slot, logits as usize));
        let commands = self.recorder.allocate()?;
        let set = self.slots[slot].set;
        let mut memory = Memory::new(self.gpu.clone(), None);
        let mut replaced: HashMap<Region, Region> = HashMap::new();
        let mut allocations = 0;
        let anew = match ablated.kind {
            Ablation::Nothing | Ablation::Record => None,
            Ablation::Allocate => {
                let mut program = program.clone();
                for dispatch in &mut program {
                    allocations += reallocate(dispatch, &mut memory, &mut replaced)?;
                }
                Some(self.recorder.realise(&mut self.pipelines, &program)?)
            }
        };
        self.recorder.write(commands, |recorder| {
            recorder.launches(commands, set, anew.as_ref().unwrap_or(launches), |_, _| ());
            if let Some((from, to)) = copy {
                // The logits may lie in a buffer of this play.
                let new = replaced.get(&logits_region).copied();
                recorder.copy(commands, new.map_or(from, |new| new.slice(0, from.size)), to);
            }
        })?;
        self.submit_one(Some(slot), commands)?;
        let submitted = start.elapsed().as_secs_f64();
        self.finish(slot)?;
        self.recorder.free(commands);
        self.recorder.forget(&memory.buffers())?;
        let whole = start.elapsed().as_secs_f64();
        self.statistics.seconds += whole;
        self.statistics.busy_seconds += whole - submitted;
        self.statistics.dispatches += program.len() as u64;
        self.statistics.allocations += allocations;
        self.ablation = Some(ablated);
        Ok(())
    }
}

/// Gives a dispatch a new output, and lets it read what those before it were given. Returns the
/// number of allocations.
fn reallocate(
    dispatch: &mut Dispatch,
    memory: &mut Memory,
    replaced: &mut HashMap<Region, Region>,
) -> Result<u64, DeviceError> {
    let slot = output_slot(dispatch.variant.shader);
    let mut count = 0;
    for (index, binding) in dispatch.bindings.iter_mut().enumerate() {
        if Some(index) == slot {
            let new = memory.allocate_alone(Purpose::Resident, binding.size, "an output")?;
            let new = new.slice(0, binding.size);
            replaced.insert(*binding, new);
            *binding = new;
            count += 1;
        } else if let Some(new) = replaced.get(binding) {
            *binding = *new;
        }
    }
    Ok(count)
}

/// Place of a kernel's output among its bindings.
fn output_slot(shader: Shader) -> Option<usize> {
    match shader {
        Shader::Embed => Some(9),
        Shader::RopeAngles => Some(1),
        Shader::ProjectRows => Some(11),
        Shader::ProjectTiles => Some(10),
        Shader::Attention => Some(6),
        Shader::RmsNorm
        | Shader::Rope
        | Shader::Gate
        | Shader::Add
        | Shader::SelectRows
        | Shader::SoftCap => Some(1),
        _ => None,
    }
}
