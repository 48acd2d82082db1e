// What the kernels share that sample from the whole vocabulary, for the rows whose options the best
// few of each slice do not settle. Needs sampling.glsl.
//
//   sample_shape ─► sample_select, 3 levels of top-k ─► 3 levels of top-p ─► sample_weigh ─► sample_whole
//
// Nothing is sorted. A cut is a key and a number: all tokens above the key are kept, and so many of
// those equal to it, the lowest ids first. A key is found by its bits, 11, 11 and 10 at a time: a
// level counts the tokens of each value of its bits (a bin), among those that agree in the bits
// before. Top-k counts tokens by the images of their logits. Top-p adds up their weights, as
// integers: what a weight's bits say beyond its bin's is added apart, so that sums are exact and do
// not depend on the order of additions.
//
// Each workgroup of a level reads the bins of the level before by itself, which saves a launch.

// Mirror the constants in src/sample/whole.rs.
const uint MOST_WHOLE_BIASES = 1024;
const uint MOST_LOGPROBS = 20;
const uint BINS = 2048;

// What is selected by: the image of a logit, or its weight.
const uint TOP_K = 0;
const uint TOP_P = 1;

// The selection before a level's bins are known: bits of the key, the mass above them, and the
// mass to reach.
struct Level {
    uint prefix;
    float above;
    float target;
    // Of the last bin that was selected.
    uint count;
};

struct Cut {
    uint key;
    uint need;
};

// What passes from kernel to kernel of a row; mirrors `Selection` in src/sample/whole.rs.
struct Selection {
    // Best of each slice after bias, penalties and mask: (image, lowest id).
    uvec2 best[MOST_SLICES];
    // Before them, where log probabilities are wanted: the largest logit, and the sum of
    // exponentials relative to it.
    vec2 raw[MOST_SLICES];
    // Mass of the tokens above both cuts.
    float above[MOST_SLICES];
    // Tokens above the cut of top-k whose weight is the key of the cut of top-p; and tokens at the
    // key of the cut of top-k.
    uint at_top_p[MOST_SLICES];
    uint at_top_k[MOST_SLICES];
    // By kind and level.
    Level levels[6];
    // By kind.
    Cut cuts[2];
    // Of three levels: a level adds to its own, reads those before and clears those after.
    // Each is [count, upper rest, lower rest][BINS].
    uint bins[3][3 * BINS];
};

struct TopLogit {
    uint token;
    float logit;
};

// Mirrors `RawLogits` in src/sample/whole.rs.
struct RawLogits {
    float sampled;
    float best;
    // Sum of exponentials relative to the best.
    float sum;
    uint count;
    TopLogit top[MOST_LOGPROBS];
};

layout(set = 1, binding = 3, std430) readonly buffer Logits { float logits[]; };
// Logits with bias, penalties and mask, of rows that have any.
layout(set = 1, binding = 4, std430) buffer Shaped { float shaped[]; };
// Rows of `history_room` tokens.
layout(set = 1, binding = 5, std430) buffer Histories { uint histories[]; };
layout(set = 1, binding = 6, std430) readonly buffer Biases { Bias biases[]; };
// A bit for each token.
layout(set = 1, binding = 7, std430) readonly buffer Masks { uint masks[]; };
layout(set = 1, binding = 8, std430) buffer Selections { Selection selections[]; };
layout(set = 1, binding = 9, std430) buffer LogProbs { RawLogits raw_logits[]; };

#define selection selections[gl_WorkGroupID.y]

// Of this lane, in the order of subgroups.
uint lane_index() {
    return gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
}

// Where the logit of a token is.
uint at(uint token) {
    return gl_WorkGroupID.y * vocabulary + token;
}

// Whether logits are changed before they are sampled from.
bool is_shaped() {
    return state.biases > 0 || state.window > 0 || state.masked != 0;
}

// The logit to sample from.
float logit_at(uint token) {
    return is_shaped() ? shaped[at(token)] : logits[at(token)];
}

// The best of all slices: (image, lowest id).
uvec2 best_of_row(uint lane) {
    const uvec2 best = lane < slices ? selection.best[lane] : uvec2(0, ~0u);
    return best_of_lanes(best.x, best.y);
}

// Sums of the lanes' parts: over the lanes before this one, with it, and over all.
vec3 scan(float part) {
    const uint place = share(uvec2(floatBitsToUint(subgroupAdd(part)), 0));
    float before = 0.0;
    float total = 0.0;
    for (uint i = 0; i < gl_NumSubgroups; i++) {
        const float sum = uintBitsToFloat(partials[place][i].x);
        before += i < gl_SubgroupID ? sum : 0.0;
        total += sum;
    }
    return vec3(before + subgroupExclusiveAdd(part), before + subgroupInclusiveAdd(part), total);
}

// The sum over the lanes before this one: counts of tokens, which floats hold exactly. (With a loop of
// its own, up to gl_SubgroupID over `partials`, tokens at a cut were lost on NVIDIA's driver 580, beyond
// the first subgroup; why was not found. The tests on such a card cover it.)
uint count_before(uint part) {
    return uint(scan(float(part)).x);
}

// Bits below those of a level.
uint shift_of(uint level) {
    return level == 0 ? 21 : level == 1 ? 10 : 0;
}

// Values that a level's bits can have. Weights are at most 1, whose upper bits are 508.
uint bins_of(uint kind, uint level) {
    return level == 2 ? 1024 : kind == TOP_P && level == 0 ? 512 : BINS;
}

// What the tokens of a bin count for.
float mass_of(uint kind, uint level, uint prefix, uint bin) {
    const uint count = selection.bins[level][bin];
    if (kind == TOP_K || count == 0) {
        return float(count);
    }
    const uint bits = prefix | bin << shift_of(level);
    float rest = 0.0;
    if (level < 2) {
        rest = float(selection.bins[level][2 * BINS + bin]);
    }
    if (level == 0) {
        rest += 2048.0 * float(selection.bins[level][BINS + bin]);
    }
    // A unit in the last place of the bin's weights.
    const float unit = uintBitsToFloat(bits & 0x7f800000u) * (1.0 / 8388608.0);
    return float(count) * uintBitsToFloat(bits) + rest * unit;
}

shared uint first_lane;
shared uint last_lane;
shared Level refined;

// Selects the bin of a level, from the highest on, with which the sum of masses reaches the target;
// where rounding keeps it below, the last that is not empty.
Level refine(uint lane, uint kind, uint level, Level known) {
    const uint each = bins_of(kind, level) / LANES;
    const uint first = each * (LANES - 1 - lane);
    float sum = 0.0;
    bool any = false;
    for (uint i = each; i > 0; i--) {
        sum += mass_of(kind, level, known.prefix, first + i - 1);
        any = any || selection.bins[level][first + i - 1] > 0;
    }
    const vec3 sums = scan(sum);
    if (lane == 0) {
        first_lane = ~0u;
        last_lane = 0;
    }
    barrier();
    float target = known.target;
    if (level == 0) {
        target = kind == TOP_K ? float(state.top_k) : state.top_p * sums.z;
    }
    if (any) {
        if (known.above + sums.y >= target) {
            atomicMin(first_lane, lane);
        }
        atomicMax(last_lane, lane);
    }
    barrier();
    if (lane == min(first_lane, last_lane)) {
        float above = known.above + sums.x;
        bool reached = false;
        for (uint i = each; i > 0 && !reached; i--) {
            const uint bin = first + i - 1;
            const uint count = selection.bins[level][bin];
            if (count > 0) {
                const float mass = mass_of(kind, level, known.prefix, bin);
                refined = Level(known.prefix | bin << shift_of(level), above, target, count);
                reached = above + mass >= target;
                above += mass;
            }
        }
    }
    barrier();
    return refined;
}

// What is known before the bins of a level of this kind are filled.
Level before_level(uint lane, uint kind, uint level) {
    if (level == 0) {
        return Level(0, 0.0, 0.0, 0);
    }
    Level known = Level(0, 0.0, 0.0, 0);
    if (level == 2) {
        known = selection.levels[3 * kind + 1];
    }
    const Level found = refine(lane, kind, level - 1, known);
    if (gl_WorkGroupID.x == 0 && lane == 0) {
        selection.levels[3 * kind + level] = found;
    }
    return found;
}

// The cut that the bins of the last level give, noted for the kernels after this one.
Cut last_cut(uint lane, uint kind) {
    const Level found = refine(lane, kind, 2, selection.levels[3 * kind + 2]);
    float need = found.target - found.above;
    if (kind == TOP_P) {
        need = ceil(need / uintBitsToFloat(found.prefix));
    }
    const Cut cut = Cut(found.prefix, uint(clamp(need, 1.0, float(found.count))));
    if (gl_WorkGroupID.x == 0 && lane == 0) {
        selection.cuts[kind] = cut;
    }
    return cut;
}
