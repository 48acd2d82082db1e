//! Every operation in plain code: one file each, no vector instruction, no fusion; products alone
//! use all threads, because they take all the time.
//!
//! This is what the kernels are measured against, so it is written to be checked by eye. Sums run
//! in f64; values are rounded to f32 where the graph has a tensor.

pub(crate) mod add;
mod attention;
mod embed;
pub(crate) mod gate;
pub(crate) mod hadamard;
mod kv_write;
pub(crate) mod matmul;
pub(crate) mod rms_norm;
pub(crate) mod rope;
mod rope_angles;
mod select_rows;
pub(crate) mod soft_cap;

pub use rms_norm::rms_norm;

use crate::kv::KvMemory;
use crate::recording::CpuRecording;
use crate::weights::Weight;
use pianola_plan::{Node, Op, Plan, RowSet, Step, TensorId};

/// Plays segments node by node.
pub(crate) struct Reference<'a> {
    recording: &'a mut CpuRecording,
    slot: usize,
}

impl<'a> Reference<'a> {
    pub fn new(recording: &'a mut CpuRecording, slot: usize) -> Self {
        Reference { recording, slot }
    }

    /// Plays a segment of a checked step. What it reads of other segments is in the arena, and
    /// what others may read of it lands where the kernels would leave it.
    pub fn play(&mut self, segment: usize, step: &Step) {
        let plan = self.recording.plan.clone();
        let mut tensors = Tensors::new(&plan);
        let ops = &plan.ops[plan.segments[segment].ops.clone()];
        let mut nodes: Vec<usize> = ops.iter().flat_map(|op| op.nodes.iter().copied()).collect();
        nodes.sort_unstable();
        for &node in &nodes {
            let node = &plan.graph.nodes[node];
            for &id in &node.inputs {
                if tensors.values[id.0].is_empty() {
                    tensors.values[id.0] = self.read(id, rows_of(&plan, step, id));
                }
            }
            let CpuRecording { weights, kv, .. } = &mut *self.recording;
            if let Op::KvWrite { kv: slot } = node.op {
                let [key, value] = [0, 1].map(|input| &tensors.values[node.inputs[input].0]);
                let pages = &mut kv.groups[slot.group];
                kv_write::kv_write(key, value, slot, pages, &step.rows);
            } else {
                Machine { plan: &plan, weights, kv, step }.run(node, &mut tensors);
            }
        }
        let written = nodes.iter().filter_map(|&node| plan.graph.nodes[node].output);
        for id in written.filter(|id| plan.views[id.0].is_some()) {
            let values = std::mem::take(&mut tensors.values[id.0]);
            self.write(id, &values);
        }
    }

    fn read(&self, tensor: TensorId, rows: usize) -> Vec<f32> {
        let width = self.recording.plan.graph.tensor(tensor).width;
        let (start, stride) = self.recording.place(tensor);
        let bytes = self.recording.slots[self.slot].arena.bytes();
        let value =
            |at: usize| f32::from_ne_bytes(bytes[4 * at..][..4].try_into().unwrap_or([0; 4]));
        let places = (0..rows).flat_map(|row| (0..width).map(move |at| start + row * stride + at));
        places.map(value).collect()
    }

    fn write(&mut self, tensor: TensorId, values: &[f32]) {
        let width = self.recording.plan.graph.tensor(tensor).width;
        let (start, stride) = self.recording.place(tensor);
        let bytes = self.recording.slots[self.slot].arena.bytes_mut();
        for (row, values) in values.chunks_exact(width).enumerate() {
            let place = &mut bytes[4 * (start + row * stride)..][..4 * width];
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

/// Rows that a tensor has in a step.
fn rows_of(plan: &Plan, step: &Step, tensor: TensorId) -> usize {
    match plan.graph.tensor(tensor).rows {
        RowSet::All => step.rows.len(),
        RowSet::Logits => step.logits.len(),
    }
}

/// What a node reads besides tensors.
pub(crate) struct Machine<'a> {
    pub plan: &'a Plan,
    pub weights: &'a [Weight],
    pub kv: &'a KvMemory,
    pub step: &'a Step,
}

impl Machine<'_> {
    /// Rows that a tensor has in this step.
    pub fn rows(&self, tensor: TensorId) -> usize {
        rows_of(self.plan, self.step, tensor)
    }

    /// Computes the output of one node: any but a KV write, which has none.
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
            Op::KvWrite { .. } => unreachable!("a KV write computes no tensor"),
            Op::Attention(spec) => {
                let pages = &self.kv.groups[spec.kv.group];
                let rotation = graph.kv_groups[spec.kv.group].key_rotation();
                let queries = hadamard::rotated(input(0), rotation);
                attention::attention(&queries, spec, pages, &self.step.rows, &mut out);
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
