//! Products of a tile of 16 weight rows with rows of activations.

use super::lanes::Lanes;
use super::tile::{Codes, Scales, Walk};
use crate::pack::{BLOCK, LINE, TILE};
use crate::policy::StreamFetch;

/// Rows of activations, quantised to int8 a block at a time. `columns` apart, one row after
/// another in each array.
#[derive(Clone, Copy)]
pub(crate) struct QuantizedRows {
    /// `[rows][columns]`
    pub codes: *const i8,
    /// `[rows][columns / 32]`
    pub metas: *const BlockMeta,
    pub columns: usize,
    /// How weights behind those that are read are asked for.
    pub fetch: StreamFetch,
    /// Planted in the block in the middle.
    #[cfg(any(test, feature = "test-hooks"))]
    pub fault: Option<pianola_plan::Fault>,
}

/// What is known of a block of 32 int8 activations.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct BlockMeta {
    /// Value of one step.
    pub step: f32,
    /// Sum of the block's values, as rounded.
    pub value_sum: f32,
    /// Sums of the codes of either half.
    pub low: i32,
    pub high: i32,
}

/// Does something for every index below `$count`, at most eight. Written out, because sums that a loop
/// indexes are kept in memory, and a closure would not be compiled for the kernel's instructions.
macro_rules! each_below {
    ($count:ident, $index:ident, $body:block) => {
        each_below!($count, $index, $body, 0 1 2 3 4 5 6 7)
    };
    ($count:ident, $index:ident, $body:block, $($value:literal)*) => {
        $(if $value < $count {
            let $index: usize = $value;
            $body
        })*
    };
}
pub(super) use each_below;

/// Cuts `$rows` rows into runs of the given lengths, longest first, and does something for each: the
/// run begins at `$row` and has `$count` rows, a constant.
macro_rules! in_runs {
    ($rows:ident, $row:ident, $count:ident, [$($length:literal)*], $body:block) => {
        let mut $row = 0;
        $(while $rows - $row >= $length {
            const $count: usize = $length;
            $body
            $row += $count;
        })*
    };
}
pub(super) use in_runs;

/// Rows of f32 activations, `stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct FloatRows {
    pub values: *const f32,
    pub stride: usize,
}

/// `out[row][lane] = tile row lane . activation row first + row`, `R` rows at once: the codes are
/// unpacked once and multiplied with each row in turn. A tile is one stream of bytes; whether software asks
/// for what comes next is the policy's choice (`stream_fetch`).
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
    const { assert!(R <= 8, "each_below! knows eight") };
    // SAFETY: by this function's promise.
    unsafe {
        let columns = activations.columns;
        let blocks = columns / BLOCK;
        let mut walk = Walk::new();
        let mut sums = [L::splat(0.0); R];
        let mut shared = [L::splat(0.0); 2];
        let codes_of: [*const i8; R] =
            std::array::from_fn(|row| activations.codes.add((first + row) * columns));
        let metas_of: [*const BlockMeta; R] =
            std::array::from_fn(|row| activations.metas.add((first + row) * blocks));
        for block in 0..blocks {
            let place = walk.step::<C, S>();
            if let Some(at) = place.shared {
                shared = S::shared::<L>(tile.add(at));
            }
            // The codes, and the line of scales that may follow: a constant number, so that the loop is unrolled.
            match activations.fetch {
                StreamFetch::Hardware => {}
                StreamFetch::Cached(ahead) => {
                    for line in (0..C::BYTES + LINE).step_by(LINE) {
                        L::prefetch(tile.wrapping_add(place.codes + ahead + line));
                    }
                }
                StreamFetch::Once(ahead) => {
                    for line in (0..C::BYTES + LINE).step_by(LINE) {
                        L::prefetch_once(tile.wrapping_add(place.codes + ahead + line));
                    }
                }
            }
            let codes = C::load::<L>(tile.add(place.codes));
            let [low_scale, high_scale, min] = S::all::<L>(tile.add(place.own), shared);
            #[cfg(any(test, feature = "test-hooks"))]
            let [low_scale, high_scale, min] =
                spoil::<L>(activations, block, [low_scale, high_scale, min]);
            each_below!(R, row, {
                let words = codes_of[row].add(block * BLOCK).cast::<i32>();
                let BlockMeta { step, value_sum, low, high } = *metas_of[row].add(block);
                if S::HALVES {
                    let low = dots::<L, C>(L::splat_i32(-ZERO * low), &codes[..4], words);
                    let high = dots::<L, C>(L::splat_i32(-ZERO * high), &codes[4..], words.add(4));
                    let both = L::fma(low, low_scale, L::mul(high, high_scale));
                    sums[row] = L::fma(both, L::splat(step), sums[row]);
                } else {
                    let whole = dots::<L, C>(L::splat_i32(-ZERO * (low + high)), &codes, words);
                    sums[row] = L::fma(whole, L::mul(low_scale, L::splat(step)), sums[row]);
                }
                if S::MINS {
                    sums[row] = L::fma(min, L::splat(value_sum), sums[row]);
                }
            });
        }
        for (row, sum) in sums.into_iter().enumerate() {
            L::store(out.add(row * TILE), sum);
        }
    }
}

/// Adds the products of groups of codes with as many words of activations. A function, because a closure that is not inlined
/// would not be compiled for the kernel's instructions: AVX2's products of q8_0 were 35 times slower so.
///
/// # Safety
/// The module's; there is a word for each group.
#[inline(always)]
unsafe fn dots<L: Lanes, C: Codes>(mut sum: L::I, codes: &[L::B], words: *const i32) -> L::F {
    // SAFETY: by this function's promise.
    unsafe {
        for (group, &codes) in codes.iter().enumerate() {
            let word = words.add(group).read_unaligned();
            sum = if C::WIDE { L::dot_wide(sum, codes, word) } else { L::dot(sum, codes, word) };
        }
        L::to_f32(sum)
    }
}

/// The scales of a block, with a fault planted in one of the tile's rows.
///
/// # Safety
/// The module's.
#[cfg(any(test, feature = "test-hooks"))]
#[inline(always)]
pub(super) unsafe fn spoil<L: Lanes>(
    activations: &QuantizedRows,
    block: usize,
    scales: [L::F; 3],
) -> [L::F; 3] {
    match crate::fault::block_factor(activations.fault) {
        Some(factor) if block == activations.columns / BLOCK / 2 => scales.map(|scale| {
            let mut lanes = [0.0; TILE];
            // SAFETY: the lanes are those of a vector.
            unsafe {
                L::store(lanes.as_mut_ptr(), scale);
                lanes[crate::fault::FAULTY_OUTPUT] *= factor;
                L::load(lanes.as_ptr())
            }
        }),
        _ => scales,
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
    in_runs!(rows, row, COUNT, [8 4 2 1], {
        // SAFETY: by this function's promise, for some of its rows.
        unsafe {
            let out = out.add(row * TILE);
            quantized::<L, C, S, ZERO, COUNT>(tile, activations, first + row, out);
        }
    });
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
    // SAFETY: by this function's promise.
    unsafe {
        let blocks = columns / BLOCK;
        let mut walk = Walk::new();
        let mut shared = [L::splat(0.0); 2];
        for block in 0..blocks {
            let place = walk.step::<C, S>();
            if let Some(at) = place.shared {
                shared = S::shared::<L>(tile.add(at));
            }
            let codes = C::load::<L>(tile.add(place.codes));
            let all = S::all::<L>(tile.add(place.own), shared);
            for (group, codes) in codes.into_iter().enumerate() {
                let panel = panel.add((block * BLOCK + group * COLUMNS) * TILE);
                each_below!(COLUMNS, column, {
                    let value = weight::<L, S, ZERO>(codes, all, group * HALVES / GROUPS, column);
                    L::store(panel.add(column * TILE), value);
                });
            }
        }
    }
}

/// Columns in a group of codes, and groups in a block.
pub(super) const COLUMNS: usize = 4;
pub(super) const GROUPS: usize = BLOCK / COLUMNS;
/// Parts of a block that may have scales of their own.
pub(super) const HALVES: usize = 2;

/// The weights of column `column` of a group in a half of a block, from the group's codes and the block's
/// [`Scales::all`].
///
/// # Safety
/// The module's.
#[inline(always)]
pub(super) unsafe fn weight<L: Lanes, S: Scales, const ZERO: i32>(
    codes: L::B,
    scales: [L::F; 3],
    half: usize,
    column: usize,
) -> L::F {
    // SAFETY: works on registers.
    unsafe {
        let centred = L::centred(codes, column, ZERO as f32);
        let scale = if S::HALVES { scales[half] } else { scales[0] };
        let value = L::mul(scale, centred);
        if S::MINS { L::add(value, scales[2]) } else { value }
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
        // SAFETY: the caller's row and column are in the matrix.
        unsafe { self.start.add(row * self.stride + column) }
    }
}

/// A type that the right factor of a float product may be stored in.
pub(crate) trait Element: Copy {
    /// 16 values, as f32.
    ///
    /// # Safety
    /// They are there.
    unsafe fn load<L: Lanes>(from: *const Self) -> L::F;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const f32) -> L::F {
        // SAFETY: by the trait's promise.
        unsafe { L::load(from) }
    }
}

/// The bits of an f16.
impl Element for u16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u16) -> L::F {
        // SAFETY: by the trait's promise.
        unsafe { L::load_f16(from) }
    }
}

/// The bits of a bf16.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Bf16(u16);

impl Element for Bf16 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const Bf16) -> L::F {
        // SAFETY: by the trait's promise.
        unsafe { L::load_bf16(from.cast()) }
    }
}

/// A signed byte.
impl Element for u8 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const u8) -> L::F {
        // SAFETY: by the trait's promise.
        unsafe { L::load_i8(from) }
    }
}

/// Rows of values of some type, `stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct Rows<T> {
    pub start: *const T,
    pub stride: usize,
}

impl<T: Element> Rows<T> {
    /// The part from `column` on.
    #[inline(always)]
    pub fn behind(self, column: usize) -> Rows<T> {
        Rows { start: self.start.wrapping_add(column), ..self }
    }

    /// 16 values of `row`, from `column` on.
    #[inline(always)]
    unsafe fn load<L: Lanes>(self, row: usize, column: usize) -> L::F {
        // SAFETY: the caller's row and columns are there.
        unsafe { T::load::<L>(self.start.add(row * self.stride + column)) }
    }
}

/// `out[row][..16 * N] (+)= a[row][k] * b[k][..16 * N]`, the one f32 product: weights, scores and
/// values of attention all have this form.
///
/// # Safety
/// `a` has `R` rows of `inner` values, `b` `inner` rows of `16 * N`, `out` `R` rows of `16 * N`.
#[inline(always)]
pub(crate) unsafe fn float_block<L: Lanes, T: Element, const R: usize, const N: usize>(
    a: Matrix,
    b: Rows<T>,
    inner: usize,
    out: Matrix,
    add: bool,
) {
    // SAFETY: by this function's promise.
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
                *right = b.load::<L>(k, column * 16);
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

/// Widens a tile of plain floats to f32.
///
/// # Safety
/// `tile` has `columns * 16` values, `panel` room for as many.
#[inline(always)]
pub(crate) unsafe fn widen_tile<L: Lanes, T: Element>(
    tile: *const u8,
    columns: usize,
    panel: *mut f32,
) {
    for column in 0..columns {
        // SAFETY: by this function's promise.
        unsafe {
            let lanes = T::load::<L>(tile.cast::<T>().add(TILE * column));
            L::store(panel.add(TILE * column), lanes);
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
    // SAFETY: by this function's promise, for some of its rows.
    unsafe {
        let a = Matrix::read(activations.values, activations.stride);
        let b = Rows { start: panel, stride: 16 };
        let out = Matrix { start: out, stride: 16 };
        in_runs!(rows, row, COUNT, [8 4 2 1], {
            let (a, out) = (a.from(first + row, 0), out.from(row, 0));
            float_block::<L, f32, COUNT, 1>(a, b, columns, out, false);
        });
    }
}
