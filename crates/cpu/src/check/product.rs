//! Errors of products, found in the same pass over the weights as their values.

use super::correlation::RowRoundings;
use super::error::{EPSILON, NodeError, TensorError};
use super::noise::{half_error, int8_error, sum_variance};
use super::rotation::{RotatedProduct, RotatedRounding};
use crate::pack::{BLOCK, PackedMatrix};
use crate::reference::matmul::{ColumnSum, PART, Terms, sums};
use pianola_formats::Minimum;
use pianola_plan::{Rounding, WeightId};

impl NodeError<'_> {
    /// Values of a product, and what they may be off by.
    pub fn matmul(&self, weight: WeightId, bias: Option<WeightId>) -> (Vec<f32>, TensorError) {
        let matrix = self.machine.weights[weight.0].matrix();
        let width = matrix.rows;
        let inputs = self.rounded_inputs(matrix);
        let rows = inputs.units.len();
        let mut values = vec![0.0; rows * width];
        let mut error = TensorError::none(rows * width, 0);
        let bias = bias.map(|bias| self.machine.weights[bias.0].vector());
        let all = sums(&inputs.terms, matrix);
        for (at, sum) in all.outputs.iter().enumerate() {
            let (output, row) = (at / rows, at % rows);
            let place = row * width + output;
            let bias = bias.map_or(0.0, |bias| f64::from(bias[output]));
            let product = bias + sum.product;
            values[place] = product as f32;
            // A little more than the sums, which are f32.
            let magnitude = 1.0001 * f64::from(sum.magnitude);
            error.bound[place] = magnitude + inputs.relative * bias.abs();
            // Each of the partial sums in between is rounded, too.
            let partial = EPSILON.powi(2) / 24.0 * PART as f64 * sum.partial;
            let cut_off = inputs.cut_off.powi(2) * sum.partial;
            error.variance[place] = 1.0001 * inputs.units[row] * f64::from(sum.square)
                + 1.5 * partial
                + cut_off
                + sum_variance(0, 0.0, sum.product.abs() + bias.abs());
            if let Some(rotated) = &inputs.rotated {
                error.bound[place] += rotated.bound(row, output);
                error.variance[place] += rotated.weight_variance(row, output);
            }
        }
        for row in 0..rows {
            let outputs = &error.variance[row * width..][..width];
            let roundings = inputs.of_row(row, matrix, &all.columns, outputs);
            let dependence = roundings.dependence();
            error.freedom.push(dependence.freedom);
            error.means.push(dependence.mean);
        }
        (values, error)
    }

    /// What each value of the input brings to the errors of the outputs.
    fn rounded_inputs(&self, matrix: &PackedMatrix) -> RoundedInputs {
        let columns = matrix.columns;
        let x = self.input(0);
        let rounding = self.rounding.of_product(matrix.ty.is_quantized());
        // Minima and zero points are summed apart from the codes they offset, so the terms that
        // cancel are up to the code range larger than the result.
        let growth = if rounding == Rounding::None { 1.0 } else { 16.0 };
        let halves = rounding.half_step().is_some();
        let (own, of_block) = if halves { half_roundings(matrix) } else { (0.0, 0.0) };
        let relative = growth * EPSILON * columns as f64 + (own + of_block) * 2f64.powi(-11);
        let mut off = self.error(0).bound.clone();
        let mut shared = vec![0.0; x.len()];
        round_inputs(rounding, x, columns, &mut off, &mut shared);
        let rotated = match rounding {
            Rounding::Rotated { block, scaled } => {
                let rounding = RotatedRounding { block, scaled };
                Some(RotatedProduct::new(x, matrix, rounding, &mut shared))
            }
            _ => None,
        };
        let incoming = &self.error(0).variance;
        let mut variance: Vec<f64> = incoming.iter().zip(&shared).map(|(a, b)| a + b).collect();
        if of_block > 0.0 {
            for (x, variance) in x.chunks_exact(BLOCK).zip(variance.chunks_exact_mut(BLOCK)) {
                let sum: f64 = x.iter().map(|&x| f64::from(x)).sum();
                let each = of_block * HALF_VARIANCE * sum * sum / BLOCK as f64;
                variance.iter_mut().for_each(|variance| *variance += each);
            }
        }
        let mut terms = Terms::new(x, columns);
        terms.magnitudes = (x.iter().zip(&off))
            .map(|(&x, off)| (off + relative * (f64::from(x.abs()) + off)) as f32)
            .collect();
        let (mut units, mut all) = (Vec::new(), Vec::with_capacity(x.len()));
        for (x, variance) in x.chunks_exact(columns).zip(variance.chunks_exact(columns)) {
            let square = |(&x, variance): (&f32, &f64)| {
                let size = f64::from(x).powi(2);
                variance + own * HALF_VARIANCE * size + sum_variance(PART, size, 0.0)
            };
            let squares: Vec<f64> = x.iter().zip(variance).map(square).collect();
            // So that the squares of small values are no subnormal numbers.
            let unit = squares.iter().copied().fold(0.0, f64::max);
            let unit = if unit > 0.0 { unit } else { 1.0 };
            terms.squares.extend(squares.iter().map(|square| (square / unit) as f32));
            units.push(unit);
            all.extend(squares);
        }
        let cut_off = if halves { cut_off(columns) } else { 0.0 };
        RoundedInputs { terms, relative, units, shared, all, cut_off, rotated }
    }
}

struct RoundedInputs {
    terms: Terms,
    /// What a sum may be off by, relative to the sum of its terms' magnitudes.
    relative: f64,
    /// For each row what a square of 1 stands for.
    units: Vec<f64>,
    /// Variances of what rounding to few bits takes off each input.
    shared: Vec<f64>,
    /// Variances of all that each input brings to the outputs.
    all: Vec<f64>,
    /// What cutting off the partial sums takes off an output, relative to the root of their squares'
    /// sum.
    cut_off: f64,
    /// Both sides, where they are rotated.
    rotated: Option<RotatedProduct>,
}

impl RoundedInputs {
    /// A row's roundings beside the variances of its outputs.
    fn of_row<'a>(
        &'a self,
        row: usize,
        matrix: &'a PackedMatrix,
        columns: &'a [ColumnSum],
        outputs: &'a [f64],
    ) -> RowRoundings<'a> {
        let part = row * matrix.columns..(row + 1) * matrix.columns;
        let (shared, all) = (&self.shared[part.clone()], &self.all[part]);
        RowRoundings { matrix, columns, shared, all, outputs }
    }
}

/// Columns that a matrix unit adds to its sums at a time.
pub(super) const MATRIX_STEP: f64 = 16.0;
/// Mean of what cutting off takes from an f32, relative to it: half of a last bit that is a half to a
/// whole `EPSILON`.
pub(super) const MEAN_CUT: f64 = 0.36 * EPSILON;

/// NVIDIA's matrix units cut their sums off where others round them, so that every step takes from an
/// output's magnitude: a shift that grows with the number of steps, not with its root. The root of the
/// mean of the partial sums' squares stands for the mean of their magnitudes.
fn cut_off(columns: usize) -> f64 {
    let parts = columns.div_ceil(PART) as f64;
    MEAN_CUT * columns as f64 / MATRIX_STEP / parts.sqrt()
}

/// Variance of rounding to eleven bits, relative to a value anywhere between two powers of two.
pub(super) const HALF_VARIANCE: f64 = 1.0 / (12.0 * (1 << 21) as f64);

/// Roundings of a weight that becomes a half float, in units of its square: its own, and those that
/// the weights of a block share.
///
/// Where a weight is a code above zero times a scale and a minimum, these two are larger than what they
/// leave. Their product is rounded by itself unless a device fuses the sum with it; and where
/// scale and minimum are products, they are rounded too.
fn half_roundings(matrix: &PackedMatrix) -> (f64, f64) {
    let Some(quantization) = matrix.ty.quantization() else { return (1.0, 0.0) };
    let of_scale = if quantization.scale_bits > 0 { 1.0 } else { 0.0 };
    if quantization.minimum == Minimum::None {
        return (1.0 + of_scale, 0.0);
    }
    let sizes = BlockSizes::of(matrix);
    let shared = of_scale * (sizes.middle + sizes.minimum) / sizes.weight;
    (1.0 + of_scale + sizes.scaled_code / sizes.weight, shared)
}

/// Mean squares of what blocks with a minimum are made of.
#[derive(Default)]
struct BlockSizes {
    weight: f64,
    /// The smallest weight, which stands for the minimum.
    minimum: f64,
    /// Code times scale.
    scaled_code: f64,
    /// The mean of code times scale.
    middle: f64,
}

impl BlockSizes {
    /// As some rows have them.
    fn of(matrix: &PackedMatrix) -> BlockSizes {
        const ROWS: usize = 64;
        let mut sizes = BlockSizes::default();
        let mut values = vec![0.0; matrix.columns];
        for row in (0..matrix.rows).step_by(matrix.rows.div_ceil(ROWS)) {
            matrix.row(row, &mut values);
            for block in values.chunks_exact(BLOCK) {
                let mean = |of: &dyn Fn(f64) -> f64| {
                    block.iter().map(|&w| of(f64::from(w))).sum::<f64>() / BLOCK as f64
                };
                let minimum = f64::from(block.iter().copied().fold(f32::INFINITY, f32::min));
                sizes.weight += mean(&|w| w * w);
                sizes.minimum += minimum * minimum;
                sizes.scaled_code += mean(&|w| (w - minimum).powi(2));
                sizes.middle += (mean(&|w| w) - minimum).powi(2);
            }
        }
        // Where every weight is zero, so is every rounding.
        sizes.weight = sizes.weight.max(f64::MIN_POSITIVE);
        sizes
    }
}

/// Adds what rounding takes off `x` to the bounds and variances of what it is off by.
fn round_inputs(
    rounding: Rounding,
    x: &[f32],
    columns: usize,
    off: &mut [f64],
    variance: &mut [f64],
) {
    match rounding {
        // Rotated inputs and weights have bounds of their own, and no product has bf16.
        Rounding::None | Rounding::Bf16 | Rounding::Rotated { .. } => {}
        Rounding::Halves | Rounding::FixedHalves => {
            let step = rounding.half_step().expect("they are half floats");
            for (at, &x) in x.iter().enumerate() {
                off[at] += (2f64.powi(-11) * f64::from(x.abs())).max(step / 2.0);
                variance[at] += half_error(x).powi(2).max(step.powi(2) / 12.0);
            }
        }
        Rounding::Int8 | Rounding::Int8Twice => {
            assert!(columns.is_multiple_of(BLOCK), "rows of whole blocks");
            for (block, x) in x.chunks_exact(BLOCK).enumerate() {
                let largest = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                let step = f64::from(largest) / 127.0;
                for (at, &x) in (block * BLOCK..).zip(x) {
                    // Half a step, and a little for the rounding of the step itself.
                    if rounding == Rounding::Int8 {
                        off[at] += 0.501 * step;
                        variance[at] += int8_error(f64::from(x), step).powi(2);
                    } else {
                        // What the first rounding left out, at most half a step, has 127 steps.
                        off[at] += 0.501 * step / 127.0;
                        variance[at] += (step / 254.0).powi(2) / 12.0;
                    }
                }
            }
        }
    }
}
