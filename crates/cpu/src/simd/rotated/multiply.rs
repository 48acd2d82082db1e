//! Panels times rows, by vectors.

use super::{CHUNK, NextPanels, Panels, RotatedRows, TileSums, chunk_bytes, code_bytes};
use crate::pack::{LINE, TILE};
use crate::simd::lanes::Lanes;
use crate::simd::product::{each_below, in_runs};
use std::ops::Range;

/// See [`super::MultiplyPanels`]; the panels' codes are [`super::UNSIGNED`] higher.
///
/// # Safety
/// The rows exist and have the panels' chunks; `sums` has room.
#[inline(always)]
pub(crate) unsafe fn multiply<L: Lanes>(
    panels: &Panels,
    activations: &RotatedRows,
    rows: Range<usize>,
    sums: TileSums,
) {
    let chunks = panels.tiles * rows.len().div_ceil(8) * panels.depth;
    let share = panels.next.lines.div_ceil(chunks.max(1));
    let mut fetch = Fetch { next: panels.next, share };
    for tile in 0..panels.tiles {
        // SAFETY: by this function's promise.
        unsafe {
            let sums = sums.start.add(tile * sums.stride * TILE);
            let panel = Panel {
                start: panels.start.add(tile * panels.stride),
                first: panels.first,
                depth: panels.depth,
            };
            multiply_tile::<L>(&panel, activations, rows.clone(), sums, &mut fetch);
        }
    }
}

/// What is asked for while panels are multiplied, a part with each chunk of eight rows: what is read after many rows is further
/// away than the hardware looks. (All at once was not tried; a core has few miss buffers.)
struct Fetch {
    next: NextPanels,
    /// Lines with each chunk.
    share: usize,
}

impl Fetch {
    /// # Safety
    /// That of the instructions of `L`.
    #[inline(always)]
    unsafe fn some<L: Lanes>(&mut self) {
        let count = self.share.min(self.next.lines);
        for line in 0..count {
            // SAFETY: a prefetch reads nothing.
            unsafe { L::prefetch(self.next.start.wrapping_add(line * LINE)) };
        }
        self.next.start = self.next.start.wrapping_add(count * LINE);
        self.next.lines -= count;
    }
}

/// The panel of one tile.
#[derive(Clone, Copy)]
struct Panel {
    start: *const u8,
    first: usize,
    depth: usize,
}

/// [`multiply`] of one tile's panel, with `sums` `[rows][16]`.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn multiply_tile<L: Lanes>(
    panel: &Panel,
    activations: &RotatedRows,
    rows: Range<usize>,
    sums: *mut f32,
    fetch: &mut Fetch,
) {
    let (start, rows) = (rows.start, rows.len());
    in_runs!(rows, row, COUNT, [8 4 2 1], {
        // SAFETY: by this function's promise, for some of its rows.
        unsafe {
            let (sums, row) = (sums.add(row * TILE), start + row);
            match activations.chunk {
                CHUNK => multiply_rows::<L, CHUNK, COUNT>(panel, activations, row, sums, fetch),
                _ => multiply_rows::<L, { CHUNK / 2 }, COUNT>(panel, activations, row, sums, fetch),
            }
        }
    });
}

/// [`multiply`] of `R` rows at once, and chunks of `COLUMNS` columns.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn multiply_rows<L: Lanes, const COLUMNS: usize, const R: usize>(
    panel: &Panel,
    activations: &RotatedRows,
    row: usize,
    sums_at: *mut f32,
    fetch: &mut Fetch,
) {
    const { assert!(R <= 8, "each_below! knows eight") };
    // SAFETY: by this function's promise.
    unsafe {
        let mut sums = [L::splat(0.0); R];
        if panel.first > 0 {
            each_below!(R, row, { sums[row] = L::load(sums_at.add(row * TILE)) });
        }
        for index in 0..panel.depth {
            let weights_at = panel.start.add(index * chunk_bytes(COLUMNS));
            let at = (panel.first + index) * activations.capacity + row;
            let codes = activations.codes.add(at * COLUMNS).cast_const();
            let metas = activations.metas.add(at).cast_const();
            fetch.some::<L>();
            let mut products = [L::splat_i32(0); R];
            each_below!(R, row, { products[row] = L::splat_i32((*metas.add(row)).offset) });
            for group in 0..COLUMNS / 4 {
                let weights = L::load_bytes(weights_at.add(4 * TILE * group));
                each_below!(R, row, {
                    let word = codes.add(row * COLUMNS + 4 * group).cast::<i32>();
                    products[row] = L::dot_wide(products[row], weights, word.read_unaligned());
                });
            }
            let scale = L::load(weights_at.add(code_bytes(COLUMNS)).cast());
            each_below!(R, row, {
                let step = L::mul(scale, L::splat((*metas.add(row)).step));
                sums[row] = L::fma(L::to_f32(products[row]), step, sums[row]);
            });
        }
        each_below!(R, row, { L::store(sums_at.add(row * TILE), sums[row]) });
    }
}
