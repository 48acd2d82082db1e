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
    pub runs: &'a [std::ops::Range<usize>],
    pub kv: &'a KvMemory,
    pub kernels: &'static Kernels,
    pub workers: usize,
}

/// What a worker has to itself.
pub(crate) struct WorkerScratch {
    /// Two products of up to [`ROWS_AT_ONCE`] rows by 16.
    outputs: [Vec<f32>; 2],
    /// A dequantised tile.
    panel: Vec<f32>,
    /// Two rows of the widest input.
    rows: [Vec<f32>; 2],
    attend: Scratch,
}

/// Rows of a product whose results wait in a worker's scratch.
const ROWS_AT_ONCE: usize = 32;

impl WorkerScratch {
    pub fn new(widest: usize, head_dim: usize, panels: bool) -> WorkerScratch {
        let output = || vec![0.0; ROWS_AT_ONCE * TILE];
        WorkerScratch {
            outputs: [output(), output()],
            panel: vec![0.0; if panels { widest * TILE } else { 0 }],
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
        let count = cut.rows.min(rows - first);
        for tile in tiles {
            unsafe {
                match self.gate {
                    Some(activation) => self.gated(play, tile, first, count, activation, scratch),
                    None => self.plain(play, tile, first, count, scratch),
                }
            }
        }
    }

    /// Products of one tile with `count` rows, `then` being called with up to
    /// [`ROWS_AT_ONCE`] of them at a time.
    unsafe fn tile(
        &self,
        play: &Play<'_>,
        part: &Weights,
        tile: usize,
        first: usize,
        count: usize,
        panel: &mut [f32],
        output: &mut [f32],
        mut then: impl FnMut(usize, usize, &mut [f32]),
    ) {
        unsafe {
            let matrix = &*part.matrix;
            let bytes = matrix.tile(tile).as_ptr();
            let quantized = QuantizedRows {
                codes: self.activations.codes,
                scales: self.activations.scales,
                sums: self.activations.sums,
                columns: self.columns,
            };
            let panel = match part.quantized {
                Some(_) => std::ptr::null(),
                None => {
                    (part.dequantize)(bytes, self.columns, panel.as_mut_ptr());
                    panel.as_ptr()
                }
            };
            for start in (first..first + count).step_by(ROWS_AT_ONCE) {
                let rows = ROWS_AT_ONCE.min(first + count - start);
                let out = output.as_mut_ptr();
                match part.quantized {
                    Some(product) => product(bytes, &quantized, start, rows, out),
                    None => (play.kernels.float_rows)(
                        panel,
                        self.columns,
                        &self.floats,
                        start,
                        rows,
                        out,
                    ),
                }
                if let Some(bias) = part.bias {
                    let lanes = TILE.min(matrix.rows - tile * TILE);
                    for row in (0..rows).step_by(if self.refined { 2 } else { 1 }) {
                        for lane in 0..lanes {
                            output[row * TILE + lane] += *bias.add(tile * TILE + lane);
                        }
                    }
                }
                then(start, rows, output);
            }
        }
    }

    unsafe fn plain(
        &self,
        play: &Play<'_>,
        tile: usize,
        first: usize,
        count: usize,
        scratch: &mut WorkerScratch,
    ) {
        let part = self.parts.iter().rfind(|part| part.first_tile <= tile).expect("part of a tile");
        let tile = tile - part.first_tile;
        let [output, _] = &mut scratch.outputs;
        unsafe {
            self.tile(
                play,
                part,
                tile,
                first,
                count,
                &mut scratch.panel,
                output,
                |start, rows, output| {
                    let step = if self.refined { 2 } else { 1 };
                    for row in (0..rows).step_by(step) {
                        let (result, rest) = output[row * TILE..].split_at_mut(TILE);
                        if self.refined {
                            result.iter_mut().zip(rest).for_each(|(sum, more)| *sum += *more);
                        }
                        if let Some(cap) = self.soft_cap {
                            (play.kernels.soft_cap)(result.as_mut_ptr(), cap);
                        }
                        part.put(tile, (start + row) / step, result);
                    }
                },
            );
        }
    }

    unsafe fn gated(
        &self,
        play: &Play<'_>,
        tile: usize,
        first: usize,
        count: usize,
        activation: Activation,
        scratch: &mut WorkerScratch,
    ) {
        let [gate, up] = &self.parts[..] else { unreachable!("a gate has two parts") };
        let [gates, ups] = &mut scratch.outputs;
        for start in (first..first + count).step_by(ROWS_AT_ONCE) {
            let rows = ROWS_AT_ONCE.min(first + count - start);
            unsafe {
                let panel = &mut scratch.panel;
                self.tile(play, gate, tile, start, rows, panel, gates, |_, _, _| ());
                self.tile(play, up, tile, start, rows, panel, ups, |_, _, _| ());
                for row in 0..rows {
                    let at = row * TILE;
                    (play.kernels.gate)(gates[at..].as_mut_ptr(), ups[at..].as_ptr(), activation);
                    gate.put(tile, start + row, &gates[at..][..TILE]);
                }
            }
        }
    }
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
