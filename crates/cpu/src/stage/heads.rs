//! Attention: keys and values stored, then queries against pages.

use super::{Norm, Play, Slab, WorkerScratch};
use crate::policy::{BLOCK_ATTENTION_ROWS, cut_attend};
use crate::simd::attend::{MAX_QUERIES, Queries};
use crate::simd::kernels::Attend;
use crate::simd::store::HeadPrologue;
use pianola_plan::{AttentionSpec, KvSlot, PAGE_TOKENS, RopePairing};
use std::ops::Range;

/// Angles of the step's rows, and how they pair values; none where heads are not rotated here.
pub(crate) type Rotation = Option<(Slab, RopePairing)>;

/// What the heads of a row pass through before they are used.
fn prologue(norm: Option<Norm>, rope: Rotation, row: usize, key_rotation: usize) -> HeadPrologue {
    // SAFETY: the angles' buffer has a row for each of the step's.
    let rope = rope.map(|(slab, pairing)| unsafe { (slab.row(row).cast_const(), pairing) });
    HeadPrologue { norm, rope, key_rotation }
}

/// One layer's keys and values on their way into the pages.
pub(crate) struct StoreKv {
    pub kv: KvSlot,
    pub key: Slab,
    pub value: Slab,
    pub norm: Option<Norm>,
    pub rope: Rotation,
}

impl StoreKv {
    pub unsafe fn run(&self, play: &Play<'_>, job: usize, scratch: &mut WorkerScratch) {
        let kv = self.kv;
        let pages = &play.kv.groups[kv.group];
        let (kv_heads, head_dim) = (pages.group.kv_heads, pages.group.head_dim);
        let row = play.rows[job];
        let (index, slot) =
            (row.position as usize / PAGE_TOKENS, row.position as usize % PAGE_TOKENS);
        let rotation = pages.group.key_rotation();
        let [key, value] = &mut scratch.rows;
        for head in 0..kv_heads {
            if fault!(play, StaleKey) && head == 0 && job + 1 == play.rows.len() {
                continue;
            }
            // SAFETY: by the promise of `Stage::run`; the scratch holds a head up to the next multiple
            // of 16, and no other job writes this row's slot of the page.
            unsafe {
                let from = self.key.row(job).add(head * head_dim);
                (play.kernels.prepare)(
                    from,
                    head_dim,
                    &prologue(self.norm, self.rope, job, rotation),
                    key.as_mut_ptr(),
                );
                // Copied, because the store reads whole vectors.
                let from = self.value.row(job).add(head * head_dim);
                std::ptr::copy_nonoverlapping(from, value.as_mut_ptr(), head_dim);
                let page = pages.head(row.sequence as usize, index, kv.layer, head);
                let (mut key, mut value) = (key.as_ptr(), value.as_ptr());
                if fault!(play, SwappedKv) && head == 0 {
                    std::mem::swap(&mut key, &mut value);
                }
                (play.kernels.store)(page, pages.group.ty, slot, head_dim, key, value);
            }
        }
    }
}

/// One layer's queries against its pages.
pub(crate) struct Attention {
    pub spec: AttentionSpec,
    pub query: Slab,
    pub norm: Option<Norm>,
    pub rope: Rotation,
    pub output: Slab,
    /// The kernel for many rows, where it differs.
    pub blocks: Option<Attend>,
}

impl Attention {
    pub fn jobs(&self, play: &Play<'_>) -> usize {
        let AttentionSpec { heads, kv_heads, .. } = self.spec;
        let cut = cut_attend(heads, kv_heads, play.rows.len(), play.workers, MAX_QUERIES);
        let blocks: usize = play.runs.iter().map(|run| run.len().div_ceil(cut.rows)).sum();
        blocks * kv_heads * (heads / kv_heads).div_ceil(cut.heads)
    }

    /// Ranges of jobs that workers begin with.
    pub fn ranges(&self, play: &Play<'_>) -> usize {
        if play.rows_by_worker { play.workers } else { 1 }
    }

    pub unsafe fn run(&self, play: &Play<'_>, job: usize, scratch: &mut WorkerScratch) {
        let AttentionSpec { heads, kv_heads, head_dim, kv, .. } = self.spec;
        let group = heads / kv_heads;
        let cut = cut_attend(heads, kv_heads, play.rows.len(), play.workers, MAX_QUERIES);
        let splits = group.div_ceil(cut.heads);
        let (mut block, kv_head, split) =
            (job / (kv_heads * splits), job / splits % kv_heads, job % splits);
        if self.ranges(play) == 1 {
            // Later rows see more: they come first, so that no long job is left for the end.
            let total: usize = play.runs.iter().map(|run| run.len().div_ceil(cut.rows)).sum();
            block = total - 1 - block;
        }
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
        let rotation = play.kv.groups[kv.group].group.key_rotation();
        let scratch = &mut scratch.attend;
        scratch.positions.clear();
        // SAFETY: by the promise of `Stage::run`; the scratch holds `MAX_QUERIES` heads, and no other
        // job writes these heads of these rows.
        unsafe {
            let mut to = scratch.queries.as_mut_ptr();
            for row in rows.clone() {
                let late = fault!(play, WrongPosition) && kv_head == 0 && row > 0;
                let row_prologue =
                    prologue(self.norm, self.rope, row - usize::from(late), rotation);
                for head in first_head..last_head {
                    let from = self.query.row(row).add(head * head_dim);
                    (play.kernels.prepare)(from, head_dim, &row_prologue, to);
                    for at in 0..head_dim {
                        *to.add(at) *= self.spec.scale;
                    }
                    to = to.add(head_dim);
                    scratch.positions.push(play.rows[row].position);
                }
            }
            let mut sequence = play.rows[rows.start].sequence as usize;
            if fault!(play, OtherLane) && kv_head == 0 {
                sequence = other_lane(play, rows.clone()).unwrap_or(sequence);
            }
            let pages = &play.kv.groups[kv.group];
            // Taken out for the call, which borrows the rest of the scratch mutably.
            let positions = std::mem::take(&mut scratch.positions);
            let queries = Queries {
                values: scratch.queries.as_ptr(),
                positions: &positions,
                head_dim,
                window: self.spec.window.map(|w| w + usize::from(fault!(play, LongWindow))),
                soft_cap: self.spec.soft_cap,
                #[cfg(any(test, feature = "test-hooks"))]
                lost_page: lost_page(play, rows.start).filter(|_| kv_head == 0),
            };
            let page_of = |page: usize| {
                let first = fault!(play, WrongPage) && kv_head == 0 && page == 1;
                let first = first && pages.is_mapped(sequence, 0);
                pages.head(sequence, if first { 0 } else { page }, kv.layer, kv_head).cast_const()
            };
            let blocks = self.blocks.filter(|_| play.rows.len() >= BLOCK_ATTENTION_ROWS);
            let attend = blocks.unwrap_or(play.kernels.attend);
            attend(queries, pages.group.ty, &page_of, scratch);
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

/// The sequence of the row before, if it is another and has the pages that these rows see.
fn other_lane(play: &Play<'_>, rows: Range<usize>) -> Option<usize> {
    let before = play.rows[rows.start.checked_sub(1)?];
    let last = play.rows[rows.end - 1];
    let seen = before.sequence != last.sequence && before.position >= last.position;
    seen.then_some(before.sequence as usize)
}

/// The page before the newest of a row, where a fault is planted that loses it.
#[cfg(any(test, feature = "test-hooks"))]
fn lost_page(play: &Play<'_>, row: usize) -> Option<usize> {
    let newest = play.rows[row].position as usize / PAGE_TOKENS;
    if fault!(play, LostSplit) { newest.checked_sub(1) } else { None }
}
