//! Attention: the KV store of several rows, and the kernels that attend.

use super::{Body, Dispatch, InputFrom, Programmer};
use crate::constants::{
    attention as attention_id, attention_matrix as matrix_id, attention_single as single_id,
    heads as id,
};
use crate::memory::Region;
use crate::pipeline::{Shader, Variant};
use crate::policy::attention::SingleCut;
use crate::policy::attention_matrix::AttentionTile;
use crate::policy::{attention, attention_matrix};
use crate::step::most_blocks;
use bytemuck::{Pod, Zeroable};
use pianola_plan::{
    Attend, AttentionSpec, FusedNorm, KvSlot, KvType, RopePairing, Rounding, TensorId,
};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct HeadsConstants {
    query_stride: u32,
    query_column: u32,
    key_stride: u32,
    key_column: u32,
    value_stride: u32,
    value_column: u32,
    kv_heads: u32,
    query_norm: u32,
    key_norm: u32,
    query_epsilon: f32,
    key_epsilon: f32,
    table: u32,
    entries: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct AttentionConstants {
    heads: HeadsConstants,
    query_heads: u32,
    output_stride: u32,
    window: u32,
    scale: f32,
    cap: f32,
}

impl AttentionConstants {
    fn new(heads: HeadsConstants, spec: &AttentionSpec, output_stride: u32) -> AttentionConstants {
        AttentionConstants {
            heads,
            query_heads: spec.heads as u32,
            output_stride,
            window: spec.window.map_or(0, |window| window as u32),
            scale: spec.scale,
            cap: spec.soft_cap.unwrap_or(0.0),
        }
    }
}

/// The number by which kernels know a type.
fn kv_code(ty: KvType) -> u32 {
    match ty {
        KvType::F32 => 0,
        KvType::F16 => 1,
        KvType::Q8 => 2,
    }
}

/// The number by which kernels know a pairing; 0 is no rotation.
pub(super) fn rope_code(pairing: RopePairing) -> u32 {
    match pairing {
        RopePairing::Halves => 1,
        RopePairing::Adjacent => 2,
    }
}

/// What queries, keys and values are made of, for one layer.
pub(super) struct HeadInputs {
    kv: KvSlot,
    query: TensorId,
    key: TensorId,
    value: TensorId,
    query_norm: Option<FusedNorm>,
    key_norm: Option<FusedNorm>,
    rope: Option<(usize, TensorId)>,
}

impl HeadInputs {
    /// Queries, keys and values that are used as they are. A kernel that does not read one of them
    /// is given another in its place.
    pub fn bare(kv: KvSlot, [query, key, value]: [TensorId; 3]) -> HeadInputs {
        HeadInputs { kv, query, key, value, query_norm: None, key_norm: None, rope: None }
    }

    fn of(attend: &Attend) -> HeadInputs {
        let &Attend { query, key, value, query_norm, key_norm, rope, .. } = attend;
        HeadInputs { kv: attend.spec.kv, query, key, value, query_norm, key_norm, rope }
    }
}

impl Programmer<'_> {
    pub(super) fn attend(&self, op: usize, attend: &Attend, body: Body, out: &mut Vec<Dispatch>) {
        let heads = HeadInputs::of(attend);
        let rows = body.rows;
        let fused = self.stores_keys(body);
        if !fused {
            out.push(self.kv_write(op, &heads, rows));
        }
        let attended = (&attend.spec, attend.output);
        let launch =
            match (self.attention_tile(&attend.spec, body), self.single_cut(&attend.spec, body)) {
                (Some(tile), _) => self.attention_matrix(op, &heads, attended, rows, tile),
                (None, Some(cut)) => self.attention_single(op, &heads, attended, rows, cut),
                (None, None) => self.attention(op, &heads, attended, rows, fused),
            };
        out.push(Dispatch { barrier: !fused, ..launch });
    }

    /// Whether the kernel that attends also stores keys and values.
    fn stores_keys(&self, body: Body) -> bool {
        // A row whose key and value are still in registers would be summed in another order.
        body.one_row_per_sequence && !self.plan.options.reproducible
    }

    /// How a fused attention is cut on matrix units, if it runs there.
    fn attention_tile(&self, spec: &AttentionSpec, body: Body) -> Option<AttentionTile> {
        if self.stores_keys(body) {
            return None;
        }
        let kv_type = self.plan.graph.kv_groups[spec.kv.group].ty;
        attention_matrix::choose(&self.limits, &self.plan.options, body.rows, (spec, kv_type))
    }

    /// How a fused attention of rows of different sequences is cut, if it has a kernel of its own.
    fn single_cut(&self, spec: &AttentionSpec, body: Body) -> Option<SingleCut> {
        if !self.stores_keys(body) {
            return None;
        }
        let kv_type = self.plan.graph.kv_groups[spec.kv.group].ty;
        attention::choose_single(&self.limits, &self.plan.options, body.rows, (spec, kv_type))
    }

    /// How a fused attention rounds its queries and weights.
    pub(super) fn attention_rounding(&self, attend: &Attend, body: Body) -> Rounding {
        match self.attention_tile(&attend.spec, body) {
            Some(_) => Rounding::Halves,
            None => Rounding::None,
        }
    }

    /// Norm and rotation of keys, and the store of keys and values.
    pub(super) fn kv_write(&self, op: usize, heads: &HeadInputs, rows: u32) -> Dispatch {
        let (constants, bindings, push) = self.heads(heads);
        let variant = Variant { shader: Shader::KvWrite, constants };
        let groups = [rows, push.kv_heads, 1];
        Dispatch::new(variant, bindings, bytemuck::bytes_of(&push), groups, op)
    }

    /// Constants, bindings and push constants that both kernels begin with.
    fn heads(&self, heads: &HeadInputs) -> (Vec<(u32, u32)>, Vec<Region>, HeadsConstants) {
        let group = &self.plan.graph.kv_groups[heads.kv.group];
        let (query, query_stride, query_column) = self.tensor(heads.query);
        let (key, key_stride, key_column) = self.tensor(heads.key);
        let (value, value_stride, value_column) = self.tensor(heads.value);
        let vectors = self.weights.vectors;
        let angles = heads.rope.map_or(vectors, |(_, angles)| self.tensor(angles).0);
        let norm =
            |norm: Option<FusedNorm>| norm.map_or(0, |norm| self.weights.vector(norm.weight));
        let epsilon = |norm: Option<FusedNorm>| norm.map_or(0.0, |norm| norm.epsilon);
        let push = HeadsConstants {
            query_stride,
            query_column,
            key_stride,
            key_column,
            value_stride,
            value_column,
            kv_heads: group.kv_heads as u32,
            query_norm: norm(heads.query_norm),
            key_norm: norm(heads.key_norm),
            query_epsilon: epsilon(heads.query_norm),
            key_epsilon: epsilon(heads.key_norm),
            table: self.resources.tables[heads.kv.group],
            entries: self.resources.entries,
        };
        let pairing = |rope: usize| self.plan.graph.ropes[rope].pairing;
        let constants = vec![
            (id::HEAD_DIM, group.head_dim as u32),
            (id::KV_TYPE, kv_code(group.ty)),
            (id::QUERY_NORM, u32::from(heads.query_norm.is_some())),
            (id::KEY_NORM, u32::from(heads.key_norm.is_some())),
            (id::ROPE, heads.rope.map_or(0, |(rope, _)| rope_code(pairing(rope)))),
            (id::SUBGROUP, self.limits.subgroup),
        ];
        let pages = self.resources.pages[heads.kv.group][heads.kv.layer];
        (constants, vec![query, key, value, angles, vectors, pages], push)
    }

    /// Queries against the pages, the result into a tensor; `fused` also stores keys and values.
    pub(super) fn attention(
        &self,
        op: usize,
        heads: &HeadInputs,
        (spec, output): (&AttentionSpec, TensorId),
        rows: u32,
        fused: bool,
    ) -> Dispatch {
        let (mut constants, mut bindings, heads) = self.heads(heads);
        let (output, output_stride, _) = self.tensor(output);
        let cut = attention::choose(&self.limits, &self.plan.options, rows, spec);
        let next = self.output_for_next(op, rows);
        let (next_operand, next_metas) = self.handed(next);
        constants.extend([
            (attention_id::HEADS, cut.heads),
            (attention_id::SPLITS, cut.splits),
            (attention_id::FUSED, u32::from(fused)),
            (attention_id::CODES, u32::from(next == InputFrom::Codes)),
            (attention_id::EARLY, u32::from(cut.early)),
            (attention_id::SINGLE, u32::from(self.policy_rows(rows) == 1)),
            (attention_id::LEAST_PAGES, cut.least_pages),
            (
                attention_id::FRAGMENT_ROWS,
                if next == InputFrom::Fragments { self.fragment_rows(rows) } else { 0 },
            ),
        ]);
        bindings.extend([output, self.resources.partials, self.resources.arrivals]);
        bindings.extend([next_operand, next_metas]);
        let push = AttentionConstants::new(heads, spec, output_stride);
        let variant = Variant { shader: Shader::Attention, constants };
        let groups = [rows, spec.heads as u32 / cut.heads, cut.splits];
        Dispatch::new(variant, bindings, bytemuck::bytes_of(&push), groups, op)
    }

    /// The same for rows of different sequences, where units are counted.
    fn attention_single(
        &self,
        op: usize,
        heads: &HeadInputs,
        (spec, output): (&AttentionSpec, TensorId),
        rows: u32,
        cut: SingleCut,
    ) -> Dispatch {
        let (mut constants, mut bindings, heads) = self.heads(heads);
        let (output, output_stride, _) = self.tensor(output);
        let next = self.output_for_next(op, rows);
        let (next_operand, next_metas) = self.handed(next);
        constants.extend([
            (single_id::WORKGROUP, cut.workgroup),
            (single_id::SPLITS, cut.splits),
            (single_id::LEAST_PAGES, cut.least_pages),
            (single_id::SINGLE, u32::from(rows == 1)),
            (
                single_id::FRAGMENT_ROWS,
                if next == InputFrom::Fragments { self.fragment_rows(rows) } else { 0 },
            ),
        ]);
        bindings.extend([output, self.resources.partials, self.resources.arrivals]);
        bindings.extend([next_operand, next_metas]);
        let push = AttentionConstants::new(heads, spec, output_stride);
        let variant = Variant { shader: Shader::AttentionSingle, constants };
        let groups = [spec.heads as u32, cut.splits, rows];
        Dispatch::new(variant, bindings, bytemuck::bytes_of(&push), groups, op)
    }

    /// The same for many rows, on matrix units.
    fn attention_matrix(
        &self,
        op: usize,
        heads: &HeadInputs,
        (spec, output): (&AttentionSpec, TensorId),
        rows: u32,
        tile: AttentionTile,
    ) -> Dispatch {
        let (mut constants, mut bindings, heads) = self.heads(heads);
        let (output, output_stride, _) = self.tensor(output);
        let next = self.output_for_next(op, rows);
        let (next_operand, next_metas) = self.handed(next);
        constants.extend(tile.constants(&self.limits));
        constants.push((
            matrix_id::FRAGMENT_ROWS,
            if next == InputFrom::Fragments { self.fragment_rows(rows) } else { 0 },
        ));
        bindings.extend([output, next_operand, next_metas]);
        let push = AttentionConstants::new(heads, spec, output_stride);
        let variant = Variant { shader: Shader::AttentionMatrix, constants };
        let blocks = most_blocks(rows, self.plan.options.sequences as u32);
        let groups = [blocks * tile.parts(&self.limits), spec.heads as u32, 1];
        Dispatch::new(variant, bindings, bytemuck::bytes_of(&push), groups, op)
    }
}
