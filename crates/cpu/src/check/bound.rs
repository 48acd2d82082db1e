//! How far rounding may take the result of each operation at worst: a function each. Products and
//! attention are in files of their own.

use super::error::{EPSILON, NodeError};
use pianola_plan::{KvType, Op, WeightId};

impl NodeError<'_> {
    /// Bounds on the output of any node but a product, attention or a KV write.
    pub(super) fn bound(&self) -> Vec<f64> {
        match &self.node.op {
            Op::Embed { .. } | Op::RopeAngles { .. } => self.table_bound(),
            Op::RmsNorm { weight, epsilon, .. } => {
                self.rms_norm_bound(*weight, f64::from(*epsilon))
            }
            Op::Rope { heads, .. } => self.rope_bound(*heads),
            Op::Gate { .. } => self.gate_bound(),
            Op::Add => self.add_bound(),
            Op::SelectRows => self.selected(|input| &input.bound),
            Op::SoftCap { cap } => self.soft_cap_bound(f64::from(*cap)),
            Op::MatMul { .. } | Op::Attention(_) | Op::KvWrite { .. } => {
                unreachable!("has functions of its own")
            }
        }
    }

    /// Bounds on an input.
    fn incoming(&self, index: usize) -> &[f64] {
        &self.error(index).bound
    }

    /// Embeddings and angles.
    fn table_bound(&self) -> Vec<f64> {
        let bound = |value: &f32| {
            let size = f64::from(value.abs());
            rounded(4.0 * EPSILON * size.max(1.0), *value)
        };
        self.out().iter().map(bound).collect()
    }

    fn add_bound(&self) -> Vec<f64> {
        let (out, a, b) = (self.out(), self.incoming(0), self.incoming(1));
        (0..out.len()).map(|i| rounded(a[i] + b[i], out[i])).collect()
    }

    fn rms_norm_bound(&self, weight: WeightId, epsilon_of_norm: f64) -> Vec<f64> {
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

    /// A rotation mixes two values by factors of at most one.
    fn rope_bound(&self, heads: usize) -> Vec<f64> {
        let head_dim = self.width() / heads;
        let heads = self.input(0).chunks_exact(head_dim);
        let bound = |(values, incoming): (&[f32], &[f64])| {
            let moved = incoming.iter().copied().fold(0.0, f64::max);
            let size = values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            std::iter::repeat_n(2.0 * moved + 8.0 * EPSILON * f64::from(size), head_dim)
        };
        heads.zip(self.incoming(0).chunks_exact(head_dim)).flat_map(bound).collect()
    }

    /// Both activations have slopes of at most 1.13.
    fn gate_bound(&self) -> Vec<f64> {
        let bound = |i: usize| {
            let [gate, up] = [0, 1].map(|index| f64::from(self.input(index)[i].abs()));
            let [gate_off, up_off] = [0, 1].map(|index| self.incoming(index)[i]);
            let moved = 1.13 * gate_off * (up + up_off) + gate * up_off;
            moved + 16.0 * EPSILON * (gate.max(1.0) * up)
        };
        (0..self.out().len()).map(bound).collect()
    }

    fn soft_cap_bound(&self, cap: f64) -> Vec<f64> {
        self.incoming(0).iter().map(|bound| bound + 16.0 * EPSILON * cap).collect()
    }
}

/// A bound and the rounding of the value itself.
fn rounded(bound: f64, value: f32) -> f64 {
    bound + 4.0 * EPSILON * f64::from(value.abs())
}

/// Bounds on a stored head of keys or values, given its values' bounds.
pub(super) fn kv_write_bound(ty: KvType, values: &[f32], bounds: &[f64]) -> Vec<f64> {
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
