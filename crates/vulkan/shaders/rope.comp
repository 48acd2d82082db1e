// rope: rotation of every head of a row, as an operation of its own.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"
#include "include/plain.glsl"

// Mirrors `rope_code` in src/program/attend.rs. 1: i with i + head_dim / 2; 2: 2 i with 2 i + 1.
layout(constant_id = 1) const uint PAIRING = 1;

// Cosines of a head's pairs, then their sines.
layout(set = 1, binding = 2, std430) readonly buffer Angles { float angles[]; };

layout(push_constant) uniform Constants {
    View input_view;
    View output_view;
    uint width;
    View angles_view;
    uint head_dim;
};

void main() {
    const uint row = gl_WorkGroupID.x;
    if (!is_row(row)) {
        return;
    }
    const uint start = start_of(input_view, row), out_start = start_of(output_view, row);
    const uint angles_start = start_of(angles_view, row);
    const uint pairs = head_dim / 2;
    for (uint index = first_column(); index < width / 2; index += column_step()) {
        const uint head = index / pairs * head_dim, pair = index % pairs;
        const uint first = head + (PAIRING == 2 ? 2 * pair : pair);
        const uint second = PAIRING == 2 ? first + 1 : first + pairs;
        const float c = angles[angles_start + pair], s = angles[angles_start + pairs + pair];
        const float a = from[start + first], b = from[start + second];
        to[out_start + first] = a * c - b * s;
        to[out_start + second] = a * s + b * c;
    }
}
