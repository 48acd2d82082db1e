// probe_fragments: where the elements of a matrix lie: for each invocation of a subgroup and each of
// its elements the row and column, SIDE * row + column, first of weights (A), then of an operand (B,
// rows and columns swapped, of which there are TOKEN_SIDE and SIDE).
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint SUBGROUP = 32;
layout(constant_id = 1) const uint SIDE = 16;

layout(constant_id = 2) const uint TOKEN_SIDE = 16;

// Elements of an invocation, where each has a place of its own.
const uint ELEMENTS = SIDE * SIDE / SUBGROUP;
const uint TOKEN_ELEMENTS = SIDE * TOKEN_SIDE / SUBGROUP;

layout(set = 1, binding = 0, std430) writeonly buffer Places { uint places[]; };

shared float16_t numbers[SIDE * SIDE];

void main() {
    const uint invocation = gl_LocalInvocationIndex;
    for (uint i = invocation; i < SIDE * SIDE; i += SUBGROUP) {
        // Up to 2048 whole numbers are half floats.
        numbers[i] = float16_t(float(i));
    }
    barrier();
    coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseA> a;
    coopmat<float16_t, gl_ScopeSubgroup, SIDE, TOKEN_SIDE, gl_MatrixUseB> b;
    coopMatLoad(a, numbers, 0, SIDE, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(b, numbers, 0, SIDE, gl_CooperativeMatrixLayoutColumnMajor);
    // A matrix of which invocations hold copies has more elements than places, and is told by that.
    if (invocation == 0) {
        places[0] = a.length();
        places[1] = b.length();
    }
    for (uint i = 0; i < min(a.length(), ELEMENTS); i++) {
        places[2 + invocation * ELEMENTS + i] = uint(a[i]);
    }
    for (uint i = 0; i < min(b.length(), TOKEN_ELEMENTS); i++) {
        places[2 + SIDE * SIDE + invocation * TOKEN_ELEMENTS + i] = uint(b[i]);
    }
}
