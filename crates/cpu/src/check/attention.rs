//! Errors of attention.

use super::attention_halves::HalfRoundings;
use super::error::{EPSILON, NodeError, TensorError, effective_count};
use super::noise::{rounding, sum_variance};
use crate::kv::KvPages;
use crate::reference::hadamard::rotated;
use pianola_plan::{AttentionSpec, Row};

/// A head's keys and values as they are stored and one row sees them, `[tokens][head_dim]` each.
pub(super) struct Seen {
    pub keys: Vec<f64>,
    pub values: Vec<f64>,
    pub tokens: usize,
}

impl Seen {
    fn of(pages: &KvPages, spec: &AttentionSpec, row: &Row, kv_head: usize) -> Seen {
        let (sequence, position) = (row.sequence as usize, row.position as usize);
        let first = pages.group.first_visible(position);
        let stored = |value: bool| {
            let of = move |token: usize, d: usize| {
                f64::from(pages.get(sequence, token, spec.kv, kv_head, value, d))
            };
            let tokens = first..=position;
            tokens.flat_map(|token| (0..spec.head_dim).map(move |d| of(token, d))).collect()
        };
        Seen { keys: stored(false), values: stored(true), tokens: position + 1 - first }
    }
}

/// Where kernels cut the exponential off: a weight that is less comes out as `e` to this. It shows only
/// where nothing else is left of a sum.
const LEAST_EXPONENT: f64 = -87.0;

/// A token's score as the softmax takes it, and what it may be off by.
pub(super) struct Score {
    pub value: f64,
    bound: f64,
    variance: f64,
}

/// Scores of all tokens that a row sees, and their weights.
pub(super) struct Softmax {
    pub scores: Vec<Score>,
    largest: f64,
    /// Sum of the weights, the largest of which is 1.
    pub total: f64,
    /// Weights whose sum is 1.
    pub weights: Vec<f64>,
}

/// A head's query, rotated as the keys are, and what it may be off by.
pub(super) struct Query<'a> {
    pub values: &'a [f32],
    bound: &'a [f64],
    variance: &'a [f64],
}

impl Query<'_> {
    fn score(&self, keys: &[f64], spec: &AttentionSpec) -> Score {
        let terms = keys.len();
        let (mut sum, mut bound, mut moved, mut squares) = (0.0, 0.0, 0.0, 0.0);
        for (d, &key) in keys.iter().enumerate() {
            let q = f64::from(self.values[d]);
            sum += q * key;
            let rounding = q.abs() * EPSILON * (terms as f64 + 4.0);
            bound += key.abs() * (self.bound[d] + rounding);
            moved += key * key * self.variance[d];
            squares += (q * key).powi(2);
        }
        let scale = f64::from(spec.scale);
        let cap = |score: f64| match spec.soft_cap.map(f64::from) {
            Some(cap) => cap * (score / cap).tanh(),
            None => score,
        };
        let value = cap(scale * sum);
        let variance = scale * scale * (moved + sum_variance(terms, squares, sum));
        // The exponential's own, that of what it is taken of, and the hyperbolic tangent's.
        let capped = spec.soft_cap.map_or(0.0, f64::from);
        let own = (EPSILON * (4.0 + 2.0 * value.abs() + 2.0 * capped)).powi(2);
        Score { value, bound: scale.abs() * bound, variance: variance + own }
    }

    fn softmax(&self, seen: &Seen, spec: &AttentionSpec) -> Softmax {
        let keys = seen.keys.chunks_exact(spec.head_dim);
        let scores: Vec<Score> = keys.map(|keys| self.score(keys, spec)).collect();
        let largest = scores.iter().map(|score| score.value).fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score.value - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        let weights = weights.iter().map(|weight| weight / total).collect();
        Softmax { scores, largest, total, weights }
    }
}

impl NodeError<'_> {
    pub fn attention(&self, spec: &AttentionSpec) -> TensorError {
        let pages = &self.machine.kv.groups[spec.kv.group];
        let (group, head_dim) = (spec.heads / spec.kv_heads, spec.head_dim);
        let rotation = self.machine.plan.graph.kv_groups[spec.kv.group].key_rotation();
        let incoming = self.error(0).rotated(self.input(0), rotation);
        let queries = rotated(self.input(0), rotation);
        let rows = &self.machine.step.rows;
        let mut error = TensorError { freedom: incoming.freedom.clone(), ..TensorError::default() };
        let halves = HalfRoundings::new(self.rounding, spec);
        for (row, source) in rows.iter().enumerate() {
            // Variances that the roundings to half floats bring, one by one.
            let mut sources = Vec::new();
            for kv_head in 0..spec.kv_heads {
                let seen = Seen::of(pages, spec, source, kv_head);
                for head in kv_head * group..(kv_head + 1) * group {
                    let at = (row * spec.heads + head) * head_dim;
                    let query = Query {
                        values: &queries[at..at + head_dim],
                        bound: &incoming.bound[at..at + head_dim],
                        variance: &incoming.variance[at..at + head_dim],
                    };
                    let out = &self.out()[at..at + head_dim];
                    let softmax = query.softmax(&seen, spec);
                    head_error(&softmax, &seen, out, &mut error);
                    if let Some(halves) = &halves {
                        sources.extend(halves.add(&query, &softmax, &seen, out, &mut error));
                    }
                }
            }
            error.freedom[row] = error.freedom[row].min(effective_count(sources.into_iter()));
        }
        error
    }
}

/// Adds a head's errors to those before.
fn head_error(softmax: &Softmax, seen: &Seen, out: &[f32], error: &mut TensorError) {
    let Softmax { scores, largest, weights, .. } = softmax;
    // Scores off by s move each weight by a factor within e^(2 s).
    let worst = scores.iter().map(|score| score.bound).fold(0.0, f64::max);
    let relative = (2.0 * worst).exp_m1() + EPSILON * (seen.tokens as f64 + 32.0);
    let most = seen.values.iter().fold(0.0f64, |most, value| most.max(value.abs()));
    let (mut moved, mut squares) = (vec![0.0; out.len()], vec![0.0; out.len()]);
    let mut cut = vec![0.0; out.len()];
    let tokens = scores.iter().zip(weights).zip(seen.values.chunks_exact(out.len()));
    for ((score, weight), values) in tokens {
        let (of_score, of_weight) = (weight * weight * score.variance, weight * weight);
        for (d, &value) in values.iter().enumerate() {
            // A weight that grows takes from all others.
            moved[d] += of_score * (value - f64::from(out[d])).powi(2);
            squares[d] += of_weight * value * value;
            if score.value - largest < LEAST_EXPONENT + 1.0 {
                cut[d] += LEAST_EXPONENT.exp() * value.abs();
            }
        }
    }
    for (d, &out) in out.iter().enumerate() {
        error.bound.push(relative * most + cut[d]);
        let summed = sum_variance(seen.tokens, squares[d], f64::from(out));
        error.variance.push(moved[d] + summed + 4.0 * rounding(out) + cut[d] * cut[d]);
    }
}
