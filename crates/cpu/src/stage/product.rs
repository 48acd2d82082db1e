//! Products: tiles of weights against rows of activations.

use super::{Activations, Play, RotatedForm, Slab, WorkerScratch};
use crate::pack::{LINE, PackedMatrix, TILE};
use crate::policy::{
    ProductCut, STREAMING_ROWS, StreamFetch, UNIT_ROWS, cut_product, cut_rotated_product,
    cut_rows_by_worker, cut_unit_product, direct_rows,
};
use crate::simd::direct::{TILES_AT_ONCE, Tiles};
use crate::simd::kernels::{Dequantize, FloatProduct, QuantizedProduct};
use crate::simd::matrix_unit::UnitProduct;
use crate::simd::product::{FloatRows, QuantizedRows};
use crate::simd::rotated::FillPanel;
use crate::simd::rows::TileEpilogue;
use pianola_formats::TensorType;
use pianola_plan::Activation;
use std::ops::Range;

/// Rows of a product whose results wait in a worker's scratch.
pub(super) const ROWS_AT_ONCE: usize = 32;

/// One weight of a product, with the kernel for its type.
pub(crate) struct Weights {
    pub matrix: *const PackedMatrix,
    pub bias: Option<*const f32>,
    /// None: dequantise and multiply in f32.
    pub quantized: Option<QuantizedProduct>,
    pub dequantize: Dequantize,
    pub direct: FloatProduct,
    /// Many rows of a product with a quantised kernel.
    pub unit: Option<UnitProduct>,
    /// The same in rotated form.
    pub fill_panel: Option<FillPanel>,
    /// Panels of the first tile, where all are kept in rotated form.
    pub kept: Option<*const u8>,
    pub output: Slab,
    /// First tile of this part in the stage's count.
    pub first_tile: usize,
}

pub(crate) struct Product {
    pub parts: Vec<Weights>,
    pub gate: Option<Activation>,
    pub soft_cap: Option<f32>,
    pub logits: bool,
    /// So many rows at most come in pairs whose results are added; see [`super::Prologue::refined`].
    pub refined: usize,
    /// How quantised parts are computed from some number of rows on.
    pub rotated: Option<RotatedForm>,
    pub columns: usize,
    pub floats: FloatRows,
    pub activations: Activations,
}

impl Product {
    pub(super) fn rows(&self, play: &Play<'_>) -> usize {
        let rows = if self.logits { play.logits.len() } else { play.rows.len() };
        if self.is_refined(play) { 2 * rows } else { rows }
    }

    /// Whether rows come in pairs.
    fn is_refined(&self, play: &Play<'_>) -> bool {
        self.logits && play.logits.len() <= self.refined
    }

    /// The rotated form, where this play's products have it.
    fn rotated(&self, play: &Play<'_>) -> Option<&RotatedForm> {
        self.rotated.as_ref().filter(|form| self.rows(play) >= form.least_rows)
    }

    /// The kernel for a matrix unit, where this play uses it for a part.
    fn unit_product(&self, play: &Play<'_>, part: &Weights) -> Option<UnitProduct> {
        part.unit.filter(|_| self.rows(play) >= UNIT_ROWS && self.rotated(play).is_none())
    }

    fn cut(&self, play: &Play<'_>) -> ProductCut {
        if self.rotated(play).is_some() {
            let cut =
                if self.rows_by_worker(play) { cut_rows_by_worker } else { cut_rotated_product };
            return cut(self.tiles(), self.rows(play), play.workers);
        }
        if self.parts.iter().any(|part| self.unit_product(play, part).is_some()) {
            return cut_unit_product(self.tiles(), self.rows(play), play.workers);
        }
        let quantized = self.parts.iter().all(|part| part.quantized.is_some());
        let row_bytes = if quantized { self.columns } else { 4 * self.columns };
        cut_product(self.tiles(), self.rows(play), row_bytes, play.workers)
    }

    fn tiles(&self) -> usize {
        let last = &self.parts[if self.gate.is_some() { 0 } else { self.parts.len() - 1 }];
        // SAFETY: matrices outlive the recording's stages.
        last.first_tile + unsafe { &*last.matrix }.tiles()
    }

    pub fn jobs(&self, play: &Play<'_>) -> usize {
        let cut = self.cut(play);
        self.tiles().div_ceil(cut.tiles) * self.rows(play).div_ceil(cut.rows)
    }

    pub unsafe fn run(&self, play: &Play<'_>, job: usize, scratch: &mut WorkerScratch) {
        let (tiles, rows) = (self.tiles(), self.rows(play));
        let cut = self.cut(play);
        // Rows vary slowest: workers stream through the weights side by side.
        let chunks = tiles.div_ceil(cut.tiles);
        let first = job / chunks * cut.rows;
        let tiles = (job % chunks * cut.tiles)..tiles.min((job % chunks + 1) * cut.tiles);
        let rows = first..rows.min(first + cut.rows);
        for tiles in self.in_order(play, tiles, rows.len()) {
            for (index, part) in self.parts.iter().enumerate() {
                // SAFETY: matrices outlive the recording's stages.
                let end = part.first_tile + unsafe { &*part.matrix }.tiles();
                let (first, last) = (tiles.start.max(part.first_tile), tiles.end.min(end));
                let mine =
                    first.saturating_sub(part.first_tile)..last.saturating_sub(part.first_tile);
                let gate = self.gate.filter(|_| index == 1);
                // SAFETY: by this function's promise; tiles and rows are this job's.
                unsafe { self.part_tiles(play, part, mine, rows.clone(), gate, scratch) };
            }
        }
    }

    /// Cuts a job's tiles into runs of which each weight is read in turn: the order in which they lie
    /// in memory. The two weights of a gate lie tile by tile.
    fn in_order(
        &self,
        play: &Play<'_>,
        tiles: Range<usize>,
        rows: usize,
    ) -> impl Iterator<Item = Range<usize>> {
        let direct = self.parts.iter().any(|part| part.is_direct(play, rows));
        let unit = self.parts.iter().any(|part| self.unit_product(play, part).is_some());
        let step = match self.gate {
            _ if unit || self.rotated(play).is_some() => tiles.len().max(1),
            None => tiles.len().max(1),
            Some(_) if direct => TILES_AT_ONCE,
            Some(_) => 1,
        };
        let end = tiles.end;
        tiles.step_by(step).map(move |first| first..end.min(first + step))
    }

    /// Ranges of jobs that workers begin with, each with its own: one where the order of jobs does not
    /// matter for reading weights or rows.
    pub fn ranges(&self, play: &Play<'_>) -> usize {
        let streams = self.rows(play) <= STREAMING_ROWS;
        if streams || self.rows_by_worker(play) { play.workers } else { 1 }
    }

    /// Whether workers have rows of their own.
    fn rows_by_worker(&self, play: &Play<'_>) -> bool {
        play.rows_by_worker && !self.logits && self.rotated(play).is_some()
    }

    /// Weights of a product of a layer.
    pub fn layer_weights(&self) -> usize {
        let rows = |part: &Weights| {
            // SAFETY: matrices outlive the recording's stages.
            unsafe { &*part.matrix }.rows
        };
        if self.logits { 0 } else { self.columns * self.parts.iter().map(rows).sum::<usize>() }
    }

    /// The bytes that job `job` begins with, in the order in which they are read, for a play that
    /// streams its weights.
    pub fn first_bytes(&self, play: &Play<'_>, job: usize) -> Option<&[u8]> {
        let first = job * self.cut(play).tiles;
        let (matrix, tile) = self.parts.iter().find_map(|part| {
            // SAFETY: matrices outlive the recording's stages.
            let matrix = unsafe { &*part.matrix };
            let tile = first.checked_sub(part.first_tile)?;
            (tile < matrix.tiles()).then_some((matrix, tile))
        })?;
        (self.rows(play) <= STREAMING_ROWS).then(|| matrix.bytes_from(tile))
    }

    /// Products of some tiles of a part with `rows`, put where they belong; with `gate`, multiplied by
    /// the activation of what is there already.
    unsafe fn part_tiles(
        &self,
        play: &Play<'_>,
        part: &Weights,
        tiles: Range<usize>,
        rows: Range<usize>,
        gate: Option<Activation>,
        scratch: &mut WorkerScratch,
    ) {
        // SAFETY: by the promise of `Stage::run`; the scratch holds `ROWS_AT_ONCE` rows of a tile, which
        // are more than those of the tiles that are computed directly.
        unsafe {
            if let (Some(form), Some(fill)) = (self.rotated(play), part.fill_panel) {
                self.rotated_tiles(play, (part, form, fill), tiles, rows, gate, scratch);
                return;
            }
            if let Some(product) = self.unit_product(play, part) {
                self.unit_tiles(play, (part, product), tiles, rows, gate, scratch);
                return;
            }
            if !part.is_direct(play, rows.len()) {
                for tile in tiles {
                    self.tile(play, part, tile, rows.clone(), gate, scratch);
                }
                return;
            }
            for first in tiles.clone().step_by(TILES_AT_ONCE) {
                let count = TILES_AT_ONCE.min(tiles.end - first);
                let matrix = &*part.matrix;
                let start = matrix.tile(first).as_ptr();
                let (bytes, stride) = (matrix.tile_bytes, matrix.tile_stride);
                let group = Tiles { start, bytes, stride, count, columns: self.columns };
                let output = &mut scratch.output[..];
                let (start, rows) = (rows.start, rows.len());
                (part.direct)(&group, &self.floats, start, rows, output.as_mut_ptr());
                for (index, output) in output.chunks_exact_mut(rows * TILE).take(count).enumerate()
                {
                    self.put(play, part, first + index, start..start + rows, gate, output);
                }
            }
        }
    }

    /// [`Product::part_tiles`] of one tile, by way of its int8 kernel or an f32 panel.
    unsafe fn tile(
        &self,
        play: &Play<'_>,
        part: &Weights,
        index: usize,
        rows: Range<usize>,
        gate: Option<Activation>,
        scratch: &mut WorkerScratch,
    ) {
        let output = &mut scratch.output[..];
        // SAFETY: by the promise of `Stage::run`.
        unsafe {
            let panel = self.panel(play, part, index, &mut scratch.panel);
            let tile = Tile { index, panel, fetch: play.fetch.for_rows(rows.len()) };
            let (streams, bytes) = (rows.len() <= STREAMING_ROWS, (*part.matrix).tile_bytes);
            let next = (*part.matrix).tile(index).as_ptr_range().end;
            // Many rows take longer than the hardware looks ahead: a part of the next tile with each
            // piece.
            let share = bytes.div_ceil(LINE * rows.len().div_ceil(ROWS_AT_ONCE));
            for (piece, rows) in pieces(rows).enumerate() {
                if !streams {
                    (play.kernels.prefetch)(next.wrapping_add(piece * share * LINE), share);
                }
                self.multiply(play, part, tile, rows.clone(), output);
                self.put(play, part, index, rows, gate, output);
            }
        }
    }

    /// Puts a tile's products with `rows` where they belong.
    pub(super) unsafe fn put(
        &self,
        play: &Play<'_>,
        part: &Weights,
        index: usize,
        rows: Range<usize>,
        gate: Option<Activation>,
        output: &mut [f32],
    ) {
        let refined = self.is_refined(play);
        let step = if refined { 2 } else { 1 };
        // SAFETY: by the promise of `Stage::run`; biases are as long as their matrix has rows.
        unsafe {
            if part.is_whole(index) && !fault!(play, StaleRow) {
                let first = part.output.row(rows.start / step);
                (play.kernels.put_tile)(&TileEpilogue {
                    products: output.as_ptr(),
                    rows: rows.len() / step,
                    refined,
                    bias: part.bias.map(|bias| bias.add(index * TILE)),
                    gate,
                    soft_cap: self.soft_cap,
                    out: first.add(index * TILE),
                    stride: part.output.stride,
                });
                return;
            }
            for row in (0..rows.len()).step_by(step) {
                let (result, rest) = output[row * TILE..].split_at_mut(TILE);
                let place = part.place(index, (rows.start + row) / step);
                if refined {
                    result.iter_mut().zip(rest).for_each(|(sum, more)| *sum += *more);
                }
                if let Some(bias) = part.bias {
                    let bias = std::slice::from_raw_parts(bias.add(index * TILE), place.len());
                    result.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
                }
                if let Some(activation) = gate {
                    let mut gates = [0.0; TILE];
                    gates[..place.len()].copy_from_slice(place);
                    (play.kernels.gate)(gates.as_mut_ptr(), result.as_ptr(), activation);
                    result.copy_from_slice(&gates);
                }
                if let Some(cap) = self.soft_cap {
                    (play.kernels.soft_cap)(result.as_mut_ptr(), cap);
                }
                let last = rows.start + row + step == self.rows(play);
                let stale = usize::from(fault!(play, StaleRow) && last && index == 0);
                let lanes = stale..place.len();
                place[lanes.clone()].copy_from_slice(&result[lanes]);
            }
        }
    }

    /// The f32 panel of a tile, where the part has no kernel for its type.
    unsafe fn panel(
        &self,
        play: &Play<'_>,
        part: &Weights,
        tile: usize,
        room: &mut [f32],
    ) -> *const f32 {
        if part.quantized.is_none() {
            // SAFETY: the room is as large as the widest tile.
            unsafe {
                let bytes = (*part.matrix).tile(tile).as_ptr();
                if (*part.matrix).ty == TensorType::F32 && !spoils_panels(play) {
                    // A tile of f32 is a panel.
                    return bytes.cast();
                }
                (part.dequantize)(bytes, self.columns, room.as_mut_ptr());
            }
            self.spoil_panel(play, part, tile, room);
        }
        room.as_ptr()
    }

    #[cfg(not(any(test, feature = "test-hooks")))]
    fn spoil_panel(&self, _: &Play<'_>, _: &Weights, _: usize, _: &mut [f32]) {}

    /// Plants a faulty block.
    #[cfg(any(test, feature = "test-hooks"))]
    fn spoil_panel(&self, play: &Play<'_>, part: &Weights, tile: usize, room: &mut [f32]) {
        if let Some(factor) = crate::fault::block_factor(play.fault)
            && part.is_faulty(tile)
        {
            let block = self.columns / crate::pack::BLOCK / 2;
            for column in room.chunks_exact_mut(TILE).skip(32 * block).take(32) {
                column[crate::fault::FAULTY_OUTPUT] *= factor;
            }
        }
    }

    /// Products of one tile with some rows, at most [`ROWS_AT_ONCE`].
    unsafe fn multiply(
        &self,
        play: &Play<'_>,
        part: &Weights,
        tile: Tile,
        rows: Range<usize>,
        output: &mut [f32],
    ) {
        // SAFETY: by the promise of `Stage::run`; `output` holds `ROWS_AT_ONCE` rows of a tile.
        unsafe {
            let matrix = &*part.matrix;
            let (start, mut count) = (rows.start, rows.len());
            if fault!(play, WrongTail) && count > 1 && !count.is_multiple_of(8) {
                // The last row is read where the row before it lies.
                count -= 1;
                let (row, out) = (start + count - 1, &mut output[count * TILE..]);
                self.multiply(play, part, tile, row..row + 1, out);
            }
            let out = output.as_mut_ptr();
            match part.quantized {
                Some(product) => {
                    let Activations { codes, metas, .. } = self.activations;
                    let rows = QuantizedRows {
                        codes,
                        metas,
                        columns: self.columns,
                        fetch: tile.fetch,
                        #[cfg(any(test, feature = "test-hooks"))]
                        fault: play.fault.filter(|_| part.is_faulty(tile.index)),
                    };
                    product(matrix.tile(tile.index).as_ptr(), &rows, start, count, out);
                }
                None => {
                    (play.kernels.float_rows)(
                        tile.panel,
                        self.columns,
                        &self.floats,
                        start,
                        count,
                        out,
                    );
                }
            }
        }
    }
}

/// A tile of a part, its f32 panel where one was made, and how what lies behind it is asked for.
#[derive(Clone, Copy)]
struct Tile {
    index: usize,
    panel: *const f32,
    fetch: StreamFetch,
}

/// Cuts rows into runs whose results fit a worker's scratch.
fn pieces(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = rows.end;
    rows.step_by(ROWS_AT_ONCE).map(move |start| start..end.min(start + ROWS_AT_ONCE))
}

/// Whether a fault is planted in the weights of panels.
#[cfg(any(test, feature = "test-hooks"))]
fn spoils_panels(play: &Play<'_>) -> bool {
    crate::fault::block_factor(play.fault).is_some()
}

#[cfg(not(any(test, feature = "test-hooks")))]
fn spoils_panels(_: &Play<'_>) -> bool {
    false
}

impl Weights {
    /// Whether a tile is the one that faulty blocks are planted in: in the middle.
    #[cfg(any(test, feature = "test-hooks"))]
    pub(super) fn is_faulty(&self, tile: usize) -> bool {
        // SAFETY: matrices outlive the recording's stages.
        tile == unsafe { &*self.matrix }.tiles() / 2
    }

    /// Panels that are kept. Faults are planted in those that are made anew.
    pub(super) fn kept(&self, play: &Play<'_>) -> Option<*const u8> {
        self.kept.filter(|_| !spoils_panels(play))
    }

    /// Whether `rows` rows are multiplied with the weight as it lies in memory. Faults are planted in
    /// the other kernels.
    fn is_direct(&self, play: &Play<'_>, rows: usize) -> bool {
        // SAFETY: matrices outlive the recording's stages.
        let most = direct_rows(unsafe { &*self.matrix }.ty);
        let faulty = spoils_panels(play) || fault!(play, WrongTail);
        self.quantized.is_none() && rows <= most && !faulty
    }

    /// Whether all 16 rows of a tile are there.
    fn is_whole(&self, tile: usize) -> bool {
        // SAFETY: matrices outlive the recording's stages.
        (tile + 1) * TILE <= unsafe { &*self.matrix }.rows
    }

    /// Where a row of a tile's results belongs: 16 values, fewer in the last tile.
    unsafe fn place<'a>(&self, tile: usize, row: usize) -> &'a mut [f32] {
        // SAFETY: by the promise of `Stage::run`: the job that computes a place is the only one to
        // use it.
        unsafe {
            let lanes = TILE.min((*self.matrix).rows - tile * TILE);
            std::slice::from_raw_parts_mut(self.output.row(row).add(tile * TILE), lanes)
        }
    }
}
