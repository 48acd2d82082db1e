// project_tiles: a product of weights with many rows. A workgroup computes a tile of 64 weight
// rows by TOKENS rows of the operand; an invocation, 4 by TOKENS / 16 of it. Weights pass through
// shared memory as codes (four blocks at a time) or, in exact mode, as floats (one block at a
// time).
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"
#include "include/operand.glsl"
#include "include/weights.glsl"
#include "include/epilogue.glsl"
#include "include/fault.glsl"

layout(local_size_x = 256) in;
// Parts have one of two types.
layout(constant_id = 0) const uint TYPE_A = 3;
layout(constant_id = 1) const uint TYPE_B = 3;
layout(constant_id = 2) const uint TOKENS = 64;
// 0: none; 1: silu(part 0) * part 1; 2: gelu(part 0) * part 1.
layout(constant_id = 3) const uint GATE = 0;
layout(constant_id = 4) const bool INTEGER = true;
layout(constant_id = 5) const bool REFINED = false;
layout(constant_id = 6) const bool LOGITS = false;
layout(constant_id = 7) const uint BLOCKS = 1;

layout(set = 1, binding = 3, std430) readonly buffer VectorFloats { float vector_floats[]; };
layout(set = 1, binding = 4, std430) writeonly buffer Output { float values[]; };
layout(set = 1, binding = 5, std430) readonly restrict buffer Operand { uvec4 operand[]; };
layout(set = 1, binding = 6, std430) readonly restrict buffer Metas { uvec2 metas[]; };

const uint NO_BIAS = 0xffffffffu;

layout(push_constant) uniform Constants {
    uint part_rows[3];
    uint part_group[3];
    uint part_column[3];
    uint part_bias[3];
    // Bit p: part p has TYPE_B.
    uint flags;
    uint output_stride;
    float cap;
};

const uint ROWS = 64;
// Rows of an invocation, and tokens of an invocation.
const uint HEIGHT = 4;
const uint COUNT = TOKENS / 16;
// Distance, in words, of the rows' words of two columns: invocations that store four blocks of
// eight rows at once then meet 32 different banks.
const uint ROW_STRIDE = 72;
const uint TOKEN_STRIDE = TOKENS + 8;
const uint STEP = 4;

// Integer: [word][block of the step][row]. Float: [column][row].
shared uvec4 weight_tile[32 * ROW_STRIDE / 4];
shared uint token_tile[32 * TOKEN_STRIDE];
// Scales and minimums of the halves of each block.
shared vec4 scale_tile[STEP * ROWS];
shared uvec2 meta_tile[STEP * TOKENS];

void load_weights(const uint type, Matrix matrix, uint first_row, uint first_block) {
    const uint row = gl_LocalInvocationIndex / STEP;
    const uint source = min(first_row + row, matrix.rows - 1);
    if (INTEGER && !is_float(type)) {
        const uint step_block = gl_LocalInvocationIndex % STEP;
        const uint block = first_block + step_block;
        uint codes[8];
        vec2 scale, minimum;
        if (block < BLOCKS) {
            const Raw raw = load_raw(type, matrix, source, block);
            decode_codes(type, raw, codes);
            decode_scales(type, raw, scale, minimum);
        } else {
            codes = uint[8](0, 0, 0, 0, 0, 0, 0, 0);
            scale = vec2(0.0);
            minimum = vec2(0.0);
        }
        [[unroll]] for (uint k = 0; k < 8; k++) {
            const uint at = (k * STEP + step_block) * ROW_STRIDE + row;
            weight_tile[at / 4][at % 4] = codes[k];
        }
        if (SPOILT_BLOCK) {
            scale *= spoilt(source, block, BLOCKS);
            minimum *= spoilt(source, block, BLOCKS);
        }
        scale_tile[step_block * ROWS + row] = vec4(scale, minimum);
    } else if (gl_LocalInvocationIndex % STEP == 0) {
        vec4 weights[8];
        load_floats(type, matrix, source, first_block, weights);
        [[unroll]] for (uint k = 0; k < 8; k++) {
            if (SPOILT_BLOCK) {
                weights[k] *= spoilt(source, first_block, BLOCKS);
            }
            [[unroll]] for (uint i = 0; i < 4; i++) {
                const uint at = (4 * k + i) * ROW_STRIDE + row;
                weight_tile[at / 4][at % 4] = floatBitsToUint(weights[k][i]);
            }
        }
    }
}

// Where the operand's row of a token lies: WRONG_TAIL reads the row before the last.
uint row_of(uint token) {
    const uint count = (REFINED ? 2 : 1) * (LOGITS ? play.logit_count : play.row_count);
    return FAULT == WRONG_TAIL && token > 0 && token == count - 1 && count % TOKENS != 0 ? token - 1 : token;
}

void load_tokens(const bool codes, uint first_token, uint first_block) {
    if (codes) {
        for (uint i = gl_LocalInvocationIndex; i < TOKENS * STEP * 2; i += 256) {
            const uint step_block = i % STEP;
            const uint half_block = i / STEP % 2;
            const uint token = i / (STEP * 2);
            const uint block = first_block + step_block;
            const uvec4 words =
                block < BLOCKS ? operand[(2 * row_of(first_token + token) + half_block) * BLOCKS + block] : uvec4(0);
            [[unroll]] for (uint k = 0; k < 4; k++) {
                token_tile[((half_block * 4 + k) * STEP + step_block) * TOKEN_STRIDE + token] = words[k];
            }
            if (half_block == 0) {
                meta_tile[step_block * TOKENS + token] =
                    block < BLOCKS ? metas[row_of(first_token + token) * BLOCKS + block] : uvec2(0);
            }
        }
    } else {
        for (uint i = gl_LocalInvocationIndex; i < TOKENS * 8; i += 256) {
            const uint token = i / 8;
            const uint k = i % 8;
            const uvec4 words = operand[(row_of(first_token + token) * 8 + k) * BLOCKS + first_block];
            [[unroll]] for (uint j = 0; j < 4; j++) {
                token_tile[(4 * k + j) * TOKEN_STRIDE + token] = words[j];
            }
        }
    }
}

void accumulate(const uint type, Matrix matrix, uint first_row, uint first_token, inout float sums[HEIGHT][COUNT]) {
    const uint row = gl_LocalInvocationIndex % 16 * HEIGHT;
    const uint token = gl_LocalInvocationIndex / 16 * COUNT;
    const bool codes = INTEGER && !is_float(type);
    for (uint first_block = 0; first_block < BLOCKS; first_block += codes ? STEP : 1) {
        barrier();
        load_weights(type, matrix, first_row, first_block);
        load_tokens(codes, first_token, first_block);
        barrier();
        if (codes) {
            [[unroll]] for (uint step_block = 0; step_block < STEP; step_block++) {
                const uint halves = type == Q6_K ? 2 : 1;
                [[unroll]] for (uint part = 0; part < halves; part++) {
                    int dots[HEIGHT][COUNT];
                    [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
                        [[unroll]] for (uint n = 0; n < COUNT; n++) {
                            dots[r][n] = 0;
                        }
                    }
                    [[unroll]] for (uint i = 0; i < 8 / halves; i++) {
                        const uint k = part * 4 + i;
                        const uvec4 weights = weight_tile[((k * STEP + step_block) * ROW_STRIDE + row) / 4];
                        [[unroll]] for (uint n = 0; n < COUNT; n++) {
                            const int word = int(token_tile[(k * STEP + step_block) * TOKEN_STRIDE + token + n]);
                            [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
                                dots[r][n] += dotPacked4x8EXT(int(weights[r]), word);
                            }
                        }
                    }
                    [[unroll]] for (uint n = 0; n < COUNT; n++) {
                        const uvec2 meta = meta_tile[step_block * TOKENS + token + n];
                        const ivec2 pair = meta_sums(meta);
                        const float code_sum = float(halves == 2 ? (part == 0 ? pair.x : pair.y) : pair.x + pair.y);
                        [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
                            const vec4 scales = scale_tile[step_block * ROWS + row + r];
                            const float scale = part == 0 ? scales.x : scales.y;
                            const float minimum = part == 0 ? scales.z : scales.w;
                            sums[r][n] += meta_step(meta) * (scale * float(dots[r][n]) + minimum * code_sum);
                        }
                    }
                }
            }
        } else {
            for (uint column = 0; column < 32; column++) {
                const vec4 weights = uintBitsToFloat(weight_tile[(column * ROW_STRIDE + row) / 4]);
                [[unroll]] for (uint n = 0; n < COUNT; n++) {
                    const float x = uintBitsToFloat(token_tile[column * TOKEN_STRIDE + token + n]);
                    [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
                        sums[r][n] += weights[r] * x;
                    }
                }
            }
        }
    }
}

void product_of(uint part, uint first_row, uint first_token, out float sums[HEIGHT][COUNT]) {
    [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
        [[unroll]] for (uint n = 0; n < COUNT; n++) {
            sums[r][n] = 0.0;
        }
    }
    const Matrix matrix = Matrix(part, part_rows[part], BLOCKS);
    if (TYPE_A == TYPE_B || (flags & (1u << part)) == 0) {
        accumulate(TYPE_A, matrix, first_row, first_token, sums);
    } else {
        accumulate(TYPE_B, matrix, first_row, first_token, sums);
    }
    const uint row = first_row + gl_LocalInvocationIndex % 16 * HEIGHT;
    [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
        if (REFINED) {
            [[unroll]] for (uint n = 0; n < COUNT / 2; n++) {
                sums[r][n] = sums[r][2 * n] + sums[r][2 * n + 1];
            }
        }
        if (part_bias[part] != NO_BIAS && row + r < matrix.rows) {
            [[unroll]] for (uint n = 0; n < COUNT; n++) {
                sums[r][n] += vector_floats[part_bias[part] + row + r];
            }
        }
    }
}

void main() {
    const uint rows_each = REFINED ? 2 : 1;
    const uint count = LOGITS ? play.logit_count : play.row_count;
    const uint first_token = gl_WorkGroupID.y * TOKENS;
    if (first_token >= count * rows_each) {
        return;
    }
    const uint workgroup = gl_WorkGroupID.x;
    uint part = 0;
    if (GATE == 0) {
        part = workgroup >= part_group[2] ? 2 : workgroup >= part_group[1] ? 1 : 0;
    }
    const uint first_row = (workgroup - part_group[part]) * ROWS;
    float sums[HEIGHT][COUNT];
    product_of(part, first_row, first_token, sums);
    if (GATE != 0) {
        float ups[HEIGHT][COUNT];
        product_of(1, first_row, first_token, ups);
        [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
            [[unroll]] for (uint n = 0; n < COUNT; n++) {
                sums[r][n] = gated(GATE, sums[r][n], ups[r][n]);
            }
        }
    }
    const uint token = (first_token + gl_LocalInvocationIndex / 16 * COUNT) / rows_each;
    const uint row = first_row + gl_LocalInvocationIndex % 16 * HEIGHT;
    [[unroll]] for (uint n = 0; n < COUNT / rows_each; n++) {
        [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
            if (FAULT == STALE_ROW && token + n == count - 1 && row + r == FAULTY_OUTPUT) {
                continue;
            }
            if (token + n < count && row + r < part_rows[part]) {
                const float value = cap > 0.0 ? soft_cap(sums[r][n], cap) : sums[r][n];
                values[(token + n) * output_stride + part_column[part] + row + r] = value;
            }
        }
    }
}
