//! Choosing tokens on the GPU, so that several can be played in one submission.
//!
//! ```text
//! logits ─► sample_cut: bias, penalties, best of each slice ─► sample_draw: cuts, draw ─► token
//!                                                                   │
//!             state: history, tokens so far  ◄──────────────────────┤
//!             step: the row of the next play ◄──────────────────────┘
//! ```
//!
//! The choice is the host sampler's: the same steps in the same order, ties to the lowest id, the
//! same weights in f32. Its sums are f64 and these are f32, so that a draw within about 1e-6 of the
//! boundary between two tokens may fall to the other.
//!
//! A recorded program serves every way of sampling: what varies is in [`SamplingState`], which the
//! host writes before a submission. Random numbers are a pure function of seed and position, so the
//! host computes those of all plays ahead, and the GPU needs no arithmetic of 64 bits.

pub(crate) mod bench;

use crate::memory::Region;
use crate::pipeline::{Shader, Variant};
use crate::program::Dispatch;
use bytemuck::{Pod, Zeroable};
use std::mem::offset_of;

// Mirrored in shaders/include/sampling.glsl.
/// Invocations of a workgroup.
const LANES: usize = 256;
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

/// Bytes of the region that the best of the slices lie in.
pub(crate) const SCRATCH_BYTES: u64 = (MOST_SLICES * MOST_WANTED * 8) as u64;

/// How the GPU chooses tokens. Fields mean what those of the engine's sampler do.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuSampling {
    /// Divides the logits; 0 always takes the best token and ignores the cuts.
    pub temperature: f32,
    /// Keeps this many of the best tokens.
    pub top_k: usize,
    /// Keeps the smallest set of best tokens whose probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this fraction as probable as the best one; 0 keeps all.
    pub min_p: f32,
    /// Divides the positive and multiplies the negative logits of tokens seen before; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every token seen before.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token once for each time it was seen before.
    pub frequency_penalty: f32,
    /// How many of the last tokens the three penalties look at.
    pub penalty_window: usize,
    /// (token, amount) added to logits; amounts for the same token add up.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens after which nothing is played any more.
    pub stop_tokens: Vec<u32>,
}

impl GpuSampling {
    /// Why the GPU cannot choose this way; the host's sampler then has to.
    pub fn unsupported(&self) -> Option<&'static str> {
        if self.temperature > 0.0 && !(1..=MOST_WANTED).contains(&self.top_k) {
            return Some("drawing on the GPU needs a top-k of 1 to 64");
        }
        if self.penalises() && self.penalty_window > HISTORY {
            return Some("penalties on the GPU look back at most 256 tokens");
        }
        if self.logit_bias.len() > MOST_BIASES {
            return Some("the GPU takes at most 64 biases");
        }
        if self.stop_tokens.len() > MOST_STOPS {
            return Some("the GPU takes at most 64 stop tokens");
        }
        None
    }

    fn penalises(&self) -> bool {
        self.penalty_window > 0
            && (self.repetition_penalty != 1.0
                || self.presence_penalty != 0.0
                || self.frequency_penalty != 0.0)
    }
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
struct Bias {
    token: u32,
    amount: f32,
}

/// What the kernels need to know and remember; mirrors `State` in `shaders/include/sampling.glsl`.
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
    outcome: Outcome,
}

/// What plays leave for the host.
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
    pub fn chosen(&self) -> &[u32] {
        &self.tokens[..(self.played as usize).min(MOST_PLAYS)]
    }
}

impl SamplingState {
    pub const BYTES: u64 = size_of::<SamplingState>() as u64;

    /// The state before the first of up to `uniforms.len()` plays. `history` is every token that
    /// penalties may look at, `uniforms` a random number in [0, 1) for each play, which a greedy
    /// choice ignores.
    ///
    /// # Panics
    /// If the GPU cannot sample so, or of more than [`MOST_PLAYS`] plays.
    pub fn new(sampling: &GpuSampling, history: &[u32], uniforms: &[f32]) -> SamplingState {
        assert_eq!(sampling.unsupported(), None);
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
        state.stops = sampling.stop_tokens.len() as u32;
        state.stop[..sampling.stop_tokens.len()].copy_from_slice(&sampling.stop_tokens);
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

    /// The part of a region of this layout that holds the [`Outcome`].
    pub fn outcome(region: Region) -> Region {
        region.slice(offset_of!(SamplingState, outcome) as u64, size_of::<Outcome>() as u64)
    }
}

/// Logits of a lane and slices, for a vocabulary.
fn slices(vocabulary: u32) -> (usize, usize) {
    let vocabulary = vocabulary as usize;
    let keys = vocabulary.div_ceil(LANES * MOST_SLICES).max(FEWEST_KEYS);
    (keys, vocabulary.div_ceil(LANES * keys))
}

/// Buffers of a program that samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleRegions {
    /// One row of logits, which bias and penalties are written into.
    pub logits: Region,
    /// A [`SamplingState`].
    pub state: Region,
    /// [`SCRATCH_BYTES`].
    pub scratch: Region,
    /// The step whose first row becomes that of the next play. Set 0 binds it as well.
    pub step: Region,
}

/// Chooses a token from the first row of logits, and makes the step's first row that of the next
/// play. Waits for what comes before; what comes after has to wait for it.
pub(crate) fn sample_program(regions: SampleRegions, vocabulary: u32, op: usize) -> Vec<Dispatch> {
    let SampleRegions { logits, state, scratch, step } = regions;
    let (keys, slices) = slices(vocabulary);
    let dispatch = |shader, keys: usize, bindings, push: &[u32], groups: usize| {
        let variant = Variant { shader, constants: vec![(0, keys as u32)] };
        let (push, groups) = (bytemuck::cast_slice(push), [groups as u32, 1, 1]);
        Dispatch { barrier: true, ..Dispatch::new(variant, bindings, push, groups, op) }
    };
    let candidates = (slices * MOST_WANTED).div_ceil(LANES);
    let constants = [vocabulary, slices as u32];
    vec![
        dispatch(Shader::SampleCut, keys, vec![state, scratch, logits], &constants[..1], slices),
        dispatch(Shader::SampleDraw, candidates, vec![state, scratch, step], &constants, 1),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greedy() -> GpuSampling {
        GpuSampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: usize::MAX,
            logit_bias: Vec::new(),
            stop_tokens: Vec::new(),
        }
    }

    #[test]
    fn what_the_gpu_cannot_do_is_said() {
        assert_eq!(greedy().unsupported(), None);
        let drawn = |top_k| GpuSampling { temperature: 1.0, top_k, ..greedy() }.unsupported();
        assert_eq!((drawn(1), drawn(64)), (None, None));
        assert!(drawn(0).is_some() && drawn(65).is_some());
        let penalised = |penalty_window| {
            GpuSampling { presence_penalty: 0.5, penalty_window, ..greedy() }.unsupported()
        };
        assert_eq!((penalised(0), penalised(256)), (None, None));
        assert!(penalised(257).is_some());
        let biased = |count| GpuSampling { logit_bias: vec![(0, 1.0); count], ..greedy() };
        assert!(biased(64).unsupported().is_none() && biased(65).unsupported().is_some());
        let stopped = |count| GpuSampling { stop_tokens: vec![0; count], ..greedy() };
        assert!(stopped(64).unsupported().is_none() && stopped(65).unsupported().is_some());
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
    fn the_state_is_laid_out_as_the_kernels_read_it() {
        assert_eq!(offset_of!(SamplingState, bias), 48);
        assert_eq!(offset_of!(SamplingState, stop), 560);
        assert_eq!(offset_of!(SamplingState, history), 816);
        assert_eq!(offset_of!(SamplingState, uniforms), 1840);
        assert_eq!(offset_of!(SamplingState, outcome), 2096);
        assert_eq!(SamplingState::BYTES, 2368);
    }

    #[test]
    fn a_state_keeps_the_end_of_the_history_and_numbers_below_one() {
        let history: Vec<u32> = (0..300).collect();
        let state = SamplingState::new(&greedy(), &history, &[1.0, 0.25]);
        assert_eq!((state.history_length, state.history[0], state.history[255]), (256, 44, 299));
        assert!(state.uniforms[0] < 1.0 && state.uniforms[1] == 0.25 && state.plays == 2);
    }
}
