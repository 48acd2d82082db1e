// gate: activation(gate) * up, as an operation of its own.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"
#include "include/plain.glsl"
#include "include/epilogue.glsl"

// Mirrors `activation_code` in src/program/plain.rs. 1: silu; 2: gelu.
layout(constant_id = 1) const uint ACTIVATION = 1;

layout(set = 1, binding = 2, std430) readonly buffer Up { float up[]; };

layout(push_constant) uniform Constants {
    View input_view;
    View output_view;
    uint width;
    View up_view;
};

void main() {
    const uint row = gl_WorkGroupID.x;
    if (!is_row(row)) {
        return;
    }
    const uint start = start_of(input_view, row), up_start = start_of(up_view, row), out_start = start_of(output_view, row);
    for (uint column = first_column(); column < width; column += column_step()) {
        const float x = from[start + column];
        to[out_start + column] = gated(ACTIVATION, x, up[up_start + column]);
    }
}
