// A product of quantised weights with a row of codes in shared memory, by the subgroups of a workgroup: what
// streams the weights.
//
// The file that includes this declares the constants WORKGROUP, SUBGROUP, TYPE_A, TYPE_B, ROW_INVOCATIONS, HEIGHT,
// UNROLL, SLICES, GATE, BLOCKS, MOST_GROUPS and COUNT (project_single.comp says what they are), and `part_rows`, the
// rows of each part. It includes block_product.glsl, fault.glsl and shared_row.glsl before, and product_output.glsl
// behind this.

const uint SUBGROUPS = WORKGROUP / SUBGROUP;
const uint PARTS_AT_ONCE = GATE != 0 ? 2 : 1;
// Weight rows of an invocation: those of a gate's parts take turns.
const uint ROWS = HEIGHT * PARTS_AT_ONCE;
const uint GROUP_ROWS = SUBGROUP / ROW_INVOCATIONS * HEIGHT;
// Blocks of a row in a batch, and batches of a slice.
const uint BATCH = ROW_INVOCATIONS * UNROLL;
const uint BATCHES = (BLOCKS + BATCH * SLICES - 1) / (BATCH * SLICES);
// Whether batches end where rows do.
const bool WHOLE = BATCH * BATCHES * SLICES == BLOCKS;

// [row of the workgroup][part of a gate][slice]
shared float shared_sums[SLICES > 1 ? MOST_GROUPS * GROUP_ROWS * PARTS_AT_ONCE * SLICES : 1];

// The batch that is under way.
Raw raw[UNROLL][ROWS];

// What a subgroup works on: a slice of a group of rows. `first` is the workgroup's first group.
struct Item {
    uint row;
    uint block;
};

Item item_at(uint first, uint index, uint batch) {
    const uint lane = gl_SubgroupInvocationID;
    return Item((first + index / SLICES) * GROUP_ROWS + lane / ROW_INVOCATIONS * HEIGHT,
                (index % SLICES * BATCHES + batch) * BATCH + lane % ROW_INVOCATIONS);
}

void fetch(const uint type, const uint u, uint part, Item item) {
    const uint at = item.block + u * ROW_INVOCATIONS;
    const uint block = WHOLE ? at : min(at, BLOCKS - 1);
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint row = min(item.row + r / PARTS_AT_ONCE, part_rows[part] - 1);
        if (GATE == 0) {
            raw[u][r] = load_raw(type, Matrix(part, part_rows[part], BLOCKS), row, block);
        } else if (r % 2 == 0) {
            raw[u][r] = load_raw(TYPE_A, Matrix(0, part_rows[0], BLOCKS), row, block);
        } else {
            raw[u][r] = load_raw(TYPE_B, Matrix(1, part_rows[0], BLOCKS), row, block);
        }
    }
}

void fetch_all(const uint type, uint part, Item item) {
    [[unroll]] for (uint u = 0; u < UNROLL; u++) {
        fetch(type, u, part, item);
    }
}

// Adds the products of a block that has come to the sums of its rows.
void add_block(const uint type, const uint u, Item item, inout float sums[ROWS]) {
    const uint at = item.block + u * ROW_INVOCATIONS;
    const uint block = WHOLE ? at : min(at, BLOCKS - 1);
    uvec4 low[COUNT], high[COUNT];
    uvec2 meta[COUNT];
    [[unroll]] for (uint n = 0; n < COUNT; n++) {
        low[n] = shared_codes[2 * n * BLOCKS + block];
        high[n] = shared_codes[(2 * n + 1) * BLOCKS + block];
        meta[n] = shared_metas[n * BLOCKS + block];
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++) {
        const uint row = item.row + r / PARTS_AT_ONCE;
        const uint its_type = GATE == 0 ? type : r % 2 == 0 ? TYPE_A : TYPE_B;
        uint codes[8];
        vec2 scale, minimum;
        decode_codes(its_type, raw[u][r], codes);
        decode_scales(its_type, raw[u][r], scale, minimum);
        if (SPOILT_BLOCK) {
            scale *= spoilt(row, block, BLOCKS);
            minimum *= spoilt(row, block, BLOCKS);
        }
        float term = 0.0;
        [[unroll]] for (uint n = 0; n < COUNT; n++) {
            term += block_product(its_type, codes, scale, minimum, low[n], high[n], meta[n]);
        }
        const bool lost = FAULT == WRONG_TAIL && row == FAULTY_OUTPUT && at >= BLOCKS - ROW_INVOCATIONS;
        sums[r] += (WHOLE || at < BLOCKS) && !lost ? term : 0.0;
    }
}
