//! Matrices of the caller's, and parts of them in the layouts that kernels read.

use super::RunError;
use super::element::Element;
use crate::package::{BLayout, Packing, Shape};

/// How a matrix of the caller's lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Rows one after another.
    RowMajor,
    /// Columns one after another: a weight of N rows of K is a K x N factor in this order.
    ColumnMajor,
}

/// The second factor of a product.
#[derive(Clone, Copy, Debug)]
pub struct Factor<'a, T> {
    /// K x N values.
    pub values: &'a [T],
    /// How they lie.
    pub order: Order,
}

/// A matrix of known shape; values outside of it are zeros.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, T> {
    values: &'a [T],
    rows: usize,
    columns: usize,
    order: Order,
}

impl<'a, T: Copy + Default> Matrix<'a, T> {
    /// Checks that there are as many values as the shape has.
    pub(super) fn new(
        what: &'static str,
        values: &'a [T],
        (rows, columns): (usize, usize),
        order: Order,
    ) -> Result<Matrix<'a, T>, RunError> {
        RunError::length(what, rows * columns, values.len())?;
        Ok(Matrix { values, rows, columns, order })
    }

    /// Copies `out.len()` values of a row from a column on.
    fn row(&self, row: usize, column: usize, out: &mut [T]) {
        let inside = match row < self.rows {
            true => self.columns.saturating_sub(column).min(out.len()),
            false => 0,
        };
        let (copied, padding) = out.split_at_mut(inside);
        padding.fill(T::default());
        if copied.is_empty() {
            return;
        }
        match self.order {
            Order::RowMajor => {
                let start = row * self.columns + column;
                copied.copy_from_slice(&self.values[start..start + inside]);
            }
            Order::ColumnMajor => {
                let column = self.values[column * self.rows + row..].iter();
                for (value, &from) in copied.iter_mut().zip(column.step_by(self.rows)) {
                    *value = from;
                }
            }
        }
    }

    /// Whether all values are finite.
    pub(super) fn is_finite(&self) -> bool
    where
        T: Element,
    {
        T::all_finite(self.values)
    }

    /// The same matrix with rows for columns.
    fn transposed(&self) -> Matrix<'a, T> {
        let order = match self.order {
            Order::RowMajor => Order::ColumnMajor,
            Order::ColumnMajor => Order::RowMajor,
        };
        Matrix { values: self.values, rows: self.columns, columns: self.rows, order }
    }

    /// The part of `rows` x `columns` at an origin, row-major.
    fn rows_at(&self, (row, column): (usize, usize), columns: usize, out: &mut [T]) {
        if self.order == Order::ColumnMajor {
            return self.transpose((row, column), columns, out);
        }
        for (index, out) in out.chunks_exact_mut(columns).enumerate() {
            self.row(row + index, column, out);
        }
    }

    /// The same for a column-major matrix: block by block, so that both sides stay in the cache.
    fn transpose(&self, (row, column): (usize, usize), columns: usize, out: &mut [T]) {
        const BLOCK: usize = 64;
        let rows = self.rows.saturating_sub(row).min(out.len() / columns);
        let inside = self.columns.saturating_sub(column).min(columns);
        if rows * inside < out.len() {
            out.fill(T::default());
        }
        for first in (0..rows).step_by(BLOCK) {
            let count = BLOCK.min(rows - first);
            for left in (0..inside).step_by(BLOCK) {
                for at in left..inside.min(left + BLOCK) {
                    let from = (column + at) * self.rows + row + first;
                    let lines = out[first * columns..].chunks_exact_mut(columns);
                    for (line, &value) in lines.zip(&self.values[from..from + count]) {
                        line[at] = value;
                    }
                }
            }
        }
    }

    /// A first factor of a kernel's shape at an origin.
    pub(super) fn lay_out_a(&self, origin: (usize, usize), shape: Shape, out: &mut Vec<T>) {
        out.resize(shape.m * shape.k, T::default());
        self.rows_at(origin, shape.k, out);
    }

    /// A second factor of a kernel's shape at an origin.
    pub(super) fn lay_out_b(
        &self,
        (k, n): (usize, usize),
        shape: Shape,
        layout: BLayout,
        out: &mut Vec<T>,
    ) {
        out.resize(shape.k * shape.n, T::default());
        match layout {
            BLayout::RowMajor => self.rows_at((k, n), shape.n, out),
            BLayout::ColumnMajor => self.transposed().rows_at((n, k), shape.k, out),
            BLayout::Packed(packing) => self.pack((k, n), shape, packing, out),
        }
    }

    /// IRON's order: column block, row block, slice, column of blocks, row of blocks, block.
    fn pack(&self, (k, n): (usize, usize), shape: Shape, packing: Packing, out: &mut [T]) {
        const BLOCK: usize = Packing::BLOCK;
        let Packing { k_tile, n_tile, slice_k } = packing;
        let mut runs = out.chunks_exact_mut(BLOCK);
        for column_block in (0..shape.n).step_by(n_tile) {
            // Row blocks and their slices follow each other without a gap.
            debug_assert!(shape.k.is_multiple_of(k_tile) && k_tile.is_multiple_of(slice_k));
            for slice in (0..shape.k).step_by(slice_k) {
                for column in (0..n_tile).step_by(BLOCK) {
                    for row in 0..slice_k {
                        let Some(run) = runs.next() else { return };
                        self.row(k + slice + row, n + column_block + column, run);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K x N values, each of which is its own place.
    fn numbered(rows: usize, columns: usize) -> Vec<i32> {
        (0..(rows * columns) as i32).collect()
    }

    fn shape(k: usize, n: usize) -> Shape {
        Shape { m: 1, k, n }
    }

    #[test]
    fn parts_outside_are_zeros() {
        let values = numbered(3, 5);
        let matrix = Matrix::new("b", &values, (3, 5), Order::RowMajor).unwrap();
        let mut out = Vec::new();
        matrix.lay_out_b((2, 3), shape(2, 4), BLayout::RowMajor, &mut out);
        assert_eq!(out, [13, 14, 0, 0, 0, 0, 0, 0]);
        matrix.lay_out_b((2, 3), shape(2, 4), BLayout::ColumnMajor, &mut out);
        assert_eq!(out, [13, 0, 14, 0, 0, 0, 0, 0]);
        assert!(Matrix::new("b", &values, (3, 4), Order::RowMajor).is_err());
    }

    #[test]
    fn both_orders_of_the_caller_give_the_same() {
        let row_major = numbered(6, 4);
        let mut column_major = Vec::new();
        for column in 0..4 {
            column_major.extend((0..6).map(|row| row_major[row * 4 + column]));
        }
        let rows = Matrix::new("b", &row_major, (6, 4), Order::RowMajor).unwrap();
        let columns = Matrix::new("b", &column_major, (6, 4), Order::ColumnMajor).unwrap();
        for layout in [BLayout::RowMajor, BLayout::ColumnMajor] {
            let (mut left, mut right) = (Vec::new(), Vec::new());
            rows.lay_out_b((1, 1), shape(6, 2), layout, &mut left);
            columns.lay_out_b((1, 1), shape(6, 2), layout, &mut right);
            assert_eq!(left, right);
        }
    }

    /// Against the order written out as seven nested loops.
    #[test]
    fn packing_is_irons_order() {
        let (k, n) = (1024, 128);
        let values = numbered(k, n);
        let matrix = Matrix::new("b", &values, (k, n), Order::RowMajor).unwrap();
        for n_tile in [16, 32, 64, 128] {
            let packing = Packing::iron(n_tile).unwrap();
            let mut expected = Vec::new();
            for column_block in 0..n / n_tile {
                for row_block in 0..k / packing.k_tile {
                    for slice in 0..packing.k_tile / packing.slice_k {
                        for column in 0..n_tile / 8 {
                            for row in 0..packing.slice_k / 8 {
                                for inner_row in 0..8 {
                                    for inner_column in 0..8 {
                                        let row = row_block * packing.k_tile
                                            + slice * packing.slice_k
                                            + row * 8
                                            + inner_row;
                                        let column =
                                            column_block * n_tile + column * 8 + inner_column;
                                        expected.push(values[row * n + column]);
                                    }
                                }
                            }
                        }
                    }
                }
            }
            let mut packed = Vec::new();
            matrix.lay_out_b((0, 0), shape(k, n), BLayout::Packed(packing), &mut packed);
            assert!(packed == expected, "column blocks of {n_tile}");
        }
    }
}
