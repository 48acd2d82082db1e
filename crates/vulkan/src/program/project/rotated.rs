//! Products of many rows with weights in the form for prompts: `project_rotated`.

use super::super::{Dispatch, Programmer};
use super::Group;
use super::product::gate_code;
use crate::constants::project_rotated as id;
use crate::pipeline::{Shader, Variant};
use crate::policy::rotated;
use crate::weights::Slice;
use pianola_plan::Project;

impl Programmer<'_> {
    /// Columns of the blocks that a product's input is rotated in.
    pub(super) fn rotation(&self, project: &Project) -> u32 {
        let width = self.plan.graph.tensor(project.input).width;
        rotated::rotation(width).expect("its weights were rotated")
    }

    pub(super) fn rotated_product(
        &self,
        op: usize,
        project: &Project,
        group: &Group<'_>,
        count: u32,
    ) -> Dispatch {
        let form = |slice: Slice| slice.prompt_form.expect("the kernel was chosen by it");
        let parts = group
            .parts
            .iter()
            .map(|&(part, matrix, slice)| (part, matrix, Slice { region: form(slice), ..slice }));
        let group = Group { parts: parts.collect(), integer: true };
        let gate = project.gate.is_some();
        let shape = rotated::choose(&self.limits, group.rows(), count);
        // A gate's tile holds as many rows of each part as it has outputs.
        let outputs = if gate { shape.rows() / 2 } else { shape.rows() };
        let (bindings, product, _, workgroups) = self.product_of_many(project, &group, outputs);
        let chunks = (32 * self.blocks(project)).div_ceil(rotated::CHUNK);
        let mut constants = vec![
            (id::GATE, gate_code(project)),
            (id::CHUNKS, chunks),
            (id::OPERAND_ROWS, rotated::operand_rows(count)),
        ];
        constants.extend(shape.constants(&self.limits));
        let variant = Variant { shader: Shader::ProjectRotated, constants };
        let groups = [count.div_ceil(shape.tokens()), workgroups, 1];
        Dispatch::new(variant, bindings, bytemuck::bytes_of(&product), groups, op)
    }
}
