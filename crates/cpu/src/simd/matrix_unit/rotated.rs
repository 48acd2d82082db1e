//! Rotated products on a matrix unit: its sums stay in it for a whole chunk of columns.
//!
//! ```text
//!             panel 0   panel 1
//! strip 0   │ slot 0  │ slot 1 │   64 columns at a time, then stored, scaled and added
//! strip 1   │ slot 2  │ slot 3 │
//! ```
//!
//! A *block* is a chunk of up to two strips and two panels: what the unit has slots for. Each strip and panel
//! that it loads serves two products.

use super::{MatrixUnit, Rooms, SLOTS, STRIP, UnitLanes};
use crate::pack::{LINE, TILE};
use crate::simd::rotated::{
    CHUNK, ChunkMeta, Panels, RotatedRows, THREE_BLOCKS, TileSums, chunk_bytes, code_bytes,
};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Columns that a unit takes at a time.
pub(crate) const WHOLE_COLUMNS: usize = 64;
/// Bytes of a panel's whole columns.
const PANEL_BYTES: usize = WHOLE_COLUMNS * TILE;

/// See [`crate::simd::rotated::MultiplyPanels`]; the panels' codes are signed.
///
/// # Safety
/// The processor has `U` and the instructions of `L`. Rows begin with a strip and have the panels' chunks,
/// activations have room for whole strips, and `sums` for the rows.
#[inline(always)]
pub(crate) unsafe fn multiply_rotated<L: UnitLanes, U: MatrixUnit>(
    panels: &Panels,
    activations: &RotatedRows,
    rows: Range<usize>,
    sums: TileSums,
) {
    let grid = Grid { panels, activations, rows, sums };
    // SAFETY: by this function's promise.
    unsafe {
        if panels.first == 0 {
            grid.clear_sums();
        }
        for line in 0..panels.next.tiles * panels.next.lines {
            L::prefetch(panels.next.line(line));
        }
        let mut unit = U::configure_whole();
        match activations.chunk {
            CHUNK => multiply_grid::<L, U, { CHUNK / WHOLE_COLUMNS }>(&mut unit, &grid),
            THREE_BLOCKS => {
                multiply_grid::<L, U, { THREE_BLOCKS / WHOLE_COLUMNS }>(&mut unit, &grid);
            }
            _ => multiply_grid::<L, U, 1>(&mut unit, &grid),
        }
        unit.release();
    }
}

/// Pairs of strips with pairs of tiles; then the tile that is left over, and the rows.
///
/// # Safety
/// As of [`multiply_rotated`], with chunks of `PARTS` whole columns.
#[inline(always)]
unsafe fn multiply_grid<L: UnitLanes, U: MatrixUnit, const PARTS: usize>(
    unit: &mut U,
    grid: &Grid<'_>,
) {
    let strips = grid.rows.len().div_ceil(STRIP);
    // All rows of a pair are there.
    let paired = grid.rows.len() / (2 * STRIP) * 2;
    let even = grid.panels.tiles / 2 * 2;
    // SAFETY: by this function's promise; these are the grid's strips and tiles.
    unsafe {
        multiply_blocks::<L, U, PARTS, 2, 2>(unit, grid, 0..paired, 0..even);
        multiply_blocks::<L, U, PARTS, 2, 1>(unit, grid, 0..paired, even..grid.panels.tiles);
        multiply_blocks::<L, U, PARTS, 1, 2>(unit, grid, paired..strips, 0..even);
        multiply_blocks::<L, U, PARTS, 1, 1>(unit, grid, paired..strips, even..grid.panels.tiles);
    }
}

/// What is multiplied: panels side by side, and strips of rows below one another.
struct Grid<'a> {
    panels: &'a Panels,
    activations: &'a RotatedRows,
    rows: Range<usize>,
    sums: TileSums,
}

impl Grid<'_> {
    /// # Safety
    /// There are sums of all rows.
    unsafe fn clear_sums(&self) {
        for tile in 0..self.panels.tiles {
            // SAFETY: by this function's promise.
            unsafe {
                let start = self.sums.start.add(tile * self.sums.stride * TILE);
                start.write_bytes(0, self.rows.len() * TILE);
            }
        }
    }

    fn block(&self, strip: usize, tile: usize, chunk: usize) -> Block {
        let (activations, panels) = (self.activations, self.panels);
        let row = strip * STRIP;
        let at = (panels.first + chunk) * activations.capacity + self.rows.start + row;
        Block {
            codes: activations.codes.wrapping_add(at * activations.chunk),
            metas: activations.metas.wrapping_add(at),
            panel: panels
                .start
                .wrapping_add(tile * panels.stride + chunk * chunk_bytes(activations.chunk)),
            sums: self.sums.start.wrapping_add((tile * self.sums.stride + row) * TILE),
            rows: self.rows.len() - row,
        }
    }
}

/// A chunk of some strips and panels: where those of the first begin.
#[derive(Clone, Copy)]
struct Block {
    codes: *const i8,
    metas: *const ChunkMeta,
    panel: *const u8,
    sums: *mut f32,
    /// Rows from its first on, of which it has a part.
    rows: usize,
}

/// Multiplies `strips` with the panels of `tiles`, `STRIPS` by `TILES` at a time.
///
/// Chunks vary fastest and strips slowest: a strip's columns come to the first-level cache once for all
/// panels, and those of the next are asked for meanwhile. While a block is multiplied, the products of that
/// before it are stored, each when its slot is needed, and then scaled.
///
/// # Safety
/// As of [`multiply_rotated`], with chunks of `PARTS` whole columns. Strips and tiles are whole multiples of
/// those at a time; of a single strip all rows need not be there.
#[inline(always)]
unsafe fn multiply_blocks<
    L: UnitLanes,
    U: MatrixUnit,
    const PARTS: usize,
    const STRIPS: usize,
    const TILES: usize,
>(
    unit: &mut U,
    grid: &Grid<'_>,
    strips: Range<usize>,
    tiles: Range<usize>,
) {
    let (depth, across) = (grid.panels.depth, tiles.len() / TILES);
    let blocks = strips.len() / STRIPS * across * depth;
    if blocks == 0 {
        return;
    }
    let products = PARTS * STRIPS * TILES;
    let lines = STRIPS * STRIP * PARTS * WHOLE_COLUMNS / LINE;
    let mut rooms = Rooms([MaybeUninit::uninit(); SLOTS]);
    let mut step = Step::<PARTS, STRIPS, TILES> {
        block: None,
        previous: None,
        rooms: rooms.0.as_mut_ptr().cast(),
        stride: grid.sums.stride,
        panel_stride: grid.panels.stride,
        fetched: grid.activations.codes,
        share: lines.div_ceil(across * products),
    };
    let (mut strip, mut tile, mut chunk) = (strips.start, tiles.start, 0);
    for index in 0..=blocks {
        (step.previous, step.block) = (step.block, None);
        if index < blocks {
            let block = grid.block(strip, tile, chunk);
            // The same chunk of the next strips, a part of it with each panel.
            let done = (tile - tiles.start) / TILES * products * step.share;
            step.fetched = block.codes.wrapping_add((lines + done) * LINE);
            step.block = Some(block);
            if strip + STRIPS == strips.end {
                step.share = 0;
            }
            chunk += 1;
            if chunk == depth {
                (chunk, tile) = (0, tile + TILES);
            }
            if tile == tiles.end {
                (tile, strip) = (tiles.start, strip + STRIPS);
            }
        }
        // SAFETY: by this function's promise; the blocks are the grid's.
        unsafe { step.run::<L, U>(unit) };
    }
}

/// A block, and what is left to do of that before it.
struct Step<const PARTS: usize, const STRIPS: usize, const TILES: usize> {
    block: Option<Block>,
    /// Whose products are in the unit's slots.
    previous: Option<Block>,
    /// `[slots][16][16]`
    rooms: *mut i32,
    /// Rows from one tile's sums to the next's.
    stride: usize,
    /// Bytes from one tile's panel to the next's.
    panel_stride: usize,
    /// Lines to ask for, and how many of them with each product.
    fetched: *const i8,
    share: usize,
}

impl<const PARTS: usize, const STRIPS: usize, const TILES: usize> Step<PARTS, STRIPS, TILES> {
    /// Products of the block, with a part of the work on those before behind each.
    ///
    /// # Safety
    /// As of [`multiply_blocks`]; there are rooms for all slots.
    #[inline(always)]
    unsafe fn run<L: UnitLanes, U: MatrixUnit>(&self, unit: &mut U) {
        // SAFETY: by this function's promise; strips and panels are loaded for the first product that
        // takes them, slots are stored before they are cleared and before their rooms are read.
        unsafe {
            macro_rules! product {
                ($part:literal, $strip:literal, $tile:literal, $slot:literal) => {
                    if $strip < STRIPS && $tile < TILES {
                        if let Some(block) = &self.block {
                            if $tile == 0 {
                                let row = $strip * STRIP * PARTS * WHOLE_COLUMNS;
                                let from = block.codes.add(row + $part * WHOLE_COLUMNS);
                                unit.load_strip::<$strip>(from, PARTS * WHOLE_COLUMNS);
                            }
                            if $strip == 0 {
                                let panel = block.panel.add($tile * self.panel_stride).cast::<i8>();
                                unit.load_panel::<$tile>(panel.add($part * PANEL_BYTES));
                            }
                        }
                        if $part == 0 && self.previous.is_some() {
                            unit.store::<$slot>(self.rooms.add($slot * STRIP * TILE));
                        }
                        if self.block.is_some() {
                            if $part == 0 {
                                unit.clear::<$strip, $tile>();
                            }
                            unit.multiply::<$strip, $tile>();
                        }
                        let index = ($part * STRIPS + $strip) * TILES + $tile;
                        for line in index * self.share..(index + 1) * self.share {
                            L::prefetch_near(self.fetched.wrapping_add(line * LINE).cast());
                        }
                        if $part == 1 {
                            let (each, index) = (STRIP / TILES, $strip * TILES + $tile);
                            self.scale::<L>(index * each..(index + 1) * each);
                        }
                    }
                };
            }
            macro_rules! part {
                ($part:literal) => {
                    product!($part, 0, 0, 0);
                    product!($part, 0, 1, 1);
                    product!($part, 1, 0, 2);
                    product!($part, 1, 1, 3);
                };
            }
            part!(0);
            if PARTS == 1 {
                self.scale::<L>(0..STRIPS * STRIP);
            } else {
                part!(1);
            }
            if PARTS == 3 {
                part!(2);
            }
        }
    }

    /// Scales the products of some of the previous block's rows and adds them to the sums.
    ///
    /// # Safety
    /// As of [`Step::run`]; the rows' products are in their rooms.
    #[inline(always)]
    unsafe fn scale<L: UnitLanes>(&self, rows: Range<usize>) {
        let Some(block) = &self.previous else { return };
        // SAFETY: by this function's promise.
        unsafe {
            let scales_at = code_bytes(PARTS * WHOLE_COLUMNS);
            let scale =
                |tile: usize| L::load(block.panel.add(tile * self.panel_stride + scales_at).cast());
            let scales = [scale(0), scale(TILES - 1)];
            for row in rows {
                if STRIPS == 1 && row >= block.rows {
                    return;
                }
                let step = L::splat((*block.metas.add(row)).step);
                for (tile, scale) in scales.into_iter().enumerate().take(TILES) {
                    let slot = 2 * (row / STRIP) + tile;
                    let product = L::load_i32(self.rooms.add((slot * STRIP + row % STRIP) * TILE));
                    let sum = block.sums.add((tile * self.stride + row) * TILE);
                    L::store(sum, L::fma(product, L::mul(scale, step), L::load(sum)));
                }
            }
        }
    }
}
