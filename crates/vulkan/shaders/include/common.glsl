// What every kernel begins with: extensions, the step, the page tables.
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require

// A token of some sequence at some position; mirrors `pianola_plan::Row`.
struct Row {
    uint token;
    uint sequence;
    uint position;
    uint reserved;
};

// Rows that follow one another in one sequence; mirrors `Block` in src/step.rs.
struct Block {
    uint first_row;
    uint row_count;
};

const uint MAX_ROWS = 512;
const uint BLOCK_ROWS = 64;
const uint PAGE_TOKENS = 64;

// The little that changes between plays; mirrors src/step.rs.
layout(set = 0, binding = 0, std430) readonly buffer StepBuffer {
    uint row_count;
    uint logit_count;
    uint block_count;
    uint reserved;
    Row rows[MAX_ROWS];
    // Indices into `rows` that want logits.
    uint logit_rows[MAX_ROWS];
    // All rows, in blocks of at most BLOCK_ROWS.
    Block blocks[MAX_ROWS];
} play;

// Page of tokens `index * PAGE_TOKENS ..` of a sequence: [group][sequence][index].
layout(set = 0, binding = 1, std430) readonly buffer PageTables {
    uint page_tables[];
};

#include "chain.glsl"
