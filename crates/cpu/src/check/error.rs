//! What the error of a tensor may be, carried from node to node beside the values.

use super::bound;
use super::correlation::MeanError;
use super::noise;
use crate::reference::{Machine, Tensors};
use pianola_plan::{KvType, Node, Op, Rounding, TensorId};

/// One rounding of an f32, relative to it: from one value to the next.
pub(super) const EPSILON: f64 = f32::EPSILON as f64;

/// What is known of the error of a tensor's values.
#[derive(Clone, Default)]
pub(super) struct TensorError {
    /// What each may be off by at worst.
    pub bound: Vec<f64>,
    /// Variance of each, were every rounding a draw of its own.
    pub variance: Vec<f64>,
    /// For each row, about how many independent roundings its errors come from: those of a product's
    /// outputs all come from the same inputs.
    pub freedom: Vec<f64>,
    /// For each row the mean of its errors; empty where nothing is known of it.
    pub means: Vec<MeanError>,
}

impl TensorError {
    /// Of values that are as the device has them.
    pub fn none(values: usize, rows: usize) -> TensorError {
        let zeros = || vec![0.0; values];
        TensorError {
            bound: zeros(),
            variance: zeros(),
            freedom: vec![f64::INFINITY; rows],
            means: Vec::new(),
        }
    }

    /// Of a tensor of keys or values once it is stored, heads of `head_dim`.
    pub fn stored(&self, ty: KvType, values: &[f32], head_dim: usize) -> TensorError {
        let heads = values.chunks_exact(head_dim);
        let bounds = heads.clone().zip(self.bound.chunks_exact(head_dim));
        let variances = heads.zip(self.variance.chunks_exact(head_dim));
        TensorError {
            bound: bounds.flat_map(|(head, off)| bound::kv_write_bound(ty, head, off)).collect(),
            variance: variances.flat_map(|(head, off)| noise::kv_write(ty, head, off)).collect(),
            freedom: self.freedom.clone(),
            means: Vec::new(),
        }
    }
}

/// How many of some variances count, the larger ones most: their number if all are equal.
pub(super) fn effective_count(variances: impl Iterator<Item = f64>) -> f64 {
    let (sum, squares) = variances.fold((0.0, 0.0), |(sum, squares), variance| {
        (sum + variance, squares + variance * variance)
    });
    if squares > 0.0 { sum * sum / squares } else { f64::INFINITY }
}

/// A node with its inputs, its result, and what its inputs may be off by.
pub(super) struct NodeError<'a> {
    pub machine: &'a Machine<'a>,
    pub node: &'a Node,
    /// How the device rounds the inputs of the kernel's products.
    pub rounding: Rounding,
    pub tensors: &'a Tensors,
    pub errors: &'a [TensorError],
}

impl<'a> NodeError<'a> {
    /// Computes the output of a node that has one, and what it may be off by.
    pub fn run(
        machine: &Machine<'_>,
        node: &Node,
        rounding: Rounding,
        tensors: &mut Tensors,
        errors: &mut [TensorError],
    ) {
        let output = node.output.expect("a node with a result");
        let node_error = |tensors| NodeError { machine, node, rounding, tensors, errors };
        let error = match &node.op {
            Op::MatMul { weight, bias } => {
                let (values, error) = node_error(tensors).matmul(*weight, *bias);
                tensors.values[output.0] = values;
                error
            }
            op => {
                machine.run(node, tensors);
                let node_error = node_error(tensors);
                match op {
                    Op::Attention(spec) => node_error.attention(spec),
                    _ => node_error.plain(),
                }
            }
        };
        errors[output.0] = error;
    }

    fn plain(&self) -> TensorError {
        let variance = self.variance();
        let own = |row: usize| match self.node.op {
            // As many groups as have a norm of their own, or values that only they depend on.
            Op::SelectRows => self.machine.step.logits[row] as usize,
            _ => row,
        };
        let freedom = |row: usize| {
            let inputs = self.node.inputs.iter().map(|input| &self.errors[input.0].freedom);
            inputs.filter_map(|input| input.get(own(row))).copied().fold(f64::INFINITY, f64::min)
        };
        let freedom = (0..self.machine.rows(self.output())).map(freedom).collect();
        TensorError { bound: self.bound(), variance, freedom, means: Vec::new() }
    }

    pub fn output(&self) -> TensorId {
        self.node.output.expect("a node with a result")
    }

    pub fn out(&self) -> &'a [f32] {
        &self.tensors.values[self.output().0]
    }

    pub fn width(&self) -> usize {
        self.machine.plan.graph.tensor(self.output()).width
    }

    pub fn input(&self, index: usize) -> &'a [f32] {
        &self.tensors.values[self.node.inputs[index].0]
    }

    /// What an input may be off by.
    pub fn error(&self, index: usize) -> &'a TensorError {
        &self.errors[self.node.inputs[index].0]
    }

    /// Something of the selected rows of the input.
    pub fn selected(&self, part: impl Fn(&'a TensorError) -> &'a Vec<f64>) -> Vec<f64> {
        let width = self.width();
        let from = |i: usize| self.machine.step.logits[i / width] as usize * width + i % width;
        (0..self.out().len()).map(|i| part(self.error(0))[from(i)]).collect()
    }
}
