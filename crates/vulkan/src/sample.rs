//! Sampling tokens on the GPU, for several rows at once, so that several can be played in one
//! submission.
//!
//! ```text
//! logits ─► sample_cut: bias, penalties, best of each slice ─► sample_best: cuts ─► token
//!                                                                   │
//!             state: history                 ◄──────────────────────┤
//!             outcome: tokens so far         ◄──────────────────────┤
//!             step: the row of the next play ◄──────────────────────┘
//! ```
//!
//! That is the path of greedy rows and of those that keep at most 64 tokens. The others look at the
//! whole vocabulary ([`whole`]); a submission has the kernels of either path, or of both where its
//! rows differ. Rows know nothing of one another: each has a state, an outcome and workgroups of its
//! own, and its path does not depend on the others.
//!
//! The result is the host sampler's: the same steps in the same order, ties to the lowest id, the
//! same weights in f32. Its sums are f64 and these are f32, so that a uniform number within about
//! 1e-6 of the boundary between two tokens may fall to the other.
//!
//! A recorded program serves every way of sampling: what varies is in [`SamplingState`], which the
//! host writes before a submission. Random numbers are a pure function of seed and position, so the
//! host computes those of all plays ahead, and the GPU needs no arithmetic of 64 bits.

pub(crate) mod bench;
mod room;
pub(crate) mod whole;

pub(crate) use room::{Paths, SampleRoom, changes_path};

use crate::constants::sample;
use crate::memory::{Memory, Purpose, Region};
use crate::pipeline::{Shader, Variant};
use crate::program::Dispatch;
use bytemuck::{Pod, Zeroable};
use pianola_plan::{DeviceError, SampleRow};
use room::needs_whole;
use whole::WholeBuffers;

// Mirrored in shaders/include/sampling.glsl.
/// Invocations of a workgroup.
const LANES: usize = 256;
/// Most rows that are sampled at once.
pub(crate) const MOST_ROWS: usize = 64;
/// Most plays of one state.
pub(crate) const MOST_PLAYS: usize = 64;
const MOST_WANTED: usize = 64;
const MOST_BIASES: usize = 64;
const MOST_STOPS: usize = 64;
/// Most tokens that penalties look back at in a state; more are in a buffer of their own.
const HISTORY: usize = 256;

/// Most workgroups of a row, and fewest logits a lane of them: enough workgroups for a large GPU,
/// few enough candidates for the one workgroup that samples from them.
const MOST_SLICES: usize = 128;
const FEWEST_KEYS: usize = 4;

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
    /// Candidates to sample from; 1 is greedy, 0 looks at the whole vocabulary.
    wanted: u32,
    /// Last tokens that the penalties look at; 0 where they are off.
    window: u32,
    biases: u32,
    stops: u32,
    /// Plays that there are uniform numbers for; further ones sample nothing.
    plays: u32,
    /// Tokens ever appended to the history, which is a ring here.
    history_length: u32,
    /// Of rows that look at the whole vocabulary: the best tokens to keep, 0 being all.
    top_k: u32,
    greedy: u32,
    masked: u32,
    /// 1 + the number of log probabilities beside the token's; 0 where none are wanted.
    logprobs: u32,
    bias: [Bias; MOST_BIASES],
    stop: [u32; MOST_STOPS],
    history: [u32; HISTORY],
    uniforms: [f32; MOST_PLAYS],
}

/// What plays of a row leave for the host; mirrors `Outcome` in the same file.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
pub(crate) struct Outcome {
    /// Tokens sampled.
    pub played: u32,
    /// Not 0 once a stop token was sampled, which is then the last of `tokens`.
    pub halted: u32,
    /// Not 0 where a logit was not a number, or a mask left no token.
    pub broken: u32,
    reserved: u32,
    pub tokens: [u32; MOST_PLAYS],
}

impl Outcome {
    /// The tokens that were sampled.
    pub fn sampled(&self) -> &[u32] {
        &self.tokens[..(self.played as usize).min(MOST_PLAYS)]
    }
}

impl SamplingState {
    /// The state before the first of up to `row.uniforms.len()` plays.
    ///
    /// # Panics
    /// Of more than [`MOST_PLAYS`] plays, or more stop tokens than there is room for.
    fn new(row: &SampleRow<'_>) -> SamplingState {
        let SampleRow { sampling, stop_tokens, uniforms, .. } = *row;
        assert!(uniforms.len() <= MOST_PLAYS, "{} plays", uniforms.len());
        let mut state = SamplingState::zeroed();
        state.temperature = sampling.temperature;
        state.top_p = sampling.top_p;
        state.min_p = sampling.min_p;
        state.repetition_penalty = sampling.repetition_penalty;
        state.presence_penalty = sampling.presence_penalty;
        state.frequency_penalty = sampling.frequency_penalty;
        state.biases = sampling.logit_bias.len() as u32;
        state.stops = stop_tokens.len() as u32;
        state.stop[..stop_tokens.len()].copy_from_slice(stop_tokens);
        state.plays = uniforms.len() as u32;
        for (slot, &uniform) in state.uniforms.iter_mut().zip(uniforms) {
            // A number just below 1 in f64 is 1 in f32.
            *slot = uniform.min(1.0 - f32::EPSILON / 2.0);
        }
        match needs_whole(row) {
            true => state.look_at_whole(row),
            false => state.look_at_best(row),
        }
        state
    }

    /// What only rows need that look at the best few of each slice: their lists are in the state.
    fn look_at_best(&mut self, row: &SampleRow<'_>) {
        let sampling = row.sampling;
        let greedy = sampling.temperature == 0.0;
        self.wanted = if greedy { 1 } else { sampling.top_k as u32 };
        let window = sampling.penalty_window.min(HISTORY) as u32;
        self.window = if sampling.penalises() { window } else { 0 };
        for (slot, &(token, amount)) in self.bias.iter_mut().zip(&sampling.logit_bias) {
            *slot = Bias { token, amount };
        }
        let recent = &row.history[row.history.len().saturating_sub(HISTORY)..];
        self.history[..recent.len()].copy_from_slice(recent);
        self.history_length = recent.len() as u32;
    }

    /// What only rows need that look at the whole vocabulary: their lists are in [`WholeBuffers`].
    fn look_at_whole(&mut self, row: &SampleRow<'_>) {
        let sampling = row.sampling;
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        self.wanted = 0;
        self.top_k = number(sampling.top_k);
        self.greedy = u32::from(sampling.temperature == 0.0);
        self.masked = u32::from(row.mask.is_some());
        self.logprobs = row.top_logprobs.map_or(0, |top| 1 + top as u32);
        if sampling.penalises() {
            self.window = number(sampling.penalty_window);
            self.history_length = whole::counted(row).len() as u32;
        }
    }
}

/// States, outcomes and scratch of some rows, in mapped memory.
pub(crate) struct SampleBuffers {
    pub room: SampleRoom,
    states: Region,
    pub outcomes: Region,
    scratch: Region,
    states_start: *mut SamplingState,
    pub outcomes_start: *mut Outcome,
    /// There from the first row on that looks at the whole vocabulary.
    pub whole: Option<WholeBuffers>,
}

impl SampleBuffers {
    pub fn new(memory: &mut Memory, room: SampleRoom) -> Result<SampleBuffers, DeviceError> {
        let mut allocate = |bytes: usize| {
            let region = memory.allocate(Purpose::Step, (room.rows * bytes) as u64, "sampling")?;
            Ok::<_, DeviceError>((region, memory.mapped(region).expect("visible to the host")))
        };
        let (states, states_start) = allocate(size_of::<SamplingState>())?;
        let (outcomes, outcomes_start) = allocate(size_of::<Outcome>())?;
        let (scratch, _) = allocate(SCRATCH_BYTES)?;
        let (states_start, outcomes_start) = (states_start.cast(), outcomes_start.cast());
        let whole = None;
        Ok(SampleBuffers { room, states, outcomes, scratch, states_start, outcomes_start, whole })
    }

    /// The buffers of rows that look at the whole vocabulary, allocated at first use.
    pub fn whole(&mut self, memory: &mut Memory) -> Result<&WholeBuffers, DeviceError> {
        let whole = match self.whole.take() {
            Some(whole) => whole,
            None => WholeBuffers::new(memory, &self.room)?,
        };
        Ok(self.whole.insert(whole))
    }

    /// Makes ready to sample these rows; one that is none is left to the host.
    ///
    /// # Safety
    /// No play that samples is in flight.
    ///
    /// # Panics
    /// Of more rows than there is room for, one that the GPU cannot do, or one that looks at the
    /// whole vocabulary before [`SampleBuffers::whole`].
    pub unsafe fn write(&mut self, rows: &[Option<SampleRow<'_>>]) {
        assert!(rows.len() <= self.room.rows, "{} of {} rows", rows.len(), self.room.rows);
        for (index, row) in rows.iter().enumerate() {
            // Without plays the kernels leave a row alone.
            let state = row.as_ref().map_or(SamplingState::zeroed(), SamplingState::new);
            // SAFETY: inside the mapped regions, whose alignment is far above that of words;
            // nothing else looks at them, by the caller's promise.
            unsafe {
                self.states_start.add(index).write(state);
                self.outcomes_start.add(index).write(Outcome::zeroed());
            }
            let Some(row) = row else { continue };
            assert_eq!(self.room.unsupported(row), None);
            if needs_whole(row) {
                let whole = self.whole.as_mut().expect("buffers of the whole vocabulary");
                // SAFETY: by the caller's promise, and the limits hold.
                unsafe { whole.write(index, row) };
            }
        }
    }

    /// Buffers to sample from `logits`, `[rows][vocabulary]`, for a `step`.
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

impl SampleRegions {
    /// Regions of programs that are written but never played.
    pub fn dry_run() -> SampleRegions {
        let nowhere = Region::dry_run(0);
        SampleRegions {
            logits: nowhere,
            states: nowhere,
            outcomes: nowhere,
            scratch: nowhere,
            step: nowhere,
        }
    }
}

/// Samples a token from each row of logits and makes the step's row that of the next play. Every
/// dispatch waits for what comes before; what comes after has to wait for the last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleProgram {
    pub regions: SampleRegions,
    pub vocabulary: u32,
    /// Rows of logits; by the step there may be fewer.
    pub rows: u32,
    /// Kernel of the plan that the time is counted for.
    pub op: usize,
}

impl SampleProgram {
    /// Sampling of the rows for which the best few of each slice are enough.
    pub fn best(&self) -> Vec<Dispatch> {
        let SampleRegions { logits, states, outcomes, scratch, step } = self.regions;
        let (keys, slices) = slices(self.vocabulary);
        // These rows have no history of their own.
        let constants = [self.vocabulary, slices as u32, 0];
        let dispatch = |shader, keys: usize, last: Region, groups: usize| {
            let variant = Variant { shader, constants: vec![(sample::KEYS, keys as u32)] };
            let bindings = vec![states, outcomes, scratch, last];
            let (push, groups) = (bytemuck::cast_slice(&constants), [groups as u32, self.rows, 1]);
            Dispatch { barrier: true, ..Dispatch::new(variant, bindings, push, groups, self.op) }
        };
        let candidates = (slices * MOST_WANTED).div_ceil(LANES);
        vec![
            dispatch(Shader::SampleCut, keys, logits, slices),
            dispatch(Shader::SampleBest, candidates, step, 1),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pianola_plan::Sampling;
    use std::mem::offset_of;

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
        assert_eq!(offset_of!(SamplingState, bias), 64);
        assert_eq!(offset_of!(SamplingState, stop), 576);
        assert_eq!(offset_of!(SamplingState, history), 832);
        assert_eq!(offset_of!(SamplingState, uniforms), 1856);
        assert_eq!(size_of::<SamplingState>(), 2112);
        assert_eq!(offset_of!(Outcome, tokens), 16);
        assert_eq!(size_of::<Outcome>(), 272);
    }

    #[test]
    fn a_state_keeps_the_end_of_the_history_and_numbers_below_one() {
        let history: Vec<u32> = (0..300).collect();
        let greedy = Sampling::greedy();
        let row = SampleRow { history: &history, ..SampleRow::new(&greedy, &[1.0, 0.25]) };
        let state = SamplingState::new(&row);
        assert_eq!((state.history_length, state.history[0], state.history[255]), (256, 44, 299));
        assert!(state.uniforms[0] < 1.0 && state.uniforms[1] == 0.25 && state.plays == 2);
    }
}
