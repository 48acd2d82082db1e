// Words that workgroups of one dispatch hand each other: 64 bits, of which the upper half is the number of the
// operation that left the word, the lower half a float. A reader asks for a word until it has the number that it
// waits for, so that the word is its own flag: one atomic object, for which relaxed operations are enough.
//
// A workgroup waits only for what other workgroups still have to leave, never for its own invocations: every wait
// stands behind a barrier that its own words were left before.
//
// The file that includes this declares `spins`, how often a word is asked for at most.
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_atomic_int64 : require
#pragma use_vulkan_memory_model

layout(set = 1, binding = 3, std430) buffer Words { uint64_t words[]; };
// The first number that no operation had yet, workgroups that are done with this dispatch, and whether one ever
// gave up: then the following dispatches do nothing.
layout(set = 1, binding = 4, std430) buffer Control {
    uint next_number;
    uint departed;
    uint gave_up;
};
// The same for the host: not 0 once a workgroup has given up.
layout(set = 1, binding = 5, std430) buffer Notice { uint notice; };

// Whether an invocation of this workgroup has given up.
shared bool stuck;

void put_word(uint at, uint number, float value) {
    atomicStore(words[at], packUint2x32(uvec2(floatBitsToUint(value), number)), gl_ScopeDevice, 0, 0);
}

// Value and number.
uvec2 get_word(uint at) { return unpackUint2x32(atomicLoad(words[at], gl_ScopeDevice, 0, 0)); }

// Words of a row lie so that neighbouring invocations, which take four columns each, find them side by side:
// [4 WORKGROUP columns][column of four][invocation].
const uint ROW_WORDS = 4 * WORKGROUP;

// Place of a column's word in a row.
uint word_of(uint column) {
    return column / ROW_WORDS * ROW_WORDS + column % 4 * WORKGROUP + column / 4 % WORKGROUP;
}

// The words of columns 4 v to 4 v + 3 of the row that begins at word `from`, as floats; whether all of them have come.
bool take_four(uint from, uint v, uint number, out vec4 x) {
    const uint at = from + word_of(4 * v);
    const uvec2 a = get_word(at), b = get_word(at + WORKGROUP), c = get_word(at + 2 * WORKGROUP),
                d = get_word(at + 3 * WORKGROUP);
    x = uintBitsToFloat(uvec4(a.x, b.x, c.x, d.x));
    return a.y == number && b.y == number && c.y == number && d.y == number;
}

// Whether to ask once more. Not where that was done `spins` times or another workgroup has given up.
bool ask_again(inout uint asked) {
    asked++;
    if (asked < spins && (asked % 256 != 0 || atomicLoad(gave_up, gl_ScopeDevice, 0, 0) == 0)) {
        return true;
    }
    stuck = true;
    atomicStore(gave_up, 1u, gl_ScopeDevice, 0, 0);
    atomicStore(notice, 1u, gl_ScopeDevice, 0, 0);
    return false;
}

// Waits for one word of the row, the one of column 4 v: to ask for it alone takes less of what others read weights
// with than to ask for the whole row again and again.
void await_some(uint from, uint v, uint number) {
    uint asked = 0;
    [[dont_unroll]] while (get_word(from + word_of(4 * v)).y != number && ask_again(asked)) {
    }
}

// One word as a float, once it has come.
float await_float(uint at, uint number) {
    uvec2 word;
    uint asked = 0;
    do {
        word = get_word(at);
    } while (word.y != number && ask_again(asked));
    return uintBitsToFloat(word.x);
}
