// project_matrix: a product of weights with many rows, on the device's matrix units.
//
// A step of the loop brings STEP blocks of 32 columns into shared memory, weights dequantised to
// half floats, or floats rounded to them; what the next step needs is on its way from memory meanwhile, in registers.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#include "include/common.glsl"
#include "include/weights.glsl"
#include "include/halves.glsl"
#include "include/epilogue.glsl"

layout(constant_id = 11) const uint STEP = 2;

// Vectors of eight half floats. An odd stride spreads the same columns of eight rows, which a
// matrix is loaded from at once, over all banks.
#define STRIDE (4 * STEP + 1)
#define TILE_VECTORS ((ROWS + TOKENS) * STRIDE)
#include "include/matrix.glsl"

// Columns of a step that a subgroup multiplies.
// Matrices of a piece along its tokens.
const uint COUNT = TOKENS_EACH / SIDE;
const uint DEPTH = STEP * 32 / SPLIT;

// What an invocation fetches in a step.
const uint STEP_BLOCKS = ROWS * STEP;
const uint STEP_VECTORS = TOKENS * STEP * 4;
const uint BLOCK_FETCHES = (STEP_BLOCKS + WORKGROUP - 1) / WORKGROUP;
const uint VECTOR_FETCHES = (STEP_VECTORS + WORKGROUP - 1) / WORKGROUP;

// Weights are floats: a block is not codes and scales, but vectors of four or eight weights.
const bool FLOATS = TYPE_A <= BF16;
const uint BLOCK_VECTORS = TYPE_A == F32 || TYPE_B == F32 ? 8 : 4;
const uint RAW_FETCHES = FLOATS ? 1 : BLOCK_FETCHES;
const uint FLOAT_FETCHES = FLOATS ? BLOCK_FETCHES * BLOCK_VECTORS : 1;

// What an invocation has under way.
Raw raws[RAW_FETCHES];
uvec4 floats[FLOAT_FETCHES];
uvec4 vectors[VECTOR_FETCHES];

Raw fetch_block(uint part, uint first_row, uint tile_row, uint block) {
    if (BLOCKS % STEP != 0 && block >= BLOCKS) {
        return Raw(uvec4(0), uvec4(0), 0, 0);
    }
    // Bindings that differ between invocations must be named apart.
    if (is_up(tile_row)) {
        return load_block(part, true, first_row, tile_row, block);
    }
    return load_block(part, false, first_row, tile_row, block);
}

// Whether weights have TYPE_B: of a gate, those of the second part.
bool has_second_type(uint part, const bool second) {
    return TYPE_A != TYPE_B && (GATE != 0 ? second : (flags & (1u << part)) != 0);
}

// Vector `v` of a block of a row of the tile, of weights that are floats.
uvec4 load_float_vector(uint part, const bool second, uint first_row, uint tile_row, uint block, const uint v) {
    const uint row = min(first_row + (GATE != 0 ? gate_row(tile_row) : tile_row),
                         part_rows[part] - 1);
    if (has_second_type(part, second)) {
        return float_vector(TYPE_B, Matrix(GATE != 0 ? 1 : part, part_rows[part], BLOCKS), row, block, v);
    }
    if (GATE != 0 && second) {
        return float_vector(TYPE_A, Matrix(1, part_rows[part], BLOCKS), row, block, v);
    }
    return float_vector(TYPE_A, Matrix(part, part_rows[part], BLOCKS), row, block, v);
}

// Asks for a block of floats, as block `i` of those that this invocation has under way.
void fetch_floats(const uint i, uint part, uint first_row, uint tile_row, uint block) {
    const uint inside = BLOCKS % STEP == 0 ? block : min(block, BLOCKS - 1);
    [[unroll]] for (uint v = 0; v < BLOCK_VECTORS; v++) {
        uvec4 found;
        if (is_up(tile_row)) {
            found = load_float_vector(part, true, first_row, tile_row, inside, v);
        } else {
            found = load_float_vector(part, false, first_row, tile_row, inside, v);
        }
        floats[i * BLOCK_VECTORS + v] = inside == block ? found : uvec4(0);
    }
}

// Weights 8 k to 8 k + 7 of block `i` as half floats.
uvec4 float_halves(const uint type, const uint i, const uint k) {
    const uint at = i * BLOCK_VECTORS;
    return halves_of_floats(type, floats[type == F32 ? at + 2 * k : at + k], floats[type == F32 ? at + 2 * k + 1 : at]);
}

void fetch(uint part, uint first_row, uint first_token, uint first_block) {
    [[unroll]] for (uint i = 0; i < BLOCK_FETCHES; i++) {
        const uint at = i * WORKGROUP + gl_LocalInvocationIndex;
        if (STEP_BLOCKS % WORKGROUP == 0 || at < STEP_BLOCKS) {
            if (FLOATS) {
                fetch_floats(i, part, first_row, at / STEP, first_block + at % STEP);
            } else {
                raws[i] = fetch_block(part, first_row, at / STEP, first_block + at % STEP);
            }
        }
    }
    [[unroll]] for (uint i = 0; i < VECTOR_FETCHES; i++) {
        const uint at = i * WORKGROUP + gl_LocalInvocationIndex;
        if (STEP_VECTORS % WORKGROUP == 0 || at < STEP_VECTORS) {
            const uint token = first_token + at / (4 * STEP);
            const uint vector = first_block * 4 + at % (4 * STEP);
            // Weights past the end of a row are zero, and so must be what meets them: it could
            // be no number.
            const bool inside = BLOCKS % STEP == 0 || vector < 4 * BLOCKS;
            vectors[i] = inside ? operand[token * (4 * BLOCKS) + vector] : uvec4(0);
        }
    }
}

void store(uint part) {
    [[unroll]] for (uint i = 0; i < BLOCK_FETCHES; i++) {
        const uint at = i * WORKGROUP + gl_LocalInvocationIndex;
        if (STEP_BLOCKS % WORKGROUP == 0 || at < STEP_BLOCKS) {
            const uint tile_row = at / STEP;
            [[unroll]] for (uint k = 0; k < 4; k++) {
                uvec4 halves;
                if (!FLOATS) {
                    halves = decode_block(part, is_up(tile_row), raws[i], k);
                } else if (has_second_type(part, is_up(tile_row))) {
                    halves = float_halves(TYPE_B, i, k);
                } else {
                    halves = float_halves(TYPE_A, i, k);
                }
                tile[tile_row * STRIDE + at % STEP * 4 + k] = halves;
            }
        }
    }
    [[unroll]] for (uint i = 0; i < VECTOR_FETCHES; i++) {
        const uint at = i * WORKGROUP + gl_LocalInvocationIndex;
        if (STEP_VECTORS % WORKGROUP == 0 || at < STEP_VECTORS) {
            tile[(ROWS + at / (4 * STEP)) * STRIDE + at % (4 * STEP)] = vectors[i];
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

    const uint piece = gl_SubgroupID % PIECES;
    const uint slice = gl_SubgroupID / PIECES;
    const uint piece_row = piece % ACROSS * ROWS_EACH;
    const uint piece_token = piece / ACROSS * TOKENS_EACH;

    coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator> sums[COUNT * HEIGHT];
    [[unroll]] for (uint i = 0; i < COUNT * HEIGHT; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator>(0.0);
    }

    fetch(part, first_row, first_token, 0);
    for (uint first_block = 0; first_block < BLOCKS; first_block += STEP) {
        barrier();
        store(part);
        barrier();
        // Without a branch, so that the loads may go between the products. The last step's are in vain.
        const uint next = first_block + STEP < BLOCKS ? first_block + STEP : first_block;
        fetch(part, first_row, first_token, next);
        [[unroll]] for (uint k = 0; k < DEPTH / SIDE; k++) {
            const uint column = slice * DEPTH + k * SIDE;
            coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseA> inputs[COUNT];
            [[unroll]] for (uint n = 0; n < COUNT; n++) {
                const uint token = piece_token + n * SIDE;
                const uint at = (ROWS + token) * STRIDE + column / 8;
                coopMatLoad(inputs[n], tile, at, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            }
            [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
                coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseB> weights;
                const uint at = (piece_row + r * SIDE) * STRIDE + column / 8;
                coopMatLoad(weights, tile, at, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (uint n = 0; n < COUNT; n++) {
                    sums[n * HEIGHT + r] = coopMatMulAdd(inputs[n], weights, sums[n * HEIGHT + r]);
                }
            }
        }
    }

    [[unroll]] for (uint n = 0; n < COUNT; n++) {
        barrier();
        [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
            const uint at = gl_SubgroupID * SIDE * SUM_STRIDE + r * SIDE / 4;
            coopMatStore(sums[n * HEIGHT + r], tile, at, SUM_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        put_outputs(n, part, first_row, first_token);
    }
}
