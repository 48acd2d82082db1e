//! Products of many rows in rotated form.

use super::product::{Product, Weights};
use super::{Activations, Play, WorkerScratch};
use crate::pack::{LINE, TILE};
use crate::policy::ROTATED_CUT;
use crate::simd::rotated::{
    FillPanel, FloatChunk, MultiplyPanel, PANEL_CHUNKS, PanelChunk, PanelSource, RotatedRows,
};
use pianola_plan::Activation;
use std::ops::Range;

/// How products of many rows are computed, and from how many on.
#[derive(Clone, Copy)]
pub(crate) struct RotatedForm {
    /// Columns of a chunk.
    pub chunk: usize,
    /// Rows that activations have room for.
    pub capacity: usize,
    pub least_rows: usize,
    pub multiply: MultiplyPanel,
    /// What the kernel wants added to codes of weights.
    pub zero: u8,
}

impl RotatedForm {
    /// Where prologues leave rotated rows, in place of others.
    pub fn rows(&self, activations: &Activations) -> RotatedRows {
        let (codes, metas) = (activations.codes, activations.metas.cast());
        RotatedRows { codes, metas, capacity: self.capacity, chunk: self.chunk }
    }
}

/// Sums of 16 outputs of a row; a cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Sums([f32; TILE]);

/// What a worker has for rotated products: nothing where there are none.
pub(super) struct RotatedScratch {
    room: Box<FloatChunk>,
    panel: Vec<PanelChunk>,
    /// `[tiles][rows]`, as many as a job has.
    sums: Vec<Sums>,
}

impl RotatedScratch {
    pub fn new(exists: bool) -> RotatedScratch {
        let (chunks, rows) =
            if exists { (PANEL_CHUNKS, ROTATED_CUT.tiles * ROTATED_CUT.rows) } else { (0, 0) };
        RotatedScratch {
            room: Box::new(FloatChunk::ZERO),
            panel: vec![PanelChunk::ZERO; chunks],
            sums: vec![Sums([0.0; TILE]); rows],
        }
    }
}

impl Product {
    /// Products of some tiles of a part with `rows`, put where they belong.
    ///
    /// Columns vary slowest: those of the rows stay in the second-level cache while tile after tile
    /// meets them.
    pub(super) unsafe fn rotated_tiles(
        &self,
        play: &Play<'_>,
        (part, form, fill): (&Weights, &RotatedForm, FillPanel),
        tiles: Range<usize>,
        rows: Range<usize>,
        gate: Option<Activation>,
        scratch: &mut WorkerScratch,
    ) {
        let RotatedScratch { room, panel, sums } = &mut scratch.rotated;
        let activations = form.rows(&self.activations);
        let chunks = self.columns / form.chunk;
        for first in (0..chunks).step_by(PANEL_CHUNKS) {
            let panel = &mut panel[..PANEL_CHUNKS.min(chunks - first)];
            // SAFETY: matrices outlive the recording's stages.
            let matrix = unsafe { &*part.matrix };
            let next = matrix.tile_stride + matrix.tile_bytes * first / chunks;
            let lines = (matrix.tile_bytes * panel.len() / chunks).div_ceil(LINE);
            for (tile, sums) in tiles.clone().zip(sums.chunks_exact_mut(rows.len())) {
                let source = source(play, part, tile, (form, first));
                // SAFETY: by the promise of `Stage::run`; prologues have left the rows.
                unsafe {
                    fill(&source, room, panel);
                    let sums = values(sums).as_mut_ptr();
                    // The next tile's part of these columns is further away than the hardware looks.
                    (play.kernels.prefetch)(source.tile.wrapping_add(next), lines);
                    (form.multiply)(panel, first, &activations, rows.clone(), sums);
                }
            }
        }
        for (tile, sums) in tiles.zip(sums.chunks_exact_mut(rows.len())) {
            let sums = values(sums);
            if fault!(play, WrongTail) && rows.len() > 1 && !rows.len().is_multiple_of(8) {
                // The last row is that before it.
                let last = rows.len() - 1;
                sums.copy_within((last - 1) * TILE..last * TILE, last * TILE);
            }
            // SAFETY: by the promise of `Stage::run`.
            unsafe { self.put(play, part, tile, rows.clone(), gate, sums) };
        }
    }
}

/// Chunks of a tile, from `first` on.
#[cfg_attr(not(feature = "test-hooks"), allow(unused_variables))]
fn source(
    play: &Play<'_>,
    part: &Weights,
    tile: usize,
    (form, first): (&RotatedForm, usize),
) -> PanelSource {
    // SAFETY: matrices outlive the recording's stages.
    let matrix = unsafe { &*part.matrix };
    PanelSource {
        tile: matrix.tile(tile).as_ptr(),
        chunk: form.chunk,
        first,
        zero: form.zero,
        #[cfg(feature = "test-hooks")]
        fault: play.fault.filter(|_| part.is_faulty(tile)).map(|fault| (fault, matrix.columns)),
    }
}

fn values(sums: &mut [Sums]) -> &mut [f32] {
    // SAFETY: each is 16 f32, and nothing else.
    unsafe { std::slice::from_raw_parts_mut(sums.as_mut_ptr().cast(), sums.len() * TILE) }
}
