//! What attention in fewer bits is off by, beside what f32 is. On matrix units queries and weights become half
//! floats before they are multiplied, and some units cut sums off instead of rounding them. On processors
//! keys and values, too, become bf16.

use super::attention::{Query, Seen, Softmax};
use super::error::TensorError;
use super::product::{HALF_VARIANCE, MATRIX_STEP, MEAN_CUT};
use super::rounded::to_bits;
use pianola_plan::{AttentionSpec, Rounding};

/// What factors are rounded to.
struct Precision {
    /// Significant bits.
    bits: u32,
    /// Variance of a rounding, relative to a value anywhere between two powers of two.
    variance: f64,
    /// The step of the smallest values. Weights are at most 1; queries are scaled, so that theirs is far below
    /// their last bits.
    least_step: f64,
    /// What a sum of so many terms loses by being cut off, relative to it.
    cut: f64,
    /// Keys and values are rounded, too.
    stored: bool,
}

const HALVES: Precision = Precision {
    bits: 11,
    variance: HALF_VARIANCE,
    least_step: 1.0 / (1 << 24) as f64,
    cut: MEAN_CUT / MATRIX_STEP,
    stored: false,
};

/// Three bits less, and the range of f32.
const BF16: Precision =
    Precision { bits: 8, variance: 64.0 * HALF_VARIANCE, least_step: 0.0, cut: 0.0, stored: true };

/// The roundings of one attention.
pub(super) struct HalfRoundings {
    precision: Precision,
    head_dim: usize,
    scale: f64,
    cap: Option<f64>,
}

impl HalfRoundings {
    /// None where factors are not rounded.
    pub fn new(rounding: Rounding, spec: &AttentionSpec) -> Option<HalfRoundings> {
        let precision = match rounding {
            Rounding::Halves => HALVES,
            Rounding::Bf16 => BF16,
            _ => return None,
        };
        let cap = spec.soft_cap.map(f64::from);
        Some(HalfRoundings {
            precision,
            head_dim: spec.head_dim,
            scale: f64::from(spec.scale),
            cap,
        })
    }

    /// What rounding takes off a query's value. Bf16 is what the scaled value becomes.
    fn query_error(&self, q: f32) -> f64 {
        let scale = if self.precision.stored { self.scale as f32 } else { 1.0 };
        let scaled = q * scale;
        f64::from(scaled - to_bits(scaled, self.precision.bits)) / f64::from(scale)
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
            let step = self.precision.least_step / softmax.total;
            let own = self.precision.variance;
            // One weight may stand for most of a head, and where it lies between two powers of two depends on
            // the largest score so far: at worst its variance is twice the usual.
            let worst = if self.precision.stored { 2.0 } else { 1.0 };
            let of_weight = worst * weight * weight * own + step * step / 12.0;
            let mut source = 0.0;
            for d in 0..self.head_dim {
                // Matrix units add up the rounded weights, of which one that grows takes from all others;
                // processors those before the rounding.
                let others = if self.precision.stored { 0.0 } else { f64::from(out[d]) };
                let moved = of_weight * (values[d] - others).powi(2);
                let of_value =
                    if self.precision.stored { own * (weight * values[d]).powi(2) } else { 0.0 };
                variance[d] += moved + of_value;
                source += moved + of_value;
                squares[d] += (weight * values[d]).powi(2);
            }
            sources.push(source);
        }
        let slopes = self.score_slopes(softmax, seen, out);
        if self.precision.stored {
            // Each key moves the score of its token alone.
            for (slopes, keys) in slopes.chunks_exact(self.head_dim).zip(self.rows(&seen.keys)) {
                let terms = query.values.iter().zip(keys);
                let squares: f64 = terms.map(|(&q, key)| (f64::from(q) * key).powi(2)).sum();
                let of_score = self.precision.variance * squares;
                let moved = slopes.iter().map(|&slope| of_score * f64::from(slope).powi(2));
                variance.iter_mut().zip(moved.clone()).for_each(|(sum, moved)| *sum += moved);
                sources.push(moved.sum());
            }
        }
        let mut moves = vec![0.0f32; self.head_dim];
        for (at, &q) in query.values.iter().enumerate() {
            let off = self.query_error(q);
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
        let cut_off = self.precision.cut * seen.tokens as f64;
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
        // Half of the last bit, of one factor or of both.
        let step = 0.5f64.powi(self.precision.bits as i32);
        let factor = if self.precision.stored { 2.01 * step } else { step };
        let score = |keys: &[f64]| {
            let terms = query.values.iter().zip(keys);
            terms.map(|(&q, key)| factor * f64::from(q).abs() * key.abs()).sum::<f64>()
        };
        let worst = self.rows(&seen.keys).map(score).fold(0.0, f64::max) * self.scale.abs();
        let least = self.precision.least_step / 2.0 / softmax.total;
        let of_weights = factor + seen.tokens as f64 * least;
        // A little more, because errors of f32 and these multiply.
        1.01 * ((2.0 * worst).exp_m1() + 2.0 * of_weights)
    }
}
