//! Products of rotated rows, for many of them: a scale for 128 columns in place of 32.
//!
//! ```text
//! tile, 128 columns ──fill──► panel: rotated, int8, a scale for each of 16 weights ─┐
//!                                                                                 ├─ multiply ──► sums
//! row ──rotate_row──► rotated, int8, a step for each 128 columns ───────────────────┘
//! ```
//!
//! Both sides are multiplied by the same Hadamard matrix, a chunk of columns at a time, which changes no
//! product but spreads large values over their chunk: one scale for 128 columns is then as good as one
//! for 32. Of widths that 128 does not divide 64 columns are rotated together, and three times as many share a scale
//! where that divides the width. A panel is made once for all rows of a step and thrown away, or once at load and kept (`kept.rs`):
//! it has the same bytes.

mod multiply;

pub(crate) use multiply::multiply;

use super::lanes::Lanes;
use super::product::each_below;
use super::tile::{Codes, Scales, Walk};
use crate::pack::{BLOCK, LINE, TILE};
use std::ops::Range;

/// Columns of a chunk, which share a scale: those of most widths.
pub(crate) const CHUNK: usize = 128;
/// Columns that are rotated together where [`CHUNK`] does not divide a width, and chunks of them.
pub(crate) const SMALL_BLOCK: usize = CHUNK / 2;
pub(crate) const THREE_BLOCKS: usize = 3 * SMALL_BLOCK;
/// Most columns of a chunk.
pub(crate) const MOST_COLUMNS: usize = THREE_BLOCKS;

/// Columns of a chunk of rows with `columns` columns; none where these cannot be rotated.
pub(crate) fn chunk_columns(columns: usize) -> Option<usize> {
    [CHUNK, THREE_BLOCKS, SMALL_BLOCK].into_iter().find(|&chunk| columns.is_multiple_of(chunk))
}

/// Columns of a chunk that are rotated together.
pub(crate) fn rotated_columns(chunk: usize) -> usize {
    if chunk == CHUNK { CHUNK } else { SMALL_BLOCK }
}

/// Bytes of the codes of a chunk of 16 rotated weights: `[columns / 4][16][4]`, as a dot product takes them.
pub(crate) const fn code_bytes(chunk: usize) -> usize {
    chunk * TILE
}

/// Bytes of a chunk of 16 rotated weights: the codes, then 16 scales (f32). Whole cache lines.
pub(crate) const fn chunk_bytes(chunk: usize) -> usize {
    code_bytes(chunk) + 4 * TILE
}

/// A cache line of a panel, for memory that panels lie in.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct PanelLine(pub [u8; LINE]);

impl PanelLine {
    pub const ZERO: PanelLine = PanelLine([0; LINE]);
}

/// A chunk in f32, on its way to a panel.
#[repr(C, align(64))]
pub(crate) struct FloatChunk([f32; MOST_COLUMNS * TILE]);

impl FloatChunk {
    pub const ZERO: FloatChunk = FloatChunk([0.0; MOST_COLUMNS * TILE]);
}

/// What is known of a chunk of an int8 row.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ChunkMeta {
    /// Value of one step.
    pub step: f32,
    /// What the products with codes that are [`UNSIGNED`] higher than the weights' are too large by,
    /// negative.
    pub offset: i32,
}

/// What is added to weights' codes where a dot product takes unsigned ones.
pub(crate) const UNSIGNED: u8 = 128;

/// Rotated rows of activations.
#[derive(Clone, Copy)]
pub(crate) struct RotatedRows {
    /// `[chunks][capacity][chunk]`
    pub codes: *mut i8,
    /// `[chunks][capacity]`
    pub metas: *mut ChunkMeta,
    /// Rows that there is room for.
    pub capacity: usize,
    /// Columns of a chunk.
    pub chunk: usize,
}

/// What a panel is made of.
#[derive(Clone, Copy)]
pub(crate) struct PanelSource {
    pub tile: *const u8,
    /// Columns of a chunk.
    pub chunk: usize,
    /// Chunks of the tile that become the panel: the first, and how many.
    pub first: usize,
    pub chunks: usize,
    /// What is added to codes: [`UNSIGNED`] or 0.
    pub zero: u8,
    /// Planted in the block in the middle, of as many as are given.
    #[cfg(any(test, feature = "test-hooks"))]
    pub fault: Option<(pianola_plan::Fault, usize)>,
}

/// Panels of tiles that follow one another, of the same columns.
#[derive(Clone, Copy)]
pub(crate) struct Panels {
    /// The first tile's: chunks one behind another, [`chunk_bytes`] each.
    pub start: *const u8,
    pub tiles: usize,
    /// Bytes from one tile's to the next's.
    pub stride: usize,
    /// The first chunk of each tile, and how many.
    pub first: usize,
    pub depth: usize,
    pub next: NextPanels,
}

/// Panels that are read after some others, which a kernel asks for while it multiplies those.
#[derive(Clone, Copy)]
pub(crate) struct NextPanels {
    pub start: *const u8,
    pub tiles: usize,
    /// Cache lines of each tile's.
    pub lines: usize,
    /// Bytes from one tile's to the next's.
    pub stride: usize,
}

impl NextPanels {
    pub const NONE: NextPanels =
        NextPanels { start: std::ptr::null(), tiles: 0, lines: 0, stride: 0 };

    /// Line `index` of all.
    #[inline(always)]
    pub fn line(&self, index: usize) -> *const u8 {
        let (tile, line) = (index / self.lines.max(1), index % self.lines.max(1));
        self.start.wrapping_add(tile * self.stride + line * LINE)
    }
}

/// Sums of tiles with rows: `[tiles][stride][16]`, of which the first are those of the rows.
#[derive(Clone, Copy)]
pub(crate) struct TileSums {
    pub start: *mut f32,
    pub stride: usize,
}

/// `(source, room, panel)`: the panel has room for the source's chunks, in whole cache lines.
pub(crate) type FillPanel = unsafe fn(&PanelSource, &mut FloatChunk, *mut u8);
/// `(panels, activations, rows, sums)`: adds to the sums, which start at 0 with chunk 0.
pub(crate) type MultiplyPanels = unsafe fn(&Panels, &RotatedRows, Range<usize>, TileSums);

/// Signs of four columns in the four sums of a Hadamard matrix.
const SIGNS: [i32; 4] = [
    i32::from_le_bytes([1, 1, 1, 1]),
    i32::from_le_bytes([1, 0xff, 1, 0xff]),
    i32::from_le_bytes([1, 1, 0xff, 0xff]),
    i32::from_le_bytes([1, 0xff, 0xff, 1]),
];

/// Columns that are rotated as integers: all that share a scale in every type.
const HALF: usize = BLOCK / 2;

/// See [`FillPanel`].
///
/// # Safety
/// The source's tile is of the type that `C`, `S` and `ZERO` name and has the source's chunks, `panel` room for
/// them.
#[inline(always)]
pub(crate) unsafe fn fill<L: Lanes, C: Codes, S: Scales, const ZERO: i32>(
    source: &PanelSource,
    room: &mut FloatChunk,
    panel: *mut u8,
) {
    // SAFETY: by this function's promise.
    unsafe {
        const SMALL: usize = SMALL_BLOCK / HALF;
        match source.chunk {
            CHUNK => fill_chunks::<L, C, S, ZERO, { CHUNK / HALF }, 1>(source, room, panel),
            THREE_BLOCKS => fill_chunks::<L, C, S, ZERO, SMALL, 3>(source, room, panel),
            _ => fill_chunks::<L, C, S, ZERO, SMALL, 1>(source, room, panel),
        }
    }
}

/// [`fill`] for chunks of `PARTS` times `HALVES` half-blocks, which are rotated together.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn fill_chunks<
    L: Lanes,
    C: Codes,
    S: Scales,
    const ZERO: i32,
    const HALVES: usize,
    const PARTS: usize,
>(
    source: &PanelSource,
    room: &mut FloatChunk,
    panel: *mut u8,
) {
    // SAFETY: by this function's promise; a chunk's values fill no more than the room.
    unsafe {
        let (blocks, columns) = (PARTS * HALVES / 2, PARTS * HALVES * HALF);
        let tile = source.tile;
        let (mut walk, at) = Walk::from::<C, S>(source.first * blocks);
        let mut shared = S::shared::<L>(tile.add(at));
        let room = room.0.as_mut_ptr();
        for index in 0..source.chunks {
            let codes_at = panel.add(index * chunk_bytes(columns));
            let scales_at = codes_at.add(code_bytes(columns)).cast::<f32>();
            for block in 0..blocks {
                let place = walk.step::<C, S>();
                if let Some(at) = place.shared {
                    shared = S::shared::<L>(tile.add(at));
                }
                let [a, b, c, d, e, f, g, h] = C::load::<L>(tile.add(place.codes));
                let scales = S::all::<L>(tile.add(place.own), shared);
                #[cfg(any(test, feature = "test-hooks"))]
                let scales = spoil::<L>(source, (source.first + index) * blocks + block, scales);
                let [low, high, min] = scales;
                let out = room.add(block * BLOCK * TILE);
                rotate_half::<L, S, ZERO>([a, b, c, d], low, min, out);
                rotate_half::<L, S, ZERO>([e, f, g, h], high, min, out.add(HALF * TILE));
            }
            // Below this the inverse would overflow; such weights are rounded to zero.
            let mut largest = L::splat(1e-30);
            for part in 0..PARTS {
                let part = room.add(part * HALVES * HALF * TILE);
                largest = L::max(largest, rotate_across::<L, HALVES>(part));
            }
            let inverse = L::div(L::splat(127.0), largest);
            // A Hadamard matrix of sums and differences is longer than one by its root.
            let length = 1.0 / (127.0 * ((HALVES * HALF) as f32).sqrt());
            L::store(scales_at, L::mul(largest, L::splat(length)));
            // From 2^23 on, the lowest bits of an f32 are those of a whole number.
            const WHOLE: f32 = 12_582_912.0;
            let whole = L::splat(WHOLE + f32::from(source.zero));
            for group in 0..columns / 4 {
                let from = room.add(4 * TILE * group);
                let code = |column: usize| L::fma(L::load(from.add(column * TILE)), inverse, whole);
                let codes = L::low_bytes([code(0), code(1), code(2), code(3)]);
                L::store_bytes(codes_at.add(4 * TILE * group), codes);
            }
        }
    }
}

/// Rotates the 16 columns of a half-block: four by dot products with signs, then these by sums of
/// integers, which are exact.
///
/// # Safety
/// `out` has room for 16 vectors.
#[inline(always)]
unsafe fn rotate_half<L: Lanes, S: Scales, const ZERO: i32>(
    codes: [L::B; 4],
    scale: L::F,
    min: L::F,
    out: *mut f32,
) {
    const COUNT: usize = 4;
    // SAFETY: by this function's promise.
    unsafe {
        each_below!(COUNT, sum, {
            // Zero points are in the sum that has all columns with the same sign, and cancel in others.
            let zero = L::splat_i32(if sum == 0 { -4 * ZERO } else { 0 });
            let dot = |group: usize| L::dot(zero, codes[group], SIGNS[sum]);
            let (a, b, c, d) = (dot(0), dot(1), dot(2), dot(3));
            let (a, b, c, d) =
                (L::add_i32(a, b), L::sub_i32(a, b), L::add_i32(c, d), L::sub_i32(c, d));
            let mut first = L::mul(L::to_f32(L::add_i32(a, c)), scale);
            if S::MINS && sum == 0 {
                first = L::fma(min, L::splat(HALF as f32), first);
            }
            let out = out.add(sum * TILE);
            L::store(out, first);
            L::store(out.add(4 * TILE), L::mul(L::to_f32(L::add_i32(b, d)), scale));
            L::store(out.add(8 * TILE), L::mul(L::to_f32(L::sub_i32(a, c)), scale));
            L::store(out.add(12 * TILE), L::mul(L::to_f32(L::sub_i32(b, d)), scale));
        });
    }
}

/// Rotates across `HALVES` half-blocks that are rotated in themselves; the largest magnitude of each lane.
///
/// # Safety
/// `room` holds them.
#[inline(always)]
unsafe fn rotate_across<L: Lanes, const HALVES: usize>(room: *mut f32) -> L::F {
    // SAFETY: by this function's promise.
    unsafe {
        let mut largest = L::splat(0.0);
        for column in 0..HALF {
            let at = |half: usize| room.add((half * HALF + column) * TILE);
            let mut values = [L::splat(0.0); HALVES];
            each_below!(HALVES, half, { values[half] = L::load(at(half)) });
            hadamard::<L, HALVES>(&mut values);
            let mut of_column = L::abs(values[0]);
            each_below!(HALVES, half, {
                of_column = L::max(of_column, L::abs(values[half]));
                L::store(at(half), values[half]);
            });
            largest = L::max(largest, of_column);
        }
        largest
    }
}

/// Sums and differences of vectors, 4 or 8.
///
/// # Safety
/// The module's.
#[inline(always)]
unsafe fn hadamard<L: Lanes, const COUNT: usize>(values: &mut [L::F; COUNT]) {
    const { assert!(COUNT == 4 || COUNT == 8) };
    macro_rules! pairs {
        ($($first:literal $second:literal)*) => {
            $(let (a, b) = (values[$first], values[$second]);
            // SAFETY: works on registers.
            (values[$first], values[$second]) = unsafe { (L::add(a, b), L::sub(a, b)) };)*
        };
    }
    pairs!(0 1 2 3);
    pairs!(0 2 1 3);
    if COUNT == 8 {
        pairs!(4 5 6 7);
        pairs!(4 6 5 7);
        pairs!(0 4 1 5 2 6 3 7);
    }
}

/// The scales of a block, with a fault planted in one of the tile's rows.
///
/// # Safety
/// The module's.
#[cfg(any(test, feature = "test-hooks"))]
#[inline(always)]
unsafe fn spoil<L: Lanes>(source: &PanelSource, block: usize, scales: [L::F; 3]) -> [L::F; 3] {
    let (codes, metas) = (std::ptr::null(), std::ptr::null());
    let Some((fault, columns)) = source.fault else { return scales };
    let fetch = crate::policy::StreamFetch::Hardware;
    let rows = super::product::QuantizedRows { codes, metas, columns, fetch, fault: Some(fault) };
    // SAFETY: the rows are not read.
    unsafe { super::product::spoil::<L>(&rows, block, scales) }
}

/// Rotates a row of `columns` values and rounds it to int8, as row `row` of `rows`.
///
/// # Safety
/// `x` has the values, `rows` room for the row.
#[inline(always)]
pub(crate) unsafe fn rotate_row<L: Lanes>(
    x: *const f32,
    columns: usize,
    rows: &RotatedRows,
    row: usize,
) {
    // SAFETY: by this function's promise.
    unsafe {
        const SMALL: usize = SMALL_BLOCK / TILE;
        match rows.chunk {
            CHUNK => rotate_row_chunks::<L, { CHUNK / TILE }, 1>(x, columns, rows, row),
            THREE_BLOCKS => rotate_row_chunks::<L, SMALL, 3>(x, columns, rows, row),
            _ => rotate_row_chunks::<L, SMALL, 1>(x, columns, rows, row),
        }
    }
}

/// [`rotate_row`] for chunks of `PARTS` times `VECTORS` vectors, which are rotated together.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn rotate_row_chunks<L: Lanes, const VECTORS: usize, const PARTS: usize>(
    x: *const f32,
    columns: usize,
    rows: &RotatedRows,
    row: usize,
) {
    const { assert!(PARTS <= 3, "a chunk fits the registers") };
    let width = PARTS * VECTORS * TILE;
    // SAFETY: by this function's promise.
    unsafe {
        for chunk in 0..columns / width {
            let from = x.add(chunk * width);
            let mut values = [[L::splat(0.0); VECTORS]; PARTS];
            let mut largest = L::splat(0.0);
            each_below!(PARTS, part, {
                let from = from.add(part * VECTORS * TILE);
                let values = &mut values[part];
                each_below!(VECTORS, vector, { values[vector] = L::load(from.add(vector * TILE)) });
                hadamard::<L, VECTORS>(values);
                each_below!(VECTORS, vector, {
                    let mut value = values[vector];
                    for distance in [1, 2, 4, 8] {
                        value = L::butterfly(value, distance);
                    }
                    largest = L::max(largest, L::abs(value));
                    values[vector] = value;
                });
            });
            let largest = L::largest(largest);
            let inverse = L::splat(if largest > 1e-30 { 127.0 / largest } else { 0.0 });
            let at = chunk * rows.capacity + row;
            let codes = rows.codes.add(at * width);
            let mut sum = L::splat(0.0);
            each_below!(PARTS, part, {
                let codes = codes.add(part * VECTORS * TILE);
                each_below!(VECTORS, vector, {
                    let code = L::round(L::mul(values[part][vector], inverse));
                    L::store_i8(codes.add(vector * TILE), code);
                    sum = L::add(sum, code);
                });
            });
            // Exact; NaN anywhere makes it NaN, and the step carries it on.
            let sum = L::sum(sum);
            let length = 1.0 / (127.0 * ((VECTORS * TILE) as f32).sqrt());
            let step = if sum.is_nan() { f32::NAN } else { largest * length };
            let offset = -i32::from(UNSIGNED) * sum as i32;
            *rows.metas.add(at) = ChunkMeta { step, offset };
        }
    }
}

#[cfg(test)]
mod tests;
