//! Plain computations to compare a kernel with: obviously right, in double precision.

use half::bf16;

use super::RunError;
use super::matrix::{Factor, Matrix, Order};
use crate::package::{Activation, AttentionSpec, BLayout, Shape};

/// `out = a b` on the processor, exactly as [`super::TiledMatmul::matmul_i8`] computes it: what a
/// caller falls back to where the device fails.
pub fn reference_matmul_i8(
    shape: Shape,
    a: &[i8],
    b: Factor<'_, i8>,
    out: &mut [i32],
) -> Result<(), RunError> {
    let Shape { m, k, n } = shape;
    if [m.checked_mul(k), k.checked_mul(n), m.checked_mul(n)].contains(&None) {
        return Err(RunError::Impossible(m, k, n));
    }
    if k >= 1 << 17 {
        return Err(RunError::TooLong(k));
    }
    Matrix::new("a", a, (m, k), Order::RowMajor)?;
    let b = Matrix::new("b", b.values, (k, n), b.order)?;
    RunError::length("out", m * n, out.len())?;
    if out.is_empty() {
        return Ok(());
    }
    let mut rows = Vec::new();
    b.lay_out_b((0, 0), shape, BLayout::RowMajor, &mut rows);
    for (row, out) in out.chunks_exact_mut(n).enumerate() {
        // Sums of fewer than 2^17 products of bytes are whole numbers that f64 holds.
        let sums = matmul_row(shape, a, &rows, row, f64::from);
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum.value as i32);
    }
    Ok(())
}

/// One element of a product with the sum of its terms' magnitudes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element {
    pub(super) value: f64,
    pub(super) magnitude: f64,
}

/// A row of a product of row-major matrices.
pub(super) fn matmul_row<T: Copy>(
    shape: Shape,
    a: &[T],
    b: &[T],
    row: usize,
    widen: impl Fn(T) -> f64,
) -> Vec<Element> {
    let mut out = vec![Element { value: 0.0, magnitude: 0.0 }; shape.n];
    for (k, &left) in a[row * shape.k..(row + 1) * shape.k].iter().enumerate() {
        let left = widen(left);
        for (element, &right) in out.iter_mut().zip(&b[k * shape.n..(k + 1) * shape.n]) {
            let term = left * widen(right);
            element.value += term;
            element.magnitude += term.abs();
        }
    }
    out
}

/// What a design applies to a product.
pub(super) fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Gelu => x / (1.0 + (-1.702 * x).exp()),
        Activation::Silu => x / (1.0 + (-x).exp()),
    }
}

/// The output of one query of one head, with the weighted sum of the values' magnitudes.
pub(super) fn attention_row(
    spec: &AttentionSpec,
    (q, k, v): (&[bf16], &[bf16], &[bf16]),
    (head, query): (usize, usize),
) -> Vec<Element> {
    let kv_head = head / (spec.heads / spec.kv_heads);
    let row = |values: &[bf16], index: usize, width: usize| -> Vec<f64> {
        values[index * width..(index + 1) * width].iter().map(|x| x.to_f64()).collect()
    };
    let q = row(q, head * spec.queries + query, spec.key_width);
    let seen = if spec.causal { query + 1 } else { spec.keys };
    let scores: Vec<f64> = (0..seen)
        .map(|key| {
            let k = row(k, kv_head * spec.keys + key, spec.key_width);
            let dot: f64 = q.iter().zip(&k).map(|(q, k)| q * k).sum();
            dot / (spec.key_width as f64).sqrt()
        })
        .collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut out = vec![Element { value: 0.0, magnitude: 0.0 }; spec.value_width];
    for (key, weight) in weights.iter().enumerate() {
        let v = row(v, kv_head * spec.keys + key, spec.value_width);
        for (element, v) in out.iter_mut().zip(&v) {
            element.value += weight / total * v;
            element.magnitude += weight / total * v.abs();
        }
    }
    out
}
