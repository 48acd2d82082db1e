//! Attention: keys and values stored, then queries against pages.

use super::{Norm, Play, Slab, WorkerScratch};
use crate::policy::cut_attend;
use crate::simd::attend::{MAX_QUERIES, Queries};
use crate::simd::store::HeadPrologue;
use pianola_plan::{AttentionSpec, KvSlot, PAGE_TOKENS, RopePairing};

/// Angles of the step's rows, and how they pair values; none where heads are not rotated here.
pub(crate) type Rotation = Option<(Slab, RopePairing)>;

/// What the heads of a row pass through before they are used.
fn prologue(norm: Option<Norm>, rope: Rotation, row: usize) -> HeadPrologue {
    // SAFETY: the angles' buffer has a row for each of the step's.
    let rope = rope.map(|(slab, pairing)| unsafe { (slab.row(row).cast_const(), pairing) });
    HeadPrologue { norm, rope }
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
        let [key, value] = &mut scratch.rows;
        for head in 0..kv_heads {
            // SAFETY: by the promise of `Stage::run`; the scratch holds a head up to the next multiple
            // of 16, and no other job writes this row's slot of the page.
            unsafe {
                let from = self.key.row(job).add(head * head_dim);
                (play.kernels.prepare)(
                    from,
                    head_dim,
                    &prologue(self.norm, self.rope, job),
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
}

/// One layer's queries against its pages.
pub(crate) struct Attention {
    pub spec: AttentionSpec,
    pub query: Slab,
    pub norm: Option<Norm>,
    pub rope: Rotation,
    pub output: Slab,
}

impl Attention {
    pub fn jobs(&self, play: &Play<'_>) -> usize {
        let AttentionSpec { heads, kv_heads, .. } = self.spec;
        let cut = cut_attend(heads, kv_heads, play.rows.len(), play.workers, MAX_QUERIES);
        let blocks: usize = play.runs.iter().map(|run| run.len().div_ceil(cut.rows)).sum();
        blocks * kv_heads * (heads / kv_heads).div_ceil(cut.heads)
    }

    pub unsafe fn run(&self, play: &Play<'_>, job: usize, scratch: &mut WorkerScratch) {
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
        // SAFETY: by the promise of `Stage::run`; the scratch holds `MAX_QUERIES` heads, and no other
        // job writes these heads of these rows.
        unsafe {
            let mut to = scratch.queries.as_mut_ptr();
            for row in rows.clone() {
                let prologue = prologue(self.norm, self.rope, row);
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
