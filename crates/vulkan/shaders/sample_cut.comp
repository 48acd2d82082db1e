// sample_cut: applies bias and penalties to rows of logits, and takes the best of each slice of
// the vocabulary. One workgroup a slice of a row.
//
// The tokens that a bias or a penalty changes are few; the workgroup whose slice they lie in
// changes them before it reads the slice, which saves a launch.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"

layout(local_size_x = 256) in;
// Logits of a lane.
layout(constant_id = 0) const uint KEYS = 8;
#include "include/sampling.glsl"

// Coherent: lanes read what other lanes of the workgroup changed.
layout(set = 1, binding = 3, std430) coherent buffer Logits { float logits[]; };

// Where the logit of a token is.
uint at(uint token) {
    return gl_WorkGroupID.y * vocabulary + token;
}

// Tokens to change.
shared uint named[HISTORY];
shared uint taken;

// Whether this lane changes its token: it is in the slice, and no lane before has the same.
bool is_mine(uint lane, uint count, uint start, uint end) {
    if (lane >= count || named[lane] < start || named[lane] >= end) {
        return false;
    }
    bool first = true;
    for (uint i = 0; i < lane; i++) {
        first = first && named[i] != named[lane];
    }
    return first;
}

// Amounts for one token add up in the order of the list.
void apply_biases(uint lane, uint start, uint end) {
    if (lane < state.biases) {
        named[lane] = state.bias[lane].token;
    }
    barrier();
    if (is_mine(lane, state.biases, start, end)) {
        const uint token = named[lane];
        precise float logit = logits[at(token)];
        for (uint i = lane; i < state.biases; i++) {
            if (named[i] == token) {
                logit += state.bias[i].amount;
            }
        }
        logits[at(token)] = logit;
    }
    memoryBarrierBuffer();
    barrier();
}

void apply_penalties(uint lane, uint start, uint end) {
    const uint count = min(state.history_length, state.window);
    if (lane < count) {
        named[lane] = state.history[(state.history_length - count + lane) % HISTORY];
    }
    barrier();
    if (is_mine(lane, count, start, end)) {
        const uint token = named[lane];
        uint seen = 0;
        for (uint i = lane; i < count; i++) {
            seen += uint(named[i] == token);
        }
        precise float logit = logits[at(token)];
        // Dividing alone would make an unlikely (negative) token more likely.
        if (logit > 0.0) {
            logit /= state.repetition_penalty;
        } else {
            logit *= state.repetition_penalty;
        }
        precise const float penalty = state.presence_penalty + state.frequency_penalty * float(seen);
        logit -= penalty;
        logits[at(token)] = logit;
    }
    memoryBarrierBuffer();
    barrier();
}

void main() {
    if (idle() || state.wanted == 0) {
        return;
    }
    const uint lane = gl_LocalInvocationIndex;
    const uint slice = gl_WorkGroupID.x;
    const uint start = slice * LANES * KEYS;
    const uint end = min(start + LANES * KEYS, vocabulary);
    if (state.biases > 0) {
        apply_biases(lane, start, end);
    }
    if (state.window > 0) {
        apply_penalties(lane, start, end);
    }
    // Without a condition, so that all reads are under way at once.
    float values[KEYS];
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        ids[i] = start + i * LANES + lane;
        values[i] = logits[at(min(ids[i], end - 1))];
    }
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        keys[i] = ids[i] < end ? image_of(values[i]) : 0;
        if ((floatBitsToUint(values[i]) & 0x7fffffffu) > 0x7f800000u) {
            outcome.broken = 1;
        }
    }

    const uint wanted = state.wanted;
    const uint first = first_candidate() + slice * wanted;
    if (wanted == 1) {
        const uvec2 best = best_of_all();
        if (lane == 0) {
            candidates[first] = best;
        }
        return;
    }
    if (lane == 0) {
        taken = 0;
    }
    // The barriers of the search come before `taken` is counted up.
    const uvec2 last = end_of_largest(wanted, range_of_largest(), vocabulary - 1);
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        if (is_before(last, keys[i], ids[i])) {
            candidates[first + atomicAdd(taken, 1)] = uvec2(keys[i], ids[i]);
        }
    }
    barrier();
    for (uint i = taken + lane; i < wanted; i += LANES) {
        candidates[first + i] = uvec2(0);
    }
}
