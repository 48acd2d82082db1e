// The prologue of a product: residual sum, norms, row selection. A workgroup forms one row, in
// registers; invocation v of a pass holds columns 4 v to 4 v + 3, so that eight invocations hold a
// block.
//
// The file that includes this declares `const uint WORKGROUP` and the bindings BASE, DELTA and
// RESIDUAL as vec4 arrays `base`, `delta` and `residual`, and `vectors`.

layout(constant_id = 10) const uint WIDTH = 32;
// Passes over the row: ceil(WIDTH / 4 / WORKGROUP).
layout(constant_id = 11) const uint PASSES = 1;
// 0: the input is `base`; 1: `base + delta`; 2: `base + norm(delta)`.
layout(constant_id = 12) const uint SUM = 0;
layout(constant_id = 13) const bool NORM = false;
layout(constant_id = 14) const bool SELECT = false;
// Invocations of a subgroup: a constant, so that the loop over their sums unrolls.
layout(constant_id = 21) const uint SUBGROUP = 8;

// Strides and offsets count vec4.
struct Prologue {
    uint base_stride;
    uint delta_stride;
    uint norm;
    uint delta_norm;
    float epsilon;
    float delta_epsilon;
};

// A workgroup has at most 64 subgroups: 512 invocations where subgroups may have eight, 1,024
// where they have at least 16 (`prologue_workgroup` in src/policy).
shared float partial_sums[64];

float workgroup_sum(float value) {
    const float sum = subgroupAdd(value);
    barrier();
    if (subgroupElect()) {
        partial_sums[gl_SubgroupID] = sum;
    }
    barrier();
    float total = 0.0;
    [[unroll]] for (uint i = 0; i < WORKGROUP / SUBGROUP; i++) {
        total += partial_sums[i];
    }
    return total;
}

// What a row is formed from, four columns an invocation and pass.
struct RowParts {
    vec4 base;
    vec4 delta;
    vec4 delta_norm;
    vec4 norm;
};

// Loads the rows that `row` is formed from, the norms' weights, or both.
void load_some(Prologue constants, uint row, const bool rows, const bool norms, inout RowParts parts[PASSES]) {
    const uint source = SELECT ? play.logit_rows[row] : row;
    const uint base_row = source * constants.base_stride;
    const uint delta_row = source * constants.delta_stride;
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        const uint v = pass * WORKGROUP + gl_LocalInvocationIndex;
        const bool inside = v < WIDTH / 4;
        if (rows) {
            parts[pass].base = inside ? base[base_row + v] : vec4(0.0);
        }
        if (SUM != 0 && rows) {
            parts[pass].delta = inside ? delta[delta_row + v] : vec4(0.0);
        }
        if (SUM == 2 && norms) {
            parts[pass].delta_norm = inside ? vectors[constants.delta_norm + v] : vec4(0.0);
        }
        if (NORM && norms) {
            parts[pass].norm = inside ? vectors[constants.norm + v] : vec4(0.0);
        }
    }
}

// Loads what `row` is formed from: all of it before the first wait.
void load_parts(Prologue constants, uint row, out RowParts parts[PASSES]) {
    load_some(constants, row, true, true, parts);
}

// Adds up the residual sum, into `base`; writes it as the new residual stream if `keep`. Returns this
// invocation's part of its squares.
float form_sum(Prologue constants, uint row, bool keep, inout RowParts parts[PASSES]) {
    float factor = 1.0;
    if (SUM == 2) {
        float squares = 0.0;
        [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
            squares += dot(parts[pass].delta, parts[pass].delta);
        }
        factor = inversesqrt(workgroup_sum(squares) / float(WIDTH) + constants.delta_epsilon);
    }
    float squares = 0.0;
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        const uint v = pass * WORKGROUP + gl_LocalInvocationIndex;
        if (SUM == 2) {
            parts[pass].delta *= factor * parts[pass].delta_norm;
        }
        if (SUM != 0) {
            parts[pass].base += parts[pass].delta;
            if (keep && v < WIDTH / 4) {
                residual[row * (WIDTH / 4) + v] = parts[pass].base;
            }
        }
        squares += dot(parts[pass].base, parts[pass].base);
    }
    return squares;
}

// What a norm multiplies a row by, besides its weights, by the sum of the row's squares.
float norm_factor(Prologue constants, float squares) {
    return inversesqrt(squares / float(WIDTH) + constants.epsilon);
}

// Forms `row` of the operand; writes the new residual stream if `keep`.
void form_row(Prologue constants, uint row, bool keep, out vec4 x[PASSES]) {
    RowParts parts[PASSES];
    load_parts(constants, row, parts);
    const float squares = form_sum(constants, row, keep, parts);
    float factor = 1.0;
    if (NORM) {
        factor = norm_factor(constants, workgroup_sum(squares));
    }
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        x[pass] = NORM ? parts[pass].base * (factor * parts[pass].norm) : parts[pass].base;
    }
}
