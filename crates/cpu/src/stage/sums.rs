//! Sums of products that wait in a worker's scratch until all columns were added.

use super::Play;
use super::product::{Product, ROWS_AT_ONCE, Weights};
use crate::pack::TILE;
use pianola_plan::Activation;
use std::ops::Range;

/// Sums of 16 outputs of a row; a cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct Sums([f32; TILE]);

impl Sums {
    pub const ZERO: Sums = Sums([0.0; TILE]);

    /// The values of some.
    pub fn values(sums: &mut [Sums]) -> &mut [f32] {
        // SAFETY: each is 16 f32, and nothing else.
        unsafe { std::slice::from_raw_parts_mut(sums.as_mut_ptr().cast(), sums.len() * TILE) }
    }
}

impl Product {
    /// Puts the sums of some tiles of a part with `rows` where they belong: `[tiles][stride]`, of which the
    /// first are those of the rows.
    pub(super) unsafe fn put_sums(
        &self,
        play: &Play<'_>,
        part: &Weights,
        tiles: Range<usize>,
        rows: Range<usize>,
        gate: Option<Activation>,
        (sums, stride): (&mut [Sums], usize),
    ) {
        if fault!(play, WrongTail) && rows.len() > 1 && !rows.len().is_multiple_of(8) {
            // The last row is that before it.
            let last = rows.len() - 1;
            sums.chunks_exact_mut(stride).for_each(|sums| sums[last] = sums[last - 1]);
        }
        // Some rows of all tiles, then the next rows: what they write of a row lies side by side.
        for start in rows.clone().step_by(ROWS_AT_ONCE) {
            let end = rows.end.min(start + ROWS_AT_ONCE);
            for (tile, sums) in tiles.clone().zip(sums.chunks_exact_mut(stride)) {
                let sums = &mut Sums::values(sums)[(start - rows.start) * TILE..];
                // SAFETY: by the promise of `Stage::run`.
                unsafe { self.put(play, part, tile, start..end, gate, sums) };
            }
        }
    }
}
