// project_rotated_slices: project_rotated for some rows, whose tiles are few. SLICES workgroups share a tile, each with columns of its
// own. All leave their sums in memory, and the last to finish, found by an atomic count, adds them up. They are integers,
// so that the order does not matter.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#define SLICED
#include "include/rotated_product.glsl"
