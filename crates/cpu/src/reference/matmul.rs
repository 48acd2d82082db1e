use crate::pack::PackedMatrix;
use std::ops::Range;

/// `x . weight^T + bias`, the weight dequantised row by row.
pub(crate) fn matmul(x: &[f32], weight: &PackedMatrix, bias: Option<&[f32]>, out: &mut [f32]) {
    let Sums { outputs: sums, .. } = sums(&Terms::new(x, weight.columns), weight);
    for (row, out) in out.chunks_exact_mut(weight.rows).enumerate() {
        for (output, out) in out.iter_mut().enumerate() {
            let start = bias.map_or(0.0, |bias| f64::from(bias[output]));
            *out = (start + sums[output * (x.len() / weight.columns) + row].product) as f32;
        }
    }
}

/// What the rows of a product's input bring to its sums, `[rows][columns]` each.
pub(crate) struct Terms {
    columns: usize,
    values: Vec<f64>,
    /// Met by the weights' magnitudes; empty where nobody asks for that sum.
    pub magnitudes: Vec<f32>,
    /// Met by the weights' squares; likewise.
    pub squares: Vec<f32>,
}

impl Terms {
    /// Those of the product alone.
    pub fn new(x: &[f32], columns: usize) -> Terms {
        let values = x.iter().map(|&x| f64::from(x)).collect();
        Terms { columns, values, magnitudes: Vec::new(), squares: Vec::new() }
    }

    fn rows(&self) -> usize {
        self.values.len() / self.columns
    }
}

/// Sums over the columns of one row and one weight row.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sum {
    /// `w x`
    pub product: f64,
    /// Squares of what the product came to after every [`PART`] columns.
    pub partial: f64,
    /// `|w| magnitude`
    pub magnitude: f32,
    /// `w^2 square`
    pub square: f32,
}

/// Sums over the weight rows of one column.
#[derive(Clone, Copy, Default)]
pub(crate) struct ColumnSum {
    pub weights: f64,
    pub squares: f64,
}

/// All sums of a product.
pub(crate) struct Sums {
    /// Of every weight row with every row of the input, `[weight rows][rows]`.
    pub outputs: Vec<Sum>,
    /// Of every column; zero where nobody asks for squares.
    pub columns: Vec<ColumnSum>,
}

/// Weight rows that are dequantised together, and columns that they are multiplied in: what is in
/// use at once stays in a core's first cache, and a row of the input is fetched once for all of them.
const WEIGHT_ROWS: usize = 4;
const COLUMNS: usize = 256;

/// Columns after which a product is looked at on its way.
pub(crate) const PART: usize = 64;

/// Products that are worth a thread.
const WORTH_A_THREAD: usize = 1 << 21;

/// Multiplies every weight row with every row.
pub(crate) fn sums(terms: &Terms, weight: &PackedMatrix) -> Sums {
    let work = weight.rows * terms.values.len() / WORTH_A_THREAD + 1;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = work.min(cores);
    let each = weight.rows.div_ceil(threads).next_multiple_of(WEIGHT_ROWS);
    let mut outputs = vec![Sum::default(); weight.rows * terms.rows()];
    let mut columns = vec![ColumnSum::default(); terms.columns];
    std::thread::scope(|scope| {
        let parts = outputs.chunks_mut((each * terms.rows()).max(1)).enumerate();
        let threads: Vec<_> = parts
            .map(|(thread, out)| {
                let rows = thread * each..weight.rows.min((thread + 1) * each);
                scope.spawn(move || sums_of(terms, weight, rows, out))
            })
            .collect();
        for thread in threads {
            let of_thread = thread.join().expect("the thread of a product panicked");
            for (column, sum) in columns.iter_mut().zip(of_thread) {
                column.weights += sum.weights;
                column.squares += sum.squares;
            }
        }
    });
    Sums { outputs, columns }
}

/// [`sums`] of some weight rows.
fn sums_of(
    terms: &Terms,
    weight: &PackedMatrix,
    rows: Range<usize>,
    out: &mut [Sum],
) -> Vec<ColumnSum> {
    let (columns, count) = (terms.columns, terms.rows());
    let mut decoded = vec![0.0; columns];
    let mut values = vec![0.0f64; WEIGHT_ROWS * columns];
    let mut magnitudes = vec![0.0f32; WEIGHT_ROWS * columns];
    let mut squares = vec![0.0f32; WEIGHT_ROWS * columns];
    let mut of_columns = vec![ColumnSum::default(); columns];
    for (group, out) in out.chunks_mut(WEIGHT_ROWS * count).enumerate() {
        let weight_rows = out.len() / count;
        for index in 0..weight_rows {
            weight.row(rows.start + group * WEIGHT_ROWS + index, &mut decoded);
            for (at, &w) in (index * columns..).zip(&decoded) {
                (values[at], magnitudes[at], squares[at]) = (f64::from(w), w.abs(), w * w);
            }
            if !terms.squares.is_empty() {
                for (sum, &w) in of_columns.iter_mut().zip(&decoded) {
                    sum.weights += f64::from(w);
                    sum.squares += f64::from(w) * f64::from(w);
                }
            }
        }
        for start in (0..columns).step_by(COLUMNS) {
            let width = COLUMNS.min(columns - start);
            for (row, index) in (0..count).flat_map(|row| (0..weight_rows).map(move |i| (row, i))) {
                let (x, w) = (row * columns + start, index * columns + start);
                let sum = &mut out[index * count + row];
                let parts = terms.values[x..x + width].chunks(PART);
                for (x, w) in parts.zip(values[w..w + width].chunks(PART)) {
                    sum.product += dot::<f64, 8>(x, w);
                    sum.partial += sum.product * sum.product;
                }
                if !terms.magnitudes.is_empty() {
                    let (x, w) = (x..x + width, w..w + width);
                    let magnitudes = &magnitudes[w.clone()];
                    sum.magnitude += dot::<f32, 16>(&terms.magnitudes[x.clone()], magnitudes);
                    sum.square += dot::<f32, 16>(&terms.squares[x], &squares[w]);
                }
            }
        }
    }
    of_columns
}

/// `sum a b`, with sums side by side for the compiler to fill vectors with.
pub(crate) fn dot<T, const LANES: usize>(a: &[T], b: &[T]) -> T
where
    T: Copy + Default + std::ops::AddAssign + std::ops::Mul<Output = T>,
{
    let mut lanes = [T::default(); LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    for (lane, (&a, &b)) in a_rest.iter().zip(b_rest).enumerate() {
        lanes[lane] += a * b;
    }
    let mut sum = T::default();
    lanes.into_iter().for_each(|lane| sum += lane);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::packed;
    use pianola_formats::TensorType;

    /// A matrix whose weights are not all alike, and rows to multiply it with.
    fn product(
        ty: TensorType,
        weight_rows: usize,
        columns: usize,
        rows: usize,
    ) -> (PackedMatrix, Terms) {
        let bytes = ty.row_bytes(columns).unwrap();
        let byte = |at: usize| (at * 37 + at / 7) as u8 & 0x3f;
        let file: Vec<u8> = (0..weight_rows * bytes).map(byte).collect();
        let x: Vec<f32> = (0..rows * columns).map(|at| (at as f32 * 0.7).sin()).collect();
        let mut terms = Terms::new(&x, columns);
        terms.magnitudes = x.iter().map(|x| x.abs()).collect();
        terms.squares = x.iter().map(|x| x * x).collect();
        (packed(ty, columns, &file), terms)
    }

    /// Widths, rows and weight rows that no chunk divides; enough of them for several threads.
    #[test]
    fn sums_are_those_of_a_plain_loop() {
        let close = |a: f64, b: f64, within: f64| (a - b).abs() <= within * b.abs();
        for (weight_rows, columns, rows) in [(1, 7, 1), (6, 300, 3), (1027, 1031, 5)] {
            let (matrix, terms) = product(TensorType::F16, weight_rows, columns, rows);
            let sums = sums(&terms, &matrix);
            let mut weights = vec![0.0; columns];
            let mut of_columns = vec![ColumnSum::default(); columns];
            for output in 0..weight_rows {
                matrix.row(output, &mut weights);
                for (sum, &w) in of_columns.iter_mut().zip(&weights) {
                    sum.weights += f64::from(w);
                    sum.squares += f64::from(w).powi(2);
                }
                for row in 0..rows {
                    let x = &terms.values[row * columns..][..columns];
                    let terms = || x.iter().zip(&weights).map(|(x, &w)| x * f64::from(w));
                    let sum = sums.outputs[output * rows + row];
                    let magnitude: f64 = terms().map(f64::abs).sum();
                    assert!((sum.product - terms().sum::<f64>()).abs() <= 1e-12 * magnitude);
                    assert!(close(f64::from(sum.magnitude), magnitude, 1e-5));
                    let squares = terms().map(|term| term * term).sum();
                    assert!(close(f64::from(sum.square), squares, 1e-5));
                }
            }
            for (sum, expected) in sums.columns.iter().zip(&of_columns) {
                assert!((sum.weights - expected.weights).abs() <= 1e-9 * expected.squares.sqrt());
                assert!(close(sum.squares, expected.squares, 1e-9));
            }
        }
    }
}
