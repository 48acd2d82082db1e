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

// The residual sum of `row` and the weights of its norm, which is not applied yet; writes the new
// residual stream if `keep`. Returns this invocation's part of the sum's squares.
float form_sum(Prologue constants, uint row, bool keep, out vec4 x[PASSES], out vec4 norm[PASSES]) {
    const uint vectors_in_row = WIDTH / 4;
    const uint source = SELECT ? play.logit_rows[row] : row;
    const uint base_row = source * constants.base_stride;
    const uint delta_row = source * constants.delta_stride;
    vec4 d[PASSES], delta_norm[PASSES];
    float squares = 0.0;
    // All loads before the first wait.
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        const uint v = pass * WORKGROUP + gl_LocalInvocationIndex;
        const bool inside = v < vectors_in_row;
        x[pass] = inside ? base[base_row + v] : vec4(0.0);
        if (SUM != 0) {
            d[pass] = inside ? delta[delta_row + v] : vec4(0.0);
        }
        if (SUM == 2) {
            delta_norm[pass] = inside ? vectors[constants.delta_norm + v] : vec4(0.0);
        }
        if (NORM) {
            norm[pass] = inside ? vectors[constants.norm + v] : vec4(0.0);
        }
    }
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        if (SUM == 2) {
            squares += dot(d[pass], d[pass]);
        }
    }
    if (SUM == 2) {
        const float factor = inversesqrt(workgroup_sum(squares) / float(WIDTH) + constants.delta_epsilon);
        [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
            d[pass] *= factor * delta_norm[pass];
        }
    }
    squares = 0.0;
    [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
        const uint v = pass * WORKGROUP + gl_LocalInvocationIndex;
        if (SUM != 0) {
            x[pass] += d[pass];
            if (keep && v < vectors_in_row) {
                residual[row * vectors_in_row + v] = x[pass];
            }
        }
        squares += dot(x[pass], x[pass]);
    }
    return squares;
}

// What a norm multiplies a row by, besides its weights, by the sum of the row's squares.
float norm_factor(Prologue constants, float squares) {
    return inversesqrt(squares / float(WIDTH) + constants.epsilon);
}

// Forms `row` of the operand; writes the new residual stream if `keep`.
void form_row(Prologue constants, uint row, bool keep, out vec4 x[PASSES]) {
    vec4 norm[PASSES];
    const float squares = form_sum(constants, row, keep, x, norm);
    if (NORM) {
        const float factor = norm_factor(constants, workgroup_sum(squares));
        [[unroll]] for (uint pass = 0; pass < PASSES; pass++) {
            x[pass] *= factor * norm[pass];
        }
    }
}
