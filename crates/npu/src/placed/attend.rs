//! Attention: head norms, rotation and KV pages here; scores and weighted sums by a package of whole
//! attentions, by products of matrices, or here.

use std::ops::Range;

use half::bf16;
use pianola_plan::{Attend, AttentionSpec, DeviceError, FusedNorm, Row, Step, TensorId};

use super::arena::Arena;
use super::kv::{KvMemory, Part};
use super::link::Link;
use super::packages::Kernels;
use super::parallel::each_row;
use super::rows;
use super::twin;
use super::worker::Worker;
use crate::package::{self, Operation, Shape};
use crate::runner::{Factor, Order, RunError};

/// Fewer rows of a sequence are not worth the way to the device and back.
pub(super) const DEVICE_ROWS: usize = 8;

/// How a sequence's attention is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// By loops on the processor.
    Host,
    /// By products of bf16 on the device, with the softmax between them on the processor.
    Products,
    /// By a package of whole attentions, by its place in [`Kernels::flash`].
    Flash(usize),
}

/// The way for rows of one sequence. It depends on the packages in use only, not on whether the device
/// works at the moment: a play has the same result after a failure.
pub(super) fn way(kernels: &Kernels, spec: &AttentionSpec, rows: &[Row]) -> Way {
    let last = rows.last().map_or(0, |row| row.position as usize);
    if rows.len() < DEVICE_ROWS {
        return Way::Host;
    }
    let unbounded = spec.window.is_none_or(|window| last < window);
    let holds = |index: &usize| flash_spec(kernels, *index).is_some_and(|flash| last < flash.keys);
    match flash_for(kernels, spec).into_iter().find(holds) {
        Some(index) if unbounded => Way::Flash(index),
        _ if kernels.attention_spec().is_some() => Way::Products,
        _ => Way::Host,
    }
}

/// Packages of whole attentions whose heads are those of `spec`.
pub(super) fn flash_for(kernels: &Kernels, spec: &AttentionSpec) -> Vec<usize> {
    let fits = |index: &usize| {
        spec.soft_cap.is_none()
            && flash_spec(kernels, *index).is_some_and(|flash| {
                flash.causal
                    && (flash.heads, flash.kv_heads) == (spec.heads, spec.kv_heads)
                    && (flash.key_width, flash.value_width) == (spec.head_dim, spec.head_dim)
            })
    };
    (0..kernels.flash.len()).filter(fits).collect()
}

/// What a package of whole attentions computes.
pub(super) fn flash_spec(kernels: &Kernels, index: usize) -> Option<&package::AttentionSpec> {
    match &kernels.flash[index].manifest().operation {
        Operation::Attention(spec) => Some(spec),
        Operation::Matmul(_) => None,
    }
}

/// Rows of one sequence with the keys and values that they see.
struct Sequence<'a> {
    spec: &'a AttentionSpec,
    rows: &'a [Row],
    /// `[rows][heads][head]`
    queries: &'a [f32],
    /// The first position of `keys` and `values`.
    first: usize,
    /// `[KV heads][positions][head]`
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Worker {
    /// Plays a fused attention.
    pub(super) fn attend(
        &mut self,
        name: &str,
        attend: &Attend,
        arena: &mut Arena,
        step: &Step,
    ) -> Result<(), DeviceError> {
        let query = self.heads(attend.query, attend.query_norm, attend.rope, arena, step);
        let key = self.heads(attend.key, attend.key_norm, attend.rope, arena, step);
        let width = arena.width(attend.key);
        for (row, key) in step.rows.iter().zip(key.chunks_exact(width)).enumerate() {
            let (index, (row, key)) = (row, key);
            self.kv.store(attend.spec.kv, row, key, arena.row(attend.value, index));
        }
        let out = self.attention(name, &attend.spec, &query, &step.rows)?;
        arena.scatter(attend.output, &out);
        Ok(())
    }

    /// All rows of a tensor of heads, normed and rotated.
    fn heads(
        &self,
        tensor: TensorId,
        norm: Option<FusedNorm>,
        rope: Option<(usize, TensorId)>,
        arena: &Arena,
        step: &Step,
    ) -> Vec<f32> {
        let mut x = arena.gather(tensor, 0..step.rows.len());
        let work = 16 * x.len();
        let norm = norm.map(|norm| (self.weights.vector(norm.weight), norm.epsilon));
        each_row(&mut x, arena.width(tensor), work, |row, x| {
            if let Some((weight, epsilon)) = norm {
                rows::rms_norm(x, weight, epsilon);
            }
            if let Some((rope, angles)) = rope {
                rows::rope(x, arena.row(angles, row), self.plan.graph.ropes[rope].pairing);
            }
        });
        x
    }

    /// Attention of queries `[rows][heads][head]` to the keys stored so far.
    pub(super) fn attention(
        &mut self,
        name: &str,
        spec: &AttentionSpec,
        queries: &[f32],
        rows: &[Row],
    ) -> Result<Vec<f32>, DeviceError> {
        let width = spec.heads * spec.head_dim;
        let mut out = vec![0.0; queries.len()];
        for run in sequences(rows) {
            let values = run.start * width..run.end * width;
            let sequence = Sequence::new(spec, &rows[run], &queries[values.clone()], &self.kv);
            let out = &mut out[values];
            match way(&self.link.kernels, spec, sequence.rows) {
                Way::Host => sequence.on_host(out),
                Way::Products => sequence.by_products(&mut self.link, name, out)?,
                Way::Flash(index) => sequence.by_flash(&mut self.link, name, index, out)?,
            }
        }
        Ok(out)
    }
}

/// Ranges of rows of one sequence each.
pub(super) fn sequences(rows: &[Row]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut start = 0;
    rows.chunk_by(|left, right| left.sequence == right.sequence).map(move |rows| {
        let range = start..start + rows.len();
        start = range.end;
        range
    })
}

/// The first position that a row sees.
fn first_visible(spec: &AttentionSpec, row: &Row) -> usize {
    spec.window.map_or(0, |window| (row.position as usize + 1).saturating_sub(window))
}

impl<'a> Sequence<'a> {
    fn new(spec: &'a AttentionSpec, rows: &'a [Row], queries: &'a [f32], kv: &KvMemory) -> Self {
        // Positions rise from row to row.
        let first = first_visible(spec, &rows[0]);
        let last = rows[rows.len() - 1].position as usize;
        let (sequence, head_dim) = (rows[0].sequence as usize, spec.head_dim);
        let load = |part: Part| {
            let count = last + 1 - first;
            let mut all = vec![0.0; spec.kv_heads * count * head_dim];
            for (index, out) in all.chunks_exact_mut(head_dim).enumerate() {
                let token = (sequence, first + index % count);
                kv.load(spec.kv, part, token, index / count, out);
            }
            all
        };
        let (keys, values) = (load(Part::Key), load(Part::Value));
        Sequence { spec, rows, queries, first, keys, values }
    }

    fn positions(&self) -> usize {
        self.keys.len() / (self.spec.kv_heads * self.spec.head_dim)
    }

    /// Positions that a row sees, counted from the first that any does.
    fn visible(&self, row: usize) -> Range<usize> {
        let row = &self.rows[row];
        first_visible(self.spec, row) - self.first..row.position as usize + 1 - self.first
    }

    /// A KV head's part of keys or values.
    fn head<'b>(&self, all: &'b [f32], head: usize) -> &'b [f32] {
        let values = self.positions() * self.spec.head_dim;
        &all[head * values..][..values]
    }

    /// Turns scores into weights that are not yet divided by their sum, the largest being 1.
    fn weigh(&self, scores: &mut [f32]) {
        for score in scores.iter_mut() {
            *score *= self.spec.scale;
        }
        if let Some(cap) = self.spec.soft_cap {
            rows::soft_cap(scores, cap);
        }
        let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        scores.iter_mut().for_each(|score| *score = (*score - largest).exp());
    }

    fn on_host(&self, out: &mut [f32]) {
        let AttentionSpec { heads, kv_heads, head_dim, .. } = *self.spec;
        let width = heads * head_dim;
        let work = 4 * self.rows.len() * width * self.positions();
        each_row(out, width, work, |row, out| {
            let visible = self.visible(row);
            for (head, out) in out.chunks_exact_mut(head_dim).enumerate() {
                let kv_head = head / (heads / kv_heads);
                let query = &self.queries[row * width + head * head_dim..][..head_dim];
                let part = visible.start * head_dim..visible.end * head_dim;
                let keys = self.head(&self.keys, kv_head)[part.clone()].chunks_exact(head_dim);
                let mut weights: Vec<f32> = keys.map(|key| dot(query, key)).collect();
                self.weigh(&mut weights);
                let total: f32 = weights.iter().sum();
                out.fill(0.0);
                let values = self.head(&self.values, kv_head)[part].chunks_exact(head_dim);
                for (weight, value) in weights.iter().zip(values) {
                    out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * value);
                }
                out.iter_mut().for_each(|out| *out /= total);
            }
        });
    }

    /// For each KV head the queries of its group, `[rows][group][head]`, meet all keys.
    fn by_products(&self, link: &mut Link, name: &str, out: &mut [f32]) -> Result<(), DeviceError> {
        let AttentionSpec { heads, kv_heads, head_dim, .. } = *self.spec;
        let (group, positions) = (heads / kv_heads, self.positions());
        let m = self.rows.len() * group;
        let mut scores = vec![0.0; m * positions];
        let mut sums = vec![0.0; m * head_dim];
        for kv_head in 0..kv_heads {
            let at = |row: usize| (row / group * heads + kv_head * group + row % group) * head_dim;
            let queries: Vec<bf16> =
                (0..m).flat_map(|row| narrow(&self.queries[at(row)..][..head_dim])).collect();
            let keys: Vec<bf16> = narrow(self.head(&self.keys, kv_head)).collect();
            let shape = Shape { m, k: head_dim, n: positions };
            let factor = Factor { values: &keys, order: Order::ColumnMajor };
            multiply(link, name, shape, &queries, factor, &mut scores)?;
            let (weights, totals) = self.weights(&mut scores, group);
            let values: Vec<bf16> = narrow(self.head(&self.values, kv_head)).collect();
            let shape = Shape { m, k: positions, n: head_dim };
            let factor = Factor { values: &values, order: Order::RowMajor };
            multiply(link, name, shape, &weights, factor, &mut sums)?;
            for (row, sums) in sums.chunks_exact(head_dim).enumerate() {
                let out = &mut out[at(row)..][..head_dim];
                out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum / totals[row]);
            }
        }
        Ok(())
    }

    /// Weights of all positions in bf16, zero where a row sees none, and the sum of each row's. It is
    /// that of the rounded weights, so that they add up to one again.
    fn weights(&self, scores: &mut [f32], group: usize) -> (Vec<bf16>, Vec<f32>) {
        let positions = self.positions();
        let work = 16 * scores.len();
        each_row(scores, positions, work, |row, scores| {
            let visible = self.visible(row / group);
            scores[..visible.start].fill(0.0);
            scores[visible.end..].fill(0.0);
            self.weigh(&mut scores[visible]);
        });
        let weights: Vec<bf16> = narrow(scores).collect();
        let rows = weights.chunks_exact(positions);
        let totals = rows.map(|row| row.iter().map(|weight| weight.to_f32()).sum()).collect();
        (weights, totals)
    }

    /// Queries stand at their positions among those of the package; what stands before and behind
    /// them is computed for nothing.
    fn by_flash(
        &self,
        link: &mut Link,
        name: &str,
        index: usize,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        let AttentionSpec { heads, kv_heads, head_dim, scale, .. } = *self.spec;
        let kernels = link.kernels.clone();
        let Some(flash) = flash_spec(&kernels, index) else {
            unreachable!("chosen for its attention")
        };
        // The package multiplies scores by the inverse root of the width itself.
        let factor = scale * (head_dim as f32).sqrt();
        let mut q = vec![bf16::ZERO; heads * flash.queries * head_dim];
        let place = |row: usize, head: usize| {
            (head * flash.queries + self.rows[row].position as usize) * head_dim
        };
        for (index, query) in self.queries.chunks_exact(head_dim).enumerate() {
            let to = &mut q[place(index / heads, index % heads)..][..head_dim];
            to.iter_mut().zip(query).for_each(|(to, query)| *to = bf16::from_f32(query * factor));
        }
        let spread = |all: &[f32]| {
            let mut spread = vec![bf16::ZERO; kv_heads * flash.keys * head_dim];
            for (head, spread) in spread.chunks_exact_mut(flash.keys * head_dim).enumerate() {
                let values = narrow(self.head(all, head));
                spread.iter_mut().zip(values).for_each(|(to, value)| *to = value);
            }
            spread
        };
        let (k, v) = (spread(&self.keys), spread(&self.values));
        let on_device = link.run(name, |session| {
            let runner = session.flash(index);
            let mut results = vec![bf16::ZERO; q.len()];
            runner.attention_bf16(&q, &k, &v, &mut results)?;
            let mut finite = true;
            for (index, out) in out.chunks_exact_mut(head_dim).enumerate() {
                let result = &results[place(index / heads, index % heads)..][..head_dim];
                finite &= result.iter().all(|value| value.is_finite());
                out.iter_mut().zip(result).for_each(|(out, value)| *out = value.to_f32());
            }
            match finite || !self.is_finite() {
                true => Ok(()),
                false => Err(RunError::NoResult { package: runner.name().to_string() }),
            }
        })?;
        if !on_device {
            self.on_host(out);
        }
        Ok(())
    }

    fn is_finite(&self) -> bool {
        let mut all = self.queries.iter().chain(&self.keys).chain(&self.values);
        all.all(|value| value.is_finite())
    }
}

/// A product of attention, on the device or in its place.
fn multiply(
    link: &mut Link,
    name: &str,
    shape: Shape,
    a: &[bf16],
    b: Factor<'_, bf16>,
    out: &mut [f32],
) -> Result<(), DeviceError> {
    let on_device = link.run(name, |session| session.attention().matmul_bf16(shape, a, b, out))?;
    if !on_device {
        let spec = link.kernels.attention_spec().expect("chosen for its products");
        twin::matmul_bf16(spec, shape, a, b, out);
    }
    Ok(())
}

fn narrow(values: &[f32]) -> impl Iterator<Item = bf16> + '_ {
    values.iter().map(|&value| bf16::from_f32(value))
}

/// `sum a b`, with sums side by side for the compiler to fill vectors with.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut lanes = [0.0f32; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}
