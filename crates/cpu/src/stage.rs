//! Stages: the tile lists that a plan's kernels become on the CPU.
//!
//! Each kernel is one or two stages; workers claim a stage's jobs one by one and meet before the
//! next. A stage holds only resolved pointers and shapes: nothing is looked up while playing.

use crate::kv::KvMemory;
use crate::pack::{BLOCK, PackedMatrix, TILE};
use crate::policy::{cut_attend, cut_product};
use crate::simd::attend::{HeadPrologue, MAX_QUERIES, Queries, Scratch};
use crate::simd::kernels::{Dequantize, Kernels, QuantizedProduct};
use crate::simd::product::{FloatRows, QuantizedRows};
use pianola_plan::{Activation, AttentionSpec, PAGE_TOKENS, RopeSpec, Row};
use std::ops::Range;

/// Rows of an arena buffer, or some columns of them.
#[derive(Clone, Copy)]
pub(crate) struct Slab {
    pub start: *mut f32,
    pub stride: usize,
}

impl Slab {
    /// # Safety
    /// `index` is below the buffer's rows.
    unsafe fn row(self, index: usize) -> *mut f32 {
        unsafe { self.start.add(index * self.stride) }
    }
}

/// A norm's scale and epsilon.
pub(crate) type Norm = (*const f32, f32);

/// Room for what prologues leave and products read.
#[derive(Clone, Copy)]
pub(crate) struct Activations {
    pub floats: *mut f32,
    pub codes: *mut i8,
    pub scales: *mut f32,
    pub sums: *mut i32,
}

pub(crate) struct Embed {
    pub table: *const PackedMatrix,
    pub scale: f32,
    pub output: Slab,
}

pub(crate) struct Angles {
    pub rope: RopeSpec,
    pub output: Slab,
}

/// Residual sum, norm and quantisation of a product's input, row by row.
pub(crate) struct Prologue {
    pub input: Slab,
    /// What is added to the input, its norm, and where the sum goes if it is kept.
    pub residual: Option<(Slab, Option<Norm>, Option<Slab>)>,
    pub select: bool,
    pub norm: Option<Norm>,
    pub width: usize,
    /// Whether products want f32 rows, int8 rows, or both.
    pub floats: bool,
    pub quantized: bool,
    /// Each int8 row is followed by one of what its rounding left out: 15 bits in all.
    pub refined: bool,
    pub activations: Activations,
}

/// One weight of a product, with the kernel for its type.
pub(crate) struct Weights {
    pub matrix: *const PackedMatrix,
    pub bias: Option<*const f32>,
    /// None: dequantise and multiply in f32.
    pub quantized: Option<QuantizedProduct>,
    pub dequantize: Dequantize,
    pub output: Slab,
    /// First tile of this part in the stage's count.
    pub first_tile: usize,
}

pub(crate) struct Product {
    pub parts: Vec<Weights>,
    pub gate: Option<Activation>,
    pub soft_cap: Option<f32>,
    pub logits: bool,
    /// Rows come in pairs whose results are added; see [`Prologue::refined`].
    pub refined: bool,
    pub columns: usize,
    pub floats: FloatRows,
    pub activations: Activations,
}

pub(crate) struct Heads {
    pub spec: AttentionSpec,
    pub query: Slab,
    pub key: Slab,
    pub value: Slab,
    pub query_norm: Option<Norm>,
    pub key_norm: Option<Norm>,
    pub rope: Option<(Slab, pianola_plan::RopePairing)>,
    pub output: Slab,
}

pub(crate) enum Stage {
    Embed(Embed),
    Angles(Angles),
    Prologue(Prologue),
    Product(Product),
    StoreKv(Heads),
    Attend(Heads),
}

/// What all workers see of a play.
pub(crate) struct Play<'a> {
    pub rows: &'a [Row],
    pub logits: &'a [u32],
    /// Runs of rows that follow one another in one sequence.
    pub runs: &'a [Range<usize>],
    pub kv: &'a KvMemory,
    pub kernels: &'static Kernels,
    pub workers: usize,
}

/// What a worker has to itself.
pub(crate) struct WorkerScratch {
    /// Two products of up to [`ROWS_AT_ONCE`] rows by 16.
    outputs: [Vec<f32>; 2],
    /// Two dequantised tiles.
    panels: [Vec<f32>; 2],
    /// Two rows of the widest input.
    rows: [Vec<f32>; 2],
    attend: Scratch,
}

/// Rows of a product whose results wait in a worker's scratch.
const ROWS_AT_ONCE: usize = 32;

impl WorkerScratch {
    pub fn new(widest: usize, head_dim: usize) -> WorkerScratch {
        let output = || vec![0.0; ROWS_AT_ONCE * TILE];
        let panel = || vec![0.0; widest * TILE];
        WorkerScratch {
            outputs: [output(), output()],
            panels: [panel(), panel()],
            rows: [vec![0.0; widest + 16], vec![0.0; widest + 16]],
            attend: Scratch::new(head_dim),
        }
    }
}

impl Stage {
    /// Jobs in this play.
    pub fn jobs(&self, play: &Play<'_>) -> usize {
        match self {
            Stage::Embed(_) | Stage::Angles(_) | Stage::StoreKv(_) => play.rows.len(),
            Stage::Prologue(prologue) => prologue.rows(play),
            Stage::Product(product) => product.jobs(play),
            Stage::Attend(heads) => heads.jobs(play),
        }
    }

    /// Runs one job.
    ///
    /// # Safety
    /// The pointers are those of a living recording, `job` is below [`Stage::jobs`], no other
    /// worker runs the same job, and stages that this one depends on are done.
    pub unsafe fn run(&self, play: &Play<'_>, job: usize, scratch: &mut WorkerScratch) {
        unsafe {
            match self {
                Stage::Embed(embed) => embed.run(play, job),
                Stage::Angles(angles) => angles.run(play, job),
                Stage::Prologue(prologue) => prologue.run(play, job, scratch),
                Stage::Product(product) => product.run(play, job, scratch),
                Stage::StoreKv(heads) => heads.store(play, job, scratch),
                Stage::Attend(heads) => heads.attend(play, job, scratch),
            }
        }
    }
}

impl Embed {
    unsafe fn run(&self, play: &Play<'_>, job: usize) {
        unsafe {
            let table = &*self.table;
            let out = std::slice::from_raw_parts_mut(self.output.row(job), table.columns);
            table.row(play.rows[job].token as usize, out);
            out.iter_mut().for_each(|value| *value *= self.scale);
        }
    }
}

impl Angles {
    unsafe fn run(&self, play: &Play<'_>, job: usize) {
        let pairs = self.rope.frequencies.len();
        let position = play.rows[job].position as f32;
        // SAFETY: the buffer is `2 * pairs` wide.
        let out = unsafe { std::slice::from_raw_parts_mut(self.output.row(job), 2 * pairs) };
        for (pair, frequency) in self.rope.frequencies.iter().enumerate() {
            let (sine, cosine) = (position * frequency).sin_cos();
            out[pair] = cosine * self.rope.magnitude;
            out[pairs + pair] = sine * self.rope.magnitude;
        }
    }
}

impl Prologue {
    fn rows(&self, play: &Play<'_>) -> usize {
        if self.select { play.logits.len() } else { play.rows.len() }
    }

    unsafe fn run(&self, play: &Play<'_>, job: usize, scratch: &mut WorkerScratch) {
        let row = if self.select { play.logits[job] as usize } else { job };
        let (kernels, width) = (play.kernels, self.width);
        let [sum, normed] = &mut scratch.rows;
        unsafe {
            let mut x: *const f32 = self.input.row(row);
            if let Some((delta, norm, kept)) = self.residual {
                let mut delta: *const f32 = delta.row(row);
                if let Some((weight, epsilon)) = norm {
                    (kernels.rms_norm)(delta, weight, epsilon, width, normed.as_mut_ptr());
                    delta = normed.as_ptr();
                }
                let out = kept.map_or(sum.as_mut_ptr(), |kept| kept.row(row));
                (kernels.add)(x, delta, width, out);
                x = out;
            }
            let floats = self.activations.floats.add(job * width);
            if let Some((weight, epsilon)) = self.norm {
                let out = if self.floats { floats } else { normed.as_mut_ptr() };
                (kernels.rms_norm)(x, weight, epsilon, width, out);
                x = out;
            } else if self.floats {
                std::ptr::copy_nonoverlapping(x, floats, width);
            }
            if self.quantized {
                let job = if self.refined { 2 * job } else { job };
                self.quantize(play, x, job);
                if self.refined {
                    self.left_out(x, job, sum.as_mut_ptr());
                    self.quantize(play, sum.as_ptr(), job + 1);
                }
            }
        }
    }

    unsafe fn quantize(&self, play: &Play<'_>, x: *const f32, row: usize) {
        let Activations { codes, scales, sums, .. } = self.activations;
        let (width, blocks) = (self.width, self.width / BLOCK);
        unsafe {
            let (codes, scales) = (codes.add(row * width), scales.add(row * blocks));
            (play.kernels.quantize)(x, width, codes, scales, sums.add(2 * row * blocks));
        }
    }

    /// `x` less what row `row` of the int8 rows holds of it.
    unsafe fn left_out(&self, x: *const f32, row: usize, out: *mut f32) {
        let blocks = self.width / BLOCK;
        for at in 0..self.width {
            unsafe {
                let code = f32::from(*self.activations.codes.add(row * self.width + at));
                let step = *self.activations.scales.add(row * blocks + at / BLOCK);
                *out.add(at) = *x.add(at) - code * step;
            }
        }
    }
}

impl Product {
    fn rows(&self, play: &Play<'_>) -> usize {
        let rows = if self.logits { play.logits.len() } else { play.rows.len() };
        if self.refined { 2 * rows } else { rows }
    }

    fn tiles(&self) -> usize {
        let last = &self.parts[if self.gate.is_some() { 0 } else { self.parts.len() - 1 }];
        // SAFETY: matrices outlive the recording's stages.
        last.first_tile + unsafe { &*last.matrix }.tiles()
    }

    fn jobs(&self, play: &Play<'_>) -> usize {
        let cut = cut_product(self.tiles(), self.rows(play), self.columns, play.workers);
        self.tiles().div_ceil(cut.tiles) * self.rows(play).div_ceil(cut.rows)
    }

    unsafe fn run(&self, play: &Play<'_>, job: usize, scratch: &mut WorkerScratch) {
        let (tiles, rows) = (self.tiles(), self.rows(play));
        let cut = cut_product(tiles, rows, self.columns, play.workers);
        // Rows vary slowest: workers stream through the weights side by side.
        let chunks = tiles.div_ceil(cut.tiles);
        let first = job / chunks * cut.rows;
        let tiles = (job % chunks * cut.tiles)..tiles.min((job % chunks + 1) * cut.tiles);
        let rows = first..rows.min(first + cut.rows);
        for tile in tiles {
            unsafe {
                match self.gate {
                    Some(activation) => self.gated(play, tile, rows.clone(), activation, scratch),
                    None => self.plain(play, tile, rows.clone(), scratch),
                }
            }
        }
    }

    /// The f32 panel of a tile, where the part has no kernel for its type.
    unsafe fn panel(&self, part: &Weights, tile: usize, room: &mut [f32]) -> *const f32 {
        if part.quantized.is_none() {
            // SAFETY: the room is as large as the widest tile.
            unsafe {
                let bytes = (*part.matrix).tile(tile).as_ptr();
                (part.dequantize)(bytes, self.columns, room.as_mut_ptr());
            }
        }
        room.as_ptr()
    }

    /// Products of one tile with some rows, at most [`ROWS_AT_ONCE`], bias included.
    unsafe fn multiply(
        &self,
        play: &Play<'_>,
        part: &Weights,
        tile: Tile,
        rows: Range<usize>,
        output: &mut [f32],
    ) {
        unsafe {
            let matrix = &*part.matrix;
            let (start, count, out) = (rows.start, rows.len(), output.as_mut_ptr());
            match part.quantized {
                Some(product) => {
                    let Activations { codes, scales, sums, .. } = self.activations;
                    let rows = QuantizedRows { codes, scales, sums, columns: self.columns };
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
            if let Some(bias) = part.bias {
                let first = tile.index * TILE;
                for row in (0..count).step_by(self.rows_per_result()) {
                    for lane in 0..TILE.min(matrix.rows - first) {
                        output[row * TILE + lane] += *bias.add(first + lane);
                    }
                }
            }
        }
    }

    fn rows_per_result(&self) -> usize {
        if self.refined { 2 } else { 1 }
    }

    unsafe fn plain(
        &self,
        play: &Play<'_>,
        tile: usize,
        rows: Range<usize>,
        scratch: &mut WorkerScratch,
    ) {
        let part = self.parts.iter().rfind(|part| part.first_tile <= tile).expect("part of a tile");
        let ([output, _], [panel, _]) = (&mut scratch.outputs, &mut scratch.panels);
        let step = self.rows_per_result();
        unsafe {
            let index = tile - part.first_tile;
            let tile = Tile { index, panel: self.panel(part, index, panel) };
            for rows in pieces(rows) {
                self.multiply(play, part, tile, rows.clone(), output);
                for row in (0..rows.len()).step_by(step) {
                    let (result, rest) = output[row * TILE..].split_at_mut(TILE);
                    if self.refined {
                        result.iter_mut().zip(rest).for_each(|(sum, more)| *sum += *more);
                    }
                    if let Some(cap) = self.soft_cap {
                        (play.kernels.soft_cap)(result.as_mut_ptr(), cap);
                    }
                    part.put(index, (rows.start + row) / step, result);
                }
            }
        }
    }

    unsafe fn gated(
        &self,
        play: &Play<'_>,
        index: usize,
        rows: Range<usize>,
        activation: Activation,
        scratch: &mut WorkerScratch,
    ) {
        let [gate, up] = &self.parts[..] else { unreachable!("a gate has two parts") };
        let ([gates, ups], [gate_panel, up_panel]) = (&mut scratch.outputs, &mut scratch.panels);
        unsafe {
            let gate_tile = Tile { index, panel: self.panel(gate, index, gate_panel) };
            let up_tile = Tile { index, panel: self.panel(up, index, up_panel) };
            for rows in pieces(rows) {
                self.multiply(play, gate, gate_tile, rows.clone(), gates);
                self.multiply(play, up, up_tile, rows.clone(), ups);
                for row in 0..rows.len() {
                    let at = row * TILE;
                    (play.kernels.gate)(gates[at..].as_mut_ptr(), ups[at..].as_ptr(), activation);
                    gate.put(index, rows.start + row, &gates[at..][..TILE]);
                }
            }
        }
    }
}

/// A tile of a part, and its f32 panel where one was made.
#[derive(Clone, Copy)]
struct Tile {
    index: usize,
    panel: *const f32,
}

/// Cuts rows into runs whose results fit a worker's scratch.
fn pieces(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = rows.end;
    rows.step_by(ROWS_AT_ONCE).map(move |start| start..end.min(start + ROWS_AT_ONCE))
}

impl Weights {
    /// Stores one row of a tile's results.
    unsafe fn put(&self, tile: usize, row: usize, values: &[f32]) {
        unsafe {
            let lanes = TILE.min((*self.matrix).rows - tile * TILE);
            let to = self.output.row(row).add(tile * TILE);
            std::ptr::copy_nonoverlapping(values.as_ptr(), to, lanes);
        }
    }
}

impl Heads {
    fn prologue(&self, norm: Option<Norm>, row: usize) -> HeadPrologue {
        // SAFETY: the angles' buffer has a row for each of the step's.
        let rope =
            self.rope.map(|(slab, pairing)| unsafe { (slab.row(row).cast_const(), pairing) });
        HeadPrologue { norm, rope }
    }

    unsafe fn store(&self, play: &Play<'_>, job: usize, scratch: &mut WorkerScratch) {
        let AttentionSpec { kv, kv_heads, head_dim, .. } = self.spec;
        let pages = &play.kv.groups[kv.group];
        let row = play.rows[job];
        let (index, slot) =
            (row.position as usize / PAGE_TOKENS, row.position as usize % PAGE_TOKENS);
        let [key, value] = &mut scratch.rows;
        for head in 0..kv_heads {
            unsafe {
                let from = self.key.row(job).add(head * head_dim);
                (play.kernels.prepare)(
                    from,
                    head_dim,
                    &self.prologue(self.key_norm, job),
                    key.as_mut_ptr(),
                );
                // Copied, because the store reads whole vectors.
                let from = self.value.row(job).add(head * head_dim);
                std::ptr::copy_nonoverlapping(from, value.as_mut_ptr(), head_dim);
                let page = pages.head(row.sequence as usize, index, kv.layer, head);
                (play.kernels.store)(
                    page,
                    pages.group.ty,
                    slot,
                    head_dim,
                    key.as_ptr(),
                    value.as_ptr(),
                );
            }
        }
    }

    fn jobs(&self, play: &Play<'_>) -> usize {
        let AttentionSpec { heads, kv_heads, .. } = self.spec;
        let cut = cut_attend(heads, kv_heads, play.rows.len(), play.workers, MAX_QUERIES);
        let blocks: usize = play.runs.iter().map(|run| run.len().div_ceil(cut.rows)).sum();
        blocks * kv_heads * (heads / kv_heads).div_ceil(cut.heads)
    }

    unsafe fn attend(&self, play: &Play<'_>, job: usize, scratch: &mut WorkerScratch) {
        let AttentionSpec { heads, kv_heads, head_dim, kv, .. } = self.spec;
        let group = heads / kv_heads;
        let cut = cut_attend(heads, kv_heads, play.rows.len(), play.workers, MAX_QUERIES);
        let splits = group.div_ceil(cut.heads);
        let (mut block, kv_head, split) =
            (job / (kv_heads * splits), job / splits % kv_heads, job % splits);
        // Later rows see more: they come first, so that no long job is left for the end.
        let total: usize = play.runs.iter().map(|run| run.len().div_ceil(cut.rows)).sum();
        block = total - 1 - block;
        let mut rows = 0..0;
        for run in play.runs {
            let blocks = run.len().div_ceil(cut.rows);
            if block < blocks {
                let start = run.start + block * cut.rows;
                rows = start..run.end.min(start + cut.rows);
                break;
            }
            block -= blocks;
        }
        let first_head = kv_head * group + split * cut.heads;
        let last_head = (first_head + cut.heads).min((kv_head + 1) * group);
        let scratch = &mut scratch.attend;
        scratch.positions.clear();
        unsafe {
            let mut to = scratch.queries.as_mut_ptr();
            for row in rows.clone() {
                let prologue = self.prologue(self.query_norm, row);
                for head in first_head..last_head {
                    let from = self.query.row(row).add(head * head_dim);
                    (play.kernels.prepare)(from, head_dim, &prologue, to);
                    for at in 0..head_dim {
                        *to.add(at) *= self.spec.scale;
                    }
                    to = to.add(head_dim);
                    scratch.positions.push(play.rows[row].position);
                }
            }
            let sequence = play.rows[rows.start].sequence as usize;
            let pages = &play.kv.groups[kv.group];
            // Taken out for the call, which borrows the rest of the scratch mutably.
            let positions = std::mem::take(&mut scratch.positions);
            let queries = Queries {
                values: scratch.queries.as_ptr(),
                positions: &positions,
                head_dim,
                window: self.spec.window,
                soft_cap: self.spec.soft_cap,
            };
            let page_of = |page: usize| pages.head(sequence, page, kv.layer, kv_head).cast_const();
            (play.kernels.attend)(queries, pages.group.ty, &page_of, scratch);
            scratch.positions = positions;
            let mut from = scratch.output.as_ptr();
            for row in rows {
                for head in first_head..last_head {
                    let out = self.output.row(row).add(head * head_dim);
                    std::ptr::copy_nonoverlapping(from, out, head_dim);
                    from = from.add(head_dim.next_multiple_of(16));
                }
            }
        }
    }
}
