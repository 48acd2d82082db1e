//! The second form of quantised weights, for prompts: rotated and rounded to int8
//! (`shaders/rotate_weights.comp`). It is made on the device from the first form, when a recording is made.

use crate::constants::rotate_weights as id;
use crate::memory::Region;
use crate::pipeline::{Shader, Variant};
use crate::policy::rotated::{CHUNK, rotation};
use crate::policy::{Limits, prologue_workgroup};
use crate::program::{Allocate, Dispatch, type_code};
use crate::recording::VulkanRecording;
use crate::weights::{Matrix, Slice, Weight, Weights};
use pianola_plan::{Allocation, AllocationKind, DeviceError, DeviceId, Kernel, Plan, WeightSpec};
use std::collections::BTreeSet;

/// Workgroups along one axis of a launch, at most.
const AXIS: u32 = 32_768;

/// Bytes of `rows` rows: a byte a column, whole chunks, and a scale each.
fn form_bytes(rows: usize, columns: usize) -> u64 {
    (rows * (columns.next_multiple_of(CHUNK as usize) + 4)) as u64
}

/// Weights of a device that products of many rows read, as far as they can be rotated. The head has rows
/// with logits only, which are few.
fn rotatable(plan: &Plan, device: DeviceId) -> BTreeSet<usize> {
    let quantized =
        |spec: &WeightSpec| spec.ty.is_quantized() && rotation(spec.shape.rows().1).is_some();
    let ops = plan.ops.iter().enumerate();
    let mine = ops.filter(|&(op, _)| plan.runs_on(op, device) && !plan.is_head(op));
    mine.filter_map(|(_, planned)| match &planned.kernel {
        Kernel::Project(project) => Some(project),
        _ => None,
    })
    .flat_map(|project| project.parts.iter().map(|part| part.weight.0))
    .filter(|&weight| quantized(&plan.graph.weights[weight]))
    .collect()
}

impl Weights {
    /// Finds room for the form for prompts, behind everything else. A matrix with a slice whose second form
    /// would exceed `limit` has none.
    pub fn add_prompt_form(
        &mut self,
        plan: &Plan,
        device: DeviceId,
        limit: u64,
        allocate: &mut Allocate<'_>,
    ) -> Result<(), DeviceError> {
        for index in rotatable(plan, device) {
            let Weight::Matrix(matrix) = &mut self.list[index] else { continue };
            let columns = matrix.columns;
            if matrix.slices.iter().any(|slice| form_bytes(slice.rows, columns) > limit) {
                continue;
            }
            for slice in &mut matrix.slices {
                let bytes = form_bytes(slice.rows, columns);
                let what = format!("{} for prompts", plan.graph.weights[index].name);
                let (kind, layer) = (AllocationKind::PromptWeights, plan.weight_layer(index));
                slice.prompt_form = Some(allocate(&Allocation { kind, what, bytes, layer })?);
            }
        }
        Ok(())
    }

    /// Every slice that has the form for prompts, with its matrix and the form.
    fn prompt_forms(&self) -> impl Iterator<Item = (&Matrix, &Slice, Region)> {
        let matrices = self.list.iter().filter_map(|weight| match weight {
            Weight::Matrix(matrix) => Some(matrix),
            _ => None,
        });
        let slices =
            matrices.flat_map(|matrix| matrix.slices.iter().map(move |slice| (matrix, slice)));
        slices.filter_map(|(matrix, slice)| Some((matrix, slice, slice.prompt_form?)))
    }

    /// Whether a matrix has the form for prompts.
    pub fn has_prompt_form(&self) -> bool {
        self.prompt_forms().next().is_some()
    }

    /// What makes the form for prompts: a launch for every slice that has one.
    fn rotations(&self, limits: &Limits) -> Vec<Dispatch> {
        self.prompt_forms()
            .map(|(matrix, slice, form)| rotate(limits, matrix, slice, form))
            .collect()
    }
}

fn rotate(limits: &Limits, matrix: &Matrix, slice: &Slice, form: Region) -> Dispatch {
    let width = matrix.columns as u32;
    let workgroup = prologue_workgroup(limits, width);
    let block = rotation(matrix.columns).expect("a matrix that can be rotated");
    let constants = vec![
        (id::WORKGROUP, workgroup),
        (id::TYPE, type_code(matrix.ty)),
        (id::WIDTH, width),
        (id::PASSES, (width / 4).div_ceil(workgroup)),
        (id::SUBGROUP, limits.subgroup),
        (id::ROTATION, block),
    ];
    let variant = Variant { shader: Shader::RotateWeights, constants };
    let mut bindings = vec![slice.region; 9];
    bindings.push(form);
    let rows = slice.rows as u32;
    let groups = [rows.min(AXIS), rows.div_ceil(AXIS), 1];
    Dispatch::new(variant, bindings, &rows.to_ne_bytes(), groups, 0)
}

impl VulkanRecording {
    /// Makes the form for prompts of the weights that have room for it.
    pub(crate) fn make_prompt_form(&mut self) -> Result<(), DeviceError> {
        for dispatch in self.weights.rotations(self.limits()) {
            self.play_program(&[dispatch])?;
        }
        Ok(())
    }
}
