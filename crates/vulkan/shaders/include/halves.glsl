// Weights as half floats, for matrix units.
//
// A code is put into the mantissa of 1024, where its units are the last bit: then no conversion of
// an integer is needed, and one instruction works on two weights. What is subtracted afterwards is
// exact, so that a weight is rounded as often as its formula has operations.
//
// Of four neighbours the middle two change places, in weights and operand alike: the order does not
// matter to a sum, and two codes with a byte between them are a pair without being moved.

#ifndef HALF_1024
// 1024 twice.
#define HALF_1024 0x64006400u
#endif

// Eight floats as half floats, in the order 0 2 1 3 4 6 5 7; `more` is the second half of those of f32.
uvec4 halves_of_floats(const uint type, uvec4 words, uvec4 more) {
    if (type == F32) {
        const vec4 x = uintBitsToFloat(words), y = uintBitsToFloat(more);
        return uvec4(packHalf2x16(x.xz), packHalf2x16(x.yw), packHalf2x16(y.xz), packHalf2x16(y.yw));
    }
    const uvec4 low = words & 0xffffu, high = words >> 16;
    if (type == F16) {
        return uvec4(low.x | (low.y << 16), high.x | (high.y << 16), low.z | (low.w << 16), high.z | (high.w << 16));
    }
    const vec4 even = uintBitsToFloat(words << 16), odd = uintBitsToFloat(words & 0xffff0000u);
    return uvec4(packHalf2x16(even.xy), packHalf2x16(odd.xy), packHalf2x16(even.zw), packHalf2x16(odd.zw));
}

// Weights 8 k to 8 k + 7 of a block, in the order 0 2 1 3 4 6 5 7. Only `scale` and `minimum` were
// rounded before; they are halves in most types to begin with.
uvec4 decode_eight(const uint type, Raw raw, const uint k) {
    vec2 scales, minimums;
    decode_scales(type, raw, scales, minimums);
    // Types whose minimum is a multiple of the scale have it in what is subtracted.
    const bool centred = type == Q4_0 || type == Q5_0 || type == Q6_K || is_signed(type);
    const float middle = type == Q4_0 ? 8.0 : type == Q5_0 ? 16.0 : type == Q6_K ? 32.0 : is_signed(type) ? 128.0 : 0.0;
    const bool nibbles = type == Q4_0 || type == Q4_1 || type == Q4_K;
    const f16vec2 scale = f16vec2(float16_t(k < 2 ? scales.x : scales.y));
    const f16vec2 minimum = f16vec2(float16_t(k < 2 ? minimums.x : minimums.y));
    uint codes[8];
    if (!nibbles) {
        decode_codes(type, raw, codes);
    }
    uvec4 halves;
    [[unroll]] for (uint i = 0; i < 2; i++) {
        f16vec2 even, odd;
        if (nibbles) {
            // Upper nibbles stay where they are, sixteen times as large.
            const uint word = raw.codes[k % 2 * 2 + i];
            const uint mask = k < 2 ? 0x000f000fu : 0x00f000f0u;
            const f16vec2 unit = f16vec2(float16_t(k < 2 ? 1.0 : 0.0625));
            const f16vec2 origin = f16vec2(float16_t(-middle - (k < 2 ? 1024.0 : 64.0)));
            even = fma(unpackFloat2x16((word & mask) | HALF_1024), unit, origin);
            odd = fma(unpackFloat2x16(((word >> 8) & mask) | HALF_1024), unit, origin);
        } else {
            const f16vec2 origin = f16vec2(float16_t(1024.0 + middle));
            // Signed codes become unsigned, 128 higher.
            const uint word = is_signed(type) ? codes[2 * k + i] ^ 0x80808080u : codes[2 * k + i];
            even = unpackFloat2x16((word & 0x00ff00ffu) | HALF_1024) - origin;
            odd = unpackFloat2x16(((word >> 8) & 0x00ff00ffu) | HALF_1024) - origin;
        }
        even = centred ? even * scale : fma(even, scale, minimum);
        odd = centred ? odd * scale : fma(odd, scale, minimum);
        halves[2 * i] = packFloat2x16(even);
        halves[2 * i + 1] = packFloat2x16(odd);
    }
    return halves;
}
