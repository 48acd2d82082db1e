// probe: what the device can do at best. Reads a buffer, or multiplies and adds in registers.
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_integer_dot_product : require

layout(local_size_x = 256) in;
// 0: read; 1: packed 8-bit dot products; 2: f32 multiply-adds; 3: atomic additions.
layout(constant_id = 0) const uint KIND = 0;

layout(set = 1, binding = 0, std430) readonly restrict buffer Source { uvec4 source[]; };
layout(set = 1, binding = 1, std430) buffer Sink { uint sink[]; };

layout(push_constant) uniform Constants {
    // Read: vectors of one workgroup. Atomics: outputs, to each of which every workgroup adds.
    // Otherwise: rounds of eight independent operations.
    uint count;
};

void main() {
    const uint invocation = gl_LocalInvocationIndex;
    if (KIND == 0) {
        const uint start = gl_WorkGroupID.x * count;
        uvec4 sum = uvec4(0);
        for (uint at = invocation; at < count; at += 256 * 4) {
            [[unroll]] for (uint i = 0; i < 4; i++) {
                sum ^= source[start + at + 256 * i];
            }
        }
        // Never true for what the buffer holds, but the compiler cannot know.
        if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x12345678u) {
            sink[invocation] = sum.x;
        }
    } else if (KIND == 3) {
        for (uint at = invocation; at < count; at += 256) {
            atomicAdd(sink[at], invocation);
        }
    } else if (KIND == 1) {
        int sums[8] = int[8](1, 2, 3, 4, 5, 6, 7, 8);
        const int x = int(invocation * 0x01010101u);
        for (uint round = 0; round < count; round++) {
            [[unroll]] for (uint i = 0; i < 8; i++) {
                sums[i] += dotPacked4x8EXT(sums[i], x);
            }
        }
        if ((sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6] ^ sums[7]) == 0x12345678) {
            sink[invocation] = 1;
        }
    } else {
        vec4 a = vec4(invocation), b = vec4(invocation + 1);
        for (uint round = 0; round < count; round++) {
            a = a * 0.999 + 0.5;
            b = b * 0.998 + 0.25;
        }
        if (dot(a, b) == 1.5) {
            sink[invocation] = 1;
        }
    }
}
