// What products on matrix units share: constants, buffers, and what becomes of the sums.
//
// A workgroup computes a tile of ROWS weight rows by TOKENS rows of the operand. Its subgroups
// divide the tile among them, ROWS_EACH by TOKENS_EACH, and where tokens are few also the columns:
// SPLIT subgroups then sum different columns of the same outputs.
//
// Matrices are [token][row]: sums lie in registers and in shared memory as the output does.
//
// The file that includes this defines TILE_VECTORS, vectors of shared memory that its tiles take, and
// may define what follows.

// A vector of shared memory, and its words.
#ifndef TILE_VECTOR
#define TILE_VECTOR uvec4
#define TILE_WORDS 4
#endif
// Of a gate, so many rows of either part alternate in a tile.
#ifndef ALTERNATION
#define ALTERNATION SIDE
#endif
// What the sums of a row of weights are multiplied by.
#ifndef WEIGHT_SCALE
#define WEIGHT_SCALE(part, row) 1.0
#endif

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 256;
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
layout(constant_id = 14) const bool LOGITS = false;

layout(set = 1, binding = 3, std430) readonly buffer VectorFloats { float vector_floats[]; };
layout(set = 1, binding = 4, std430) writeonly buffer Output { float values[]; };
// The rows of the input, each scaled; metas[row].x undoes it.
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
// Matrices of a piece.
const uint HEIGHT = ROWS_EACH / SIDE;
const uint COUNT = TOKENS_EACH / SIDE;
// Outputs of a tile along its rows: a gate makes one of two.
const uint OUTPUTS = GATE != 0 ? ROWS / 2 : ROWS;

// Sums pass through shared memory, vectors [subgroup][token of a matrix][row], rows 16 bytes apart.
const uint SUM_STRIDE = (ROWS_EACH + 4) / TILE_WORDS;
const uint SUM_VECTORS = SPLIT * PIECES * SIDE * SUM_STRIDE;
shared TILE_VECTOR tile[TILE_VECTORS > SUM_VECTORS ? TILE_VECTORS : SUM_VECTORS];

uint token_count() { return LOGITS ? play.logit_count : play.row_count; }

// Part of a workgroup, and the first row of its tile.
uint part_of(uint workgroup) {
    return GATE != 0 ? 0 : workgroup >= part_group[2] ? 2 : workgroup >= part_group[1] ? 1 : 0;
}
uint first_row_of(uint workgroup, uint part) { return (workgroup - part_group[part]) * OUTPUTS; }

// Whether a row of the tile belongs to the second part of a gate.
bool is_up(uint tile_row) { return GATE != 0 && tile_row / ALTERNATION % 2 == 1; }

// The weight row that a row of the tile is; the last one where the tile ends behind it.
uint weight_row(uint part, uint first_row, uint tile_row) {
    const uint row = GATE != 0 ? tile_row / (2 * ALTERNATION) * ALTERNATION + tile_row % ALTERNATION : tile_row;
    return min(first_row + row, part_rows[part] - 1);
}

// A sum out of shared memory: of all subgroups that have a share in it. `along` counts pieces along
// the tokens, `token` those of a matrix.
float sum_of(uint along, uint token, uint tile_row) {
    const uint piece = along * ACROSS + tile_row / ROWS_EACH;
    const uint column = tile_row % ROWS_EACH;
    float sum = 0.0;
    [[unroll]] for (uint slice = 0; slice < SPLIT; slice++) {
        const uint at = ((slice * PIECES + piece) * SIDE + token) * SUM_STRIDE + column / TILE_WORDS;
        sum += uintBitsToFloat(tile[at][column % TILE_WORDS]);
    }
    return sum;
}

float biased(uint part, uint row, float sum) {
    return part_bias[part] != NO_BIAS ? sum + vector_floats[part_bias[part] + row] : sum;
}

// Writes the outputs whose sums are in shared memory: matrix `n` of every piece along its tokens.
void put_outputs(uint n, uint part, uint first_row, uint first_token) {
    for (uint i = gl_LocalInvocationIndex; i < ALONG * SIDE * OUTPUTS; i += WORKGROUP) {
        const uint output_row = i % OUTPUTS;
        const uint matrix_token = i / OUTPUTS % SIDE;
        const uint along = i / (OUTPUTS * SIDE);
        const uint token = first_token + along * TOKENS_EACH + n * SIDE + matrix_token;
        const uint row = first_row + output_row;
        if (token < token_count() && row < part_rows[part]) {
            const float inverse = uintBitsToFloat(metas[token].x);
            float value;
            if (GATE != 0) {
                const uint gate_row = output_row / ALTERNATION * (2 * ALTERNATION) + output_row % ALTERNATION;
                const float gate_sum = WEIGHT_SCALE(0, row) * sum_of(along, matrix_token, gate_row);
                const float up_sum = WEIGHT_SCALE(1, row) * sum_of(along, matrix_token, gate_row + ALTERNATION);
                value = gated(GATE, biased(0, row, inverse * gate_sum), biased(1, row, inverse * up_sum));
            } else {
                const float sum = WEIGHT_SCALE(part, row) * sum_of(along, matrix_token, output_row);
                value = biased(part, row, inverse * sum);
            }
            values[token * output_stride + part_column[part] + row] = cap > 0.0 ? soft_cap(value, cap) : value;
        }
    }
}
