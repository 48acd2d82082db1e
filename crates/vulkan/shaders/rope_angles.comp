// rope_angles: cosines, then sines, of position * frequency for every pair of a head.
//
// GLSL promises little about sin and cos of large arguments, and a context of 131,072 tokens makes
// them large. So the angle's turns are counted in integers: its 24-bit mantissa times 1 / 2 pi in
// 64 bits, of which only the fraction matters.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"

layout(local_size_x = 64) in;

layout(set = 1, binding = 0, std430) readonly buffer Vectors { float vectors[]; };
layout(set = 1, binding = 1, std430) writeonly buffer Output { float values[]; };

layout(push_constant) uniform Constants {
    uint pairs;
    // Where the frequencies begin in `vectors`.
    uint frequencies;
    float magnitude;
};

// 2^64 / 2 pi
const uint TURN_HIGH = 0x28be60dbu, TURN_LOW = 0x9391054au;

// Angle modulo pi / 2, between -pi / 4 and pi / 4, and the quarter turns taken off.
float reduce(float angle, out uint quarters) {
    quarters = 0;
    if (angle < 0.78) {
        return angle;
    }
    const uint bits = floatBitsToUint(angle);
    const uint mantissa = (bits & 0x7fffffu) | 0x800000u;
    // angle = mantissa / 2^shift
    const uint shift = 150 - (bits >> 23);
    uint high0, low0, high1, low1;
    umulExtended(mantissa, TURN_LOW, high0, low0);
    umulExtended(mantissa, TURN_HIGH, high1, low1);
    const uint middle = low1 + high0;
    const uint top = high1 + (middle < low1 ? 1 : 0);
    // 2^32 ths of a turn
    const uint fraction = shift == 0 ? middle : (middle >> shift) | (top << (32 - shift));
    const uint rounded = (fraction + 0x20000000u) >> 30;
    quarters = rounded & 3;
    return float(int(fraction - (rounded << 30))) * (6.283185307179586 / 4294967296.0);
}

void main() {
    const uint row = gl_WorkGroupID.x;
    if (row >= play.row_count) {
        return;
    }
    for (uint pair = gl_LocalInvocationIndex; pair < pairs; pair += gl_WorkGroupSize.x) {
        precise float angle = float(play.rows[row].position) * vectors[frequencies + pair];
        uint quarters;
        const float x = reduce(angle, quarters);
        const float y = x * x;
        const float s = x + x * y * (-1.6666667e-1 + y * (8.3333310e-3 + y * (-1.9840874e-4 + y * 2.7525562e-6)));
        const float c = 1.0 - 0.5 * y + y * y * (4.1666668e-2 + y * (-1.3888889e-3 + y * (2.4801587e-5 - y * 2.7557319e-7)));
        const float cosine = (quarters & 1) == 0 ? c : s;
        const float sine = (quarters & 1) == 0 ? s : c;
        values[row * 2 * pairs + pair] = magnitude * (quarters == 1 || quarters == 2 ? -cosine : cosine);
        values[row * 2 * pairs + pairs + pair] = magnitude * (quarters >= 2 ? -sine : sine);
    }
}
