//! Products of a tile of 16 weight rows with rows of activations.

use super::lanes::Lanes;
use super::tile::{Codes, Scales};
use crate::pack::{BLOCK, SUPER, TILE};

/// Rows of activations, quantised to int8 a block at a time. `columns` apart, one row after
/// another in each array.
#[derive(Clone, Copy)]
pub(crate) struct QuantizedRows {
    /// `[rows][columns]`
    pub codes: *const i8,
    /// `[rows][columns / 32]`, the value of one step.
    pub scales: *const f32,
    /// `[rows][columns / 16]`, sums of 16 codes.
    pub sums: *const i32,
    pub columns: usize,
}

/// Rows of f32 activations, `stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct FloatRows {
    pub values: *const f32,
    pub stride: usize,
}

/// Bytes of a cache line.
const LINE: usize = 64;
/// How far ahead of the codes in use the next are asked for, in bytes: the best of 1 to 16 KiB
/// and of a whole tile. They go to the second-level cache; asked into the first they crowd out
/// its few outstanding misses and a quarter of the bandwidth is lost.
const AHEAD: usize = 4 << 10;

/// `out[row][lane] = tile row lane . activation row first + row`, `R` rows at once: the codes are
/// unpacked once and met by each row in turn.
///
/// # Safety
/// `tile` is a whole tile of the type that `C`, `S` and `ZERO` name with `activations.columns`
/// columns; rows `first..first + R` exist; `out` has room for `R * 16`.
#[inline(always)]
unsafe fn quantized<L: Lanes, C: Codes, S: Scales, const ZERO: i32, const R: usize>(
    tile: *const u8,
    activations: &QuantizedRows,
    first: usize,
    out: *mut f32,
) {
    unsafe {
        let columns = activations.columns;
        let blocks = columns / BLOCK;
        let scales = tile.add(blocks * C::BYTES);
        // Few rows are done with a tile sooner than the next arrives by itself.
        let ahead = tile.wrapping_add(AHEAD);
        let lines = if R <= 2 { (C::BYTES + S::BYTES).div_ceil(LINE) } else { 0 };
        let mut sums = [L::splat(0.0); R];
        let mut shared = [L::splat(0.0); 2];
        let codes_of: [*const i8; R] =
            std::array::from_fn(|row| activations.codes.add((first + row) * columns));
        for block in 0..blocks {
            for line in 0..lines {
                L::prefetch(ahead.wrapping_add((block * lines + line) * LINE));
            }
            let codes = C::load::<L>(tile.add(block * C::BYTES));
            if block % SUPER == 0 {
                shared = S::shared::<L>(scales, blocks, block);
            }
            let low_scale = S::scale::<L>(scales, shared, block, 0);
            let high_scale =
                if S::HALVES { S::scale::<L>(scales, shared, block, 1) } else { low_scale };
            let min = S::min::<L>(scales, shared, block);
            for row in 0..R {
                let words = codes_of[row].add(block * BLOCK).cast::<i32>();
                let step = *activations.scales.add((first + row) * blocks + block);
                let halves = activations.sums.add(2 * ((first + row) * blocks + block));
                let (low_sum, high_sum) = (*halves, *halves.add(1));
                let dot = |mut sum: L::I, groups: std::ops::Range<usize>| {
                    for group in groups {
                        let word = words.add(group).read_unaligned();
                        sum = if C::WIDE {
                            L::dot_wide(sum, codes[group], word)
                        } else {
                            L::dot(sum, codes[group], word)
                        };
                    }
                    L::to_f32(sum)
                };
                let step_lanes = L::splat(step);
                if S::HALVES {
                    let low = dot(L::splat_i32(-ZERO * low_sum), 0..4);
                    let high = dot(L::splat_i32(-ZERO * high_sum), 4..8);
                    let both = L::fma(low, low_scale, L::mul(high, high_scale));
                    sums[row] = L::fma(both, step_lanes, sums[row]);
                } else {
                    let whole = dot(L::splat_i32(-ZERO * (low_sum + high_sum)), 0..8);
                    sums[row] = L::fma(whole, L::mul(low_scale, step_lanes), sums[row]);
                }
                if S::MINS {
                    let weight = step * (low_sum + high_sum) as f32;
                    sums[row] = L::fma(min, L::splat(weight), sums[row]);
                }
            }
        }
        for (row, sum) in sums.into_iter().enumerate() {
            L::store(out.add(row * TILE), sum);
        }
    }
}

/// [`quantized`] for any number of rows.
///
/// # Safety
/// As there, with `rows` for `R`.
#[inline(always)]
pub(crate) unsafe fn quantized_rows<L: Lanes, C: Codes, S: Scales, const ZERO: i32>(
    tile: *const u8,
    activations: &QuantizedRows,
    first: usize,
    rows: usize,
    out: *mut f32,
) {
    let mut row = 0;
    unsafe {
        while row + 8 <= rows {
            quantized::<L, C, S, ZERO, 8>(tile, activations, first + row, out.add(row * TILE));
            row += 8;
        }
        if row + 4 <= rows {
            quantized::<L, C, S, ZERO, 4>(tile, activations, first + row, out.add(row * TILE));
            row += 4;
        }
        if row + 2 <= rows {
            quantized::<L, C, S, ZERO, 2>(tile, activations, first + row, out.add(row * TILE));
            row += 2;
        }
        if row < rows {
            quantized::<L, C, S, ZERO, 1>(tile, activations, first + row, out.add(row * TILE));
        }
    }
}

/// Dequantises a tile to `[columns][16]`.
///
/// # Safety
/// `tile` is a whole tile of the type that `C`, `S` and `ZERO` name; `panel` has room.
#[inline(always)]
pub(crate) unsafe fn dequantize_tile<L: Lanes, C: Codes, S: Scales, const ZERO: i32>(
    tile: *const u8,
    columns: usize,
    panel: *mut f32,
) {
    unsafe {
        let blocks = columns / BLOCK;
        let scales = tile.add(blocks * C::BYTES);
        for block in 0..blocks {
            let codes = C::load::<L>(tile.add(block * C::BYTES));
            let shared = S::shared::<L>(scales, blocks, block);
            let half = [
                S::scale::<L>(scales, shared, block, 0),
                S::scale::<L>(scales, shared, block, usize::from(S::HALVES)),
            ];
            let min = S::min::<L>(scales, shared, block);
            for column in 0..BLOCK {
                let code = L::to_f32(L::column(codes[column / 4], column % 4));
                let centred = L::sub(code, L::splat(ZERO as f32));
                let mut value = L::mul(half[column / 16], centred);
                if S::MINS {
                    value = L::add(value, min);
                }
                L::store(panel.add((block * BLOCK + column) * TILE), value);
            }
        }
    }
}

/// Rows of f32 values in memory, `stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct Matrix {
    pub start: *mut f32,
    pub stride: usize,
}

impl Matrix {
    /// For values that are only read.
    pub fn read(start: *const f32, stride: usize) -> Matrix {
        Matrix { start: start.cast_mut(), stride }
    }

    /// The part from `row` and `column` on.
    #[inline(always)]
    pub fn from(self, row: usize, column: usize) -> Matrix {
        Matrix { start: self.start.wrapping_add(row * self.stride + column), ..self }
    }

    #[inline(always)]
    unsafe fn at(self, row: usize, column: usize) -> *mut f32 {
        unsafe { self.start.add(row * self.stride + column) }
    }
}

/// `out[row][..16 * N] (+)= a[row][k] * b[k][..16 * N]`, the one f32 product: weights, scores and
/// values of attention all have this form.
///
/// # Safety
/// `a` has `R` rows of `inner` values, `b` `inner` rows of `16 * N`, `out` `R` rows of `16 * N`.
#[inline(always)]
pub(crate) unsafe fn float_block<L: Lanes, const R: usize, const N: usize>(
    a: Matrix,
    b: Matrix,
    inner: usize,
    out: Matrix,
    add: bool,
) {
    unsafe {
        let mut sums = [[L::splat(0.0); N]; R];
        if add {
            for (row, sums) in sums.iter_mut().enumerate() {
                for (column, sum) in sums.iter_mut().enumerate() {
                    *sum = L::load(out.at(row, column * 16));
                }
            }
        }
        for k in 0..inner {
            let mut right = [L::splat(0.0); N];
            for (column, right) in right.iter_mut().enumerate() {
                *right = L::load(b.at(k, column * 16));
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let left = L::splat(*a.at(row, k));
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = L::fma(left, right, *sum);
                }
            }
        }
        for (row, sums) in sums.into_iter().enumerate() {
            for (column, sum) in sums.into_iter().enumerate() {
                L::store(out.at(row, column * 16), sum);
            }
        }
    }
}

/// `out[row][lane] = panel column lane . activation row first + row` for a `[columns][16]` panel.
///
/// # Safety
/// `panel` has `columns * 16` values, the rows exist, `out` has room for `rows * 16`.
#[inline(always)]
pub(crate) unsafe fn float_rows<L: Lanes>(
    panel: *const f32,
    columns: usize,
    activations: &FloatRows,
    first: usize,
    rows: usize,
    out: *mut f32,
) {
    unsafe {
        let (a, b) =
            (Matrix::read(activations.values, activations.stride), Matrix::read(panel, 16));
        let out = Matrix { start: out, stride: 16 };
        let mut row = 0;
        while row + 8 <= rows {
            float_block::<L, 8, 1>(a.from(first + row, 0), b, columns, out.from(row, 0), false);
            row += 8;
        }
        while row < rows {
            float_block::<L, 1, 1>(a.from(first + row, 0), b, columns, out.from(row, 0), false);
            row += 1;
        }
    }
}
