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
        let slopes = self.score_slopes(softmax, seen, out);
        let mut moves = vec![0.0f32; self.head_dim];
        for (at, &q) in query.values.iter().enumerate() {
            let off = half_error(q);
            moves.fill(0.0);
            // The scores of all tokens move together, and what moves them alike moves nothing.
            for (slopes, keys) in slopes.chunks_exact(self.head_dim).zip(self.rows(&seen.keys)) {
                let moved = (off * keys[at]) as f32;
                moves.iter_mut().zip(slopes).for_each(|(sum, slope)| *sum += moved * slope);
            }
            let squares = moves.iter().map(|&moved| f64::from(moved).powi(2));
            variance.iter_mut().zip(squares.clone()).for_each(|(sum, square)| *sum += square);
            sources.push(squares.sum());
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

    /// What the outputs change by with the product of a query and a key, `[token][output]`.
    fn score_slopes(&self, softmax: &Softmax, seen: &Seen, out: &[f32]) -> Vec<f32> {
        let tokens = softmax.scores.iter().zip(&softmax.weights).zip(self.rows(&seen.values));
        let slopes = tokens.flat_map(|((score, weight), values)| {
            let bend = self.cap.map_or(1.0, |cap| 1.0 - (score.value / cap).powi(2));
            let factor = weight * bend * self.scale;
            let off = values.iter().zip(out).map(|(value, &out)| value - f64::from(out));
            off.map(move |off| (factor * off) as f32)
        });
        slopes.collect()
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
