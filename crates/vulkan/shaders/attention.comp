// attention: norm and rotations of queries, then attention over the pages of a row's sequence.
//
// A workgroup of 128 invocations serves HEADS queries that share a key head, for one row and one
// of SPLITS parts of the visible pages. Two invocations score one token of a page; then an
// invocation sums one vector of values over some of the page's tokens; the softmax runs along,
// page by page. The last part to finish, found by an atomic count, combines what the others left.
//
// With FUSED (each row of another sequence) it also norms, rotates and stores a row's key and
// value: the part with the newest page begins from them, so nothing has to wait for the store.
// With CODES or FRAGMENT_ROWS it leaves its result as codes or as fragments, too, for the product
// that reads it.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "include/common.glsl"
#include "include/epilogue.glsl"
#include "include/fault.glsl"
#include "include/operand.glsl"

layout(local_size_x = 128) in;
const uint WORKGROUP = 128;
#define KV_ACCESS
#include "include/heads.glsl"

layout(constant_id = 6) const uint HEADS = 1;
layout(constant_id = 7) const uint SPLITS = 1;
// Pages of a part, at least.
layout(constant_id = 14) const uint LEAST_PAGES = 1;
layout(constant_id = 8) const bool FUSED = false;
// There is one row.
layout(constant_id = 13) const bool SINGLE = false;
layout(constant_id = 9) const bool CODES = false;
// Values are fetched with the keys, before the scores are known: less waiting, more registers.
layout(constant_id = 10) const bool EARLY = false;

// Rows that the operand of the product that reads the result has room for, where that is fragments.
layout(constant_id = 12) const uint FRAGMENT_ROWS = 0;

layout(set = 1, binding = 6, std430) writeonly buffer Output { float results[]; };
// [row][head][split]: maximum, sum, then HEAD_DIM values.
layout(set = 1, binding = 7, std430) coherent buffer Partials { float partials[]; };
layout(set = 1, binding = 8, std430) coherent buffer Arrivals { uint arrivals[]; };
layout(set = 1, binding = 9, std430) writeonly buffer NextOperand { uint next_operand[]; };
layout(set = 1, binding = 10, std430) writeonly buffer NextMetas { uvec2 next_metas[]; };

layout(push_constant) uniform Constants {
    Heads heads;
    uint query_heads;
    uint output_stride;
    // Tokens a row sees, itself included; 0: all.
    uint window;
    float scale;
    // 0: none.
    float cap;
};

const float NOTHING = -3.0e38;
// Invocations that score one token together.
const uint SCORERS = WORKGROUP / PAGE_TOKENS;
// Invocations that share a vector of values, each taking some tokens.
const uint SHARES = WORKGROUP / VECTORS;
// Those whose sums are kept side by side in the end: with bytes they are too many for all.
const uint KEPT = KV_BYTES ? (SHARES + 1) / 2 : SHARES;
// Subgroups have at least eight invocations.
const uint MOST_SUBGROUPS = WORKGROUP / 8;

shared float head[HEADS][HEAD_DIM];
// The row's own key and value, as they are stored (bytes: as floats, until the scale is known), and
// their scales.
shared uint newest[2][HEAD_DIM];
shared float new_scale[2];
shared float new_score[HEADS];
shared float weights[HEADS][WORKGROUP];
shared float reduction[2][HEADS][MOST_SUBGROUPS];
shared float sums[KEPT][HEADS][HEAD_DIM];
shared uint arrived;

uint new_bits(float x) { return KV_BYTES ? floatBitsToUint(x) : stored_bits(x); }

// Turns the newest key and value into bytes.
void quantise_newest() {
    for (uint which = gl_SubgroupID; which < 2; which += SUBGROUPS) {
        float most = 0.0;
        [[unroll]] for (uint first = 0; first < HEAD_DIM; first += SUBGROUP) {
            const uint d = min(first + gl_SubgroupInvocationID, HEAD_DIM - 1);
            most = max(most, magnitude(uintBitsToFloat(newest[which][d])));
        }
        most = subgroupMax(most);
        const float inverse = inverse_of(most);
        [[unroll]] for (uint first = 0; first < HEAD_DIM; first += SUBGROUP) {
            const uint d = first + gl_SubgroupInvocationID;
            if (d < HEAD_DIM) {
                newest[which][d] = stored_bits(uintBitsToFloat(newest[which][d]) * inverse);
            }
        }
        if (subgroupElect()) {
            new_scale[which] = scale_of(most);
        }
    }
    barrier();
}

// Scale of a token's key (`which` is 0) or value (1).
float token_scale(uint base, uint which, uint token) {
    const uint at = which * PAGE_TOKENS + token;
    return uintBitsToFloat(pages[base + SCALES_AT + at / 4][at % 4]);
}

// Norm and rotations of head `j`: a query, or the key behind the last query.
void form_heads(uint row, uint first_head, uint kv_head) {
    const uint count = FUSED ? HEADS + 1 : HEADS;
    for (uint j = gl_SubgroupID; j < count; j += SUBGROUPS) {
        const bool is_key = j == HEADS;
        const uint start = is_key ? row * heads.key_stride + heads.key_column + kv_head * HEAD_DIM
                                  : row * heads.query_stride + heads.query_column + (first_head + j) * HEAD_DIM;
        const bool normed = is_key ? KEY_NORM : QUERY_NORM;
        const uint norm = is_key ? heads.key_norm : heads.query_norm;
        float factor = 1.0;
        if (normed) {
            float squares = 0.0;
            [[unroll]] for (uint first = 0; first < HEAD_DIM; first += SUBGROUP) {
                const uint d = first + gl_SubgroupInvocationID;
                const float x = d >= HEAD_DIM ? 0.0 : is_key ? keys[start + d] : queries[start + d];
                squares += x * x;
            }
            squares = subgroupAdd(squares);
            const float epsilon = is_key ? heads.key_epsilon : heads.query_epsilon;
            factor = inversesqrt(squares / float(HEAD_DIM) + epsilon);
        }
        [[unroll]] for (uint first = 0; first < HEAD_DIM / 2; first += SUBGROUP) {
            const uint pair = first + gl_SubgroupInvocationID;
            if (pair >= HEAD_DIM / 2) {
                break;
            }
            const uvec2 at = pair_of(pair);
            vec2 x = is_key ? vec2(keys[start + at.x], keys[start + at.y])
                            : vec2(queries[start + at.x], queries[start + at.y]);
            if (normed) {
                x *= factor * vec2(vectors[norm + at.x], vectors[norm + at.y]);
            }
            x = rotated(x, FAULT == WRONG_POSITION && first_head + j == 0 && row > 0 ? row - 1 : row, pair);
            if (is_key) {
                newest[0][at.x] = new_bits(x.x);
                newest[0][at.y] = new_bits(x.y);
            } else {
                head[j][at.x] = x.x * scale;
                head[j][at.y] = x.y * scale;
            }
        }
        if (KEY_ROTATION > 1) {
            subgroupBarrier();
            float x[COLUMNS];
            [[unroll]] for (uint i = 0; i < COLUMNS; i++) {
                x[i] = is_key ? uintBitsToFloat(newest[0][own_column(i)]) : head[min(j, HEADS - 1)][own_column(i)];
            }
            rotate_head(x);
            [[unroll]] for (uint i = 0; i < COLUMNS; i++) {
                if (has_column(i) && is_key) {
                    newest[0][own_column(i)] = new_bits(x[i]);
                } else if (has_column(i)) {
                    head[j][own_column(i)] = x[i];
                }
            }
        }
    }
}

void store_key_and_value(Row source, uint kv_head) {
    const uint token = source.position % PAGE_TOKENS;
    const uint base = head_base(heads, source.sequence, source.position / PAGE_TOKENS, kv_head);
    for (uint v = gl_LocalInvocationIndex; v < VECTORS; v += WORKGROUP) {
        float key[LENGTH], value[LENGTH];
        [[unroll]] for (uint i = 0; i < LENGTH; i++) {
            key[i] = from_bits(newest[0][v * LENGTH + i]);
            value[i] = from_bits(newest[1][v * LENGTH + i]);
            if (FAULT == SWAPPED_KV && kv_head == 0) {
                const float other = key[i];
                key[i] = value[i];
                value[i] = other;
            }
        }
        pages[base + v * PAGE_TOKENS + token] = pack(key);
        pages[base + VALUES_AT + token * VECTORS + v] = pack(value);
    }
    if (KV_BYTES && gl_LocalInvocationIndex < 2) {
        store_scale(base, gl_LocalInvocationIndex, token, new_scale[gl_LocalInvocationIndex]);
    }
}

// The base of a head's page.
uint page_base(uint sequence, uint page, uint kv_head) {
    return head_base(heads, sequence, FAULT == WRONG_PAGE && kv_head == 0 && page == 1 ? 0 : page, kv_head);
}

// The sequence that a head of a row attends to: its own, but for a fault.
uint attended(Row source, uint row, uint kv_head) {
    if (FAULT == OTHER_LANE && kv_head == 0 && row > 0 && play.rows[row - 1].position >= source.position) {
        return play.rows[row - 1].sequence;
    }
    return source.sequence;
}

// Whether an invocation's token of a page is there to be read. A page's unwritten tail may hold
// anything, not-a-number included.
bool is_known(uint page, uint token, uint first, uint known, uint my_share) {
    const uint position = page * PAGE_TOKENS + token;
    return my_share < SHARES && token < PAGE_TOKENS && position < known && position >= first;
}

float capped(float score) { return cap > 0.0 ? soft_cap(score, cap) : score; }

// Scores of the newest token, which is not in memory yet.
void score_newest() {
    for (uint j = gl_SubgroupID; j < HEADS; j += SUBGROUPS) {
        float score = 0.0;
        [[unroll]] for (uint first = 0; first < HEAD_DIM; first += SUBGROUP) {
            const uint d = min(first + gl_SubgroupInvocationID, HEAD_DIM - 1);
            score += first + gl_SubgroupInvocationID < HEAD_DIM ? head[j][d] * from_bits(newest[0][d]) : 0.0;
        }
        score = subgroupAdd(score);
        if (subgroupElect()) {
            new_score[j] = capped(KV_BYTES ? score * new_scale[0] : score);
        }
    }
}

// Writes the result that lies in `head`, and its codes.
void emit(uint row, uint first_head) {
    barrier();
    for (uint at = gl_LocalInvocationIndex; at < HEADS * HEAD_DIM; at += WORKGROUP) {
        results[row * output_stride + first_head * HEAD_DIM + at] = head[at / HEAD_DIM][at % HEAD_DIM];
    }
    if (CODES) {
        // Whole subgroups, because eight invocations hold a block.
        for (uint first = 0; first < HEADS * HEAD_DIM / 4; first += WORKGROUP) {
            const uint v = first + gl_LocalInvocationIndex;
            const bool inside = v < HEADS * HEAD_DIM / 4;
            const uint at = inside ? 4 * v : 0;
            const uint j = at / HEAD_DIM, d = at % HEAD_DIM;
            const Quantised q = quantise(vec4(head[j][d], head[j][d + 1], head[j][d + 2], head[j][d + 3]), false);
            const uint column = first_head * HEAD_DIM / 4 + v;
            if (inside) {
                next_operand[code_word(column, query_heads * HEAD_DIM / 32)] = q.word;
                if (column % 8 == 0) {
                    next_metas[column / 8] = q.meta;
                }
            }
        }
    }
    if (FRAGMENT_ROWS > 0) {
        // A mean of values is no larger than they are, and those are half floats: no scale is
        // needed.
        for (uint v = gl_LocalInvocationIndex; v < HEADS * HEAD_DIM / 4; v += WORKGROUP) {
            const uint j = 4 * v / HEAD_DIM, d = 4 * v % HEAD_DIM;
            const uvec2 words = halves_of(vec4(head[j][d], head[j][d + 1], head[j][d + 2], head[j][d + 3]));
            const uint at = fragment_word(first_head * HEAD_DIM / 4 + v, row, FRAGMENT_ROWS);
            next_operand[at] = words.x;
            next_operand[at + 1] = words.y;
        }
        if (first_head == 0 && gl_LocalInvocationIndex == 0) {
            next_metas[row] = uvec2(floatBitsToUint(1.0), 0);
        }
    }
}

// One long function: with the softmax's arrays passed to functions, RADV keeps them in scratch
// memory where a head's values are bytes and HEADS is 4; cutting off the end alone costs up to 3 %
// more instructions (compiled by tests/phoenix.rs).
void main() {
    const uint row = SINGLE ? 0 : gl_WorkGroupID.x;
    const uint first_head = gl_WorkGroupID.y * HEADS;
    const uint split = gl_WorkGroupID.z;
    if (!SINGLE && row >= play.row_count) {
        return;
    }
    const Row source = play.rows[row];
    const uint queries_a_key = query_heads / heads.kv_heads;
    const uint kv_head = first_head / queries_a_key;
    const uint end = source.position + 1;
    const uint seen = window + (FAULT == LONG_WINDOW ? 1 : 0);
    const uint first = window != 0 && end > seen ? end - seen : 0;
    const uint first_page = first / PAGE_TOKENS;
    const uint page_count = source.position / PAGE_TOKENS + 1 - first_page;
    const uint share = max((page_count + SPLITS - 1) / SPLITS, LEAST_PAGES);
    const uint splits = (page_count + share - 1) / share;
    // The first part is always needed: it does not wait to learn where the row stands.
    if (split > 0 && split >= splits) {
        return;
    }
    const uint lane = gl_LocalInvocationIndex;
    // Looked up before the heads are formed, which takes as long.
    const uint start_page = first_page + split * share;
    const uint sequence = attended(source, row, kv_head);
    uint base = page_base(sequence, start_page, kv_head);
    form_heads(row, first_head, kv_head);
    if (FUSED) {
        const uint start = row * heads.value_stride + heads.value_column + kv_head * HEAD_DIM;
        [[unroll]] for (uint first = 0; first < HEAD_DIM; first += WORKGROUP) {
            const uint d = first + lane;
            if (d >= HEAD_DIM) {
                break;
            }
            newest[1][d] = new_bits(values[start + d]);
        }
    }
    barrier();

    float largest[HEADS], total[HEADS];
    float result[HEADS][LENGTH];
    [[unroll]] for (uint j = 0; j < HEADS; j++) {
        largest[j] = NOTHING;
        total[j] = 0.0;
        [[unroll]] for (uint i = 0; i < LENGTH; i++) {
            result[j][i] = 0.0;
        }
    }
    const uint vector = lane % VECTORS;
    const uint my_share = lane / VECTORS;
    if (FUSED && split == splits - 1) {
        if (KV_BYTES) {
            quantise_newest();
        }
        const bool stale = FAULT == STALE_KEY && kv_head == 0 && (SINGLE || row == play.row_count - 1);
        if (first_head % queries_a_key == 0 && !stale) {
            store_key_and_value(source, kv_head);
        }
        score_newest();
        barrier();
        [[unroll]] for (uint j = 0; j < HEADS; j++) {
            largest[j] = new_score[j];
            total[j] = 1.0;
            if (my_share == 0) {
                [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                    const float value = from_bits(newest[1][vector * LENGTH + i]);
                    result[j][i] = KV_BYTES ? value * new_scale[1] : value;
                }
            }
        }
    }
    // What is in memory already: all but the newest token, if that came with this row.
    const uint known = FUSED ? end - 1 : end;
    const uint last_page = min(first_page + (split + 1) * share, first_page + page_count);
    const uint token = lane % PAGE_TOKENS;
    const uint scorer = lane / PAGE_TOKENS;
    for (uint page = start_page; page < last_page; page++) {
        const uint position = page * PAGE_TOKENS + token;
        const bool visible = position >= first && position < known;
        uvec4 early[EARLY ? (PAGE_TOKENS + SHARES - 1) / SHARES : 1];
        if (EARLY) {
            [[unroll]] for (uint t = 0; t < PAGE_TOKENS; t += SHARES) {
                early[t / SHARES] = is_known(page, t + my_share, first, known, my_share)
                                      ? pages[base + VALUES_AT + (t + my_share) * VECTORS + vector]
                                      : uvec4(0);
            }
        }
        const float key_scale = KV_BYTES && visible ? token_scale(base, 0, token) : 1.0;
        const float value_scale = KV_BYTES && visible ? token_scale(base, 1, token) : 1.0;
        float scores[HEADS];
        [[unroll]] for (uint j = 0; j < HEADS; j++) {
            scores[j] = 0.0;
        }
        if (visible) {
            [[unroll]] for (uint v = 0; v < VECTORS; v += SCORERS) {
                if (v + scorer < VECTORS) {
                    float key[LENGTH];
                    unpack(pages[base + (v + scorer) * PAGE_TOKENS + token], key);
                    [[unroll]] for (uint j = 0; j < HEADS; j++) {
                        [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                            scores[j] += key[i] * head[j][(v + scorer) * LENGTH + i];
                        }
                    }
                }
            }
        }
        [[unroll]] for (uint j = 0; j < HEADS; j++) {
            weights[j][lane] = scores[j];
        }
        barrier();
        [[unroll]] for (uint j = 0; j < HEADS; j++) {
            float score = 0.0;
            [[unroll]] for (uint i = 0; i < SCORERS; i++) {
                score += weights[j][i * PAGE_TOKENS + token];
            }
            scores[j] = visible ? capped(KV_BYTES ? score * key_scale : score) : NOTHING;
            const float best = subgroupMax(scores[j]);
            if (subgroupElect()) {
                reduction[0][j][gl_SubgroupID] = best;
            }
        }
        barrier();
        float before[HEADS];
        [[unroll]] for (uint j = 0; j < HEADS; j++) {
            before[j] = largest[j];
            [[unroll]] for (uint i = 0; i < SUBGROUPS; i++) {
                largest[j] = max(largest[j], reduction[0][j][i]);
            }
            // The invocations that scored a token together hold the same weight: one of them
            // counts.
            const float weight = visible && scorer == 0 ? exp(scores[j] - largest[j]) : 0.0;
            if (scorer == 0) {
                weights[j][token] = KV_BYTES ? weight * value_scale : weight;
            }
            const float sum = subgroupAdd(weight);
            if (subgroupElect()) {
                reduction[1][j][gl_SubgroupID] = sum;
            }
        }
        barrier();
        [[unroll]] for (uint j = 0; j < HEADS; j++) {
            const float factor = exp(before[j] - largest[j]);
            total[j] *= factor;
            [[unroll]] for (uint i = 0; i < SUBGROUPS; i++) {
                total[j] += reduction[1][j][i];
            }
            [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                result[j][i] *= factor;
            }
        }
        [[unroll]] for (uint t = 0; t < PAGE_TOKENS; t += SHARES) {
            const uint at = t + my_share;
            if (EARLY || is_known(page, at, first, known, my_share)) {
                float value[LENGTH];
                unpack(EARLY ? early[t / SHARES] : pages[base + VALUES_AT + at * VECTORS + vector], value);
                [[unroll]] for (uint j = 0; j < HEADS; j++) {
                    const float weight = weights[j][min(at, PAGE_TOKENS - 1)];
                    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                        result[j][i] += weight * value[i];
                    }
                }
            }
        }
        if (page + 1 < last_page) {
            base = page_base(sequence, page + 1, kv_head);
        }
        barrier();
    }
    if (KEPT < SHARES) {
        // The later shares leave theirs for the earlier ones to add.
        if (my_share >= KEPT && my_share < SHARES) {
            [[unroll]] for (uint j = 0; j < HEADS; j++) {
                [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                    sums[my_share - KEPT][j][vector * LENGTH + i] = result[j][i];
                }
            }
        }
        barrier();
    }
    if (my_share < KEPT) {
        [[unroll]] for (uint j = 0; j < HEADS; j++) {
            [[unroll]] for (uint i = 0; i < LENGTH; i++) {
                const uint d = vector * LENGTH + i;
                const bool followed = KEPT < SHARES && my_share + KEPT < SHARES;
                const float other = followed ? sums[my_share][j][d] : 0.0;
                sums[my_share][j][d] = result[j][i] + other;
            }
        }
    }
    barrier();
    const uint slot = row * query_heads + first_head;
    [[unroll]] for (uint j = 0; j < HEADS; j++) {
        for (uint d = lane; d < HEAD_DIM; d += WORKGROUP) {
            float sum = 0.0;
            [[unroll]] for (uint i = 0; i < KEPT; i++) {
                sum += sums[i][j][d];
            }
            if (splits == 1) {
                head[j][d] = sum / total[j];
            } else {
                partials[((slot + j) * SPLITS + split) * (HEAD_DIM + 2) + 2 + d] = sum;
            }
        }
        if (splits > 1 && lane == 0) {
            partials[((slot + j) * SPLITS + split) * (HEAD_DIM + 2)] = largest[j];
            partials[((slot + j) * SPLITS + split) * (HEAD_DIM + 2) + 1] = total[j];
        }
    }
    if (splits == 1) {
        emit(row, first_head);
        return;
    }
    memoryBarrierBuffer();
    barrier();
    const uint counter = row * (query_heads / HEADS) + gl_WorkGroupID.y;
    if (lane == 0) {
        arrived = atomicAdd(arrivals[counter], 1);
        if (arrived == splits - 1) {
            // For the next play.
            arrivals[counter] = 0;
        }
    }
    barrier();
    if (arrived != splits - 1) {
        return;
    }
    memoryBarrierBuffer();
    const uint parts = FAULT == LOST_SPLIT && first_head == 0 ? splits - 1 : splits;
    [[unroll]] for (uint j = 0; j < HEADS; j++) {
        const uint start = (slot + j) * SPLITS * (HEAD_DIM + 2);
        float best = NOTHING;
        for (uint i = 0; i < parts; i++) {
            best = max(best, partials[start + i * (HEAD_DIM + 2)]);
        }
        float whole = 0.0;
        for (uint i = 0; i < parts; i++) {
            whole += partials[start + i * (HEAD_DIM + 2) + 1] * exp(partials[start + i * (HEAD_DIM + 2)] - best);
        }
        for (uint d = lane; d < HEAD_DIM; d += WORKGROUP) {
            float sum = 0.0;
            for (uint i = 0; i < parts; i++) {
                sum += partials[start + i * (HEAD_DIM + 2) + 2 + d] * exp(partials[start + i * (HEAD_DIM + 2)] - best);
            }
            head[j][d] = sum / whole;
        }
    }
    emit(row, first_head);
}
