//! Products of f32 rows with tiles in the type of the file, a few rows at a time: weights become f32 in
//! registers and are read from memory once.
//!
//! A row's sum goes through the columns in order, whatever stands beside it, so that results have the
//! same bits as those of [`super::product::float_rows`]. One such sum waits for each of its additions;
//! where rows are too few to fill that time, two tiles are computed side by side.

use super::lanes::Lanes;
use super::product::{COLUMNS, Element, FloatRows, GROUPS, HALVES, each_below, in_runs, weight};
use super::tile::{Codes, Scales, Walk};
use crate::pack::{BLOCK, LINE, TILE};

/// Distance of the prefetch ahead of the weights in use, in bytes: tiles side by side are streams
/// that the hardware's prefetcher follows badly.
const AHEAD: usize = 4 << 10;

/// Tiles of a matrix that follow one another.
#[derive(Clone, Copy)]
pub(crate) struct Tiles {
    pub start: *const u8,
    /// Bytes of a tile.
    pub bytes: usize,
    /// Bytes from the start of a tile to that of the next.
    pub stride: usize,
    /// One or two.
    pub count: usize,
    pub columns: usize,
}

/// Most tiles of a call.
pub(crate) const TILES_AT_ONCE: usize = 2;

impl Tiles {
    /// Byte `at` of tile `tile`.
    #[inline(always)]
    unsafe fn at(&self, tile: usize, at: usize) -> *const u8 {
        // SAFETY: the caller's tile and byte are there.
        unsafe { self.start.add(tile * self.stride + at) }
    }

    /// One of them by itself.
    #[inline(always)]
    fn only(&self, tile: usize) -> Tiles {
        Tiles { start: self.start.wrapping_add(tile * self.stride), count: 1, ..*self }
    }

    /// A column of `N` tiles of plain floats.
    #[inline(always)]
    unsafe fn column<L: Lanes, T: Element, const N: usize>(&self, column: usize) -> [L::F; N] {
        // SAFETY: the caller's column is there.
        unsafe {
            let at = column * TILE * size_of::<T>();
            let mut lanes = [T::load::<L>(self.at(0, at).cast()); N];
            for (tile, lanes) in lanes.iter_mut().enumerate().skip(1) {
                *lanes = T::load::<L>(self.at(tile, at).cast());
            }
            lanes
        }
    }

    /// Asks for `lines` cache lines that a walk over `N` tiles side by side reads [`AHEAD`] bytes after
    /// byte `at` of each.
    #[inline(always)]
    unsafe fn prefetch<L: Lanes, const N: usize>(&self, at: usize, lines: usize) {
        let ahead = at + AHEAD;
        // Behind its end a tile is followed by one of the next `N`, or by one of another matrix,
        // which comes next.
        let inside = ahead < self.bytes || self.stride > self.bytes;
        let skipped = if inside { 0 } else { (N - 1) * self.bytes };
        for tile in 0..N {
            let start = self.start.wrapping_add(tile * self.stride + skipped + ahead);
            for line in 0..lines {
                // SAFETY: a prefetch reads nothing.
                unsafe { L::prefetch(start.wrapping_add(line * LINE)) };
            }
        }
    }
}

/// The first of `R` rows of activations, `stride` apart.
#[derive(Clone, Copy)]
struct Left {
    start: *const f32,
    stride: usize,
}

impl Left {
    #[inline(always)]
    unsafe fn from(activations: &FloatRows, row: usize) -> Left {
        // SAFETY: the caller's row exists.
        let start = unsafe { activations.values.add(row * activations.stride) };
        Left { start, stride: activations.stride }
    }
}

/// Adds a column of `N` tiles, times the activations of `R` rows, to their sums.
#[inline(always)]
unsafe fn add_column<L: Lanes, const R: usize, const N: usize>(
    sums: &mut [[L::F; N]; R],
    left: Left,
    column: usize,
    right: [L::F; N],
) {
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's rows have the column.
        unsafe {
            let left = L::splat(*left.start.add(row * left.stride + column));
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = L::fma(left, right, *sum);
            }
        }
    }
}

/// Puts sums to `out[tile][rows][16]`, beginning with the first of these rows.
#[inline(always)]
unsafe fn put_sums<L: Lanes, const R: usize, const N: usize>(
    sums: [[L::F; N]; R],
    rows: usize,
    out: *mut f32,
) {
    for (row, sums) in sums.into_iter().enumerate() {
        for (tile, sum) in sums.into_iter().enumerate() {
            // SAFETY: the caller has room for `rows` rows of each tile.
            unsafe { L::store(out.add((tile * rows + row) * TILE), sum) };
        }
    }
}

/// `R` rows by `N` tiles of plain floats.
///
/// # Safety
/// Of [`float_tiles`], for these rows and tiles.
#[inline(always)]
unsafe fn floats<L: Lanes, T: Element, const R: usize, const N: usize>(
    tiles: &Tiles,
    left: Left,
    fresh: bool,
) -> [[L::F; N]; R] {
    /// Columns between prefetches.
    const STEP: usize = 4;
    let column_bytes = TILE * size_of::<T>();
    // SAFETY: by this function's promise.
    unsafe {
        let mut sums = [[L::splat(0.0); N]; R];
        let whole = tiles.columns / STEP * STEP;
        for first in (0..whole).step_by(STEP) {
            if fresh {
                tiles.prefetch::<L, N>(first * column_bytes, STEP * column_bytes / LINE);
            }
            for column in first..first + STEP {
                let right = tiles.column::<L, T, N>(column);
                add_column::<L, R, N>(&mut sums, left, column, right);
            }
        }
        for column in whole..tiles.columns {
            let right = tiles.column::<L, T, N>(column);
            add_column::<L, R, N>(&mut sums, left, column, right);
        }
        sums
    }
}

/// One row by `N` tiles of a quantised type.
///
/// # Safety
/// Of [`quantized_tiles`], for these tiles.
#[expect(clippy::needless_range_loop, reason = "a group is an index of several arrays")]
#[inline(always)]
unsafe fn blocks<L: Lanes, C: Codes, S: Scales, const ZERO: i32, const N: usize>(
    tiles: &Tiles,
    left: Left,
) -> [[L::F; N]; 1] {
    // SAFETY: by this function's promise.
    unsafe {
        let count = tiles.columns / BLOCK;
        let lines = (C::BYTES + S::OWN).div_ceil(LINE);
        let mut sums = [[L::splat(0.0); N]; 1];
        let mut walk = Walk::new();
        let mut shared = [[L::splat(0.0); 2]; N];
        for block in 0..count {
            tiles.prefetch::<L, N>(block * lines * LINE, lines);
            let place = walk.step::<C, S>();
            if let Some(at) = place.shared {
                for (tile, shared) in shared.iter_mut().enumerate() {
                    *shared = S::shared::<L>(tiles.at(tile, at));
                }
            }
            let mut codes = [C::load::<L>(tiles.at(0, place.codes)); N];
            let mut scales = [S::all::<L>(tiles.at(0, place.own), shared[0]); N];
            for tile in 1..N {
                codes[tile] = C::load::<L>(tiles.at(tile, place.codes));
                scales[tile] = S::all::<L>(tiles.at(tile, place.own), shared[tile]);
            }
            // Halves are written out, since their scales may differ; groups are not, since that takes the
            // compiler minutes for a tenth of the speed.
            each_below!(HALVES, half, {
                for group in half * GROUPS / HALVES..(half + 1) * GROUPS / HALVES {
                    let first = block * BLOCK + group * COLUMNS;
                    each_below!(COLUMNS, column, {
                        let (bytes, scale) = (codes[0][group], scales[0]);
                        let mut right = [weight::<L, S, ZERO>(bytes, scale, half, column); N];
                        for tile in 1..N {
                            let (bytes, scale) = (codes[tile][group], scales[tile]);
                            right[tile] = weight::<L, S, ZERO>(bytes, scale, half, column);
                        }
                        add_column::<L, 1, N>(&mut sums, left, first + column, right);
                    });
                }
            });
        }
        sums
    }
}

/// `out[tile][row][lane] = row lane of the tile . activation row first + row` for tiles of plain floats.
///
/// # Safety
/// The tiles are whole and of type `T`; the rows exist; `out` has room for `rows * 16` of each tile.
#[inline(always)]
pub(crate) unsafe fn float_tiles<L: Lanes, T: Element>(
    tiles: &Tiles,
    activations: &FloatRows,
    first: usize,
    rows: usize,
    out: *mut f32,
) {
    in_runs!(rows, row, COUNT, [8 4 2 1], {
        // SAFETY: by this function's promise, for some of its rows.
        unsafe {
            let left = Left::from(activations, first + row);
            let (out, fresh) = (out.add(row * TILE), row == 0);
            if COUNT <= 2 && tiles.count == 2 {
                put_sums::<L, COUNT, 2>(floats::<L, T, COUNT, 2>(tiles, left, fresh), rows, out);
            } else {
                for tile in 0..tiles.count {
                    let (tiles, out) = (tiles.only(tile), out.add(tile * rows * TILE));
                    put_sums::<L, COUNT, 1>(floats::<L, T, COUNT, 1>(&tiles, left, fresh), rows, out);
                }
            }
        }
    });
}

/// The same for tiles of a quantised type, which are taken apart anew for each row.
///
/// # Safety
/// The tiles are whole and of the type that `C`, `S` and `ZERO` name; the rows exist; `out` has room for
/// `rows * 16` of each tile.
#[inline(always)]
pub(crate) unsafe fn quantized_tiles<L: Lanes, C: Codes, S: Scales, const ZERO: i32>(
    tiles: &Tiles,
    activations: &FloatRows,
    first: usize,
    rows: usize,
    out: *mut f32,
) {
    for row in 0..rows {
        // SAFETY: by this function's promise.
        unsafe {
            let (left, out) = (Left::from(activations, first + row), out.add(row * TILE));
            if tiles.count == 2 {
                put_sums::<L, 1, 2>(blocks::<L, C, S, ZERO, 2>(tiles, left), rows, out);
            } else {
                put_sums::<L, 1, 1>(blocks::<L, C, S, ZERO, 1>(tiles, left), rows, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::packed;
    use crate::simd::Level;
    use crate::skip;
    use pianola_formats::{TensorType, quantize_row};

    /// Values of a fixed sequence, of either sign.
    fn values(count: usize) -> Vec<f32> {
        (0..count).map(|at| ((at * at * 37 + 11 * at) % 10_007) as f32 / 5_003.5 - 1.0).collect()
    }

    /// A row's bits depend on nothing but the row: the same from tiles and from panels, alone and beside
    /// others, from one tile and from two.
    #[test]
    fn tiles_give_the_bits_of_panels() {
        const ROWS: usize = 15;
        for level in Level::ALL.into_iter().filter(|level| skip::has(level, level.available())) {
            let kernels = level.kernels();
            for &ty in TensorType::ALL {
                // Rows of floats need not be whole blocks, nor whole steps between prefetches.
                let columns = if ty.is_quantized() { 512 } else { 331 };
                let mut file = vec![0; ty.row_bytes(2 * TILE * columns).unwrap()];
                quantize_row(ty, &values(2 * TILE * columns), &mut file);
                let matrix = packed(ty, columns, &file);
                let x = values(ROWS * columns);
                let activations = FloatRows { values: x.as_ptr(), stride: columns };
                let mut expected = vec![[[0.0; TILE]; ROWS]; 2];
                let mut panel = vec![0.0; columns * TILE];
                for (tile, expected) in expected.iter_mut().enumerate() {
                    let (bytes, out) = (matrix.tile(tile).as_ptr(), expected.as_flattened_mut());
                    // SAFETY: the panel has room for a tile, `out` for all rows; the level is available.
                    unsafe {
                        (kernels.dequantize)(ty)(bytes, columns, panel.as_mut_ptr());
                        let (panel, out) = (panel.as_ptr(), out.as_mut_ptr());
                        (kernels.float_rows)(panel, columns, &activations, 0, ROWS, out);
                    }
                }
                for (count, rows) in [(2, ROWS), (1, ROWS), (2, 1), (1, 1), (2, 2), (2, 8)] {
                    let (start, bytes) = (matrix.tile(0).as_ptr(), matrix.tile_bytes);
                    let tiles = Tiles { start, bytes, stride: bytes, count, columns };
                    let mut found = vec![[f32::NAN; TILE]; count * rows];
                    let out = found.as_flattened_mut().as_mut_ptr();
                    // SAFETY: `out` has room for the rows of each tile; the level is available.
                    unsafe { (kernels.direct)(ty)(&tiles, &activations, 0, rows, out) };
                    for (tile, found) in found.chunks_exact(rows).enumerate() {
                        assert!(found == &expected[tile][..rows], "{ty} on {level}, {rows} rows");
                    }
                }
            }
        }
    }
}
