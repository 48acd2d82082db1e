//! The device's products on the processor, for plays that go on after a failure.
//!
//! Sums of bytes are exact, and so the same bits. Sums of bf16 are formed here in the order in which the
//! device model forms them: one after another within the package's K, parts in their order. A real array's
//! order inside its lanes is not documented, so that there bits may differ.

use half::bf16;

use super::parallel::each_row;
use crate::package::{ElementType, MatmulSpec, Shape};
use crate::runner::{Factor, Order};

/// `out = a w^T` with a of M x K, w of N x K and out of M x N.
pub(super) fn matmul_i8(shape: Shape, a: &[i8], w: &[i8], out: &mut [i32]) {
    let Shape { m, k, n } = shape;
    each_row(out, n, m * k * n, |row, out| {
        let a = &a[row * k..][..k];
        for (column, out) in out.iter_mut().enumerate() {
            let w = &w[column * k..][..k];
            *out = a.iter().zip(w).map(|(&a, &w)| i32::from(a) * i32::from(w)).sum();
        }
    });
}

/// `out = a b` as a package of bf16 computes it in parts.
pub(super) fn matmul_bf16(
    spec: &MatmulSpec,
    shape: Shape,
    a: &[bf16],
    b: Factor<'_, bf16>,
    out: &mut [f32],
) {
    let Shape { m, k, n } = shape;
    out.fill(0.0);
    let mut rows = vec![0.0; spec.shape.k.min(k) * n];
    for first in (0..k).step_by(spec.shape.k) {
        let part = spec.shape.k.min(k - first);
        each_row(&mut rows[..part * n], n, part * n, |row, out| {
            let at = |column: usize| match b.order {
                Order::RowMajor => (first + row) * n + column,
                Order::ColumnMajor => column * k + first + row,
            };
            out.iter_mut()
                .enumerate()
                .for_each(|(column, out)| *out = b.values[at(column)].to_f32());
        });
        let rows = &rows[..part * n];
        each_row(out, n, m * part * n, |row, out| {
            let a = &a[row * k + first..][..part];
            let mut sums = vec![0.0f32; n];
            for (a, b) in a.iter().zip(rows.chunks_exact(n)) {
                let a = a.to_f32();
                sums.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * b);
            }
            for (out, sum) in out.iter_mut().zip(sums) {
                *out += match spec.output {
                    ElementType::Bf16 => bf16::from_f32(sum).to_f32(),
                    _ => sum,
                };
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::reference_matmul_i8;

    #[test]
    fn bytes_are_summed_exactly() {
        for (m, k, n) in [(1, 1, 1), (5, 33, 7), (0, 3, 2), (3, 0, 2), (40, 512, 70)] {
            let byte = |seed: usize| move |at: usize| ((at * 37 + seed) % 255) as u8 as i8;
            let a: Vec<i8> = (0..m * k).map(byte(3)).collect();
            let w: Vec<i8> = (0..n * k).map(byte(90)).collect();
            let shape = Shape { m, k, n };
            let (mut out, mut expected) = (vec![5; m * n], vec![6; m * n]);
            matmul_i8(shape, &a, &w, &mut out);
            let factor = Factor { values: &w, order: Order::ColumnMajor };
            reference_matmul_i8(shape, &a, factor, &mut expected).unwrap();
            assert_eq!(out, expected);
        }
    }
}
