//! Products of a single row on a large GPU: `project_single`.

use super::super::{Dispatch, Programmer};
use super::Group;
use super::product::gate_code;
use super::rows::{KEEP, RowsConstants};
use crate::constants::project_single as id;
use crate::pipeline::{Shader, Variant};
use crate::policy::{Limits, rows, single};
use crate::tuning::RowsKey;
use pianola_formats::TensorType;
use pianola_plan::{DeviceError, Project};

/// Registers that hold a block of weights under way: codes, scales, super-scales.
fn block_words(ty: TensorType) -> u32 {
    ty.quantization().map_or(32, |quantization| {
        quantization.code_bits as u32 + 1 + u32::from(quantization.scale_bits > 0)
    })
}

/// Which workgroups have which parts of a product.
struct Shares {
    /// First workgroup of each part; all of a gate's parts have all workgroups.
    starts: [u32; 3],
    workgroups: u32,
    /// Rows of each part that are shared, and workgroups that share them.
    parts: Vec<(u32, u32)>,
}

impl Shares {
    /// Parts share workgroups by their bytes.
    fn of(group: &Group<'_>, gate: bool, workgroups: u32) -> Shares {
        let rows = |index: usize| group.parts[index].2.rows as u32;
        if gate {
            return Shares {
                starts: [0, 0, u32::MAX],
                workgroups,
                parts: vec![(rows(0), workgroups)],
            };
        }
        let workgroups = workgroups.max(group.parts.len() as u32);
        let bytes = group
            .parts
            .iter()
            .map(|(_, matrix, slice)| slice.rows as u64 * u64::from(block_words(matrix.ty)));
        let found = single::first_workgroups(&bytes.collect::<Vec<u64>>(), workgroups);
        let mut starts = [u32::MAX; 3];
        starts[..found.len()].copy_from_slice(&found);
        let ends = found.iter().skip(1).copied().chain([workgroups]);
        let parts = found.iter().zip(ends).enumerate();
        let parts = parts.map(|(index, (start, end))| (rows(index), end - start)).collect();
        Shares { starts, workgroups, parts }
    }

    /// Groups of rows that a workgroup has at most.
    fn most_groups(&self, limits: &Limits, shape: &rows::RowsShape) -> u32 {
        let most =
            |&(rows, workgroups): &(u32, u32)| single::most_groups(limits, shape, rows, workgroups);
        self.parts.iter().map(most).max().unwrap_or(1)
    }
}

impl Programmer<'_> {
    /// Whether products of a single row in integers are `project_single`'s: they form their input
    /// themselves, from plain rows, and leave plain rows.
    pub(in crate::program) fn has_single_products(&self, rows: u32) -> bool {
        self.policy_rows(rows) == 1 && single::applies(&self.limits)
    }

    /// What the cut of a single row's product depends on.
    fn single_cut_of(&self, project: &Project, group: &Group<'_>) -> (RowsKey, rows::Product) {
        let blocks = self.blocks(project);
        let gate = project.gate.is_some();
        let rows = if gate { group.parts[0].2.rows as u32 } else { group.rows() };
        let cut = rows::Product {
            rows,
            blocks,
            count: if self.is_head(project) { 2 } else { 1 },
            codes: false,
            tail: false,
            fused: true,
            single: true,
            gate,
            words: group.parts.iter().map(|part| block_words(part.1.ty)).max().unwrap_or(1),
        };
        (RowsKey { ty: group.parts[0].1.ty, rows, blocks, count: cut.count }, cut)
    }

    pub(super) fn single_product(
        &self,
        op: usize,
        project: &Project,
        group: &Group<'_>,
        keep: bool,
    ) -> Result<Dispatch, DeviceError> {
        let logits = self.is_head(project);
        let (key, cut) = self.single_cut_of(project, group);
        let shape = self.shape(&key, &cut);
        let rows::Product { blocks, gate, .. } = cut;
        let (mut bindings, mut product, types, _) = self.product(project, group, 1);
        let shares = Shares::of(group, gate, single::workgroups(&self.limits));
        product.part_group = shares.starts;
        let slices = single::slices(&self.limits, &cut, &shape);
        let most_groups = match slices {
            1 => 1,
            _ => shares.most_groups(&self.limits, &shape),
        };
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
            (id::MOST_GROUPS, most_groups),
            (id::WORKGROUPS, shares.workgroups),
        ];
        constants.extend(self.prologue_specials(project, sum, shape.workgroup));
        let variant = Variant { shader: Shader::ProjectSingle, constants };
        let push = RowsConstants { product, prologue };
        let groups = [shares.workgroups, 1, 1];
        let launch = Dispatch::new(variant, bindings, bytemuck::bytes_of(&push), groups, op);
        Ok(Dispatch { cut: Some((key, cut)), ..launch })
    }
}
