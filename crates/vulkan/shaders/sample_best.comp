// sample_best: samples a token from the best of all slices of a row, notes it, and makes the step's
// row that of the token after it. One workgroup a row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"

layout(local_size_x = 256) in;
// Candidates of a lane, of as many as ever come from all slices.
layout(constant_id = 0) const uint KEYS = 32;
#include "include/sampling.glsl"

#define STEP_BINDING 3
#include "include/sampled.glsl"

shared uint taken;
// Candidates as they came, then in the order of their ids.
shared uvec2 found[MOST_WANTED];
shared uint sorted_ids[MOST_WANTED];
shared float weights[MOST_WANTED];
// Weights from the heaviest on.
shared float ranked[MOST_WANTED];
shared uint first_beyond;
shared uint last_possible;

// Leaves the `count` candidates in the order of their ids, with weights relative to the best's 1.
void weigh(uint lane, uint count, float best) {
    if (lane < count) {
        uint place = 0;
        for (uint i = 0; i < count; i++) {
            place += uint(found[i].y < found[lane].y);
        }
        const float logit = logit_of(found[lane].x);
        sorted_ids[place] = found[lane].y;
        weights[place] = weight_of(logit, best);
    }
    barrier();
}

// Whether candidate `lane` is among the fewest heaviest that reach `top_p` of the sum.
bool is_in_mass(uint lane, uint count) {
    uint rank = 0;
    if (lane < count) {
        const float weight = weights[lane];
        for (uint i = 0; i < count; i++) {
            rank += uint(weights[i] > weight || (weights[i] == weight && i < lane));
        }
        ranked[rank] = weight;
    }
    barrier();
    float before = 0.0;
    float total = 0.0;
    for (uint i = 0; i < count; i++) {
        before += i < rank ? ranked[i] : 0.0;
        total += ranked[i];
    }
    return rank == 0 || before < state.top_p * total;
}

// The place of the candidate at which the running sum passes the uniform number.
uint place_of_uniform(uint lane, uint count) {
    if (lane == 0) {
        first_beyond = ~0u;
        last_possible = 0;
    }
    barrier();
    float total = 0.0;
    float until = 0.0;
    for (uint i = 0; i < count; i++) {
        total += weights[i];
        until = i <= lane ? total : until;
    }
    if (lane < count && weights[lane] > 0.0) {
        if (until > state.uniforms[outcome.played] * total) {
            atomicMin(first_beyond, lane);
        }
        atomicMax(last_possible, lane);
    }
    barrier();
    // Rounding may let the product reach the whole sum.
    return min(first_beyond, last_possible);
}

uint sample_one(uint lane) {
    const uint wanted = state.wanted;
    const uint entries = slices * wanted;
    // Without a condition, so that all reads are under way at once.
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        const uvec2 candidate = candidates[first_candidate() + min(i * LANES + lane, entries - 1)];
        keys[i] = candidate.x;
        ids[i] = candidate.y;
    }
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        keys[i] = i * LANES + lane < entries ? keys[i] : 0;
    }
    if (wanted == 1) {
        const uvec2 best = best_of_all();
        return best.x == 0 ? 0 : best.y;
    }
    if (lane == 0) {
        taken = 0;
    }
    const uvec2 range = range_of_largest();
    if (range.x == 0) {
        return 0;
    }
    if (range.x == INFINITE_IMAGE) {
        return best_of_all().y;
    }
    const uvec2 end = end_of_largest(wanted, range, vocabulary - 1);
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        if (is_before(end, keys[i], ids[i])) {
            found[atomicAdd(taken, 1)] = uvec2(keys[i], ids[i]);
        }
    }
    barrier();
    const uint count = taken;
    weigh(lane, count, logit_of(range.x));
    bool keep = true;
    if (state.top_p < 1.0) {
        keep = is_in_mass(lane, count);
    }
    if (lane < count && !(keep && weights[lane] >= state.min_p)) {
        weights[lane] = 0.0;
    }
    return sorted_ids[place_of_uniform(lane, count)];
}

void main() {
    if (idle() || state.wanted == 0) {
        return;
    }
    const uint lane = gl_LocalInvocationIndex;
    const uint token = sample_one(lane);
    if (lane == 0) {
        state.history[state.history_length % HISTORY] = token;
    }
    finish(lane, token);
}
