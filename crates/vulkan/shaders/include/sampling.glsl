// What the kernels of sampling share: their states, the order of logits, weights, and the selection
// of the largest. Needs common.glsl and, for `KEYS` keys a lane, the kernel's constant. Workgroups
// of one y sample the token of one row with logits.

// Mirror the constants in src/sample.rs.
const uint LANES = 256;
const uint MOST_PLAYS = 64;
const uint MOST_WANTED = 64;
const uint MOST_BIASES = 64;
const uint MOST_STOPS = 64;
const uint HISTORY = 256;
const uint MOST_SLICES = 128;

struct Bias {
    uint token;
    float amount;
};

// Mirrors `SamplingState` in src/sample.rs.
struct State {
    float temperature;
    float top_p;
    float min_p;
    float repetition_penalty;
    float presence_penalty;
    float frequency_penalty;
    // Candidates to sample from; 1 is greedy. 0 where the whole vocabulary is looked at, which is
    // what the kernels that include sampling_whole.glsl do.
    uint wanted;
    // Last tokens that the penalties look at; 0 where they are off.
    uint window;
    uint biases;
    uint stops;
    // Plays that there are uniform numbers for.
    uint plays;
    // Tokens that were ever appended to the history; the last is at `(history_length - 1) % HISTORY`.
    uint history_length;
    // Of rows that look at the whole vocabulary: the best tokens to keep (0: all), whether to take
    // the best token, whether there is a mask, and 1 + the number of log probabilities (0: none).
    uint top_k;
    uint greedy;
    uint masked;
    uint logprobs;
    Bias bias[MOST_BIASES];
    uint stop[MOST_STOPS];
    uint history[HISTORY];
    float uniforms[MOST_PLAYS];
};

// Mirrors `Outcome` in src/sample.rs.
struct Outcome {
    uint played;
    uint halted;
    // Set where a logit was not a number: weights or kernels are broken.
    uint broken;
    uint reserved;
    uint tokens[MOST_PLAYS];
};

layout(set = 1, binding = 0, std430) buffer States { State states[]; };
layout(set = 1, binding = 1, std430) buffer Outcomes { Outcome outcomes[]; };
// Best of each slice of the vocabulary: (image, id), in no order; image 0: none. Rows are
// [slices * MOST_WANTED], of which [slice][wanted] are used.
layout(set = 1, binding = 2, std430) buffer Candidates { uvec2 candidates[]; };

layout(push_constant) uniform Constants {
    uint vocabulary;
    uint slices;
    // Tokens of a row of `Histories` in sampling_whole.glsl.
    uint history_room;
};

// Those of the row.
#define state states[gl_WorkGroupID.y]
#define outcome outcomes[gl_WorkGroupID.y]

uint first_candidate() {
    return gl_WorkGroupID.y * slices * MOST_WANTED;
}

// Whether there is nothing to do: no such row wants logits, or it has all its tokens, or it sampled
// a stop token.
bool idle() {
    return gl_WorkGroupID.y >= play.logit_count || outcome.halted != 0
        || outcome.played >= state.plays;
}

// A number that compares as the logit does, both zeros being equal; 0 for what is never sampled,
// which is -inf and NaN. By its bits: a compiler may take it that there is no NaN.
uint image_of(float logit) {
    const uint bits = floatBitsToUint(logit);
    const uint magnitude = bits & 0x7fffffffu;
    const bool negative = (bits & 0x80000000u) != 0 && magnitude != 0;
    const uint image = negative ? ~bits : bits | 0x80000000u;
    return magnitude > 0x7f800000u || bits == 0xff800000u ? 0 : image;
}

// The logit again.
float logit_of(uint image) {
    return uintBitsToFloat((image & 0x80000000u) != 0 ? image & 0x7fffffffu : ~image);
}

const uint INFINITE_IMAGE = 0xff800000u;

// exp(x) for x <= 0: the host's, operation for operation, so that both sample from the same weights.
float exponential(float x) {
    const float ROUND = 12582912.0;
    precise const float shifted = x * 1.44269504088896 + ROUND;
    precise const float n = shifted - ROUND;
    precise const float high = n * 0.693359375;
    precise const float low = n * -2.1219444e-4;
    precise const float r = (x - high) - low;
    const float coefficients[7] =
        float[7](1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0);
    precise float series = 1.0 / 5040.0;
    [[unroll]] for (uint i = 0; i < 7; i++) {
        series = series * r + coefficients[i];
    }
    const float power = uintBitsToFloat((floatBitsToUint(shifted) + 127u) << 23);
    return x >= -87.0 ? series * power : 0.0;
}

// The weight of a logit relative to the best's 1.
float weight_of(float logit, float best) {
    // Not by the quotient for the best itself: a tiny temperature may count as zero here.
    return logit == best ? 1.0 : exponential((logit - best) / state.temperature);
}

// What each lane selects from: images and ids.
uint keys[KEYS];
uint ids[KEYS];

// Two turns, so that one barrier is enough: what is read after it is not written in the next turn,
// and the turn after that is behind a barrier that readers have reached.
shared uvec2 partials[2][LANES / 4];
uint turn = 0;

// Puts a subgroup's part where the others see it, and says in which turn.
uint share(uvec2 part) {
    turn ^= 1;
    if (subgroupElect()) {
        partials[turn][gl_SubgroupID] = part;
    }
    barrier();
    return turn;
}

// The largest of the lanes' keys, and the lowest id that has it.
uvec2 best_of_lanes(uint key, uint id) {
    const uint largest = subgroupMax(key);
    const uint at = share(uvec2(largest, subgroupMin(key == largest ? id : ~0u)));
    uvec2 best = partials[at][0];
    for (uint i = 1; i < gl_NumSubgroups; i++) {
        const uvec2 other = partials[at][i];
        if (other.x > best.x || (other.x == best.x && other.y < best.y)) {
            best = other;
        }
    }
    return best;
}

// The largest key, and the lowest id that has it.
uvec2 best_of_all() {
    uint key = 0;
    uint id = ~0u;
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        if (keys[i] > key || (keys[i] == key && ids[i] < id)) {
            key = keys[i];
            id = ids[i];
        }
    }
    return best_of_lanes(key, id);
}

// The largest key, and the least of the lanes' largest keys.
uvec2 range_of_largest() {
    uint key = 0;
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        key = max(key, keys[i]);
    }
    const uint at = share(uvec2(subgroupMax(key), subgroupMin(key)));
    uvec2 range = uvec2(0, ~0u);
    for (uint i = gl_SubgroupInvocationID; i < gl_NumSubgroups; i += gl_SubgroupSize) {
        range = uvec2(max(range.x, partials[at][i].x), min(range.y, partials[at][i].y));
    }
    return uvec2(subgroupMax(range.x), subgroupMin(range.y));
}

uint sum_of_all(uint count) {
    const uint at = share(uvec2(subgroupAdd(count), 0));
    uint sum = 0;
    for (uint i = gl_SubgroupInvocationID; i < gl_NumSubgroups; i += gl_SubgroupSize) {
        sum += partials[at][i].x;
    }
    return subgroupAdd(sum);
}

// Keys of at least `least`.
uint count_from(uint least) {
    uint count = 0;
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        count += uint(keys[i] >= least);
    }
    return sum_of_all(count);
}

// Keys equal to `key` with ids up to `last`.
uint count_ties(uint key, uint last) {
    uint count = 0;
    [[unroll]] for (uint i = 0; i < KEYS; i++) {
        count += uint(keys[i] == key && ids[i] <= last);
    }
    return sum_of_all(count);
}

// Where the `count` largest keys end (ties: lowest ids): they are the keys above x, and those equal
// to x whose ids are at most y. Of fewer keys than that, all but zeros. `range` is that of
// `range_of_largest`, `most` the largest id.
//
// Halves the range of keys and counts: at most 32 rounds of one barrier, and no round that many
// lanes contend for, as they would for the bins of a histogram where most logits are close.
uvec2 end_of_largest(uint count, uvec2 range, uint most) {
    // Each lane has a key of at least range.y, and there are more lanes than are ever wanted.
    uint low = range.y;
    if (low == 0) {
        low = 1;
        if (count_from(low) <= count) {
            return uvec2(low, ~0u);
        }
    }
    // More than `count` keys reach `low`; `above`, fewer than `count`, reach `high`.
    uint high = range.x + 1;
    uint above = 0;
    while (high - low > 1) {
        const uint middle = low + (high - low) / 2;
        const uint found = count_from(middle);
        if (found == count) {
            return uvec2(middle, ~0u);
        }
        if (found > count) {
            low = middle;
        } else {
            high = middle;
            above = found;
        }
    }
    // Too many are equal to `low`.
    uint first = 0;
    uint last = most;
    while (first < last) {
        const uint middle = first + (last - first) / 2;
        if (count_ties(low, middle) >= count - above) {
            last = middle;
        } else {
            first = middle + 1;
        }
    }
    return uvec2(low, last);
}

bool is_before(uvec2 end, uint key, uint id) {
    return key > end.x || (key == end.x && id <= end.y);
}
