// A product of `persistent`: which of its rows this workgroup has, its first weights on their way ahead of its input,
// and its outputs as words.
//
// The file that includes this includes product.glsl and product_output.glsl before, and declares PART_COUNT and FIRST_PART
// among the weights.

uint part_groups(uint part) { return (PART_ROWS(part) + GROUP_ROWS - 1) / GROUP_ROWS; }

bool is_first_type(uint part) {
    return TYPE_A == TYPE_B || GATE != 0 || (flags & (1u << (FIRST_PART + part))) == 0;
}

// Makes the rows from group `begin` on, up to the end of their part, the next to compute, and asks for the first of
// their weights. Groups are counted through all parts.
void ask_for_part(uint begin, uint end) {
    const uint second = part_groups(0), third = second + (PART_COUNT == 3 ? part_groups(1) : 0);
    const uint part = PART_COUNT == 1 || begin < second ? 0 : begin < third ? 1 : 2;
    const uint start = part == 0 ? 0 : part == 1 ? second : third;
    const uint part_end = min(end, start + part_groups(part));
    own.part = part;
    own.first = begin - start;
    own.items = (part_end - begin) * SLICES;
    own.next = part_end;
    own.end = end;
    const Item item = item_at(own.first, min(gl_SubgroupID, max(own.items, 1) - 1), 0);
    if (is_first_type(part)) {
        fetch_all(TYPE_A, part, item);
    } else {
        fetch_all(TYPE_B, part, item);
    }
}

// Asks for the first weights of this workgroup's rows.
void ask() {
    const uint groups = part_groups(0) + (PART_COUNT == 3 ? 2 * part_groups(1) : 0);
    ask_for_part(groups * gl_WorkGroupID.x / WORKGROUPS, groups * (gl_WorkGroupID.x + 1) / WORKGROUPS);
}

// Computes the rows that were asked for, from the codes in shared memory; `factor` multiplies all sums.
void multiply_part(float factor) {
    if (is_first_type(own.part)) {
        stream(TYPE_A, own.part, own.first, own.items, factor);
    } else {
        stream(TYPE_B, own.part, own.first, own.items, factor);
    }
    if (SLICES > 1) {
        barrier();
        for (uint at = gl_LocalInvocationIndex; at < own.items / SLICES * GROUP_ROWS; at += WORKGROUP) {
            float sums[PARTS_AT_ONCE];
            [[unroll]] for (uint p = 0; p < PARTS_AT_ONCE; p++) {
                sums[p] = 0.0;
                [[unroll]] for (uint slice = 0; slice < SLICES; slice++) {
                    sums[p] += shared_sums[(at * PARTS_AT_ONCE + p) * SLICES + slice];
                }
            }
            put_output(own.part, own.first * GROUP_ROWS + at, factor, sums[0], sums[PARTS_AT_ONCE - 1]);
        }
    }
}

// All rows of this workgroup: few have rows of more than one part.
void multiply(float factor) {
    multiply_part(factor);
    [[dont_unroll]] while (PART_COUNT > 1 && own.next < own.end) {
        if (SLICES > 1) {
            barrier();
        }
        ask_for_part(own.next, own.end);
        multiply_part(factor);
    }
}
