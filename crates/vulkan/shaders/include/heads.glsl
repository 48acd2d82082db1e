// Heads of queries and keys: norm and rotation; where keys and values lie in their pages.
//
// A layer's pages are `[page][kv_head]`: keys `[vector][token]`, then values `[token][vector]`,
// in vectors of 16 bytes. So an invocation that scores a token and one that sums a vector of values
// both have neighbours that read the next 16 bytes. Bytes have a scale for each token, behind
// the values: `[token]` of keys, then of values. It is applied to a token's score and weight, so
// that what is unpacked stays in units of its scale. Keys in bytes are rotated, and queries that meet
// them (`KvGroup::key_rotation` in plan/kv.rs).
//
// The file that includes this declares `const uint WORKGROUP`. One that attends for several layers defines
// HEADS_BY_ADDRESS, and `queries`, `keys`, `values`, `angles`, `vectors` and `pages` itself, and SUBGROUP.

// Added to the numbers of constants, where others have them already.
#ifndef HEADS_IDS
#define HEADS_IDS 0
#endif

layout(constant_id = HEADS_IDS + 1) const uint HEAD_DIM = 64;
// Mirrors `kv_code` in src/program/attend.rs.
layout(constant_id = HEADS_IDS + 2) const uint KV_TYPE = 1;
const bool KV_HALF = KV_TYPE == 1;
const bool KV_BYTES = KV_TYPE == 2;
layout(constant_id = HEADS_IDS + 3) const bool QUERY_NORM = false;
layout(constant_id = HEADS_IDS + 4) const bool KEY_NORM = false;
// 0: none; 1: i with i + HEAD_DIM / 2; 2: 2 i with 2 i + 1.
layout(constant_id = HEADS_IDS + 5) const uint ROPE = 1;
#ifndef HEADS_BY_ADDRESS
// Invocations of a subgroup: a constant, so that loops over a head unroll and their loads overlap.
layout(constant_id = 11) const uint SUBGROUP = 8;
#endif
const uint SUBGROUPS = WORKGROUP / SUBGROUP;
// Values of a head that an invocation of a subgroup holds.
const uint COLUMNS = (HEAD_DIM + SUBGROUP - 1) / SUBGROUP;
// Values that are rotated together: the largest power of two that divides a head.
const uint KEY_ROTATION = KV_BYTES ? HEAD_DIM & (~HEAD_DIM + 1) : 1;

struct Heads {
    uint query_stride;
    uint query_column;
    uint key_stride;
    uint key_column;
    uint value_stride;
    uint value_column;
    uint kv_heads;
    // Norm weights in `vectors`.
    uint query_norm;
    uint key_norm;
    float query_epsilon;
    float key_epsilon;
    // Page table of the group, and its entries a sequence.
    uint table;
    uint entries;
};

#ifndef HEADS_BY_ADDRESS
layout(set = 1, binding = 0, std430) HANDED_ON readonly buffer Queries { float queries[]; };
layout(set = 1, binding = 1, std430) HANDED_ON readonly buffer Keys { float keys[]; };
layout(set = 1, binding = 2, std430) HANDED_ON readonly buffer Values { float values[]; };
layout(set = 1, binding = 3, std430) readonly buffer Angles { float angles[]; };
layout(set = 1, binding = 4, std430) readonly buffer Vectors { float vectors[]; };
layout(set = 1, binding = 5, std430) KV_ACCESS buffer Pages { uvec4 pages[]; };
#endif

// Values in a vector of 16 bytes, and vectors in a head.
const uint LENGTH = KV_BYTES ? 16 : KV_HALF ? 8 : 4;
const uint VECTORS = HEAD_DIM / LENGTH;
// Where the values and the scales of a head begin, and its end.
const uint VALUES_AT = PAGE_TOKENS * VECTORS;
const uint SCALES_AT = 2 * VALUES_AT;
const uint HEAD_VECTORS = SCALES_AT + (KV_BYTES ? 2 * PAGE_TOKENS / 4 : 0);

uint head_base(Heads heads, uint sequence, uint entry, uint kv_head) {
    const uint page = page_tables[heads.table + sequence * heads.entries + entry];
    return (page * heads.kv_heads + kv_head) * HEAD_VECTORS;
}

void unpack(uvec4 bits, out float x[LENGTH]) {
    if (KV_BYTES) {
        [[unroll]] for (uint i = 0; i < LENGTH; i++) {
            x[i] = float(bitfieldExtract(int(bits[i / 4 % 4]), int(i % 4 * 8), 8));
        }
    } else if (KV_HALF) {
        [[unroll]] for (uint i = 0; i < LENGTH / 2; i++) {
            const vec2 pair = unpackHalf2x16(bits[i % 4]);
            x[2 * i] = pair.x;
            x[2 * i + 1] = pair.y;
        }
    } else {
        [[unroll]] for (uint i = 0; i < LENGTH; i++) {
            x[i] = uintBitsToFloat(bits[i % 4]);
        }
    }
}

// As on the processor: beyond the range of half floats, infinities included, their largest is
// stored; of bytes, one that is infinite makes the scale no number; what is no number stays none.
const float LARGEST_HALF = 65504.0;
vec2 in_range(vec2 x) { return mix(clamp(x, -LARGEST_HALF, LARGEST_HALF), x, isnan(x)); }
const float INFINITE = uintBitsToFloat(0x7f800000u);
const float NO_NUMBER = uintBitsToFloat(0x7fc00000u);
float magnitude(float x) { return isnan(x) ? INFINITE : abs(x); }

// A value as it is stored, and back. The bits pass through shared memory in between: a compiler
// that sees both at once may take them for nothing and skip the rounding.
uint stored_bits(float x) {
    return KV_BYTES ? uint(int(roundEven(x))) : KV_HALF ? packHalf2x16(in_range(vec2(x, 0.0))) : floatBitsToUint(x);
}
float from_bits(uint bits) {
    return KV_BYTES ? float(int(bits)) : KV_HALF ? unpackHalf2x16(bits).x : uintBitsToFloat(bits);
}

// The scale of a head whose largest magnitude is given, and what brings its values to units of it:
// below this it would overflow, and such values are rounded to zero.
float scale_of(float largest) { return largest < INFINITE ? largest / 127.0 : NO_NUMBER; }
float inverse_of(float largest) { return largest > 1e-30 ? 127.0 / largest : 0.0; }

// Values in units of their scale.
uvec4 pack(float x[LENGTH]) {
    uvec4 bits = uvec4(0);
    if (KV_BYTES) {
        [[unroll]] for (uint i = 0; i < LENGTH; i++) {
            bits[i / 4 % 4] |= (stored_bits(x[i]) & 255u) << (i % 4 * 8);
        }
    } else if (KV_HALF) {
        [[unroll]] for (uint i = 0; i < LENGTH / 2; i++) {
            bits[i % 4] = packHalf2x16(in_range(vec2(x[2 * i], x[2 * i + 1])));
        }
    } else {
        [[unroll]] for (uint i = 0; i < LENGTH; i++) {
            bits[i % 4] = floatBitsToUint(x[i]);
        }
    }
    return bits;
}

// `which` is 0 for the key, 1 for the value.
void store_scale(uint base, uint which, uint token, float scale) {
    const uint at = which * PAGE_TOKENS + token;
    pages[base + SCALES_AT + at / 4][at % 4] = floatBitsToUint(scale);
}

// Both elements that a rotation mixes, by the index of their pair.
uvec2 pair_of(uint pair) {
    return ROPE == 2 ? uvec2(2 * pair, 2 * pair + 1) : uvec2(pair, pair + HEAD_DIM / 2);
}

// A pair of a head of `row`, rotated by the row's angle.
vec2 rotated(vec2 x, uint row, uint pair) {
    if (ROPE == 0) {
        return x;
    }
    const float c = angles[row * HEAD_DIM + pair];
    const float s = angles[row * HEAD_DIM + HEAD_DIM / 2 + pair];
    return vec2(x.x * c - x.y * s, x.x * s + x.y * c);
}

// Blocks of KEY_ROTATION values times the orthonormal Hadamard matrix of that size. Invocations of a
// subgroup hold a head, value i SUBGROUP + n in x[i] of invocation n, so that no shared memory is needed.
void rotate_head(inout float x[COLUMNS]) {
    [[unroll]] for (uint distance = 1; distance < KEY_ROTATION && distance < SUBGROUP; distance *= 2) {
        const bool second = (gl_SubgroupInvocationID & distance) != 0;
        [[unroll]] for (uint i = 0; i < COLUMNS; i++) {
            const float other = subgroupShuffleXor(x[i], distance);
            x[i] = second ? other - x[i] : x[i] + other;
        }
    }
    [[unroll]] for (uint step = 1; step < KEY_ROTATION / SUBGROUP; step *= 2) {
        [[unroll]] for (uint i = 0; i < COLUMNS; i++) {
            if ((i & step) == 0) {
                const float other = x[i ^ step];
                x[i ^ step] = x[i] - other;
                x[i] += other;
            }
        }
    }
    // The root of a power of two, which `inversesqrt` may miss by two bits.
    const int bits = findMSB(KEY_ROTATION);
    const float factor = ldexp(bits % 2 == 1 ? 0.70710678 : 1.0, -(bits / 2));
    [[unroll]] for (uint i = 0; i < COLUMNS; i++) {
        x[i] *= factor;
    }
}

// Value of a head that x[i] holds in `rotate_head`, or the last where the head has ended.
uint own_column(uint i) { return min(i * SUBGROUP + gl_SubgroupInvocationID, HEAD_DIM - 1); }
bool has_column(uint i) { return i * SUBGROUP + gl_SubgroupInvocationID < HEAD_DIM; }
