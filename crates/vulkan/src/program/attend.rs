//! Attention: the KV store of several rows, and the kernel that attends.

use super::project::fragment_rows;
use super::{Body, Dispatch, InputFrom, Programmer};
use crate::pipeline::{Shader, Variant};
use crate::policy::attention;
use bytemuck::{Pod, Zeroable};
use pianola_plan::{Attend, FusedNorm, KvType, RopePairing};

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

/// The number by which kernels know a type.
fn kv_code(ty: KvType) -> u32 {
    match ty {
        KvType::F32 => 0,
        KvType::F16 => 1,
        KvType::Q8 => 2,
    }
}

impl Programmer<'_> {
    pub(super) fn attend(&self, op: usize, attend: &Attend, body: Body, out: &mut Vec<Dispatch>) {
        let spec = &attend.spec;
        let group = &self.plan.graph.kv_groups[spec.kv.group];
        let (query, query_stride, query_column) = self.tensor(attend.query);
        let (key, key_stride, key_column) = self.tensor(attend.key);
        let (value, value_stride, value_column) = self.tensor(attend.value);
        let (output, output_stride, _) = self.tensor(attend.output);
        let vectors = self.weights.vectors;
        let angles = attend.rope.map_or(vectors, |(_, angles)| self.tensor(angles).0);
        let norm =
            |norm: Option<FusedNorm>| norm.map_or(0, |norm| self.weights.vector(norm.weight));
        let epsilon = |norm: Option<FusedNorm>| norm.map_or(0.0, |norm| norm.epsilon);
        let heads = HeadsConstants {
            query_stride,
            query_column,
            key_stride,
            key_column,
            value_stride,
            value_column,
            kv_heads: spec.kv_heads as u32,
            query_norm: norm(attend.query_norm),
            key_norm: norm(attend.key_norm),
            query_epsilon: epsilon(attend.query_norm),
            key_epsilon: epsilon(attend.key_norm),
            table: self.resources.tables[spec.kv.group],
            entries: self.resources.entries,
        };
        let rope = attend.rope.map_or(0, |(rope, _)| match self.plan.graph.ropes[rope].pairing {
            RopePairing::Halves => 1,
            RopePairing::Adjacent => 2,
        });
        let pages = self.resources.pages[spec.kv.group][spec.kv.layer];
        let mut constants = vec![
            (1, spec.head_dim as u32),
            (2, kv_code(group.ty)),
            (3, u32::from(attend.query_norm.is_some())),
            (4, u32::from(attend.key_norm.is_some())),
            (5, rope),
            (11, self.limits.subgroup),
        ];
        let bindings = vec![query, key, value, angles, vectors, pages];
        let Body { rows, one_row_per_sequence: fused, .. } = body;
        if !fused {
            let variant = Variant { shader: Shader::KvWrite, constants: constants.clone() };
            let groups = [rows, spec.kv_heads as u32, 1];
            let push = bytemuck::bytes_of(&heads);
            out.push(Dispatch::new(variant, bindings.clone(), push, groups, op));
        }
        let queries = attention::heads(&self.limits, rows, (spec.heads / spec.kv_heads) as u32);
        let next = self.output_for_next(op, rows);
        let (next_operand, next_metas) = self.handed(next);
        let groups = spec.heads as u32 / queries;
        let splits = attention::splits(&self.limits, rows, groups, self.resources.entries);
        constants.extend([
            (6, queries),
            (7, splits),
            (8, u32::from(fused)),
            (9, u32::from(next == InputFrom::Codes)),
            (10, u32::from(attention::early(&self.limits, rows))),
            (13, u32::from(rows == 1)),
            (14, attention::least_pages(rows)),
            (12, if next == InputFrom::Fragments { fragment_rows(rows) } else { 0 }),
        ]);
        let mut bindings = bindings;
        bindings.extend([output, self.resources.partials, self.resources.arrivals]);
        bindings.extend([next_operand, next_metas]);
        let push = AttentionConstants {
            heads,
            query_heads: spec.heads as u32,
            output_stride,
            window: spec.window.map_or(0, |window| window as u32),
            scale: spec.scale,
            cap: spec.soft_cap.unwrap_or(0.0),
        };
        let variant = Variant { shader: Shader::Attention, constants };
        let groups = [rows, groups, splits];
        let launch = Dispatch::new(variant, bindings, bytemuck::bytes_of(&push), groups, op);
        out.push(Dispatch { barrier: !fused, ..launch });
    }
}
