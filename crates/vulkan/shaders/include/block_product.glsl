// The product of a block of weights with a block of codes.
//
// The file that includes this includes operand.glsl and weights.glsl before.

int dot_words(uvec4 a, uint b0, uint b1, uint b2, uint b3) {
    return dotPacked4x8EXT(int(a.x), int(b0)) + dotPacked4x8EXT(int(a.y), int(b1))
         + dotPacked4x8EXT(int(a.z), int(b2)) + dotPacked4x8EXT(int(a.w), int(b3));
}

// Weights as decode_codes and decode_scales give them, codes as their halves and meta.
float block_product(const uint type, uint codes[8], vec2 scale, vec2 minimum, uvec4 low, uvec4 high, uvec2 meta) {
    const int lower = dot_words(low, codes[0], codes[1], codes[2], codes[3]);
    const int upper = dot_words(high, codes[4], codes[5], codes[6], codes[7]);
    const ivec2 code_sums = meta_sums(meta);
    float term;
    if (type == Q6_K) {
        term = dot(scale, vec2(lower, upper)) + dot(minimum, vec2(code_sums));
    } else if (is_signed(type)) {
        term = scale.x * float(lower + upper);
    } else {
        term = scale.x * float(lower + upper) + minimum.x * float(code_sums.x + code_sums.y);
    }
    return meta_step(meta) * term;
}
