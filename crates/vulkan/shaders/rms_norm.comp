// rms_norm: x / rms(x) * weight over each of a row's groups, as an operation of its own. One
// workgroup a row and group.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"
#include "include/plain.glsl"

layout(set = 1, binding = 2, std430) readonly buffer Vectors { float vectors[]; };

layout(push_constant) uniform Constants {
    View input_view;
    View output_view;
    // Of a group.
    uint width;
    // Where the weight begins in `vectors`.
    uint weight;
    float epsilon;
};

// Subgroups have at least eight invocations.
shared float partial[WORKGROUP / 8];

void main() {
    const uint row = gl_WorkGroupID.x;
    if (!is_row(row)) {
        return;
    }
    const uint group = gl_WorkGroupID.y * width;
    const uint start = start_of(input_view, row) + group, out_start = start_of(output_view, row) + group;
    float squares = 0.0;
    for (uint column = gl_LocalInvocationIndex; column < width; column += WORKGROUP) {
        const float x = from[start + column];
        squares += x * x;
    }
    squares = subgroupAdd(squares);
    if (subgroupElect()) {
        partial[gl_SubgroupID] = squares;
    }
    barrier();
    float total = 0.0;
    for (uint i = 0; i < gl_NumSubgroups; i++) {
        total += partial[i];
    }
    const float factor = inversesqrt(total / float(width) + epsilon);
    for (uint column = gl_LocalInvocationIndex; column < width; column += WORKGROUP) {
        to[out_start + column] = from[start + column] * factor * vectors[weight + column];
    }
}
