// A product's input row in the memory of a workgroup, as codes; twice where it is refined.
//
// The file that includes this declares the constants SHARED_BLOCKS (of all its rows), WIDTH, BLOCKS and
// REFINED, and includes operand.glsl and prologue.glsl before.

shared uvec4 shared_codes[2 * SHARED_BLOCKS];
shared uvec2 shared_metas[SHARED_BLOCKS];

// Columns 4 v to 4 v + 3 to shared memory. All invocations take part.
void put_shared(uint v, vec4 y) {
    const Quantised q = quantise(y, REFINED);
    const uint block = v / 8;
    if (v < WIDTH / 4) {
        const uint word = code_word(v, BLOCKS);
        shared_codes[word / 4][word % 4] = q.word;
        if (v % 8 == 0) {
            shared_metas[block] = q.meta;
        }
        if (REFINED) {
            shared_codes[2 * BLOCKS + word / 4][word % 4] = q.fine_word;
            if (v % 8 == 0) {
                shared_metas[BLOCKS + block] = q.fine_meta;
            }
        }
    }
}
