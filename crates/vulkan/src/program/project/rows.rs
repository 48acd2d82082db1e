//! Products of few rows: `project_rows`.

use super::super::{Dispatch, InputFrom, Programmer};
use super::Group;
use super::product::{ProductConstants, gate_code};
use super::prologue::PrologueConstants;
use crate::constants::project_rows as id;
use crate::memory::Region;
use crate::pipeline::{Shader, Variant};
use crate::policy::rows;
use crate::tuning::RowsKey;
use bytemuck::{Pod, Zeroable};
use pianola_plan::{DeviceError, Kernel, Project};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct RowsConstants {
    pub product: ProductConstants,
    pub prologue: PrologueConstants,
}

/// The dispatch that writes the new residual stream.
pub(super) const KEEP: u32 = 0x100;

/// How a product of few rows gets its operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OperandSource {
    /// Each workgroup forms it.
    Fused,
    /// A prologue before it did.
    Ready,
    /// The kernel before left it.
    Handed(InputFrom),
}

impl Programmer<'_> {
    pub(super) fn rows_product(
        &self,
        op: usize,
        project: &Project,
        group: &Group<'_>,
        count: u32,
        source: OperandSource,
        keep: bool,
    ) -> Result<Dispatch, DeviceError> {
        let logits = self.is_head(project);
        let blocks = self.blocks(project);
        let refined = logits && group.integer;
        let fused = source == OperandSource::Fused;
        let single = count == 1 && !logits;
        let next = if single { self.output_for_next(op, 1) } else { InputFrom::Own };
        let (codes, tail) = (next == InputFrom::Codes, next == InputFrom::Tail);
        let rows = match project.gate {
            Some(_) => group.parts[0].2.rows as u32,
            None => group.rows(),
        };
        let (single, gate, words) = (false, project.gate.is_some(), 0);
        let cut = rows::Product { rows, blocks, count, codes, tail, fused, single, gate, words };
        let key = RowsKey { ty: group.parts[0].1.ty, rows: cut.rows, blocks, count };
        let shape = self.shape(&key, &cut);
        let (mut bindings, mut product, types, workgroups) =
            self.product(project, group, shape.rows());
        // The prologue in this launch: its own, or in its tail the next product's.
        let formed = match &self.plan.ops[if tail { op + 1 } else { op }].kernel {
            Kernel::Project(formed) => formed,
            _ => unreachable!("tails form the input of products"),
        };
        let (prologue_bindings, prologue, sum) = self.prologue_constants(formed)?;
        if (fused && keep) || (tail && formed.residual.is_some_and(|residual| residual.kept)) {
            product.flags |= KEEP;
        }
        let vectors = self.weights.vectors;
        let (operand, metas) = match source {
            OperandSource::Handed(input) => self.handed(input),
            OperandSource::Fused | OperandSource::Ready => {
                (self.resources.operand, self.resources.metas)
            }
        };
        let (next_operand, next_metas) = self.handed(next);
        bindings.extend([vectors, vectors, self.output(project), operand, metas]);
        bindings.extend(prologue_bindings);
        bindings.extend([next_operand, next_metas, self.resources.finished]);
        let mut constants = vec![
            (id::WORKGROUP, shape.workgroup),
            (id::TYPE_A, types[0]),
            (id::TYPE_B, types[1]),
            (id::ROW_INVOCATIONS, shape.row_invocations),
            (id::HEIGHT, shape.height),
            (id::COUNT, count),
            (id::FUSED, u32::from(fused)),
            (id::GATE, gate_code(project)),
            (id::INTEGER, u32::from(group.integer)),
            (id::REFINED, u32::from(refined)),
        ];
        if fused || tail {
            constants.extend(self.prologue_specials(formed, sum, shape.workgroup));
        }
        constants.extend([
            (id::LOGITS, u32::from(logits)),
            (id::SHARED_BLOCKS, if fused { blocks * count } else { 1 }),
            (id::BLOCKS, blocks),
            (id::CODES, u32::from(codes)),
            (id::TAIL, u32::from(tail)),
            (id::UNROLL, shape.unroll),
        ]);
        let variant = Variant { shader: Shader::ProjectRows, constants };
        let push = RowsConstants { product, prologue };
        let push = bytemuck::bytes_of(&push);
        let launch = Dispatch::new(variant, bindings, push, [workgroups, 1, 1], op);
        Ok(Dispatch { cut: Some((key, cut)), ..launch })
    }

    /// How a product of few rows is cut: as measured, or as the policy guesses.
    pub(super) fn shape(&self, key: &RowsKey, product: &rows::Product) -> rows::RowsShape {
        let measured = self.tuning.rows.get(key).copied();
        let allowed =
            |shape: &rows::RowsShape| rows::candidates(&self.limits, product).contains(shape);
        measured.filter(allowed).unwrap_or_else(|| rows::choose(&self.limits, product))
    }

    /// Where rows are handed from one kernel to the next. A single row's codes and tails have
    /// buffers of their own, because a kernel reads one while it writes the other; attention reads
    /// neither. A gate that leaves fragments reads fragments, which lie in the same buffers before. Where nothing is handed on
    /// it is a buffer that a binding needs.
    pub(in crate::program) fn handed(&self, input: InputFrom) -> (Region, Region) {
        match input {
            InputFrom::Fragments => (self.resources.operand, self.resources.metas),
            InputFrom::GateFragments => self.resources.gate_fragments(),
            InputFrom::Tail => self.resources.handed[1],
            InputFrom::Codes | InputFrom::Own => self.resources.handed[0],
        }
    }
}
