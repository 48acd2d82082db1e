//! Products: their input rows, and the kernel that fits the number of rows.

mod group;
mod many;
mod product;
mod prologue;
mod rotated;
mod rows;
mod single;

use super::{Body, Dispatch, InputFrom, Programmer};
use crate::policy::{Limits, fragments, rotated as rotated_policy, single as single_policy};
use group::Group;
use pianola_plan::{DeviceError, Kernel, Numeric, Project, Rounding, RowSet};
use prologue::OperandForm;
use rows::OperandSource;

/// The kernel that computes a product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ProductKernel {
    /// `project_rows`: few rows.
    Rows,
    /// `project_fragments`: some rows, on matrix units.
    Fragments,
    /// `project_matrix`: many rows, on matrix units.
    Matrix,
    /// `project_rotated`: many rows in int8, on matrix units, with weights in the form for prompts.
    Rotated,
    /// `project_tiles`: many rows, on any device.
    Tiles,
}

impl Programmer<'_> {
    pub(super) fn project(
        &self,
        op: usize,
        project: &Project,
        rows: u32,
        out: &mut Vec<Dispatch>,
    ) -> Result<(), DeviceError> {
        let graph = &self.plan.graph;
        let logits = self.is_head(project);
        let width = graph.tensor(project.input).width as u32;
        let groups = self.groups(project)?;
        let rotated = self.is_rotated(project, &groups, rows);
        let input = self.input(op, rows);
        match input {
            InputFrom::Own => {}
            InputFrom::Fragments | InputFrom::GateFragments => {
                out.push(self.fragments_product(op, project, &groups[0], rows, input));
                return Ok(());
            }
            InputFrom::Codes | InputFrom::Tail => {
                let source = OperandSource::Handed(input);
                out.push(self.rows_product(op, project, &groups[0], rows, source, false)?);
                return Ok(());
            }
        }
        let mut keep = project.residual.is_some_and(|residual| residual.kept);
        // The form of the operand that is in memory, for groups that share one.
        let mut ready = None;
        for group in &groups {
            let kernel = match (rotated, group.integer) {
                (true, true) => ProductKernel::Rotated,
                // `rounding` has one answer for all parts: beside rotated ones floats are not rounded.
                (true, false) => ProductKernel::Tiles,
                (false, _) => self.product_kernel(rows, logits, group),
            };
            let refined = logits
                && group.integer
                && matches!(kernel, ProductKernel::Rows | ProductKernel::Tiles);
            let count = if refined { 2 * rows } else { rows };
            let blocks = width / 32;
            let form = match kernel {
                ProductKernel::Fragments => OperandForm::Fragments,
                ProductKernel::Matrix => OperandForm::Halves,
                ProductKernel::Rotated => OperandForm::Rotated,
                _ if refined => OperandForm::Refined,
                _ if group.integer => OperandForm::Codes,
                _ => OperandForm::Floats,
            };
            let shared = 40 * blocks * count + 1024;
            let fused =
                self.policy_rows(rows) == 1 && group.integer && shared <= self.limits.shared_memory;
            let single = fused
                && self.has_single_products(rows)
                && shared + single_policy::SUMS_BYTES <= self.limits.shared_memory;
            if !fused && ready != Some(form) {
                out.push(self.prologue(op, project, rows, form, keep)?);
                keep = false;
                ready = Some(form);
            }
            let product = match kernel {
                ProductKernel::Rows if single => self.single_product(op, project, group, keep)?,
                ProductKernel::Rows => {
                    let source = if fused { OperandSource::Fused } else { OperandSource::Ready };
                    self.rows_product(op, project, group, count, source, keep)?
                }
                ProductKernel::Fragments => {
                    self.fragments_product(op, project, group, count, input)
                }
                ProductKernel::Matrix => self.matrix_product(op, project, group, count),
                ProductKernel::Rotated => self.rotated_product(op, project, group, count),
                ProductKernel::Tiles => self.tiles_product(op, project, group, count),
            };
            keep &= !fused;
            out.push(Dispatch { barrier: !fused, ..product });
        }
        Ok(())
    }

    /// The kernel for the weights of one dispatch and `rows` rows.
    pub(super) fn product_kernel(
        &self,
        rows: u32,
        logits: bool,
        group: &Group<'_>,
    ) -> ProductKernel {
        let rows = self.policy_rows(rows);
        let integer = group.integer;
        let Limits { matrices, fragments, .. } = self.limits;
        let some = fragments::LEAST_ROWS..=fragments::MOST_ROWS;
        if integer && fragments.is_some() && some.contains(&rows) {
            return ProductKernel::Fragments;
        }
        // Refined rows are two.
        if rows * if logits && integer { 2 } else { 1 } <= 8 {
            return ProductKernel::Rows;
        }
        let fast = self.plan.options.numeric == Numeric::Fast;
        // A gate may have a part of either kind, which only tiles can multiply.
        match fast && matrices > 0 && (integer || group.is_float()) {
            true => ProductKernel::Matrix,
            false => ProductKernel::Tiles,
        }
    }

    /// Whether the quantised weights of a product of `rows` rows are read in the form for prompts: all of
    /// them or none.
    fn is_rotated(&self, project: &Project, groups: &[Group<'_>], rows: u32) -> bool {
        let mut integers = groups.iter().filter(|group| group.integer).peekable();
        let many = self.policy_rows(rows) >= rotated_policy::LEAST_ROWS;
        let plain = !self.is_head(project) && project.soft_cap.is_none();
        many && plain && integers.peek().is_some() && integers.all(Group::has_prompt_form)
    }

    /// How a kernel of the plan rounds the inputs of its products: those in integers, those on matrix units, and those of an
    /// attention on matrix units.
    pub fn rounding(&self, op: usize, body: Body) -> Rounding {
        let project = match &self.plan.ops[op].kernel {
            Kernel::Project(project) => project,
            Kernel::Attend(attend) => return self.attention_rounding(attend, body),
            Kernel::Single(_) => return Rounding::None,
        };
        // A plan that cannot be cut into groups was refused when it was recorded.
        let groups = self.groups(project).unwrap_or_default();
        let logits = self.is_head(project);
        let Some(integer) = groups.iter().find(|group| group.integer) else {
            let on_matrix_units = |group: &Group<'_>| {
                self.product_kernel(body.rows, logits, group) == ProductKernel::Matrix
            };
            return match !groups.is_empty() && groups.iter().all(on_matrix_units) {
                true => Rounding::Halves,
                false => Rounding::None,
            };
        };
        let within = self.plan.segments[body.segment].ops.clone();
        let input = Programmer { within, ..*self }.input(op, body.rows);
        if input == InputFrom::GateFragments {
            return Rounding::FixedHalves;
        }
        if input == InputFrom::Own && self.is_rotated(project, &groups, body.rows) {
            let scaled = self.plan.graph.tensor(project.input).width;
            return Rounding::Rotated { block: self.rotation(project) as usize, scaled };
        }
        match self.product_kernel(body.rows, logits, integer) {
            ProductKernel::Fragments | ProductKernel::Matrix => Rounding::Halves,
            ProductKernel::Rotated => unreachable!("it is chosen by the weights"),
            ProductKernel::Rows | ProductKernel::Tiles if logits => Rounding::Int8Twice,
            ProductKernel::Rows | ProductKernel::Tiles => Rounding::Int8,
        }
    }

    /// Whether a product works on the rows with logits only.
    pub(super) fn is_head(&self, project: &Project) -> bool {
        self.plan.graph.tensor(project.parts[0].output).rows == RowSet::Logits
    }

    /// Blocks of 32 columns of a product's input.
    fn blocks(&self, project: &Project) -> u32 {
        (self.plan.graph.tensor(project.input).width / 32) as u32
    }

    /// Rows that the operand of a play of `rows` rows has room for, as fragments.
    pub(super) fn fragment_rows(&self, rows: u32) -> u32 {
        let options = &self.plan.options;
        let rows = match options.reproducible {
            true => options.max_rows.max(options.max_logit_rows) as u32,
            false => rows,
        };
        rows.next_multiple_of(8)
    }
}
