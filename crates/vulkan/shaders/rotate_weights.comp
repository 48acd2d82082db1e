// rotate_weights: the second form of quantised weights, for prompts: rows rotated (include/rotate.glsl)
// and rounded to int8 with one scale a row. One workgroup a row.
//
//   codes   [chunk][row][CHUNK columns], zero behind the last column
//   scales  [row] f32
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"
#include "include/weights.glsl"
#include "include/operand.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 256;
layout(constant_id = 1) const uint TYPE = 3;
layout(constant_id = 2) const uint WIDTH = 128;
// Passes over the row: ceil(WIDTH / 4 / WORKGROUP).
layout(constant_id = 3) const uint PASSES = 1;
layout(constant_id = 4) const uint SUBGROUP = 8;
layout(constant_id = 5) const uint ROTATION = 128;

layout(set = 1, binding = 3, std430) writeonly buffer Rotated { uint rotated[]; };

layout(push_constant) uniform Constants { uint rows; };

#include "include/rotate.glsl"

void main() {
    // More rows than a launch has workgroups along one axis are a second axis.
    const uint row = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    if (row >= rows) {
        return;
    }
    const Matrix matrix = Matrix(0, rows, WIDTH / 32);
    vec4 x[PASSES];
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        const uint v = pass * WORKGROUP + gl_LocalInvocationIndex;
        x[pass] = vec4(0.0);
        if (v < WIDTH / 4) {
            vec4 weights[8];
            load_floats(TYPE, matrix, row, v / 8, weights);
            x[pass] = weights[v % 8];
        }
    }
    rotate_row(x);
    const float largest = row_maximum(x);
    const uint chunks = (WIDTH + CHUNK - 1) / CHUNK;
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        const uint v = pass * WORKGROUP + gl_LocalInvocationIndex;
        if (v < chunks * (CHUNK / 4)) {
            rotated[rotated_word(v, row, rows)] = pack_bytes(ivec4(roundEven(x[pass] * code_factor(largest))));
        }
    }
    if (gl_LocalInvocationIndex == 0) {
        rotated[chunks * (CHUNK / 4) * rows + row] = floatBitsToUint(code_step(largest));
    }
}
