//! What rotations by Hadamard matrices do to errors: in products whose two sides are rotated and then
//! rounded to int8, each with a scale for a row; and in queries and keys.
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

/// The step of int8 for a row.
pub(super) fn row_step(values: &[f64]) -> f64 {
    values.iter().fold(0.0f64, |most, value| most.max(value.abs())) / 127.0
}

/// A row after its rotation.
struct RotatedRow {
    /// Of its int8.
    step: f64,
    /// Sum of the magnitudes, and of the squares.
    magnitude: f64,
    square: f64,
    /// Mean of the squares of what the rounding of each block leaves out.
    left_out: Vec<f64>,
}

impl RotatedRow {
    fn of(row: &[f32], block: usize) -> RotatedRow {
        let mut values: Vec<f64> = row.iter().map(|&value| f64::from(value)).collect();
        hadamard(&mut values, block);
        let step = row_step(&values);
        let mean = |values: &[f64]| {
            let squares = values.iter().map(|&value| int8_error(value, step).powi(2));
            squares.sum::<f64>() / block as f64
        };
        RotatedRow {
            step,
            magnitude: values.iter().map(|value| value.abs()).sum(),
            square: values.iter().map(|value| value * value).sum(),
            left_out: values.chunks_exact(block).map(mean).collect(),
        }
    }
}

/// Both sides of a product.
pub(super) struct RotatedProduct {
    columns: f64,
    inputs: Vec<RotatedRow>,
    weights: Vec<RotatedRow>,
}

impl RotatedProduct {
    /// Adds the roundings of the inputs `x` to the variances of what they are off by.
    pub fn new(
        x: &[f32],
        matrix: &PackedMatrix,
        block: usize,
        variance: &mut [f64],
    ) -> RotatedProduct {
        let columns = matrix.columns;
        let row = |x: &[f32]| RotatedRow::of(x, block);
        let inputs: Vec<RotatedRow> = x.chunks_exact(columns).map(row).collect();
        let left_out = inputs.iter().flat_map(|row| &row.left_out);
        for (variance, left_out) in variance.chunks_exact_mut(block).zip(left_out) {
            variance.iter_mut().for_each(|variance| *variance += left_out);
        }
        let mut values = vec![0.0; columns];
        let weights = (0..matrix.rows).map(|row| {
            matrix.row(row, &mut values);
            RotatedRow::of(&values, block)
        });
        RotatedProduct { columns: columns as f64, inputs, weights: weights.collect() }
    }

    /// What an output may be off by at worst, because of both sides' roundings.
    pub fn bound(&self, row: usize, output: usize) -> f64 {
        let (input, weight) = (&self.inputs[row], &self.weights[output]);
        let [of_input, of_weight] = [input.step, weight.step].map(|step| HALF_STEP * step);
        of_input * weight.magnitude + of_weight * (input.magnitude + self.columns * of_input)
    }

    /// Variance of an output because of the weights' roundings.
    pub fn weight_variance(&self, row: usize, output: usize) -> f64 {
        let left_out = &self.weights[output].left_out;
        let mean = left_out.iter().sum::<f64>() / left_out.len() as f64;
        let input = &self.inputs[row];
        let of_input: f64 = input.left_out.iter().sum::<f64>() / input.left_out.len() as f64;
        mean * (input.square + self.columns * of_input)
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
        TensorError { bound, variance, freedom: self.freedom.clone() }
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
