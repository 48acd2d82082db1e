//! How the errors of a row's outputs depend on each other.
//!
//! An output's error is the sum of its weights times the roundings of the inputs, and these roundings are
//! the same for all outputs of a row. Outputs with similar weights therefore have similar errors. The
//! embeddings of a vocabulary have a large mean; the weights of a block with a minimum have one, too;
//! trained queries and keys use few directions of their input. Then the errors of a row rise and fall
//! together, and the sum of their squares scatters like that of a few numbers.
//!
//! With roundings `d` of variances `V` the errors are `W d`, and their covariance is `C = W V W^T`. The sum
//! of their squares has the mean `tr C` and at most the variance `2 tr C^2`: those of a chi-square
//! distribution with `(tr C)^2 / tr C^2` degrees of freedom. The diagonal of `C` is known for every output.
//! The rest of `tr C^2` is estimated from pairs of sampled outputs.
//!
//! The mean error of a row is judged by itself ([`MeanError`]), because it may be most of the row's error:
//! without it, many degrees of freedom are left, and the limit of the remainder is a close one.

use super::error::effective_count;
use crate::pack::PackedMatrix;
use crate::reference::matmul::ColumnSum;

/// Outputs that stand for all.
const SAMPLES: usize = 64;

/// The mean of a row's errors, and what is left without it.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeanError {
    /// Variance of the mean.
    pub variance: f64,
    /// The part of it that the row's variances count, too.
    pub counted: f64,
    /// Independent roundings that the errors less their mean come from.
    pub freedom: f64,
}

/// How the errors of a row depend on each other.
pub(super) struct Dependence {
    /// Independent roundings that the errors come from.
    pub freedom: f64,
    pub mean: MeanError,
}

/// A row of inputs of a product, and the errors of its outputs.
pub(super) struct RowRoundings<'a> {
    pub matrix: &'a PackedMatrix,
    pub columns: &'a [ColumnSum],
    /// Variances of what rounding the inputs to few bits takes off them. Each output has a part of it.
    pub shared: &'a [f64],
    /// Variances of all that a column brings to the outputs, for a weight of 1.
    pub all: &'a [f64],
    /// Variances of the outputs.
    pub outputs: &'a [f64],
}

impl RowRoundings<'_> {
    pub fn dependence(&self) -> Dependence {
        let count = self.outputs.len() as f64;
        // No more than there are independent roundings, whatever the sampled pairs say.
        let most = effective_count(self.all.iter().copied());
        let total: f64 = self.outputs.iter().sum();
        let columns = || self.columns.iter().zip(self.shared);
        let counted: f64 = columns().map(|(column, v)| (column.weights / count).powi(2) * v).sum();
        let shared: f64 = columns().map(|(column, v)| column.squares * v).sum();
        // Nothing is known of how the errors of f32 depend on each other: the variance of a mean is at
        // most the mean of the variances.
        let own = (total - shared).max(0.0) / count;
        let mean = MeanError { variance: counted + own, counted, freedom: most };
        if counted.is_nan() || !(total > 0.0 && total.is_finite()) {
            return Dependence { freedom: most, mean };
        }
        let pairs = self.pairs(&self.sample(total));
        let freedom = |inverse: f64| (1.0 / inverse).min(most);
        let [whole, remainder] = pairs.map(freedom);
        Dependence { freedom: whole, mean: MeanError { freedom: remainder, ..mean } }
    }

    /// Outputs that are drawn in proportion to their variances, some perhaps several times.
    fn sample(&self, total: f64) -> Vec<usize> {
        let mut sample = Vec::with_capacity(SAMPLES);
        let mut sum = 0.0;
        for (output, variance) in self.outputs.iter().enumerate() {
            sum += variance;
            let due = (sum / total * SAMPLES as f64 + 0.5) as usize;
            sample.resize(due.clamp(sample.len(), SAMPLES), output);
        }
        sample
    }

    /// What pairs of sampled outputs add to the inverse of the degrees of freedom: of the errors, and of
    /// the errors less their mean.
    ///
    /// For the errors that is the mean square of their correlations.
    fn pairs(&self, sample: &[usize]) -> [f64; 2] {
        let width = self.shared.len();
        let roots: Vec<f64> = self.shared.iter().map(|v| v.sqrt()).collect();
        let count = self.outputs.len() as f64;
        let mean: Vec<f64> = (self.columns.iter().zip(&roots))
            .map(|(column, root)| column.weights / count * root)
            .collect();
        let mut values = vec![0.0; width];
        let mut apart = Vec::with_capacity(sample.len() * width);
        for &output in sample {
            self.matrix.row(output, &mut values);
            let columns = values.iter().zip(&roots).zip(&mean);
            apart.extend(columns.map(|((&w, root), mean)| f64::from(w) * root - mean));
        }
        let apart: Vec<&[f64]> = apart.chunks_exact(width).collect();
        let with_mean: Vec<f64> = apart.iter().map(|apart| dot(apart, &mean)).collect();
        let of_mean = dot(&mean, &mean);
        let (mut whole, mut remainder, mut share) = (0.0, 0.0, 0.0);
        for (i, &first) in sample.iter().enumerate() {
            let variance = self.outputs[first];
            share += (variance - 2.0 * with_mean[i] - of_mean).max(0.0) / variance;
            for (j, &second) in sample.iter().enumerate().take(i).filter(|other| *other.1 != first)
            {
                let product = variance * self.outputs[second];
                let covariance = dot(apart[i], apart[j]);
                let mean_part = with_mean[i] + with_mean[j] + of_mean;
                whole += 2.0 * (covariance + mean_part).powi(2) / product;
                remainder += 2.0 * covariance.powi(2) / product;
            }
        }
        let count = sample.len() as f64;
        let pairs = (count - 1.0) / count;
        [whole / (pairs * count * count), remainder / (pairs * share * share)]
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    crate::reference::matmul::dot::<f64, 8>(a, b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::CheckReport;
    use crate::check::error::TensorError;
    use crate::check::judge::{Expected, judge};
    use crate::pack::packed;
    use crate::reference::matmul::{Terms, sums};
    use pianola_formats::TensorType;

    /// Numbers between -1 and 1 of a fixed sequence.
    struct Draws(u64);

    impl Draws {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) as f64 / (1u64 << 30) as f64 - 1.0
        }

        fn list(&mut self, count: usize) -> Vec<f64> {
            (0..count).map(|_| self.next()).collect()
        }
    }

    const COLUMNS: usize = 96;

    /// A matrix and the variances of the roundings of a row of inputs.
    struct Product {
        matrix: PackedMatrix,
        weights: Vec<Vec<f64>>,
        shared: Vec<f64>,
        columns: Vec<ColumnSum>,
        outputs: Vec<f64>,
    }

    impl Product {
        fn new(weights: Vec<Vec<f64>>, draws: &mut Draws) -> Product {
            let single = |weight: &f64| (*weight as f32).to_le_bytes();
            let file: Vec<u8> = weights.iter().flatten().flat_map(single).collect();
            let matrix = packed(TensorType::F32, COLUMNS, &file);
            let shared: Vec<f64> = draws.list(COLUMNS).iter().map(|x| 1.0 + 0.9 * x).collect();
            let mut terms = Terms::new(&[0.0; COLUMNS], COLUMNS);
            terms.magnitudes = vec![0.0; COLUMNS];
            terms.squares = shared.iter().map(|&v| v as f32).collect();
            let sums = sums(&terms, &matrix);
            let outputs = sums.outputs.iter().map(|sum| f64::from(sum.square)).collect();
            Product { matrix, weights, shared, columns: sums.columns, outputs }
        }

        fn dependence(&self) -> Dependence {
            let Product { matrix, shared, columns, outputs, .. } = self;
            RowRoundings { matrix, columns, shared, all: shared, outputs }.dependence()
        }

        /// `(tr C)^2` over the sum of the squares beside the diagonal, from all pairs of outputs.
        fn freedom(&self, weights: &[Vec<f64>]) -> f64 {
            let covariance = |a: &[f64], b: &[f64]| -> f64 {
                a.iter().zip(b).zip(&self.shared).map(|((a, b), v)| a * b * v).sum()
            };
            let trace: f64 = weights.iter().map(|row| covariance(row, row)).sum();
            let mut squares = 0.0;
            for (i, first) in weights.iter().enumerate() {
                for second in &weights[..i] {
                    squares += 2.0 * covariance(first, second).powi(2);
                }
            }
            (trace * trace / squares).min(effective_count(self.shared.iter().copied()))
        }
    }

    /// Weights of outputs that are strangers, that share a mean, that lie along a few directions, and of
    /// which some are large and alike.
    fn kinds(draws: &mut Draws) -> Vec<(&'static str, Vec<Vec<f64>>)> {
        let mut rows =
            |count: usize| -> Vec<Vec<f64>> { (0..count).map(|_| draws.list(COLUMNS)).collect() };
        let sum = |a: &[f64], share: f64, b: &[f64]| -> Vec<f64> {
            a.iter().zip(b).map(|(a, b)| a + share * b).collect()
        };
        let (strangers, directions) = (rows(400), rows(3));
        let with_mean = strangers.iter().map(|row| sum(row, 1.0, &directions[0]));
        let along = strangers.iter().map(|row| {
            let parts = directions.iter().zip(row);
            parts.fold(vec![0.0; COLUMNS], |all, (direction, share)| sum(&all, *share, direction))
        });
        let large = strangers.iter().enumerate().map(|(at, row)| match at % 40 {
            7 => sum(row, 12.0, &directions[1]),
            _ => row.clone(),
        });
        vec![
            ("mean", with_mean.collect()),
            ("few directions", along.collect()),
            ("some large", large.collect()),
            ("strangers", strangers.clone()),
        ]
    }

    #[test]
    fn sampled_pairs_give_the_freedom_of_all() {
        let mut draws = Draws(5);
        for (name, weights) in kinds(&mut draws) {
            let product = Product::new(weights, &mut draws);
            let found = product.dependence();
            let count = product.weights.len() as f64;
            let mean: Vec<f64> = (0..COLUMNS)
                .map(|c| product.weights.iter().map(|row| row[c]).sum::<f64>() / count)
                .collect();
            let apart: Vec<Vec<f64>> = (product.weights.iter())
                .map(|row| row.iter().zip(&mean).map(|(w, mean)| w - mean).collect())
                .collect();
            let expected = [product.freedom(&product.weights), product.freedom(&apart)];
            let of_mean: f64 = mean.iter().zip(&product.shared).map(|(w, v)| w * w * v).sum();
            println!("{name}: {:.1} {:.1}, {expected:.1?}", found.freedom, found.mean.freedom);
            for (found, expected) in [found.freedom, found.mean.freedom].iter().zip(expected) {
                assert!((0.6..1.5).contains(&(found / expected)), "{name}: {found} {expected}");
            }
            assert!((found.mean.counted / of_mean - 1.0).abs() < 1e-5, "{name}");
            assert!((found.mean.variance / of_mean - 1.0).abs() < 1e-3, "{name}");
        }
    }

    /// Outputs that share half of their weights: noise alone passes, and noise of one bit less is noticed.
    /// A limit for the sum of all squares alone would raise false alarms, or miss most of these.
    #[test]
    fn rows_of_outputs_with_a_mean_are_held_to_their_noise() {
        let mut draws = Draws(11);
        let (_, weights) = kinds(&mut draws).swap_remove(0);
        let product = Product::new(weights, &mut draws);
        let width = product.weights.len();
        let Dependence { freedom, mean } = product.dependence();
        let error = TensorError {
            bound: vec![f64::INFINITY; width],
            variance: product.outputs.clone(),
            freedom: vec![freedom],
            means: vec![mean],
        };
        let whole = TensorError { means: Vec::new(), ..error.clone() };
        let apart = TensorError {
            freedom: vec![effective_count(product.shared.iter().copied())],
            ..whole.clone()
        };
        let values = vec![0.0; width];
        let passes = |error: &TensorError, found: &[f32]| {
            let expected = Expected { name: "logits", width, rows: &[0], values: &values, error };
            judge("head", &expected, found, &mut CheckReport::default()).is_ok()
        };
        let (mut noticed, mut false_alarms, mut missed) = (0, 0, 0);
        for _ in 0..500 {
            // Half a step to either side, evenly.
            let roundings: Vec<f64> =
                product.shared.iter().map(|v| draws.next() * (3.0 * v).sqrt()).collect();
            let noise: Vec<f32> =
                product.weights.iter().map(|row| dot(row, &roundings) as f32).collect();
            let doubled: Vec<f32> = noise.iter().map(|noise| 2.0 * noise).collect();
            assert!(passes(&error, &noise));
            noticed += usize::from(!passes(&error, &doubled));
            false_alarms += usize::from(!passes(&apart, &noise));
            missed += usize::from(passes(&whole, &doubled));
        }
        let counts = (noticed, false_alarms, missed);
        assert!(noticed > 400 && false_alarms > 0 && missed > 400, "{counts:?}");
    }
}
