// persistent: all layers of a single row in one dispatch, for GPUs whose units are counted.
//
// There is one workgroup for every unit, and all of them are resident until the last layer is done. Every product is
// project_single's: a workgroup has some of the weight rows, forms the whole input row for itself and streams its
// weights. Every attention is attention_single's. But what one operation hands to the next goes through words that
// carry the operation's number (include/words.glsl) instead of memory behind a barrier, and a workgroup asks for the
// first weights of its next product before it waits for that product's input.
//
// The residual stream is formed by every workgroup for itself, in memory of its own that no other reads.
//
// Each wait has a limit. A workgroup that gives up says so and leaves; the others then give up, too, and the host
// plays the step again by other kernels.
//
// Why no word is overwritten before all have read it: each kind of row has words of its own, which are left again a
// layer later. Every workgroup has rows of gate+up, and reads them behind everything that it reads earlier in the layer;
// down waits for all of gate+up, and everything of the next layer for all of down. Rows of gate+up are read by
// workgroups that have rows of down only, for which the next layer waits.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

#define WEIGHTS_BY_ADDRESS
#define HEADS_BY_ADDRESS
#define HEADS_IDS 40
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
// Whether norms are loaded behind the wait for the row, to have fewer registers taken meanwhile.
layout(constant_id = 26) const bool LATE_NORMS = false;
layout(constant_id = 46) const uint SPLITS = 1;
layout(constant_id = 47) const uint LEAST_PAGES = 1;

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

// Mirrors `Layer` in src/program/persistent.rs, word by word.
layout(set = 1, binding = 0, std430) readonly buffer Layers { uint layer_list[]; };
layout(set = 1, binding = 4, std430) readonly buffer Vectors { vec4 vectors[]; };
layout(set = 1, binding = 5, std430) readonly buffer VectorFloats { float vector_floats[]; };
// [workgroup][WIDTH / 4]: each workgroup's residual stream.
layout(set = 1, binding = 6, std430) buffer Residual { vec4 residual[]; };
layout(set = 1, binding = 7, std430) readonly buffer Embedded { vec4 embedded[]; };
// What the head reads: the residual stream, and what the last layer adds to it.
layout(set = 1, binding = 8, std430) writeonly buffer Stream { vec4 stream_left[]; };
layout(set = 1, binding = 9, std430) writeonly buffer Delta { float delta_left[]; };

layout(push_constant) uniform Constants {
    uint layers;
    // Not 0: no layers, but workgroups meet this often.
    uint exchanges;
    // How often a word is asked for, at most.
    uint spins;
    uint query_heads;
    uint kv_heads;
    // Entries of a sequence in a page table.
    uint entries;
    float epsilon;
    float delta_epsilon;
    float feed_epsilon;
    float feed_delta_epsilon;
    float query_epsilon;
    float key_epsilon;
    float scale;
    // Of attention's scores; 0: none.
    float cap;
};

#include "include/words.glsl"
#include "include/prologue.glsl"

// Numbers of a layer's operations.
const uint QKV_LEFT = 0, PARTS_LEFT = 1, ATTENDED = 2, OUT_LEFT = 3, FEED_LEFT = 4, DOWN_LEFT = 5, OPERATIONS = 6;

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
// Columns of q+k+v and of gate+up, and what both give.
const uint HIDDEN = 32 * BLOCKS;

// Fields of a layer: addresses of its weights (two words each), pages and angles, then words.
const uint LAYER_PAGES = 14, LAYER_ANGLES = 16, LAYER_NORM = 18, LAYER_DELTA_NORM = 19, LAYER_FEED_NORM = 20,
           LAYER_FEED_DELTA_NORM = 21, LAYER_BIAS = 22, LAYER_QUERY_NORM = 29, LAYER_KEY_NORM = 30, LAYER_TABLE = 31,
           LAYER_WINDOW = 32, LAYER_TYPES = 33, LAYER_WORDS = 34;

// This layer and the next.
shared uint layer_words[2][LAYER_WORDS];

void load_layer(uint layer) {
    if (layer < layers && gl_LocalInvocationIndex < LAYER_WORDS) {
        layer_words[layer % 2][gl_LocalInvocationIndex] = layer_list[layer * LAYER_WORDS + gl_LocalInvocationIndex];
    }
}

uint layer_field(uint layer, uint at) { return layer_words[layer % 2][at]; }

uint64_t layer_address(uint layer, uint at) {
    return packUint2x32(uvec2(layer_field(layer, at), layer_field(layer, at + 1)));
}

// Where the words of each kind of row begin.
const uint QKV_WORDS = 0;
const uint ATTENDED_WORDS = QKV_WORDS + QUERY_ROWS + 2 * KV_ROWS;
const uint OUT_WORDS = ATTENDED_WORDS + QUERY_ROWS;
const uint FEED_WORDS = OUT_WORDS + WIDTH;
const uint DOWN_WORDS = FEED_WORDS + DOWN_WIDTH;
const uint MEETING_WORDS = DOWN_WORDS + WIDTH;
const uint PARTIAL_WORDS = MEETING_WORDS + 2 * WORKGROUPS;

// What this workgroup computes of the product at hand: `items` slices from group `first` of a part on; further parts
// from group `next`, counted through all parts, to `end`.
struct Own {
    uint part;
    uint first;
    uint items;
    uint next;
    uint end;
    uint column;
    uint bias;
    uint up_bias;
    bool is_a;
    uint64_t weights;
    uint64_t up_weights;
};
Own own;
// The number of what is left now, and whether that is for the head.
uint left_number;
bool is_last;

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
#define ask_for_part JOIN(PRODUCT, ask_for_part)
#define ask JOIN(PRODUCT, ask)
#define multiply_part JOIN(PRODUCT, multiply_part)
#define multiply JOIN(PRODUCT, multiply)
#define put_shared JOIN(PRODUCT, put_shared)
#define form_bare JOIN(PRODUCT, form_bare)

#define PART_WEIGHTS(part) (GATE != 0 && part == 1 ? own.up_weights : own.weights)
#define PART_BIAS(part) (GATE != 0 && part == 1 ? own.up_bias : own.bias)
#define CAP 0.0

#define PRODUCT QKV
#define PART_COUNT 3
#define FIRST_PART 0
#define PART_ROWS(part) (part == 0 ? QUERY_ROWS : KV_ROWS)
#define COLUMN(part) (part == 0 ? 0 : part == 1 ? QUERY_ROWS : QUERY_ROWS + KV_ROWS)
#define PUT_OUTPUT(part, row, value) put_word(QKV_WORDS + own.column + row, left_number, value)
#include "include/product.glsl"
#include "include/product_output.glsl"
#include "include/persistent_product.glsl"
#undef PRODUCT
#undef PART_COUNT
#undef FIRST_PART
#undef PART_ROWS
#undef COLUMN
#undef PUT_OUTPUT

// The others have one part, or a gate's two together.
#define PART_COUNT 1
#define COLUMN(part) 0

#define PRODUCT OUT
#define FIRST_PART 3
#define PART_ROWS(part) HIDDEN
#define PUT_OUTPUT(part, row, value) put_word(OUT_WORDS + row, left_number, value)
#include "include/product.glsl"
#include "include/product_output.glsl"
#include "include/persistent_product.glsl"
#include "include/put_shared.glsl"
#include "include/persistent_bare.glsl"
#undef PRODUCT
#undef FIRST_PART
#undef PART_ROWS
#undef PUT_OUTPUT

#define PRODUCT FEED
#define FIRST_PART 4
#define PART_ROWS(part) DOWN_WIDTH
#define PUT_OUTPUT(part, row, value) put_word(FEED_WORDS + row, left_number, value)
#include "include/product.glsl"
#include "include/product_output.glsl"
#include "include/persistent_product.glsl"
#undef PRODUCT
#undef FIRST_PART
#undef PART_ROWS
#undef PUT_OUTPUT

// The last layer's outputs go to the head as they are.
void put_down(uint row, float value) {
    if (is_last) {
        delta_left[row] = value;
    } else {
        put_word(DOWN_WORDS + row, left_number, value);
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

void load_norms(uint norm, uint delta_norm) {
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        const uint at = min(pass * WORKGROUP + gl_LocalInvocationIndex, WIDTH / 4 - 1);
        parts[pass].norm = vectors[norm + at];
        if (SUM == 2) {
            parts[pass].delta_norm = vectors[delta_norm + at];
        }
    }
}

// Forms the input of q+k+v or of gate+up: the residual stream, to which what `from` leaves is added, as codes. Returns
// what all sums are to be multiplied by.
float form_normed(uint layer, bool is_feed, uint from, uint number) {
    const bool begins = layer == 0 && !is_feed;
    const uint start = gl_WorkGroupID.x * (WIDTH / 4);
    const uint norm = layer_field(layer, is_feed ? LAYER_FEED_NORM : LAYER_NORM);
    const uint delta_norm = layer_field(layer, is_feed ? LAYER_FEED_DELTA_NORM : LAYER_DELTA_NORM);
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        const uint v = pass * WORKGROUP + gl_LocalInvocationIndex;
        const uint at = min(v, WIDTH / 4 - 1);
        const bool inside = v < WIDTH / 4;
        const vec4 x = begins ? embedded[at] : residual[start + at];
        parts[pass].base = inside ? x : vec4(0.0);
        parts[pass].delta = vec4(0.0);
    }
    if (!LATE_NORMS) {
        load_norms(norm, delta_norm);
    }
    if (!begins) {
        bool here;
        uint asked = 0;
        [[dont_unroll]] do {
            here = true;
            [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
                const uint v = pass * WORKGROUP + gl_LocalInvocationIndex;
                vec4 x;
                here = take_four(from + 4 * min(v, WIDTH / 4 - 1), number, x) && here;
                parts[pass].delta = v < WIDTH / 4 ? x : vec4(0.0);
            }
        } while (!here && ask_again(asked));
    }
    if (LATE_NORMS) {
        load_norms(norm, delta_norm);
    }
    const Prologue constants = Prologue(0, 0, 0, 0, is_feed ? feed_epsilon : epsilon,
                                        is_feed ? feed_delta_epsilon : delta_epsilon);
    const float squares = form_sum(constants, gl_WorkGroupID.x, true, parts);
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        const uint v = pass * WORKGROUP + gl_LocalInvocationIndex;
        put_shared(v, parts[pass].base * parts[pass].norm);
        if (is_feed && is_last && gl_WorkGroupID.x == 0 && v < WIDTH / 4) {
            stream_left[v] = parts[pass].base;
        }
    }
    const float sum = subgroupAdd(squares);
    if (subgroupElect()) {
        squares_of[gl_SubgroupID] = sum;
    }
    barrier();
    float all = 0.0;
    [[unroll]] for (uint i = 0; i < WORKGROUP / SUBGROUP; i++) {
        all += squares_of[i];
    }
    return norm_factor(constants, all);
}

// Attention is by the first few subgroups; the others wait with the workgroup, and help to hand on words.
const uint ALL_INVOCATIONS = WORKGROUP / SUBGROUP * SUBGROUP;
const uint ATTENTION_WORKGROUP = 8 * SUBGROUP;
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Pages { uvec4 data[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer AngleTable { float data[]; };
uint64_t pages_address, angles_address;
#define WORKGROUP ATTENTION_WORKGROUP
#define PARTS ATTENTION_PARTS
#define pages Pages(pages_address).data
#define angles AngleTable(angles_address).data
#define vectors vector_floats
#define queries arrived
#define keys arrived
#define values arrived
#define PARTIAL(at) get_float(PARTIAL_WORDS + (at))
#include "include/heads.glsl"
// The query of a head, and the row's own key and value, as q+k+v left them.
shared float arrived[3 * HEAD_DIM];
Heads heads;
#include "include/attend_single.glsl"
#include "include/persistent_attention.glsl"
#undef WORKGROUP

void set_heads(uint layer) {
    pages_address = layer_address(layer, LAYER_PAGES);
    angles_address = layer_address(layer, LAYER_ANGLES);
    heads.kv_heads = kv_heads;
    heads.query_norm = layer_field(layer, LAYER_QUERY_NORM);
    heads.key_norm = layer_field(layer, LAYER_KEY_NORM);
    heads.query_epsilon = query_epsilon;
    heads.key_epsilon = key_epsilon;
    heads.table = layer_field(layer, LAYER_TABLE);
    heads.entries = entries;
}

// All layers, or as many as come before a workgroup gives up. Invocations look at `stuck` between two barriers, so that
// all of them find the same.
void play_layers(uint number) {
    QKV_ask(0);
    [[dont_unroll]] for (uint layer = 0; layer < layers; layer++) {
        is_last = layer == layers - 1;
        left_number = number + QKV_LEFT;
        float factor = form_normed(layer, false, DOWN_WORDS, number - OPERATIONS + DOWN_LEFT);
        if (stuck) {
            return;
        }
        load_layer(layer + 1);
        QKV_multiply(layer, factor);
        set_heads(layer);
        barrier();
        if (!attend(layer_field(layer, LAYER_WINDOW), number)) {
            return;
        }
        // Behind attention, whose keys and values take the same registers.
        OUT_ask(layer);
        left_number = number + OUT_LEFT;
        barrier();
        if (own.items > 0) {
            OUT_form_bare(ATTENDED_WORDS, number + ATTENDED);
            if (stuck) {
                return;
            }
            OUT_multiply(layer, 1.0);
        }
        FEED_ask(layer);
        left_number = number + FEED_LEFT;
        barrier();
        factor = form_normed(layer, true, OUT_WORDS, number + OUT_LEFT);
        if (stuck) {
            return;
        }
        FEED_multiply(layer, factor);
        DOWN_ask(layer);
        left_number = number + DOWN_LEFT;
        barrier();
        if (own.items > 0) {
            DOWN_form_bare(FEED_WORDS, number + FEED_LEFT);
            if (stuck) {
                return;
            }
            DOWN_multiply(layer, 1.0);
        }
        if (!is_last) {
            QKV_ask(layer + 1);
        }
        barrier();
        number += OPERATIONS;
    }
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
    const uint number = atomicLoad(next_number, gl_ScopeDevice, 0, 0);
    if (gl_LocalInvocationIndex == 0) {
        stuck = atomicLoad(gave_up, gl_ScopeDevice, 0, 0) != 0;
    }
    load_layer(0);
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
        play_layers(number);
    }
    depart(number + OPERATIONS * layers);
}
