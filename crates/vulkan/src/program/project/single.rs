//! Products of a single row on a large GPU: `project_single`.

use super::super::{Dispatch, Programmer};
use super::Group;
use super::product::gate_code;
use super::rows::{KEEP, RowsConstants};
use crate::constants::project_single as id;
use crate::pipeline::{Shader, Variant};
use crate::policy::{rows, single};
use crate::tuning::RowsKey;
use pianola_formats::TensorType;
use pianola_plan::{DeviceError, Project};

/// Registers that hold a block of weights under way: codes, scales, super-scales.
fn block_words(ty: TensorType) -> u32 {
    ty.quantization().map_or(32, |quantization| {
        quantization.code_bits as u32 + 1 + u32::from(quantization.scale_bits > 0)
    })
}

impl Programmer<'_> {
    /// Whether products of a single row in integers are `project_single`'s: they form their input
    /// themselves, from plain rows, and leave plain rows.
    pub(in crate::program) fn has_single_products(&self, rows: u32) -> bool {
        self.policy_rows(rows) == 1 && single::applies(&self.limits)
    }

    pub(super) fn single_product(
        &self,
        op: usize,
        project: &Project,
        group: &Group<'_>,
        keep: bool,
    ) -> Result<Dispatch, DeviceError> {
        let logits = self.is_head(project);
        let blocks = self.blocks(project);
        let gate = project.gate.is_some();
        let rows = if gate { group.parts[0].2.rows as u32 } else { group.rows() };
        let cut = rows::Product {
            rows,
            blocks,
            count: if logits { 2 } else { 1 },
            codes: false,
            tail: false,
            fused: true,
            single: true,
            gate,
            words: group.parts.iter().map(|part| block_words(part.1.ty)).max().unwrap_or(1),
        };
        let key = RowsKey { ty: group.parts[0].1.ty, rows, blocks, count: cut.count };
        let shape = self.shape(&key, &cut);
        let (mut bindings, mut product, types, _) = self.product(project, group, 1);
        let workgroups = single::workgroups(&self.limits);
        let most_groups = if gate {
            single::most_groups(&self.limits, &shape, rows, workgroups)
        } else {
            let bytes = |part: &(usize, &crate::weights::Matrix, crate::weights::Slice)| {
                part.2.rows as u64 * u64::from(block_words(part.1.ty))
            };
            let bytes: Vec<u64> = group.parts.iter().map(bytes).collect();
            let mut starts = single::first_workgroups(&bytes, workgroups);
            product.part_group[..starts.len()].copy_from_slice(&starts);
            starts.push(workgroups.max(starts.len() as u32));
            let places = starts.windows(2).map(|pair| pair[1] - pair[0]);
            let parts = group.parts.iter().map(|part| part.2.rows as u32).zip(places);
            let most =
                parts.map(|(rows, places)| single::most_groups(&self.limits, &shape, rows, places));
            most.max().unwrap_or(1)
        };
        let workgroups = workgroups.max(group.parts.len() as u32);
        let slices = single::slices(&self.limits, &cut, &shape);
        let (prologue_bindings, prologue, sum) = self.prologue_constants(project)?;
        if keep {
            product.flags |= KEEP;
        }
        let vectors = self.weights.vectors;
        bindings.extend([vectors, vectors, self.output(project)]);
        bindings.extend(prologue_bindings);
        let mut constants = vec![
            (id::WORKGROUP, shape.workgroup),
            (id::TYPE_A, types[0]),
            (id::TYPE_B, types[1]),
            (id::ROW_INVOCATIONS, shape.row_invocations),
            (id::HEIGHT, shape.height),
            (id::UNROLL, shape.unroll),
            (id::SLICES, slices),
            (id::GATE, gate_code(project)),
            (id::REFINED, u32::from(logits)),
            (id::BLOCKS, blocks),
            (id::MOST_GROUPS, if slices > 1 { most_groups } else { 1 }),
        ];
        constants.extend(self.prologue_specials(project, sum, shape.workgroup));
        let variant = Variant { shader: Shader::ProjectSingle, constants };
        let push = RowsConstants { product, prologue };
        let launch =
            Dispatch::new(variant, bindings, bytemuck::bytes_of(&push), [workgroups, 1, 1], op);
        Ok(Dispatch { cut: Some((key, cut)), ..launch })
    }
}
