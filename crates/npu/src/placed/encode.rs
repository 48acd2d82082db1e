//! Rows of numbers in the form in which the array multiplies them.

use half::bf16;

use super::options::Precision;
use super::parallel::each_row;

/// Columns that are rotated together, at most: seven stages of sums and differences.
const ROTATION: usize = 128;

/// How rows are encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Form {
    pub precision: Precision,
    /// Columns of a piece: the package's K.
    pub piece: usize,
    pub rotation: bool,
}

impl Form {
    /// Columns that are rotated together: a power of two, so that a rotation is its own inverse and needs
    /// no multiplication but one. It divides the columns; 1 rotates nothing.
    pub fn block(&self, columns: usize) -> usize {
        match self.precision {
            Precision::Int8Pieces if self.rotation && columns > 0 => {
                ROTATION.min(1 << columns.trailing_zeros())
            }
            _ => 1,
        }
    }

    /// Bytes of encoded rows.
    pub fn bytes(&self, rows: usize, columns: usize) -> u64 {
        let bytes = match self.precision {
            Precision::Bf16 => rows * columns * size_of::<bf16>(),
            Precision::Int8Pieces => {
                rows * (columns + columns.div_ceil(self.piece) * size_of::<f32>())
            }
        };
        bytes as u64
    }
}

/// Encoded rows: of a weight, or of an input.
pub(super) struct Encoded {
    pub rows: usize,
    pub columns: usize,
    pub values: Values,
}

/// Their values.
pub(super) enum Values {
    /// `[rows][columns]`
    Bf16(Vec<bf16>),
    /// Pieces one after another.
    Int8(Pieces),
}

/// Codes with scales: a value is its code times the scale of its row and piece.
pub(super) struct Pieces {
    rows: usize,
    columns: usize,
    piece: usize,
    /// `[pieces][rows][columns of the piece]`
    codes: Vec<i8>,
    /// `[pieces][rows]`
    scales: Vec<f32>,
}

impl Encoded {
    /// Room for rows that [`Encoded::set`] fills.
    pub fn new(form: Form, rows: usize, columns: usize) -> Encoded {
        let values = match form.precision {
            Precision::Bf16 => Values::Bf16(vec![bf16::ZERO; rows * columns]),
            Precision::Int8Pieces => Values::Int8(Pieces {
                rows,
                columns,
                piece: form.piece,
                codes: vec![0; rows * columns],
                scales: vec![0.0; rows * columns.div_ceil(form.piece)],
            }),
        };
        Encoded { rows, columns, values }
    }

    /// Encodes whole rows, given as f32, from row `first` on. The values are rotated in place.
    pub fn set(&mut self, form: Form, first: usize, x: &mut [f32]) {
        let (columns, work) = (self.columns, 8 * x.len());
        let block = form.block(columns);
        if block > 1 {
            each_row(x, columns, work, |_, row| rotate(row, block));
        }
        let x = &*x;
        match &mut self.values {
            Values::Bf16(values) => {
                let values = &mut values[first * columns..][..x.len()];
                each_row(values, columns, work, |row, values| {
                    let x = &x[row * columns..][..columns];
                    values.iter_mut().zip(x).for_each(|(to, &x)| *to = bf16::from_f32(x));
                });
            }
            Values::Int8(pieces) => pieces.set(first, x),
        }
    }
}

impl Pieces {
    /// Pieces of a row.
    pub fn count(&self) -> usize {
        self.columns.div_ceil(self.piece)
    }

    /// Columns of a piece; the last may have fewer than the others.
    pub fn width(&self, piece: usize) -> usize {
        self.piece.min(self.columns - piece * self.piece)
    }

    /// Codes of a piece, `[rows][columns of the piece]`.
    pub fn codes(&self, piece: usize) -> &[i8] {
        &self.codes[self.rows * piece * self.piece..][..self.rows * self.width(piece)]
    }

    /// Scales of a piece, `[rows]`.
    pub fn scales(&self, piece: usize) -> &[f32] {
        &self.scales[self.rows * piece..][..self.rows]
    }

    fn set(&mut self, first: usize, x: &[f32]) {
        let columns = self.columns;
        if columns == 0 {
            return;
        }
        for piece in 0..self.count() {
            let (width, start) = (self.width(piece), piece * self.piece);
            let part = |row: usize| &x[row * columns + start..][..width];
            let rows = x.len() / columns;
            let scales = &mut self.scales[self.rows * piece + first..][..rows];
            each_row(scales, 1, rows * width, |row, scale| scale[0] = scale_of(part(row)));
            let scales = &*scales;
            let codes = &mut self.codes[self.rows * start + first * width..][..rows * width];
            each_row(codes, width, 4 * rows * width, |row, codes| {
                encode(part(row), scales[row], codes);
            });
        }
    }
}

/// The scale by which the largest value of a row's piece becomes 127; NaN where one is not finite, so
/// that what is computed from it is not, either.
fn scale_of(x: &[f32]) -> f32 {
    let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let finite = x.iter().all(|x| x.is_finite());
    if finite { largest / 127.0 } else { f32::NAN }
}

/// Codes of values by their scale, to the nearest.
fn encode(x: &[f32], scale: f32, codes: &mut [i8]) {
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    for (code, &x) in codes.iter_mut().zip(x) {
        *code = (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
    }
}

/// Multiplies each block of a row by the Hadamard matrix of its size, scaled to keep lengths.
fn rotate(row: &mut [f32], block: usize) {
    let scale = 1.0 / (block as f32).sqrt();
    for block in row.chunks_exact_mut(block) {
        let mut half = 1;
        while half < block.len() {
            for pair in block.chunks_exact_mut(2 * half) {
                let (left, right) = pair.split_at_mut(half);
                for (left, right) in left.iter_mut().zip(right) {
                    (*left, *right) = (*left + *right, *left - *right);
                }
            }
            half *= 2;
        }
        block.iter_mut().for_each(|x| *x *= scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(piece: usize, rotation: bool) -> Form {
        Form { precision: Precision::Int8Pieces, piece, rotation }
    }

    #[test]
    fn rotations_keep_products_and_are_their_own_inverse() {
        let x: Vec<f32> =
            (0..384).map(|at| (at as f32 * 0.7).sin() * (1 + at % 7) as f32).collect();
        let y: Vec<f32> = (0..384).map(|at| (at as f32 * 1.3).cos()).collect();
        let dot = |x: &[f32], y: &[f32]| -> f64 {
            x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()
        };
        let (mut a, mut b) = (x.clone(), y.clone());
        rotate(&mut a, 128);
        rotate(&mut b, 128);
        assert!((dot(&a, &b) - dot(&x, &y)).abs() < 1e-4);
        assert!(a.iter().zip(&x).any(|(a, x)| (a - x).abs() > 0.1));
        rotate(&mut a, 128);
        assert!(a.iter().zip(&x).all(|(a, x)| (a - x).abs() < 1e-5));
    }

    #[test]
    fn blocks_divide_the_columns() {
        let blocks = [1, 2, 96, 128, 640, 1152].map(|columns| form(512, true).block(columns));
        assert_eq!(blocks, [1, 2, 32, 128, 128, 128]);
        assert_eq!(form(512, false).block(128), 1);
    }

    #[test]
    fn each_piece_of_each_row_has_a_scale() {
        // Two rows of five columns in pieces of two, the second row set by itself.
        let mut encoded = Encoded::new(form(2, false), 2, 5);
        encoded.set(form(2, false), 0, &mut [127.0, -64.0, 0.0, 0.0, 2.0]);
        encoded.set(form(2, false), 1, &mut [1.0, 0.5, -254.0, 2.0, f32::NAN]);
        let Values::Int8(pieces) = &encoded.values else { panic!("int8") };
        assert_eq!((pieces.count(), pieces.width(1), pieces.width(2)), (3, 2, 1));
        assert_eq!(pieces.codes(0), [127, -64, 127, 64]);
        assert_eq!(pieces.codes(1), [0, 0, -127, 1]);
        assert_eq!(pieces.codes(2)[0], 127);
        assert_eq!(pieces.scales(1), [0.0, 2.0]);
        assert!(pieces.scales(2)[1].is_nan());
        assert_eq!(form(2, false).bytes(2, 5), 10 + 2 * 3 * 4);
    }
}
