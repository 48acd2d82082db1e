// Puts a row of WIDTH columns, BLOCKS blocks, into the memory that shared_row.glsl declares. A kernel with rows of
// several widths includes this once for each, with names of its own.

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
