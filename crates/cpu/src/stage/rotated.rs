//! Products of many rows in rotated form.

use super::product::{Product, Weights};
use super::sums::Sums;
use super::{Activations, Play, WorkerScratch};
use crate::pack::LINE;
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
            sums: vec![Sums::ZERO; rows],
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
                    let sums = Sums::values(sums).as_mut_ptr();
                    // The next tile's part of these columns is further away than the hardware looks.
                    (play.kernels.prefetch)(source.tile.wrapping_add(next), lines);
                    (form.multiply)(panel, first, &activations, rows.clone(), sums);
                }
            }
        }
        let sums = sums.chunks_exact_mut(rows.len());
        // SAFETY: by the promise of `Stage::run`.
        unsafe { self.put_sums(play, part, tiles, rows, gate, sums) };
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
