// embed: each token's row of the table, times a factor. One workgroup a row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"
#include "include/weights.glsl"

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint TYPE = 0;

layout(set = 1, binding = 3, std430) writeonly buffer Output { vec4 values[]; };

layout(push_constant) uniform Constants {
    uint table_rows;
    uint blocks;
    // First token of this slice of the table: a table larger than a binding is cut by rows.
    uint first_token;
    float factor;
};

void main() {
    const uint row = gl_WorkGroupID.x;
    if (row >= play.row_count) {
        return;
    }
    const uint token = play.rows[row].token - first_token;
    if (token >= table_rows) {
        return;
    }
    const Matrix table = Matrix(0, table_rows, blocks);
    for (uint block = gl_LocalInvocationIndex; block < blocks; block += gl_WorkGroupSize.x) {
        vec4 weights[8];
        load_floats(TYPE, table, token, block, weights);
        [[unroll]] for (uint k = 0; k < 8; k++) {
            values[(row * blocks + block) * 8 + k] = weights[k] * factor;
        }
    }
}
