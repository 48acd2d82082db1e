// The end of sampling a row's token: what is left for the host and for the next play. Needs
// sampling.glsl and STEP_BINDING.

// The step, as in common.glsl, but to be written.
layout(set = 1, binding = STEP_BINDING, std430) buffer NextStep {
    uint header[4];
    Row rows[MAX_ROWS];
} next;

shared uint stops_here;

// Notes the token and makes the step's row that of the token after it. All lanes of a workgroup
// call it; the history is the caller's.
void finish(uint lane, uint token) {
    if (lane == 0) {
        stops_here = 0;
    }
    barrier();
    if (lane < state.stops && state.stop[lane] == token) {
        stops_here = 1;
    }
    barrier();
    if (lane == 0) {
        outcome.tokens[outcome.played] = token;
        outcome.played += 1;
        state.history_length += 1;
        // Plays that are still queued then repeat this one, harmlessly.
        if (stops_here != 0) {
            outcome.halted = 1;
        } else {
            const uint row = play.logit_rows[gl_WorkGroupID.y];
            next.rows[row].token = token;
            next.rows[row].position += 1;
        }
    }
}
