// probe_fragments: where the elements of a matrix lie: for each of 32 invocations and 8 elements
// the row and column, 16 * row + column, first of an operand (A), then of weights (B, rows and
// columns swapped).
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require

layout(local_size_x = 32) in;

layout(set = 1, binding = 0, std430) writeonly buffer Places { uint places[]; };

shared float16_t numbers[256];

void main() {
    const uint invocation = gl_LocalInvocationIndex;
    for (uint i = invocation; i < 256; i += 32) {
        // Up to 2048 whole numbers are half floats.
        numbers[i] = float16_t(float(i));
    }
    barrier();
    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> a;
    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> b;
    coopMatLoad(a, numbers, 0, 16, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(b, numbers, 0, 16, gl_CooperativeMatrixLayoutColumnMajor);
    // A matrix spread otherwise over a subgroup leaves the rest unwritten.
    for (uint i = 0; i < min(a.length(), 8); i++) {
        places[invocation * 8 + i] = uint(a[i]);
    }
    for (uint i = 0; i < min(b.length(), 8); i++) {
        places[256 + invocation * 8 + i] = uint(b[i]);
    }
}
