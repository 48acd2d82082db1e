// sample_whole: samples a token from what the cuts left of the whole vocabulary, in the order of
// ids, and its log probabilities. One workgroup a row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"

layout(local_size_x = 256) in;
// Candidates for log probabilities, of a lane.
layout(constant_id = 0) const uint KEYS = 10;
// Logits of a lane, of one slice.
layout(constant_id = 1) const uint SLICE_KEYS = 8;
#include "include/sampling.glsl"
#include "include/sampling_whole.glsl"

#define STEP_BINDING 10
#include "include/sampled.glsl"

shared uint taken;
shared uvec2 found[MOST_LOGPROBS];
shared uint first_beyond;
shared uint last_possible;
// Sum and counts before the slice of the token.
shared float sum_before;
shared uint top_k_before;
shared uint top_p_before;

// The cuts of a row, and what a token at the key of each weighs.
struct Cuts {
    Cut top_k;
    Cut top_p;
    float weight_k;
    float weight_p;
};

Cuts cuts_of(float best) {
    Cut top_k = selection.cuts[TOP_K];
    Cut top_p = selection.cuts[TOP_P];
    const float weight_k = top_k.key > 0 ? weight_of(logit_of(top_k.key), best) : 0.0;
    const float weight_p = uintBitsToFloat(top_p.key);
    top_k.need = weight_k >= state.min_p ? top_k.need : 0;
    top_p.need = weight_p >= state.min_p ? top_p.need : 0;
    return Cuts(top_k, top_p, weight_k, weight_p);
}

// Of `count` tokens at a cut, after `before` others, how many are kept.
uint kept_of(uint count, uint before, uint need) {
    return min(count, need - min(need, before));
}

// The lane at which the running sum passes `target`, of those with a part of it.
uint lane_of(uint lane, float part, float until, float target) {
    if (lane == 0) {
        first_beyond = ~0u;
        last_possible = 0;
    }
    barrier();
    if (part > 0.0) {
        if (until > target) {
            atomicMin(first_beyond, lane);
        }
        atomicMax(last_possible, lane);
    }
    barrier();
    // Rounding may let the target reach the whole sum.
    return min(first_beyond, last_possible);
}

// The slice in which the running sum passes the uniform number, and the sum to pass.
float find_slice(uint lane, Cuts cuts, out uint slice) {
    const bool is_slice = lane < slices;
    const uint at_top_k = is_slice ? selection.at_top_k[lane] : 0;
    uint at_top_p = is_slice ? selection.at_top_p[lane] : 0;
    float mass = is_slice ? selection.above[lane] : 0.0;
    const uint before_k = count_before(at_top_k);
    const uint kept_k = kept_of(at_top_k, before_k, cuts.top_k.need);
    if (cuts.weight_k > cuts.weight_p) {
        mass += float(kept_k) * cuts.weight_k;
    } else if (cuts.weight_k == cuts.weight_p) {
        at_top_p += kept_k;
    }
    const uint before_p = count_before(at_top_p);
    mass += float(kept_of(at_top_p, before_p, cuts.top_p.need)) * cuts.weight_p;
    const vec3 sums = scan(mass);
    const float target = state.uniforms[outcome.played] * sums.z;
    slice = lane_of(lane, mass, sums.y, target);
    if (lane == slice) {
        sum_before = sums.x;
        top_k_before = before_k;
        top_p_before = before_p;
    }
    barrier();
    return target;
}

// The token of a slice at which the running sum passes `target`.
uint token_in(uint lane, uint slice, Cuts cuts, float best, float target) {
    const uint first = slice * LANES * SLICE_KEYS + lane * SLICE_KEYS;
    uint images[SLICE_KEYS];
    float weights[SLICE_KEYS];
    uint at_top_k = 0;
    [[unroll]] for (uint i = 0; i < SLICE_KEYS; i++) {
        const float logit = logit_at(min(first + i, vocabulary - 1));
        images[i] = first + i < vocabulary ? image_of(logit) : 0;
        weights[i] = images[i] > 0 ? weight_of(logit, best) : 0.0;
        at_top_k += uint(images[i] > 0 && images[i] == cuts.top_k.key);
    }
    // Whether those at the cut of top-k are kept, and which of them count at the cut of top-p.
    uint rank_k = top_k_before + count_before(at_top_k);
    uint at_top_p = 0;
    [[unroll]] for (uint i = 0; i < SLICE_KEYS; i++) {
        if (images[i] > 0 && images[i] == cuts.top_k.key) {
            images[i] = rank_k < cuts.top_k.need ? images[i] : 0;
            rank_k += 1;
        } else if (images[i] < cuts.top_k.key) {
            images[i] = 0;
        }
        at_top_p += uint(images[i] > 0 && floatBitsToUint(weights[i]) == cuts.top_p.key);
    }
    uint rank_p = top_p_before + count_before(at_top_p);
    float sum = 0.0;
    [[unroll]] for (uint i = 0; i < SLICE_KEYS; i++) {
        const uint key = floatBitsToUint(weights[i]);
        bool keep = images[i] > 0 && key > cuts.top_p.key && weights[i] >= state.min_p;
        if (images[i] > 0 && key == cuts.top_p.key) {
            keep = rank_p < cuts.top_p.need;
            rank_p += 1;
        }
        weights[i] = keep ? weights[i] : 0.0;
        sum += weights[i];
    }
    const vec3 sums = scan(sum);
    const uint found_lane = lane_of(lane, sum, sum_before + sums.y, target);
    if (lane == found_lane) {
        float until = sum_before + sums.x;
        bool passed = false;
        [[unroll]] for (uint i = 0; i < SLICE_KEYS; i++) {
            until += weights[i];
            if (weights[i] > 0.0 && !passed) {
                taken = first + i;
                passed = until > target;
            }
        }
    }
    barrier();
    return taken;
}

uint sample_one(uint lane) {
    const uvec2 image = best_of_row(lane);
    if (image.x == 0) {
        // Of a mask that allows nothing there is no token.
        if (state.masked != 0) {
            outcome.broken = 1;
        }
        return 0;
    }
    if (state.greedy != 0 || image.x == INFINITE_IMAGE) {
        return image.y;
    }
    const float best = logit_of(image.x);
    const Cuts cuts = cuts_of(best);
    uint slice;
    const float target = find_slice(lane, cuts, slice);
    return token_in(lane, slice, cuts, best, target);
}

// Leaves the best logits, the best first, and returns how many there are.
uint best_logits(uint lane, uint record, uint wanted) {
    const uint entries = slices * wanted;
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        const uvec2 candidate = candidates[first_candidate() + min(i * LANES + lane, entries - 1)];
        keys[i] = i * LANES + lane < entries ? candidate.x : 0;
        ids[i] = candidate.y;
    }
    if (lane == 0) {
        taken = 0;
    }
    const uvec2 end = end_of_largest(wanted, range_of_largest(), vocabulary - 1);
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        if (keys[i] != 0 && is_before(end, keys[i], ids[i])) {
            found[atomicAdd(taken, 1)] = uvec2(keys[i], ids[i]);
        }
    }
    barrier();
    const uint count = taken;
    if (lane < count) {
        const uvec2 mine = found[lane];
        uint rank = 0;
        for (uint i = 0; i < count; i++) {
            rank += uint(found[i].x > mine.x || (found[i].x == mine.x && found[i].y < mine.y));
        }
        raw_logits[record].top[rank] = TopLogit(mine.y, logit_of(mine.x));
    }
    return count;
}

void report(uint lane, uint token) {
    const uint record = gl_WorkGroupID.y * MOST_PLAYS + outcome.played;
    const vec2 raw = lane < slices ? selection.raw[lane] : vec2(uintBitsToFloat(0xff800000u), 0.0);
    const float best = logit_of(best_of_lanes(image_of(raw.x), 0).x);
    const float scale = raw.x == best ? 1.0 : exponential(raw.x - best);
    const float sum = scan(raw.y > 0.0 ? raw.y * scale : 0.0).z;
    uint count = 0;
    if (state.logprobs > 1) {
        count = best_logits(lane, record, state.logprobs - 1);
    }
    if (lane == 0) {
        raw_logits[record].sampled = logits[at(token)];
        raw_logits[record].best = best;
        raw_logits[record].sum = sum;
        raw_logits[record].count = count;
    }
}

void main() {
    if (idle() || state.wanted != 0) {
        return;
    }
    const uint lane = lane_index();
    const uint token = sample_one(lane);
    barrier();
    if (state.logprobs > 0) {
        report(lane, token);
    }
    if (lane == 0 && state.window > 0) {
        histories[gl_WorkGroupID.y * history_room + state.history_length] = token;
    }
    finish(lane, token);
}
