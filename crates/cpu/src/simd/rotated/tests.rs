//! Panels and rows beside their rotation in f64, and products beside sums of integers.

use super::*;
use crate::pack::{PackedMatrix, packed};
use crate::simd::Level;
use pianola_formats::TensorType;

/// Numbers of a fixed sequence.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }
}

fn levels() -> impl Iterator<Item = Level> {
    let levels = Level::ALL.into_iter().chain([Level::EmulatedUnit]);
    levels.filter(|level| level.available() && *level != Level::Reference)
}

fn matrix(ty: TensorType, columns: usize) -> PackedMatrix {
    let mut random = Random(7);
    let bytes = TILE * ty.row_bytes(columns).unwrap();
    // Scales are finite: the exponent's top bit is cleared wherever it may lie.
    let file: Vec<u8> = (0..bytes).map(|_| random.next() as u8 & 0xbf).collect();
    packed(ty, columns, &file)
}

/// A row times a Hadamard matrix of length one, chunk by chunk.
fn rotated(row: &[f32], chunk: usize) -> Vec<f64> {
    let sign = |a: usize, b: usize| if (a & b).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    let of_chunk = |values: &[f32]| -> Vec<f64> {
        let sum = |at: usize| -> f64 {
            values.iter().enumerate().map(|(from, &x)| sign(at, from) * f64::from(x)).sum()
        };
        (0..chunk).map(|at| sum(at) / (chunk as f64).sqrt()).collect()
    };
    row.chunks_exact(chunk).flat_map(of_chunk).collect()
}

/// Asserts that `codes` times a step for each chunk are `expected`, but for the rounding.
fn assert_rounded(expected: &[f64], chunk: usize, found: impl Fn(usize) -> (i32, f32), what: &str) {
    for (index, expected) in expected.chunks_exact(chunk).enumerate() {
        let largest = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        for (column, expected) in expected.iter().enumerate() {
            let (code, step) = found(index * chunk + column);
            let off = (expected - f64::from(code) * f64::from(step)).abs();
            let step_off = (f64::from(step) - largest / 127.0).abs();
            assert!(step_off <= 1e-5 * largest / 127.0, "{what}: step of chunk {index}");
            assert!(off <= 0.502 * largest / 127.0, "{what}: chunk {index}, column {column}");
        }
    }
}

fn panel_of(level: Level, matrix: &PackedMatrix, chunk: usize, zero: u8) -> Vec<PanelChunk> {
    let mut panel = vec![PanelChunk::ZERO; matrix.columns / chunk];
    let fill = (level.kernels().fill_panel)(matrix.ty).unwrap();
    let mut room = FloatChunk::ZERO;
    // A panel may begin in the middle of a tile, and of a super-block.
    for (index, panel) in panel.chunks_mut(3).enumerate() {
        let source = PanelSource {
            tile: matrix.tile(0).as_ptr(),
            chunk,
            first: 3 * index,
            zero,
            #[cfg(feature = "test-hooks")]
            fault: None,
        };
        // SAFETY: the level is available, and the tile has the chunks.
        unsafe { fill(&source, &mut room, panel) };
    }
    panel
}

#[test]
fn panels_are_rotated_weights() {
    for level in levels() {
        for &ty in TensorType::ALL.iter().filter(|ty| ty.is_quantized()) {
            for (chunk, zero) in [(128, 128), (64, 128), (128, 0)] {
                let matrix = matrix(ty, 1280);
                let panel = panel_of(level, &matrix, chunk, zero);
                let mut row = vec![0.0; matrix.columns];
                for lane in 0..TILE {
                    matrix.row(lane, &mut row);
                    let found = |column: usize| {
                        let (part, column) = (&panel[column / chunk], column % chunk);
                        let code = part.codes[4 * TILE * (column / 4) + 4 * lane + column % 4];
                        (i32::from(code.wrapping_sub(zero) as i8), part.scales[lane])
                    };
                    let what = format!("{ty} on {level}, row {lane}");
                    assert_rounded(&rotated(&row, chunk), chunk, found, &what);
                }
            }
        }
    }
}

/// Rotated rows with room for a few more.
struct Activations {
    codes: Vec<i8>,
    metas: Vec<ChunkMeta>,
    capacity: usize,
    chunk: usize,
}

impl Activations {
    fn new(level: Level, rows: &[Vec<f32>], chunk: usize) -> Activations {
        let capacity = rows.len().next_multiple_of(16) + 16;
        let chunks = rows[0].len() / chunk;
        let none = ChunkMeta { step: f32::NAN, offset: 0 };
        let (codes, metas) = (vec![0; chunks * capacity * chunk], vec![none; chunks * capacity]);
        let mut all = Activations { codes, metas, capacity, chunk };
        for (index, row) in rows.iter().enumerate() {
            let room = all.rows();
            // SAFETY: the level is available, and there is room for the row.
            unsafe { (level.kernels().rotate_row)(row.as_ptr(), row.len(), &room, index) };
        }
        all
    }

    fn rows(&mut self) -> RotatedRows {
        RotatedRows {
            codes: self.codes.as_mut_ptr(),
            metas: self.metas.as_mut_ptr(),
            capacity: self.capacity,
            chunk: self.chunk,
        }
    }

    /// Code and step of a row's column.
    fn at(&self, row: usize, column: usize) -> (i32, f32) {
        let at = column / self.chunk * self.capacity + row;
        let code = self.codes[at * self.chunk + column % self.chunk];
        (i32::from(code), self.metas[at].step)
    }
}

fn random_rows(rows: usize, columns: usize) -> Vec<Vec<f32>> {
    let mut random = Random(rows as u64);
    let mut row = || -> Vec<f32> {
        let mut row: Vec<f32> = (0..columns).map(|_| random.next() as f32 * 1e-9 - 1.0).collect();
        // One that is far larger than the others.
        row[columns / 3] = 77.0;
        row
    };
    (0..rows).map(|_| row()).collect()
}

#[test]
fn rows_are_rotated_and_their_sums_are_known() {
    for level in levels() {
        for chunk in [128, 64] {
            let rows = random_rows(3, 640);
            let all = Activations::new(level, &rows, chunk);
            for (index, row) in rows.iter().enumerate() {
                let what = format!("{level}, row {index}");
                let found = |column: usize| all.at(index, column);
                assert_rounded(&rotated(row, chunk), chunk, found, &what);
                for part in 0..640 / chunk {
                    let sum: i32 = (0..chunk).map(|at| found(part * chunk + at).0).sum();
                    assert_eq!(all.metas[part * all.capacity + index].offset, -128 * sum);
                }
            }
        }
    }
}

/// What is no number stays none, in its own row.
#[test]
fn a_row_with_nan_has_steps_of_nan() {
    for level in levels() {
        for value in [f32::NAN, f32::INFINITY] {
            let mut rows = random_rows(2, 256);
            rows[1][130] = value;
            let all = Activations::new(level, &rows, 128);
            let steps = [(0, 0), (0, 200), (1, 0), (1, 200)].map(|(row, at)| all.at(row, at).1);
            assert_eq!(steps.map(f32::is_finite), [true, true, true, false], "{level}");
        }
    }
}

/// By vectors and by a unit, whole and in two panels; the order of sums is the same in all.
#[test]
fn products_are_those_of_the_codes() {
    for level in levels() {
        for (chunk, rows) in [(128, 21), (64, 16), (128, 8), (64, 37)] {
            let matrix = matrix(TensorType::Q5K, 768);
            let mut all = Activations::new(level, &random_rows(rows, 768), chunk);
            let unit = level.unit_kernels().map(|unit| (unit.multiply_panel, 0));
            let vectors = (level.kernels().multiply_panel, UNSIGNED);
            let mut bits = Vec::new();
            for (multiply, zero) in [Some(vectors), unit].into_iter().flatten() {
                let panel = panel_of(level, &matrix, chunk, zero);
                let mut sums = vec![f32::NAN; rows * TILE];
                for (index, panel) in panel.chunks(4).enumerate() {
                    let activations = all.rows();
                    // SAFETY: the level is available; rows and sums are as many as there are.
                    unsafe {
                        multiply(panel, 4 * index, &activations, 0..rows, sums.as_mut_ptr());
                    }
                }
                for (at, sum) in sums.iter().enumerate() {
                    let (row, lane) = (at / TILE, at % TILE);
                    let mut expected = 0.0;
                    let mut magnitude = 0.0;
                    for column in 0..768 {
                        let (part, column_at) = (&panel[column / chunk], column % chunk);
                        let code = part.codes[64 * (column_at / 4) + 4 * lane + column_at % 4];
                        let code = f64::from(code.wrapping_sub(zero) as i8);
                        let (activation, step) = all.at(row, column);
                        let scale = f64::from(step) * f64::from(part.scales[lane]);
                        expected += scale * code * f64::from(activation);
                        magnitude += (scale * code * f64::from(activation)).abs();
                    }
                    let off = (f64::from(*sum) - expected).abs();
                    assert!(off <= 1e-6 * magnitude, "{level}, row {row}, lane {lane}: {off}");
                }
                bits.push(sums.into_iter().map(f32::to_bits).collect::<Vec<_>>());
            }
            assert!(bits.iter().all(|other| *other == bits[0]), "{level}, {rows} rows");
        }
    }
}
