// Weights as src/layout.rs packs them: planes of 16-byte vectors, so that neighbouring lanes read
// neighbouring vectors. A matrix `[rows, columns]` has B = columns / 32 blocks a row:
//
//   4-bit codes   [row][block]        byte i: weight i low, weight i + 16 high
//   or            [row][block][4]     of a codebook: u32 b, bit 8 j + k: bit b of weight 4 k + j
//   8-bit codes   [row][half][block]  16 weights each
//   fifth bits    [row][block]        u32, bit i of weight i
//   upper pairs   [row][block][2]     u32 each for 16 weights: pair k of byte j is weight 4 k + j
//   scales        [row][block]        f16, or f16 scale and minimum, or one or two small integers
//   super scales  [row][block / 8]    f16 scale (and minimum) of the small integers
//   floats        [row][k][block]     vectors k of 4 (f32) or 8 (f16, bf16) weights
//
// One region is bound three times, once for each width it is read in.

// Matrices that a kernel reads at most.
const uint PARTS = 3;

layout(set = 1, binding = 0, std430) readonly restrict buffer WeightVectors {
    uvec4 data[];
} weight_vectors[PARTS];
layout(set = 1, binding = 1, std430) readonly restrict buffer WeightWords {
    uint data[];
} weight_words[PARTS];
layout(set = 1, binding = 2, std430) readonly restrict buffer WeightHalves {
    uint16_t data[];
} weight_halves[PARTS];

// Order of `TensorType::ALL`.
const uint F32 = 0, F16 = 1, BF16 = 2, Q4_0 = 3, Q4_1 = 4, Q5_0 = 5, Q5_1 = 6, Q8_0 = 7, Q4_K = 8,
           Q5_K = 9, Q6_K = 10, IQ4_NL = 11, IQ4_XS = 12;

bool is_float(uint type) { return type <= BF16; }
// Codes are indices of a table.
bool has_codebook(uint type) { return type == IQ4_NL || type == IQ4_XS; }
// What decode_codes gives is signed, and there is no minimum.
bool is_signed(uint type) { return type == Q8_0 || has_codebook(type); }

// A matrix in a bound region.
struct Matrix {
    uint part;
    uint rows;
    uint blocks;
};

// 32 quantised weights as they lie in memory. Loading and decoding are apart, so that a kernel can
// have several loads under way before it waits for the first.
struct Raw {
    uvec4 codes;
    // The upper half of 8-bit codes, or bits above the nibbles.
    uvec4 more;
    uint scales;
    uint supers;
};

Raw load_raw(const uint type, Matrix matrix, uint row, uint block) {
    const uint count = matrix.rows * matrix.blocks;
    const uint at = row * matrix.blocks + block;
    Raw raw = Raw(uvec4(0), uvec4(0), 0, 0);
    // Where the scales begin, in 16-bit units.
    uint plane = 8 * count;
    if (type == Q8_0) {
        const uint low = 2 * row * matrix.blocks + block;
        raw.codes = weight_vectors[matrix.part].data[low];
        raw.more = weight_vectors[matrix.part].data[low + matrix.blocks];
        plane = 16 * count;
    } else {
        raw.codes = weight_vectors[matrix.part].data[at];
        // Bits above the nibbles follow all nibbles of the matrix.
        if (type == Q5_0 || type == Q5_1 || type == Q5_K) {
            raw.more.x = weight_words[matrix.part].data[4 * count + at];
            plane = 10 * count;
        } else if (type == Q6_K) {
            raw.more.x = weight_words[matrix.part].data[4 * count + 2 * at];
            raw.more.y = weight_words[matrix.part].data[4 * count + 2 * at + 1];
            plane = 12 * count;
        }
    }
    const uint super = row * (matrix.blocks / 8) + block / 8;
    if (type == Q4_1 || type == Q5_1) {
        raw.scales = weight_words[matrix.part].data[plane / 2 + at];
    } else if (type == IQ4_XS) {
        raw.scales = uint(weight_halves[matrix.part].data[plane + at / 2]) >> (at % 2 * 8);
    } else {
        raw.scales = uint(weight_halves[matrix.part].data[plane + at]);
    }
    if (type == IQ4_XS) {
        raw.supers = uint(weight_halves[matrix.part].data[plane + count / 2 + super]);
    } else if (type == Q6_K) {
        raw.supers = uint(weight_halves[matrix.part].data[plane + count + super]);
    } else if (type == Q4_K || type == Q5_K) {
        raw.supers = weight_words[matrix.part].data[(plane + count) / 2 + super];
    }
    return raw;
}

// Four fifth bits to bit 4 of four bytes.
uint spread_fifths(uint bits) { return (((bits & 0xfu) * 0x00204081u) & 0x01010101u) << 4; }

// What codes of iq4_nl and iq4_xs stand for, bit by bit: bit n of word b is bit b of the signed byte
// that code n stands for.
const uint IQ4_BITS[8] = uint[8](0xf73du, 0x08d8u, 0x3abcu, 0x467eu, 0xd4aau, 0x98ccu, 0xe0f0u, 0x00ffu);

uint select_bits(uint mask, uint ones, uint zeros) { return (ones & mask) | (zeros & ~mask); }

// Bit n of `table` for each of 32 codes n, whose bits b are in bits[b].
uint look_up(const uint table, uvec4 bits) {
    uint found[16];
    [[unroll]] for (uint n = 0; n < 16; n++) {
        found[n] = 0u - ((table >> n) & 1u);
    }
    [[unroll]] for (uint b = 0; b < 4; b++) {
        [[unroll]] for (uint n = 0; n < 8u >> b; n++) {
            found[n] = select_bits(bits[b], found[2 * n + 1], found[2 * n]);
        }
    }
    return found[0];
}

// Exchanges bit j of each byte of words[i] and bit i of the same byte of words[j].
void transpose(inout uint words[8]) {
    const uint masks[3] = uint[3](0x0f0f0f0fu, 0x33333333u, 0x55555555u);
    [[unroll]] for (uint step = 0; step < 3; step++) {
        const uint width = 4u >> step;
        [[unroll]] for (uint n = 0; n < 4; n++) {
            const uint i = n / width * 2 * width + n % width;
            const uint moved = ((words[i] >> width) ^ words[i + width]) & masks[step];
            words[i + width] ^= moved;
            words[i] ^= moved << width;
        }
    }
}

// Weight 4 k + j has the code in byte j of codes[k].
void decode_codes(const uint type, Raw raw, out uint codes[8]) {
    if (type == Q8_0) {
        codes = uint[8](raw.codes.x, raw.codes.y, raw.codes.z, raw.codes.w, raw.more.x, raw.more.y, raw.more.z,
                        raw.more.w);
        return;
    }
    if (has_codebook(type)) {
        [[unroll]] for (uint b = 0; b < 8; b++) {
            codes[b] = look_up(IQ4_BITS[b], raw.codes);
        }
        transpose(codes);
        return;
    }
    const uvec4 low = raw.codes & 0x0f0f0f0fu;
    const uvec4 high = (raw.codes >> 4) & 0x0f0f0f0fu;
    codes = uint[8](low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w);
    if (type == Q5_0 || type == Q5_1 || type == Q5_K) {
        [[unroll]] for (uint k = 0; k < 8; k++) {
            codes[k] |= spread_fifths(raw.more.x >> (4 * k));
        }
    } else if (type == Q6_K) {
        [[unroll]] for (uint k = 0; k < 4; k++) {
            codes[k] |= ((raw.more.x >> (2 * k)) & 0x03030303u) << 4;
            codes[k + 4] |= ((raw.more.y >> (2 * k)) & 0x03030303u) << 4;
        }
    }
}

// A weight is scale * code + minimum, by the scale and minimum of the lower or the upper 16.
void decode_scales(const uint type, Raw raw, out vec2 scale, out vec2 minimum) {
    const vec2 pair = unpackHalf2x16(raw.scales);
    if (type == Q4_0 || type == Q5_0 || type == Q8_0 || type == IQ4_NL) {
        scale = vec2(pair.x);
        minimum = vec2(type == Q4_0 ? -8.0 * pair.x : type == Q5_0 ? -16.0 * pair.x : 0.0);
    } else if (type == Q4_1 || type == Q5_1) {
        scale = vec2(pair.x);
        minimum = vec2(pair.y);
    } else {
        const vec2 super = unpackHalf2x16(raw.supers);
        if (type == IQ4_XS) {
            scale = vec2(super.x * float(int(raw.scales << 24) >> 24));
            minimum = vec2(0.0);
        } else if (type == Q6_K) {
            scale = super.x * vec2(int(raw.scales << 24) >> 24, int(raw.scales << 16) >> 24);
            minimum = -32.0 * scale;
        } else {
            scale = vec2(super.x * float(raw.scales & 0xffu));
            minimum = vec2(-super.y * float(raw.scales >> 8));
        }
    }
}

// Vector `v` of a block of floats as it lies in memory: four weights of f32, eight of others, which have none behind the fourth.
uvec4 float_vector(const uint type, Matrix matrix, uint row, uint block, uint v) {
    const uint count = type == F32 ? 8 : 4;
    return weight_vectors[matrix.part].data[(row * count + min(v, count - 1)) * matrix.blocks + block];
}

// Vector `k` (0 to 7) of four weights of a block, dequantised.
vec4 float_weights(const uint type, Matrix matrix, uint row, uint block, uint k) {
    if (type == F32) {
        return uintBitsToFloat(weight_vectors[matrix.part].data[(row * 8 + k) * matrix.blocks + block]);
    }
    const uvec4 wide = weight_vectors[matrix.part].data[(row * 4 + k / 2) * matrix.blocks + block];
    const uvec2 pair = (k & 1) == 0 ? wide.xy : wide.zw;
    if (type == F16) {
        return vec4(unpackHalf2x16(pair.x), unpackHalf2x16(pair.y));
    }
    return uintBitsToFloat(uvec4(pair.x << 16, pair.x & 0xffff0000u, pair.y << 16, pair.y & 0xffff0000u));
}

// All 32 weights of a block as floats.
void load_floats(const uint type, Matrix matrix, uint row, uint block, out vec4 weights[8]) {
    if (is_float(type)) {
        [[unroll]] for (uint k = 0; k < 8; k++) {
            weights[k] = float_weights(type, matrix, row, block, k);
        }
        return;
    }
    const Raw raw = load_raw(type, matrix, row, block);
    uint codes[8];
    vec2 scale, minimum;
    decode_codes(type, raw, codes);
    decode_scales(type, raw, scale, minimum);
    [[unroll]] for (uint k = 0; k < 8; k++) {
        const uvec4 bytes = (uvec4(codes[k]) >> uvec4(0, 8, 16, 24)) & 0xffu;
        const vec4 values = is_signed(type) ? vec4(ivec4(bytes << 24) >> 24) : vec4(bytes);
        weights[k] = values * (k < 4 ? scale.x : scale.y) + (k < 4 ? minimum.x : minimum.y);
    }
}
