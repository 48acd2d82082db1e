// Faults that tests plant in kernels, to see that checks notice them. FAULT is 0 in every program
// that is not a test's, and what depends on it is folded away when the pipeline is compiled.

layout(constant_id = 31) const uint FAULT = 0;

// Mirrors `pianola_plan::Fault`.
const uint DROPPED_BLOCK = 1;
const uint WRONG_SCALE = 2;
const uint STALE_ROW = 3;
const uint WRONG_TAIL = 4;
const uint STALE_KEY = 5;
const uint SWAPPED_KV = 6;
const uint WRONG_PAGE = 7;
const uint LONG_WINDOW = 8;
const uint LOST_SPLIT = 9;
const uint OTHER_LANE = 10;
const uint WRONG_POSITION = 11;

// The output whose product is spoilt.
const uint FAULTY_OUTPUT = 5;

// What the weights of a block of an output are taken times, by DROPPED_BLOCK and WRONG_SCALE.
float spoilt(uint row, uint block, uint blocks) {
    return row != FAULTY_OUTPUT || block != blocks / 2 ? 1.0 : FAULT == DROPPED_BLOCK ? 0.0 : 2.0;
}
const bool SPOILT_BLOCK = FAULT == DROPPED_BLOCK || FAULT == WRONG_SCALE;
