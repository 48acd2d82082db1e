//! Panels and rows beside their rotation in f64, and products beside sums of integers.

use super::*;
use crate::pack::{PackedMatrix, packed};
use crate::simd::Level;
use crate::skip;
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
    let levels = levels.filter(|level| *level != Level::Reference);
    levels.filter(|level| skip::has(level, level.available()))
}

fn matrix(ty: TensorType, tiles: usize, columns: usize) -> PackedMatrix {
    let mut random = Random(7);
    let bytes = tiles * TILE * ty.row_bytes(columns).unwrap();
    // Scales are finite: the exponent's top bit is cleared wherever it may lie.
    let file: Vec<u8> = (0..bytes).map(|_| random.next() as u8 & 0xbf).collect();
    packed(ty, columns, &file)
}

/// A row times a Hadamard matrix of length one, as many columns at a time as are rotated together in a chunk.
fn rotated(row: &[f32], chunk: usize) -> Vec<f64> {
    let block = rotated_columns(chunk);
    let sign = |a: usize, b: usize| if (a & b).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    let of_block = |values: &[f32]| -> Vec<f64> {
        let sum = |at: usize| -> f64 {
            values.iter().enumerate().map(|(from, &x)| sign(at, from) * f64::from(x)).sum()
        };
        (0..block).map(|at| sum(at) / (block as f64).sqrt()).collect()
    };
    row.chunks_exact(block).flat_map(of_block).collect()
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

/// The panel of a whole tile.
struct TilePanel {
    lines: Vec<PanelLine>,
    chunk: usize,
    zero: u8,
}

impl TilePanel {
    fn lines_of(&self, chunks: Range<usize>) -> &[PanelLine] {
        let each = chunk_bytes(self.chunk) / LINE;
        &self.lines[chunks.start * each..chunks.end * each]
    }

    /// Code and scale of a column of one of the 16 weights.
    fn at(&self, column: usize, lane: usize) -> (i32, f32) {
        let (part, column) = (column / self.chunk, column % self.chunk);
        let lines = self.lines_of(part..part + 1);
        let code = lines[column / 4].0[4 * lane + column % 4];
        let scale = lines[code_bytes(self.chunk) / LINE].0[4 * lane..][..4].try_into().unwrap();
        (i32::from(code.wrapping_sub(self.zero) as i8), f32::from_le_bytes(scale))
    }
}

fn panel_of(
    level: Level,
    matrix: &PackedMatrix,
    tile: usize,
    (chunk, zero): (usize, u8),
) -> TilePanel {
    let chunks = matrix.columns / chunk;
    let mut lines = vec![PanelLine::ZERO; chunks * chunk_bytes(chunk) / LINE];
    let fill = (level.kernels().fill_panel)(matrix.ty).unwrap();
    let mut room = FloatChunk::ZERO;
    // A panel may begin in the middle of a tile, and of a super-block.
    for (index, panel) in lines.chunks_mut(3 * chunk_bytes(chunk) / LINE).enumerate() {
        let source = PanelSource {
            tile: matrix.tile(tile).as_ptr(),
            chunk,
            first: 3 * index,
            chunks: 3.min(chunks - 3 * index),
            zero,
            fault: None,
        };
        // SAFETY: the level is available, and the tile has the chunks.
        unsafe { fill(&source, &mut room, panel.as_mut_ptr().cast()) };
    }
    TilePanel { lines, chunk, zero }
}

#[test]
fn panels_are_rotated_weights() {
    for level in levels() {
        for &ty in TensorType::ALL.iter().filter(|ty| ty.is_quantized()) {
            for (chunk, zero) in [(128, 128), (64, 128), (192, 128), (128, 0)] {
                let matrix = matrix(ty, 1, 1280);
                let panel = panel_of(level, &matrix, 0, (chunk, zero));
                let mut row = vec![0.0; matrix.columns];
                for lane in 0..TILE {
                    matrix.row(lane, &mut row);
                    let found = |column: usize| panel.at(column, lane);
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
        for chunk in [128, 64, 192] {
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

/// A product of some tiles with rows that are not the first, in panels of up to `depth` chunks.
struct Case {
    chunk: usize,
    rows: Range<usize>,
    tiles: usize,
    depth: usize,
}

/// Columns of all cases.
const COLUMNS: usize = 768;
/// Rows between the sums of one tile and those of the next.
const GAP: usize = 3;

impl Case {
    /// Panels of each tile, with codes `zero` higher.
    fn panels(&self, level: Level, zero: u8) -> Vec<TilePanel> {
        let matrix = matrix(TensorType::Q5K, self.tiles, COLUMNS);
        (0..self.tiles).map(|tile| panel_of(level, &matrix, tile, (self.chunk, zero))).collect()
    }

    /// Sums of the rows by a kernel, `[tiles][rows + GAP][16]`; those between were NaN.
    fn sums(
        &self,
        multiply: MultiplyPanels,
        panels: &[TilePanel],
        activations: &RotatedRows,
    ) -> Vec<f32> {
        let stride = self.rows.len() + GAP;
        let mut sums = vec![f32::NAN; self.tiles * stride * TILE];
        let chunks = COLUMNS / self.chunk;
        for first in (0..chunks).step_by(self.depth) {
            let columns = first..chunks.min(first + self.depth);
            let group = panels.iter().flat_map(|panel| panel.lines_of(columns.clone())).copied();
            let lines: Vec<PanelLine> = group.collect();
            let start = lines.as_ptr().cast();
            let depth = columns.len();
            let panel_stride = depth * chunk_bytes(self.chunk);
            // What is asked for ahead changes nothing, whatever it is.
            let next = NextPanels { start, tiles: 3, lines: 7 * first, stride: 100 };
            let panels =
                Panels { start, tiles: self.tiles, stride: panel_stride, first, depth, next };
            let sums = TileSums { start: sums.as_mut_ptr(), stride };
            // SAFETY: the level is available; rows and sums are as many as there are.
            unsafe { multiply(&panels, activations, self.rows.clone(), sums) };
        }
        sums
    }

    /// Asserts that a sum is that of its codes.
    fn assert_sum(&self, sum: f32, panel: &TilePanel, all: &Activations, at: [usize; 2]) {
        let [row, lane] = at;
        let (mut expected, mut magnitude) = (0.0, 0.0);
        for column in 0..COLUMNS {
            let (code, scale) = panel.at(column, lane);
            let (activation, step) = all.at(self.rows.start + row, column);
            let (code, scale) = (f64::from(code), f64::from(step) * f64::from(scale));
            expected += scale * code * f64::from(activation);
            magnitude += (scale * code * f64::from(activation)).abs();
        }
        let off = (f64::from(sum) - expected).abs();
        assert!(off <= 1e-6 * magnitude, "row {row}, lane {lane}: {off}");
    }
}

/// By vectors and by a unit, of whole and ragged strips, pairs of them and of tiles, and what is left over. The
/// order of sums is the same in all.
#[test]
fn products_are_those_of_the_codes() {
    let cases = [
        // Less than a strip, one, and one with a part of another; a tile, pairs, and one more.
        (128, 0..8, 1, 4),
        (64, 0..16, 1, 4),
        (128, 0..21, 2, 4),
        (64, 0..37, 3, 12),
        // Pairs of strips, a strip more, and a part of one more; panels of one chunk, and a last that is shorter.
        (128, 0..32, 2, 1),
        (128, 16..80, 4, 2),
        (128, 32..112, 5, 4),
        (64, 16..111, 4, 5),
        (64, 0..64, 7, 1),
        (192, 0..21, 2, 4),
        (192, 16..80, 5, 1),
        (192, 48..159, 8, 3),
        (128, 48..159, 8, 6),
    ];
    for level in levels() {
        for (chunk, rows, tiles, depth) in cases.clone() {
            let case = Case { chunk, rows, tiles, depth };
            let mut all = Activations::new(level, &random_rows(case.rows.end, COLUMNS), chunk);
            let unit = level.unit_kernels().map(|unit| (unit.multiply_panels, 0));
            let vectors = (level.kernels().multiply_panels, UNSIGNED);
            let mut bits = Vec::new();
            for (multiply, zero) in [Some(vectors), unit].into_iter().flatten() {
                let panels = case.panels(level, zero);
                let activations = all.rows();
                let sums = case.sums(multiply, &panels, &activations);
                let stride = case.rows.len() + GAP;
                for (at, sum) in sums.iter().enumerate() {
                    let (tile, row, lane) = (at / TILE / stride, at / TILE % stride, at % TILE);
                    if row < case.rows.len() {
                        case.assert_sum(*sum, &panels[tile], &all, [row, lane]);
                    } else {
                        assert!(sum.is_nan(), "{level}: a sum of tile {tile} past its rows");
                    }
                }
                bits.push(sums.into_iter().map(f32::to_bits).collect::<Vec<_>>());
            }
            let alike = bits.iter().all(|other| *other == bits[0]);
            assert!(alike, "{level}, rows {:?}, {tiles} tiles, {depth} chunks", case.rows);
        }
    }
}
