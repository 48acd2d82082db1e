// The attention of `persistent`: workgroups take pairs of a query head and a part of the visible pages in turn. What the
// parts of a head have found is joined by one workgroup.
//
// The file that includes this includes attend_single.glsl and words.glsl before, and declares `arrived`, where the query of
// a head and the row's own key and value come to.

// Where the words of the parts of a head begin, among those of all parts.
uint parts_of(uint head) { return head * SPLITS * (HEAD_DIM + 2); }

// What a row sees, and how it is cut.
struct Sight {
    // First position, and the first that is not in memory: the row's own.
    uint first;
    uint known;
    uint first_page;
    // Pages of a part, and parts.
    uint share;
    uint splits;
};

Sight sight_of(Row source, uint window) {
    Sight sight;
    sight.known = source.position;
    const uint seen = window + (FAULT == LONG_WINDOW ? 1 : 0);
    sight.first = window != 0 && sight.known + 1 > seen ? sight.known + 1 - seen : 0;
    sight.first_page = sight.first / PAGE_TOKENS;
    const uint page_count = sight.known / PAGE_TOKENS + 1 - sight.first_page;
    sight.share = max((page_count + SPLITS - 1) / SPLITS, LEAST_PAGES);
    sight.splits = (page_count + sight.share - 1) / sight.share;
    return sight;
}

// Waits for the query, key and value of a head.
void await_heads(uint head, uint kv_head, uint number) {
    for (uint i = gl_LocalInvocationIndex; i < 3 * HEAD_DIM; i += ALL_INVOCATIONS) {
        const uint which = i / HEAD_DIM, d = i % HEAD_DIM;
        const uint start = which == 0 ? head * HEAD_DIM : QUERY_ROWS + (which - 1) * KV_ROWS + kv_head * HEAD_DIM;
        arrived[i] = await_float(QKV_WORDS + start + d, number + QKV_LEFT);
    }
    barrier();
}

// One head and one part of its pages. Leaves the result, or the part's for the join; false if it gave up, for all
// invocations alike: they look at `stuck` between two barriers.
bool attend_part(Row source, Sight sight, uint head, uint split, uint number) {
    const bool attends = gl_SubgroupID < SUBGROUPS;
    const uint queries_a_key = query_heads / heads.kv_heads;
    const uint kv_head = head / queries_a_key;
    const uint end = min((sight.first_page + (split + 1) * sight.share) * PAGE_TOKENS, sight.known);
    uint chunk = (sight.first_page + split * sight.share) * PAGE_TOKENS + gl_SubgroupID * CHUNK;
    best = NOTHING;
    total = 0.0;
    [[unroll]] for (uint i = 0; i < OWN; i++) {
        [[unroll]] for (uint k = 0; k < LENGTH; k++) {
            result[i][k] = 0.0;
        }
    }
    if (attends) {
        const uint page = min(chunk, sight.known) / PAGE_TOKENS;
        load_chunk(page_base(source, page, kv_head), chunk, sight.first, end);
    }
    await_heads(head, kv_head, number);
    if (stuck) {
        return false;
    }
    if (gl_SubgroupID < 2) {
        const bool is_key = gl_SubgroupID == 1;
        form_head(is_key, is_key ? HEAD_DIM : 0);
    } else if (gl_SubgroupID == 2) {
        form_value(2 * HEAD_DIM);
    }
    barrier();
    if (split == sight.splits - 1) {
        const bool stale = FAULT == STALE_KEY && kv_head == 0;
        if (gl_SubgroupID == SUBGROUPS - 1) {
            begin_with_newest();
        } else if (gl_SubgroupID == SUBGROUPS - 2 && head % queries_a_key == 0 && !stale) {
            store_key_and_value(source, kv_head);
        }
    }
    if (attends) {
        [[dont_unroll]] while (chunk < end) {
            add_chunk(chunk, sight.first, end);
            chunk += SUBGROUPS * CHUNK;
            if (chunk < end) {
                load_chunk(page_base(source, chunk / PAGE_TOKENS, kv_head), chunk, sight.first, end);
            }
        }
        leave_result();
    }
    barrier();
    const vec2 softmax = join_softmax();
    if (sight.splits == 1) {
        for (uint d = gl_LocalInvocationIndex; d < HEAD_DIM; d += ALL_INVOCATIONS) {
            const float value = join_values(softmax.x, d) / softmax.y;
            put_word(ATTENDED_WORDS + head * HEAD_DIM + d, number + ATTENDED, value);
        }
        return true;
    }
    const uint mine = PARTIAL_WORDS + parts_of(head) + split * (HEAD_DIM + 2);
    for (uint d = gl_LocalInvocationIndex; d < HEAD_DIM; d += ALL_INVOCATIONS) {
        put_word(mine + 2 + d, number + PARTS_LEFT, join_values(softmax.x, d));
    }
    if (gl_LocalInvocationIndex < 2) {
        put_word(mine + gl_LocalInvocationIndex, number + PARTS_LEFT, softmax[gl_LocalInvocationIndex]);
    }
    return true;
}

// Joins what the parts of a head have found, and leaves the result; false if it gave up.
bool join_parts(uint head, uint splits, uint number) {
    const uint start = parts_of(head);
    for (uint i = gl_LocalInvocationIndex; i < splits * (HEAD_DIM + 2); i += ALL_INVOCATIONS) {
        await_float(PARTIAL_WORDS + start + i, number + PARTS_LEFT);
    }
    barrier();
    if (stuck) {
        return false;
    }
    if (gl_SubgroupID < SUBGROUPS) {
        leave_parts(start, FAULT == LOST_SPLIT && head == 0 ? splits - 1 : splits);
    }
    barrier();
    const vec2 softmax = join_softmax();
    for (uint d = gl_LocalInvocationIndex; d < HEAD_DIM; d += ALL_INVOCATIONS) {
        const float value = join_values(softmax.x, d) / softmax.y;
        put_word(ATTENDED_WORDS + head * HEAD_DIM + d, number + ATTENDED, value);
    }
    return true;
}

// This workgroup's share of a layer's attention; false if it gave up.
bool attend(uint window, uint number) {
    const Row source = play.rows[0];
    const Sight sight = sight_of(source, window);
    [[dont_unroll]] for (uint i = gl_WorkGroupID.x; i < query_heads * sight.splits; i += WORKGROUPS) {
        if (!attend_part(source, sight, i % query_heads, i / query_heads, number)) {
            return false;
        }
    }
    if (sight.splits > 1) {
        barrier();
        [[dont_unroll]] for (uint head = gl_WorkGroupID.x; head < query_heads; head += WORKGROUPS) {
            if (!join_parts(head, sight.splits, number)) {
                return false;
            }
        }
    }
    return true;
}
