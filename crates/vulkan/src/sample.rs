//! Sampling tokens on the GPU, for several rows at once, so that several can be played in one
//! submission.
//!
//! ```text
//! logits ─► sample_cut: bias, penalties, best of each slice ─► sample_draw: cuts, draw ─► token
//!                                                                   │
//!             state: history                 ◄──────────────────────┤
//!             outcome: tokens so far         ◄──────────────────────┤
//!             step: the row of the next play ◄──────────────────────┘
//! ```
//!
//! Rows know nothing of one another: each has a state, an outcome and workgroups of its own.
//!
//! The choice is the host sampler's: the same steps in the same order, ties to the lowest id, the
//! same weights in f32. Its sums are f64 and these are f32, so that a draw within about 1e-6 of the
//! boundary between two tokens may fall to the other.
//!
//! A recorded program serves every way of sampling: what varies is in [`SamplingState`], which the
//! host writes before a submission. Random numbers are a pure function of seed and position, so the
//! host computes those of all plays ahead, and the GPU needs no arithmetic of 64 bits.

#[cfg(feature = "test-hooks")]
pub(crate) mod bench;

use crate::memory::{Memory, Purpose, Region};
use crate::pipeline::{Shader, Variant};
use crate::program::Dispatch;
use bytemuck::{Pod, Zeroable};
use pianola_plan::{DeviceError, SampleRow};

// Mirrored in shaders/include/sampling.glsl.
/// Invocations of a workgroup.
const LANES: usize = 256;
/// Most rows that tokens are chosen for at once.
pub(crate) const MOST_ROWS: usize = 64;
/// Most plays of one state.
pub(crate) const MOST_PLAYS: usize = 64;
const MOST_WANTED: usize = 64;
const MOST_BIASES: usize = 64;
const MOST_STOPS: usize = 64;
/// Most tokens that penalties look back at.
const HISTORY: usize = 256;

/// Most workgroups that cut, and fewest logits a lane of them: enough workgroups for a large GPU,
/// few enough candidates for the one workgroup that draws.
const MOST_SLICES: usize = 128;
const FEWEST_KEYS: usize = 4;

/// Why the GPU cannot choose this way; the host's sampler then has to.
pub(crate) fn unsupported(row: &SampleRow<'_>) -> Option<&'static str> {
    let SampleRow { sampling, stop_tokens, .. } = *row;
    if row.mask.is_some() {
        return Some("the GPU takes no mask");
    }
    if row.top_logprobs.is_some() {
        return Some("the GPU gives no log probabilities");
    }
    if sampling.temperature > 0.0 && !(1..=MOST_WANTED).contains(&sampling.top_k) {
        return Some("drawing on the GPU needs a top-k of 1 to 64");
    }
    if sampling.penalises() && sampling.penalty_window > HISTORY {
        return Some("penalties on the GPU look back at most 256 tokens");
    }
    if sampling.logit_bias.len() > MOST_BIASES {
        return Some("the GPU takes at most 64 biases");
    }
    if stop_tokens.len() > MOST_STOPS {
        return Some("the GPU takes at most 64 stop tokens");
    }
    None
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
struct Bias {
    token: u32,
    amount: f32,
}

/// What the kernels need to know of a row; mirrors `State` in `shaders/include/sampling.glsl`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
pub(crate) struct SamplingState {
    temperature: f32,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    presence_penalty: f32,
    frequency_penalty: f32,
    /// Candidates to draw from; 1 is the greedy choice.
    wanted: u32,
    /// Last tokens that the penalties look at; 0 where they are off.
    window: u32,
    biases: u32,
    stops: u32,
    /// Plays that there are uniform numbers for; further ones choose nothing.
    plays: u32,
    /// Tokens ever appended to the ring of the history.
    history_length: u32,
    bias: [Bias; MOST_BIASES],
    stop: [u32; MOST_STOPS],
    history: [u32; HISTORY],
    uniforms: [f32; MOST_PLAYS],
}

/// What plays of a row leave for the host; mirrors `Outcome` in the same file.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
pub(crate) struct Outcome {
    /// Tokens chosen.
    pub played: u32,
    /// Not 0 once a stop token was chosen, which is then the last of `tokens`.
    pub halted: u32,
    /// Not 0 where a logit was not a number.
    pub broken: u32,
    reserved: u32,
    pub tokens: [u32; MOST_PLAYS],
}

impl Outcome {
    /// The tokens that were chosen.
    pub fn sampled(&self) -> &[u32] {
        &self.tokens[..(self.played as usize).min(MOST_PLAYS)]
    }
}

impl SamplingState {
    /// The state before the first of up to `row.uniforms.len()` plays.
    ///
    /// # Panics
    /// If the GPU cannot sample so, or of more than [`MOST_PLAYS`] plays.
    fn new(row: &SampleRow<'_>) -> SamplingState {
        let SampleRow { sampling, stop_tokens, history, uniforms, .. } = *row;
        assert_eq!(unsupported(row), None);
        assert!(uniforms.len() <= MOST_PLAYS, "{} plays", uniforms.len());
        let mut state = SamplingState::zeroed();
        let greedy = sampling.temperature == 0.0;
        state.temperature = sampling.temperature;
        state.top_p = sampling.top_p;
        state.min_p = sampling.min_p;
        state.repetition_penalty = sampling.repetition_penalty;
        state.presence_penalty = sampling.presence_penalty;
        state.frequency_penalty = sampling.frequency_penalty;
        state.wanted = if greedy { 1 } else { sampling.top_k as u32 };
        state.window = if sampling.penalises() { sampling.penalty_window as u32 } else { 0 };
        state.biases = sampling.logit_bias.len() as u32;
        for (slot, &(token, amount)) in state.bias.iter_mut().zip(&sampling.logit_bias) {
            *slot = Bias { token, amount };
        }
        state.stops = stop_tokens.len() as u32;
        state.stop[..stop_tokens.len()].copy_from_slice(stop_tokens);
        let recent = &history[history.len().saturating_sub(HISTORY)..];
        state.history[..recent.len()].copy_from_slice(recent);
        state.history_length = recent.len() as u32;
        state.plays = uniforms.len() as u32;
        for (slot, &uniform) in state.uniforms.iter_mut().zip(uniforms) {
            // A number just below 1 in f64 is 1 in f32.
            *slot = uniform.min(1.0 - f32::EPSILON / 2.0);
        }
        state
    }
}

/// States, outcomes and scratch of some rows, in mapped memory.
pub(crate) struct SampleBuffers {
    rows: usize,
    states: Region,
    pub outcomes: Region,
    scratch: Region,
    states_start: *mut SamplingState,
    pub outcomes_start: *mut Outcome,
}

impl SampleBuffers {
    /// Room for so many rows at once.
    pub fn new(memory: &mut Memory, rows: usize) -> Result<SampleBuffers, DeviceError> {
        let mut allocate = |bytes: usize| {
            let region = memory.allocate(Purpose::Step, (rows * bytes) as u64, "sampling")?;
            Ok::<_, DeviceError>((region, memory.mapped(region).expect("visible to the host")))
        };
        let (states, states_start) = allocate(size_of::<SamplingState>())?;
        let (outcomes, outcomes_start) = allocate(size_of::<Outcome>())?;
        let (scratch, _) = allocate(SCRATCH_BYTES)?;
        let (states_start, outcomes_start) = (states_start.cast(), outcomes_start.cast());
        Ok(SampleBuffers { rows, states, outcomes, scratch, states_start, outcomes_start })
    }

    /// Makes ready to sample these rows; one that is none is left to the host.
    ///
    /// # Safety
    /// No play that samples is in flight.
    ///
    /// # Panics
    /// Of more rows than there is room for, or one that the GPU cannot do.
    pub unsafe fn write(&self, rows: &[Option<SampleRow<'_>>]) {
        assert!(rows.len() <= self.rows, "{} of {} rows", rows.len(), self.rows);
        for (row, sampled) in rows.iter().enumerate() {
            // Without plays the kernels leave a row alone.
            let state = sampled.as_ref().map_or(SamplingState::zeroed(), SamplingState::new);
            // SAFETY: inside the mapped regions, whose alignment is far above that of words;
            // nothing else looks at them, by the caller's promise.
            unsafe {
                self.states_start.add(row).write(state);
                self.outcomes_start.add(row).write(Outcome::zeroed());
            }
        }
    }

    /// Buffers to choose from `logits`, `[rows][vocabulary]`, for a `step`.
    pub fn regions(&self, logits: Region, step: Region) -> SampleRegions {
        let SampleBuffers { states, outcomes, scratch, .. } = *self;
        SampleRegions { logits, states, outcomes, scratch, step }
    }
}

/// Bytes of a row's scratch, which the best of its slices lie in.
const SCRATCH_BYTES: usize = MOST_SLICES * MOST_WANTED * 8;

/// Logits of a lane and slices, for a vocabulary.
fn slices(vocabulary: u32) -> (usize, usize) {
    let vocabulary = vocabulary as usize;
    let keys = vocabulary.div_ceil(LANES * MOST_SLICES).max(FEWEST_KEYS);
    (keys, vocabulary.div_ceil(LANES * keys))
}

/// Buffers of a program that samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleRegions {
    /// Rows of logits, which bias and penalties are written into.
    pub logits: Region,
    /// A [`SamplingState`] for each of them.
    pub states: Region,
    /// An [`Outcome`] for each.
    pub outcomes: Region,
    /// [`SCRATCH_BYTES`] for each.
    pub scratch: Region,
    /// The step whose rows become those of the next play. Set 0 binds it as well.
    pub step: Region,
}

/// Chooses a token from each row of logits, of which there are `rows` or, by the step, fewer, and
/// makes the step's row that of the next play. Waits for what comes before; what comes after has to
/// wait for it.
pub(crate) fn sample_program(
    regions: SampleRegions,
    vocabulary: u32,
    rows: u32,
    op: usize,
) -> Vec<Dispatch> {
    let SampleRegions { logits, states, outcomes, scratch, step } = regions;
    let (keys, slices) = slices(vocabulary);
    let constants = [vocabulary, slices as u32];
    let dispatch = |shader, keys: usize, last: Region, groups: usize| {
        let variant = Variant { shader, constants: vec![(0, keys as u32)] };
        let bindings = vec![states, outcomes, scratch, last];
        let (push, groups) = (bytemuck::cast_slice(&constants), [groups as u32, rows, 1]);
        Dispatch { barrier: true, ..Dispatch::new(variant, bindings, push, groups, op) }
    };
    let candidates = (slices * MOST_WANTED).div_ceil(LANES);
    vec![
        dispatch(Shader::SampleCut, keys, logits, slices),
        dispatch(Shader::SampleDraw, candidates, step, 1),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use pianola_plan::Sampling;
    use std::mem::offset_of;

    fn row<'a>(sampling: &'a Sampling, stop_tokens: &'a [u32]) -> SampleRow<'a> {
        SampleRow { stop_tokens, ..SampleRow::new(sampling, &[0.0]) }
    }

    #[test]
    fn what_the_gpu_cannot_do_is_said() {
        let supports = |sampling: Sampling| unsupported(&row(&sampling, &[])).is_none();
        assert!(supports(Sampling::greedy()));
        let drawn = |top_k| supports(Sampling { top_k, ..Sampling::default() });
        assert!(drawn(1) && drawn(64) && !drawn(0) && !drawn(65));
        let penalised = |penalty_window| {
            supports(Sampling { presence_penalty: 0.5, penalty_window, ..Sampling::greedy() })
        };
        assert!(penalised(0) && penalised(256) && !penalised(257));
        let biased =
            |count| supports(Sampling { logit_bias: vec![(0, 1.0); count], ..Sampling::greedy() });
        assert!(biased(64) && !biased(65));
        let stopped = |count| unsupported(&row(&Sampling::greedy(), &vec![0; count])).is_none();
        assert!(stopped(64) && !stopped(65));
    }

    #[test]
    fn slices_cover_every_vocabulary() {
        for vocabulary in [1, 7, 1024, 1025, 49_152, 151_936, 262_144, 262_145, 262_208, 3_000_000]
        {
            let (keys, slices) = slices(vocabulary);
            assert!(slices <= MOST_SLICES && keys * slices * LANES >= vocabulary as usize);
            assert!(keys * (slices - 1) * LANES < vocabulary as usize, "the last slice is empty");
        }
    }

    #[test]
    fn states_are_laid_out_as_the_kernels_read_them() {
        assert_eq!(offset_of!(SamplingState, bias), 48);
        assert_eq!(offset_of!(SamplingState, stop), 560);
        assert_eq!(offset_of!(SamplingState, history), 816);
        assert_eq!(offset_of!(SamplingState, uniforms), 1840);
        assert_eq!(size_of::<SamplingState>(), 2096);
        assert_eq!(offset_of!(Outcome, tokens), 16);
        assert_eq!(size_of::<Outcome>(), 272);
    }

    #[test]
    fn a_state_keeps_the_end_of_the_history_and_numbers_below_one() {
        let history: Vec<u32> = (0..300).collect();
        let greedy = Sampling::greedy();
        let row = SampleRow { history: &history, uniforms: &[1.0, 0.25], ..row(&greedy, &[]) };
        let state = SamplingState::new(&row);
        assert_eq!((state.history_length, state.history[0], state.history[255]), (256, 44, 299));
        assert!(state.uniforms[0] < 1.0 && state.uniforms[1] == 0.25 && state.plays == 2);
    }
}
