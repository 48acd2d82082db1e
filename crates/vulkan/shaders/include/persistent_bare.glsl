// The input of a product of `persistent` that is a row as it was left: its words as codes.
//
// The file that includes this includes put_shared.glsl and words.glsl before.

// Waits for the row that begins at word `from`, and puts it into shared memory.
void form_bare(uint from, uint number) {
    // Passes over the row that are asked for at once: their words take two registers each.
    const uint AT_A_TIME = 4;
    await_some(from, WIDTH / 4 - 1 - min(gl_LocalInvocationIndex, WIDTH / 4 - 1), number);
    [[dont_unroll]] for (uint first = 0; first < WIDTH / 4; first += AT_A_TIME * WORKGROUP) {
        vec4 x[AT_A_TIME];
        bool here;
        uint asked = 0;
        [[dont_unroll]] do {
            here = true;
            [[unroll]] for (uint i = 0; i < AT_A_TIME; i++) {
                const uint v = first + i * WORKGROUP + gl_LocalInvocationIndex;
                here = take_four(from, min(v, WIDTH / 4 - 1), number, x[i]) && here;
            }
        } while (!here && ask_again(asked));
        [[unroll]] for (uint i = 0; i < AT_A_TIME; i++) {
            const uint v = first + i * WORKGROUP + gl_LocalInvocationIndex;
            put_shared(v, v < WIDTH / 4 ? x[i] : vec4(0.0));
        }
    }
    barrier();
}
