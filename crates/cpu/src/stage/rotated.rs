//! Products of many rows in rotated form.

use super::product::{Product, Weights};
use super::sums::Sums;
use super::{Activations, Play, WorkerScratch};
use crate::kept::panel_bytes;
use crate::pack::LINE;
use crate::policy::{MOST_PANEL_CHUNKS, MOST_ROTATED_ROWS, PanelGroup, sums_stride};
use crate::simd::rotated::{
    FillPanel, FloatChunk, MOST_COLUMNS, MultiplyPanels, NextPanels, PanelLine, PanelSource,
    Panels, RotatedRows, TileSums, chunk_bytes,
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
    /// Panels that are made before all rows meet them, and of kept ones those that all rows meet before others.
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
    panels: Vec<PanelLine>,
    /// `[tiles][sums_stride]`, as many as a job has.
    sums: Vec<Sums>,
}

impl RotatedScratch {
    pub fn new(exists: bool) -> RotatedScratch {
        let (chunks, rows) = if exists { (MOST_PANEL_CHUNKS, MOST_ROTATED_ROWS) } else { (0, 0) };
        RotatedScratch {
            room: Box::new(FloatChunk::ZERO),
            panels: vec![PanelLine::ZERO; chunks * chunk_bytes(MOST_COLUMNS) / LINE],
            sums: vec![Sums::ZERO; rows],
        }
    }
}

/// Panels of some tiles that all rows of a job meet before others, of `depth` chunks from `first` on.
struct Group {
    tiles: Range<usize>,
    first: usize,
    depth: usize,
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
            let starts = tiles.clone().step_by(form.group.tiles);
            for (start, sums) in starts.zip(sums.chunks_mut(form.group.tiles * stride)) {
                let group =
                    Group { tiles: start..tiles.end.min(start + form.group.tiles), first, depth };
                let panels = match part.kept(play) {
                    Some(kept) => self.kept_panels(kept, form, &group, &tiles),
                    None => {
                        let room = (&mut **room, &mut panels[..]);
                        // SAFETY: by the promise of `Stage::run`.
                        unsafe { self.made_panels(play, (part, form, fill), &group, &tiles, room) }
                    }
                };
                let sums = TileSums { start: Sums::values(sums).as_mut_ptr(), stride };
                // SAFETY: by the promise of `Stage::run`; prologues have left the rows.
                unsafe { (form.multiply)(&panels, &activations, rows.clone(), sums) };
            }
        }
        // SAFETY: by the promise of `Stage::run`.
        unsafe { self.put_sums(play, part, tiles, rows, gate, (sums, stride)) };
    }

    /// Panels that were made at load.
    fn kept_panels(
        &self,
        kept: *const u8,
        form: &RotatedForm,
        group: &Group,
        tiles: &Range<usize>,
    ) -> Panels {
        let stride = panel_bytes(self.columns, form.chunk);
        let each = chunk_bytes(form.chunk);
        let at = |tile: usize, chunk: usize| kept.wrapping_add(tile * stride + chunk * each);
        let chunks = self.columns / form.chunk;
        let (tile, first) = match group.tiles.end {
            end if end < tiles.end => (end, group.first),
            _ => (tiles.start, group.first + group.depth),
        };
        let depth = group.depth.min(chunks.saturating_sub(first));
        let next = NextPanels {
            start: at(tile, first),
            tiles: form.group.tiles.min(tiles.end - tile),
            lines: depth * each / LINE,
            stride,
        };
        Panels {
            start: at(group.tiles.start, group.first),
            tiles: group.tiles.len(),
            stride,
            first: group.first,
            depth: group.depth,
            next,
        }
    }

    /// Panels made of the file's weights, in a worker's room.
    unsafe fn made_panels(
        &self,
        play: &Play<'_>,
        (part, form, fill): (&Weights, &RotatedForm, FillPanel),
        group: &Group,
        tiles: &Range<usize>,
        (room, panels): (&mut FloatChunk, &mut [PanelLine]),
    ) -> Panels {
        let &Group { first, depth, .. } = group;
        let chunks = self.columns / form.chunk;
        let stride = depth * chunk_bytes(form.chunk);
        let panels = &mut panels[..group.tiles.len() * stride / LINE];
        for (index, tile) in group.tiles.clone().enumerate() {
            let source = source(play, part, tile, (form, first, depth));
            let panel = panels[index * stride / LINE..].as_mut_ptr();
            // SAFETY: by the promise of `Stage::run`; the panel has room for the chunks.
            unsafe { fill(&source, room, panel.cast()) };
            let next = match tile + form.group.tiles {
                next if next < tiles.end => (next, first, depth),
                _ => (tiles.start + index, first + depth, depth),
            };
            prefetch(play, part, next, chunks);
        }
        let start = panels.as_ptr().cast();
        Panels { start, tiles: group.tiles.len(), stride, first, depth, next: NextPanels::NONE }
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
#[cfg_attr(not(any(test, feature = "test-hooks")), allow(unused_variables))]
fn source(
    play: &Play<'_>,
    part: &Weights,
    tile: usize,
    (form, first, chunks): (&RotatedForm, usize, usize),
) -> PanelSource {
    // SAFETY: matrices outlive the recording's stages.
    let matrix = unsafe { &*part.matrix };
    PanelSource {
        tile: matrix.tile(tile).as_ptr(),
        chunk: form.chunk,
        first,
        chunks,
        zero: form.zero,
        #[cfg(any(test, feature = "test-hooks"))]
        fault: play.fault.filter(|_| part.is_faulty(tile)).map(|fault| (fault, matrix.columns)),
    }
}
