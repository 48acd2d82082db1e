//! The gain of recording once: the same decode without it.
//!
//! Each play computes exactly what it would otherwise; only the host's part differs.

use crate::commands::Launch;
use crate::memory::{Memory, Purpose, Region};
use crate::pipeline::Shader;
use crate::program::{Body, Dispatch};
use crate::recording::{VulkanRecording, logit_bucket};
use crate::step::write_step;
use pianola_plan::{DeviceError, Plan, RowSet, Step};
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
    /// Besides, every kernel gets a newly allocated buffer for its output, as large as the rows of
    /// this play need, and new descriptor sets: an engine that allocates as it goes.
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
        let mut replaced = Replaced::new();
        let mut bytes = 0;
        let anew = match ablated.kind {
            Ablation::Nothing | Ablation::Record => None,
            Ablation::Allocate => {
                let mut program = program.clone();
                let (plan, arena) = (&*self.plan, self.arena(slot));
                let outputs = Outputs { plan, arena, rows: body.rows, logits };
                for dispatch in &mut program {
                    bytes += reallocate(dispatch, &outputs, &mut memory, &mut replaced)?;
                }
                Some(self.recorder.realise(&mut self.pipelines, &program)?)
            }
        };
        self.recorder.write(commands, |recorder| {
            recorder.launches(commands, set, anew.as_ref().unwrap_or(launches), |_, _| ());
            if let Some((from, to)) = copy {
                // The logits may lie in a buffer of this play.
                let new = replaced.get(&logits_region).map(|&(_, new)| new);
                recorder.copy(commands, new.map_or(from, |new| new.slice(0, from.size)), to);
            }
        })?;
        self.submit_one(Some(slot), commands)?;
        self.finish(slot)?;
        self.recorder.free(commands);
        let allocated = memory.buffers();
        self.recorder.forget(&allocated)?;
        drop(memory);
        self.statistics.seconds += start.elapsed().as_secs_f64();
        self.statistics.dispatches += program.len() as u64;
        self.statistics.allocations += allocated.len() as u64;
        self.statistics.allocated_bytes += bytes;
        self.ablation = Some(ablated);
        Ok(())
    }
}

/// Outputs by the regions of the arena that they stand for, and the kernel of the plan that each is of.
type Replaced = HashMap<Region, (usize, Region)>;

/// How large the outputs of a play's kernels are.
struct Outputs<'a> {
    plan: &'a Plan,
    arena: Region,
    rows: u32,
    logits: u32,
}

impl Outputs<'_> {
    /// Bytes of an output for the rows of this play. Kernels bind it with room for the most rows that
    /// a play may have; an engine that allocates as it goes would not.
    fn bytes(&self, op: usize, binding: Region) -> u64 {
        let outputs = self.plan.ops[op]
            .nodes
            .iter()
            .filter_map(|&node| self.plan.views[self.plan.graph.nodes[node].output?.0]);
        let mut buffers = outputs.map(|view| view.buffer).filter(|&buffer| {
            self.arena.offset + self.plan.arena.offsets[buffer] as u64 == binding.offset
        });
        buffers.next().map_or(binding.size, |buffer| {
            let buffer = &self.plan.buffers[buffer];
            let rows = match buffer.rows {
                RowSet::All => self.rows,
                RowSet::Logits => self.logits,
            };
            u64::from(rows) * 4 * buffer.width as u64
        })
    }
}

/// Gives a dispatch a new output, and lets it read what those before it were given. Returns the
/// bytes of the output.
fn reallocate(
    dispatch: &mut Dispatch,
    outputs: &Outputs<'_>,
    memory: &mut Memory,
    replaced: &mut Replaced,
) -> Result<u64, DeviceError> {
    let slot = output_slot(dispatch.variant.shader);
    let mut allocated = 0;
    for (index, binding) in dispatch.bindings.iter_mut().enumerate() {
        let known = replaced.get(binding).copied();
        // Launches of one kernel of the plan write parts of one output.
        let new = known.filter(|&(op, _)| op == dispatch.op || Some(index) != slot);
        if let Some((_, new)) = new {
            *binding = new;
        } else if Some(index) == slot {
            let bytes = outputs.bytes(dispatch.op, *binding);
            let new = memory.allocate_alone(Purpose::OnePlay, bytes, "an output")?;
            let new = new.slice(0, bytes);
            replaced.insert(*binding, (dispatch.op, new));
            *binding = new;
            allocated += bytes;
        }
    }
    Ok(allocated)
}

/// Place of a kernel's output among its bindings.
fn output_slot(shader: Shader) -> Option<usize> {
    match shader {
        Shader::Embed => Some(9),
        Shader::RopeAngles => Some(1),
        Shader::ProjectRows | Shader::ProjectSingle => Some(11),
        Shader::ProjectTiles => Some(10),
        Shader::Attention | Shader::AttentionSingle | Shader::AttentionMatrix => Some(6),
        Shader::RmsNorm
        | Shader::Rope
        | Shader::Gate
        | Shader::Add
        | Shader::SelectRows
        | Shader::SoftCap => Some(1),
        _ => None,
    }
}
