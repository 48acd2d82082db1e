//! Checks every kernel of a step against the reference, with bounds that follow from the types.
//!
//! Each kernel runs on what the kernels before it left; the reference runs the same nodes on a
//! copy of the same inputs. Beside the values it carries a bound on how far rounding may take
//! them: a product of `k` terms may be off by `k` roundings of its absolute sum, and where
//! activations become int8 by half a step each. And it carries the variance that these roundings
//! have if their signs fall by chance, which holds rows to what is really there: see [`noise`].

mod attention;
mod bound;
mod error;
mod judge;
mod noise;
mod product;

pub use judge::Noise;

use crate::device::CpuOptions;
use crate::kv::KvMemory;
use crate::pool::Pool;
use crate::reference::{Machine, Tensors};
use crate::weights::{self, Weight};
use error::{NodeError, TensorError};
use judge::{Expected, judge};
use pianola_formats::TensorSource;
use pianola_plan::{DeviceError, KvGroup, KvSlot, Node, Op, Plan, Probe, Rounding, Step, TensorId};

/// The worst of a checked step.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Kernels checked.
    pub kernels: usize,
    /// Values compared.
    pub values: usize,
    /// Largest error as a share of its bound.
    pub worst_share: f64,
    /// Largest error of a row as a share of what its roundings explain.
    pub worst_row: f64,
    /// Largest error of a row, relative to its norm.
    pub worst_relative_norm: f64,
    /// For every tensor what the errors of its rows come to.
    pub noise: Vec<Noise>,
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

    /// Plays `step` on `probe` kernel by kernel, each beside the reference. Earlier positions of
    /// its sequences must have been checked before: the reference knows no others.
    pub fn check_step(
        &mut self,
        probe: &mut dyn Probe,
        step: &Step,
    ) -> Result<Result<CheckReport, CheckFailure>, DeviceError> {
        probe.begin(step)?;
        let mut report = CheckReport::default();
        for op in 0..self.plan.ops.len() {
            let inputs = self.inputs(op, probe, step)?;
            probe.play_op(op, step)?;
            self.copy_kv(op, probe, step)?;
            let found = self.outputs(op, probe, step)?;
            let rounding = probe.rounding(op, step);
            if let Err(reason) = self.compare(op, rounding, step, inputs, &found, &mut report) {
                let kernel = self.plan.ops[op].name.clone();
                return Ok(Err(CheckFailure { kernel, reason }));
            }
            report.kernels += 1;
        }
        Ok(Ok(report))
    }

    fn machine<'a>(&'a self, step: &'a Step) -> Machine<'a> {
        Machine { plan: &self.plan, weights: &self.weights, kv: &self.kv, step }
    }

    fn nodes(&self, op: usize) -> impl Iterator<Item = &Node> {
        self.plan.ops[op].nodes.iter().map(|&node| &self.plan.graph.nodes[node])
    }

    /// Tensors that the kernel's nodes read and do not compute themselves.
    fn inputs(
        &self,
        op: usize,
        probe: &mut dyn Probe,
        step: &Step,
    ) -> Result<Tensors, DeviceError> {
        let mut tensors = Tensors::new(&self.plan);
        for id in self.nodes(op).flat_map(|node| &node.inputs) {
            if !self.nodes(op).any(|node| node.output == Some(*id)) {
                tensors.values[id.0] = probe.read_tensor(*id, self.machine(step).rows(*id))?;
            }
        }
        Ok(tensors)
    }

    /// Tensors that the kernel wrote.
    fn outputs(
        &self,
        op: usize,
        probe: &mut dyn Probe,
        step: &Step,
    ) -> Result<Vec<(TensorId, Vec<f32>)>, DeviceError> {
        let written = self.nodes(op).filter_map(|node| node.output);
        let written = written.filter(|id| self.plan.views[id.0].is_some());
        written.map(|id| Ok((id, probe.read_tensor(id, self.machine(step).rows(id))?))).collect()
    }

    /// Takes over the keys and values that the kernel stored.
    fn copy_kv(
        &mut self,
        op: usize,
        probe: &mut dyn Probe,
        step: &Step,
    ) -> Result<(), DeviceError> {
        let write = self.nodes(op).find_map(|node| match node.op {
            Op::KvWrite { kv } => Some(kv),
            _ => None,
        });
        let Some(slot) = write else { return Ok(()) };
        let pages = &mut self.kv.groups[slot.group];
        let (heads, head_dim) = (pages.group.kv_heads, pages.group.head_dim);
        for (which, values) in probe.read_kv(slot, &step.rows)?.iter().enumerate() {
            for (index, values) in values.chunks_exact(head_dim).enumerate() {
                let row = &step.rows[index / heads];
                let (sequence, position) = (row.sequence as usize, row.position as usize);
                pages.set(sequence, position, slot, index % heads, which == 1, values);
            }
        }
        Ok(())
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
                    self.compare_kv(op, (node, kv), step, (&tensors, &errors), report)?;
                }
                _ => NodeError::run(&machine, node, rounding, &mut tensors, &mut errors),
            }
        }
        for (id, found) in found {
            let spec = self.plan.graph.tensor(*id);
            let expected = Expected {
                name: &spec.name,
                width: spec.width,
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
        step: &Step,
        (tensors, errors): (&Tensors, &[TensorError]),
        report: &mut CheckReport,
    ) -> Result<(), String> {
        let pages = &self.kv.groups[slot.group];
        // The reference keeps f32.
        let KvGroup { kv_heads, head_dim, ty, .. } = self.plan.graph.kv_groups[slot.group];
        for (which, id) in node.inputs.iter().enumerate() {
            let values = &tensors.values[id.0];
            let found: Vec<f32> = (step.rows.iter())
                .flat_map(|row| {
                    let (sequence, position) = (row.sequence as usize, row.position as usize);
                    (0..kv_heads * head_dim).map(move |at| {
                        let (head, at) = (at / head_dim, at % head_dim);
                        pages.get(sequence, position, slot, head, which == 1, at)
                    })
                })
                .collect();
            let expected = Expected {
                name: ["keys", "values"][which],
                width: kv_heads * head_dim,
                values,
                error: &errors[id.0].stored(ty, values, head_dim),
            };
            judge(&self.plan.ops[op].name, &expected, &found, report)?;
        }
        Ok(())
    }
}
