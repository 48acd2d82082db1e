// project_matrix: a product of quantised weights with many rows, on the device's matrix units.
//
// A workgroup computes a tile of ROWS weight rows by TOKENS rows of the operand. Its subgroups
// divide the tile among them, ROWS_EACH by TOKENS_EACH, and where tokens are few also the columns:
// SPLIT subgroups then sum different columns of the same outputs. A step of the loop brings STEP
// blocks of 32 columns into shared memory, weights dequantised to half floats; what the next step
// needs is on its way from memory meanwhile, in registers.
//
// Matrices are [token][row]: sums lie in registers and in shared memory as the output does.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#include "include/common.glsl"
#include "include/weights.glsl"
#include "include/halves.glsl"
#include "include/epilogue.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 256;
// Parts have one of two types; of a gate's parts the second has TYPE_B.
layout(constant_id = 1) const uint TYPE_A = 3;
layout(constant_id = 2) const uint TYPE_B = 3;
// 0: none; 1: silu(part 0) * part 1; 2: gelu(part 0) * part 1.
layout(constant_id = 3) const uint GATE = 0;
layout(constant_id = 4) const uint BLOCKS = 1;
// Rows, columns and depth of a matrix.
layout(constant_id = 5) const uint SIDE = 16;
// Piece of a subgroup.
layout(constant_id = 6) const uint ROWS_EACH = 64;
layout(constant_id = 7) const uint TOKENS_EACH = 32;
// Subgroups along the tile's rows, its tokens, and the columns.
layout(constant_id = 8) const uint ACROSS = 2;
layout(constant_id = 9) const uint ALONG = 4;
layout(constant_id = 10) const uint SPLIT = 1;
layout(constant_id = 11) const uint STEP = 2;
// With two, a step is filled while others still multiply the one before.
layout(constant_id = 12) const uint BUFFERS = 1;
// The operand comes straight from memory, not through the tile.
layout(constant_id = 13) const bool DIRECT = false;

layout(set = 1, binding = 3, std430) readonly buffer VectorFloats { float vector_floats[]; };
layout(set = 1, binding = 4, std430) writeonly buffer Output { float values[]; };
// Half floats [row][column], each row scaled by a power of two; metas[row].x undoes it.
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

const uint ROWS = ROWS_EACH * ACROSS;
const uint TOKENS = TOKENS_EACH * ALONG;
const uint PIECES = ACROSS * ALONG;
// Matrices of a piece, and their columns among those of a step.
const uint HEIGHT = ROWS_EACH / SIDE;
const uint COUNT = TOKENS_EACH / SIDE;
const uint DEPTH = STEP * 32 / SPLIT;
// Outputs of a piece along its rows. Of a gate, matrices of both parts alternate, so that a
// subgroup holds both factors of an output.
const uint OUTPUTS_EACH = GATE != 0 ? ROWS_EACH / 2 : ROWS_EACH;

// Vectors of eight half floats. An odd stride spreads the same columns of eight rows, which a
// matrix is loaded from at once, over all banks.
const uint STRIDE = 4 * STEP + 1;
const uint TILE_ROWS = DIRECT ? ROWS : ROWS + TOKENS;
// Sums pass through the same memory when the tile is done: [subgroup][token of a matrix][row].
const uint SUM_STRIDE = ROWS_EACH / 4 + 1;
const uint SUM_VECTORS = SPLIT * PIECES * SIDE * SUM_STRIDE;
const uint TILE_VECTORS = BUFFERS * TILE_ROWS * STRIDE;
shared uvec4 tile[TILE_VECTORS > SUM_VECTORS ? TILE_VECTORS : SUM_VECTORS];

// What a lane fetches in a step.
const uint STEP_BLOCKS = ROWS * STEP;
const uint STEP_VECTORS = DIRECT ? 0 : TOKENS * STEP * 4;
const uint BLOCK_FETCHES = (STEP_BLOCKS + WORKGROUP - 1) / WORKGROUP;
const uint VECTOR_FETCHES = DIRECT ? 1 : (STEP_VECTORS + WORKGROUP - 1) / WORKGROUP;

// Whether a row of the tile belongs to the second part of a gate.
bool gated(uint tile_row) { return GATE != 0 && tile_row / SIDE % 2 == 1; }

Raw fetch_block(uint part, uint first_row, uint tile_row, uint block) {
    if (BLOCKS % STEP != 0 && block >= BLOCKS) {
        return Raw(uvec4(0), uvec4(0), 0, 0);
    }
    if (GATE != 0) {
        const uint row = min(first_row + tile_row / (2 * SIDE) * SIDE + tile_row % SIDE, part_rows[0] - 1);
        // Bindings that differ between lanes must be named apart.
        if (gated(tile_row)) {
            return load_raw(TYPE_B, Matrix(1, part_rows[1], BLOCKS), row, block);
        }
        return load_raw(TYPE_A, Matrix(0, part_rows[0], BLOCKS), row, block);
    }
    const Matrix matrix = Matrix(part, part_rows[part], BLOCKS);
    const uint row = min(first_row + tile_row, matrix.rows - 1);
    if (TYPE_A != TYPE_B && (flags & (1u << part)) != 0) {
        return load_raw(TYPE_B, matrix, row, block);
    }
    return load_raw(TYPE_A, matrix, row, block);
}

void fetch(uint part, uint first_row, uint first_token, uint first_block, out Raw raws[BLOCK_FETCHES],
           out uvec4 vectors[VECTOR_FETCHES]) {
    [[unroll]] for (uint i = 0; i < BLOCK_FETCHES; i++) {
        const uint at = i * WORKGROUP + gl_LocalInvocationIndex;
        if (STEP_BLOCKS % WORKGROUP == 0 || at < STEP_BLOCKS) {
            raws[i] = fetch_block(part, first_row, at / STEP, first_block + at % STEP);
        }
    }
    [[unroll]] for (uint i = 0; i < VECTOR_FETCHES; i++) {
        const uint at = i * WORKGROUP + gl_LocalInvocationIndex;
        if (!DIRECT && (STEP_VECTORS % WORKGROUP == 0 || at < STEP_VECTORS)) {
            const uint token = first_token + at / (4 * STEP);
            const uint vector = first_block * 4 + at % (4 * STEP);
            // Weights past the end of a row are zero, and so must be what meets them: it could
            // be no number.
            const bool inside = BLOCKS % STEP == 0 || vector < 4 * BLOCKS;
            vectors[i] = inside ? operand[token * (4 * BLOCKS) + vector] : uvec4(0);
        }
    }
}

void store(uint part, uint base, Raw raws[BLOCK_FETCHES], uvec4 vectors[VECTOR_FETCHES]) {
    [[unroll]] for (uint i = 0; i < BLOCK_FETCHES; i++) {
        const uint at = i * WORKGROUP + gl_LocalInvocationIndex;
        if (STEP_BLOCKS % WORKGROUP == 0 || at < STEP_BLOCKS) {
            const uint tile_row = at / STEP;
            const bool second = GATE != 0 ? gated(tile_row) : (flags & (1u << part)) != 0;
            uvec4 halves[4];
            if (TYPE_A != TYPE_B && second) {
                decode_halves(TYPE_B, raws[i], halves);
            } else {
                decode_halves(TYPE_A, raws[i], halves);
            }
            [[unroll]] for (uint k = 0; k < 4; k++) {
                tile[base + tile_row * STRIDE + at % STEP * 4 + k] = halves[k];
            }
        }
    }
    [[unroll]] for (uint i = 0; i < VECTOR_FETCHES; i++) {
        const uint at = i * WORKGROUP + gl_LocalInvocationIndex;
        if (!DIRECT && (STEP_VECTORS % WORKGROUP == 0 || at < STEP_VECTORS)) {
            tile[base + (ROWS + at / (4 * STEP)) * STRIDE + at % (4 * STEP)] = vectors[i];
        }
    }
}

// A sum out of shared memory: of all subgroups that have a share in it.
float sum_of(uint piece, uint token, uint column) {
    float sum = 0.0;
    [[unroll]] for (uint slice = 0; slice < SPLIT; slice++) {
        const uint at = ((slice * PIECES + piece) * SIDE + token) * SUM_STRIDE + column / 4;
        sum += uintBitsToFloat(tile[at][column % 4]);
    }
    return sum;
}

float biased(uint part, uint row, float sum) {
    return part_bias[part] != NO_BIAS ? sum + vector_floats[part_bias[part] + row] : sum;
}

void main() {
    // Tiles of the same weights are neighbours: while one waits for memory, the others' weights
    // come out of the cache.
    const uint first_token = gl_WorkGroupID.x * TOKENS;
    if (first_token >= play.row_count) {
        return;
    }
    const uint workgroup = gl_WorkGroupID.y;
    uint part = 0;
    if (GATE == 0) {
        part = workgroup >= part_group[2] ? 2 : workgroup >= part_group[1] ? 1 : 0;
    }
    const uint first_row = (workgroup - part_group[part]) * (OUTPUTS_EACH * ACROSS);

    const uint piece = gl_SubgroupID % PIECES;
    const uint slice = gl_SubgroupID / PIECES;
    const uint piece_row = piece % ACROSS * ROWS_EACH;
    const uint piece_token = piece / ACROSS * TOKENS_EACH;

    coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator> sums[COUNT * HEIGHT];
    [[unroll]] for (uint i = 0; i < COUNT * HEIGHT; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator>(0.0);
    }

    Raw raws[BLOCK_FETCHES];
    uvec4 vectors[VECTOR_FETCHES];
    fetch(part, first_row, first_token, 0, raws, vectors);
    uint base = 0;
    for (uint first_block = 0; first_block < BLOCKS; first_block += STEP) {
        if (BUFFERS == 1) {
            barrier();
        }
        store(part, base, raws, vectors);
        barrier();
        if (first_block + STEP < BLOCKS) {
            fetch(part, first_row, first_token, first_block + STEP, raws, vectors);
        }
        [[unroll]] for (uint k = 0; k < DEPTH / SIDE; k++) {
            const uint column = slice * DEPTH + k * SIDE;
            // The operand's rows end here; beyond, the weights in the tile are zero.
            if (DIRECT && BLOCKS % STEP != 0 && first_block + column / 32 >= BLOCKS) {
                break;
            }
            coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseA> inputs[COUNT];
            [[unroll]] for (uint n = 0; n < COUNT; n++) {
                const uint token = piece_token + n * SIDE;
                if (DIRECT) {
                    const uint at = ((first_token + token) * BLOCKS + first_block) * 4 + column / 8;
                    coopMatLoad(inputs[n], operand, at, 4 * BLOCKS, gl_CooperativeMatrixLayoutRowMajor);
                } else {
                    const uint at = base + (ROWS + token) * STRIDE + column / 8;
                    coopMatLoad(inputs[n], tile, at, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                }
            }
            [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
                coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseB> weights;
                const uint at = base + (piece_row + r * SIDE) * STRIDE + column / 8;
                coopMatLoad(weights, tile, at, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (uint n = 0; n < COUNT; n++) {
                    sums[n * HEIGHT + r] = coopMatMulAdd(inputs[n], weights, sums[n * HEIGHT + r]);
                }
            }
        }
        if (BUFFERS == 2) {
            base = TILE_ROWS * STRIDE - base;
        }
    }

    [[unroll]] for (uint n = 0; n < COUNT; n++) {
        barrier();
        [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
            const uint at = gl_SubgroupID * SIDE * SUM_STRIDE + r * SIDE / 4;
            coopMatStore(sums[n * HEIGHT + r], tile, at, SUM_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        for (uint i = gl_LocalInvocationIndex; i < PIECES * SIDE * OUTPUTS_EACH; i += WORKGROUP) {
            const uint column = i % OUTPUTS_EACH;
            const uint matrix_token = i / OUTPUTS_EACH % SIDE;
            const uint source = i / (OUTPUTS_EACH * SIDE);
            const uint token = first_token + source / ACROSS * TOKENS_EACH + n * SIDE + matrix_token;
            const uint row = first_row + source % ACROSS * OUTPUTS_EACH + column;
            if (token < play.row_count && row < part_rows[part]) {
                const float inverse = uintBitsToFloat(metas[token].x);
                float value;
                if (GATE != 0) {
                    const uint gate_column = column / SIDE * (2 * SIDE) + column % SIDE;
                    const float gate = biased(0, row, inverse * sum_of(source, matrix_token, gate_column));
                    const float up = biased(1, row, inverse * sum_of(source, matrix_token, gate_column + SIDE));
                    value = (GATE == 1 ? silu(gate) : gelu_tanh(gate)) * up;
                } else {
                    value = biased(part, row, inverse * sum_of(source, matrix_token, column));
                }
                values[token * output_stride + part_column[part] + row] = cap > 0.0 ? soft_cap(value, cap) : value;
            }
        }
    }
}
