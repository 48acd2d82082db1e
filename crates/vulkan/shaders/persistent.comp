// persistent: what stands between two attentions of a single row, in one dispatch, for GPUs whose units are counted:
// output, gate+up and down of a layer, then q+k+v of the next. The first q+k+v is project_single's; the last ends with down.
//
// There is one workgroup for every unit, and all of them are resident until the last product is done. Every product is
// project_single's: a workgroup has some of the weight rows, forms the whole input row for itself and streams its
// weights. But what one product hands to the next goes through words that carry the product's number
// (include/words.glsl) instead of memory behind a barrier, and a workgroup asks for the first weights of its next
// product before it waits for that product's input. Attention is a dispatch of its own, because its keys and values
// would take the registers that hold weights ahead.
//
// The residual stream is formed by every workgroup for itself, in memory of its own that no other reads.
//
// Each wait has a limit. A workgroup that gives up says so and leaves; the others then give up, too, and the host
// plays the step again by other kernels.
//
// Why no word is overwritten before all have read it: each kind of row has words of its own, which are left once a
// dispatch. Why no row of the arena is: every workgroup has rows of gate+up, for all of which down waits, so that
// attention's result has been read when the first row of down or of q+k+v is left.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

// Weights of q, k and v of the layer that begins, then of output, gate, up and down of the one that ends.
#define PARTS 7
#define ROWS_FROM_ELSEWHERE
#include "include/common.glsl"
#include "include/operand.glsl"
#include "include/weights.glsl"
#include "include/block_product.glsl"
#include "include/epilogue.glsl"
#include "include/fault.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 512;
layout(constant_id = 22) const uint WORKGROUPS = 1;
// A workgroup that leaves at once, in tests.
layout(constant_id = 23) const uint ABSENT = 0xffffffffu;
// The gate's activation. 1: silu; 2: gelu.
layout(constant_id = 24) const uint FEED_GATE = 1;
// Rows of keys, and of values.
layout(constant_id = 25) const uint KV_ROWS = 64;
// Constants of each product as in project_single.comp.
layout(constant_id = 50) const uint QKV_TYPE_A = 3;
layout(constant_id = 51) const uint QKV_TYPE_B = 3;
layout(constant_id = 52) const uint QKV_ROW_INVOCATIONS = 8;
layout(constant_id = 53) const uint QKV_HEIGHT = 1;
layout(constant_id = 54) const uint QKV_UNROLL = 1;
layout(constant_id = 55) const uint QKV_SLICES = 1;
layout(constant_id = 56) const uint QKV_MOST_GROUPS = 1;
layout(constant_id = 60) const uint OUT_TYPE_A = 3;
layout(constant_id = 61) const uint OUT_TYPE_B = 3;
layout(constant_id = 62) const uint OUT_ROW_INVOCATIONS = 8;
layout(constant_id = 63) const uint OUT_HEIGHT = 1;
layout(constant_id = 64) const uint OUT_UNROLL = 1;
layout(constant_id = 65) const uint OUT_SLICES = 1;
layout(constant_id = 66) const uint OUT_MOST_GROUPS = 1;
layout(constant_id = 67) const uint OUT_BLOCKS = 1;
layout(constant_id = 70) const uint FEED_TYPE_A = 3;
layout(constant_id = 71) const uint FEED_TYPE_B = 3;
layout(constant_id = 72) const uint FEED_ROW_INVOCATIONS = 8;
layout(constant_id = 73) const uint FEED_HEIGHT = 1;
layout(constant_id = 74) const uint FEED_UNROLL = 1;
layout(constant_id = 75) const uint FEED_SLICES = 1;
layout(constant_id = 76) const uint FEED_MOST_GROUPS = 1;
layout(constant_id = 80) const uint DOWN_TYPE_A = 3;
layout(constant_id = 81) const uint DOWN_TYPE_B = 3;
layout(constant_id = 82) const uint DOWN_ROW_INVOCATIONS = 8;
layout(constant_id = 83) const uint DOWN_HEIGHT = 1;
layout(constant_id = 84) const uint DOWN_UNROLL = 1;
layout(constant_id = 85) const uint DOWN_SLICES = 1;
layout(constant_id = 86) const uint DOWN_MOST_GROUPS = 1;
layout(constant_id = 87) const uint DOWN_BLOCKS = 1;

layout(set = 1, binding = 6, std430) readonly buffer Vectors { vec4 vectors[]; };
layout(set = 1, binding = 7, std430) readonly buffer VectorFloats { float vector_floats[]; };
// [workgroup][WIDTH / 4]: each workgroup's residual stream.
layout(set = 1, binding = 8, std430) buffer Residual { vec4 residual[]; };
layout(set = 1, binding = 9, std430) readonly buffer Embedded { vec4 embedded[]; };
// What the head reads: the residual stream, and what the last layer adds to it.
layout(set = 1, binding = 10, std430) writeonly buffer Stream { vec4 stream_left[]; };
layout(set = 1, binding = 11, std430) writeonly buffer Delta { float delta_left[]; };
// What attention left, and what it reads next: queries, keys, values.
layout(set = 1, binding = 12, std430) readonly buffer Attended { vec4 attended[]; };
layout(set = 1, binding = 13, std430) writeonly buffer Heads { float heads_left[]; };

layout(push_constant) uniform Constants {
    // Bit p: weight p has the second type of its product. Bit 8: this is the first layer, bit 9: the last.
    uint flags;
    // Not 0: no products, but workgroups meet this often.
    uint exchanges;
    // How often a word is asked for, at most.
    uint spins;
    // Norms of q+k+v's input and of what is added to the residual stream there, then the same of gate+up, in `vectors`.
    uint norms[4];
    float epsilons[4];
    // Of the seven weights.
    uint biases[7];
    // Where queries, keys and values begin in what attention reads.
    uint head_columns[3];
};

#include "include/words.glsl"
#include "include/prologue.glsl"

// Numbers of a dispatch's products.
const uint OUT_LEFT = 0, FEED_LEFT = 1, DOWN_LEFT = 2, PRODUCTS = 3;

const bool REFINED = false;
const uint COUNT = 1;
const uint BLOCKS = WIDTH / 32;
const uint MOST_BLOCKS = OUT_BLOCKS > DOWN_BLOCKS ? OUT_BLOCKS : DOWN_BLOCKS;
const uint SHARED_BLOCKS = BLOCKS > MOST_BLOCKS ? BLOCKS : MOST_BLOCKS;
#include "include/shared_row.glsl"

shared float squares_of[64];

const uint NO_BIAS = 0xffffffffu;
const uint QUERY_ROWS = 32 * OUT_BLOCKS;
// Constants of products that follow from others.
const uint QKV_BLOCKS = BLOCKS, FEED_BLOCKS = BLOCKS;
const uint OUT_WIDTH = 32 * OUT_BLOCKS, DOWN_WIDTH = 32 * DOWN_BLOCKS;
const uint QKV_GATE = 0, OUT_GATE = 0, DOWN_GATE = 0;
// Columns of q+k+v and of gate+up, and rows of output and down.
const uint HIDDEN = 32 * BLOCKS;

// Where the words of each kind of row begin.
const uint ROW_ROOM = (WIDTH + ROW_WORDS - 1) / ROW_WORDS * ROW_WORDS;
const uint FEED_ROOM = (DOWN_WIDTH + ROW_WORDS - 1) / ROW_WORDS * ROW_WORDS;
const uint OUT_WORDS = 0;
const uint FEED_WORDS = OUT_WORDS + ROW_ROOM;
const uint DOWN_WORDS = FEED_WORDS + FEED_ROOM;
const uint MEETING_WORDS = DOWN_WORDS + ROW_ROOM;

// What this workgroup computes of the product at hand: `items` slices from group `first` of a part on; further parts
// from group `next`, counted through all parts, to `end`.
struct Own {
    uint part;
    uint first;
    uint items;
    uint next;
    uint end;
};
Own own;
// The number of what is left now.
uint left_number;

const uint FIRST_LAYER = 0x100, LAST_LAYER = 0x200;

// Names that each product has of its own.
#define JOIN_NAMES(a, b) a##_##b
#define JOIN(a, b) JOIN_NAMES(a, b)
#define TYPE_A JOIN(PRODUCT, TYPE_A)
#define TYPE_B JOIN(PRODUCT, TYPE_B)
#define ROW_INVOCATIONS JOIN(PRODUCT, ROW_INVOCATIONS)
#define HEIGHT JOIN(PRODUCT, HEIGHT)
#define UNROLL JOIN(PRODUCT, UNROLL)
#define SLICES JOIN(PRODUCT, SLICES)
#define MOST_GROUPS JOIN(PRODUCT, MOST_GROUPS)
#define GATE JOIN(PRODUCT, GATE)
#define BLOCKS JOIN(PRODUCT, BLOCKS)
#define WIDTH JOIN(PRODUCT, WIDTH)
#define SUBGROUPS JOIN(PRODUCT, SUBGROUPS)
#define PARTS_AT_ONCE JOIN(PRODUCT, PARTS_AT_ONCE)
#define ROWS JOIN(PRODUCT, ROWS)
#define GROUP_ROWS JOIN(PRODUCT, GROUP_ROWS)
#define BATCH JOIN(PRODUCT, BATCH)
#define BATCHES JOIN(PRODUCT, BATCHES)
#define WHOLE JOIN(PRODUCT, WHOLE)
#define shared_sums JOIN(PRODUCT, shared_sums)
#define raw JOIN(PRODUCT, raw)
#define Item JOIN(PRODUCT, Item)
#define item_at JOIN(PRODUCT, item_at)
#define fetch JOIN(PRODUCT, fetch)
#define fetch_all JOIN(PRODUCT, fetch_all)
#define add_block JOIN(PRODUCT, add_block)
#define put_output JOIN(PRODUCT, put_output)
#define finish JOIN(PRODUCT, finish)
#define stream JOIN(PRODUCT, stream)
#define part_groups JOIN(PRODUCT, part_groups)
#define is_first_type JOIN(PRODUCT, is_first_type)
#define ask_for_part JOIN(PRODUCT, ask_for_part)
#define ask JOIN(PRODUCT, ask)
#define multiply_part JOIN(PRODUCT, multiply_part)
#define multiply JOIN(PRODUCT, multiply)
#define put_shared JOIN(PRODUCT, put_shared)
#define form_bare JOIN(PRODUCT, form_bare)

#define PART_WEIGHTS(part) (FIRST_PART + (part))
#define PART_BIAS(part) biases[min(FIRST_PART + (part), PARTS - 1)]
#define CAP 0.0

#define PRODUCT QKV
#define PART_COUNT 3
#define FIRST_PART 0
#define PART_ROWS(part) (part == 0 ? QUERY_ROWS : KV_ROWS)
#define PUT_OUTPUT(part, row, value) heads_left[head_columns[part] + row] = value
#include "include/product.glsl"
#include "include/product_output.glsl"
#include "include/persistent_product.glsl"
#undef PRODUCT
#undef PART_COUNT
#undef FIRST_PART
#undef PART_ROWS
#undef PUT_OUTPUT

// The others have one part, or a gate's two together.
#define PART_COUNT 1

#define PRODUCT OUT
#define FIRST_PART 3
#define PART_ROWS(part) HIDDEN
#define PUT_OUTPUT(part, row, value) put_word(OUT_WORDS + word_of(row), left_number, value)
#include "include/product.glsl"
#include "include/product_output.glsl"
#include "include/persistent_product.glsl"
#include "include/put_shared.glsl"
#undef PRODUCT
#undef FIRST_PART
#undef PART_ROWS
#undef PUT_OUTPUT

#define PRODUCT FEED
#define FIRST_PART 4
#define PART_ROWS(part) DOWN_WIDTH
#define PUT_OUTPUT(part, row, value) put_word(FEED_WORDS + word_of(row), left_number, value)
#include "include/product.glsl"
#include "include/product_output.glsl"
#include "include/persistent_product.glsl"
#undef PRODUCT
#undef FIRST_PART
#undef PART_ROWS
#undef PUT_OUTPUT

// The last layer's outputs go to the head as they are.
void put_down(uint row, float value) {
    if ((flags & LAST_LAYER) != 0) {
        delta_left[row] = value;
    } else {
        put_word(DOWN_WORDS + word_of(row), left_number, value);
    }
}

#define PRODUCT DOWN
#define FIRST_PART 6
#define PART_ROWS(part) HIDDEN
#define PUT_OUTPUT(part, row, value) put_down(row, value)
#include "include/product.glsl"
#include "include/product_output.glsl"
#include "include/persistent_product.glsl"
#include "include/put_shared.glsl"
#include "include/persistent_bare.glsl"
#undef PRODUCT
#undef SUBGROUPS
#undef WIDTH
#undef put_shared

// What a product behind a norm forms its input from.
RowParts parts[PASSES];

// Forms the input of q+k+v or of gate+up: the residual stream, to which what `from` leaves is added, as codes. Returns
// what all sums are to be multiplied by.
float form_normed(const bool is_feed, uint from, uint number) {
    const bool begins = is_feed && (flags & FIRST_LAYER) != 0;
    const uint start = gl_WorkGroupID.x * (WIDTH / 4);
    const uint which = is_feed ? 2 : 0;
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        const uint v = pass * WORKGROUP + gl_LocalInvocationIndex;
        const uint at = min(v, WIDTH / 4 - 1);
        const vec4 x = begins ? embedded[at] : residual[start + at];
        parts[pass].base = v < WIDTH / 4 ? x : vec4(0.0);
        parts[pass].norm = vectors[norms[which] + at];
        if (SUM == 2) {
            parts[pass].delta_norm = vectors[norms[which + 1] + at];
        }
    }
    await_some(from, min(gl_LocalInvocationIndex, WIDTH / 4 - 1), number);
    bool here;
    uint asked = 0;
    [[dont_unroll]] do {
        here = true;
        [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
            const uint v = pass * WORKGROUP + gl_LocalInvocationIndex;
            vec4 x;
            here = take_four(from, min(v, WIDTH / 4 - 1), number, x) && here;
            parts[pass].delta = v < WIDTH / 4 ? x : vec4(0.0);
        }
    } while (!here && ask_again(asked));
    const Prologue constants = Prologue(0, 0, 0, 0, epsilons[which], epsilons[which + 1]);
    const float squares = form_sum(constants, gl_WorkGroupID.x, true, parts);
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        const uint v = pass * WORKGROUP + gl_LocalInvocationIndex;
        put_shared(v, parts[pass].base * parts[pass].norm);
    }
    const float sum = subgroupAdd(squares);
    if (subgroupElect()) {
        squares_of[gl_SubgroupID] = sum;
    }
    barrier();
    // Behind the barrier all of the row has come, so that every workgroup has read attention's result, which may lie
    // in the same place.
    if (is_feed && (flags & LAST_LAYER) != 0 && gl_WorkGroupID.x == 0) {
        [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
            const uint v = pass * WORKGROUP + gl_LocalInvocationIndex;
            if (v < WIDTH / 4) {
                stream_left[v] = parts[pass].base;
            }
        }
    }
    float all = 0.0;
    [[unroll]] for (uint i = 0; i < WORKGROUP / SUBGROUP; i++) {
        all += squares_of[i];
    }
    return norm_factor(constants, all);
}

// Forms the input of the output product: what attention left.
void form_attended() {
    const uint AT_A_TIME = 4;
    [[dont_unroll]] for (uint first = 0; first < OUT_WIDTH / 4; first += AT_A_TIME * WORKGROUP) {
        vec4 x[AT_A_TIME];
        [[unroll]] for (uint i = 0; i < AT_A_TIME; i++) {
            const uint v = first + i * WORKGROUP + gl_LocalInvocationIndex;
            x[i] = v < OUT_WIDTH / 4 ? attended[v] : vec4(0.0);
        }
        [[unroll]] for (uint i = 0; i < AT_A_TIME; i++) {
            OUT_put_shared(first + i * WORKGROUP + gl_LocalInvocationIndex, x[i]);
        }
    }
    barrier();
}

// Plays the products, or as many as come before a workgroup gives up. Invocations look at `stuck` between two barriers,
// so that all of them find the same.
void play_products(uint number) {
    if (own.items > 0) {
        left_number = number + OUT_LEFT;
        form_attended();
        OUT_multiply(1.0);
    }
    FEED_ask();
    left_number = number + FEED_LEFT;
    barrier();
    float factor = form_normed(true, OUT_WORDS, number + OUT_LEFT);
    if (stuck) {
        return;
    }
    FEED_multiply(factor);
    DOWN_ask();
    left_number = number + DOWN_LEFT;
    barrier();
    if (own.items > 0) {
        DOWN_form_bare(FEED_WORDS, number + FEED_LEFT);
        if (stuck) {
            return;
        }
        DOWN_multiply(1.0);
    }
    if ((flags & LAST_LAYER) != 0) {
        return;
    }
    QKV_ask();
    barrier();
    factor = form_normed(false, DOWN_WORDS, number + DOWN_LEFT);
    if (stuck) {
        return;
    }
    QKV_multiply(factor);
}

// Workgroups meet: each leaves a word and waits for all others', again and again. Two words each, so that none is
// overwritten before all have read it.
void meet(uint number) {
    [[dont_unroll]] for (uint n = 0; n < exchanges; n++) {
        const uint start = MEETING_WORDS + n % 2 * WORKGROUPS;
        if (gl_LocalInvocationIndex == 0) {
            put_word(start + gl_WorkGroupID.x, number + n, float(gl_WorkGroupID.x + n));
        }
        barrier();
        for (uint i = gl_LocalInvocationIndex; i < WORKGROUPS; i += WORKGROUP) {
            if (await_float(start + i, number + n) != float(i + n)) {
                stuck = true;
                atomicStore(notice, 1u, gl_ScopeDevice, 0, 0);
            }
        }
        barrier();
        if (stuck) {
            return;
        }
    }
}

// Counts this workgroup out. The last one gives the numbers that were used to the past: all have read the first one
// by then. They begin again before they overflow; no word is left that long.
void depart(uint next) {
    barrier();
    if (gl_LocalInvocationIndex == 0) {
        const uint before = atomicAdd(departed, 1u, gl_ScopeDevice, 0, 0);
        if (before == WORKGROUPS - 1) {
            atomicStore(departed, 0u, gl_ScopeDevice, 0, 0);
            atomicStore(next_number, next > 0xfff00000u ? 1u : next, gl_ScopeDevice, 0, 0);
        }
    }
}

void main() {
    // Before anything else.
    OUT_ask();
    const uint number = atomicLoad(next_number, gl_ScopeDevice, 0, 0);
    if (gl_LocalInvocationIndex == 0) {
        stuck = atomicLoad(gave_up, gl_ScopeDevice, 0, 0) != 0;
    }
    barrier();
    if (exchanges > 0) {
        if (!stuck) {
            meet(number);
        }
        depart(number + exchanges);
        return;
    }
    if (gl_WorkGroupID.x == ABSENT) {
        return;
    }
    if (!stuck) {
        play_products(number);
    }
    depart(number + PRODUCTS);
}
