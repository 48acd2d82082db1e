// What the kernels of lone operations share: a workgroup takes a row (x) and some of its columns
// (y) from one buffer to another. Rows may be columns of wider ones.

layout(local_size_x = 128) in;
const uint WORKGROUP = 128;
// The output has a row for each that wants logits, not for each of the step.
layout(constant_id = 0) const bool LOGITS = false;

layout(set = 1, binding = 0, std430) readonly buffer From { float from[]; };
layout(set = 1, binding = 1, std430) writeonly buffer To { float to[]; };

// Where the rows of a tensor lie in its buffer, in floats.
struct View {
    uint stride;
    uint column;
};

// Programs are made for more rows than a step may have.
bool is_row(uint row) { return row < (LOGITS ? play.logit_count : play.row_count); }

uint start_of(View view, uint row) { return row * view.stride + view.column; }

// An invocation's first column, and the distance to its next.
uint first_column() { return gl_WorkGroupID.y * WORKGROUP + gl_LocalInvocationIndex; }
uint column_step() { return gl_NumWorkGroups.y * WORKGROUP; }
