// prologue: forms the rows of a product's input where the product itself does not: several rows,
// or exact mode. One workgroup a row.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"
#include "include/operand.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 256;
// 0: floats, 1: codes, 2: refined codes, 3: half floats scaled by a power of two, 4: the same as
// fragments, 5: rotated codes.
layout(constant_id = 1) const uint FORM = 0;
layout(constant_id = 2) const bool LOGITS = false;
layout(constant_id = 3) const bool KEEP = false;
// Rows that fragments or rotated codes have room for.
layout(constant_id = 4) const uint OPERAND_ROWS = 16;
// Rows that are not there are formed too, whatever they hold: to ask how many there are would take
// longer.
layout(constant_id = 5) const bool ALL = false;
// Columns of a block that is rotated.
layout(constant_id = 6) const uint ROTATION = 4;

layout(set = 1, binding = 0, std430) readonly buffer Base { vec4 base[]; };
layout(set = 1, binding = 1, std430) readonly buffer Delta { vec4 delta[]; };
layout(set = 1, binding = 2, std430) writeonly buffer Residual { vec4 residual[]; };
layout(set = 1, binding = 3, std430) readonly buffer Vectors { vec4 vectors[]; };
layout(set = 1, binding = 4, std430) writeonly buffer Operand { uint operand[]; };
layout(set = 1, binding = 5, std430) writeonly buffer Metas { uvec2 metas[]; };

#include "include/prologue.glsl"

layout(push_constant) uniform Constants { Prologue constants; };

#include "include/rotate.glsl"

void main() {
    const uint row = gl_WorkGroupID.x;
    if (!ALL && row >= (LOGITS ? play.logit_count : play.row_count)) {
        return;
    }
    vec4 x[PASSES];
    form_row(constants, row, KEEP, x);
    const uint vectors_in_row = WIDTH / 4;
    const uint blocks = WIDTH / 32;
    float factor = 1.0;
    if (FORM == 5) {
        rotate_row(x);
        const float largest = row_maximum(x);
        factor = code_factor(largest);
        if (gl_LocalInvocationIndex == 0) {
            // The product of two rotated rows is too large by ROTATION.
            metas[row] = uvec2(floatBitsToUint(code_step(largest) / float(ROTATION)), 0);
        }
    } else if (FORM >= 3) {
        const float largest = row_maximum(x);
        // The row's largest value lands between 128 and 256: far from overflow in f16, and what
        // is a millionth of it is still a normal number.
        int exponent;
        frexp(max(largest, 1e-30), exponent);
        factor = ldexp(1.0, 8 - exponent);
        if (gl_LocalInvocationIndex == 0) {
            metas[row] = uvec2(floatBitsToUint(1.0 / factor), 0);
        }
    }
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        const uint v = pass * WORKGROUP + gl_LocalInvocationIndex;
        const bool inside = v < vectors_in_row;
        const uint block = v / 8;
        const uint k = v % 8;
        const vec4 y = x[pass];
        if (FORM == 0) {
            if (inside) {
                const uint at = ((row * 8 + k) * blocks + block) * 4;
                [[unroll]] for (uint i = 0; i < 4; i++) {
                    operand[at + i] = floatBitsToUint(y[i]);
                }
            }
        } else if (FORM == 5) {
            if (inside) {
                operand[rotated_word(v, row, OPERAND_ROWS)] = pack_bytes(ivec4(roundEven(y * factor)));
            }
        } else if (FORM >= 3) {
            if (inside) {
                const uint at = FORM == 3 ? row * (WIDTH / 2) + 2 * v : fragment_word(v, row, OPERAND_ROWS);
                const uvec2 words = halves_of(y * factor);
                operand[at] = words.x;
                operand[at + 1] = words.y;
            }
        } else {
            const Quantised q = quantise(y, FORM == 2);
            const uint first = FORM == 2 ? 2 * row : row;
            if (inside) {
                operand[first * 8 * blocks + code_word(v, blocks)] = q.word;
                if (k == 0) {
                    metas[first * blocks + block] = q.meta;
                }
                if (FORM == 2) {
                    operand[(first + 1) * 8 * blocks + code_word(v, blocks)] = q.fine_word;
                    if (k == 0) {
                        metas[(first + 1) * blocks + block] = q.fine_meta;
                    }
                }
            }
        }
    }
}
