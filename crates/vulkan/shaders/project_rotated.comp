// project_rotated: a product of many rows in int8, on the device's matrix units. Both sides were rotated
// (include/rotate.glsl) and have one scale a row, so that nothing but integers is summed.
//
// A workgroup computes a tile of ROWS weight rows by TOKENS rows of the operand, which its subgroups
// divide among them. A step of the loop brings a chunk of 128 columns of them into shared memory; the
// next one is on its way from memory meanwhile, in registers.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#include "include/common.glsl"
#include "include/weights.glsl"
#include "include/epilogue.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 128;
// 0: none; 1: silu(part 0) * part 1; 2: gelu(part 0) * part 1.
layout(constant_id = 1) const uint GATE = 0;
// Chunks of 128 columns.
layout(constant_id = 2) const uint CHUNKS = 1;
// Rows of a matrix of sums, and columns of those that are multiplied.
layout(constant_id = 3) const uint SIDE = 16;
layout(constant_id = 4) const uint DEPTH = 32;
// Piece of a subgroup.
layout(constant_id = 5) const uint ROWS_EACH = 48;
layout(constant_id = 6) const uint TOKENS_EACH = 64;
// Subgroups along the tile's rows and its tokens.
layout(constant_id = 7) const uint ACROSS = 2;
layout(constant_id = 8) const uint ALONG = 2;
// Rows that the operand has room for; it lies [chunk][row][128 columns].
layout(constant_id = 9) const uint OPERAND_ROWS = 128;

layout(set = 1, binding = 3, std430) readonly buffer VectorFloats { float vector_floats[]; };
layout(set = 1, binding = 4, std430) writeonly buffer Output { float values[]; };
layout(set = 1, binding = 5, std430) readonly restrict buffer Operand { uvec4 operand[]; };
// The scale of a row of the operand is metas[row].x.
layout(set = 1, binding = 6, std430) readonly restrict buffer Metas { uvec2 metas[]; };

const uint NO_BIAS = 0xffffffffu;

layout(push_constant) uniform Constants {
    uint part_rows[3];
    uint part_group[3];
    uint part_column[3];
    uint part_bias[3];
    uint flags;
    uint output_stride;
    float cap;
};

const uint ROWS = ROWS_EACH * ACROSS;
const uint TOKENS = TOKENS_EACH * ALONG;
const uint PIECES = ACROSS * ALONG;
// Matrices of a piece.
const uint HEIGHT = ROWS_EACH / SIDE;
const uint COUNT = TOKENS_EACH / SIDE;
// Outputs of a tile along its rows. Of a gate, its first half of rows is of one part, its second of the
// other.
const uint OUTPUTS = GATE != 0 ? ROWS / 2 : ROWS;

// Vectors of 16 bytes in a row of a chunk.
const uint CHUNK_VECTORS = 8;
// Shared memory is of vectors of 8 bytes, because matrices may be as narrow. Rows are 16 bytes longer
// than what they hold: then the same columns of eight rows, which a matrix is loaded from at once, lie
// in different banks. Sums pass through it, too: [subgroup][token of a matrix][row].
const uint STRIDE = 2 * CHUNK_VECTORS + 2;
const uint TILE_VECTORS = (ROWS + TOKENS) * STRIDE;
const uint SUM_STRIDE = ROWS_EACH / 2 + 2;
const uint SUM_VECTORS = PIECES * SIDE * SUM_STRIDE;
shared uvec2 tile[TILE_VECTORS > SUM_VECTORS ? TILE_VECTORS : SUM_VECTORS];

// Vectors that an invocation fetches in a step.
const uint WEIGHT_VECTORS = ROWS * CHUNK_VECTORS;
const uint OPERAND_VECTORS = TOKENS * CHUNK_VECTORS;
const uint WEIGHT_FETCHES = (WEIGHT_VECTORS + WORKGROUP - 1) / WORKGROUP;
const uint OPERAND_FETCHES = (OPERAND_VECTORS + WORKGROUP - 1) / WORKGROUP;

// Part of a workgroup.
uint part_of(uint workgroup) {
    return GATE != 0 ? 0 : workgroup >= part_group[2] ? 2 : workgroup >= part_group[1] ? 1 : 0;
}

uvec4 fetch_weights(uint part, uint first_row, uint chunk, uint at) {
    const uint tile_row = at / CHUNK_VECTORS;
    const bool second = GATE != 0 && tile_row >= OUTPUTS;
    // Behind the end the last row is read again. Both parts of a gate have as many.
    const uint row = min(first_row + (second ? tile_row - OUTPUTS : tile_row), part_rows[part] - 1);
    const uint vector = (chunk * part_rows[part] + row) * CHUNK_VECTORS + at % CHUNK_VECTORS;
    // Bindings that differ between invocations must be named apart.
    if (second) {
        return weight_vectors[1].data[vector];
    }
    return weight_vectors[GATE != 0 ? 0 : part].data[vector];
}

void fetch(uint part, uint first_row, uint first_token, uint chunk, out uvec4 weights[WEIGHT_FETCHES],
           out uvec4 inputs[OPERAND_FETCHES]) {
    [[unroll]] for (uint i = 0; i < WEIGHT_FETCHES; i++) {
        const uint at = i * WORKGROUP + gl_LocalInvocationIndex;
        if (WEIGHT_VECTORS % WORKGROUP == 0 || at < WEIGHT_VECTORS) {
            weights[i] = fetch_weights(part, first_row, chunk, at);
        }
    }
    [[unroll]] for (uint i = 0; i < OPERAND_FETCHES; i++) {
        const uint at = i * WORKGROUP + gl_LocalInvocationIndex;
        if (OPERAND_VECTORS % WORKGROUP == 0 || at < OPERAND_VECTORS) {
            inputs[i] = operand[(chunk * OPERAND_ROWS + first_token) * CHUNK_VECTORS + at];
        }
    }
}

void put(uint first_tile_row, uint at, uvec4 vector) {
    const uint place = (first_tile_row + at / CHUNK_VECTORS) * STRIDE + at % CHUNK_VECTORS * 2;
    tile[place] = vector.xy;
    tile[place + 1] = vector.zw;
}

void store(uvec4 weights[WEIGHT_FETCHES], uvec4 inputs[OPERAND_FETCHES]) {
    [[unroll]] for (uint i = 0; i < WEIGHT_FETCHES; i++) {
        const uint at = i * WORKGROUP + gl_LocalInvocationIndex;
        if (WEIGHT_VECTORS % WORKGROUP == 0 || at < WEIGHT_VECTORS) {
            put(0, at, weights[i]);
        }
    }
    [[unroll]] for (uint i = 0; i < OPERAND_FETCHES; i++) {
        const uint at = i * WORKGROUP + gl_LocalInvocationIndex;
        if (OPERAND_VECTORS % WORKGROUP == 0 || at < OPERAND_VECTORS) {
            put(ROWS, at, inputs[i]);
        }
    }
}

// Outputs that an invocation writes for a token: every LANES-th along the rows, always the same.
const uint LANES = WORKGROUP / PIECES;
const uint OWN_OUTPUTS = (OUTPUTS + LANES - 1) / LANES;

// What becomes of the sums of one part in an own output.
struct Finish {
    float scale;
    float bias;
};

Finish finish_of(uint part, uint row) {
    // Scales follow all codes of the weights.
    const uint at = CHUNKS * 32 * part_rows[part] + min(row, part_rows[part] - 1);
    const float bias = part_bias[part] != NO_BIAS ? vector_floats[part_bias[part] + min(row, part_rows[part] - 1)] : 0.0;
    return Finish(uintBitsToFloat(weight_words[part].data[at]), bias);
}

// A sum out of shared memory, `token` counting those of all pieces along the tokens.
float sum_of(uint token, uint tile_row) {
    const uint piece = token / SIDE * ACROSS + tile_row / ROWS_EACH;
    const uint column = tile_row % ROWS_EACH;
    return uintBitsToFloat(tile[(piece * SIDE + token % SIDE) * SUM_STRIDE + column / 2][column % 2]);
}

// Writes the outputs whose sums are in shared memory: matrix `n` of every piece along its tokens.
void put_outputs(uint n, uint part, uint first_row, uint first_token, Finish finish[OWN_OUTPUTS],
                 Finish second[OWN_OUTPUTS]) {
    for (uint i = gl_SubgroupID; i < ALONG * SIDE; i += PIECES) {
        const uint token = first_token + i / SIDE * TOKENS_EACH + n * SIDE + i % SIDE;
        if (token >= play.row_count) {
            continue;
        }
        const float scale = uintBitsToFloat(metas[token].x);
        const uint start = token * output_stride + part_column[part] + first_row;
        [[unroll]] for (uint k = 0; k < OWN_OUTPUTS; k++) {
            const uint at = k * LANES + gl_SubgroupInvocationID;
            if ((OUTPUTS % LANES == 0 || at < OUTPUTS) && first_row + at < part_rows[part]) {
                float value = scale * finish[k].scale * sum_of(i, at) + finish[k].bias;
                if (GATE != 0) {
                    value = gated(GATE, value, scale * second[k].scale * sum_of(i, at + OUTPUTS) + second[k].bias);
                }
                values[start + at] = cap > 0.0 ? soft_cap(value, cap) : value;
            }
        }
    }
}

#define SUMS coopmat<int, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator>


void main() {
    // Tiles of the same weights are neighbours: while one waits for memory, the others' weights
    // come out of the cache.
    const uint first_token = gl_WorkGroupID.x * TOKENS;
    if (first_token >= play.row_count) {
        return;
    }
    const uint workgroup = gl_WorkGroupID.y;
    const uint part = part_of(workgroup);
    const uint first_row = (workgroup - part_group[part]) * OUTPUTS;
    const uint piece_row = gl_SubgroupID % ACROSS * ROWS_EACH;
    const uint piece_token = gl_SubgroupID / ACROSS * TOKENS_EACH;

    SUMS sums[COUNT * HEIGHT];
    [[unroll]] for (uint i = 0; i < COUNT * HEIGHT; i++) {
        sums[i] = SUMS(0);
    }
    // Narrow matrices would be too much code to unroll: then the end is one that no compiler knows.
    const uint depth_end = DEPTH < 16 ? min(128 / DEPTH + play.row_count, 128 / DEPTH) : 128 / DEPTH;

    uvec4 weights[WEIGHT_FETCHES];
    uvec4 inputs[OPERAND_FETCHES];
    fetch(part, first_row, first_token, 0, weights, inputs);
    for (uint chunk = 0; chunk < CHUNKS; chunk++) {
        barrier();
        store(weights, inputs);
        barrier();
        // Without a branch, so that the loads may go between the products. The last step's are in vain.
        fetch(part, first_row, first_token, min(chunk + 1, CHUNKS - 1), weights, inputs);
        [[unroll]] for (uint k = 0; k < depth_end; k++) {
            coopmat<int8_t, gl_ScopeSubgroup, SIDE, DEPTH, gl_MatrixUseA> a[COUNT];
            [[unroll]] for (uint n = 0; n < COUNT; n++) {
                const uint at = (ROWS + piece_token + n * SIDE) * STRIDE + k * DEPTH / 8;
                coopMatLoad(a[n], tile, at, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            }
            [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
                coopmat<int8_t, gl_ScopeSubgroup, DEPTH, SIDE, gl_MatrixUseB> b;
                const uint at = (piece_row + r * SIDE) * STRIDE + k * DEPTH / 8;
                coopMatLoad(b, tile, at, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (uint n = 0; n < COUNT; n++) {
                    sums[n * HEIGHT + r] = coopMatMulAdd(a[n], b, sums[n * HEIGHT + r]);
                }
            }
        }
    }

    Finish finish[OWN_OUTPUTS];
    Finish second[OWN_OUTPUTS];
    [[unroll]] for (uint k = 0; k < OWN_OUTPUTS; k++) {
        const uint row = first_row + k * LANES + gl_SubgroupInvocationID;
        finish[k] = finish_of(part, row);
        second[k] = GATE != 0 ? finish_of(1, row) : finish[k];
    }
    [[unroll]] for (uint n = 0; n < COUNT; n++) {
        barrier();
        [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
            const uint at = gl_SubgroupID * SIDE * SUM_STRIDE + r * SIDE / 2;
            const coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator> sum =
                coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator>(sums[n * HEIGHT + r]);
            coopMatStore(sum, tile, at, SUM_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        put_outputs(n, part, first_row, first_token, finish, second);
    }
}
