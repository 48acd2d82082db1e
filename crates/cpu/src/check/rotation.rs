//! What rotations by Hadamard matrices do to errors: in products whose two sides are rotated and then
//! rounded to int8, with a scale for a row or for a part of it; and in queries and keys.
//!
//! A rotation changes no product, so that an output is off by what the rounding of one side leaves out,
//! times the other side. Signs that fall by chance turn errors of rotated columns back into errors of
//! all columns of a block, which have the mean of their squares.

use super::error::{EPSILON, TensorError};
use super::noise::{int8_error, rounding};
use crate::pack::PackedMatrix;
use crate::reference::hadamard::hadamard;

/// Half a step, and a little for the rounding of the step itself.
const HALF_STEP: f64 = 0.501;

/// The step of int8 for values that share a scale.
pub(super) fn int8_step(values: &[f64]) -> f64 {
    values.iter().fold(0.0f64, |most, value| most.max(value.abs())) / 127.0
}

/// How rows are rotated and rounded.
#[derive(Clone, Copy)]
pub(super) struct RotatedRounding {
    /// Columns that are rotated together.
    pub block: usize,
    /// Columns that share a scale.
    pub scaled: usize,
}

/// Columns of a row that share a scale, after their rotation.
struct RotatedPart {
    /// Of its int8.
    step: f64,
    /// Sum of the magnitudes, and of the squares.
    magnitude: f64,
    square: f64,
    /// Mean of the squares of what the rounding leaves out.
    left_out: f64,
}

/// The parts of a row, and the mean of the squares of what the rounding of each block leaves out.
fn rotated_row(row: &[f32], rounding: RotatedRounding) -> (Vec<RotatedPart>, Vec<f64>) {
    let mut values: Vec<f64> = row.iter().map(|&value| f64::from(value)).collect();
    hadamard(&mut values, rounding.block);
    let mut blocks = Vec::with_capacity(values.len() / rounding.block);
    let part = |values: &[f64]| {
        let step = int8_step(values);
        let mean = |values: &[f64]| {
            let squares = values.iter().map(|&value| int8_error(value, step).powi(2));
            squares.sum::<f64>() / values.len() as f64
        };
        blocks.extend(values.chunks_exact(rounding.block).map(mean));
        RotatedPart {
            step,
            magnitude: values.iter().map(|value| value.abs()).sum(),
            square: values.iter().map(|value| value * value).sum(),
            left_out: mean(values),
        }
    };
    (values.chunks_exact(rounding.scaled).map(part).collect(), blocks)
}

/// Both sides of a product.
pub(super) struct RotatedProduct {
    /// Columns that share a scale.
    scaled: f64,
    inputs: Vec<Vec<RotatedPart>>,
    weights: Vec<Vec<RotatedPart>>,
}

impl RotatedProduct {
    /// Adds the roundings of the inputs `x` to the variances of what they are off by.
    pub fn new(
        x: &[f32],
        matrix: &PackedMatrix,
        rounding: RotatedRounding,
        variance: &mut [f64],
    ) -> RotatedProduct {
        let columns = matrix.columns;
        let mut inputs = Vec::with_capacity(x.len() / columns);
        for (x, variance) in x.chunks_exact(columns).zip(variance.chunks_exact_mut(columns)) {
            let (parts, blocks) = rotated_row(x, rounding);
            for (variance, left_out) in variance.chunks_exact_mut(rounding.block).zip(blocks) {
                variance.iter_mut().for_each(|variance| *variance += left_out);
            }
            inputs.push(parts);
        }
        let mut values = vec![0.0; columns];
        let weights = (0..matrix.rows).map(|row| {
            matrix.row(row, &mut values);
            rotated_row(&values, rounding).0
        });
        RotatedProduct { scaled: rounding.scaled as f64, inputs, weights: weights.collect() }
    }

    /// Parts of an input row and of a weight row that are multiplied with each other.
    fn parts(
        &self,
        row: usize,
        output: usize,
    ) -> impl Iterator<Item = (&RotatedPart, &RotatedPart)> {
        self.inputs[row].iter().zip(&self.weights[output])
    }

    /// What an output may be off by at worst, because of both sides' roundings.
    pub fn bound(&self, row: usize, output: usize) -> f64 {
        let of_part = |(input, weight): (&RotatedPart, &RotatedPart)| {
            let [of_input, of_weight] = [input.step, weight.step].map(|step| HALF_STEP * step);
            of_input * weight.magnitude + of_weight * (input.magnitude + self.scaled * of_input)
        };
        self.parts(row, output).map(of_part).sum()
    }

    /// Variance of an output because of the weights' roundings.
    pub fn weight_variance(&self, row: usize, output: usize) -> f64 {
        let of_part = |(input, weight): (&RotatedPart, &RotatedPart)| {
            weight.left_out * (input.square + self.scaled * input.left_out)
        };
        self.parts(row, output).map(of_part).sum()
    }
}

impl TensorError {
    /// Of values once they are rotated in f32, in blocks of `block`.
    pub fn rotated(&self, values: &[f32], block: usize) -> TensorError {
        if block == 1 {
            return self.clone();
        }
        let (mut bound, mut variance) = (Vec::new(), self.variance.clone());
        let stages = f64::from(block.ilog2());
        let blocks = values.chunks_exact(block).zip(self.bound.chunks_exact(block));
        for ((values, bounds), variance) in blocks.zip(variance.chunks_exact_mut(block)) {
            let size: f64 = values.iter().map(|&x| f64::from(x).abs()).sum();
            let off = bounds.iter().sum::<f64>() + EPSILON * (stages + 2.0) * size;
            bound.extend(std::iter::repeat_n(off / (block as f64).sqrt(), block));
            rotate_variances(values, variance);
        }
        TensorError { bound, variance, freedom: self.freedom.clone(), means: Vec::new() }
    }
}

/// Variances of a block's values once it is rotated. Each of the sums on the way is rounded; which come
/// first is the device's choice, and makes little difference.
fn rotate_variances(values: &[f32], variances: &mut [f64]) {
    let mut sums: Vec<f32> = values.to_vec();
    let mut distance = 1;
    while distance < sums.len() {
        for first in (0..sums.len()).filter(|at| at & distance == 0) {
            let second = first + distance;
            (sums[first], sums[second]) = (sums[first] + sums[second], sums[first] - sums[second]);
            let both = variances[first] + variances[second];
            variances[first] = both + rounding(sums[first]);
            variances[second] = both + rounding(sums[second]);
        }
        distance *= 2;
    }
    // The last two roundings are those of the factor and of what it makes of a sum.
    let last = variances.iter_mut().zip(&sums);
    last.for_each(|(variance, &sum)| *variance += 2.0 * rounding(sum));
    variances.iter_mut().for_each(|variance| *variance /= values.len() as f64);
}
