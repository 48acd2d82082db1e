// chain_probe: a stage of a chain (include/chain.glsl) that does nothing else: whether dispatches overlap as chained kernels
// need it is tried with some of these before any is used.
#version 460
#extension GL_GOOGLE_include_directive : require
#define CHAINED
#define CHAIN_BINDING 0
#include "include/common.glsl"

layout(local_size_x = 512) in;

layout(push_constant) uniform Constants { CHAIN_LINK };

void main() {
    await_link(chain_link);
    leave_link(chain_link);
}
