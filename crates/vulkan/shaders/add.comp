// add: the sum of two tensors, as an operation of its own.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"
#include "include/plain.glsl"

layout(set = 1, binding = 2, std430) readonly buffer Other { float other[]; };

layout(push_constant) uniform Constants {
    View input_view;
    View output_view;
    uint width;
    View other_view;
};

void main() {
    const uint row = gl_WorkGroupID.x;
    if (!is_row(row)) {
        return;
    }
    const uint a = start_of(input_view, row), b = start_of(other_view, row), out_start = start_of(output_view, row);
    for (uint column = first_column(); column < width; column += column_step()) {
        to[out_start + column] = from[a + column] + other[b + column];
    }
}
