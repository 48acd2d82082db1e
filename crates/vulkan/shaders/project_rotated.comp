// project_rotated: a product of many rows in int8, on the device's matrix units. Both sides were rotated
// (include/rotate.glsl) and have one scale a row, so that nothing but integers is summed.
//
// A step of the loop brings a chunk of 128 columns into shared memory; the next one is on its way from
// memory meanwhile, in registers.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#include "include/common.glsl"
#include "include/weights.glsl"
#include "include/epilogue.glsl"

// Columns of a matrix.
layout(constant_id = 1) const uint DEPTH = 32;
// Rows that the operand has room for; it lies [chunk][row][128 columns].
layout(constant_id = 11) const uint OPERAND_ROWS = 128;

// Vectors of 16 bytes in a row of a chunk. Matrices may be as narrow as 8 bytes, and are loaded from
// vectors of that size. A row of shared memory has 16 bytes more: then the same columns of eight rows,
// which a matrix is loaded from at once, lie in different banks.
#define CHUNK_VECTORS 8
#define TILE_VECTOR uvec2
#define TILE_WORDS 2
#define STRIDE (2 * CHUNK_VECTORS + 2)
#define TILE_VECTORS ((ROWS + TOKENS) * STRIDE)
// A subgroup has rows of one part of a gate only.
#define ALTERNATION ROWS_EACH
// Scales follow all codes of the weights.
#define WEIGHT_SCALE(part, row) uintBitsToFloat(weight_words[part].data[CHUNKS * 32 * part_rows[part] + (row)])
#define CHUNKS ((BLOCKS + 3) / 4)
#include "include/matrix.glsl"

// Vectors that an invocation fetches in a step.
const uint WEIGHT_VECTORS = ROWS * CHUNK_VECTORS;
const uint OPERAND_VECTORS = TOKENS * CHUNK_VECTORS;
const uint WEIGHT_FETCHES = (WEIGHT_VECTORS + WORKGROUP - 1) / WORKGROUP;
const uint OPERAND_FETCHES = (OPERAND_VECTORS + WORKGROUP - 1) / WORKGROUP;

uvec4 fetch_weights(uint part, uint first_row, uint chunk, uint at) {
    const uint tile_row = at / CHUNK_VECTORS;
    const uint row = weight_row(part, first_row, tile_row);
    // Both parts of a gate have as many rows. Bindings that differ between invocations must be named apart.
    const uint vector = (chunk * part_rows[part] + row) * CHUNK_VECTORS + at % CHUNK_VECTORS;
    if (is_up(tile_row)) {
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

void main() {
    // Tiles of the same weights are neighbours: while one waits for memory, the others' weights
    // come out of the cache.
    const uint first_token = gl_WorkGroupID.x * TOKENS;
    if (first_token >= token_count()) {
        return;
    }
    const uint workgroup = gl_WorkGroupID.y;
    const uint part = part_of(workgroup);
    const uint first_row = first_row_of(workgroup, part);
    const uint piece_row = gl_SubgroupID % ACROSS * ROWS_EACH;
    const uint piece_token = gl_SubgroupID / ACROSS * TOKENS_EACH;

    coopmat<int, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator> sums[COUNT * HEIGHT];
    [[unroll]] for (uint i = 0; i < COUNT * HEIGHT; i++) {
        sums[i] = coopmat<int, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator>(0);
    }

    uvec4 weights[WEIGHT_FETCHES];
    uvec4 inputs[OPERAND_FETCHES];
    fetch(part, first_row, first_token, 0, weights, inputs);
    for (uint chunk = 0; chunk < CHUNKS; chunk++) {
        barrier();
        store(weights, inputs);
        barrier();
        // Without a branch, so that the loads may go between the products. The last step's are in vain.
        fetch(part, first_row, first_token, min(chunk + 1, CHUNKS - 1), weights, inputs);
        [[unroll]] for (uint k = 0; k < 128 / DEPTH; k++) {
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

    [[unroll]] for (uint n = 0; n < COUNT; n++) {
        barrier();
        [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
            const uint at = gl_SubgroupID * SIDE * SUM_STRIDE + r * SIDE / TILE_WORDS;
            const coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator> sum =
                coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator>(sums[n * HEIGHT + r]);
            coopMatStore(sum, tile, at, SUM_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        put_outputs(n, part, first_row, first_token);
    }
}
