// probe_matrix: what the device's matrix units do at best: chains of products in registers.
#version 460
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require

layout(local_size_x = 256) in;
layout(constant_id = 0) const uint SIDE = 16;

layout(set = 1, binding = 0, std430) writeonly buffer Sink { float sink[]; };

layout(push_constant) uniform Constants {
    // Rounds of four independent products.
    uint rounds;
};

const uint CHAINS = 4;

void main() {
    // Not the same in every round, or the compiler would multiply once.
    const float seed = float(rounds & 7u) * 0.001;
    const coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseA> a =
        coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseA>(seed + 0.01);
    const coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseB> b =
        coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseB>(seed + 0.02);
    coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator> sums[CHAINS];
    [[unroll]] for (uint i = 0; i < CHAINS; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator>(float(i));
    }
    for (uint round = 0; round < rounds; round++) {
        [[unroll]] for (uint i = 0; i < CHAINS; i++) {
            sums[i] = coopMatMulAdd(a, b, sums[i]);
        }
    }
    // Never asked for, but the compiler cannot know.
    if (rounds == 0xffffffffu) {
        [[unroll]] for (uint i = 0; i < CHAINS; i++) {
            coopMatStore(sums[i], sink, i * SIDE * SIDE, SIDE, gl_CooperativeMatrixLayoutRowMajor);
        }
    }
}
