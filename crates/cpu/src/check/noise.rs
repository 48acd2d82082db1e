//! How large the errors of each operation really are: their variances, a function each.
//!
//! A bound has to hold for the worst of all roundings, and those of a sum of thousands never come
//! together: it is a hundred times what is there. So each value also has a variance. Where values are
//! rounded to few bits it is known exactly, but for the signs: the reference has the same inputs, so
//! it knows how far each is from the next step. Signs that fall by chance give a sum that is within
//! `z` deviations but for one case in `exp(z^2 / 2) / 2` (Hoeffding), whatever the weights.
//!
//! What f32 rounds depends on the order of a sum, which is the device's business. Variances are those
//! of a sum taken in one piece from first to last, the worst order in use: partial sums then grow to
//! the whole, and each is rounded. For products the reference looks at how large they are on the
//! way. A device that sums in many pieces is that much better.

use super::error::{EPSILON, NodeError};
use super::judge::DEVIATIONS;
use super::rounded::to_bits;
use pianola_plan::{Activation, KvType, Op, RopePairing, WeightId};

impl NodeError<'_> {
    /// Variances of the output of any node but a product, attention or a KV write.
    pub(super) fn variance(&self) -> Vec<f64> {
        match &self.node.op {
            Op::Embed { table, .. } => {
                self.embed_variance(self.machine.weights[table.0].matrix().columns)
            }
            Op::RopeAngles { .. } => {
                let size = |value: &f32| f64::from(value.abs()).max(1.0);
                self.out().iter().map(|value| (EPSILON * size(value)).powi(2)).collect()
            }
            Op::RmsNorm { weight, epsilon, .. } => {
                self.rms_norm_variance(*weight, f64::from(*epsilon))
            }
            Op::Rope { rope, heads } => {
                self.rope_variance(*heads, self.machine.plan.graph.ropes[*rope].pairing)
            }
            Op::Gate { activation } => self.gate_variance(*activation),
            Op::Add => {
                let (out, a, b) = (self.out(), self.spread(0), self.spread(1));
                (0..out.len()).map(|i| a[i] + b[i] + rounding(out[i])).collect()
            }
            Op::SelectRows => self.selected(|input| &input.variance),
            Op::SoftCap { cap } => self.soft_cap_variance(f64::from(*cap)),
            Op::MatMul { .. } | Op::Attention(_) | Op::KvWrite { .. } => {
                unreachable!("has functions of its own")
            }
        }
    }

    /// Variances of an input.
    fn spread(&self, index: usize) -> &[f64] {
        &self.error(index).variance
    }

    /// A weight is a scaled code and perhaps a minimum, each about as large as other weights.
    fn embed_variance(&self, columns: usize) -> Vec<f64> {
        let row = |row: &[f32]| {
            let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
            let mean = squares / columns as f64;
            let variance = |&x: &f32| EPSILON.powi(2) * f64::from(x).powi(2).max(mean);
            row.iter().map(variance).collect::<Vec<f64>>()
        };
        self.out().chunks_exact(columns).flat_map(row).collect()
    }

    fn rms_norm_variance(&self, weight: WeightId, epsilon_of_norm: f64) -> Vec<f64> {
        let out = self.out();
        let scale = self.machine.weights[weight.0].vector();
        let group = scale.len();
        let mut result = Vec::with_capacity(out.len());
        for (g, values) in self.input(0).chunks_exact(group).enumerate() {
            let spread = &self.spread(0)[g * group..][..group];
            let squares: f64 = values.iter().map(|&x| f64::from(x).powi(2)).sum();
            let mean = squares / group as f64 + epsilon_of_norm;
            let moved: f64 =
                values.iter().zip(spread).map(|(&x, v)| f64::from(x).powi(2) * v).sum();
            // Of the root, half of that of the sum.
            let of_sum = sum_variance(group, 0.0, squares) / 4.0;
            let relative = (moved + of_sum) / squares.max(1e-60).powi(2) + EPSILON.powi(2);
            for i in 0..group {
                let factor = f64::from(scale[i]).powi(2) / mean;
                let value = f64::from(out[g * group + i]).powi(2);
                result.push(factor * spread[i] + value * relative);
            }
        }
        result
    }

    fn rope_variance(&self, heads: usize, pairing: RopePairing) -> Vec<f64> {
        let head_dim = self.width() / heads;
        let pairs = head_dim / 2;
        let mut result = vec![0.0; self.out().len()];
        for (index, result) in result.chunks_exact_mut(head_dim).enumerate() {
            let x = &self.input(0)[index * head_dim..][..head_dim];
            let spread = &self.spread(0)[index * head_dim..][..head_dim];
            let at = index / heads * head_dim;
            let (angles, of_angles) = (&self.input(1)[at..], &self.spread(1)[at..]);
            for pair in 0..pairs {
                let (first, second) = match pairing {
                    RopePairing::Halves => (pair, pairs + pair),
                    RopePairing::Adjacent => (2 * pair, 2 * pair + 1),
                };
                let square = |x: f32| f64::from(x).powi(2);
                let (cosine, sine) = (square(angles[pair]), square(angles[pairs + pair]));
                let (a, b) = (square(x[first]), square(x[second]));
                let turned = a * of_angles[pair] + b * of_angles[pairs + pair];
                let own = EPSILON.powi(2) / 4.0 * (a + b) + turned;
                result[first] = cosine * spread[first] + sine * spread[second] + own;
                result[second] = cosine * spread[second] + sine * spread[first] + own;
            }
        }
        result
    }

    fn gate_variance(&self, activation: Activation) -> Vec<f64> {
        let variance = |i: usize| {
            let [gate, up] = [0, 1].map(|index| f64::from(self.input(index)[i]));
            let (active, slope) = activate(activation, gate);
            let [of_gate, of_up] = [0, 1].map(|index| self.spread(index)[i]);
            let moved = (slope * up).powi(2) * of_gate + active.powi(2) * of_up;
            // What both are off by together and the bend of the activation (0.8 at most) count
            // where both are small: as much as is allowed for errors of `DEVIATIONS`.
            let second = slope.powi(2) * of_gate * of_up + (0.4 * of_gate * up).powi(2);
            // One and a hyperbolic tangent that may be close to minus one are added.
            let own = (2.0 * EPSILON * gate.abs().max(1.0) * up).powi(2);
            moved + DEVIATIONS.powi(2) * second + own
        };
        (0..self.out().len()).map(variance).collect()
    }

    fn soft_cap_variance(&self, cap: f64) -> Vec<f64> {
        let variance = |(&out, spread): (&f32, &f64)| {
            let slope = 1.0 - (f64::from(out) / cap).powi(2);
            slope.powi(2) * spread + (2.0 * EPSILON * cap).powi(2)
        };
        self.out().iter().zip(self.spread(0)).map(variance).collect()
    }
}

/// An activation and its slope.
fn activate(activation: Activation, x: f64) -> (f64, f64) {
    match activation {
        Activation::Silu => {
            let share = 1.0 / (1.0 + (-x).exp());
            (x * share, share * (1.0 + x * (1.0 - share)))
        }
        Activation::GeluTanh => {
            let root = (2.0 / std::f64::consts::PI).sqrt();
            let t = (root * (x + 0.044715 * x.powi(3))).tanh();
            let slope = root * (1.0 + 3.0 * 0.044715 * x * x) * (1.0 - t * t);
            (0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * slope)
        }
    }
}

/// Variance of rounding a value to f32 once, at least.
pub(super) fn rounding(value: f32) -> f64 {
    (EPSILON / 2.0 * f64::from(value)).powi(2)
}

/// Variance of a sum of `terms` in f32, from first to last, whose terms have the given squares and
/// whose result is `sum`: partial sums of terms of either sign grow like the root of their number (twice
/// that, because neighbours often have the same sign), of terms of one sign like their number. A
/// rounding has a twelfth of the square of its step, which is a half to a whole `EPSILON`; some
/// more are those of the terms.
pub(super) fn sum_variance(terms: usize, squares: f64, sum: f64) -> f64 {
    let terms = terms as f64;
    let partial = (4.0 * terms / 2.0 + 16.0) * squares + (terms / 3.0 + 16.0) * sum.powi(2);
    EPSILON.powi(2) / 24.0 * partial
}

/// What rounding to whole steps takes off a value.
pub(super) fn int8_error(x: f64, step: f64) -> f64 {
    if step == 0.0 { 0.0 } else { x - step * (x / step).round() }
}

/// What rounding to the eleven bits of a half float takes off a value.
pub(super) fn half_error(x: f32) -> f64 {
    f64::from(x) - f64::from(to_bits(x, 11))
}

/// Variances of a stored head of keys or values, given those of its values.
pub(super) fn kv_write(ty: KvType, values: &[f32], variances: &[f64]) -> Vec<f64> {
    let largest = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let step = f64::from(largest) / 127.0;
    let stored = |x: f32| match ty {
        KvType::F32 => 0.0,
        // Subnormal numbers have a step of their own.
        KvType::F16 => half_error(x).powi(2) + 2f64.powi(-48) / 12.0,
        KvType::Q8 => int8_error(f64::from(x), step).powi(2),
    };
    values.iter().zip(variances).map(|(&x, v)| v + stored(x) + 4.0 * rounding(x)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_off_by_half_a_step_and_poison_is_no_number() {
        assert_eq!(half_error(1.0), 0.0);
        assert_eq!(half_error(1.0 + 1.0 / 4096.0), 1.0 / 4096.0);
        assert_eq!(half_error(-65_504.0), 0.0);
        assert!(half_error(f32::from_bits(u32::MAX)).is_nan());
        assert!(half_error(f32::NAN).is_nan());
    }
}
