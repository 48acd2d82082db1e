// sample_shape: begins the sampling of rows that look at the whole vocabulary: sums up the logits
// where log probabilities are wanted, applies bias, penalties and mask, and finds the best of each
// slice. One workgroup a slice of a row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"

layout(local_size_x = 256) in;
// Logits of a lane.
layout(constant_id = 0) const uint KEYS = 8;
#include "include/sampling.glsl"
#include "include/sampling_whole.glsl"

float values[KEYS];

shared uint taken;
// Of each token of the slice: its logit while biases are added, then how often it was seen.
shared uint held[LANES * KEYS];

// Leaves the sum of exponentials and the best few, for log probabilities. `keys` are images.
void sum_up(uint lane) {
    const uint slice = gl_WorkGroupID.x;
    if (lane == 0) {
        taken = 0;
    }
    const uvec2 range = range_of_largest();
    const float best = logit_of(range.x);
    float sum = 0.0;
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        // Several at +inf share all probability.
        const float weight = keys[i] == range.x ? 1.0 : exponential(logit_of(keys[i]) - best);
        sum += keys[i] == 0 ? 0.0 : weight;
    }
    const float total = scan(sum).z;
    if (lane == 0) {
        selection.raw[slice] = vec2(range.x == 0 ? uintBitsToFloat(0xff800000u) : best, total);
    }
    const uint wanted = state.logprobs - 1;
    if (wanted == 0) {
        return;
    }
    const uint first = first_candidate() + slice * wanted;
    const uvec2 last = end_of_largest(wanted, range, vocabulary - 1);
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        if (keys[i] != 0 && is_before(last, keys[i], ids[i])) {
            candidates[first + atomicAdd(taken, 1)] = uvec2(keys[i], ids[i]);
        }
    }
    barrier();
    for (uint i = taken + lane; i < wanted; i += LANES) {
        candidates[first + i] = uvec2(0);
    }
}

// Amounts for one token add up in the order of the list.
void apply_biases(uint lane, uint start, uint end) {
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        held[i * LANES + lane] = floatBitsToUint(values[i]);
    }
    barrier();
    const uint list = gl_WorkGroupID.y * MOST_WHOLE_BIASES;
    for (uint entry = lane; entry < state.biases; entry += LANES) {
        const uint token = biases[list + entry].token;
        if (token < start || token >= end) {
            continue;
        }
        bool first = true;
        for (uint i = 0; i < entry && first; i++) {
            first = biases[list + i].token != token;
        }
        if (!first) {
            continue;
        }
        precise float logit = uintBitsToFloat(held[token - start]);
        for (uint i = entry; i < state.biases; i++) {
            if (biases[list + i].token == token) {
                logit += biases[list + i].amount;
            }
        }
        held[token - start] = floatBitsToUint(logit);
    }
    barrier();
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        values[i] = uintBitsToFloat(held[i * LANES + lane]);
    }
    barrier();
}

void apply_penalties(uint lane, uint start) {
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        held[i * LANES + lane] = 0;
    }
    barrier();
    const uint list = gl_WorkGroupID.y * history_room;
    const uint length = state.history_length;
    for (uint i = length - min(length, state.window) + lane; i < length; i += LANES) {
        // A token before the slice is a large number here.
        const uint place = histories[list + i] - start;
        if (place < LANES * KEYS) {
            atomicAdd(held[place], 1);
        }
    }
    barrier();
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        const uint seen = held[i * LANES + lane];
        if (seen > 0) {
            precise float logit = values[i];
            // Dividing alone would make an unlikely (negative) token more likely.
            if (logit > 0.0) {
                logit /= state.repetition_penalty;
            } else {
                logit *= state.repetition_penalty;
            }
            precise const float penalty =
                state.presence_penalty + state.frequency_penalty * float(seen);
            logit -= penalty;
            values[i] = logit;
        }
    }
}

void shape(uint lane, uint start, uint end) {
    if (state.biases > 0) {
        apply_biases(lane, start, end);
    }
    if (state.window > 0) {
        apply_penalties(lane, start);
    }
    const uint mask = gl_WorkGroupID.y * ((vocabulary + 31) / 32);
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        const uint id = min(ids[i], end - 1);
        if (state.masked != 0 && (masks[mask + id / 32] >> (id % 32) & 1) == 0) {
            values[i] = uintBitsToFloat(0xff800000u);
        }
        if (ids[i] < end) {
            shaped[at(id)] = values[i];
        }
    }
}

void image_all(uint end) {
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        keys[i] = ids[i] < end ? image_of(values[i]) : 0;
    }
}

void main() {
    if (idle() || state.wanted != 0) {
        return;
    }
    const uint lane = lane_index();
    const uint slice = gl_WorkGroupID.x;
    const uint start = slice * LANES * KEYS;
    const uint end = min(start + LANES * KEYS, vocabulary);
    // Without a condition, so that all reads are under way at once.
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        ids[i] = start + i * LANES + lane;
        values[i] = logits[at(min(ids[i], end - 1))];
    }
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        if ((floatBitsToUint(values[i]) & 0x7fffffffu) > 0x7f800000u) {
            outcome.broken = 1;
        }
    }
    image_all(end);
    if (state.logprobs > 0) {
        sum_up(lane);
    }
    if (is_shaped()) {
        shape(lane, start, end);
        image_all(end);
    }
    const uvec2 best = best_of_all();
    if (lane == 0) {
        selection.best[slice] = best;
    }
    // Without cuts all tokens of any weight are kept.
    if (slice == 0 && lane < 2) {
        selection.cuts[lane] = Cut(0, 0);
    }
    for (uint i = slice * LANES + lane; i < 3 * BINS; i += slices * LANES) {
        selection.bins[0][i] = 0;
    }
}
