//! Checks every kernel of a step against the reference, with bounds that follow from the types.
//!
//! Each kernel runs on what the kernels before it left; the reference runs the same nodes on a
//! copy of the same inputs. Beside the values it carries a bound on how far rounding may take
//! them: a product of `k` terms may be off by `k` roundings of its absolute sum, and where
//! activations become int8 by half a step each.

mod bound;

use crate::device::CpuOptions;
use crate::kv::KvMemory;
use crate::pool::Pool;
use crate::reference::{Machine, Tensors};
use crate::weights::{self, Weight};
use bound::ErrorBound;
use pianola_formats::TensorSource;
use pianola_plan::{DeviceError, Kernel, Node, Op, Plan, Probe, Rounding, RowSet, Step, TensorId};

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
    /// Largest error of a whole tensor, relative to its norm.
    pub worst_relative_norm: f64,
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

/// The part of a step that the reference computes: all columns of some rows. The others only play.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SampledRows {
    /// Rows of the step, ascending.
    pub rows: Vec<usize>,
    /// Indices into the step's rows with logits, ascending, each of a row in `rows`.
    pub logits: Vec<usize>,
}

impl SampledRows {
    /// Every row.
    pub fn all(step: &Step) -> SampledRows {
        SampledRows {
            rows: (0..step.rows.len()).collect(),
            logits: (0..step.logits.len()).collect(),
        }
    }

    /// The step of these rows alone.
    fn step(&self, step: &Step) -> Step {
        let place = |&index: &usize| {
            let row = step.logits[index] as usize;
            self.rows.binary_search(&row).expect("a sampled row") as u32
        };
        Step {
            rows: self.rows.iter().map(|&row| step.rows[row]).collect(),
            logits: self.logits.iter().map(place).collect(),
        }
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
        let sub_step = sampled.step(step);
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
                let rounding = probe.rounding(op);
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
        step: &Step,
        mut tensors: Tensors,
        found: &[(TensorId, Vec<f32>)],
        report: &mut CheckReport,
    ) -> Result<(), String> {
        let planned = &self.plan.ops[op];
        let machine = self.machine(step);
        let mut bounds: Vec<Vec<f64>> =
            tensors.values.iter().map(|values| vec![0.0; values.len()]).collect();
        for &node in &planned.nodes {
            let node = &self.plan.graph.nodes[node];
            if let Op::KvWrite { kv } = node.op {
                self.compare_kv(node, kv, &machine, &tensors, &bounds, report)?;
                continue;
            }
            machine.run(node, &mut tensors);
            let error = ErrorBound {
                machine: &machine,
                node,
                rounding,
                tensors: &tensors,
                bounds: &bounds,
            };
            let bound = error.bound();
            let output = node.output.expect("all but KvWrite have one");
            bounds[output.0] = bound;
        }
        // A product's errors are many small independent ones: they add up as square roots.
        let terms = match &planned.kernel {
            Kernel::Project(project) => self.plan.graph.tensor(project.input).width,
            _ => 1,
        };
        for (id, found) in found {
            let name = &self.plan.graph.tensor(*id).name;
            judge(name, &tensors.values[id.0], found, &bounds[id.0], terms, report)?;
        }
        Ok(())
    }

    fn compare_kv(
        &self,
        node: &Node,
        slot: pianola_plan::KvSlot,
        machine: &Machine<'_>,
        tensors: &Tensors,
        bounds: &[Vec<f64>],
        report: &mut CheckReport,
    ) -> Result<(), String> {
        let pages = &self.kv.groups[slot.group];
        let (heads, head_dim) = (pages.group.kv_heads, pages.group.head_dim);
        let ty = self.plan.graph.kv_groups[slot.group].ty;
        for (which, id) in node.inputs.iter().enumerate() {
            let expected = &tensors.values[id.0];
            let mut found = Vec::with_capacity(expected.len());
            for row in &machine.step.rows {
                for at in 0..heads * head_dim {
                    let (sequence, position) = (row.sequence as usize, row.position as usize);
                    let head = at / head_dim;
                    found.push(pages.get(
                        sequence,
                        position,
                        slot,
                        head,
                        which == 1,
                        at % head_dim,
                    ));
                }
            }
            let heads = expected.chunks_exact(head_dim).zip(bounds[id.0].chunks_exact(head_dim));
            let bounds: Vec<f64> =
                heads.flat_map(|(values, bounds)| bound::kv_write(ty, values, bounds)).collect();
            judge(KEYS_AND_VALUES[which], expected, &found, &bounds, 1, report)?;
        }
        Ok(())
    }
}

fn judge(
    name: &str,
    expected: &[f32],
    found: &[f32],
    bounds: &[f64],
    terms: usize,
    report: &mut CheckReport,
) -> Result<(), String> {
    if expected.len() != found.len() {
        return Err(format!("{name}: {} values, expected {}", found.len(), expected.len()));
    }
    let (mut error_squares, mut bound_squares, mut squares) = (0.0, 0.0, 0.0);
    for (index, ((&expected, &found), &bound)) in expected.iter().zip(found).zip(bounds).enumerate()
    {
        let (expected, found) = (f64::from(expected), f64::from(found));
        let error = (expected - found).abs();
        if error.is_nan() || error > bound {
            return Err(format!(
                "{name}[{index}] is {found}, expected {expected} within {bound:e}"
            ));
        }
        if bound > 0.0 {
            report.worst_share = report.worst_share.max(error / bound);
        }
        error_squares += error * error;
        bound_squares += bound * bound;
        squares += expected * expected;
    }
    report.values += expected.len();
    if squares > 0.0 {
        report.worst_relative_norm =
            report.worst_relative_norm.max((error_squares / squares).sqrt());
    }
    let expected_norm = 4.0 * (bound_squares / terms as f64).sqrt();
    if expected.len() >= 64 && error_squares.sqrt() > expected_norm.max(1e-6 * squares.sqrt()) {
        return Err(format!(
            "{name}: error norm {:e}, expected at most {expected_norm:e}",
            error_squares.sqrt()
        ));
    }
    Ok(())
}
