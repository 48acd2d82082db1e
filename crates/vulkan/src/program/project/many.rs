//! Products of several rows: `project_tiles`, `project_matrix`, `project_fragments`.

use super::super::{Dispatch, InputFrom, Programmer};
use super::Group;
use super::product::{ProductConstants, gate_code};
use crate::constants::{matrix as unit, project_fragments, project_tiles as id};
use crate::memory::Region;
use crate::pipeline::{Shader, Variant};
use crate::policy::{self, fragments, matrix};
use pianola_formats::TensorType;
use pianola_plan::Project;

impl Programmer<'_> {
    /// As [`Self::product`], with the other buffers of both products of many rows.
    pub(super) fn product_of_many(
        &self,
        project: &Project,
        group: &Group<'_>,
        tile: u32,
    ) -> (Vec<Region>, ProductConstants, [u32; 2], u32) {
        let (mut bindings, product, types, workgroups) = self.product(project, group, tile);
        bindings.extend([self.weights.vectors, self.output(project)]);
        bindings.extend([self.resources.operand, self.resources.metas]);
        (bindings, product, types, workgroups)
    }

    pub(super) fn tiles_product(
        &self,
        op: usize,
        project: &Project,
        group: &Group<'_>,
        count: u32,
    ) -> Dispatch {
        let logits = self.is_head(project);
        let (bindings, product, types, workgroups) = self.product_of_many(project, group, 64);
        let tokens = policy::tile_tokens(self.policy_rows(count));
        let constants = vec![
            (id::TYPE_A, types[0]),
            (id::TYPE_B, types[1]),
            (id::TOKENS, tokens),
            (id::GATE, gate_code(project)),
            (id::INTEGER, u32::from(group.integer)),
            (id::REFINED, u32::from(logits && group.integer)),
            (id::LOGITS, u32::from(logits)),
            (id::BLOCKS, self.blocks(project)),
        ];
        let variant = Variant { shader: Shader::ProjectTiles, constants };
        let groups = [workgroups, count.div_ceil(tokens), 1];
        Dispatch::new(variant, bindings, bytemuck::bytes_of(&product), groups, op)
    }

    /// Constants that `include/matrix.glsl` declares, but for the tile's.
    fn unit_specials(&self, project: &Project, types: [u32; 2], workgroup: u32) -> Vec<(u32, u32)> {
        vec![
            (unit::WORKGROUP, workgroup),
            (unit::TYPE_A, types[0]),
            (unit::TYPE_B, types[1]),
            (unit::GATE, gate_code(project)),
            (unit::BLOCKS, self.blocks(project)),
            (unit::LOGITS, u32::from(self.is_head(project))),
        ]
    }

    pub(super) fn matrix_product(
        &self,
        op: usize,
        project: &Project,
        group: &Group<'_>,
        count: u32,
    ) -> Dispatch {
        let gate = project.gate.is_some();
        let wide = group.parts.iter().any(|part| part.1.ty == TensorType::F32);
        let shape = matrix::choose(&self.limits, group.rows(), self.policy_rows(count), gate);
        let shape = if wide { shape.with_wide_weights(&self.limits) } else { shape };
        // A gate's tile holds as many rows of each part as it has outputs.
        let outputs = if gate { shape.rows() / 2 } else { shape.rows() };
        let (bindings, product, types, workgroups) = self.product_of_many(project, group, outputs);
        let mut constants = self.unit_specials(project, types, shape.workgroup(&self.limits));
        constants.extend(shape.constants(&self.limits));
        let variant = Variant { shader: Shader::ProjectMatrix, constants };
        let groups = [count.div_ceil(shape.tokens()), workgroups, 1];
        Dispatch::new(variant, bindings, bytemuck::bytes_of(&product), groups, op)
    }

    pub(super) fn fragments_product(
        &self,
        op: usize,
        project: &Project,
        group: &Group<'_>,
        count: u32,
        input: InputFrom,
    ) -> Dispatch {
        let gate = project.gate.is_some();
        let cut = fragments::Product {
            rows: group.rows(),
            blocks: self.blocks(project),
            count: self.policy_rows(count),
            gate,
        };
        let shape = fragments::choose(&self.limits, &cut);
        let outputs = if gate { shape.rows_each / 2 } else { shape.rows_each };
        let (mut bindings, product, types, workgroups) = self.product(project, group, outputs);
        // A prologue leaves them where attention does.
        let (operand, metas) = match input {
            InputFrom::GateFragments => self.handed(input),
            _ => self.handed(InputFrom::Fragments),
        };
        let next = self.output_for_next(op, count);
        let (next_operand, next_metas) = self.handed(next);
        bindings.extend([self.weights.vectors, self.output(project)]);
        bindings.extend([operand, metas, next_operand, next_metas]);
        let next_rows = match next {
            InputFrom::GateFragments => self.fragment_rows(count),
            _ => 0,
        };
        let order = self.limits.fragments.expect("the kernel was chosen by it");
        let mut constants = self.unit_specials(project, types, shape.workgroup(&self.limits));
        constants.extend(shape.constants(&self.limits));
        constants.extend([
            (project_fragments::OPERAND_ROWS, self.fragment_rows(count)),
            (project_fragments::WEIGHTS_ROWS_FIRST, u32::from(order.first_rows_first)),
            (project_fragments::OPERAND_ROWS_FIRST, u32::from(order.second_rows_first)),
            (project_fragments::EARLY, u32::from(shape.early)),
            (project_fragments::SHARERS, order.sharers),
            (project_fragments::NEXT_ROWS, next_rows),
            (project_fragments::TOKEN_SIDE, order.token_side),
        ]);
        let variant = Variant { shader: Shader::ProjectFragments, constants };
        let groups = [count.div_ceil(shape.tokens_each), workgroups, 1];
        Dispatch::new(variant, bindings, bytemuck::bytes_of(&product), groups, op)
    }
}
