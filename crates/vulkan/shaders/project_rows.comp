// project_rows: a product of quantised weights with few rows (1 to 8), bound by the read of the
// weights. Some lanes share a weight row, each taking every LANES-th block; they read neighbouring
// vectors. A lane carries HEIGHT weight rows at once, so that an activation block is fetched once
// for all of them and several loads are in flight.
//
// With FUSED the workgroup forms the one input row itself, as codes in shared memory.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"
#include "include/operand.glsl"
#include "include/weights.glsl"
#include "include/epilogue.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 256;
// Parts have one of two types.
layout(constant_id = 1) const uint TYPE_A = 3;
layout(constant_id = 2) const uint TYPE_B = 3;
layout(constant_id = 3) const uint LANES = 8;
layout(constant_id = 4) const uint HEIGHT = 2;
// Rows of the operand; twice those of the output where they are refined.
layout(constant_id = 5) const uint COUNT = 1;
layout(constant_id = 6) const bool FUSED = false;
// 0: none; 1: silu(part 0) * part 1; 2: gelu(part 0) * part 1.
layout(constant_id = 7) const uint GATE = 0;
layout(constant_id = 8) const bool INTEGER = true;
layout(constant_id = 9) const bool REFINED = false;
layout(constant_id = 15) const bool LOGITS = false;
layout(constant_id = 16) const uint SHARED_BLOCKS = 1;
layout(constant_id = 17) const uint BLOCKS = 1;

layout(set = 1, binding = 3, std430) readonly buffer Vectors { vec4 vectors[]; };
layout(set = 1, binding = 4, std430) readonly buffer VectorFloats { float vector_floats[]; };
layout(set = 1, binding = 5, std430) writeonly buffer Output { float values[]; };
layout(set = 1, binding = 6, std430) readonly restrict buffer Operand { uvec4 operand[]; };
layout(set = 1, binding = 7, std430) readonly restrict buffer Metas { uvec2 metas[]; };
layout(set = 1, binding = 8, std430) readonly buffer Base { vec4 base[]; };
layout(set = 1, binding = 9, std430) readonly buffer Delta { vec4 delta[]; };
layout(set = 1, binding = 10, std430) writeonly buffer Residual { vec4 residual[]; };

#include "include/prologue.glsl"

const uint NO_BIAS = 0xffffffffu;

layout(push_constant) uniform Constants {
    // Rows of each part, its first workgroup, the output's column it begins at, its bias.
    uint part_rows[3];
    uint part_group[3];
    uint part_column[3];
    uint part_bias[3];
    // Bit p: part p has TYPE_B. Bit 8: the new residual stream is kept.
    uint flags;
    uint output_stride;
    float cap;
    Prologue constants;
};

shared uvec4 shared_codes[2 * SHARED_BLOCKS];
shared uvec2 shared_metas[SHARED_BLOCKS];

// Four columns of the operand to shared memory, as codes. All lanes take part.
void put_shared(uint v, vec4 y) {
    const bool inside = v < WIDTH / 4;
    const uint block = v / 8;
    const uint k = v % 8;
    const float largest = block_maximum(y);
    const float step_size = largest / 127.0;
    const float inverse = largest > 0.0 ? 127.0 / largest : 0.0;
    const ivec4 codes = ivec4(roundEven(y * inverse));
    const uint sums = block_sums(codes);
    if (inside) {
        shared_codes[k / 4 * BLOCKS + block][k % 4] = pack_bytes(codes);
        if (k == 0) {
            shared_metas[block] = uvec2(floatBitsToUint(step_size), sums);
        }
    }
    if (REFINED) {
        const vec4 rest = (y - vec4(codes) * step_size) * (inverse * 254.0);
        const ivec4 fine = ivec4(clamp(roundEven(rest), -127.0, 127.0));
        const uint fine_sums = block_sums(fine);
        if (inside) {
            shared_codes[(2 + k / 4) * BLOCKS + block][k % 4] = pack_bytes(fine);
            if (k == 0) {
                shared_metas[BLOCKS + block] = uvec2(floatBitsToUint(step_size / 254.0), fine_sums);
            }
        }
    }
}

// Codes and metas of row 0, and row 1 if refined, to shared memory.
void form_shared() {
    if (SUM == 0 && !NORM) {
        // Nothing needs the whole row at once, and some of these are too wide for registers.
        const uint row = (SELECT ? play.logit_rows[0] : 0) * constants.base_stride;
        for (uint pass = 0; pass < PASSES; pass++) {
            const uint v = pass * WORKGROUP + gl_LocalInvocationIndex;
            put_shared(v, v < WIDTH / 4 ? base[row + v] : vec4(0.0));
        }
    } else {
        vec4 x[PASSES];
        form_row(constants, 0, (flags & 0x100u) != 0 && gl_WorkGroupID.x == 0, x);
        [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
            put_shared(pass * WORKGROUP + gl_LocalInvocationIndex, x[pass]);
        }
    }
    barrier();
}

uvec4 codes_at(uint n, uint half_block, uint block) {
    const uint at = (2 * n + half_block) * BLOCKS + block;
    return FUSED ? shared_codes[at] : operand[at];
}

uvec2 meta_at(uint n, uint block) {
    const uint at = n * BLOCKS + block;
    return FUSED ? shared_metas[at] : metas[at];
}

int dot_words(uvec4 a, uint b0, uint b1, uint b2, uint b3) {
    return dotPacked4x8EXT(int(a.x), int(b0)) + dotPacked4x8EXT(int(a.y), int(b1))
         + dotPacked4x8EXT(int(a.z), int(b2)) + dotPacked4x8EXT(int(a.w), int(b3));
}

// Adds the product of this lane's blocks of HEIGHT weight rows to `sums`.
void accumulate(const uint type, Matrix matrix, uint first_row, uint lane, inout float sums[HEIGHT][COUNT]) {
    for (uint block = lane; block < BLOCKS; block += LANES) {
        if (INTEGER && !is_float(type)) {
            uvec4 low[COUNT], high[COUNT];
            uvec2 meta[COUNT];
            [[unroll]] for (uint n = 0; n < COUNT; n++) {
                low[n] = codes_at(n, 0, block);
                high[n] = codes_at(n, 1, block);
                meta[n] = meta_at(n, block);
            }
            [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
                const uint row = min(first_row + r, matrix.rows - 1);
                uint codes[8];
                vec2 scale, minimum;
                load_codes(type, matrix, row, block, codes);
                load_scales(type, matrix, row, block, scale, minimum);
                [[unroll]] for (uint n = 0; n < COUNT; n++) {
                    const int lower = dot_words(low[n], codes[0], codes[1], codes[2], codes[3]);
                    const int upper = dot_words(high[n], codes[4], codes[5], codes[6], codes[7]);
                    const ivec2 code_sums = meta_sums(meta[n]);
                    float term;
                    if (type == Q6_K) {
                        term = dot(scale, vec2(lower, upper)) + dot(minimum, vec2(code_sums));
                    } else if (type == Q8_0) {
                        term = scale.x * float(lower + upper);
                    } else {
                        term = scale.x * float(lower + upper) + minimum.x * float(code_sums.x + code_sums.y);
                    }
                    sums[r][n] += meta_step(meta[n]) * term;
                }
            }
        } else {
            [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
                const uint row = min(first_row + r, matrix.rows - 1);
                vec4 weights[8];
                load_floats(type, matrix, row, block, weights);
                [[unroll]] for (uint n = 0; n < COUNT; n++) {
                    float sum = 0.0;
                    [[unroll]] for (uint k = 0; k < 8; k++) {
                        sum += dot(weights[k], uintBitsToFloat(operand[(n * 8 + k) * BLOCKS + block]));
                    }
                    sums[r][n] += sum;
                }
            }
        }
    }
}

void product_of(uint part, uint first_row, uint lane, out float sums[HEIGHT][COUNT]) {
    [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
        [[unroll]] for (uint n = 0; n < COUNT; n++) {
            sums[r][n] = 0.0;
        }
    }
    const Matrix matrix = Matrix(part, part_rows[part], BLOCKS);
    if (TYPE_A == TYPE_B || (flags & (1u << part)) == 0) {
        accumulate(TYPE_A, matrix, first_row, lane, sums);
    } else {
        accumulate(TYPE_B, matrix, first_row, lane, sums);
    }
    [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
        [[unroll]] for (uint n = 0; n < COUNT; n++) {
            [[unroll]] for (uint step = LANES / 2; step > 0; step /= 2) {
                sums[r][n] += subgroupShuffleXor(sums[r][n], step);
            }
        }
        if (REFINED) {
            [[unroll]] for (uint n = 0; n < COUNT / 2; n++) {
                sums[r][n] = sums[r][2 * n] + sums[r][2 * n + 1];
            }
        }
        const uint bias = part_bias[part];
        if (bias != NO_BIAS && first_row + r < matrix.rows) {
            [[unroll]] for (uint n = 0; n < COUNT; n++) {
                sums[r][n] += vector_floats[bias + first_row + r];
            }
        }
    }
}

void main() {
    if (play.halted != 0) {
        return;
    }
    if (FUSED) {
        form_shared();
    }
    const uint lane = gl_SubgroupInvocationID % LANES;
    const uint group = gl_SubgroupID * (gl_SubgroupSize / LANES) + gl_SubgroupInvocationID / LANES;
    const uint workgroup = gl_WorkGroupID.x;
    uint part = 0;
    if (GATE == 0) {
        part = workgroup >= part_group[2] ? 2 : workgroup >= part_group[1] ? 1 : 0;
    }
    const uint first_row = ((workgroup - part_group[part]) * (WORKGROUP / LANES) + group) * HEIGHT;
    float sums[HEIGHT][COUNT];
    product_of(part, first_row, lane, sums);
    if (GATE != 0) {
        float ups[HEIGHT][COUNT];
        product_of(1, first_row, lane, ups);
        [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
            [[unroll]] for (uint n = 0; n < COUNT; n++) {
                sums[r][n] = (GATE == 1 ? silu(sums[r][n]) : gelu_tanh(sums[r][n])) * ups[r][n];
            }
        }
    }
    const uint count = min(LOGITS ? play.logit_count : play.row_count, REFINED ? COUNT / 2 : COUNT);
    [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
        [[unroll]] for (uint n = 0; n < COUNT; n++) {
            const uint row = first_row + r;
            if (lane == (r * COUNT + n) % LANES && n < count && row < part_rows[part]) {
                const float value = cap > 0.0 ? soft_cap(sums[r][n], cap) : sums[r][n];
                values[n * output_stride + part_column[part] + row] = value;
            }
        }
    }
}
