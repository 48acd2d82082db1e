//! Panels times rows, by vectors.

use super::{
    CHUNK, NextPanels, Panels, RotatedRows, SMALL_BLOCK, THREE_BLOCKS, TileSums, chunk_bytes,
    code_bytes,
};
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
    let lines = panels.next.tiles * panels.next.lines;
    let mut fetch = Fetch { next: panels.next, share: lines.div_ceil(chunks.max(1)), asked: 0 };
    let mut tile = 0;
    while tile < panels.tiles {
        // SAFETY: by this function's promise.
        unsafe {
            let sums = TileSums { start: sums.start.add(tile * sums.stride * TILE), ..sums };
            let start = panels.start.add(tile * panels.stride);
            let some = Panels { start, ..*panels };
            if L::TWO_TILES && panels.tiles - tile >= 2 {
                multiply_tiles::<L, 2>(&some, activations, rows.clone(), sums, &mut fetch);
                tile += 2;
            } else {
                multiply_tiles::<L, 1>(&some, activations, rows.clone(), sums, &mut fetch);
                tile += 1;
            }
        }
    }
}

/// What is asked for while panels are multiplied, a part with each chunk of eight rows: what is read after many rows is further
/// away than the hardware looks.
struct Fetch {
    next: NextPanels,
    /// Lines with each chunk of a tile.
    share: usize,
    /// Lines that were asked for.
    asked: usize,
}

impl Fetch {
    /// Those of a chunk of `tiles` tiles.
    ///
    /// # Safety
    /// That of the instructions of `L`.
    #[inline(always)]
    unsafe fn some<L: Lanes>(&mut self, tiles: usize) {
        let end = (self.asked + tiles * self.share).min(self.next.tiles * self.next.lines);
        for line in self.asked..end {
            // SAFETY: a prefetch reads nothing.
            unsafe { L::prefetch(self.next.line(line)) };
        }
        self.asked = end;
    }
}

/// [`multiply`] of the first `T` tiles.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn multiply_tiles<L: Lanes, const T: usize>(
    panels: &Panels,
    activations: &RotatedRows,
    rows: Range<usize>,
    sums: TileSums,
    fetch: &mut Fetch,
) {
    macro_rules! runs {
        ($lengths:tt) => {
            let (start, rows) = (rows.start, rows.len());
            in_runs!(rows, row, COUNT, $lengths, {
                // SAFETY: by this function's promise, for some of its rows.
                unsafe {
                    let at = TileSums { start: sums.start.add(row * TILE), ..sums };
                    let row = start + row;
                    match activations.chunk {
                        CHUNK => {
                            multiply_rows::<L, CHUNK, T, COUNT>(
                                panels,
                                activations,
                                row,
                                at,
                                fetch,
                            );
                        }
                        THREE_BLOCKS => multiply_rows::<L, THREE_BLOCKS, T, COUNT>(
                            panels,
                            activations,
                            row,
                            at,
                            fetch,
                        ),
                        _ => multiply_rows::<L, SMALL_BLOCK, T, COUNT>(
                            panels,
                            activations,
                            row,
                            at,
                            fetch,
                        ),
                    }
                }
            });
        };
    }
    // Registers for the products of so many rows.
    if L::TWO_TILES {
        runs!([8 4 2 1]);
    } else {
        runs!([4 2 1]);
    }
}

/// [`multiply`] of the first `T` tiles with `R` rows at once, and chunks of `COLUMNS` columns. Two tiles share what is
/// loaded of the rows: with one, a processor that multiplies two vectors a cycle waits for loads.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn multiply_rows<L: Lanes, const COLUMNS: usize, const T: usize, const R: usize>(
    panels: &Panels,
    activations: &RotatedRows,
    row: usize,
    sums: TileSums,
    fetch: &mut Fetch,
) {
    const { assert!(T <= 2 && R <= 8, "each_below! knows eight") };
    // SAFETY: by this function's promise.
    unsafe {
        for index in 0..panels.depth {
            let weights_of: [*const u8; T] = std::array::from_fn(|tile| {
                panels.start.add(tile * panels.stride + index * chunk_bytes(COLUMNS))
            });
            let at = (panels.first + index) * activations.capacity + row;
            let codes = activations.codes.add(at * COLUMNS).cast_const();
            let metas = activations.metas.add(at).cast_const();
            fetch.some::<L>(T);
            for line in (0..R * COLUMNS).step_by(LINE) {
                // The rows that come next lie behind these.
                L::prefetch_near(codes.wrapping_add(R * COLUMNS + line).cast());
            }
            let mut products = [[L::splat_i32(0); R]; T];
            each_below!(R, row, {
                products[0][row] = L::splat_i32((*metas.add(row)).offset);
                each_below!(T, tile, { products[tile][row] = products[0][row] });
            });
            for group in 0..COLUMNS / 4 {
                let mut weights = [L::load_bytes(weights_of[0].add(4 * TILE * group)); T];
                if T > 1 {
                    weights[T - 1] = L::load_bytes(weights_of[T - 1].add(4 * TILE * group));
                }
                each_below!(R, row, {
                    let word = codes.add(row * COLUMNS + 4 * group).cast::<i32>().read_unaligned();
                    each_below!(T, tile, {
                        products[tile][row] = L::dot_wide(products[tile][row], weights[tile], word);
                    });
                });
            }
            // Sums stay in the first-level cache: registers are taken by products.
            let begins = panels.first + index == 0;
            each_below!(T, tile, {
                let scale = L::load(weights_of[tile].add(code_bytes(COLUMNS)).cast());
                let sums = sums.start.add(tile * sums.stride * TILE);
                each_below!(R, row, {
                    let step = L::mul(scale, L::splat((*metas.add(row)).step));
                    let at = sums.add(row * TILE);
                    let sum = if begins { L::splat(0.0) } else { L::load(at) };
                    L::store(at, L::fma(L::to_f32(products[tile][row]), step, sum));
                });
            });
        }
    }
}
