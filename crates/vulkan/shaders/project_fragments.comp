// project_fragments: a product of quantised weights with some rows (up to 64), on matrix units
// whose matrices lie in registers in a known order (`fragments` in src/measure.rs probes it):
//
//   invocation i of 32 holds of a matrix of 16 by 16 the rows i / 4 and i / 4 + 8, and of each the
//   four columns 2 (i % 4), 2 (i % 4) + 1, and those eight further on.
//
// So an invocation can put its own weights into a matrix: they come from memory, are dequantised
// and multiplied in registers, and no invocation waits for another. The order of the product's
// columns in a matrix is free, as long as weights and operand agree: an invocation takes whole
// blocks, and the matrices of a stage of four blocks take four weights of each.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#include "include/common.glsl"
#include "include/weights.glsl"
#include "include/halves.glsl"
#include "include/epilogue.glsl"

// Rows that the operand has room for; it lies as fragments (include/operand.glsl).
layout(constant_id = 11) const uint OPERAND_ROWS = 16;
// Whether the pairs of a matrix's elements come rows first: of the operand, of the weights.
layout(constant_id = 12) const bool OPERAND_ROWS_FIRST = false;
layout(constant_id = 13) const bool WEIGHTS_ROWS_FIRST = false;
// Weights of the next stage are loaded while one is multiplied: less waiting, more registers.
layout(constant_id = 15) const bool EARLY = true;

#define TILE_VECTORS 1
#include "include/matrix.glsl"

// Blocks of a stage, and stages.
const uint STAGE = 4;
const uint STAGES = (BLOCKS + STAGE - 1) / STAGE;

// Weight rows and rows of the operand of an invocation. Names, because arrays are of one type only
// if their lengths are one constant.
const uint OWN_ROWS = 2 * HEIGHT;
const uint OWN_TOKENS = 2 * COUNT;

// Place of the pair of a row half and a column half among a matrix's pairs of elements.
uint pair_at(const bool rows_first, uint row_half, uint column_half) {
    return rows_first ? 2 * column_half + row_half : 2 * row_half + column_half;
}

void fetch(uint part, uint first_row, uint stage, out Raw raws[OWN_ROWS]) {
    const uint block = stage * STAGE + gl_SubgroupInvocationID % 4;
    [[unroll]] for (uint i = 0; i < OWN_ROWS; i++) {
        const uint tile_row = i * 8 + gl_SubgroupInvocationID / 4;
        if (BLOCKS % STAGE != 0 && block >= BLOCKS) {
            raws[i] = Raw(uvec4(0), uvec4(0), 0, 0);
        } else {
            raws[i] = load_block(part, GATE != 0 && i / 2 % 2 == 1, first_row, tile_row, block);
        }
    }
}

void main() {
    // Tiles of the same weights are neighbours.
    const uint first_token = gl_WorkGroupID.x * TOKENS;
    if (first_token >= token_count()) {
        return;
    }
    const uint workgroup = gl_WorkGroupID.y;
    const uint part = part_of(workgroup);
    const uint first_row = first_row_of(workgroup, part);
    // A tile is one piece, whose columns all subgroups share.
    const uint slice = gl_SubgroupID;
    const uint quarter = gl_SubgroupInvocationID % 4;

    coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> sums[COUNT * HEIGHT];
    [[unroll]] for (uint i = 0; i < COUNT * HEIGHT; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
    }
    // Rows that are not there are the last one that is: read, but not from afar.
    uint tokens[OWN_TOKENS];
    [[unroll]] for (uint i = 0; i < OWN_TOKENS; i++) {
        const uint token = first_token + i * 8 + gl_SubgroupInvocationID / 4;
        tokens[i] = min(token, token_count() - 1);
    }

    Raw raws[OWN_ROWS];
    if (EARLY) {
        fetch(part, first_row, min(slice, STAGES - 1), raws);
    }
    [[dont_unroll]] for (uint stage = slice; stage < STAGES; stage += SPLIT) {
        // What meets the weights past the end, which are zero, could be no number.
        const bool inside = BLOCKS % STAGE == 0 || stage * STAGE + quarter < BLOCKS;
        if (!EARLY) {
            fetch(part, first_row, stage, raws);
        }
        uvec4 inputs[4][OWN_TOKENS];
        [[unroll]] for (uint k = 0; k < 4; k++) {
            [[unroll]] for (uint i = 0; i < OWN_TOKENS; i++) {
                const uint at = ((stage * 4 + k) * OPERAND_ROWS + tokens[i]) * 4 + quarter;
                // Eight rows or fewer fill half of a matrix.
                inputs[k][i] = inside && i * 8 < OPERAND_ROWS ? operand[at] : uvec4(0);
            }
        }
        Raw now[OWN_ROWS];
        [[unroll]] for (uint i = 0; i < OWN_ROWS; i++) {
            now[i] = raws[i];
        }
        if (EARLY) {
            fetch(part, first_row, min(stage + SPLIT, STAGES - 1), raws);
        }
        [[unroll]] for (uint k = 0; k < 4; k++) {
            uvec4 weights[OWN_ROWS];
            [[unroll]] for (uint i = 0; i < OWN_ROWS; i++) {
                weights[i] = decode_block(part, GATE != 0 && i / 2 % 2 == 1, now[i], k);
            }
            // A vector is two matrices' columns.
            [[unroll]] for (uint half_vector = 0; half_vector < 2; half_vector++) {
                coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a[COUNT];
                [[unroll]] for (uint n = 0; n < COUNT; n++) {
                    [[unroll]] for (uint i = 0; i < 4; i++) {
                        const uint at = 2 * pair_at(OPERAND_ROWS_FIRST, i / 2, i % 2);
                        const f16vec2 pair = unpackFloat2x16(inputs[k][2 * n + i / 2][2 * half_vector + i % 2]);
                        a[n][at] = pair.x;
                        a[n][at + 1] = pair.y;
                    }
                }
                [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
                    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> b;
                    [[unroll]] for (uint i = 0; i < 4; i++) {
                        const uint at = 2 * pair_at(WEIGHTS_ROWS_FIRST, i / 2, i % 2);
                        const f16vec2 pair = unpackFloat2x16(weights[2 * r + i / 2][2 * half_vector + i % 2]);
                        b[at] = pair.x;
                        b[at + 1] = pair.y;
                    }
                    [[unroll]] for (uint n = 0; n < COUNT; n++) {
                        sums[n * HEIGHT + r] = coopMatMulAdd(a[n], b, sums[n * HEIGHT + r]);
                    }
                }
            }
        }
    }

    [[unroll]] for (uint n = 0; n < COUNT; n++) {
        barrier();
        [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
            const uint at = gl_SubgroupID * 16 * SUM_STRIDE + r * 4;
            coopMatStore(sums[n * HEIGHT + r], tile, at, SUM_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        put_outputs(n, part, first_row, first_token);
    }
}
