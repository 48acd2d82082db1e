// A row in the registers of a workgroup, rotated so that few large values become many of middle size:
// blocks of ROTATION columns times a Hadamard matrix, whose elements are 1 and -1. Two rows that are
// rotated have ROTATION times the product that they had.
//
// The file that includes this declares WORKGROUP, SUBGROUP, PASSES and ROTATION; invocation v of a pass
// holds columns 4 v to 4 v + 3.

// Columns of a row that lie side by side: [chunk][row][CHUNK columns]. Both sides of a product read
// CHUNK columns of many rows at once.
const uint CHUNK = 128;

// Invocations that hold a block.
const uint ROTATORS = ROTATION / 4;

// For blocks that no subgroup holds.
shared vec4 exchanged[ROTATORS > SUBGROUP ? WORKGROUP : 1];
shared float largest_of[64];

float workgroup_maximum(float value) {
    const float largest = subgroupMax(value);
    if (subgroupElect()) {
        largest_of[gl_SubgroupID] = largest;
    }
    barrier();
    float result = 0.0;
    for (uint i = 0; i < gl_NumSubgroups; i++) {
        result = max(result, largest_of[i]);
    }
    return result;
}

// The largest magnitude of a row.
float row_maximum(vec4 x[PASSES]) {
    float largest = 0.0;
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        const vec4 magnitudes = abs(x[pass]);
        largest = max(largest, max(max(magnitudes.x, magnitudes.y), max(magnitudes.z, magnitudes.w)));
    }
    return workgroup_maximum(largest);
}

void rotate_row(inout vec4 x[PASSES]) {
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        const vec4 pairs = vec4(x[pass].xz + x[pass].yw, x[pass].xz - x[pass].yw);
        x[pass] = vec4(pairs.xz + pairs.yw, pairs.xz - pairs.yw);
    }
    for (uint distance = 1; distance < ROTATORS; distance *= 2) {
        const bool second = (gl_LocalInvocationIndex & distance) != 0;
        [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
            vec4 other;
            if (distance < SUBGROUP) {
                other = subgroupShuffleXor(x[pass], distance);
            } else {
                barrier();
                exchanged[gl_LocalInvocationIndex] = x[pass];
                barrier();
                other = exchanged[gl_LocalInvocationIndex ^ distance];
            }
            x[pass] = second ? other - x[pass] : x[pass] + other;
        }
    }
}

// What undoes the scale of a row's codes, and what makes codes of a row.
float code_step(float largest) { return largest / 127.0; }
float code_factor(float largest) { return largest > 0.0 ? 127.0 / largest : 0.0; }

// Place of the word of columns 4 v to 4 v + 3 of a row, of which there are `rows`.
uint rotated_word(uint v, uint row, uint rows) { return (v / (CHUNK / 4) * rows + row) * (CHUNK / 4) + v % (CHUNK / 4); }
