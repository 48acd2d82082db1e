//! Products on a matrix unit: 16 rows of activations against 16 rows of weights, 32 columns at a time.
//!
//! ```text
//! strip (16 rows, int8 codes) ─┐
//!                              ├─ MatrixUnit ──► 16 x 16 sums ──► times scale and step, added
//! panel (16 outputs, codes) ───┘
//! ```
//!
//! A block's products are exact integers, and scales are applied block by block in the order of
//! [`super::product`]: a row's bits do not depend on which of the two computed it. In rotated form
//! ([`multiply_rotated`]) a block is a whole chunk of columns.

mod rotated;

use super::lanes::Lanes;
use super::product::BlockMeta;
use super::rotated::MultiplyPanels;
use super::tile::{Codes, Scales, Walk};
use crate::pack::{BLOCK, TILE};
use pianola_formats::TensorType;
use std::mem::MaybeUninit;
use std::ops::Range;

pub(crate) use rotated::{WHOLE_COLUMNS, multiply_rotated};

/// Rows of activations in a strip.
pub(crate) const STRIP: usize = 16;
/// Blocks of a weight that a panel holds, and panels that a strip meets one after another: few, so that those
/// of two hardware threads fit a first-level cache. 8 to 32 and 1 to 4 measured alike.
pub(crate) const PANEL_BLOCKS: usize = 16;
pub(crate) const PANELS: usize = 2;
/// Codes of a block in a panel and in a strip.
const CODES: usize = BLOCK * TILE;
/// Values that are known of a block of a strip: a step for each row, then a sum of values for each.
const STRIP_METAS: usize = 2 * STRIP;
/// Bytes of a strip's row for 32 columns.
pub(crate) const STRIP_BLOCK_BYTES: usize = BLOCK + 4 * STRIP_METAS / STRIP;
/// Products that a unit holds, and rooms for those that it has stored.
pub(super) const SLOTS: usize = 4;

/// A unit that multiplies small matrices of signed bytes and holds [`SLOTS`] products.
///
/// # Safety
/// One exists where the processor has it. It is this thread's until it is released, and there is one at a
/// time.
pub(crate) unsafe trait MatrixUnit: Sized {
    /// Prepares this thread's unit for blocks of 32 columns.
    ///
    /// # Safety
    /// The processor has it.
    unsafe fn configure() -> Self;
    /// Prepares this thread's unit for [`WHOLE_COLUMNS`].
    ///
    /// # Safety
    /// The processor has it.
    unsafe fn configure_whole() -> Self;
    /// Begins to multiply a strip's block `[16][32]` with a panel's `[8][16][4]`, for slot `SLOT`.
    ///
    /// # Safety
    /// The blocks are there, and `SLOT` is a slot.
    unsafe fn start<const SLOT: usize>(&mut self, strip: *const i8, panel: *const i8);
    /// Takes [`WHOLE_COLUMNS`] of a strip, 16 rows that are `stride` bytes apart, as strip `INDEX` of two.
    ///
    /// # Safety
    /// The unit was prepared for whole columns, the rows are there, and `INDEX` is 0 or 1.
    unsafe fn load_strip<const INDEX: usize>(&mut self, strip: *const i8, stride: usize);
    /// Takes [`WHOLE_COLUMNS`] of a panel, `[16][16][4]`, as panel `INDEX` of two.
    ///
    /// # Safety
    /// As of [`MatrixUnit::load_strip`].
    unsafe fn load_panel<const INDEX: usize>(&mut self, panel: *const i8);
    /// Empties slot `2 * STRIP + PANEL`.
    ///
    /// # Safety
    /// The unit was prepared for whole columns, and the two are 0 or 1.
    unsafe fn clear<const STRIP: usize, const PANEL: usize>(&mut self);
    /// Adds the products of a strip and a panel to slot `2 * STRIP + PANEL`.
    ///
    /// # Safety
    /// As of [`MatrixUnit::clear`]; the two were loaded.
    unsafe fn multiply<const STRIP: usize, const PANEL: usize>(&mut self);
    /// Stores the products of a slot, `[16][16]`.
    ///
    /// # Safety
    /// There is room, and `SLOT` is a slot.
    unsafe fn store<const SLOT: usize>(&mut self, products: *mut i32);
    /// Lets the unit sleep.
    fn release(self);
}

/// What filling panels and scaling products needs of lanes.
///
/// # Safety
/// As of [`Lanes`].
pub(crate) unsafe trait UnitLanes: Lanes {
    /// 16 i32, as f32.
    unsafe fn load_i32(from: *const i32) -> Self::F;
    /// Stores `byte - zero` of 64 bytes, signed; the differences fit.
    unsafe fn store_signed(to: *mut i8, codes: Self::B, zero: u8);
}

/// Rooms for products, as many as a unit holds. No two begin 4 KiB apart: a load would take a store to the
/// other for one to its own address.
#[repr(C, align(64))]
struct Rooms([MaybeUninit<[i32; STRIP * TILE]>; SLOTS]);

/// A block of a panel: signed codes as a unit takes them, then scales, and what is added.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct PanelBlock {
    codes: [i8; CODES],
    scales: [[f32; TILE]; 2],
}

impl PanelBlock {
    pub const ZERO: PanelBlock = PanelBlock { codes: [0; CODES], scales: [[0.0; TILE]; 2] };
}

/// Strips of quantised activations, `columns` wide.
#[derive(Clone, Copy)]
pub(crate) struct Strips {
    /// `[strips][blocks][16][32]`
    pub codes: *const i8,
    /// `[strips][blocks][2][16]`
    pub metas: *const f32,
    pub columns: usize,
}

/// Tiles that follow one another in memory, at most [`PANELS`].
#[derive(Clone, Copy)]
pub(crate) struct UnitTiles {
    pub start: *const u8,
    /// Bytes from one tile to the next.
    pub stride: usize,
    pub count: usize,
    /// Planted in the block in the middle of one of the tiles.
    #[cfg(any(test, feature = "test-hooks"))]
    pub fault: Option<(usize, pianola_plan::Fault)>,
}

/// Puts a quantised row where [`Strips`] have it.
///
/// # Safety
/// `codes` and `metas` have room for the row's whole strip.
pub(crate) unsafe fn put_row(
    row: usize,
    from: (&[i8], &[BlockMeta]),
    codes: *mut i8,
    metas: *mut f32,
) {
    let blocks = from.1.len();
    let (strip, lane) = (row / STRIP, row % STRIP);
    for (block, (values, meta)) in from.0.as_chunks::<BLOCK>().0.iter().zip(from.1).enumerate() {
        let at = strip * blocks + block;
        // SAFETY: by this function's promise.
        unsafe {
            codes.add(at * CODES + lane * BLOCK).cast::<[i8; BLOCK]>().write_unaligned(*values);
            let metas = metas.add(at * STRIP_METAS + lane);
            *metas = meta.step;
            *metas.add(STRIP) = meta.value_sum;
        }
    }
}

/// `(tiles, strips, first strip, blocks, panels [PANELS * PANEL_BLOCKS], sums)`: adds the products of some
/// blocks of tiles with as many strips as `sums` has room for, `[tiles][strips][16][16]`; from block 0 on,
/// sums start at 0.
pub(crate) type UnitProduct =
    unsafe fn(&UnitTiles, &Strips, usize, Range<usize>, &mut [PanelBlock], &mut [f32]);

/// Kernels for one matrix unit.
///
/// # Safety
/// They may be called on a processor that has it ([`super::Level::available`]).
pub(crate) struct UnitKernels {
    pub product: fn(TensorType) -> Option<UnitProduct>,
    /// Takes panels of signed codes.
    pub multiply_panels: MultiplyPanels,
    /// Repeated products on registers, for measuring the arithmetic ceiling: `count` times
    /// 16 x 16 x 64 multiply-adds.
    pub probe: unsafe fn(usize),
}

/// See [`UnitProduct`].
///
/// # Safety
/// The processor has `U` and the instructions of `L`. `tiles` are whole tiles of the type that `C`, `S`
/// and `ZERO` name with `strips.columns` columns, `blocks` are some of them, and the strips exist.
#[inline(always)]
pub(crate) unsafe fn multiply_strips<L, U, C, S, const ZERO: i32>(
    tiles: &UnitTiles,
    strips: &Strips,
    first: usize,
    blocks: Range<usize>,
    panels: &mut [PanelBlock],
    sums: &mut [f32],
) where
    L: UnitLanes,
    U: MatrixUnit,
    C: Codes,
    S: Scales,
{
    const { assert!(!S::HALVES, "two products a block are slower than vectors") };
    let panels = &mut panels[..tiles.count * blocks.len()];
    if blocks.start == 0 {
        sums.fill(0.0);
    }
    // SAFETY: by this function's promise.
    unsafe {
        for (index, panel) in panels.chunks_exact_mut(blocks.len()).enumerate() {
            fill_panel::<L, C, S, ZERO>(tiles, index, strips.columns, blocks.start, panel);
        }
        let mut unit = U::configure();
        let each = sums.len() / tiles.count;
        for strip in 0..each / (STRIP * TILE) {
            let at = (first + strip) * (strips.columns / BLOCK) + blocks.start;
            let codes = strips.codes.add(at * CODES);
            let metas = strips.metas.add(at * STRIP_METAS);
            // The strip's columns stay in the first-level cache for all panels.
            for (index, panel) in panels.chunks_exact(blocks.len()).enumerate() {
                let sums = sums[index * each + strip * STRIP * TILE..].as_mut_ptr();
                multiply_strip::<L, U, S>(&mut unit, codes, metas, panel, sums);
            }
        }
        unit.release();
    }
}

/// Makes a panel of the blocks of a tile from `first` on.
///
/// # Safety
/// As of [`multiply_strips`].
#[inline(always)]
#[cfg_attr(not(any(test, feature = "test-hooks")), allow(unused_variables))]
unsafe fn fill_panel<L: UnitLanes, C: Codes, S: Scales, const ZERO: i32>(
    tiles: &UnitTiles,
    index: usize,
    columns: usize,
    first: usize,
    panel: &mut [PanelBlock],
) {
    // SAFETY: by this function's promise.
    unsafe {
        let tile = tiles.start.add(index * tiles.stride);
        let (mut walk, at) = Walk::from::<C, S>(first);
        let mut shared = S::shared::<L>(tile.add(at));
        for (offset, place) in panel.iter_mut().enumerate() {
            let here = walk.step::<C, S>();
            let codes = C::load::<L>(tile.add(here.codes));
            for (group, codes) in codes.into_iter().enumerate() {
                L::store_signed(place.codes.as_mut_ptr().add(4 * TILE * group), codes, ZERO as u8);
            }
            if let Some(at) = here.shared {
                shared = S::shared::<L>(tile.add(at));
            }
            let own = tile.add(here.own);
            let scale = S::scale::<L>(own, shared, 0);
            let min = S::min::<L>(own, shared);
            #[cfg(any(test, feature = "test-hooks"))]
            let [scale, _, min] = {
                let fault = tiles.fault.filter(|fault| fault.0 == index).map(|fault| fault.1);
                spoil::<L>(fault, columns, first + offset, [scale, scale, min])
            };
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
#[cfg(any(test, feature = "test-hooks"))]
#[inline(always)]
unsafe fn spoil<L: Lanes>(
    fault: Option<pianola_plan::Fault>,
    columns: usize,
    block: usize,
    scales: [L::F; 3],
) -> [L::F; 3] {
    let (codes, metas) = (std::ptr::null(), std::ptr::null());
    let fetch = crate::policy::StreamFetch::Hardware;
    let rows = super::product::QuantizedRows { codes, metas, columns, fetch, fault };
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
    codes: *const i8,
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
        let room = |block: usize| rooms.add(block % SLOTS).cast::<i32>();
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
unsafe fn scale<L: UnitLanes, S: Scales>(
    products: *const i32,
    metas: *const f32,
    panel: &PanelBlock,
    sums: &mut [L::F; STRIP],
) {
    // SAFETY: by this function's promise.
    unsafe {
        let scale = L::load(panel.scales[0].as_ptr());
        let min = L::load(panel.scales[1].as_ptr());
        each_row!(ROW, {
            let product = L::load_i32(products.add(ROW * TILE));
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
            use crate::simd::rotated::{Panels, RotatedRows, TileSums};
            use crate::simd::tile::*;
            use pianola_formats::TensorType;
            use std::ops::Range;

            pub(crate) static KERNELS: UnitKernels =
                UnitKernels { product, multiply_panels, probe: $probe };

            fn product(ty: TensorType) -> Option<UnitProduct> {
                Some(match ty {
                    $(TensorType::$variant => $function,)*
                    // Blocks with two scales would take two products each, which is no faster than vectors.
                    TensorType::Q6K => return None,
                    TensorType::F32 | TensorType::F16 | TensorType::BF16 => return None,
                })
            }

            unit_kernels!(@rotated $attributes, $lanes, $unit);
            $(unit_kernels!(@one $attributes, $function, $lanes, $unit, $codes, $scales, $zero);)*
        }
        pub(crate) use $name::KERNELS;
    };
    (@rotated [$($attribute:tt)*], $lanes:ty, $unit:ty) => {
        $($attribute)*
        unsafe fn multiply_panels(
            panels: &Panels,
            activations: &RotatedRows,
            rows: Range<usize>,
            sums: TileSums,
        ) {
            // SAFETY: forwarded; see `UnitKernels`.
            unsafe { multiply_rotated::<$lanes, $unit>(panels, activations, rows, sums) }
        }
    };
    (@one [$($attribute:tt)*], $function:ident, $lanes:ty, $unit:ty, $codes:ty, $scales:ty, $zero:expr) => {
        $($attribute)*
        unsafe fn $function(
            tiles: &UnitTiles,
            strips: &Strips,
            first: usize,
            blocks: Range<usize>,
            panels: &mut [PanelBlock],
            sums: &mut [f32],
        ) {
            // SAFETY: forwarded; see `UnitKernels`.
            unsafe {
                multiply_strips::<$lanes, $unit, $codes, $scales, $zero>(
                    tiles, strips, first, blocks, panels, sums,
                )
            }
        }
    };
}
pub(super) use unit_kernels;

#[cfg(test)]
mod tests;
