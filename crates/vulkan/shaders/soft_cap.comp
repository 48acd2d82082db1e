// soft_cap: cap * tanh(x / cap), as an operation of its own.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"
#include "include/plain.glsl"
#include "include/epilogue.glsl"

layout(push_constant) uniform Constants {
    View input_view;
    View output_view;
    uint width;
    float cap;
};

void main() {
    const uint row = gl_WorkGroupID.x;
    if (!is_row(row)) {
        return;
    }
    const uint start = start_of(input_view, row), out_start = start_of(output_view, row);
    for (uint column = first_column(); column < width; column += column_step()) {
        to[out_start + column] = soft_cap(from[start + column], cap);
    }
}
