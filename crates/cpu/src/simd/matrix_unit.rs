//! Products on a matrix unit: 16 rows of activations against 16 rows of weights, 32 columns at a time.
//!
//! ```text
//! strip (16 rows, int8 codes) ─┐
//!                              ├─ MatrixUnit ──► 16 x 16 sums ──► times scale and step, added
//! panel (16 outputs, codes) ───┘
//! ```
//!
//! Codes of both are whole numbers of at most eight bits, which a bf16 holds, and a block's products are
//! whole numbers below 2^20, which an f32 holds: a unit for bf16 computes what one for int8 would, and
//! leaves it as f32, which saves converting it. Scales are applied block by block in the order of
//! [`super::product`]: a row's bits do not depend on which of the two computed it.

use super::lanes::Lanes;
use super::product::BlockMeta;
use super::tile::{Codes, Scales};
use crate::pack::{BLOCK, SUPER, TILE};
use pianola_formats::TensorType;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Rows of activations in a strip.
pub(crate) const STRIP: usize = 16;
/// Blocks of a weight that a panel holds: a few, so that panels of two hardware threads and what is streamed
/// past them fit a first-level cache.
pub(crate) const PANEL_BLOCKS: usize = 16;
/// Codes of a block in a panel and in a strip.
const CODES: usize = BLOCK * TILE;
/// Values that are known of a block of a strip: a step for each row, then a sum of values for each.
const STRIP_METAS: usize = 2 * STRIP;
/// Bytes of a strip's row for 32 columns.
pub(crate) const STRIP_BLOCK_BYTES: usize = 2 * BLOCK + 4 * STRIP_METAS / STRIP;
/// Products that a unit holds, and rooms for those that it has stored.
pub(super) const SLOTS: usize = 4;
/// Columns of four as a unit takes them, in pairs: those that the even bytes of four codes are, then the odd.
const ORDER: [usize; 4] = [0, 2, 1, 3];

/// A unit that multiplies small matrices of bf16 and holds [`SLOTS`] products.
///
/// # Safety
/// One exists where the processor has it. It is this thread's until it is released, and there is one at a
/// time.
pub(crate) unsafe trait MatrixUnit: Sized {
    /// Prepares this thread's unit.
    ///
    /// # Safety
    /// The processor has it.
    unsafe fn configure() -> Self;
    /// Begins to multiply a strip's block `[16][32]` with a panel's `[16][16][2]`, for slot `SLOT`.
    ///
    /// # Safety
    /// The blocks are there, and `SLOT` is a slot.
    unsafe fn start<const SLOT: usize>(&mut self, strip: *const u16, panel: *const u16);
    /// Stores the products of a slot, `[16][16]`.
    ///
    /// # Safety
    /// There is room, and `SLOT` is a slot.
    unsafe fn store<const SLOT: usize>(&mut self, products: *mut f32);
    /// Lets the unit sleep.
    fn release(self);
}

/// What filling panels needs of lanes.
///
/// # Safety
/// As of [`Lanes`].
pub(crate) unsafe trait UnitLanes: Lanes {
    /// Stores `code - ZERO` of four columns of 16 outputs as bf16: two rows of a panel's block, in
    /// [`ORDER`]. Codes are below 32 unless `WIDE`.
    unsafe fn store_pairs<const ZERO: i32, const WIDE: bool>(to: *mut u16, codes: Self::B);
}

/// The bf16 of a whole number of at most eight bits.
pub(super) const fn whole_bf16(number: i32) -> u16 {
    ((number as f32).to_bits() >> 16) as u16
}

/// Rooms for products, as many as a unit holds. No two begin 4 KiB apart: a load would take a store to the
/// other for one to its own address.
#[repr(C, align(64))]
struct Rooms([MaybeUninit<[f32; STRIP * TILE]>; SLOTS]);

/// A block of a panel: codes less their zero point as a unit takes them, then scales, and what is added.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct PanelBlock {
    codes: [u16; CODES],
    scales: [[f32; TILE]; 2],
}

impl PanelBlock {
    pub const ZERO: PanelBlock = PanelBlock { codes: [0; CODES], scales: [[0.0; TILE]; 2] };
}

/// Strips of quantised activations, `columns` wide.
#[derive(Clone, Copy)]
pub(crate) struct Strips {
    /// `[strips][blocks][16][32]`, bf16, columns in [`ORDER`].
    pub codes: *const u16,
    /// `[strips][blocks][2][16]`
    pub metas: *const f32,
    pub columns: usize,
    /// Planted in the block in the middle.
    #[cfg(feature = "test-hooks")]
    pub fault: Option<pianola_plan::Fault>,
}

/// Puts a quantised row where [`Strips`] have it.
///
/// # Safety
/// `codes` and `metas` have room for the row's whole strip.
pub(crate) unsafe fn put_row(
    row: usize,
    from: (&[i8], &[BlockMeta]),
    codes: *mut u16,
    metas: *mut f32,
) {
    let blocks = from.1.len();
    let (strip, lane) = (row / STRIP, row % STRIP);
    for (block, (values, meta)) in from.0.as_chunks::<BLOCK>().0.iter().zip(from.1).enumerate() {
        let at = strip * blocks + block;
        // SAFETY: by this function's promise.
        unsafe {
            let place = codes.add(at * CODES + lane * BLOCK).cast::<[u16; BLOCK]>();
            place.write_unaligned(std::array::from_fn(|column| {
                whole_bf16(i32::from(values[column / 4 * 4 + ORDER[column % 4]]))
            }));
            let metas = metas.add(at * STRIP_METAS + lane);
            *metas = meta.step;
            *metas.add(STRIP) = meta.value_sum;
        }
    }
}

/// `(tile, strips, first strip, blocks, panel [PANEL_BLOCKS], sums)`: adds the products of some blocks of
/// a tile with as many strips as `sums` has room for, `[strips][16][16]`; from block 0 on, sums start at 0.
pub(crate) type UnitProduct =
    unsafe fn(*const u8, &Strips, usize, Range<usize>, &mut [PanelBlock], &mut [f32]);

/// Kernels for one matrix unit.
///
/// # Safety
/// They may be called on a processor that has it ([`super::Level::available`]).
pub(crate) struct UnitKernels {
    pub product: fn(TensorType) -> Option<UnitProduct>,
    /// Repeated products on registers, for measuring the arithmetic ceiling: `count` times
    /// 16 x 16 x 32 multiply-adds.
    pub probe: unsafe fn(usize),
}

/// See [`UnitProduct`].
///
/// # Safety
/// The processor has `U` and the instructions of `L`. `tile` is a whole tile of the type that `C`, `S`
/// and `ZERO` name with `strips.columns` columns, `blocks` are some of it, and the strips exist.
#[inline(always)]
pub(crate) unsafe fn multiply_strips<L, U, C, S, const ZERO: i32>(
    tile: *const u8,
    strips: &Strips,
    first: usize,
    blocks: Range<usize>,
    panel: &mut [PanelBlock],
    sums: &mut [f32],
) where
    L: UnitLanes,
    U: MatrixUnit,
    C: Codes,
    S: Scales,
{
    const { assert!(!S::HALVES, "two products a block are slower than vectors") };
    let panel = &mut panel[..blocks.len()];
    // SAFETY: by this function's promise.
    unsafe {
        fill_panel::<L, C, S, ZERO>(tile, strips, blocks.start, panel);
        let mut unit = U::configure();
        for (index, sums) in sums.chunks_exact_mut(STRIP * TILE).enumerate() {
            if blocks.start == 0 {
                sums.fill(0.0);
            }
            let at = (first + index) * (strips.columns / BLOCK) + blocks.start;
            let codes = strips.codes.add(at * CODES);
            let metas = strips.metas.add(at * STRIP_METAS);
            multiply_strip::<L, U, S>(&mut unit, codes, metas, panel, sums.as_mut_ptr());
        }
        unit.release();
    }
}

/// Makes a panel of the blocks of a tile from `first` on.
///
/// # Safety
/// As of [`multiply_strips`].
#[inline(always)]
unsafe fn fill_panel<L: UnitLanes, C: Codes, S: Scales, const ZERO: i32>(
    tile: *const u8,
    strips: &Strips,
    first: usize,
    panel: &mut [PanelBlock],
) {
    // SAFETY: by this function's promise.
    unsafe {
        let blocks = strips.columns / BLOCK;
        let scales = tile.add(blocks * C::BYTES);
        let mut shared = [L::splat(0.0); 2];
        for (index, place) in panel.iter_mut().enumerate() {
            let block = first + index;
            let codes = C::load::<L>(tile.add(block * C::BYTES));
            for (group, codes) in codes.into_iter().enumerate() {
                let place = place.codes.as_mut_ptr().add(4 * TILE * group);
                if C::WIDE {
                    L::store_pairs::<ZERO, true>(place, codes);
                } else {
                    L::store_pairs::<ZERO, false>(place, codes);
                }
            }
            if index == 0 || block % SUPER == 0 {
                shared = S::shared::<L>(scales, blocks, block);
            }
            let scale = S::scale::<L>(scales, shared, block, 0);
            let min = S::min::<L>(scales, shared, block);
            #[cfg(feature = "test-hooks")]
            let [scale, _, min] = spoil::<L>(strips, block, [scale, scale, min]);
            L::store(place.scales[0].as_mut_ptr(), scale);
            if S::MINS {
                L::store(place.scales[1].as_mut_ptr(), min);
            }
        }
    }
}

/// The scales of a block, with a fault planted in one of the tile's rows.
///
/// # Safety
/// The module's.
#[cfg(feature = "test-hooks")]
#[inline(always)]
unsafe fn spoil<L: Lanes>(strips: &Strips, block: usize, scales: [L::F; 3]) -> [L::F; 3] {
    let &Strips { columns, fault, .. } = strips;
    let (codes, metas) = (std::ptr::null(), std::ptr::null());
    let rows = super::product::QuantizedRows { codes, metas, columns, fault };
    // SAFETY: by this function's promise; the rows are not read.
    unsafe { super::product::spoil::<L>(&rows, block, scales) }
}

/// Does something for every row of a strip. Written out, because sums that a loop indexes are kept in
/// memory.
macro_rules! each_row {
    ($row:ident, $body:block) => {
        each_row!($row, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($row:ident, $body:block, $($value:literal)*) => {
        $({
            const $row: usize = $value;
            $body
        })*
    };
}

/// Blocks between the start of a product and its being stored: a unit takes its time, and a store that
/// waits for it keeps all behind it waiting.
const STORED_BEHIND: usize = 2;
/// Blocks between a product's being stored and its being scaled.
const SCALED_BEHIND: usize = 1;

/// Adds the products of a strip with a panel to `sums` `[16][16]`.
///
/// # Safety
/// As of [`multiply_strips`]; `codes` and `metas` are those of the panel's blocks in the strip.
#[inline(always)]
unsafe fn multiply_strip<L: UnitLanes, U: MatrixUnit, S: Scales>(
    unit: &mut U,
    codes: *const u16,
    metas: *const f32,
    panel: &[PanelBlock],
    sums_at: *mut f32,
) {
    let count = panel.len();
    let panel = panel.as_ptr();
    let mut rooms = Rooms([MaybeUninit::uninit(); SLOTS]);
    let rooms = rooms.0.as_mut_ptr();
    // SAFETY: by this function's promise; blocks in work have slots and rooms of their own, which are written
    // before they are read.
    unsafe {
        let room = |block: usize| rooms.add(block % SLOTS).cast::<f32>();
        let mut sums = [L::splat(0.0); STRIP];
        each_row!(ROW, { sums[ROW] = L::load(sums_at.add(ROW * TILE)) });
        // Blocks that have not begun wrap around to beyond the last.
        macro_rules! block {
            ($block:expr, $slot:literal, $stored:literal) => {
                let block: usize = $block;
                if block < count {
                    unit.start::<$slot>(codes.add(block * CODES), panel.add(block).cast());
                }
                let stored = block.wrapping_sub(STORED_BEHIND);
                if stored < count {
                    unit.store::<$stored>(room(stored));
                }
                let scaled = stored.wrapping_sub(SCALED_BEHIND);
                if scaled < count {
                    let metas = metas.add(scaled * STRIP_METAS);
                    scale::<L, S>(room(scaled), metas, &*panel.add(scaled), &mut sums);
                }
            };
        }
        const { assert!(SLOTS == 4 && STORED_BEHIND == 2 && SCALED_BEHIND < 2) };
        for block in (0..count + STORED_BEHIND + SCALED_BEHIND).step_by(SLOTS) {
            block!(block, 0, 2);
            block!(block + 1, 1, 3);
            block!(block + 2, 2, 0);
            block!(block + 3, 3, 1);
        }
        each_row!(ROW, { L::store(sums_at.add(ROW * TILE), sums[ROW]) });
    }
}

/// Scales the products of a block and adds them to the sums.
///
/// # Safety
/// `products` holds those of the block; `metas` is the strip's of the block.
#[inline(always)]
unsafe fn scale<L: Lanes, S: Scales>(
    products: *const f32,
    metas: *const f32,
    panel: &PanelBlock,
    sums: &mut [L::F; STRIP],
) {
    // SAFETY: by this function's promise.
    unsafe {
        let scale = L::load(panel.scales[0].as_ptr());
        let min = L::load(panel.scales[1].as_ptr());
        each_row!(ROW, {
            let product = L::load(products.add(ROW * TILE));
            let step = L::splat(*metas.add(ROW));
            sums[ROW] = L::fma(product, L::mul(scale, step), sums[ROW]);
            if S::MINS {
                sums[ROW] = L::fma(min, L::splat(*metas.add(STRIP + ROW)), sums[ROW]);
            }
        });
    }
}

/// Generates the kernels of one matrix unit. `$attributes` holds the lanes' `#[target_feature]`.
macro_rules! unit_kernels {
    ($name:ident, $lanes:ty, $unit:ty, $probe:path, [$($attribute:tt)*]) => {
        unit_kernels!(@types $name, $lanes, $unit, $probe, [$($attribute)*];
            Q4_0 q4_0: Bits4, Half, 8;
            Q4_1 q4_1: Bits4, HalfWithMin, 0;
            Q5_0 q5_0: Bits5, Half, 16;
            Q5_1 q5_1: Bits5, HalfWithMin, 0;
            Q8_0 q8_0: Bits8, Half, 128;
            Q4K q4_k: Bits4, SixBit, 0;
            Q5K q5_k: Bits5, SixBit, 0;
            IQ4NL iq4_nl: Iq4Values, Half, 128;
            IQ4XS iq4_xs: Iq4Values, Signed, 128;);
    };
    (@types $name:ident, $lanes:ty, $unit:ty, $probe:path, $attributes:tt;
        $($variant:ident $function:ident: $codes:ty, $scales:ty, $zero:expr;)*) => {
        mod $name {
            use crate::simd::matrix_unit::*;
            use crate::simd::tile::*;
            use pianola_formats::TensorType;
            use std::ops::Range;

            pub(crate) static KERNELS: UnitKernels = UnitKernels { product, probe: $probe };

            fn product(ty: TensorType) -> Option<UnitProduct> {
                Some(match ty {
                    $(TensorType::$variant => $function,)*
                    // Blocks with two scales would take two products each, which is no faster than vectors.
                    TensorType::Q6K => return None,
                    TensorType::F32 | TensorType::F16 | TensorType::BF16 => return None,
                })
            }

            $(unit_kernels!(@one $attributes, $function, $lanes, $unit, $codes, $scales, $zero);)*
        }
        pub(crate) use $name::KERNELS;
    };
    (@one [$($attribute:tt)*], $function:ident, $lanes:ty, $unit:ty, $codes:ty, $scales:ty, $zero:expr) => {
        $($attribute)*
        unsafe fn $function(
            tile: *const u8,
            strips: &Strips,
            first: usize,
            blocks: Range<usize>,
            panel: &mut [PanelBlock],
            sums: &mut [f32],
        ) {
            // SAFETY: forwarded; see `UnitKernels`.
            unsafe {
                multiply_strips::<$lanes, $unit, $codes, $scales, $zero>(
                    tile, strips, first, blocks, panel, sums,
                )
            }
        }
    };
}
pub(super) use unit_kernels;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::packed;
    use crate::simd::Level;
    use crate::simd::product::QuantizedRows;

    /// Numbers of a fixed sequence.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            self.0 >> 33
        }
    }

    const COLUMNS: usize = 1280;

    /// Rows as a prologue leaves them, for vectors and in strips.
    struct Activations {
        codes: Vec<i8>,
        metas: Vec<BlockMeta>,
        strip_codes: Vec<u16>,
        strip_metas: Vec<f32>,
    }

    fn activations(level: Level, rows: usize) -> Activations {
        let mut random = Random(rows as u64);
        let (strips, blocks) = (rows.div_ceil(STRIP), COLUMNS / BLOCK);
        let zero = BlockMeta { step: 0.0, value_sum: 0.0, low: 0, high: 0 };
        let mut all = Activations {
            codes: vec![0; rows * COLUMNS],
            metas: vec![zero; rows * blocks],
            strip_codes: vec![0; strips * STRIP * COLUMNS],
            strip_metas: vec![f32::NAN; strips * blocks * STRIP_METAS],
        };
        for row in 0..rows {
            let x: Vec<f32> = (0..COLUMNS).map(|_| random.next() as f32 * 1e-9 - 1.0).collect();
            let codes = &mut all.codes[row * COLUMNS..][..COLUMNS];
            let metas = &mut all.metas[row * blocks..][..blocks];
            let strips = (all.strip_codes.as_mut_ptr(), all.strip_metas.as_mut_ptr());
            // SAFETY: all have room for the row, and the level is available.
            unsafe {
                (level.kernels().quantize)(
                    x.as_ptr(),
                    COLUMNS,
                    codes.as_mut_ptr(),
                    metas.as_mut_ptr(),
                );
                put_row(row, (codes, metas), strips.0, strips.1);
            }
        }
        all
    }

    /// Sums of a tile with rows by vectors and by a unit, panel by panel.
    fn both(level: Level, ty: TensorType, rows: usize) -> [Vec<f32>; 2] {
        let mut random = Random(7);
        let bytes = TILE * ty.row_bytes(COLUMNS).unwrap();
        // Scales are finite: the exponent's top bit is cleared wherever it may lie.
        let file: Vec<u8> = (0..bytes).map(|_| random.next() as u8 & 0xbf).collect();
        let matrix = packed(ty, COLUMNS, &file);
        let tile = matrix.tile(0).as_ptr();
        let all = activations(level, rows);
        let plain = QuantizedRows {
            codes: all.codes.as_ptr(),
            metas: all.metas.as_ptr(),
            columns: COLUMNS,
            #[cfg(feature = "test-hooks")]
            fault: None,
        };
        let strips = Strips {
            codes: all.strip_codes.as_ptr(),
            metas: all.strip_metas.as_ptr(),
            columns: COLUMNS,
            #[cfg(feature = "test-hooks")]
            fault: None,
        };
        let mut expected = vec![0.0; rows * TILE];
        let mut found = vec![0.0; rows.next_multiple_of(STRIP) * TILE];
        let mut panel = vec![PanelBlock::ZERO; PANEL_BLOCKS];
        let product = (level.kernels().product)(ty).unwrap();
        let unit = (level.unit_kernels().unwrap().product)(ty).unwrap();
        // SAFETY: the level is available; tile, rows and sums are those that the kernels take.
        unsafe {
            product(tile, &plain, 0, rows, expected.as_mut_ptr());
            for start in (0..COLUMNS / BLOCK).step_by(PANEL_BLOCKS) {
                let blocks = start..(COLUMNS / BLOCK).min(start + PANEL_BLOCKS);
                unit(tile, &strips, 0, blocks, &mut panel, &mut found);
            }
        }
        found.truncate(rows * TILE);
        [expected, found]
    }

    #[test]
    fn a_unit_gives_the_bits_of_vectors() {
        let levels = [Level::EmulatedUnit, Level::Amx];
        for level in levels.into_iter().filter(|level| level.available()) {
            let has_kernel =
                |ty: &&TensorType| (level.unit_kernels().unwrap().product)(**ty).is_some();
            for &ty in TensorType::ALL.iter().filter(has_kernel) {
                for rows in [16, 1, 37] {
                    let [expected, found] = both(level, ty, rows);
                    let bits =
                        |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert!(expected.iter().any(|sum| *sum != 0.0));
                    assert_eq!(bits(&expected), bits(&found), "{ty} on {level}, {rows} rows");
                }
            }
        }
    }
}
