// What becomes of a product's sums: outputs; and the loop over the slices of a subgroup.
//
// The file that includes this includes product.glsl and epilogue.glsl before, and declares `part_bias`, the bias of each
// part in `vector_floats` or NO_BIAS, `cap`, the soft cap or 0, and `values`, in which `part_column` is where a part's
// outputs begin.

// Writes an output, from the sums of its row in the part, or in both parts of a gate.
void put_output(uint part, uint row, float factor, float sum, float up) {
    if (row >= part_rows[part] || (FAULT == STALE_ROW && row == FAULTY_OUTPUT)) {
        return;
    }
    float value = factor * sum;
    if (part_bias[part] != NO_BIAS) {
        value += vector_floats[part_bias[part] + row];
    }
    if (GATE != 0) {
        float other = factor * up;
        if (part_bias[1] != NO_BIAS) {
            other += vector_floats[part_bias[1] + row];
        }
        value = gated(GATE, value, other);
    }
    values[part_column[part] + row] = cap > 0.0 ? soft_cap(value, cap) : value;
}

// Adds up the sums of the invocations that share a row, and writes outputs or leaves them for the
// other slices.
void finish(uint part, uint first, uint index, Item item, float factor, inout float sums[ROWS]) {
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        [[unroll]] for (uint step = ROW_INVOCATIONS / 2; step > 0; step /= 2) {
            sums[r] += subgroupShuffleXor(sums[r], step);
        }
    }
    const uint invocation = gl_SubgroupInvocationID % ROW_INVOCATIONS;
    [[unroll]] for (uint h = 0; h < HEIGHT; h++) {
        const uint r = h * PARTS_AT_ONCE;
        if (invocation == h) {
            if (SLICES == 1) {
                put_output(part, item.row + h, factor, sums[r], sums[r + PARTS_AT_ONCE - 1]);
            } else {
                const uint at = (item.row + h - first * GROUP_ROWS) * PARTS_AT_ONCE;
                [[unroll]] for (uint p = 0; p < PARTS_AT_ONCE; p++) {
                    shared_sums[(at + p) * SLICES + index % SLICES] = sums[r + p];
                }
            }
        }
    }
}

// Streams the slices of this subgroup: of `items`, every SUBGROUPS-th.
void stream(const uint type, uint part, uint first, uint items, float factor) {
    uint index = gl_SubgroupID;
    uint batch = 0;
    float sums[ROWS];
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        sums[r] = 0.0;
    }
    [[dont_unroll]] while (index < items) {
        const bool last = BATCHES == 1 || batch == BATCHES - 1;
        const uint next_index = last ? index + SUBGROUPS : index;
        const uint next_batch = last ? 0 : batch + 1;
        const Item item = item_at(first, index, batch);
        // A branch around each load would keep them apart: behind the end all invocations ask for
        // the same few bytes instead.
        Item next = item_at(first, next_index, next_batch);
        if (next_index >= items) {
            next = Item(0, 0);
        }
        [[unroll]] for (uint u = 0; u < UNROLL; u++) {
            add_block(type, u, item, sums);
            fetch(type, u, part, next);
        }
        if (last) {
            finish(part, first, index, item, factor, sums);
            [[unroll]] for (uint r = 0; r < ROWS; r++) {
                sums[r] = 0.0;
            }
        }
        index = next_index;
        batch = next_batch;
    }
}
