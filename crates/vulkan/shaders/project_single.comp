// project_single: a product of quantised weights with a single row, for GPUs whose units are counted.
//
// There is one workgroup for every unit, all under way at once. A workgroup has some of the weight
// rows, in groups of as many as a subgroup takes side by side, and cuts each into SLICES by columns.
// A subgroup streams one slice after another, a batch of blocks at a time: as soon as a block is used,
// the same registers are asked for the block of the next batch. Its first batch is on its way while
// the input row is formed, which every workgroup does for itself: residual sum, norms, codes. So
// kernels hand on plain rows of floats, and none waits for the last workgroup of the one before to
// form anything.
//
// A norm's factor is the same for all columns. It multiplies the sums in the end, so that codes do
// not wait for it.
#version 460
#extension GL_GOOGLE_include_directive : require
#define CHAIN_BINDING 9
#include "include/common.glsl"
#include "include/operand.glsl"
#include "include/weights.glsl"
#include "include/block_product.glsl"
#include "include/epilogue.glsl"
#include "include/fault.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 512;
// Parts have one of two types; of a gate the first has TYPE_A, the second TYPE_B.
layout(constant_id = 1) const uint TYPE_A = 3;
layout(constant_id = 2) const uint TYPE_B = 3;
// Invocations that share a weight row.
layout(constant_id = 3) const uint ROW_INVOCATIONS = 8;
// Weight rows of each part of a gate, or of the part, that an invocation carries at once.
layout(constant_id = 4) const uint HEIGHT = 1;
// Blocks of each that it has under way: those of a batch.
layout(constant_id = 5) const uint UNROLL = 1;
layout(constant_id = 6) const uint SLICES = 1;
// 0: none; 1: silu(part 0) * part 1; 2: gelu(part 0) * part 1.
layout(constant_id = 7) const uint GATE = 0;
layout(constant_id = 8) const bool REFINED = false;
layout(constant_id = 9) const uint BLOCKS = 1;
// Groups of rows that a workgroup has at most, where they are cut into slices.
layout(constant_id = 15) const uint MOST_GROUPS = 1;
layout(constant_id = 16) const uint WORKGROUPS = 1;

layout(set = 1, binding = 3, std430) readonly buffer Vectors { vec4 vectors[]; };
layout(set = 1, binding = 4, std430) readonly buffer VectorFloats { float vector_floats[]; };
layout(set = 1, binding = 5, std430) HANDED_ON writeonly buffer Output { float values[]; };
layout(set = 1, binding = 6, std430) HANDED_ON readonly buffer Base { vec4 base[]; };
layout(set = 1, binding = 7, std430) HANDED_ON readonly buffer Delta { vec4 delta[]; };
layout(set = 1, binding = 8, std430) HANDED_ON writeonly buffer Residual { vec4 residual[]; };

#include "include/prologue.glsl"

const uint COUNT = REFINED ? 2 : 1;
const uint SHARED_BLOCKS = COUNT * BLOCKS;
#include "include/shared_row.glsl"

const uint NO_BIAS = 0xffffffffu;

layout(push_constant) uniform Constants {
    // Rows of each part, its first workgroup, the output's column it begins at, its bias.
    uint part_rows[3];
    uint part_group[3];
    uint part_column[3];
    uint part_bias[3];
    // Bit p: part p has TYPE_B. Bit 8: the new residual stream is kept.
    uint flags;
    uint output_stride;
    float cap;
    Prologue constants;
    CHAIN_LINK
};

// Passes over a row that are loaded at once where nothing needs the whole row.
const uint PASSES_AT_ONCE = PASSES < 6 ? PASSES : 6;
// Nothing needs the whole row at once; some such rows are too wide to be in registers.
const bool BARE = SUM == 0 && !NORM;

shared float squares_of[64];

#include "include/product.glsl"

// What the input row is formed from: all of it where a norm needs the whole row at once, else the
// first passes.
RowParts parts[PASSES];
vec4 first_passes[PASSES_AT_ONCE];

void load_passes(uint first) {
    const uint row = (SELECT ? play.logit_rows[0] : 0) * constants.base_stride;
    [[unroll]] for (uint i = 0; i < PASSES_AT_ONCE; i++) {
        const uint v = (first + i) * WORKGROUP + gl_LocalInvocationIndex;
        first_passes[i] = v < WIDTH / 4 ? base[row + v] : vec4(0.0);
    }
}

void load_row() {
    if (BARE) {
        load_passes(0);
    } else {
#ifdef CHAINED
        load_some(constants, 0, true, false, parts);
#else
        load_parts(constants, 0, parts);
#endif
    }
}

// Forms the input row as codes in shared memory. Returns what all sums are to be multiplied by.
float form_codes() {
    if (BARE) {
        [[unroll]] for (uint first = 0; first < PASSES; first += PASSES_AT_ONCE) {
            if (first > 0) {
                load_passes(first);
            }
            [[unroll]] for (uint i = 0; i < PASSES_AT_ONCE; i++) {
                if (first + i < PASSES) {
                    put_shared((first + i) * WORKGROUP + gl_LocalInvocationIndex, first_passes[i]);
                }
            }
        }
        barrier();
        return 1.0;
    }
    const float squares = form_sum(constants, 0, (flags & 0x100u) != 0 && gl_WorkGroupID.x == 0, parts);
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        const vec4 x = parts[pass].base;
        put_shared(pass * WORKGROUP + gl_LocalInvocationIndex, NORM ? x * parts[pass].norm : x);
    }
    if (!NORM) {
        barrier();
        return 1.0;
    }
    const float sum = subgroupAdd(squares);
    if (subgroupElect()) {
        squares_of[gl_SubgroupID] = sum;
    }
    barrier();
    float total = 0.0;
    [[unroll]] for (uint i = 0; i < SUBGROUPS; i++) {
        total += squares_of[i];
    }
    return norm_factor(constants, total);
}

#include "include/product_output.glsl"

void fetch_first(bool is_a, uint part, Item item) {
    if (is_a) {
        fetch_all(TYPE_A, part, item);
    } else {
        fetch_all(TYPE_B, part, item);
    }
}

void main() {
    const uint workgroup = gl_WorkGroupID.x;
    uint part = 0;
    uint end = WORKGROUPS;
    if (GATE == 0) {
        part = workgroup >= part_group[2] ? 2 : workgroup >= part_group[1] ? 1 : 0;
        end = part < 2 ? min(end, part_group[part + 1]) : end;
    }
    // This workgroup's groups of rows.
    const uint groups = (part_rows[part] + GROUP_ROWS - 1) / GROUP_ROWS;
    const uint place = workgroup - part_group[part], places = end - part_group[part];
    const uint first = groups * place / places;
    const uint items = (groups * (place + 1) / places - first) * SLICES;
    const bool is_a = GATE != 0 || TYPE_A == TYPE_B || (flags & (1u << part)) == 0;

    const Item item = item_at(first, min(gl_SubgroupID, max(items, 1) - 1), 0);
#ifdef CHAINED
    // The subgroup that asks whether the row has come has no weights under way: it would get the answer behind them.
    if (gl_SubgroupID != 0) {
        fetch_first(is_a, part, item);
    }
    if (!BARE) {
        load_some(constants, 0, false, true, parts);
    }
    await_link(chain_link);
    load_row();
    if (gl_SubgroupID == 0) {
        fetch_first(is_a, part, item);
    }
#else
    load_row();
    fetch_first(is_a, part, item);
#endif
    const float factor = form_codes();
    if (is_a) {
        stream(TYPE_A, part, first, items, factor);
    } else {
        stream(TYPE_B, part, first, items, factor);
    }
    if (SLICES > 1) {
        barrier();
        for (uint at = gl_LocalInvocationIndex; at < items / SLICES * GROUP_ROWS; at += WORKGROUP) {
            float sums[PARTS_AT_ONCE];
            [[unroll]] for (uint p = 0; p < PARTS_AT_ONCE; p++) {
                sums[p] = 0.0;
                [[unroll]] for (uint slice = 0; slice < SLICES; slice++) {
                    sums[p] += shared_sums[(at * PARTS_AT_ONCE + p) * SLICES + slice];
                }
            }
            put_output(part, first * GROUP_ROWS + at, factor, sums[0], sums[PARTS_AT_ONCE - 1]);
        }
    }
#ifdef CHAINED
    leave_link(chain_link);
#endif
}
