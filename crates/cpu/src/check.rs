//! Checks every kernel of a step against the reference, with bounds that follow from the types.
//!
//! Each kernel runs on what the kernels before it left; the reference runs the same nodes on a
//! copy of the same inputs. Beside the values it carries a bound on how far rounding may take
//! them: a product of `k` terms may be off by `k` roundings of its absolute sum, and where
//! activations become int8 by half a step each.

use crate::device::CpuOptions;
use crate::kv::KvMemory;
use crate::pool::Pool;
use crate::reference::{Machine, Tensors};
use crate::weights::{self, Weight};
use pianola_formats::TensorSource;
use pianola_plan::{DeviceError, Kernel, KvType, Node, Op, Plan, Probe, Rounding, Step, TensorId};

/// The worst of a checked step.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Kernels checked.
    pub kernels: usize,
    /// Values compared.
    pub values: usize,
    /// Largest error as a share of its bound.
    pub worst_share: f64,
    /// Largest error of a whole tensor, relative to its norm.
    pub worst_relative_norm: f64,
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
            let rounding = probe.rounding(op);
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
        let pages = &self.kv.groups[slot.group];
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
        let mut bounds: Vec<Vec<f64>> =
            tensors.values.iter().map(|values| vec![0.0; values.len()]).collect();
        for &node in &planned.nodes {
            let node = &self.plan.graph.nodes[node];
            if let Op::KvWrite { kv } = node.op {
                self.compare_kv(node, kv, &machine, &tensors, &bounds, report)?;
                continue;
            }
            machine.run(node, &mut tensors);
            let bound = bound(&machine, node, rounding, &tensors, &bounds);
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
        // What storing may take off a head's values.
        let rounding = |values: &[f32], bounds: &[f64]| -> Vec<f64> {
            let relative = |share: f64| values.iter().map(|x| share * f64::from(x.abs())).collect();
            match self.plan.graph.kv_groups[slot.group].ty {
                KvType::F32 => relative(0.0),
                KvType::F16 => relative(2f64.powi(-11)),
                KvType::Q8 => {
                    let sizes = values.iter().zip(bounds).map(|(x, b)| f64::from(x.abs()) + b);
                    // Half a step, and a little for the rounding of the step itself.
                    vec![sizes.fold(0.0, f64::max) / 127.0 * 0.501; values.len()]
                }
            }
        };
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
            let stored = heads.flat_map(|(values, bounds)| rounding(values, bounds));
            let bounds: Vec<f64> = bounds[id.0]
                .iter()
                .zip(stored)
                .map(|(bound, stored)| bound + stored + 6e-8)
                .collect();
            judge(["keys", "values"][which], expected, &found, &bounds, 1, report)?;
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

/// Bounds on a node's output, given its inputs' bounds.
fn bound(
    machine: &Machine<'_>,
    node: &Node,
    rounding: Rounding,
    tensors: &Tensors,
    bounds: &[Vec<f64>],
) -> Vec<f64> {
    let output = node.output.expect("a node with a result");
    let out = &tensors.values[output.0];
    let epsilon = f64::from(f32::EPSILON);
    let input = |index: usize| &tensors.values[node.inputs[index].0];
    let incoming = |index: usize| &bounds[node.inputs[index].0];
    let plan: &Plan = machine.plan;
    let width = plan.graph.tensor(output).width;
    let rounded = |bound: f64, value: f32| bound + 4.0 * epsilon * f64::from(value.abs());
    match &node.op {
        Op::Embed { .. } | Op::RopeAngles { .. } => out
            .iter()
            .map(|_| 4.0 * epsilon)
            .collect::<Vec<_>>()
            .into_iter()
            .zip(out)
            .map(|(b, v)| rounded(b * f64::from(v.abs()).max(1.0), *v))
            .collect(),
        Op::Add => {
            (0..out.len()).map(|i| rounded(incoming(0)[i] + incoming(1)[i], out[i])).collect()
        }
        Op::SelectRows => {
            let from = |i: usize| machine.step.logits[i / width] as usize * width + i % width;
            (0..out.len()).map(|i| incoming(0)[from(i)]).collect()
        }
        Op::RmsNorm { weight, epsilon: epsilon_of_norm, .. } => {
            let scale = machine.weights[weight.0].vector();
            let group = scale.len();
            let mut result = Vec::with_capacity(out.len());
            for (g, values) in input(0).chunks_exact(group).enumerate() {
                let squares: f64 = values.iter().map(|&x| f64::from(x).powi(2)).sum();
                let norm = squares.sqrt().max(1e-30);
                let root_mean = (squares / group as f64 + f64::from(*epsilon_of_norm)).sqrt();
                let moved: f64 =
                    incoming(0)[g * group..][..group].iter().map(|b| b * b).sum::<f64>().sqrt();
                for i in 0..group {
                    let value = f64::from(out[g * group + i].abs());
                    let factor = f64::from(scale[i].abs()) / root_mean;
                    let relative = moved / norm + epsilon * (group as f64 / 16.0 + 16.0);
                    result.push(factor * incoming(0)[g * group + i] + value * relative);
                }
            }
            result
        }
        Op::MatMul { weight, bias } => {
            let matrix = machine.weights[weight.0].matrix();
            let columns = matrix.columns;
            let int8 = rounding != Rounding::None && matrix.ty.is_quantized();
            let x = input(0);
            let twice = matches!(rounding, Rounding::Int8Twice | Rounding::Half);
            // Both rounded to the 11 bits of a half float.
            let halves = int8 && rounding == Rounding::Half;
            // What each input may be off by when it meets the weight.
            let mut off: Vec<f64> = incoming(0).clone();
            if int8 {
                for (block, off) in x.chunks_exact(32).zip(off.chunks_exact_mut(32)) {
                    let largest = block.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                    // Half a step, and a little for the rounding of the step itself.
                    let mut half = f64::from(largest) / 127.0 * 0.501;
                    // A second int8 keeps what the first rounding left out.
                    if twice {
                        half /= 127.0;
                    }
                    off.iter_mut().for_each(|off| *off += half);
                }
            }
            let mut result = vec![0.0; out.len()];
            let mut row = vec![0.0; columns];
            for o in 0..matrix.rows {
                matrix.row(o, &mut row);
                let bias = bias.map_or(0.0, |bias| machine.weights[bias.0].vector()[o]);
                for t in 0..out.len() / width {
                    let (mut moved, mut absolute) = (0.0, f64::from(bias.abs()));
                    for k in 0..columns {
                        let w = f64::from(row[k].abs());
                        moved += w * off[t * columns + k];
                        absolute +=
                            w * (f64::from(x[t * columns + k].abs()) + off[t * columns + k]);
                    }
                    // Minima and zero points are summed apart from the codes they offset, so
                    // the terms that cancel are up to the code range larger than the result.
                    let growth = if int8 { 16.0 } else { 1.0 };
                    let rounded = if halves { 2f64.powi(-10) } else { 0.0 };
                    result[t * width + o] =
                        moved + (growth * epsilon * columns as f64 + rounded) * absolute;
                }
            }
            result
        }
        Op::Rope { heads, .. } => {
            // A rotation mixes two values by factors of at most one.
            let head_dim = width / heads;
            let largest = |i: usize| {
                let head = i / head_dim * head_dim;
                let values = &input(0)[head..head + head_dim];
                let moved = incoming(0)[head..head + head_dim].iter().copied().fold(0.0, f64::max);
                2.0 * moved
                    + 8.0 * epsilon * f64::from(values.iter().fold(0.0f32, |m, v| m.max(v.abs())))
            };
            (0..out.len()).map(largest).collect()
        }
        Op::Attention(spec) => {
            let pages = &machine.kv.groups[spec.kv.group];
            let group = spec.heads / spec.kv_heads;
            let mut result = Vec::with_capacity(out.len());
            for (r, row) in machine.step.rows.iter().enumerate() {
                let (sequence, position) = (row.sequence as usize, row.position as usize);
                let first = pages.group.first_visible(position);
                for head in 0..spec.heads {
                    let at = (r * spec.heads + head) * spec.head_dim;
                    let (mut score, mut value) = (0.0f64, 0.0f64);
                    for token in first..=position {
                        let mut moved = 0.0;
                        for d in 0..spec.head_dim {
                            let k = f64::from(
                                pages.get(sequence, token, spec.kv, head / group, false, d).abs(),
                            );
                            let v = f64::from(
                                pages.get(sequence, token, spec.kv, head / group, true, d).abs(),
                            );
                            let q = f64::from(input(0)[at + d].abs());
                            moved += k
                                * (incoming(0)[at + d]
                                    + q * epsilon * (spec.head_dim as f64 + 4.0));
                            value = value.max(v);
                        }
                        score = score.max(f64::from(spec.scale.abs()) * moved);
                    }
                    // Scores off by s move each weight by a factor within e^(2 s).
                    let tokens = (position - first + 1) as f64;
                    let relative = (2.0 * score).exp_m1() + epsilon * (tokens + 32.0);
                    result.extend((0..spec.head_dim).map(|_| relative * value));
                }
            }
            result
        }
        Op::Gate { .. } => (0..out.len())
            .map(|i| {
                // Both activations have slopes of at most 1.13.
                let (gate, up) = (f64::from(input(0)[i].abs()), f64::from(input(1)[i].abs()));
                let moved = 1.13 * incoming(0)[i] * (up + incoming(1)[i]) + gate * incoming(1)[i];
                moved + 16.0 * epsilon * (gate.max(1.0) * up)
            })
            .collect(),
        Op::SoftCap { cap } => {
            (0..out.len()).map(|i| incoming(0)[i] + 16.0 * epsilon * f64::from(*cap)).collect()
        }
        Op::KvWrite { .. } => Vec::new(),
    }
}
