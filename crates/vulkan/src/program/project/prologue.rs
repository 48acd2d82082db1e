//! The prologue of a product: what its input rows go through first.

use super::super::{Dispatch, Programmer};
use crate::constants::{prologue as id, prologue_input as input};
use crate::memory::Region;
use crate::pipeline::{Shader, Variant};
use crate::policy::{self, rotated};
use bytemuck::{Pod, Zeroable};
use pianola_plan::{DeviceError, FusedNorm, Project};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable, Default)]
pub(super) struct PrologueConstants {
    base_stride: u32,
    delta_stride: u32,
    norm: u32,
    delta_norm: u32,
    epsilon: f32,
    delta_epsilon: f32,
}

/// How a prologue leaves the rows of an operand: FORM of `prologue.comp`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OperandForm {
    /// f32.
    Floats = 0,
    /// int8 with a step for 32.
    Codes = 1,
    /// Two int8: codes, and codes of what their rounding left out.
    Refined = 2,
    /// f16, each row scaled by a power of two.
    Halves = 3,
    /// The same in the order of [`ProductKernel::Fragments`].
    Fragments = 4,
    /// int8 with a step for the row, rotated.
    Rotated = 5,
}

impl Programmer<'_> {
    pub(super) fn prologue_constants(
        &self,
        project: &Project,
    ) -> Result<(Vec<Region>, PrologueConstants, u32), DeviceError> {
        let vector = |norm: FusedNorm| self.weights.vector(norm.weight) / 4;
        let residual = project.residual;
        let input = residual.map_or(project.input, |residual| residual.base);
        let (base, base_stride) = self.whole(input)?;
        let (delta, delta_stride) = match residual {
            Some(residual) => self.whole(residual.delta)?,
            None => (base, 0),
        };
        let kept = match residual {
            Some(residual) if residual.kept => self.whole(residual.output)?.0,
            // Bound, never written.
            _ => self.resources.metas,
        };
        let delta_norm = residual.and_then(|residual| residual.norm);
        let sum = match (residual, delta_norm) {
            (None, _) => 0,
            (Some(_), None) => 1,
            (Some(_), Some(_)) => 2,
        };
        let constants = PrologueConstants {
            base_stride,
            delta_stride,
            norm: project.norm.map_or(0, vector),
            delta_norm: delta_norm.map_or(0, vector),
            epsilon: project.norm.map_or(0.0, |norm| norm.epsilon),
            delta_epsilon: delta_norm.map_or(0.0, |norm| norm.epsilon),
        };
        Ok((vec![base, delta, kept], constants, sum))
    }

    /// Constants that `include/prologue.glsl` declares.
    pub(super) fn prologue_specials(
        &self,
        project: &Project,
        sum: u32,
        workgroup: u32,
    ) -> [(u32, u32); 6] {
        let width = self.plan.graph.tensor(project.input).width as u32;
        [
            (input::WIDTH, width),
            (input::PASSES, (width / 4).div_ceil(workgroup)),
            (input::SUM, sum),
            (input::NORM, u32::from(project.norm.is_some())),
            (input::SELECT, u32::from(project.select)),
            (input::SUBGROUP, self.limits.subgroup),
        ]
    }

    pub(super) fn prologue(
        &self,
        op: usize,
        project: &Project,
        rows: u32,
        form: OperandForm,
        keep: bool,
    ) -> Result<Dispatch, DeviceError> {
        let logits = self.is_head(project);
        let (mut bindings, prologue, sum) = self.prologue_constants(project)?;
        bindings.extend([self.weights.vectors, self.resources.operand, self.resources.metas]);
        let workgroup = policy::prologue_workgroup(&self.limits, self.blocks(project) * 32);
        let mut constants = vec![
            (id::WORKGROUP, workgroup),
            (id::FORM, form as u32),
            (id::LOGITS, u32::from(logits)),
            (id::KEEP, u32::from(keep)),
        ];
        if form == OperandForm::Fragments {
            constants.push((id::OPERAND_ROWS, self.fragment_rows(rows)));
            // Rows beyond the plan's have no place.
            let options = &self.plan.options;
            let all = !logits && !options.reproducible && rows as usize <= options.max_rows;
            constants.push((id::ALL, u32::from(all)));
        }
        if form == OperandForm::Rotated {
            constants.push((id::OPERAND_ROWS, rotated::operand_rows(rows)));
            constants.push((id::ROTATION, self.rotation(project)));
        }
        constants.extend(self.prologue_specials(project, sum, workgroup));
        let variant = Variant { shader: Shader::Prologue, constants };
        let push = bytemuck::bytes_of(&prologue);
        // All operands pass through one buffer, which the plan does not see.
        Ok(Dispatch { barrier: true, ..Dispatch::new(variant, bindings, push, [rows, 1, 1], op) })
    }
}
