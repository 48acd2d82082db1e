//! How far rounding may take the result of each operation: a function each.

use crate::reference::{Machine, Tensors};
use pianola_plan::{AttentionSpec, KvType, Node, Op, Rounding, TensorId, WeightId};

/// One rounding of an f32, relative to it.
const EPSILON: f64 = f32::EPSILON as f64;

/// A node with its inputs, its result, and bounds on what its inputs are off by.
pub(super) struct ErrorBound<'a> {
    pub machine: &'a Machine<'a>,
    pub node: &'a Node,
    /// How the device rounds the inputs of the kernel's products.
    pub rounding: Rounding,
    pub tensors: &'a Tensors,
    pub bounds: &'a [Vec<f64>],
}

impl<'a> ErrorBound<'a> {
    /// Bounds on the node's output.
    ///
    /// # Panics
    /// If it is a [`Op::KvWrite`], which has none; see [`kv_write`].
    pub fn bound(&self) -> Vec<f64> {
        match &self.node.op {
            Op::Embed { .. } | Op::RopeAngles { .. } => self.table(),
            Op::RmsNorm { weight, epsilon, .. } => self.rms_norm(*weight, f64::from(*epsilon)),
            Op::MatMul { weight, bias } => self.matmul(*weight, *bias),
            Op::Rope { heads, .. } => self.rope(*heads),
            Op::KvWrite { .. } => unreachable!("has no output"),
            Op::Attention(spec) => self.attention(spec),
            Op::Gate { .. } => self.gate(),
            Op::Add => self.add(),
            Op::SelectRows => self.select_rows(),
            Op::SoftCap { cap } => self.soft_cap(f64::from(*cap)),
        }
    }

    fn output(&self) -> TensorId {
        self.node.output.expect("a node with a result")
    }

    fn out(&self) -> &'a [f32] {
        &self.tensors.values[self.output().0]
    }

    fn width(&self) -> usize {
        self.machine.plan.graph.tensor(self.output()).width
    }

    fn input(&self, index: usize) -> &'a [f32] {
        &self.tensors.values[self.node.inputs[index].0]
    }

    /// Bounds on an input.
    fn incoming(&self, index: usize) -> &'a [f64] {
        &self.bounds[self.node.inputs[index].0]
    }

    /// Embeddings and angles.
    fn table(&self) -> Vec<f64> {
        let bound = |value: &f32| {
            let size = f64::from(value.abs());
            rounded(4.0 * EPSILON * size.max(1.0), *value)
        };
        self.out().iter().map(bound).collect()
    }

    fn add(&self) -> Vec<f64> {
        let (out, a, b) = (self.out(), self.incoming(0), self.incoming(1));
        (0..out.len()).map(|i| rounded(a[i] + b[i], out[i])).collect()
    }

    fn select_rows(&self) -> Vec<f64> {
        let width = self.width();
        let from = |i: usize| self.machine.step.logits[i / width] as usize * width + i % width;
        (0..self.out().len()).map(|i| self.incoming(0)[from(i)]).collect()
    }

    fn rms_norm(&self, weight: WeightId, epsilon_of_norm: f64) -> Vec<f64> {
        let out = self.out();
        let scale = self.machine.weights[weight.0].vector();
        let group = scale.len();
        let mut result = Vec::with_capacity(out.len());
        for (g, values) in self.input(0).chunks_exact(group).enumerate() {
            let incoming = &self.incoming(0)[g * group..][..group];
            let squares: f64 = values.iter().map(|&x| f64::from(x).powi(2)).sum();
            let norm = squares.sqrt().max(1e-30);
            let root_mean = (squares / group as f64 + epsilon_of_norm).sqrt();
            let moved: f64 = incoming.iter().map(|b| b * b).sum::<f64>().sqrt();
            for i in 0..group {
                let value = f64::from(out[g * group + i].abs());
                let factor = f64::from(scale[i].abs()) / root_mean;
                let relative = moved / norm + EPSILON * (group as f64 / 16.0 + 16.0);
                result.push(factor * incoming[i] + value * relative);
            }
        }
        result
    }

    fn matmul(&self, weight: WeightId, bias: Option<WeightId>) -> Vec<f64> {
        let width = self.width();
        let matrix = self.machine.weights[weight.0].matrix();
        let columns = matrix.columns;
        let int8 = self.rounding != Rounding::None && matrix.ty.is_quantized();
        let x = self.input(0);
        let twice = matches!(self.rounding, Rounding::Int8Twice | Rounding::Half);
        // Both rounded to the 11 bits of a half float.
        let halves = int8 && self.rounding == Rounding::Half;
        // What each input may be off by when it meets the weight.
        let mut off: Vec<f64> = self.incoming(0).to_vec();
        if int8 {
            round_to_int8(x, twice, &mut off);
        }
        let mut result = vec![0.0; self.out().len()];
        let mut row = vec![0.0; columns];
        for o in 0..matrix.rows {
            matrix.row(o, &mut row);
            let bias = bias.map_or(0.0, |bias| self.machine.weights[bias.0].vector()[o]);
            for t in 0..result.len() / width {
                let (mut moved, mut absolute) = (0.0, f64::from(bias.abs()));
                for k in 0..columns {
                    let w = f64::from(row[k].abs());
                    moved += w * off[t * columns + k];
                    absolute += w * (f64::from(x[t * columns + k].abs()) + off[t * columns + k]);
                }
                // Minima and zero points are summed apart from the codes they offset, so
                // the terms that cancel are up to the code range larger than the result.
                let growth = if int8 { 16.0 } else { 1.0 };
                let rounded = if halves { 2f64.powi(-10) } else { 0.0 };
                result[t * width + o] =
                    moved + (growth * EPSILON * columns as f64 + rounded) * absolute;
            }
        }
        result
    }

    /// A rotation mixes two values by factors of at most one.
    fn rope(&self, heads: usize) -> Vec<f64> {
        let head_dim = self.width() / heads;
        let largest = |i: usize| {
            let head = i / head_dim * head_dim;
            let values = &self.input(0)[head..head + head_dim];
            let moved = self.incoming(0)[head..head + head_dim].iter().copied().fold(0.0, f64::max);
            let size = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            2.0 * moved + 8.0 * EPSILON * f64::from(size)
        };
        (0..self.out().len()).map(largest).collect()
    }

    fn attention(&self, spec: &AttentionSpec) -> Vec<f64> {
        let pages = &self.machine.kv.groups[spec.kv.group];
        let group = spec.heads / spec.kv_heads;
        let mut result = Vec::with_capacity(self.out().len());
        for (r, row) in self.machine.step.rows.iter().enumerate() {
            let (sequence, position) = (row.sequence as usize, row.position as usize);
            let first = pages.group.first_visible(position);
            for head in 0..spec.heads {
                let at = (r * spec.heads + head) * spec.head_dim;
                let (mut score, mut value) = (0.0f64, 0.0f64);
                for token in first..=position {
                    let stored = |value: bool, d: usize| {
                        let x = pages.get(sequence, token, spec.kv, head / group, value, d);
                        f64::from(x.abs())
                    };
                    let mut moved = 0.0;
                    for d in 0..spec.head_dim {
                        let q = f64::from(self.input(0)[at + d].abs());
                        let rounding = q * EPSILON * (spec.head_dim as f64 + 4.0);
                        moved += stored(false, d) * (self.incoming(0)[at + d] + rounding);
                        value = value.max(stored(true, d));
                    }
                    score = score.max(f64::from(spec.scale.abs()) * moved);
                }
                // Scores off by s move each weight by a factor within e^(2 s).
                let tokens = (position - first + 1) as f64;
                let relative = (2.0 * score).exp_m1() + EPSILON * (tokens + 32.0);
                result.extend((0..spec.head_dim).map(|_| relative * value));
            }
        }
        result
    }

    /// Both activations have slopes of at most 1.13.
    fn gate(&self) -> Vec<f64> {
        let bound = |i: usize| {
            let [gate, up] = [0, 1].map(|index| f64::from(self.input(index)[i].abs()));
            let [gate_off, up_off] = [0, 1].map(|index| self.incoming(index)[i]);
            let moved = 1.13 * gate_off * (up + up_off) + gate * up_off;
            moved + 16.0 * EPSILON * (gate.max(1.0) * up)
        };
        (0..self.out().len()).map(bound).collect()
    }

    fn soft_cap(&self, cap: f64) -> Vec<f64> {
        self.incoming(0).iter().map(|bound| bound + 16.0 * EPSILON * cap).collect()
    }
}

/// A bound and the rounding of the value itself.
fn rounded(bound: f64, value: f32) -> f64 {
    bound + 4.0 * EPSILON * f64::from(value.abs())
}

/// Adds to `off` what rounding to int8, 32 values to a scale, takes off `x`.
fn round_to_int8(x: &[f32], head: bool, off: &mut [f64]) {
    for (block, off) in x.chunks_exact(32).zip(off.chunks_exact_mut(32)) {
        let largest = block.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        // Half a step, and a little for the rounding of the step itself.
        let mut half = f64::from(largest) / 127.0 * 0.501;
        // The head's inputs keep what the first rounding left out in a second int8.
        if head {
            half /= 127.0;
        }
        off.iter_mut().for_each(|off| *off += half);
    }
}

/// Bounds on a stored head of keys or values, given its values' bounds.
pub(super) fn kv_write(ty: KvType, values: &[f32], bounds: &[f64]) -> Vec<f64> {
    let sizes = || values.iter().map(|x| f64::from(x.abs()));
    let relative = |share: f64| sizes().map(|size| share * size).collect();
    let stored: Vec<f64> = match ty {
        KvType::F32 => relative(0.0),
        KvType::F16 => relative(2f64.powi(-11)),
        KvType::Q8 => {
            let largest = sizes().zip(bounds).map(|(size, bound)| size + bound).fold(0.0, f64::max);
            // Half a step, and a little for the rounding of the step itself.
            vec![largest / 127.0 * 0.501; values.len()]
        }
    };
    bounds.iter().zip(stored).map(|(bound, stored)| bound + stored + 6e-8).collect()
}
