//! Every operation in plain code: one file each, one thread, no vector, no fusion.
//!
//! This is what the kernels are measured against, so it is written to be checked by eye. Sums run
//! in f64; values are rounded to f32 where the graph has a tensor.

pub(crate) mod add;
mod attention;
mod embed;
pub(crate) mod gate;
mod kv_write;
mod matmul;
pub(crate) mod rms_norm;
pub(crate) mod rope;
mod rope_angles;
mod select_rows;
pub(crate) mod soft_cap;

use crate::device::CpuRecording;
use crate::kv::KvMemory;
use crate::weights::Weight;
use pianola_plan::{DeviceKind, Node, Op, Plan, RowSet, Step, TensorId};

/// Plays a plan node by node.
pub(crate) struct Reference<'a> {
    recording: &'a mut CpuRecording,
}

impl<'a> Reference<'a> {
    pub fn new(recording: &'a mut CpuRecording) -> Self {
        Reference { recording }
    }

    /// Plays what a checked step has for this device. Logits, and what another device goes on
    /// with, land where the kernels would leave them.
    pub fn play(&mut self, step: &Step) {
        let CpuRecording { plan, weights, kv, .. } = &*self.recording;
        let mut tensors = Tensors::new(plan);
        let machine = Machine { plan, weights, kv, step };
        let mine = plan.ops.iter().filter(|op| op.device == DeviceKind::Cpu);
        let mut nodes: Vec<usize> = mine.flat_map(|op| op.nodes.iter().copied()).collect();
        nodes.sort_unstable();
        for node in nodes {
            machine.run(&plan.graph.nodes[node], &mut tensors);
        }
        let received = |buffer: usize| plan.segments.iter().any(|s| s.receives.contains(&buffer));
        let handed = |id: &usize| match plan.views[*id] {
            Some(view) => received(view.buffer) || plan.graph.logits == Some(TensorId(*id)),
            None => false,
        };
        let results: Vec<usize> = (0..plan.graph.tensors.len()).filter(handed).collect();
        for id in results {
            let values = std::mem::take(&mut tensors.values[id]);
            self.write(TensorId(id), &values);
        }
    }

    fn write(&mut self, tensor: TensorId, values: &[f32]) {
        let CpuRecording { plan, arena, .. } = &mut *self.recording;
        let view = plan.view(tensor);
        let (width, stride) = (plan.graph.tensor(tensor).width, plan.buffers[view.buffer].width);
        let start = plan.arena.offsets[view.buffer] + 4 * view.column;
        for (row, values) in values.chunks_exact(width).enumerate() {
            let place = &mut arena.bytes_mut()[start + 4 * row * stride..][..4 * width];
            for (place, value) in place.chunks_exact_mut(4).zip(values) {
                place.copy_from_slice(&value.to_ne_bytes());
            }
        }
    }
}

/// Values of the graph's tensors, `[rows][width]`; empty until computed.
pub(crate) struct Tensors {
    pub values: Vec<Vec<f32>>,
}

impl Tensors {
    pub fn new(plan: &Plan) -> Tensors {
        Tensors { values: vec![Vec::new(); plan.graph.tensors.len()] }
    }
}

/// What a node may look at.
pub(crate) struct Machine<'a> {
    pub plan: &'a Plan,
    pub weights: &'a [Weight],
    pub kv: &'a KvMemory,
    pub step: &'a Step,
}

impl Machine<'_> {
    /// Rows that a tensor has in this step.
    pub fn rows(&self, tensor: TensorId) -> usize {
        match self.plan.graph.tensor(tensor).rows {
            RowSet::All => self.step.rows.len(),
            RowSet::Logits => self.step.logits.len(),
        }
    }

    /// Runs one node.
    pub fn run(&self, node: &Node, tensors: &mut Tensors) {
        let graph = &self.plan.graph;
        let width = |id: TensorId| graph.tensor(id).width;
        let mut out = match node.output {
            Some(id) => vec![f32::NAN; self.rows(id) * width(id)],
            None => Vec::new(),
        };
        let input = |index: usize| &tensors.values[node.inputs[index].0][..];
        match &node.op {
            Op::Embed { table, scale } => {
                embed::embed(self.weights[table.0].matrix(), *scale, &self.step.rows, &mut out);
            }
            Op::RopeAngles { rope } => {
                rope_angles::rope_angles(&graph.ropes[*rope], &self.step.rows, &mut out);
            }
            Op::RmsNorm { weight, epsilon, .. } => {
                rms_norm::rms_norm(input(0), self.weights[weight.0].vector(), *epsilon, &mut out);
            }
            Op::MatMul { weight, bias } => {
                let bias = bias.map(|bias| self.weights[bias.0].vector());
                matmul::matmul(input(0), self.weights[weight.0].matrix(), bias, &mut out);
            }
            Op::Rope { rope, heads } => {
                let head_dim = width(node.inputs[0]) / heads;
                let pairing = graph.ropes[*rope].pairing;
                rope::rope(input(0), input(1), *heads, head_dim, pairing, &mut out);
            }
            Op::KvWrite { kv } => {
                kv_write::kv_write(
                    input(0),
                    input(1),
                    *kv,
                    &self.kv.groups[kv.group],
                    &self.step.rows,
                );
            }
            Op::Attention(spec) => {
                let pages = &self.kv.groups[spec.kv.group];
                attention::attention(input(0), spec, pages, &self.step.rows, &mut out);
            }
            Op::Gate { activation } => gate::gate(input(0), input(1), *activation, &mut out),
            Op::Add => add::add(input(0), input(1), &mut out),
            Op::SelectRows => {
                select_rows::select_rows(
                    input(0),
                    &self.step.logits,
                    width(node.inputs[0]),
                    &mut out,
                );
            }
            Op::SoftCap { cap } => soft_cap::soft_cap(input(0), *cap, &mut out),
        }
        if let Some(id) = node.output {
            tensors.values[id.0] = out;
        }
    }
}
