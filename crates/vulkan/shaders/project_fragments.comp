// project_fragments: a product of quantised weights with some rows, up to 64 a tile, on matrix units
// whose matrices lie in registers in a known order (`fragments` in src/measure.rs asks for it):
//
//   SHARERS neighbouring invocations share a row of a matrix, and each holds equally many of its
//   columns. Invocation i holds rows i / SHARERS, and those GROUPS, 2 GROUPS, … further on, where
//   GROUPS is the number of such neighbourhoods in a subgroup. On NVIDIA's cards four invocations
//   share a row of 16, and each holds four columns of two rows (of one of the operand's eight); on Mesa's software driver eight
//   share a row of 8, and each holds one column of all rows.
//
// A matrix has SIDE rows of the weights or TOKEN_SIDE rows of the operand. Where the latter can be half of the former, as on NVIDIA's
// cards, eight rows of the operand take half of the products.
//
// So an invocation can put its own weights into a matrix: they come from memory, are dequantised
// and multiplied in registers, and no invocation waits for another. The order of the product's
// columns in a matrix is free, as long as weights and operand agree: an invocation takes whole
// blocks, and the matrices of a stage of SHARERS blocks take some weights of each.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#include "include/common.glsl"
#include "include/operand.glsl"
#include "include/weights.glsl"
// A constant that no compiler knows: NVIDIA's puts masks and other constants into instructions, one each, and would need
// two for what one can do with a register.
uint half_1024;
#define HALF_1024 half_1024
#include "include/halves.glsl"
#include "include/epilogue.glsl"

// Rows that the operand has room for; it lies as fragments (include/operand.glsl).
layout(constant_id = 11) const uint OPERAND_ROWS = 16;
// Whether an invocation's pairs of columns come rows first: of the weights, which are the first factor of a
// product, of the operand.
layout(constant_id = 12) const bool WEIGHTS_ROWS_FIRST = false;
layout(constant_id = 13) const bool OPERAND_ROWS_FIRST = false;
// Weights of the next stage are loaded while one is multiplied: less waiting, more registers.
layout(constant_id = 15) const bool EARLY = true;
// Invocations that share a row of a matrix.
layout(constant_id = 16) const uint SHARERS = 4;
// Rows of the next product's operand, where outputs are left for it as fragments; else 0.
layout(constant_id = 17) const uint NEXT_ROWS = 0;
// Rows of the operand in a matrix.
layout(constant_id = 18) const uint TOKEN_SIDE = 16;

layout(set = 1, binding = 7, std430) writeonly buffer NextOperand { float16_t next_operand[]; };
layout(set = 1, binding = 8, std430) writeonly buffer NextMetas { uvec2 next_metas[]; };

void put_value(uint token, uint part, uint row, float value);
#define PUT_VALUE(token, part, row, value) put_value(token, part, row, value)

#define TILE_VECTORS 1
#include "include/matrix.glsl"

// What an output is multiplied by as a half float. The largest of its row is not known yet, so that it is the same for all
// rows: half floats then reach to a million, to which larger values are clamped, and are 2^-20 apart around zero
// (`Rounding::FixedHalves`).
const float NEXT_SCALE = 1.0 / 16.0;
const float LARGEST_HALF = 65504.0;

// The plain floats are written in any case: checks read them.
void put_value(uint token, uint part, uint row, float value) {
    values[token * output_stride + part_column[part] + row] = value;
    if (NEXT_ROWS > 0) {
        const float scaled = value * NEXT_SCALE;
        // The middle two of four change places, as in halves_of.
        const uint at = 2 * fragment_word(row / 4, token, NEXT_ROWS) + row % 2 * 2 + row / 2 % 2;
        next_operand[at] = float16_t(abs(scaled) > LARGEST_HALF ? sign(scaled) * LARGEST_HALF : scaled);
        if (row == 0) {
            next_metas[token] = uvec2(floatBitsToUint(1.0 / NEXT_SCALE), 0);
        }
    }
}

// Rows of a matrix that lie side by side in a subgroup, rows that an invocation holds of the weights and of the operand, and
// columns of each.
const uint GROUPS = WORKGROUP / SPLIT / SHARERS;
const uint HELD_ROWS = SIDE / GROUPS;
const uint HELD_TOKENS = TOKEN_SIDE / GROUPS;
const uint HELD_COLUMNS = SIDE / SHARERS;

// Stages of SHARERS blocks.
const uint STAGES = (BLOCKS + SHARERS - 1) / SHARERS;

// Weight rows and rows of the operand of an invocation. Names, because arrays are of one type only
// if their lengths are one constant.
const uint OWN_ROWS = HELD_ROWS * HEIGHT;
// Matrices of the operand.
const uint TOKEN_MATRICES = TOKENS_EACH / TOKEN_SIDE;
const uint OWN_TOKENS = HELD_TOKENS * TOKEN_MATRICES;

// Place of a held row and column among an invocation's elements of a matrix of which it holds `rows` rows.
uint element_at(const bool rows_first, const uint rows, uint row, uint column) {
    return rows_first ? (column / 2 * rows + row) * 2 + column % 2 : row * HELD_COLUMNS + column;
}

void fetch(uint part, uint first_row, uint stage, out Raw raws[OWN_ROWS]) {
    const uint block = stage * SHARERS + gl_SubgroupInvocationID % SHARERS;
    [[unroll]] for (uint i = 0; i < OWN_ROWS; i++) {
        const uint tile_row = i * GROUPS + gl_SubgroupInvocationID / SHARERS;
        if (BLOCKS % SHARERS != 0 && block >= BLOCKS) {
            raws[i] = Raw(uvec4(0), uvec4(0), 0, 0);
        } else {
            raws[i] = load_block(part, is_up(i * GROUPS), first_row, tile_row, block);
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
    const uint sharer = gl_SubgroupInvocationID % SHARERS;

    coopmat<float, gl_ScopeSubgroup, SIDE, TOKEN_SIDE, gl_MatrixUseAccumulator> sums[TOKEN_MATRICES * HEIGHT];
    [[unroll]] for (uint i = 0; i < TOKEN_MATRICES * HEIGHT; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, SIDE, TOKEN_SIDE, gl_MatrixUseAccumulator>(0.0);
    }
    // Rows that are not there are the last one that is: read, but not from afar.
    uint tokens[OWN_TOKENS];
    [[unroll]] for (uint i = 0; i < OWN_TOKENS; i++) {
        const uint token = first_token + i * GROUPS + gl_SubgroupInvocationID / SHARERS;
        tokens[i] = min(token, token_count() - 1);
    }
    // Rows are far fewer.
    half_1024 = 0x64006400u | tokens[0] >> 20;

    // A vector is the columns of several matrices. Eight of them would be too much code to unroll:
    // then the end is one that no compiler knows.
    const uint vector_end = HELD_COLUMNS == 1 ? min(8 + token_count(), 8) : 8;

    Raw raws[OWN_ROWS];
    if (EARLY) {
        fetch(part, first_row, min(slice, STAGES - 1), raws);
    }
    [[dont_unroll]] for (uint stage = slice; stage < STAGES; stage += SPLIT) {
        // What meets the weights past the end, which are zero, could be no number.
        const bool inside = BLOCKS % SHARERS == 0 || stage * SHARERS + sharer < BLOCKS;
        if (!EARLY) {
            fetch(part, first_row, stage, raws);
        }
        // The operand lies in fours of blocks, which is a stage where four invocations share a row.
        const uint block = stage * SHARERS + sharer;
        const uint four = SHARERS == 4 ? stage : block / 4;
        const uint of_four = SHARERS == 4 ? sharer : block % 4;
        uvec4 inputs[4][OWN_TOKENS];
        [[unroll]] for (uint k = 0; k < 4; k++) {
            [[unroll]] for (uint i = 0; i < OWN_TOKENS; i++) {
                const uint at = ((four * 4 + k) * OPERAND_ROWS + tokens[i]) * 4 + of_four;
                // Eight rows or fewer may fill a part of a matrix only.
                inputs[k][i] = inside && i * GROUPS < OPERAND_ROWS ? operand[at] : uvec4(0);
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
                weights[i] = decode_block(part, is_up(i * GROUPS), now[i], k);
            }
            [[unroll]] for (uint first = 0; first < vector_end; first += HELD_COLUMNS) {
                coopmat<float16_t, gl_ScopeSubgroup, SIDE, TOKEN_SIDE, gl_MatrixUseB> b[TOKEN_MATRICES];
                [[unroll]] for (uint n = 0; n < TOKEN_MATRICES; n++) {
                    [[unroll]] for (uint i = 0; i < HELD_TOKENS * HELD_COLUMNS; i++) {
                        const uint row = i / HELD_COLUMNS, column = i % HELD_COLUMNS, at = first + column;
                        const f16vec2 pair = unpackFloat2x16(inputs[k][HELD_TOKENS * n + row][at / 2]);
                        b[n][element_at(OPERAND_ROWS_FIRST, HELD_TOKENS, row, column)] = pair[at % 2];
                    }
                }
                [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
                    coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseA> a;
                    [[unroll]] for (uint i = 0; i < HELD_ROWS * HELD_COLUMNS; i++) {
                        const uint row = i / HELD_COLUMNS, column = i % HELD_COLUMNS, at = first + column;
                        const f16vec2 pair = unpackFloat2x16(weights[HELD_ROWS * r + row][at / 2]);
                        a[element_at(WEIGHTS_ROWS_FIRST, HELD_ROWS, row, column)] = pair[at % 2];
                    }
                    [[unroll]] for (uint n = 0; n < TOKEN_MATRICES; n++) {
                        sums[n * HEIGHT + r] = coopMatMulAdd(a, b[n], sums[n * HEIGHT + r]);
                    }
                }
            }
        }
    }

    // As many rows of the operand at a time as a matrix has rows. Conditions are known when this is compiled: an array of
    // matrices that is indexed by anything else lies in memory.
    [[unroll]] for (uint first = 0; first < TOKEN_MATRICES; first += SIDE / TOKEN_SIDE) {
        barrier();
        [[unroll]] for (uint n = 0; n < TOKEN_MATRICES; n++) {
            if (n / (SIDE / TOKEN_SIDE) * (SIDE / TOKEN_SIDE) == first) {
                [[unroll]] for (uint r = 0; r < HEIGHT; r++) {
                    const uint at = (gl_SubgroupID * SIDE + (n - first) * TOKEN_SIDE) * SUM_STRIDE + r * SIDE / 4;
                    coopMatStore(sums[n * HEIGHT + r], tile, at, SUM_STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                }
            }
        }
        barrier();
        put_outputs(first * TOKEN_SIDE / SIDE, part, first_row, first_token);
    }
}
