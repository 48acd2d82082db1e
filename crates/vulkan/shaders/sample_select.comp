// sample_select: a level of a cut, top-k's or top-p's: adds up the tokens of each bin. One workgroup
// a slice of a row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"

layout(local_size_x = 256) in;
// Logits of a lane.
layout(constant_id = 0) const uint KEYS = 8;
// TOP_K or TOP_P.
layout(constant_id = 1) const uint KIND = 0;
layout(constant_id = 2) const uint LEVEL = 0;
#include "include/sampling.glsl"
#include "include/sampling_whole.glsl"

// Sums of a bin: its tokens, and of weights what their bits say beyond the bin's.
const uint SUMS = KIND == TOP_K ? 1 : 3;
shared uint local_bins[SUMS * BINS];

// Adds `count` tokens with the same key.
void add(uint key, uint prefix, uint count) {
    const uint shift = shift_of(LEVEL);
    // The level before took the bits above; of the first there are none.
    if (LEVEL > 0 && key >> shift_of(LEVEL - 1) != prefix >> shift_of(LEVEL - 1)) {
        return;
    }
    const uint bin = key >> shift & (BINS - 1) & (LEVEL == 2 ? 1023 : BINS - 1);
    atomicAdd(local_bins[bin], count);
    if (KIND == TOP_P && LEVEL < 2) {
        const uint rest = key & ((1 << shift) - 1);
        if (LEVEL == 0) {
            atomicAdd(local_bins[BINS + bin], count * (rest >> 11));
        }
        atomicAdd(local_bins[2 * BINS + bin], count * (rest & 0x7ff));
    }
}

// The cut of top-k, which tokens must pass before top-p looks at them.
Cut first_cut(uint lane) {
    if (KIND == TOP_K) {
        return Cut(0, 0);
    }
    if (LEVEL == 0 && state.top_k > 0) {
        return last_cut(lane, TOP_K);
    }
    return selection.cuts[TOP_K];
}

void main() {
    const bool cuts = KIND == TOP_K ? state.top_k > 0 : state.top_p < 1.0;
    if (idle() || state.wanted != 0 || state.greedy != 0 || !cuts) {
        return;
    }
    const uint lane = lane_index();
    const uint slice = gl_WorkGroupID.x;
    for (uint i = lane; i < SUMS * BINS; i += LANES) {
        local_bins[i] = 0;
    }
    const uint image = best_of_row(lane).x;
    if (image == 0 || image == INFINITE_IMAGE) {
        return;
    }
    const float best = logit_of(image);
    const Cut top_k = first_cut(lane);
    const Level known = before_level(lane, KIND, LEVEL);
    barrier();
    const uint start = slice * LANES * KEYS;
    const uint end = min(start + LANES * KEYS, vocabulary);
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        const uint id = start + i * LANES + lane;
        const float logit = logit_at(min(id, end - 1));
        const uint image = image_of(logit);
        if (id < end && image > top_k.key) {
            const uint key = KIND == TOP_K ? image : floatBitsToUint(weight_of(logit, best));
            if (key > 0) {
                add(key, known.prefix, 1);
            }
        }
    }
    // Those at the cut of top-k have one weight, whichever they are.
    if (slice == 0 && lane == 0 && top_k.need > 0) {
        const uint key = floatBitsToUint(weight_of(logit_of(top_k.key), best));
        if (key > 0) {
            add(key, known.prefix, top_k.need);
        }
    }
    barrier();
    for (uint i = lane; i < SUMS * BINS; i += LANES) {
        if (local_bins[i] > 0) {
            atomicAdd(selection.bins[LEVEL][i], local_bins[i]);
        }
    }
    for (uint i = slice * LANES + lane; i < 3 * BINS; i += slices * LANES) {
        selection.bins[(LEVEL + 1) % 3][i] = 0;
    }
}
