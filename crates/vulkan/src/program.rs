//! From a plan to dispatches: which kernel, with which buffers and constants, in which order.
//!
//! A program is plain data; [`crate::commands`] turns it into command buffers. The body of a play
//! is programmed for a number of rows (a bucket), the head for a number of rows with logits, so
//! that a prompt's chunk without logits reads no head.

mod attend;
mod chain;
mod plain;
mod project;
mod resources;

pub(crate) use chain::{ChainMemory, ChainedProgram, HEADER as CHAIN_HEADER};
pub(crate) use resources::{Allocate, Resources, page_bytes};

use crate::memory::Region;
use crate::pipeline::{PUSH_BYTES, Variant};
use crate::policy::{Limits, REPRODUCIBLE_ROWS, fragments, rows};
use crate::tuning::{RowsKey, Tuning};
use crate::weights::Weights;
use pianola_formats::TensorType;
use pianola_plan::{DeviceError, DeviceId, Kernel, KvType, Plan, Project, Step, TensorId, bucket};
use project::ProductKernel;
use std::ops::Range;

/// One kernel launch.
#[derive(Clone, Debug)]
pub(crate) struct Dispatch {
    pub variant: Variant,
    /// Buffers of set 1, binding after binding.
    pub bindings: Vec<Region>,
    pub push: Vec<u8>,
    pub groups: [u32; 3],
    /// Whether it waits for those before it.
    pub barrier: bool,
    /// Kernel of the plan.
    pub op: usize,
    /// What [`crate::tune`] may cut otherwise.
    pub cut: Option<(RowsKey, rows::Product)>,
}

impl Dispatch {
    /// A launch that waits for nothing.
    pub fn new(
        variant: Variant,
        bindings: Vec<Region>,
        push: &[u8],
        groups: [u32; 3],
        op: usize,
    ) -> Dispatch {
        Dispatch { variant, bindings, push: push.to_vec(), groups, barrier: false, op, cut: None }
    }
}

/// Where a product's input rows come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InputFrom {
    /// It forms it itself, or a launch before it does.
    Own,
    /// The kernel before left its outputs as codes: a single row.
    Codes,
    /// Attention left its outputs as fragments: some rows.
    Fragments,
    /// The gate before left its outputs as fragments, in a place of their own because it read such itself.
    GateFragments,
    /// The kernel before formed it in its tail: a single row.
    Tail,
}

/// What the body of a play is programmed for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Body {
    /// Segment of the plan.
    pub segment: usize,
    /// Rows, at most.
    pub rows: u32,
    /// Every row is of another sequence: no row reads another row's new key, so the KV write can
    /// be fused.
    pub one_row_per_sequence: bool,
}

impl Body {
    /// The body that plays a segment of a checked step.
    pub fn of(segment: usize, step: &Step) -> Body {
        let rows = bucket(step.rows.len()).expect("a checked step") as u32;
        Body { segment, rows, one_row_per_sequence: step.is_one_row_per_sequence() }
    }

    /// The body of a play of one row.
    pub fn single(segment: usize) -> Body {
        Body { segment, rows: 1, one_row_per_sequence: true }
    }
}

/// Writes programs for one plan.
pub(crate) struct Programmer<'a> {
    pub plan: &'a Plan,
    pub device: DeviceId,
    pub weights: &'a Weights,
    pub resources: &'a Resources,
    /// The arena of the slot that the program is for.
    pub arena: Region,
    /// Kernels of the segment that is programmed: these hand on to one another.
    pub within: Range<usize>,
    pub limits: Limits,
    pub tuning: &'a Tuning,
}

impl Programmer<'_> {
    /// Segments of this device.
    pub fn segments(&self) -> impl Iterator<Item = usize> + use<'_> {
        let segments = self.plan.segments.iter().enumerate();
        segments.filter(|(_, segment)| segment.device == self.device).map(|(index, _)| index)
    }

    /// A segment without what works on rows with logits only.
    pub fn body(&self, body: Body) -> Result<Vec<Dispatch>, DeviceError> {
        self.program(body, false)
    }

    /// The rest of a segment, for at most `logits` rows.
    pub fn head(&self, segment: usize, logits: u32) -> Result<Vec<Dispatch>, DeviceError> {
        self.program(Body { segment, rows: logits, one_row_per_sequence: false }, true)
    }

    fn program(&self, body: Body, head: bool) -> Result<Vec<Dispatch>, DeviceError> {
        self.check_order()?;
        let rows = body.rows;
        let mut dispatches = Vec::new();
        let ops = self.plan.segments[body.segment].ops.clone();
        let this = Programmer { within: ops.clone(), ..*self };
        for op in ops.filter(|&op| self.plan.is_head(op) == head) {
            let start = dispatches.len();
            match &self.plan.ops[op].kernel {
                Kernel::Project(project) => this.project(op, project, rows, &mut dispatches)?,
                Kernel::Attend(attend) => this.attend(op, attend, body, &mut dispatches),
                Kernel::Single(node) => this.single(op, *node, rows, &mut dispatches)?,
            }
            // The head waits for the body; the body for the play before, which may still run in
            // the same memory.
            dispatches[start].barrier |= self.plan.ops[op].barrier || start == 0;
        }
        debug_assert!(dispatches.iter().all(|d| d.push.len() <= PUSH_BYTES as usize));
        Ok(dispatches)
    }

    /// Refuses a plan whose head is not its end: the head plays after the body, and memory that it
    /// still reads may have been given to a kernel behind it.
    fn check_order(&self) -> Result<(), DeviceError> {
        let ops = &self.plan.ops;
        let mine = |op: &usize| self.plan.runs_on(*op, self.device);
        let mut rest = (0..ops.len()).filter(mine).skip_while(|&op| !self.plan.is_head(op));
        match rest.find(|&op| !self.plan.is_head(op)) {
            None => Ok(()),
            Some(op) => Err(DeviceError::Unsupported(format!(
                "the Vulkan device computes logits last, and '{}' stands behind a kernel for them: use another device",
                ops[op].name
            ))),
        }
    }

    /// Where kernel `op` finds its input in a play of `rows` rows. A single row is handed on by the
    /// kernel before wherever that is one launch and this one multiplies integers; some rows by
    /// attention, and up to [`fragments::MOST_GATE_ROWS`] by a gate.
    fn input(&self, op: usize, rows: u32) -> InputFrom {
        let rows = self.policy_rows(rows);
        let Kernel::Project(project) = &self.plan.ops[op].kernel else { return InputFrom::Own };
        // What another device computed comes as it is, and so does every row where products form
        // their own.
        if op <= self.within.start || self.has_single_products(rows) {
            return InputFrom::Own;
        }
        let alone = |project: &Project| match self.groups(project) {
            Ok(groups) if groups.len() == 1 => groups.into_iter().next(),
            _ => None,
        };
        let Some(group) = alone(project).filter(|group| group.integer && !project.select) else {
            return InputFrom::Own;
        };
        let left = match self.product_kernel(rows, false, &group) {
            ProductKernel::Fragments => InputFrom::Fragments,
            _ if rows == 1 => InputFrom::Codes,
            _ => return InputFrom::Own,
        };
        let bare = project.residual.is_none() && project.norm.is_none();
        match &self.plan.ops[op - 1].kernel {
            Kernel::Attend(attend) => {
                let whole = attend.spec.head_dim.is_multiple_of(32);
                // A mean of half floats is no larger than they are: it needs no scale.
                let kv = self.plan.graph.kv_groups[attend.spec.kv.group].ty;
                let fits = left == InputFrom::Codes || kv == KvType::F16;
                let read = bare && attend.output == project.input;
                if read && whole && fits { left } else { InputFrom::Own }
            }
            Kernel::Project(before) if rows != 1 => {
                let gated = before.gate.is_some_and(|(_, output)| bare && output == project.input);
                let few = !self.plan.options.reproducible && rows <= fragments::MOST_GATE_ROWS;
                match gated && few && alone(before).is_some_and(|group| group.integer) {
                    true => InputFrom::GateFragments,
                    false => InputFrom::Own,
                }
            }
            Kernel::Project(before) => {
                let Some(group) = alone(before) else { return InputFrom::Own };
                let rows = group.parts[0].2.rows;
                if let Some((_, output)) = before.gate {
                    let whole = rows.is_multiple_of(32);
                    return if bare && output == project.input && whole {
                        InputFrom::Codes
                    } else {
                        InputFrom::Own
                    };
                }
                let fed = project.residual.is_some_and(|residual| {
                    before.parts.len() == 1
                        && before.soft_cap.is_none()
                        && residual.delta == before.parts[0].output
                });
                // One launch has the constants of one prologue: of its own input, or of its tail.
                let fused = group.integer && self.input(op - 1, 1) == InputFrom::Own;
                if fed && !fused { InputFrom::Tail } else { InputFrom::Own }
            }
            Kernel::Single(_) => InputFrom::Own,
        }
    }

    /// What kernel `op` leaves for the next one.
    fn output_for_next(&self, op: usize, rows: u32) -> InputFrom {
        match self.within.contains(&(op + 1)) {
            true => self.input(op + 1, rows),
            false => InputFrom::Own,
        }
    }

    /// The number of rows that kernels of a play of `rows` rows are chosen for. Where results must
    /// be reproducible it is always the same: all plays then run the same pipelines with the same
    /// constants, and differ in the number of workgroups only.
    fn policy_rows(&self, rows: u32) -> u32 {
        if self.plan.options.reproducible { REPRODUCIBLE_ROWS } else { rows }
    }

    /// The buffer a tensor lies in, and its stride and first column in floats.
    fn tensor(&self, id: TensorId) -> (Region, u32, u32) {
        let view = self.plan.view(id);
        let buffer = &self.plan.buffers[view.buffer];
        let rows = self.plan.max_rows(buffer.rows);
        let offset = self.plan.arena.offsets[view.buffer] as u64;
        let region = self.arena.slice(offset, (rows * buffer.width * 4) as u64);
        (region, buffer.width as u32, view.column as u32)
    }

    /// As [`Self::tensor`], for a tensor that has a buffer to itself.
    fn whole(&self, id: TensorId) -> Result<(Region, u32), DeviceError> {
        let (region, stride, column) = self.tensor(id);
        if column != 0 || stride % 4 != 0 {
            let name = &self.plan.graph.tensor(id).name;
            return Err(DeviceError::Unsupported(format!(
                "the Vulkan kernels cannot read '{name}' from column {column} of rows of {stride}: use another device"
            )));
        }
        Ok((region, stride / 4))
    }
}

/// Place of a type in `TensorType::ALL`, as `include/weights.glsl` counts them.
pub(crate) fn type_code(ty: TensorType) -> u32 {
    TensorType::ALL.iter().position(|&other| other == ty).expect("all types are listed") as u32
}
