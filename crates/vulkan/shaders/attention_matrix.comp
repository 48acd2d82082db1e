// attention_matrix: norm and rotation of queries, then attention over the pages of a sequence, on
// the device's matrix units.
//
// A workgroup serves one query head of ROWS rows that follow one another in one sequence. TOKENS
// tokens at a time pass through shared memory, first their keys, then their values; what comes next
// is on its way from memory meanwhile, in registers. SPLIT subgroups share a matrix of SIDE rows:
// of its scores each computes some tokens, of its result some columns. The softmax runs along, with
// LANES invocations for a row.
//
// Queries and weights are rounded to half floats, as keys and values are stored; sums are f32. A
// row's result does not depend on the rows beside it: tokens that it does not see have a weight of
// zero and leave its sums as they are.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#include "include/common.glsl"
#include "include/epilogue.glsl"
#include "include/operand.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint WORKGROUP = 128;
#define KV_ACCESS restrict
#include "include/heads.glsl"

// Rows, columns and depth of a matrix.
layout(constant_id = 6) const uint SIDE = 16;
layout(constant_id = 7) const uint TOKENS = 32;
layout(constant_id = 8) const uint SPLIT = 1;
// Queries stay in registers instead of shared memory.
layout(constant_id = 9) const bool KEEP = false;
// Rows that the operand of the product that reads the result has room for, where that is fragments.
layout(constant_id = 12) const uint FRAGMENT_ROWS = 0;

layout(set = 1, binding = 6, std430) writeonly restrict buffer Output { float results[]; };
layout(set = 1, binding = 7, std430) writeonly restrict buffer NextOperand { uint next_operand[]; };
layout(set = 1, binding = 8, std430) writeonly restrict buffer NextMetas { uvec2 next_metas[]; };

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

// Rows of a workgroup, and invocations that share one in the softmax.
const uint ROWS = SUBGROUPS / SPLIT * SIDE;
const uint LANES = WORKGROUP / ROWS;
// Workgroups of a block.
const uint PARTS = BLOCK_ROWS / ROWS;
// Matrices along a head and along the tokens, and those of a subgroup.
const uint MATRICES = HEAD_DIM / SIDE;
const uint COLUMN_MATRICES = MATRICES / SPLIT;
const uint TOKEN_MATRICES = TOKENS / SIDE;
const uint SCORE_MATRICES = TOKEN_MATRICES / SPLIT;

// Shared memory, in vectors of 16 bytes: a tile of keys, later of values, [token][column]; scores
// [row][token] as floats; weights [row][token] and queries [row][column] as halves. Odd strides
// spread the rows of a matrix over all banks.
const uint STRIDE = VECTORS + 1;
const uint SCORE_STRIDE = TOKENS / 4 + 1;
const uint WEIGHT_STRIDE = TOKENS / 8 + 1;
const uint SCORES_AT = TOKENS * STRIDE;
const uint WEIGHTS_AT = SCORES_AT + ROWS * SCORE_STRIDE;
const uint WEIGHTS_END = WEIGHTS_AT + ROWS * WEIGHT_STRIDE;
// Queries that go to registers lie where the others will.
const uint QUERIES_AT = KEEP ? 0 : WEIGHTS_END;
const uint QUERIES_END = QUERIES_AT + ROWS * STRIDE;
// The result takes the place of all of it, [row][column] as floats.
const uint RESULT_STRIDE = HEAD_DIM / 4 + 1;
const uint RESULT_END = ROWS * RESULT_STRIDE;
const uint LOOP_END = WEIGHTS_END > QUERIES_END ? WEIGHTS_END : QUERIES_END;
shared uvec4 pool[LOOP_END > RESULT_END ? LOOP_END : RESULT_END];
// What makes scores of the products of a row.
shared float row_scale[ROWS];

// Vectors of a tile that an invocation fetches.
const uint TILE_VECTORS = TOKENS * VECTORS;
const uint FETCHES = (TILE_VECTORS + WORKGROUP - 1) / WORKGROUP;

// Scores that an invocation holds in the softmax, eight at a time.
const uint EIGHTS = TOKENS / 8;
const uint LANE_EIGHTS = (EIGHTS + LANES - 1) / LANES;

// Pairs of a head that an invocation rotates, and rows whose queries are under way at once.
const uint PAIRS = (HEAD_DIM / 2 + SUBGROUP - 1) / SUBGROUP;
const uint BATCH = 4;

// The first token that a position sees.
uint first_seen(uint position) { return window != 0 && position + 1 > window ? position + 1 - window : 0; }

// Puts a rotated pair of a query into shared memory. Two invocations that hold neighbouring pairs
// fill a word each.
void put_pair(uint row, uint pair, vec2 x) {
    uint word = pair, bits = packHalf2x16(x);
    if (ROPE != 2) {
        const vec2 other = subgroupShuffleXor(x, 1);
        const bool odd = pair % 2 == 1;
        word = odd ? (HEAD_DIM / 2 + pair - 1) / 2 : pair / 2;
        bits = odd ? packHalf2x16(vec2(other.y, x.y)) : packHalf2x16(vec2(x.x, other.x));
    }
    if (pair < HEAD_DIM / 2) {
        pool[QUERIES_AT + row * STRIDE + word / 4][word % 4] = bits;
    }
}

// Norm and rotation of a query whose pairs an invocation of each subgroup holds, then its halves.
void put_query(uint row, uint source, vec2 x[PAIRS]) {
    if (QUERY_NORM) {
        float squares = 0.0;
        [[unroll]] for (uint p = 0; p < PAIRS; p++) {
            squares += p * SUBGROUP + gl_SubgroupInvocationID < HEAD_DIM / 2 ? dot(x[p], x[p]) : 0.0;
        }
        const float factor = inversesqrt(subgroupAdd(squares) / float(HEAD_DIM) + heads.query_epsilon);
        [[unroll]] for (uint p = 0; p < PAIRS; p++) {
            const uvec2 at = pair_of(min(p * SUBGROUP + gl_SubgroupInvocationID, HEAD_DIM / 2 - 1));
            x[p] *= factor * vec2(vectors[heads.query_norm + at.x], vectors[heads.query_norm + at.y]);
        }
    }
    float most = 0.0;
    [[unroll]] for (uint p = 0; p < PAIRS; p++) {
        x[p] = rotated(x[p], source, min(p * SUBGROUP + gl_SubgroupInvocationID, HEAD_DIM / 2 - 1));
        most = max(most, max(abs(x[p].x), abs(x[p].y)));
    }
    // The largest value lands between 128 and 256, as in the rows of a product.
    int exponent;
    frexp(max(subgroupMax(most), 1e-30), exponent);
    const float factor = ldexp(1.0, 8 - exponent);
    [[unroll]] for (uint p = 0; p < PAIRS; p++) {
        put_pair(row, p * SUBGROUP + gl_SubgroupInvocationID, x[p] * factor);
    }
    if (subgroupElect()) {
        row_scale[row] = scale / factor;
    }
}

// Queries of a head of `count` rows. What lies in the rows behind them does not matter: rows of
// matrices do not meet.
void form_queries(uint first_row, uint count, uint head) {
    for (uint first = gl_SubgroupID * BATCH; first < count; first += SUBGROUPS * BATCH) {
        vec2 x[BATCH][PAIRS];
        [[unroll]] for (uint b = 0; b < BATCH; b++) {
            const uint row = first_row + min(first + b, count - 1);
            const uint start = row * heads.query_stride + heads.query_column + head * HEAD_DIM;
            [[unroll]] for (uint p = 0; p < PAIRS; p++) {
                const uvec2 at = pair_of(min(p * SUBGROUP + gl_SubgroupInvocationID, HEAD_DIM / 2 - 1));
                x[b][p] = vec2(queries[start + at.x], queries[start + at.y]);
            }
        }
        [[unroll]] for (uint b = 0; b < BATCH; b++) {
            put_query(first + b, first_row + min(first + b, count - 1), x[b]);
        }
    }
}

// Keys from token `token` of a page on.
void fetch_keys(uint base, uint token, out uvec4 fetched[FETCHES]) {
    [[unroll]] for (uint i = 0; i < FETCHES; i++) {
        const uint at = i * WORKGROUP + gl_LocalInvocationIndex;
        if (TILE_VECTORS % WORKGROUP == 0 || at < TILE_VECTORS) {
            fetched[i] = pages[base + at / TOKENS * PAGE_TOKENS + token + at % TOKENS];
        }
    }
}

void store_keys(uvec4 fetched[FETCHES]) {
    [[unroll]] for (uint i = 0; i < FETCHES; i++) {
        const uint at = i * WORKGROUP + gl_LocalInvocationIndex;
        if (TILE_VECTORS % WORKGROUP == 0 || at < TILE_VECTORS) {
            pool[at % TOKENS * STRIDE + at / TOKENS] = fetched[i];
        }
    }
}

// Values from token `token` of a page on, of which `seen.x` to `seen.y - 1` are seen by some row.
// The others may hold anything, not-a-number included, and are multiplied by zero: they must be
// numbers.
void fetch_values(uint base, uint token, uvec2 seen, out uvec4 fetched[FETCHES]) {
    [[unroll]] for (uint i = 0; i < FETCHES; i++) {
        const uint at = i * WORKGROUP + gl_LocalInvocationIndex;
        const uint t = at / VECTORS;
        fetched[i] = uvec4(0);
        if ((TILE_VECTORS % WORKGROUP == 0 || at < TILE_VECTORS) && t >= seen.x && t < seen.y) {
            fetched[i] = pages[base + VALUES_AT + (token + t) * VECTORS + at % VECTORS];
        }
    }
}

void store_values(uvec4 fetched[FETCHES]) {
    [[unroll]] for (uint i = 0; i < FETCHES; i++) {
        const uint at = i * WORKGROUP + gl_LocalInvocationIndex;
        if (TILE_VECTORS % WORKGROUP == 0 || at < TILE_VECTORS) {
            pool[at / VECTORS * STRIDE + at % VECTORS] = fetched[i];
        }
    }
}

// Weights of a tile's tokens for the invocation's row, which sees tokens `seen.x` to `seen.y - 1`
// of the tile: from scores to weights in shared memory. Where scores were lies afterwards what
// earlier sums are to be multiplied by, SIDE times. `largest` is the row's largest score.
void weigh(uint row, uint share, ivec2 seen, inout float largest) {
    float scores[LANE_EIGHTS][8];
    float most = largest;
    const float unit = row_scale[row];
    [[unroll]] for (uint e = 0; e < LANE_EIGHTS; e++) {
        const uint eighth = min(e * LANES + share, EIGHTS - 1);
        [[unroll]] for (uint i = 0; i < 8; i++) {
            const uvec4 bits = pool[SCORES_AT + row * SCORE_STRIDE + 2 * eighth + i / 4];
            const float product = uintBitsToFloat(bits[i % 4]) * unit;
            const int token = int(8 * eighth + i);
            const float score = cap > 0.0 ? soft_cap(product, cap) : product;
            scores[e][i] = token >= seen.x && token < seen.y ? score : NOTHING;
            most = max(most, scores[e][i]);
        }
    }
    [[unroll]] for (uint mask = 1; mask < LANES; mask *= 2) {
        most = max(most, subgroupShuffleXor(most, mask));
    }
    [[unroll]] for (uint e = 0; e < LANE_EIGHTS; e++) {
        const uint eighth = e * LANES + share;
        uvec4 words;
        [[unroll]] for (uint i = 0; i < 4; i++) {
            vec2 pair;
            [[unroll]] for (uint k = 0; k < 2; k++) {
                const float score = scores[e][2 * i + k];
                pair[k] = score != NOTHING ? exp(score - most) : 0.0;
            }
            words[i] = packHalf2x16(pair);
        }
        if (EIGHTS % LANES == 0 || eighth < EIGHTS) {
            pool[WEIGHTS_AT + row * WEIGHT_STRIDE + eighth] = words;
        }
    }
    // Over scores that no other invocation reads.
    const uint factor = floatBitsToUint(exp(largest - most));
    [[unroll]] for (uint eighth = share; eighth < SIDE / 8; eighth += LANES) {
        pool[SCORES_AT + row * SCORE_STRIDE + 2 * eighth] = uvec4(factor);
        pool[SCORES_AT + row * SCORE_STRIDE + 2 * eighth + 1] = uvec4(factor);
    }
    largest = most;
}

// Writes the result that lies in shared memory.
void emit(uint first_row, uint count, uint head) {
    for (uint at = gl_LocalInvocationIndex; at < count * HEAD_DIM; at += WORKGROUP) {
        const uint row = at / HEAD_DIM, d = at % HEAD_DIM;
        const uvec4 bits = pool[row * RESULT_STRIDE + d / 4];
        results[(first_row + row) * output_stride + head * HEAD_DIM + d] = uintBitsToFloat(bits[d % 4]);
    }
    if (FRAGMENT_ROWS > 0) {
        // A mean of values is no larger than they are, and those are half floats: no scale is
        // needed.
        for (uint at = gl_LocalInvocationIndex; at < count * (HEAD_DIM / 4); at += WORKGROUP) {
            const uint row = at / (HEAD_DIM / 4), v = at % (HEAD_DIM / 4);
            const uvec2 words = halves_of(uintBitsToFloat(pool[row * RESULT_STRIDE + v]));
            const uint to = fragment_word(head * HEAD_DIM / 4 + v, first_row + row, FRAGMENT_ROWS);
            next_operand[to] = words.x;
            next_operand[to + 1] = words.y;
        }
        if (head == 0) {
            for (uint row = gl_LocalInvocationIndex; row < count; row += WORKGROUP) {
                next_metas[first_row + row] = uvec2(floatBitsToUint(1.0), 0);
            }
        }
    }
}

#define OPERAND coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseA>
#define FACTOR coopmat<float16_t, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseB>
#define SUM coopmat<float, gl_ScopeSubgroup, SIDE, SIDE, gl_MatrixUseAccumulator>

// Attention of one head of `count` rows from `first_row` on. Subgroups without rows only fetch.
void attend(uint first_row, uint count, uint head) {
    const Row source = play.rows[first_row];
    const uint kv_head = head / (query_heads / heads.kv_heads);
    const uint first = first_seen(source.position);
    const uint end = source.position + count;
    // The invocation's row in the softmax, and its share of it.
    const uint lane = gl_SubgroupID * SUBGROUP + gl_SubgroupInvocationID;
    const uint row = lane / LANES, share = lane % LANES;
    const uint position = source.position + row;
    // The subgroup's rows in products, and its share of them.
    const uint matrix_row = gl_SubgroupID / SPLIT * SIDE;
    const uint slice = gl_SubgroupID % SPLIT;
    const bool multiplies = matrix_row < count;
    const bool weighs = gl_SubgroupID * (SUBGROUP / LANES) < count;

    uint token = first / TOKENS * TOKENS;
    uint base = head_base(heads, source.sequence, token / PAGE_TOKENS, kv_head);
    uvec4 fetched[FETCHES];
    fetch_keys(base, token % PAGE_TOKENS, fetched);
    // What the workgroup served before has been written.
    barrier();
    form_queries(first_row, count, head);
    barrier();
    OPERAND kept[KEEP ? MATRICES : 1];
    if (KEEP) {
        [[unroll]] for (uint k = 0; k < MATRICES; k++) {
            const uint at = QUERIES_AT + matrix_row * STRIDE + k * SIDE / 8;
            coopMatLoad(kept[KEEP ? k : 0], pool, at, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
        }
    }
    SUM sums[COLUMN_MATRICES];
    [[unroll]] for (uint m = 0; m < COLUMN_MATRICES; m++) {
        sums[m] = SUM(0.0);
    }
    // Sums of the weights, once for every column.
    SUM total = SUM(0.0);
    const FACTOR ones = FACTOR(float16_t(1.0));
    float largest = NOTHING;
    for (; token < end; token += TOKENS) {
        barrier();
        store_keys(fetched);
        barrier();
        const uvec2 seen = uvec2(max(first, token) - token, end - token);
        fetch_values(base, token % PAGE_TOKENS, seen, fetched);
        if (multiplies) {
            SUM scores[SCORE_MATRICES];
            [[unroll]] for (uint n = 0; n < SCORE_MATRICES; n++) {
                scores[n] = SUM(0.0);
            }
            [[unroll]] for (uint k = 0; k < MATRICES; k++) {
                OPERAND query;
                if (KEEP) {
                    query = kept[KEEP ? k : 0];
                } else {
                    const uint at = QUERIES_AT + matrix_row * STRIDE + k * SIDE / 8;
                    coopMatLoad(query, pool, at, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                }
                [[unroll]] for (uint n = 0; n < SCORE_MATRICES; n++) {
                    FACTOR key;
                    const uint at = (slice * SCORE_MATRICES + n) * SIDE * STRIDE + k * SIDE / 8;
                    coopMatLoad(key, pool, at, STRIDE, gl_CooperativeMatrixLayoutColumnMajor);
                    scores[n] = coopMatMulAdd(query, key, scores[n]);
                }
            }
            [[unroll]] for (uint n = 0; n < SCORE_MATRICES; n++) {
                const uint column = (slice * SCORE_MATRICES + n) * SIDE / 4;
                const uint at = SCORES_AT + matrix_row * SCORE_STRIDE + column;
                coopMatStore(scores[n], pool, at, SCORE_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
            }
        }
        barrier();
        store_values(fetched);
        if (token + TOKENS < end) {
            const uint next = token + TOKENS;
            base = head_base(heads, source.sequence, next / PAGE_TOKENS, kv_head);
            fetch_keys(base, next % PAGE_TOKENS, fetched);
        }
        if (weighs) {
            const ivec2 row_sees = ivec2(first_seen(position), position + 1) - int(token);
            weigh(row, share, row_sees, largest);
        }
        barrier();
        if (multiplies) {
            SUM factors;
            coopMatLoad(factors, pool, SCORES_AT + matrix_row * SCORE_STRIDE, SCORE_STRIDE,
                        gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint m = 0; m < COLUMN_MATRICES; m++) {
                sums[m] = sums[m] * factors;
            }
            total = total * factors;
            [[unroll]] for (uint n = 0; n < TOKEN_MATRICES; n++) {
                OPERAND weights;
                const uint from = WEIGHTS_AT + matrix_row * WEIGHT_STRIDE + n * SIDE / 8;
                coopMatLoad(weights, pool, from, WEIGHT_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                total = coopMatMulAdd(weights, ones, total);
                [[unroll]] for (uint m = 0; m < COLUMN_MATRICES; m++) {
                    FACTOR value;
                    const uint at = n * SIDE * STRIDE + (slice * COLUMN_MATRICES + m) * SIDE / 8;
                    coopMatLoad(value, pool, at, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
                    sums[m] = coopMatMulAdd(weights, value, sums[m]);
                }
            }
        }
    }
    barrier();
    [[unroll]] for (uint m = 0; m < COLUMN_MATRICES; m++) {
        const uint at = matrix_row * RESULT_STRIDE + (slice * COLUMN_MATRICES + m) * SIDE / 4;
        coopMatStore(sums[m] / total, pool, at, RESULT_STRIDE, gl_CooperativeMatrixLayoutRowMajor);
    }
    barrier();
    emit(first_row, count, head);
}

void main() {
    // There may be more blocks than the launch was made for.
    for (uint part = gl_WorkGroupID.x; part < play.block_count * PARTS; part += gl_NumWorkGroups.x) {
        const Block block = play.blocks[part / PARTS];
        const uint skipped = part % PARTS * ROWS;
        if (skipped < block.row_count) {
            attend(block.first_row + skipped, min(block.row_count - skipped, ROWS), gl_WorkGroupID.y);
        }
    }
}
