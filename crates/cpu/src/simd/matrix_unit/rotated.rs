//! Rotated products on a matrix unit: its sums stay in it for a whole chunk of columns.

use super::{MatrixUnit, Rooms, SCALED_BEHIND, SLOTS, STORED_BEHIND, STRIP, UnitLanes};
use crate::pack::TILE;
use crate::simd::rotated::{PanelChunk, RotatedRows};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Columns that a unit takes at a time.
pub(crate) const WHOLE_COLUMNS: usize = 64;

/// See [`crate::simd::rotated::MultiplyPanel`]; the panel's codes are signed.
///
/// Strips are multiplied with chunk after chunk, one product begun before those behind it are stored and
/// scaled, from the first strip to the last.
///
/// # Safety
/// The processor has `U` and the instructions of `L`. Rows begin with a strip and have the panel's chunks,
/// activations have room for whole strips, and `sums` for the rows.
#[inline(always)]
pub(crate) unsafe fn multiply_rotated<L: UnitLanes, U: MatrixUnit>(
    panel: &[PanelChunk],
    first: usize,
    activations: &RotatedRows,
    rows: Range<usize>,
    sums: *mut f32,
) {
    let products = rows.len().div_ceil(STRIP) * panel.len();
    let mut rooms = Rooms([MaybeUninit::uninit(); SLOTS]);
    let rooms = rooms.0.as_mut_ptr();
    // SAFETY: by this function's promise; products in work have slots and rooms of their own, which are
    // written before they are read.
    unsafe {
        let room = |product: usize| rooms.add(product % SLOTS).cast::<i32>();
        // Strip and chunk of a product, and where the strip's rows of the chunk lie.
        let place = |product: usize| {
            let (strip, chunk) = (product / panel.len(), product % panel.len());
            let at = (first + chunk) * activations.capacity + rows.start + strip * STRIP;
            (strip, chunk, at)
        };
        let mut unit = U::configure_whole();
        // Products that have not begun wrap around to beyond the last.
        macro_rules! product {
            ($product:expr, $slot:literal, $stored:literal) => {
                let product: usize = $product;
                if product < products {
                    let (_, chunk, at) = place(product);
                    let strip = activations.codes.add(at * activations.chunk).cast_const();
                    let panel = panel[chunk].codes.as_ptr().cast();
                    unit.start_whole::<$slot>(strip, panel, activations.chunk);
                }
                let stored = product.wrapping_sub(STORED_BEHIND);
                if stored < products {
                    unit.store::<$stored>(room(stored));
                }
                let scaled = stored.wrapping_sub(SCALED_BEHIND);
                if scaled < products {
                    let (strip, chunk, at) = place(scaled);
                    let count = STRIP.min(rows.len() - strip * STRIP);
                    let sums = sums.add(strip * STRIP * TILE);
                    let scale = L::load(panel[chunk].scales.as_ptr());
                    for row in 0..count {
                        let step = L::splat((*activations.metas.add(at + row)).step);
                        let sum = match first + chunk {
                            0 => L::splat(0.0),
                            _ => L::load(sums.add(row * TILE)),
                        };
                        let product = L::load_i32(room(scaled).add(row * TILE));
                        let sum = L::fma(product, L::mul(scale, step), sum);
                        L::store(sums.add(row * TILE), sum);
                    }
                }
            };
        }
        const { assert!(SLOTS == 4 && STORED_BEHIND == 2 && SCALED_BEHIND < 2) };
        for product in (0..products + STORED_BEHIND + SCALED_BEHIND).step_by(SLOTS) {
            product!(product, 0, 2);
            product!(product + 1, 1, 3);
            product!(product + 2, 2, 0);
            product!(product + 3, 3, 1);
        }
        unit.release();
    }
}
