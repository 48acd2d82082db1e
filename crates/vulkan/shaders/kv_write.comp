// kv_write: norm and rotations of a row's key, then key and value into their page. One workgroup
// for a row and a head; used where a step has several rows, which see one another's keys.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"
#include "include/fault.glsl"

layout(local_size_x = 64) in;
const uint WORKGROUP = 64;
#define KV_ACCESS writeonly
#include "include/heads.glsl"

layout(push_constant) uniform Constants { Heads heads; };

shared float head[HEAD_DIM];
shared float partial[16];
// Of key and value, with bytes.
shared vec2 largest[16];

void main() {
    const uint row = gl_WorkGroupID.x;
    const uint kv_head = gl_WorkGroupID.y;
    if (row >= play.row_count) {
        return;
    }
    if (FAULT == STALE_KEY && kv_head == 0 && row == play.row_count - 1) {
        return;
    }
    const Row source = play.rows[row];
    const uint key_start = row * heads.key_stride + heads.key_column + kv_head * HEAD_DIM;
    const uint value_start = row * heads.value_stride + heads.value_column + kv_head * HEAD_DIM;
    float factor = 1.0;
    if (KEY_NORM) {
        float squares = 0.0;
        [[unroll]] for (uint d = gl_LocalInvocationIndex; d < HEAD_DIM; d += WORKGROUP) {
            squares += keys[key_start + d] * keys[key_start + d];
        }
        squares = subgroupAdd(squares);
        if (subgroupElect()) {
            partial[gl_SubgroupID] = squares;
        }
        barrier();
        float total = 0.0;
        [[unroll]] for (uint i = 0; i < SUBGROUPS; i++) {
            total += partial[i];
        }
        factor = inversesqrt(total / float(HEAD_DIM) + heads.key_epsilon);
    }
    for (uint pair = gl_LocalInvocationIndex; pair < HEAD_DIM / 2; pair += WORKGROUP) {
        const uvec2 at = pair_of(pair);
        vec2 x = vec2(keys[key_start + at.x], keys[key_start + at.y]);
        if (KEY_NORM) {
            x *= factor * vec2(vectors[heads.key_norm + at.x], vectors[heads.key_norm + at.y]);
        }
        x = rotated(x, row, pair);
        head[at.x] = x.x;
        head[at.y] = x.y;
    }
    barrier();
    if (KEY_ROTATION > 1) {
        if (gl_SubgroupID == 0) {
            float x[COLUMNS];
            [[unroll]] for (uint i = 0; i < COLUMNS; i++) {
                x[i] = head[own_column(i)];
            }
            rotate_head(x);
            [[unroll]] for (uint i = 0; i < COLUMNS; i++) {
                if (has_column(i)) {
                    head[own_column(i)] = x[i];
                }
            }
        }
        barrier();
    }
    const uint token = source.position % PAGE_TOKENS;
    const uint base = head_base(heads, source.sequence, source.position / PAGE_TOKENS, kv_head);
    vec2 inverse = vec2(1.0);
    if (KV_BYTES) {
        vec2 most = vec2(0.0);
        [[unroll]] for (uint d = gl_LocalInvocationIndex; d < HEAD_DIM; d += WORKGROUP) {
            most = max(most, vec2(magnitude(head[d]), magnitude(values[value_start + d])));
        }
        most = subgroupMax(most);
        if (subgroupElect()) {
            largest[gl_SubgroupID] = most;
        }
        barrier();
        [[unroll]] for (uint i = 0; i < SUBGROUPS; i++) {
            most = max(most, largest[i]);
        }
        inverse = vec2(inverse_of(most.x), inverse_of(most.y));
        if (gl_LocalInvocationIndex < 2) {
            store_scale(base, gl_LocalInvocationIndex, token, scale_of(most[gl_LocalInvocationIndex]));
        }
    }
    for (uint v = gl_LocalInvocationIndex; v < VECTORS; v += WORKGROUP) {
        float key[LENGTH], value[LENGTH];
        [[unroll]] for (uint i = 0; i < LENGTH; i++) {
            key[i] = head[v * LENGTH + i] * inverse.x;
            value[i] = values[value_start + v * LENGTH + i] * inverse.y;
            if (FAULT == SWAPPED_KV && kv_head == 0) {
                const float other = key[i];
                key[i] = value[i];
                value[i] = other;
            }
        }
        pages[base + v * PAGE_TOKENS + token] = pack(key);
        pages[base + VALUES_AT + token * VECTORS + v] = pack(value);
    }
}
