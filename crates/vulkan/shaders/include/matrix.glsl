// What both products on matrix units share: constants, buffers, and what becomes of the sums.
//
// A workgroup computes a tile of ROWS weight rows by TOKENS rows of the operand. Its subgroups
// divide the tile among them, ROWS_EACH by TOKENS_EACH, and where tokens are few also the columns:
// SPLIT subgroups then sum different columns of the same outputs.
//
// Matrices are [token][row]: sums lie in registers and in shared memory as the output does.
//
// A file that does more with an output than to write it defines PUT_VALUE before.

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 256;
// Parts have one of two types; of a gate's parts the second has TYPE_B.
layout(constant_id = 1) const uint TYPE_A = 3;
layout(constant_id = 2) const uint TYPE_B = 3;
// 0: none; 1: silu(part 0) * part 1; 2: gelu(part 0) * part 1.
layout(constant_id = 3) const uint GATE = 0;
layout(constant_id = 4) const uint BLOCKS = 1;
// Rows of the weights in a matrix, and its depth; in project_matrix rows of the operand, too.
layout(constant_id = 5) const uint SIDE = 16;
// Piece of a subgroup.
layout(constant_id = 6) const uint ROWS_EACH = 64;
layout(constant_id = 7) const uint TOKENS_EACH = 32;
// Subgroups along the tile's rows, its tokens, and the columns.
layout(constant_id = 8) const uint ACROSS = 2;
layout(constant_id = 9) const uint ALONG = 4;
layout(constant_id = 10) const uint SPLIT = 1;
layout(constant_id = 14) const bool LOGITS = false;

layout(set = 1, binding = 3, std430) readonly buffer VectorFloats { float vector_floats[]; };
layout(set = 1, binding = 4, std430) writeonly buffer Output { float values[]; };
// Half floats, each row scaled by a power of two; metas[row].x undoes it.
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
// Matrices of a piece along its rows.
const uint HEIGHT = ROWS_EACH / SIDE;
// Outputs of a piece along its rows. Of a gate, as many rows of each part alternate as a matrix has, or halves of a
// matrix where the piece has one only: so a subgroup holds both factors of an output.
const uint OUTPUTS_EACH = GATE != 0 ? ROWS_EACH / 2 : ROWS_EACH;
const uint GATE_ROWS = OUTPUTS_EACH < SIDE ? OUTPUTS_EACH : SIDE;
// Whether a row of a piece belongs to the second part of a gate, and which row of its part it is.
bool is_up(const uint piece_row) { return GATE != 0 && piece_row / GATE_ROWS % 2 == 1; }
uint gate_row(uint piece_row) { return piece_row / (2 * GATE_ROWS) * GATE_ROWS + piece_row % GATE_ROWS; }

// Sums pass through shared memory, vectors [subgroup][SIDE rows of the operand][row].
const uint SUM_STRIDE = ROWS_EACH / 4 + 1;
const uint SUM_VECTORS = SPLIT * PIECES * SIDE * SUM_STRIDE;
shared uvec4 tile[TILE_VECTORS > SUM_VECTORS ? TILE_VECTORS : SUM_VECTORS];

uint token_count() { return LOGITS ? play.logit_count : play.row_count; }

// Part of a workgroup, and the first row of its tile.
uint part_of(uint workgroup) {
    return GATE != 0 ? 0 : workgroup >= part_group[2] ? 2 : workgroup >= part_group[1] ? 1 : 0;
}
uint first_row_of(uint workgroup, uint part) { return (workgroup - part_group[part]) * (OUTPUTS_EACH * ACROSS); }

// Weights of a row of the tile. Whether it belongs to the second part of a gate must be known when
// this is compiled or be the same for all invocations of a branch.
Raw load_block(uint part, const bool second, uint first_row, uint tile_row, uint block) {
    if (GATE != 0) {
        const uint row = min(first_row + gate_row(tile_row), part_rows[0] - 1);
        if (second) {
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

// Eight of its weights.
uvec4 decode_block(uint part, const bool second, Raw raw, const uint k) {
    if (TYPE_A != TYPE_B && (GATE != 0 ? second : (flags & (1u << part)) != 0)) {
        return decode_eight(TYPE_B, raw, k);
    }
    return decode_eight(TYPE_A, raw, k);
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

#ifndef PUT_VALUE
#define PUT_VALUE(token, part, row, value) values[token * output_stride + part_column[part] + row] = value
#endif

// Writes the outputs whose sums are in shared memory: those of the `n`-th SIDE rows of the operand of every piece.
void put_outputs(uint n, uint part, uint first_row, uint first_token) {
    for (uint i = gl_LocalInvocationIndex; i < PIECES * SIDE * OUTPUTS_EACH; i += WORKGROUP) {
        const uint column = i % OUTPUTS_EACH;
        const uint matrix_token = i / OUTPUTS_EACH % SIDE;
        const uint source = i / (OUTPUTS_EACH * SIDE);
        const uint token = first_token + source / ACROSS * TOKENS_EACH + n * SIDE + matrix_token;
        const uint row = first_row + source % ACROSS * OUTPUTS_EACH + column;
        if (token < token_count() && row < part_rows[part]) {
            const float inverse = uintBitsToFloat(metas[token].x);
            float value;
            if (GATE != 0) {
                const uint gate_column = column / GATE_ROWS * (2 * GATE_ROWS) + column % GATE_ROWS;
                const float gate = biased(0, row, inverse * sum_of(source, matrix_token, gate_column));
                const float up = biased(1, row, inverse * sum_of(source, matrix_token, gate_column + GATE_ROWS));
                value = gated(GATE, gate, up);
            } else {
                value = biased(part, row, inverse * sum_of(source, matrix_token, column));
            }
            PUT_VALUE(token, part, row, cap > 0.0 ? soft_cap(value, cap) : value);
        }
    }
}
