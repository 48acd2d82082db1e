//! Stages: the tile lists that a plan's kernels become on the CPU.
//!
//! Each kernel is one or two stages; workers claim a stage's jobs one by one, and the next
//! stage waits until they are done. A stage holds only resolved pointers and shapes: nothing is
//! looked up while playing.
//!
//! Unsafe functions of stages have the promise of [`Stage::run`] unless they state another.

mod heads;
mod matrix_unit;
mod plain;
mod product;
mod prologue;
mod rotated;
mod sums;

pub(crate) use heads::{Attention, Rotation, StoreKv};
pub(crate) use plain::{Plain, PlainOp};
pub(crate) use product::{Product, Weights};
pub(crate) use prologue::Prologue;
pub(crate) use rotated::RotatedForm;

use crate::kv::KvMemory;
use crate::pack::{PackedMatrix, TILE};
use crate::policy::{StreamFetch, rows_of_job};
use crate::simd::attend::Scratch;
use crate::simd::kernels::Kernels;
use crate::simd::product::BlockMeta;
use matrix_unit::UnitScratch;
use pianola_plan::{RopeSpec, Row};
use product::ROWS_AT_ONCE;
use rotated::RotatedScratch;
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
        // SAFETY: by this function's promise.
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
    pub metas: *mut BlockMeta,
    /// The codes once more in strips, and what is known of them, for a matrix unit.
    pub strips: *mut i8,
    pub strip_metas: *mut f32,
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

pub(crate) enum Stage {
    Embed(Embed),
    Angles(Angles),
    Prologue(Prologue),
    Product(Product),
    StoreKv(StoreKv),
    Attend(Attention),
    Plain(Plain),
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
    /// How weights of few rows are asked for.
    pub fetch: StreamFetch,
    /// Each worker has rows of its own, see `policy::rows_by_worker`.
    pub rows_by_worker: bool,
    /// Planted in the kernels.
    #[cfg(any(test, feature = "test-hooks"))]
    pub fault: Option<pianola_plan::Fault>,
}

/// What a worker has to itself.
pub(crate) struct WorkerScratch {
    /// Products of up to [`ROWS_AT_ONCE`] rows by 16.
    output: Vec<f32>,
    /// A dequantised tile.
    panel: Vec<f32>,
    /// Two rows of the widest input.
    rows: [Vec<f32>; 2],
    unit: UnitScratch,
    rotated: RotatedScratch,
    attend: Scratch,
}

/// Which products a worker's scratch is for, beside those of a few rows.
#[derive(Clone, Copy)]
pub(crate) struct ScratchFor {
    /// On a matrix unit.
    pub unit: bool,
    /// In rotated form.
    pub rotated: bool,
}

impl WorkerScratch {
    pub fn new(widest: usize, head_dim: usize, products: ScratchFor) -> WorkerScratch {
        WorkerScratch {
            unit: UnitScratch::new(products.unit),
            rotated: RotatedScratch::new(products.rotated),
            output: vec![0.0; ROWS_AT_ONCE * TILE],
            panel: vec![0.0; widest * TILE],
            rows: [vec![0.0; widest + 16], vec![0.0; widest + 16]],
            attend: Scratch::new(head_dim),
        }
    }
}

impl Stage {
    /// Rows of a stage that is computed row by row.
    fn rows(&self, play: &Play<'_>) -> Option<usize> {
        match self {
            Stage::Embed(_) | Stage::Angles(_) | Stage::StoreKv(_) => Some(play.rows.len()),
            Stage::Prologue(prologue) => Some(prologue.rows(play)),
            Stage::Plain(plain) => Some(plain.rows(play)),
            Stage::Product(_) | Stage::Attend(_) => None,
        }
    }

    /// Jobs in this play.
    pub fn jobs(&self, play: &Play<'_>) -> usize {
        match (self, self.rows(play)) {
            (_, Some(rows)) => rows.div_ceil(rows_of_job(rows, play.workers)),
            (Stage::Product(product), _) => product.jobs(play),
            (Stage::Attend(attention), _) => attention.jobs(play),
            _ => unreachable!("all others have rows"),
        }
    }

    /// Ranges of successive jobs, of which each worker begins with another.
    pub fn ranges(&self, play: &Play<'_>) -> usize {
        match self {
            Stage::Product(product) => product.ranges(play),
            Stage::Attend(attention) => attention.ranges(play),
            _ => play.workers,
        }
    }

    /// Runs one job.
    ///
    /// # Safety
    /// The pointers are those of a living recording, `job` is below [`Stage::jobs`], no other
    /// worker runs the same job, and stages that this one depends on are done.
    pub unsafe fn run(&self, play: &Play<'_>, job: usize, scratch: &mut WorkerScratch) {
        let rows = self.rows(play).map_or(0..0, |rows| {
            let each = rows_of_job(rows, play.workers);
            job * each..rows.min((job + 1) * each)
        });
        // SAFETY: each stage's `run` has this function's promise, of a job or of one of its rows.
        unsafe {
            match self {
                Stage::Embed(embed) => rows.for_each(|row| embed.run(play, row)),
                Stage::Angles(angles) => rows.for_each(|row| angles.run(play, row)),
                Stage::Prologue(prologue) => rows.for_each(|row| prologue.run(play, row, scratch)),
                Stage::Product(product) => product.run(play, job, scratch),
                Stage::StoreKv(store) => rows.for_each(|row| store.run(play, row, scratch)),
                Stage::Attend(attention) => attention.run(play, job, scratch),
                Stage::Plain(plain) => rows.for_each(|row| plain.run(play, row)),
            }
        }
    }
}

impl Embed {
    unsafe fn run(&self, play: &Play<'_>, job: usize) {
        // SAFETY: by the promise of `Stage::run`; the buffer is as wide as the table.
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
