// Quantised weights of a tile of include/matrix.glsl, block by block.

// Parts have one of two types; of a gate's parts the second has TYPE_B.
layout(constant_id = 1) const uint TYPE_A = 3;
layout(constant_id = 2) const uint TYPE_B = 3;

// Weights of a row of the tile. Whether it belongs to the second part of a gate must be known when
// this is compiled or be the same for all invocations of a branch.
Raw load_block(uint part, const bool second, uint first_row, uint tile_row, uint block) {
    const uint row = weight_row(part, first_row, tile_row);
    if (GATE != 0) {
        if (second) {
            return load_raw(TYPE_B, Matrix(1, part_rows[1], BLOCKS), row, block);
        }
        return load_raw(TYPE_A, Matrix(0, part_rows[0], BLOCKS), row, block);
    }
    const Matrix matrix = Matrix(part, part_rows[part], BLOCKS);
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
