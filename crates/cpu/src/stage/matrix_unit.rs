//! Products of many rows on a matrix unit.

use super::product::{Product, Weights};
use super::sums::Sums;
use super::{Activations, Play, WorkerScratch};
use crate::pack::BLOCK;
use crate::policy::UNIT_CUT;
use crate::simd::matrix_unit::{
    PANEL_BLOCKS, PANELS, PanelBlock, STRIP, Strips, UnitProduct, UnitTiles,
};
use pianola_plan::Activation;
use std::ops::Range;

/// What a worker has for products on a matrix unit: nothing where there is none.
pub(super) struct UnitScratch {
    panels: Vec<PanelBlock>,
    /// `[tiles][rows]`, as many as a job has.
    sums: Vec<Sums>,
}

impl UnitScratch {
    pub fn new(exists: bool) -> UnitScratch {
        let (blocks, rows) =
            if exists { (PANELS * PANEL_BLOCKS, UNIT_CUT.tiles * UNIT_CUT.rows) } else { (0, 0) };
        UnitScratch { panels: vec![PanelBlock::ZERO; blocks], sums: vec![Sums::ZERO; rows] }
    }
}

impl Product {
    /// Products of some tiles of a part with `rows`, which begin with a strip, put where they belong.
    ///
    /// Columns vary slowest: those of the rows stay in the cache while tile after tile meets them.
    pub(super) unsafe fn unit_tiles(
        &self,
        play: &Play<'_>,
        (part, product): (&Weights, UnitProduct),
        tiles: Range<usize>,
        rows: Range<usize>,
        gate: Option<Activation>,
        scratch: &mut WorkerScratch,
    ) {
        let UnitScratch { panels, sums } = &mut scratch.unit;
        let padded = rows.len().next_multiple_of(STRIP);
        let blocks = self.columns / BLOCK;
        let Activations { strips: codes, strip_metas: metas, .. } = self.activations;
        let strips = Strips { codes, metas, columns: self.columns };
        for start in (0..blocks).step_by(PANEL_BLOCKS) {
            let blocks = start..blocks.min(start + PANEL_BLOCKS);
            let groups = tiles.clone().step_by(PANELS);
            for (first, sums) in groups.zip(sums.chunks_mut(PANELS * padded)) {
                let group = unit_tiles(play, part, first..tiles.end.min(first + PANELS));
                let sums = Sums::values(&mut sums[..group.count * padded]);
                let strip = rows.start / STRIP;
                // SAFETY: by the promise of `Stage::run`; the rows are whole strips, or the last.
                unsafe { product(&group, &strips, strip, blocks.clone(), panels, sums) };
            }
        }
        // SAFETY: by the promise of `Stage::run`.
        unsafe { self.put_sums(play, part, tiles, rows, gate, (sums, padded)) };
    }
}

/// Some tiles of a part.
#[cfg_attr(not(any(test, feature = "test-hooks")), allow(unused_variables))]
fn unit_tiles(play: &Play<'_>, part: &Weights, tiles: Range<usize>) -> UnitTiles {
    // SAFETY: matrices outlive the recording's stages.
    let matrix = unsafe { &*part.matrix };
    UnitTiles {
        start: matrix.tile(tiles.start).as_ptr(),
        stride: matrix.tile_stride,
        count: tiles.len(),
        #[cfg(any(test, feature = "test-hooks"))]
        fault: (tiles.clone().position(|tile| part.is_faulty(tile)))
            .and_then(|index| Some((index, play.fault?))),
    }
}
