// project_rotated: a product of many rows in int8, on the device's matrix units. Both sides were rotated
// (include/rotate.glsl) and have one scale a row, so that nothing but integers is summed.
//
// A workgroup computes a tile of ROWS weight rows by TOKENS rows of the operand, which its subgroups
// divide among them. A step of the loop brings a chunk of 128 columns of them into shared memory; the
// next one is on its way from memory meanwhile, in registers.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#include "include/rotated_product.glsl"
