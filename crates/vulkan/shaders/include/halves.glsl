// Quantised weights as half floats, for matrix units.
//
// A code is put into the mantissa of 1024, where its units are the last bit: then no conversion of
// an integer is needed, and one instruction works on two weights. What is subtracted afterwards is
// exact, so that a weight is rounded as often as its formula has operations.

// Weights of a block in their order, eight to a vector. Only `scale` and `minimum` were rounded
// before; they are halves in most types to begin with.
void decode_halves(const uint type, Raw raw, out uvec4 halves[4]) {
    uint codes[8];
    vec2 scales, minimums;
    decode_codes(type, raw, codes);
    decode_scales(type, raw, scales, minimums);
    // Types whose minimum is a multiple of the scale have it in what is subtracted.
    const bool centred = type == Q4_0 || type == Q5_0 || type == Q6_K || type == Q8_0;
    const float middle = type == Q4_0 ? 8.0 : type == Q5_0 ? 16.0 : type == Q6_K ? 32.0 : type == Q8_0 ? 128.0 : 0.0;
    const f16vec2 origin = f16vec2(float16_t(1024.0 + middle));
    [[unroll]] for (uint k = 0; k < 8; k++) {
        const f16vec2 scale = f16vec2(float16_t(k < 4 ? scales.x : scales.y));
        const f16vec2 minimum = f16vec2(float16_t(k < 4 ? minimums.x : minimums.y));
        // Signed codes become unsigned, 128 higher.
        const uint word = type == Q8_0 ? codes[k] ^ 0x80808080u : codes[k];
        f16vec2 even = unpackFloat2x16((word & 0x00ff00ffu) | 0x64006400u) - origin;
        f16vec2 odd = unpackFloat2x16(((word >> 8) & 0x00ff00ffu) | 0x64006400u) - origin;
        even = centred ? even * scale : fma(even, scale, minimum);
        odd = centred ? odd * scale : fma(odd, scale, minimum);
        halves[k / 2][k % 2 * 2] = packFloat2x16(f16vec2(even.x, odd.x));
        halves[k / 2][k % 2 * 2 + 1] = packFloat2x16(f16vec2(even.y, odd.y));
    }
}
