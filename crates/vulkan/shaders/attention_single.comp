// attention_single: attention of rows of different sequences, one or some, for GPUs whose units are counted: as few waits
// one after another as there can be.
//
// A workgroup serves one query head of a row and one of SPLITS parts of the visible pages. Its subgroups take
// chunks of tokens in turn, each with a softmax of its own: some invocations score a token together,
// then each sums some vectors of values, all by operations of the subgroup. While the first keys and
// values come, one subgroup norms and rotates the query, another the row's own key. In the end what
// the subgroups found is joined, and by the last part to finish, found by an atomic count, what the
// parts found. There are at least three subgroups.
#version 460
#extension GL_GOOGLE_include_directive : require
#define CHAIN_BINDING 11
#include "include/common.glsl"
#include "include/epilogue.glsl"
#include "include/fault.glsl"
#include "include/operand.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 256;
#define KV_ACCESS
#include "include/heads.glsl"

layout(constant_id = 7) const uint SPLITS = 1;
// Pages of a part, at least.
layout(constant_id = 14) const uint LEAST_PAGES = 1;
// There is one row.
layout(constant_id = 13) const bool SINGLE = true;
// Rows that the operand of the product that reads the result has room for, where that is fragments.
layout(constant_id = 12) const uint FRAGMENT_ROWS = 0;

layout(set = 1, binding = 6, std430) HANDED_ON writeonly buffer Output { float results[]; };
// [row][head][split]: maximum, sum, then HEAD_DIM values.
layout(set = 1, binding = 7, std430) coherent buffer Partials { float partials[]; };
layout(set = 1, binding = 8, std430) coherent buffer Arrivals { uint arrivals[]; };
layout(set = 1, binding = 9, std430) writeonly buffer NextOperand { uint next_operand[]; };
layout(set = 1, binding = 10, std430) writeonly buffer NextMetas { uvec2 next_metas[]; };

layout(push_constant) uniform Constants {
    Heads heads;
    uint query_heads;
    uint output_stride;
    // Tokens a row sees, itself included; 0: all.
    uint window;
    float scale;
    // 0: none.
    float cap;
    CHAIN_LINK
};

#define PARTIAL(at) partials[at]
#include "include/attend_single.glsl"

shared uint arrived;

void attend() {
    const uint head = gl_WorkGroupID.x;
    const uint split = gl_WorkGroupID.y;
    const uint row = SINGLE ? 0 : gl_WorkGroupID.z;
    if (!SINGLE && row >= play.row_count) {
        return;
    }
    const Row source = play.rows[row];
    const uint queries_a_key = query_heads / heads.kv_heads;
    const uint kv_head = head / queries_a_key;
    // What is in memory already: all but the row's own token.
    const uint known = source.position;
    const uint seen = window + (FAULT == LONG_WINDOW ? 1 : 0);
    const uint first = window != 0 && known + 1 > seen ? known + 1 - seen : 0;
    const uint first_page = first / PAGE_TOKENS;
    const uint page_count = known / PAGE_TOKENS + 1 - first_page;
    const uint share = max((page_count + SPLITS - 1) / SPLITS, LEAST_PAGES);
    const uint splits = (page_count + share - 1) / share;
    if (split >= splits) {
        return;
    }
    const uint end = min((first_page + (split + 1) * share) * PAGE_TOKENS, known);
    uint chunk = (first_page + split * share) * PAGE_TOKENS + gl_SubgroupID * CHUNK;
    [[unroll]] for (uint i = 0; i < OWN; i++) {
        [[unroll]] for (uint k = 0; k < LENGTH; k++) {
            result[i][k] = 0.0;
        }
    }
    load_chunk(page_base(source, min(chunk, known) / PAGE_TOKENS, kv_head), chunk, first, end);
#ifdef CHAINED
    await_link(chain_link);
#endif
    const uint key_start = row * heads.key_stride + heads.key_column + kv_head * HEAD_DIM;
    const uint query_start = row * heads.query_stride + heads.query_column + head * HEAD_DIM;
    const uint value_start = row * heads.value_stride + heads.value_column + kv_head * HEAD_DIM;
    if (gl_SubgroupID < 2) {
        const bool is_key = gl_SubgroupID == 1;
        form_head(is_key, row, is_key ? key_start : query_start);
    } else if (gl_SubgroupID == 2) {
        form_value(value_start);
    }
    barrier();
    if (split == splits - 1) {
        const bool stale = FAULT == STALE_KEY && kv_head == 0;
        if (gl_SubgroupID == SUBGROUPS - 1) {
            begin_with_newest();
        } else if (gl_SubgroupID == SUBGROUPS - 2 && head % queries_a_key == 0 && !stale) {
            store_key_and_value(source, kv_head);
        }
    }
    [[dont_unroll]] while (chunk < end) {
        add_chunk(chunk, first, end);
        chunk += SUBGROUPS * CHUNK;
        if (chunk < end) {
            load_chunk(page_base(source, chunk / PAGE_TOKENS, kv_head), chunk, first, end);
        }
    }
    leave_result();
    barrier();
    vec2 softmax = join_softmax();
    const uint start = (row * query_heads + head) * SPLITS * (HEAD_DIM + 2);
    if (splits > 1) {
        const uint mine = start + split * (HEAD_DIM + 2);
        for (uint d = gl_LocalInvocationIndex; d < HEAD_DIM; d += WORKGROUP) {
            partials[mine + 2 + d] = join_values(softmax.x, d);
        }
        if (gl_LocalInvocationIndex == 0) {
            partials[mine] = softmax.x;
            partials[mine + 1] = softmax.y;
        }
#ifdef CHAINED
        workgroup_barrier();
        if (gl_LocalInvocationIndex == 0) {
            arrived = atomicAdd(arrivals[row * query_heads + head], 1, gl_ScopeDevice, gl_StorageSemanticsBuffer,
                                gl_SemanticsAcquireRelease);
#else
        memoryBarrierBuffer();
        barrier();
        if (gl_LocalInvocationIndex == 0) {
            arrived = atomicAdd(arrivals[row * query_heads + head], 1);
#endif
            if (arrived == splits - 1) {
                // For the next play.
                arrivals[row * query_heads + head] = 0;
            }
        }
#ifdef CHAINED
        workgroup_barrier();
#else
        barrier();
#endif
        if (arrived != splits - 1) {
            return;
        }
#ifndef CHAINED
        memoryBarrierBuffer();
#endif
        leave_parts(start, FAULT == LOST_SPLIT && head == 0 ? splits - 1 : splits);
        barrier();
        softmax = join_softmax();
    }
    const uint output_start = row * output_stride + head * HEAD_DIM;
    if (FRAGMENT_ROWS == 0) {
        for (uint d = gl_LocalInvocationIndex; d < HEAD_DIM; d += WORKGROUP) {
            results[output_start + d] = join_values(softmax.x, d) / softmax.y;
        }
        return;
    }
    // A mean of values is no larger than they are, and those are half floats: no scale is needed.
    for (uint v = gl_LocalInvocationIndex; v < HEAD_DIM / 4; v += WORKGROUP) {
        vec4 y;
        [[unroll]] for (uint i = 0; i < 4; i++) {
            y[i] = join_values(softmax.x, 4 * v + i) / softmax.y;
            results[output_start + 4 * v + i] = y[i];
        }
        const uvec2 words = halves_of(y);
        const uint at = fragment_word(head * (HEAD_DIM / 4) + v, row, FRAGMENT_ROWS);
        next_operand[at] = words.x;
        next_operand[at + 1] = words.y;
    }
    if (head == 0 && gl_LocalInvocationIndex == 0) {
        next_metas[row] = uvec2(floatBitsToUint(1.0), 0);
    }
}

void main() {
    attend();
#ifdef CHAINED
    leave_link(chain_link);
#endif
}
