// sample_weigh: adds up what the cuts leave of each slice. One workgroup a slice of a row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"

layout(local_size_x = 256) in;
// Logits of a lane.
layout(constant_id = 0) const uint KEYS = 8;
#include "include/sampling.glsl"
#include "include/sampling_whole.glsl"

void main() {
    if (idle() || state.wanted != 0 || state.greedy != 0) {
        return;
    }
    const uint lane = lane_index();
    const uint slice = gl_WorkGroupID.x;
    const uint image = best_of_row(lane).x;
    if (image == 0 || image == INFINITE_IMAGE) {
        return;
    }
    const float best = logit_of(image);
    Cut top_k = selection.cuts[TOP_K];
    Cut top_p = Cut(0, 0);
    if (state.top_p < 1.0) {
        top_p = last_cut(lane, TOP_P);
    } else if (state.top_k > 0) {
        top_k = last_cut(lane, TOP_K);
    }
    const uint start = slice * LANES * KEYS;
    const uint end = min(start + LANES * KEYS, vocabulary);
    float above = 0.0;
    uint at_top_p = 0;
    uint at_top_k = 0;
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        const uint id = start + i * LANES + lane;
        const float logit = logit_at(min(id, end - 1));
        const uint image = id < end ? image_of(logit) : 0;
        if (image > 0 && image >= top_k.key) {
            const float weight = weight_of(logit, best);
            const uint key = floatBitsToUint(weight);
            at_top_k += uint(image == top_k.key);
            at_top_p += uint(image > top_k.key && key == top_p.key);
            const bool is_above = image > top_k.key && key > top_p.key && weight >= state.min_p;
            above += is_above ? weight : 0.0;
        }
    }
    const float total = scan(above).z;
    const uint all_at_top_p = sum_of_all(at_top_p);
    const uint all_at_top_k = sum_of_all(at_top_k);
    if (lane == 0) {
        selection.above[slice] = total;
        selection.at_top_p[slice] = all_at_top_p;
        selection.at_top_k[slice] = all_at_top_k;
    }
}
