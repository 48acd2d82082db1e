//! What attention on matrix units is off by, beside what f32 is: queries and weights become half
//! floats before they are multiplied, and some units cut sums off instead of rounding them.

use super::attention::{Query, Seen, Softmax};
use super::error::TensorError;
use super::noise::half_error;
use super::product::{HALF_VARIANCE, MATRIX_STEP, MEAN_CUT};
use pianola_plan::AttentionSpec;

/// Half of the last of eleven bits, relative to a value.
const HALF_STEP: f64 = 1.0 / 2048.0;
/// The step of half floats below 2^-14. Weights are at most 1; queries are scaled, so that theirs is
/// far below their last bits.
const LEAST_STEP: f64 = 1.0 / (1 << 24) as f64;

/// The roundings of one attention.
pub(super) struct HalfRoundings {
    head_dim: usize,
    scale: f64,
    cap: Option<f64>,
}

impl HalfRoundings {
    pub fn new(spec: &AttentionSpec) -> HalfRoundings {
        let cap = spec.soft_cap.map(f64::from);
        HalfRoundings { head_dim: spec.head_dim, scale: f64::from(spec.scale), cap }
    }

    /// Adds to the errors of the last head of `error` what its roundings bring. Returns the variance
    /// that each of them brings to the head.
    pub fn add(
        &self,
        query: &Query<'_>,
        softmax: &Softmax,
        seen: &Seen,
        out: &[f32],
        error: &mut TensorError,
    ) -> Vec<f64> {
        let first = error.bound.len() - self.head_dim;
        let (bound, variance) = (&mut error.bound[first..], &mut error.variance[first..]);
        let mut sources = Vec::new();
        let mut squares = vec![0.0; self.head_dim];
        for (&weight, values) in softmax.weights.iter().zip(self.rows(&seen.values)) {
            let step = LEAST_STEP / softmax.total;
            let of_weight = weight * weight * HALF_VARIANCE + step * step / 12.0;
            let mut source = 0.0;
            for d in 0..self.head_dim {
                // The sum of the weights is that of the rounded ones: one that grows takes from all
                // others.
                let moved = of_weight * (values[d] - f64::from(out[d])).powi(2);
                variance[d] += moved;
                source += moved;
                squares[d] += (weight * values[d]).powi(2);
            }
            sources.push(source);
        }
        let slopes = self.query_slopes(softmax, seen, out);
        for (&q, slopes) in query.values.iter().zip(self.rows(&slopes)) {
            let of_query = half_error(q).powi(2);
            let mut source = 0.0;
            for (variance, slope) in variance.iter_mut().zip(slopes) {
                *variance += of_query * slope * slope;
                source += of_query * slope * slope;
            }
            sources.push(source);
        }
        let cut_off = MEAN_CUT * seen.tokens as f64 / MATRIX_STEP;
        for d in 0..self.head_dim {
            variance[d] += cut_off * cut_off * (squares[d] + f64::from(out[d]).powi(2));
        }
        let relative = self.bound(query, softmax, seen);
        let most = seen.values.iter().fold(0.0f64, |most, value| most.max(value.abs()));
        bound.iter_mut().for_each(|bound| *bound += relative * most);
        sources
    }

    fn rows<'a>(&self, values: &'a [f64]) -> std::slice::ChunksExact<'a, f64> {
        values.chunks_exact(self.head_dim)
    }

    /// What a change of each value of the query changes the outputs by, `[query][output]`. The scores
    /// of all tokens move together, and what moves all of them alike moves nothing.
    fn query_slopes(&self, softmax: &Softmax, seen: &Seen, out: &[f32]) -> Vec<f64> {
        let mut slopes = vec![0.0; self.head_dim * self.head_dim];
        let tokens = softmax.scores.iter().zip(&softmax.weights);
        let stored = self.rows(&seen.keys).zip(self.rows(&seen.values));
        for ((score, weight), (keys, values)) in tokens.zip(stored) {
            let bend = self.cap.map_or(1.0, |cap| 1.0 - (score.value / cap).powi(2));
            let off: Vec<f64> =
                values.iter().zip(out).map(|(value, &out)| value - f64::from(out)).collect();
            for (slopes, key) in slopes.chunks_exact_mut(self.head_dim).zip(keys) {
                let factor = weight * bend * self.scale * key;
                slopes.iter_mut().zip(&off).for_each(|(slope, off)| *slope += factor * off);
            }
        }
        slopes
    }

    /// What an output may be off by at worst, relative to the largest value.
    fn bound(&self, query: &Query<'_>, softmax: &Softmax, seen: &Seen) -> f64 {
        let score = |keys: &[f64]| {
            let terms = query.values.iter().zip(keys);
            terms.map(|(&q, key)| HALF_STEP * f64::from(q).abs() * key.abs()).sum::<f64>()
        };
        let worst = self.rows(&seen.keys).map(score).fold(0.0, f64::max) * self.scale.abs();
        let of_weights = HALF_STEP + seen.tokens as f64 * LEAST_STEP / 2.0 / softmax.total;
        // A little more, because errors of f32 and these multiply.
        1.01 * ((2.0 * worst).exp_m1() + 2.0 * of_weights)
    }
}
