// A product's input row in the memory of a workgroup, as codes; twice where it is refined.
//
// The file that includes this declares the constants SHARED_BLOCKS (of all its rows), BLOCKS and
// REFINED, and includes operand.glsl and prologue.glsl before.

shared uvec4 shared_codes[2 * SHARED_BLOCKS];
shared uvec2 shared_metas[SHARED_BLOCKS];

#include "put_shared.glsl"
