//! Products whose two sides are rotated and then rounded to int8, each with a scale for a row: what that
//! may take off their outputs.
//!
//! A rotation changes no product, so that an output is off by what the rounding of one side leaves out,
//! times the other side. Signs that fall by chance turn errors of rotated columns back into errors of
//! all columns of a block, which have the mean of their squares.

use super::noise::int8_error;
use crate::pack::PackedMatrix;

/// Half a step, and a little for the rounding of the step itself.
const HALF_STEP: f64 = 0.501;

/// Blocks of `block` values times a Hadamard matrix of length one.
pub(super) fn rotate(values: &mut [f64], block: usize) {
    let length = (block as f64).sqrt();
    for values in values.chunks_exact_mut(block) {
        let mut distance = 1;
        while distance < block {
            for first in (0..block).filter(|at| at & distance == 0) {
                let (a, b) = (values[first], values[first + distance]);
                (values[first], values[first + distance]) = (a + b, a - b);
            }
            distance *= 2;
        }
        values.iter_mut().for_each(|value| *value /= length);
    }
}

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
        rotate(&mut values, block);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_keeps_products_and_undoes_itself() {
        let row = |seed: usize| -> Vec<f64> {
            (0..128).map(|at| ((at * seed + 3) % 31) as f64 - 15.2).collect()
        };
        let product =
            |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>() };
        let (a, b) = (row(7), row(11));
        let (mut rotated_a, mut rotated_b) = (a.clone(), b.clone());
        rotate(&mut rotated_a, 64);
        rotate(&mut rotated_b, 64);
        assert!((product(&a, &b) - product(&rotated_a, &rotated_b)).abs() < 1e-9);
        rotate(&mut rotated_a, 64);
        assert!(a.iter().zip(&rotated_a).all(|(a, b)| (a - b).abs() < 1e-12));
    }

    #[test]
    fn one_large_value_becomes_many() {
        let mut values = vec![0.0; 64];
        values[17] = 8.0;
        rotate(&mut values, 64);
        assert!(values.iter().all(|value| value.abs() == 1.0));
    }
}
