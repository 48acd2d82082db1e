// project_rows: a product of quantised weights with few rows (1 to 8), bound by the read of the
// weights. ROW_INVOCATIONS invocations share a weight row and take its blocks in turn; they read
// neighbouring vectors. An invocation carries HEIGHT weight rows at once, so that an activation
// block is fetched once for all of them and several loads are in flight.
//
// With a single row, work moves between neighbours so that a layer needs no launch in between:
//
//   FUSED  the workgroup forms the input row itself, as codes in shared memory
//   CODES  it leaves its outputs as codes, too, for the product that reads them next
//   TAIL   the last workgroup to finish forms the next product's input row, whose norms need all
//          of this product's outputs
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"
#include "include/operand.glsl"
#include "include/weights.glsl"
#include "include/block_product.glsl"
#include "include/epilogue.glsl"
#include "include/fault.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 256;
// Parts have one of two types.
layout(constant_id = 1) const uint TYPE_A = 3;
layout(constant_id = 2) const uint TYPE_B = 3;
layout(constant_id = 3) const uint ROW_INVOCATIONS = 8;
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
layout(constant_id = 18) const bool CODES = false;
layout(constant_id = 19) const bool TAIL = false;
// Blocks of a weight row that an invocation has in flight at once.
layout(constant_id = 20) const uint UNROLL = 1;

layout(set = 1, binding = 3, std430) readonly buffer Vectors { vec4 vectors[]; };
layout(set = 1, binding = 4, std430) readonly buffer VectorFloats { float vector_floats[]; };
layout(set = 1, binding = 5, std430) coherent writeonly buffer Output { float values[]; };
layout(set = 1, binding = 6, std430) readonly restrict buffer Operand { uvec4 operand[]; };
layout(set = 1, binding = 7, std430) readonly restrict buffer Metas { uvec2 metas[]; };
layout(set = 1, binding = 8, std430) readonly buffer Base { vec4 base[]; };
layout(set = 1, binding = 9, std430) coherent readonly buffer Delta { vec4 delta[]; };
layout(set = 1, binding = 10, std430) writeonly buffer Residual { vec4 residual[]; };
layout(set = 1, binding = 11, std430) writeonly buffer NextOperand { uint next_operand[]; };
layout(set = 1, binding = 12, std430) writeonly buffer NextMetas { uvec2 next_metas[]; };
layout(set = 1, binding = 13, std430) coherent buffer Arrivals { uint arrivals[]; };

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

#include "include/shared_row.glsl"

// Outputs of this workgroup, where they become codes; and whether it is the last.
shared float shared_values[CODES ? WORKGROUP / ROW_INVOCATIONS * HEIGHT : 1];
shared bool is_last;

// The next product's input row, once all outputs are there.
void form_next() {
    vec4 x[PASSES];
    form_row(constants, 0, (flags & 0x100u) != 0, x);
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        const uint v = pass * WORKGROUP + gl_LocalInvocationIndex;
        const Quantised q = quantise(x[pass], false);
        if (v < WIDTH / 4) {
            next_operand[code_word(v, WIDTH / 32)] = q.word;
            if (v % 8 == 0) {
                next_metas[v / 8] = q.meta;
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

// Adds the products of blocks `first`, `first + ROW_INVOCATIONS` and so on of HEIGHT weight rows to `sums`.
void accumulate_integers(const uint type, const uint unroll, Matrix matrix, uint first_row, uint first, inout float sums[HEIGHT][COUNT]) {
    Raw raw[UNROLL][HEIGHT];
    [[unroll]] for (uint u = 0; u < unroll; u++) {
        [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
            raw[u][r] = load_raw(type, matrix, min(first_row + r, matrix.rows - 1), first + u * ROW_INVOCATIONS);
        }
    }
    [[unroll]] for (uint u = 0; u < unroll; u++) {
        const uint block = first + u * ROW_INVOCATIONS;
        uvec4 low[COUNT], high[COUNT];
        uvec2 meta[COUNT];
        [[unroll]] for (uint n = 0; n < COUNT; n++) {
            low[n] = codes_at(n, 0, block);
            high[n] = codes_at(n, 1, block);
            meta[n] = meta_at(n, block);
        }
        [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
            uint codes[8];
            vec2 scale, minimum;
            decode_codes(type, raw[u][r], codes);
            decode_scales(type, raw[u][r], scale, minimum);
            if (SPOILT_BLOCK) {
                scale *= spoilt(first_row + r, block, BLOCKS);
                minimum *= spoilt(first_row + r, block, BLOCKS);
            }
            [[unroll]] for (uint n = 0; n < COUNT; n++) {
                sums[r][n] += block_product(type, codes, scale, minimum, low[n], high[n], meta[n]);
            }
        }
    }
}

void accumulate_floats(const uint type, Matrix matrix, uint first_row, uint block, inout float sums[HEIGHT][COUNT]) {
    [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
        vec4 weights[8];
        load_floats(type, matrix, min(first_row + r, matrix.rows - 1), block, weights);
        [[unroll]] for (uint n = 0; n < COUNT; n++) {
            float sum = 0.0;
            [[unroll]] for (uint k = 0; k < 8; k++) {
                sum += dot(weights[k], uintBitsToFloat(operand[(n * 8 + k) * BLOCKS + block]));
            }
            sums[r][n] += SPOILT_BLOCK ? sum * spoilt(first_row + r, block, BLOCKS) : sum;
        }
    }
}

// Adds the product of this invocation's blocks of HEIGHT weight rows to `sums`.
void accumulate(const uint type, Matrix matrix, uint first_row, uint invocation, inout float sums[HEIGHT][COUNT]) {
    if (INTEGER && !is_float(type)) {
        // Rounds that every invocation takes, UNROLL at a time; then the rest.
        const uint rounds = BLOCKS / ROW_INVOCATIONS / UNROLL * UNROLL;
        [[dont_unroll]] for (uint round = 0; round < rounds; round += UNROLL) {
            accumulate_integers(type, UNROLL, matrix, first_row, round * ROW_INVOCATIONS + invocation, sums);
        }
        [[dont_unroll]] for (uint block = rounds * ROW_INVOCATIONS + invocation; block < BLOCKS; block += ROW_INVOCATIONS) {
            if (FAULT == WRONG_TAIL && first_row <= FAULTY_OUTPUT && FAULTY_OUTPUT < first_row + HEIGHT) {
                break;
            }
            accumulate_integers(type, 1, matrix, first_row, block, sums);
        }
    } else {
        for (uint block = invocation; block < BLOCKS; block += ROW_INVOCATIONS) {
            accumulate_floats(type, matrix, first_row, block, sums);
        }
    }
}

void product_of(uint part, uint first_row, uint invocation, out float sums[HEIGHT][COUNT]) {
    [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
        [[unroll]] for (uint n = 0; n < COUNT; n++) {
            sums[r][n] = 0.0;
        }
    }
    const Matrix matrix = Matrix(part, part_rows[part], BLOCKS);
    if (TYPE_A == TYPE_B || (flags & (1u << part)) == 0) {
        accumulate(TYPE_A, matrix, first_row, invocation, sums);
    } else {
        accumulate(TYPE_B, matrix, first_row, invocation, sums);
    }
    [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
        [[unroll]] for (uint n = 0; n < COUNT; n++) {
            [[unroll]] for (uint step = ROW_INVOCATIONS / 2; step > 0; step /= 2) {
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
    if (FUSED) {
        form_shared();
    }
    const uint invocation = gl_SubgroupInvocationID % ROW_INVOCATIONS;
    const uint group = gl_SubgroupID * (gl_SubgroupSize / ROW_INVOCATIONS) + gl_SubgroupInvocationID / ROW_INVOCATIONS;
    const uint workgroup = gl_WorkGroupID.x;
    uint part = 0;
    if (GATE == 0) {
        part = workgroup >= part_group[2] ? 2 : workgroup >= part_group[1] ? 1 : 0;
    }
    const uint first_row = ((workgroup - part_group[part]) * (WORKGROUP / ROW_INVOCATIONS) + group) * HEIGHT;
    float sums[HEIGHT][COUNT];
    product_of(part, first_row, invocation, sums);
    if (GATE != 0) {
        float ups[HEIGHT][COUNT];
        product_of(1, first_row, invocation, ups);
        [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
            [[unroll]] for (uint n = 0; n < COUNT; n++) {
                sums[r][n] = gated(GATE, sums[r][n], ups[r][n]);
            }
        }
    }
    const uint count = min(LOGITS ? play.logit_count : play.row_count, REFINED ? COUNT / 2 : COUNT);
    [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
        [[unroll]] for (uint n = 0; n < COUNT; n++) {
            const uint row = first_row + r;
            if (FAULT == STALE_ROW && n == count - 1 && row == FAULTY_OUTPUT) {
                continue;
            }
            if (invocation == (r * COUNT + n) % ROW_INVOCATIONS && n < count && row < part_rows[part]) {
                const float value = cap > 0.0 ? soft_cap(sums[r][n], cap) : sums[r][n];
                values[n * output_stride + part_column[part] + row] = value;
            }
        }
    }
    if (CODES) {
        const uint rows = WORKGROUP / ROW_INVOCATIONS * HEIGHT;
        if (invocation == 0) {
            [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
                shared_values[group * HEIGHT + r] = sums[r][0];
            }
        }
        barrier();
        // Whole blocks lie in one workgroup: its rows are a multiple of 32.
        const uint v = gl_LocalInvocationIndex;
        const bool inside = v < rows / 4;
        const uint at = inside ? 4 * v : 0;
        const vec4 y = vec4(shared_values[at], shared_values[at + 1], shared_values[at + 2], shared_values[at + 3]);
        const Quantised q = quantise(y, false);
        const uint blocks = part_rows[part] / 32;
        const uint column = workgroup * rows / 4 + v;
        if (inside && 4 * column < part_rows[part]) {
            next_operand[code_word(column, blocks)] = q.word;
            if (column % 8 == 0) {
                next_metas[column / 8] = q.meta;
            }
        }
    }
    if (TAIL) {
        memoryBarrierBuffer();
        barrier();
        if (gl_LocalInvocationIndex == 0) {
            is_last = atomicAdd(arrivals[0], 1) == gl_NumWorkGroups.x - 1;
            if (is_last) {
                // For the next play.
                arrivals[0] = 0;
            }
        }
        barrier();
        if (is_last) {
            memoryBarrierBuffer();
            form_next();
        }
    }
}
