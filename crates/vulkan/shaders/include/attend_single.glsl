// Attention of one row by the subgroups of a workgroup: forming the query and the row's own key and value,
// chunks of tokens, and the join of what subgroups and parts of the pages have found.
//
// The file that includes this includes heads.glsl, epilogue.glsl and fault.glsl before, and declares SPLITS, `heads`,
// `scale`, `cap` and PARTIAL(at), float `at` of what the parts have found: [row][head][split] maximum, sum, then
// HEAD_DIM values.

const float NOTHING = -3.0e38;
// Vectors of keys, and of values, that an invocation fetches at once, at most. All of these numbers
// are powers of two.
const uint AT_ONCE = 8;
// Tokens of a chunk.
const uint CHUNK = VECTORS <= AT_ONCE ? SUBGROUP : VECTORS >= AT_ONCE * SUBGROUP ? 1 : AT_ONCE * SUBGROUP / VECTORS;
// Invocations that score a token together, and vectors of its key that each takes.
const uint SCORERS = SUBGROUP / CHUNK;
const uint KEYS = VECTORS / SCORERS;
// Tokens whose values are summed side by side, vectors of a value that an invocation takes, and tokens.
const uint SHARES = VECTORS < SUBGROUP ? SUBGROUP / VECTORS : 1;
const uint OWN = VECTORS > SUBGROUP ? VECTORS / SUBGROUP : 1;
const uint TOKENS = CHUNK / SHARES;
// Parts that a subgroup joins in the end, at most.
const uint PARTS = (SPLITS + SUBGROUPS - 1) / SUBGROUPS;
const uint PAIRS = (HEAD_DIM / 2 + SUBGROUP - 1) / SUBGROUP;

shared vec4 query[HEAD_DIM / 4];
// The row's own key and value, as they are stored, and their scales.
shared uint newest[2][HEAD_DIM];
shared float new_scale[2];
// What each subgroup has found: maximum, sum, and its weighted values.
shared float best_of[SUBGROUPS];
shared float total_of[SUBGROUPS];
shared float sums_of[SUBGROUPS][HEAD_DIM];

// Rotates a formed head that lies in the subgroup's part of `sums_of`, which nothing else uses yet.
void form_rotated(bool is_key) {
    subgroupBarrier();
    float x[COLUMNS];
    [[unroll]] for (uint i = 0; i < COLUMNS; i++) {
        x[i] = sums_of[gl_SubgroupID][own_column(i)];
    }
    rotate_head(x);
    float most = 0.0;
    [[unroll]] for (uint i = 0; i < COLUMNS; i++) {
        most = max(most, has_column(i) ? magnitude(x[i]) : 0.0);
    }
    if (is_key) {
        most = subgroupMax(most);
        new_scale[0] = scale_of(most);
    }
    const float unit = inverse_of(most);
    [[unroll]] for (uint i = 0; i < COLUMNS; i++) {
        const uint d = own_column(i);
        if (has_column(i) && is_key) {
            newest[0][d] = stored_bits(x[i] * unit);
        } else if (has_column(i)) {
            query[d / 4][d % 4] = x[i] * scale;
        }
    }
}

// Norm and rotations of the query, or of the row's own key.
void form_head(bool is_key, uint row, uint start) {
    const bool normed = is_key ? KEY_NORM : QUERY_NORM;
    const uint norm = is_key ? heads.key_norm : heads.query_norm;
    vec2 x[PAIRS];
    if (is_key) {
        [[unroll]] for (uint i = 0; i < PAIRS; i++) {
            const uvec2 at = start + pair_of(min(i * SUBGROUP + gl_SubgroupInvocationID, HEAD_DIM / 2 - 1));
            x[i] = vec2(keys[at.x], keys[at.y]);
        }
    } else {
        [[unroll]] for (uint i = 0; i < PAIRS; i++) {
            const uvec2 at = start + pair_of(min(i * SUBGROUP + gl_SubgroupInvocationID, HEAD_DIM / 2 - 1));
            x[i] = vec2(queries[at.x], queries[at.y]);
        }
    }
    float squares = 0.0;
    [[unroll]] for (uint i = 0; i < PAIRS; i++) {
        squares += i * SUBGROUP + gl_SubgroupInvocationID < HEAD_DIM / 2 ? dot(x[i], x[i]) : 0.0;
    }
    float factor = 1.0;
    if (normed) {
        const float epsilon = is_key ? heads.key_epsilon : heads.query_epsilon;
        factor = inversesqrt(subgroupAdd(squares) / float(HEAD_DIM) + epsilon);
    }
    [[unroll]] for (uint i = 0; i < PAIRS; i++) {
        const uint pair = i * SUBGROUP + gl_SubgroupInvocationID;
        if (pair < HEAD_DIM / 2) {
            const uvec2 at = pair_of(pair);
            if (normed) {
                x[i] *= factor * vec2(vectors[norm + at.x], vectors[norm + at.y]);
            }
            x[i] = rotated(x[i], row, pair);
            if (KV_BYTES) {
                sums_of[gl_SubgroupID][at.x] = x[i].x;
                sums_of[gl_SubgroupID][at.y] = x[i].y;
            } else if (is_key) {
                newest[0][at.x] = stored_bits(x[i].x);
                newest[0][at.y] = stored_bits(x[i].y);
            } else {
                query[at.x / 4][at.x % 4] = x[i].x * scale;
                query[at.y / 4][at.y % 4] = x[i].y * scale;
            }
        }
    }
    if (KV_BYTES) {
        form_rotated(is_key);
    }
}

// The row's own value as it is stored.
void form_value(uint start) {
    float x[COLUMNS];
    float most = 0.0;
    [[unroll]] for (uint i = 0; i < COLUMNS; i++) {
        const uint d = i * SUBGROUP + gl_SubgroupInvocationID;
        x[i] = d < HEAD_DIM ? values[start + d] : 0.0;
        most = max(most, magnitude(x[i]));
    }
    if (KV_BYTES) {
        most = subgroupMax(most);
        new_scale[1] = scale_of(most);
    }
    [[unroll]] for (uint i = 0; i < COLUMNS; i++) {
        const uint d = i * SUBGROUP + gl_SubgroupInvocationID;
        if (d < HEAD_DIM) {
            newest[1][d] = stored_bits(KV_BYTES ? x[i] * inverse_of(most) : x[i]);
        }
    }
}

// Vector `i` of those of a value that this invocation takes.
uint own_vector(uint i) {
    return VECTORS < SUBGROUP ? gl_SubgroupInvocationID % VECTORS : i * SUBGROUP + gl_SubgroupInvocationID;
}

// A vector of the row's own key or value, of which the bits are known already.
uvec4 pack_newest(uint which, uint v) {
    uvec4 bits = uvec4(0);
    [[unroll]] for (uint i = 0; i < LENGTH; i++) {
        const uint width = 128 / LENGTH;
        const uint mask = width == 32 ? ~0u : (1u << width % 32) - 1;
        bits[i * width / 32] |= (newest[which][v * LENGTH + i] & mask) << (i * width % 32);
    }
    return bits;
}

void store_key_and_value(Row source, uint kv_head) {
    const uint token = source.position % PAGE_TOKENS;
    const uint base = head_base(heads, source.sequence, source.position / PAGE_TOKENS, kv_head);
    const uint key = FAULT == SWAPPED_KV && kv_head == 0 ? 1 : 0;
    [[unroll]] for (uint i = 0; i < OWN; i++) {
        const uint v = own_vector(i);
        if (gl_SubgroupInvocationID < VECTORS) {
            pages[base + v * PAGE_TOKENS + token] = pack_newest(key, v);
            pages[base + VALUES_AT + token * VECTORS + v] = pack_newest(1 - key, v);
        }
    }
    if (KV_BYTES && gl_SubgroupInvocationID < 2) {
        store_scale(base, gl_SubgroupInvocationID, token, new_scale[gl_SubgroupInvocationID]);
    }
}

// Scale of a token's key (`which` is 0) or value (1).
float token_scale(uint base, uint which, uint token) {
    const uint at = which * PAGE_TOKENS + token;
    return uintBitsToFloat(pages[base + SCALES_AT + at / 4][at % 4]);
}

float capped(float score) { return cap > 0.0 ? soft_cap(score, cap) : score; }

// What a subgroup has found so far.
float best = NOTHING;
float total = 0.0;
float result[OWN][LENGTH];

// Begins with the row's own key and value.
void begin_with_newest() {
    float score = 0.0;
    [[unroll]] for (uint i = 0; i < COLUMNS; i++) {
        const uint d = i * SUBGROUP + gl_SubgroupInvocationID;
        const uint at = min(d, HEAD_DIM - 1);
        score += d < HEAD_DIM ? query[at / 4][at % 4] * from_bits(newest[0][at]) : 0.0;
    }
    score = subgroupAdd(score);
    best = capped(KV_BYTES ? score * new_scale[0] : score);
    total = 1.0;
    if (gl_SubgroupInvocationID < VECTORS) {
        [[unroll]] for (uint i = 0; i < OWN; i++) {
            [[unroll]] for (uint k = 0; k < LENGTH; k++) {
                const float value = from_bits(newest[1][own_vector(i) * LENGTH + k]);
                result[i][k] = KV_BYTES ? value * new_scale[1] : value;
            }
        }
    }
}

// A chunk of tokens on its way.
uvec4 chunk_keys[KEYS];
uvec4 chunk_values[TOKENS][OWN];
float key_scale, value_scale;

// A token of the page of `position`, or one that is there to be read: what the softmax does not see
// has a weight of zero, but an unwritten token may hold anything, not-a-number included.
uint readable(uint position, uint from, uint end) { return min(max(position, from), end - 1) % PAGE_TOKENS; }

// Asks for a chunk of a page, of which positions `from` to `end` are there to be read.
void load_chunk(uint base, uint chunk, uint from, uint end) {
    const uint token = readable(chunk + gl_SubgroupInvocationID % CHUNK, from, end);
    const uint scorer = gl_SubgroupInvocationID / CHUNK;
    [[unroll]] for (uint k = 0; k < KEYS; k++) {
        chunk_keys[k] = pages[base + (k * SCORERS + scorer) * PAGE_TOKENS + token];
    }
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        const uint at = readable(chunk + t * SHARES + gl_SubgroupInvocationID / VECTORS, from, end);
        [[unroll]] for (uint i = 0; i < OWN; i++) {
            chunk_values[t][i] = pages[base + VALUES_AT + at * VECTORS + own_vector(i)];
        }
    }
    key_scale = KV_BYTES ? token_scale(base, 0, token) : 1.0;
    value_scale = KV_BYTES ? token_scale(base, 1, token) : 1.0;
}

// Adds a chunk that has come.
void add_chunk(uint chunk, uint from, uint end) {
    const uint position = chunk + gl_SubgroupInvocationID % CHUNK;
    const uint scorer = gl_SubgroupInvocationID / CHUNK;
    const bool visible = position >= from && position < end;
    float score = 0.0;
    [[unroll]] for (uint k = 0; k < KEYS; k++) {
        float key[LENGTH];
        unpack(chunk_keys[k], key);
        [[unroll]] for (uint i = 0; i < LENGTH; i += 4) {
            const vec4 part = query[((k * SCORERS + scorer) * LENGTH + i) / 4];
            score += dot(vec4(key[i], key[i + 1], key[i + 2], key[i + 3]), part);
        }
    }
    [[unroll]] for (uint step = CHUNK; step < SUBGROUP; step *= 2) {
        score += subgroupShuffleXor(score, step);
    }
    score = visible ? capped(KV_BYTES ? score * key_scale : score) : NOTHING;
    const float before = best;
    best = max(best, subgroupMax(score));
    float weight = visible ? exp(score - best) : 0.0;
    const float factor = exp(before - best);
    // The invocations that scored a token together hold the same weight: one of them counts.
    total = total * factor + subgroupAdd(scorer == 0 ? weight : 0.0);
    weight *= value_scale;
    [[unroll]] for (uint i = 0; i < OWN; i++) {
        [[unroll]] for (uint k = 0; k < LENGTH; k++) {
            result[i][k] *= factor;
        }
    }
    [[unroll]] for (uint t = 0; t < TOKENS; t++) {
        const float its_weight = subgroupShuffle(weight, t * SHARES + (SHARES > 1 ? gl_SubgroupInvocationID / VECTORS : 0));
        [[unroll]] for (uint i = 0; i < OWN; i++) {
            float value[LENGTH];
            unpack(chunk_values[t][i], value);
            [[unroll]] for (uint k = 0; k < LENGTH; k++) {
                result[i][k] += its_weight * value[k];
            }
        }
    }
}

// Leaves what this subgroup has found for the others.
void leave_result() {
    if (gl_SubgroupInvocationID == 0) {
        best_of[gl_SubgroupID] = best;
        total_of[gl_SubgroupID] = total;
    }
    [[unroll]] for (uint i = 0; i < OWN; i++) {
        [[unroll]] for (uint k = 0; k < LENGTH; k++) {
            [[unroll]] for (uint step = VECTORS; step < SUBGROUP; step *= 2) {
                result[i][k] += subgroupShuffleXor(result[i][k], step);
            }
            if (gl_SubgroupInvocationID < VECTORS) {
                sums_of[gl_SubgroupID][own_vector(i) * LENGTH + k] = result[i][k];
            }
        }
    }
}

// Maximum and sum of all that the subgroups have left.
vec2 join_softmax() {
    float most = NOTHING;
    [[unroll]] for (uint i = 0; i < SUBGROUPS; i++) {
        most = max(most, best_of[i]);
    }
    float sum = 0.0;
    [[unroll]] for (uint i = 0; i < SUBGROUPS; i++) {
        sum += total_of[i] * exp(best_of[i] - most);
    }
    return vec2(most, sum);
}

// Column `d` of the weighted values.
float join_values(float most, uint d) {
    float sum = 0.0;
    [[unroll]] for (uint i = 0; i < SUBGROUPS; i++) {
        sum += sums_of[i][d] * exp(best_of[i] - most);
    }
    return sum;
}

// What this subgroup's share of all parts has found, left for the others.
void leave_parts(uint start, uint parts) {
    float part_best[PARTS], part_total[PARTS];
    float sums[PARTS][COLUMNS];
    float most = NOTHING;
    [[unroll]] for (uint i = 0; i < PARTS; i++) {
        const uint part = i * SUBGROUPS + gl_SubgroupID;
        const uint at = start + min(part, parts - 1) * (HEAD_DIM + 2);
        part_best[i] = part < parts ? PARTIAL(at) : NOTHING;
        part_total[i] = part < parts ? PARTIAL(at + 1) : 0.0;
        [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
            sums[i][c] = PARTIAL(at + 2 + min(c * SUBGROUP + gl_SubgroupInvocationID, HEAD_DIM - 1));
        }
        most = max(most, part_best[i]);
    }
    float whole = 0.0;
    float column[COLUMNS];
    [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
        column[c] = 0.0;
    }
    [[unroll]] for (uint i = 0; i < PARTS; i++) {
        const float factor = i * SUBGROUPS + gl_SubgroupID < parts ? exp(part_best[i] - most) : 0.0;
        whole += part_total[i] * factor;
        [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
            column[c] += sums[i][c] * factor;
        }
    }
    if (gl_SubgroupInvocationID == 0) {
        best_of[gl_SubgroupID] = most;
        total_of[gl_SubgroupID] = whole;
    }
    [[unroll]] for (uint c = 0; c < COLUMNS; c++) {
        const uint d = c * SUBGROUP + gl_SubgroupInvocationID;
        if (d < HEAD_DIM) {
            sums_of[gl_SubgroupID][d] = column[c];
        }
    }
}

// The base of a head's page.
uint page_base(Row source, uint page, uint kv_head) {
    return head_base(heads, source.sequence, FAULT == WRONG_PAGE && kv_head == 0 && page == 1 ? 0 : page, kv_head);
}
