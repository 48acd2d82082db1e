// The input of a product as products read it, block by block of 32 columns.
//
//   floats   [row][k][block]     vec4 k (0 to 7) of a block
//   codes    [row][half][block]  16 bytes each, signed
//   halves   [row][column]       f16, the row scaled by a power of two, in the order of halves.glsl
//   fragments [four blocks][eight columns of a block][row][block], vectors of eight halves
//   metas    [row][block]        step of the codes, and the sums of each half's codes, 16 bits each
//
// A refined row is two rows: codes, and codes of what their rounding left out. Of halves, metas
// hold what undoes the scale, once a row.
#extension GL_EXT_integer_dot_product : require

// Largest magnitude of the eight invocations that hold one block.
float block_maximum(vec4 values) {
    const vec4 magnitudes = abs(values);
    float largest = max(max(magnitudes.x, magnitudes.y), max(magnitudes.z, magnitudes.w));
    largest = max(largest, subgroupShuffleXor(largest, 1));
    largest = max(largest, subgroupShuffleXor(largest, 2));
    return max(largest, subgroupShuffleXor(largest, 4));
}

uint pack_bytes(ivec4 codes) {
    const uvec4 bytes = uvec4(codes) & 0xffu;
    return bytes.x | (bytes.y << 8) | (bytes.z << 16) | (bytes.w << 24);
}

// Sums of both halves' codes over the eight invocations that hold one block.
uint block_sums(ivec4 codes) {
    int sum = codes.x + codes.y + codes.z + codes.w;
    sum += subgroupShuffleXor(sum, 1);
    sum += subgroupShuffleXor(sum, 2);
    const int other = subgroupShuffleXor(sum, 4);
    return (uint(sum) & 0xffffu) | (uint(other) << 16);
}

// Four columns as codes: their word, the block's step and sums; and the same for what the rounding
// left out. All invocations of a subgroup take part, eight for each block.
struct Quantised {
    uint word;
    uvec2 meta;
    uint fine_word;
    uvec2 fine_meta;
};

Quantised quantise(vec4 y, const bool refined) {
    const float largest = block_maximum(y);
    const float step_size = largest / 127.0;
    const float inverse = largest > 0.0 ? 127.0 / largest : 0.0;
    const ivec4 codes = ivec4(roundEven(y * inverse));
    Quantised result;
    result.word = pack_bytes(codes);
    result.meta = uvec2(floatBitsToUint(step_size), block_sums(codes));
    if (refined) {
        const vec4 rest = (y - vec4(codes) * step_size) * (inverse * 254.0);
        const ivec4 fine = ivec4(clamp(roundEven(rest), -127.0, 127.0));
        result.fine_word = pack_bytes(fine);
        result.fine_meta = uvec2(floatBitsToUint(step_size / 254.0), block_sums(fine));
    }
    return result;
}

// Place of the word of columns 4 v to 4 v + 3 in a row of codes.
uint code_word(uint v, uint blocks) { return (v % 8 / 4 * blocks + v / 8) * 4 + v % 4; }

// Place of the first of the two words of columns 4 v to 4 v + 3 in `rows` rows of fragments.
uint fragment_word(uint v, uint row, uint rows) {
    const uint block = v / 8, eighth = v % 8 / 2;
    return (((block / 4 * 4 + eighth) * rows + row) * 4 + block % 4) * 4 + v % 2 * 2;
}

// Four columns as two words of halves, in the order of halves.glsl.
uvec2 halves_of(vec4 y) { return uvec2(packHalf2x16(y.xz), packHalf2x16(y.yw)); }

// A meta: step, and the sum of all codes or of each half's.
float meta_step(uvec2 meta) { return uintBitsToFloat(meta.x); }
ivec2 meta_sums(uvec2 meta) { return ivec2(int(meta.y << 16) >> 16, int(meta.y) >> 16); }
