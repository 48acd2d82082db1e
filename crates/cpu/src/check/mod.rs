//! Checks every kernel of a step against the reference, with bounds that follow from the types.
//!
//! Each kernel runs on what the kernels before it left; the reference runs the same nodes on a
//! copy of the same inputs. Beside the values it carries a bound on how far rounding may take
//! them: a product of `k` terms may be off by `k` roundings of its absolute sum, and where
//! activations become int8 by half a step each. And it carries the variance that these roundings
//! have if their signs fall by chance, which holds rows to what is really there: see [`noise`].

mod attention;
mod attention_halves;
mod bound;
mod correlation;
mod error;
mod judge;
mod noise;
mod product;
mod rotation;
mod rounded;
mod sampled;

pub use judge::Noise;
pub use rounded::rounded;
pub use sampled::SampledRows;

use crate::device::CpuOptions;
use crate::kv::KvMemory;
use crate::pool::Pool;
use crate::reference::hadamard::rotated;
use crate::reference::{Machine, Tensors};
use crate::weights::{self, Weight};
use error::{NodeError, TensorError};
use judge::{Expected, judge};
use pianola_formats::TensorSource;
use pianola_plan::{
    DeviceError, Kernel, KvGroup, KvSlot, Node, Op, Plan, Probe, Rounding, RowSet, Step, TensorId,
};
use sampled::SubStep;

const KEYS_AND_VALUES: [&str; 2] = ["keys", "values"];

/// What a checked step came to.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Kernels compared.
    pub kernels: usize,
    /// Values compared.
    pub values: usize,
    /// Largest error as a share of its bound.
    pub worst_share: f64,
    /// Largest error of a row as a share of what its roundings explain.
    pub worst_row: f64,
    /// For every tensor what the errors of its rows come to.
    pub noise: Vec<Noise>,
    /// Kernels that left their bounds.
    pub failures: Vec<CheckFailure>,
}

/// A kernel that left its bound.
#[derive(Clone, Debug)]
pub struct CheckFailure {
    /// Kernel, by the plan's name.
    pub kernel: String,
    /// What is wrong.
    pub reason: String,
}

impl std::fmt::Display for CheckFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "kernel {}: {}", self.kernel, self.reason)
    }
}

/// Sampled rows of the tensors that a kernel wrote.
type Outputs = Vec<(TensorId, Vec<f32>)>;

/// The reference's own copy of a model, beside which another device's recording is checked.
pub struct ReferenceModel {
    plan: Plan,
    weights: Vec<Weight>,
    kv: KvMemory,
}

impl ReferenceModel {
    /// Loads the weights of a plan, whatever device it is for.
    pub fn new(plan: Plan, source: &dyn TensorSource) -> Result<ReferenceModel, DeviceError> {
        let pool = Pool::new(CpuOptions::default().threads)
            .map_err(|error| DeviceError::Unsupported(format!("no worker threads: {error}")))?;
        let weights = weights::load(&plan, &|_| true, source, &pool, &mut |_, _| ())?;
        let kv = KvMemory::whole(&plan)
            .map_err(|bytes| crate::device::out_of_memory("the reference's KV pages", bytes))?;
        Ok(ReferenceModel { plan, weights, kv })
    }

    /// Points a page of sequence `to` at the one that sequence `from` has there, as where both
    /// begin with the same tokens.
    pub fn share_page(&mut self, from: usize, to: usize, index: usize) {
        self.kv.groups.iter_mut().for_each(|group| group.share(from, to, index));
    }

    /// Plays `step` on `probe` kernel by kernel, each beside the reference, all rows of it. The
    /// first kernel that left its bound is an error.
    pub fn check_step(
        &mut self,
        probe: &mut dyn Probe,
        step: &Step,
    ) -> Result<Result<CheckReport, CheckFailure>, DeviceError> {
        let mut report = self.check_rows(probe, step, &SampledRows::all(step), &|_| true)?;
        Ok(match report.failures.is_empty() {
            true => Ok(report),
            false => Err(report.failures.remove(0)),
        })
    }

    /// Plays `step` on `probe` kernel by kernel, those that `compared` names beside the reference,
    /// which computes the sampled rows. Earlier positions of its sequences must have been played
    /// so before: the reference knows no others.
    ///
    /// A kernel's outputs are NaN before it plays, so that what it leaves out shows; and no row
    /// may have NaN afterwards, sampled or not.
    pub fn check_rows(
        &mut self,
        probe: &mut dyn Probe,
        step: &Step,
        sampled: &SampledRows,
        compared: &dyn Fn(usize) -> bool,
    ) -> Result<CheckReport, DeviceError> {
        probe.begin(step)?;
        let mut report = CheckReport::default();
        let sub_step = sampled.sub_step(step);
        for op in 0..self.plan.ops.len() {
            if self.plan.is_head(op) && step.logits.is_empty() {
                continue;
            }
            let compared = compared(op);
            let inputs = match compared {
                true => self.inputs(op, probe, step, sampled)?,
                false => Tensors::new(&self.plan),
            };
            self.poison_outputs(op, probe, step)?;
            probe.play_op(op, step)?;
            let mut result = self.copy_kv(op, probe, step)?;
            if compared {
                let found = self.outputs(op, probe, step, sampled)?;
                let rounding = probe.rounding(op, step);
                result = result.and(found).and_then(|found| {
                    self.compare(op, rounding, &sub_step, inputs, &found, &mut report)
                });
                report.kernels += 1;
            }
            if let Err(reason) = result {
                let kernel = self.plan.ops[op].name.clone();
                report.failures.push(CheckFailure { kernel, reason });
            }
        }
        Ok(report)
    }

    fn machine<'a>(&'a self, step: &'a Step) -> Machine<'a> {
        Machine { plan: &self.plan, weights: &self.weights, kv: &self.kv, step }
    }

    fn nodes(&self, op: usize) -> impl Iterator<Item = &Node> {
        self.plan.ops[op].nodes.iter().map(|&node| &self.plan.graph.nodes[node])
    }

    /// Sampled rows of the tensors that the kernel's nodes read and do not compute themselves.
    fn inputs(
        &self,
        op: usize,
        probe: &mut dyn Probe,
        step: &Step,
        sampled: &SampledRows,
    ) -> Result<Tensors, DeviceError> {
        let mut tensors = Tensors::new(&self.plan);
        for &id in self.nodes(op).flat_map(|node| &node.inputs) {
            let own = self.nodes(op).any(|node| node.output == Some(id));
            if !own && tensors.values[id.0].is_empty() {
                let values = probe.read_tensor(id, self.plan.rows(id, step))?;
                tensors.values[id.0] = self.gather(id, &values, sampled);
            }
        }
        Ok(tensors)
    }

    /// Tensors that the kernel writes.
    fn written(&self, op: usize) -> Vec<TensorId> {
        let written = self.nodes(op).filter_map(|node| node.output);
        written.filter(|id| self.plan.views[id.0].is_some()).collect()
    }

    /// Sampled rows of a tensor.
    fn gather(&self, id: TensorId, values: &[f32], sampled: &SampledRows) -> Vec<f32> {
        let spec = self.plan.graph.tensor(id);
        let rows = match spec.rows {
            RowSet::All => &sampled.rows,
            RowSet::Logits => &sampled.logits,
        };
        rows.iter().flat_map(|row| &values[row * spec.width..][..spec.width]).copied().collect()
    }

    /// Fills what the kernel is to write with NaN.
    fn poison_outputs(
        &self,
        op: usize,
        probe: &mut dyn Probe,
        step: &Step,
    ) -> Result<(), DeviceError> {
        // A residual sum of one row may have been formed by the kernel before, in its tail.
        let residual = match &self.plan.ops[op].kernel {
            Kernel::Project(project) if step.rows.len() == 1 => {
                project.residual.map(|residual| residual.output)
            }
            _ => None,
        };
        for id in self.written(op).into_iter().filter(|&id| Some(id) != residual) {
            probe.poison_tensor(id, self.plan.rows(id, step))?;
        }
        Ok(())
    }

    /// Sampled rows of what the kernel wrote; an error in words where any row has NaN.
    fn outputs(
        &self,
        op: usize,
        probe: &mut dyn Probe,
        step: &Step,
        sampled: &SampledRows,
    ) -> Result<Result<Outputs, String>, DeviceError> {
        let mut outputs = Vec::new();
        for id in self.written(op) {
            let spec = self.plan.graph.tensor(id);
            let values = probe.read_tensor(id, self.plan.rows(id, step))?;
            if let Some(at) = values.iter().position(|value| value.is_nan()) {
                let (row, column) = (at / spec.width, at % spec.width);
                let row = match spec.rows {
                    RowSet::All => row,
                    RowSet::Logits => step.logits[row] as usize,
                };
                return Ok(Err(format!(
                    "{}: row {row} of the step, column {column} of {} is not a number: it was left \
                     out, or computed from what was never written",
                    spec.name, spec.width
                )));
            }
            outputs.push((id, self.gather(id, &values, sampled)));
        }
        Ok(Ok(outputs))
    }

    /// Takes over the keys and values of all rows that the kernel stored; an error in words where
    /// one is NaN.
    fn copy_kv(
        &mut self,
        op: usize,
        probe: &mut dyn Probe,
        step: &Step,
    ) -> Result<Result<(), String>, DeviceError> {
        let write = self.nodes(op).find_map(|node| match node.op {
            Op::KvWrite { kv } => Some(kv),
            _ => None,
        });
        let Some(slot) = write else { return Ok(Ok(())) };
        let pages = &mut self.kv.groups[slot.group];
        let (heads, head_dim) = (pages.group.kv_heads, pages.group.head_dim);
        let mut result = Ok(());
        for (which, values) in probe.read_kv(slot, &step.rows)?.iter().enumerate() {
            for (index, values) in values.chunks_exact(head_dim).enumerate() {
                let row = &step.rows[index / heads];
                let (sequence, position) = (row.sequence as usize, row.position as usize);
                let head = index % heads;
                pages.set(sequence, position, slot, head, which == 1, values);
                if values.iter().any(|value| value.is_nan()) {
                    result = Err(format!(
                        "{} of row {}, head {head}: not stored",
                        KEYS_AND_VALUES[which],
                        index / heads
                    ));
                }
            }
        }
        Ok(result)
    }

    fn compare(
        &self,
        op: usize,
        rounding: Rounding,
        sub_step: &SubStep,
        mut tensors: Tensors,
        found: &[(TensorId, Vec<f32>)],
        report: &mut CheckReport,
    ) -> Result<(), String> {
        let planned = &self.plan.ops[op];
        let machine = self.machine(&sub_step.step);
        let mut errors: Vec<TensorError> = tensors
            .values
            .iter()
            .enumerate()
            .map(|(id, values)| TensorError::none(values.len(), machine.rows(TensorId(id))))
            .collect();
        for &node in &planned.nodes {
            let node = &self.plan.graph.nodes[node];
            match node.op {
                Op::KvWrite { kv } => {
                    self.compare_kv(op, (node, kv), sub_step, (&tensors, &errors), report)?;
                }
                _ => NodeError::run(&machine, node, rounding, &mut tensors, &mut errors),
            }
        }
        for (id, found) in found {
            let spec = self.plan.graph.tensor(*id);
            let expected = Expected {
                name: &spec.name,
                width: spec.width,
                rows: sub_step.rows(spec.rows),
                values: &tensors.values[id.0],
                error: &errors[id.0],
            };
            judge(&planned.name, &expected, found, report)?;
        }
        Ok(())
    }

    /// Compares what a kernel stored of its keys and values.
    fn compare_kv(
        &self,
        op: usize,
        (node, slot): (&Node, KvSlot),
        sub_step: &SubStep,
        (tensors, errors): (&Tensors, &[TensorError]),
        report: &mut CheckReport,
    ) -> Result<(), String> {
        let pages = &self.kv.groups[slot.group];
        // The reference keeps f32.
        let group = &self.plan.graph.kv_groups[slot.group];
        let &KvGroup { kv_heads, head_dim, ty, .. } = group;
        for (which, id) in node.inputs.iter().enumerate() {
            let rotation = if which == 0 { group.key_rotation() } else { 1 };
            let error = errors[id.0].rotated(&tensors.values[id.0], rotation);
            let values = rotated(&tensors.values[id.0], rotation);
            let found: Vec<f32> = (sub_step.step.rows.iter())
                .flat_map(|row| {
                    let (sequence, position) = (row.sequence as usize, row.position as usize);
                    (0..kv_heads * head_dim).map(move |at| {
                        let (head, at) = (at / head_dim, at % head_dim);
                        pages.get(sequence, position, slot, head, which == 1, at)
                    })
                })
                .collect();
            let expected = Expected {
                name: KEYS_AND_VALUES[which],
                width: kv_heads * head_dim,
                rows: sub_step.rows(RowSet::All),
                values: &values,
                error: &error.stored(ty, &values, head_dim),
            };
            judge(&self.plan.ops[op].name, &expected, &found, report)?;
        }
        Ok(())
    }
}
