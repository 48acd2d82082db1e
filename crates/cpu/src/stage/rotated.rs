//! Products of many rows in rotated form.

use super::product::{Product, Weights};
use super::sums::Sums;
use super::{Activations, Play, WorkerScratch};
use crate::pack::LINE;
use crate::policy::{MOST_PANEL_CHUNKS, MOST_ROTATED_ROWS, PanelGroup, sums_stride};
use crate::simd::rotated::{
    FillPanel, FloatChunk, MultiplyPanels, PanelChunk, PanelSource, Panels, RotatedRows, TileSums,
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
    pub group: PanelGroup,
    pub multiply: MultiplyPanels,
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
    panels: Vec<PanelChunk>,
    /// `[tiles][sums_stride]`, as many as a job has.
    sums: Vec<Sums>,
}

impl RotatedScratch {
    pub fn new(exists: bool) -> RotatedScratch {
        let (chunks, rows) = if exists { (MOST_PANEL_CHUNKS, MOST_ROTATED_ROWS) } else { (0, 0) };
        RotatedScratch {
            room: Box::new(FloatChunk::ZERO),
            panels: vec![PanelChunk::ZERO; chunks],
            sums: vec![Sums::ZERO; rows],
        }
    }
}

impl Product {
    /// Products of some tiles of a part with `rows`, put where they belong.
    ///
    /// Columns vary slowest: those of the rows stay in the second-level cache while one group of tiles after
    /// another meets them.
    pub(super) unsafe fn rotated_tiles(
        &self,
        play: &Play<'_>,
        (part, form, fill): (&Weights, &RotatedForm, FillPanel),
        tiles: Range<usize>,
        rows: Range<usize>,
        gate: Option<Activation>,
        scratch: &mut WorkerScratch,
    ) {
        let RotatedScratch { room, panels, sums } = &mut scratch.rotated;
        let activations = form.rows(&self.activations);
        let chunks = self.columns / form.chunk;
        let stride = sums_stride(rows.len());
        for first in (0..chunks).step_by(form.group.chunks) {
            let depth = form.group.chunks.min(chunks - first);
            let groups = tiles.clone().step_by(form.group.tiles);
            for (start, sums) in groups.zip(sums.chunks_mut(form.group.tiles * stride)) {
                let group = start..tiles.end.min(start + form.group.tiles);
                let panels = &mut panels[..group.len() * depth];
                for (tile, panel) in group.clone().zip(panels.chunks_exact_mut(depth)) {
                    let source = source(play, part, tile, (form, first));
                    // SAFETY: by the promise of `Stage::run`.
                    unsafe { fill(&source, room, panel) };
                    let next = match tile + form.group.tiles {
                        next if next < tiles.end => (next, first, depth),
                        _ => (tiles.start + tile - start, first + depth, depth),
                    };
                    prefetch(play, part, next, chunks);
                }
                let panels = Panels { chunks: panels, tiles: group.len(), first };
                let sums = TileSums { start: Sums::values(sums).as_mut_ptr(), stride };
                // SAFETY: by the promise of `Stage::run`; prologues have left the rows.
                unsafe { (form.multiply)(&panels, &activations, rows.clone(), sums) };
            }
        }
        let sums = sums.chunks_exact_mut(stride);
        // SAFETY: by the promise of `Stage::run`.
        unsafe { self.put_sums(play, part, tiles, rows, gate, sums) };
    }
}

/// Asks for `depth` of a tile's chunks, from `first` on: they are further away than the hardware looks.
fn prefetch(
    play: &Play<'_>,
    part: &Weights,
    (tile, first, depth): (usize, usize, usize),
    chunks: usize,
) {
    // SAFETY: matrices outlive the recording's stages.
    let matrix = unsafe { &*part.matrix };
    let from = matrix.tile(0).as_ptr().wrapping_add(tile * matrix.tile_stride);
    let lines = (matrix.tile_bytes * depth / chunks).div_ceil(LINE);
    // SAFETY: a prefetch reads nothing.
    unsafe {
        (play.kernels.prefetch)(from.wrapping_add(matrix.tile_bytes * first / chunks), lines);
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
