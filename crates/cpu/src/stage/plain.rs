//! An operation that no fusion took, row by row through its reference.

use super::{Play, Slab};
use crate::reference::{add, gate, rms_norm, rope, soft_cap};
use pianola_plan::{Activation, RopePairing, RowSet};

/// One operation by itself; a job is a row of its output.
pub(crate) struct Plain {
    pub op: PlainOp,
    pub input: Slab,
    pub output: Slab,
    /// Columns of input and output, which are alike for all of these.
    pub width: usize,
    /// Rows of the output.
    pub rows: RowSet,
}

/// What [`Plain`] computes, with whatever it reads beside its input.
pub(crate) enum PlainOp {
    RmsNorm {
        /// Its length is that of the groups.
        weight: *const [f32],
        epsilon: f32,
    },
    Rope {
        angles: Slab,
        heads: usize,
        pairing: RopePairing,
    },
    Gate {
        up: Slab,
        activation: Activation,
    },
    Add {
        other: Slab,
    },
    SelectRows,
    SoftCap {
        cap: f32,
    },
}

impl Plain {
    pub fn rows(&self, play: &Play<'_>) -> usize {
        match self.rows {
            RowSet::All => play.rows.len(),
            RowSet::Logits => play.logits.len(),
        }
    }

    pub unsafe fn run(&self, play: &Play<'_>, job: usize) {
        let width = self.width;
        // SAFETY: by the promise of `Stage::run`; the planner never lays a kernel's output over its
        // inputs.
        let row = |slab: Slab, index: usize| unsafe {
            std::slice::from_raw_parts(slab.row(index).cast_const(), width)
        };
        // SAFETY: as above; no other job writes this row.
        let out = unsafe { std::slice::from_raw_parts_mut(self.output.row(job), width) };
        match self.op {
            PlainOp::RmsNorm { weight, epsilon } => {
                // SAFETY: weights outlive the recording's stages.
                rms_norm::rms_norm(row(self.input, job), unsafe { &*weight }, epsilon, out);
            }
            PlainOp::Rope { angles, heads, pairing } => {
                let head_dim = width / heads;
                // SAFETY: angles have a row of `head_dim` for each of the step's.
                let angles = unsafe { std::slice::from_raw_parts(angles.row(job), head_dim) };
                rope::rope(row(self.input, job), angles, heads, head_dim, pairing, out);
            }
            PlainOp::Gate { up, activation } => {
                gate::gate(row(self.input, job), row(up, job), activation, out);
            }
            PlainOp::Add { other } => add::add(row(self.input, job), row(other, job), out),
            PlainOp::SelectRows => {
                out.copy_from_slice(row(self.input, play.logits[job] as usize));
            }
            PlainOp::SoftCap { cap } => soft_cap::soft_cap(row(self.input, job), cap, out),
        }
    }
}
