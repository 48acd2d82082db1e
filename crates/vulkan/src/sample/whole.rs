//! Sampling from the whole vocabulary: the rows whose options the best few of each slice do not
//! settle. Top-k above 64 or none, long penalty windows, many biases, masks, log probabilities.
//!
//! ```text
//! sample_shape ─► sample_select: top-k ─► sample_select: top-p ─► sample_weigh ─► sample_whole
//! ```
//!
//! A stage that no row of a submission needs is left out of it; the kernels of a stage leave rows
//! alone that do not need it.

use super::{Bias, LANES, MOST_PLAYS, MOST_SLICES, SampleProgram, SampleRoom, slices};
use crate::constants::{sample, sample_select, sample_whole};
use crate::memory::{Memory, Purpose, Region};
use crate::pipeline::{Shader, Variant};
use crate::program::Dispatch;
use bytemuck::{Pod, Zeroable};
use pianola_plan::{DeviceError, SampleRow};

// Mirrored in shaders/include/sampling_whole.glsl.
pub(crate) const MOST_BIASES: usize = 1024;
pub(crate) const MOST_LOGPROBS: usize = 20;
const BINS: usize = 2048;

/// Most logits of a lane: a workgroup keeps a word for each of them in shared memory.
const MOST_KEYS: usize = 24;
/// Most tokens of a vocabulary.
pub(crate) const MOST_TOKENS: usize = MOST_SLICES * LANES * MOST_KEYS;

/// Values of `sample_select`'s KIND, and its levels.
mod select {
    pub const TOP_K: u32 = 0;
    pub const TOP_P: u32 = 1;
    pub const LEVELS: u32 = 3;
}

/// A part of the program that a submission has or leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Shape,
    TopK,
    TopP,
    Weigh,
    Sample,
}

impl Stage {
    /// In the order they are played.
    pub const ALL: [Stage; 5] =
        [Stage::Shape, Stage::TopK, Stage::TopP, Stage::Weigh, Stage::Sample];

    /// Whether a row that looks at the whole vocabulary needs it.
    pub fn is_needed(self, row: &SampleRow<'_>) -> bool {
        let greedy = row.sampling.temperature == 0.0;
        match self {
            Stage::Shape | Stage::Sample => true,
            Stage::TopK => !greedy && row.sampling.top_k > 0,
            Stage::TopP => !greedy && row.sampling.top_p < 1.0,
            Stage::Weigh => !greedy,
        }
    }

    pub fn dispatches(self) -> u32 {
        if matches!(self, Stage::TopK | Stage::TopP) { select::LEVELS } else { 1 }
    }
}

/// What passes from kernel to kernel; mirrors `Selection` in `shaders/include/sampling_whole.glsl`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Selection {
    best: [[u32; 2]; MOST_SLICES],
    raw: [[f32; 2]; MOST_SLICES],
    above: [f32; MOST_SLICES],
    at_cuts: [[u32; MOST_SLICES]; 2],
    levels: [[u32; 4]; 6],
    cuts: [[u32; 2]; 2],
    bins: [[u32; 3 * BINS]; 3],
}

/// Logits that log probabilities come from; mirrors the same in that file.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
pub(crate) struct RawLogits {
    sampled: f32,
    best: f32,
    /// Sum of exponentials relative to the best.
    sum: f32,
    count: u32,
    top: [TopLogit; MOST_LOGPROBS],
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
struct TopLogit {
    token: u32,
    logit: f32,
}

impl RawLogits {
    /// A logit's log probability, as the host's sampler computes it.
    fn log_probability(&self, logit: f32) -> f32 {
        if logit.is_nan() || logit == f32::NEG_INFINITY {
            return f32::NEG_INFINITY;
        }
        // Also where both are +inf, whose difference is not a number.
        let below = if logit == self.best { 0.0 } else { f64::from(logit) - f64::from(self.best) };
        (below - f64::from(self.sum).ln()) as f32
    }

    /// The log probability of the sampled token.
    pub fn sampled(&self) -> f32 {
        self.log_probability(self.sampled)
    }

    /// The most probable tokens, the best first.
    pub fn top(&self) -> impl Iterator<Item = (u32, f32)> {
        let top = self.top.iter().take(self.count as usize);
        top.map(|&TopLogit { token, logit }| (token, self.log_probability(logit)))
    }
}

/// Buffers of rows that look at the whole vocabulary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WholeRegions {
    /// Logits with bias, penalties and mask.
    pub shaped: Region,
    /// Tokens, [`WholeRegions::history_room`] of each row.
    pub histories: Region,
    /// [`MOST_BIASES`] of each row.
    pub biases: Region,
    /// A bit for each token.
    pub masks: Region,
    /// A [`Selection`] for each row.
    pub selections: Region,
    /// A [`RawLogits`] for each play of each row.
    pub logprobs: Region,
    pub history_room: usize,
}

impl WholeRegions {
    /// The regions, for what must not depend on what they hold.
    pub fn all(&self) -> [Region; 6] {
        [self.shaped, self.histories, self.biases, self.masks, self.selections, self.logprobs]
    }

    /// Regions of programs that are written but never played.
    pub fn dry_run() -> WholeRegions {
        let nowhere = Region::dry_run(0);
        WholeRegions {
            shaped: nowhere,
            histories: nowhere,
            biases: nowhere,
            masks: nowhere,
            selections: nowhere,
            logprobs: nowhere,
            history_room: 0,
        }
    }
}

/// Those buffers, and what of them the host writes.
pub(crate) struct WholeBuffers {
    pub regions: WholeRegions,
    histories: *mut u32,
    biases: *mut Bias,
    masks: *mut u32,
    mask_words: usize,
    /// The beginning of each row's history that the device has as the host wrote it.
    written: Vec<Vec<u32>>,
}

impl WholeBuffers {
    pub fn new(memory: &mut Memory, room: &SampleRoom) -> Result<WholeBuffers, DeviceError> {
        let SampleRoom { rows, vocabulary, .. } = *room;
        let history_room = room.history + MOST_PLAYS;
        let mask_words = pianola_plan::mask_words(vocabulary);
        let mut allocate =
            |bytes: usize| memory.allocate(Purpose::Step, (rows * bytes) as u64, "sampling");
        let regions = WholeRegions {
            shaped: allocate(4 * vocabulary)?,
            histories: allocate(4 * history_room)?,
            biases: allocate(MOST_BIASES * size_of::<Bias>())?,
            masks: allocate(4 * mask_words)?,
            selections: allocate(size_of::<Selection>())?,
            logprobs: allocate(MOST_PLAYS * size_of::<RawLogits>())?,
            history_room,
        };
        let start = |region| memory.mapped(region).expect("visible to the host");
        Ok(WholeBuffers {
            histories: start(regions.histories).cast(),
            biases: start(regions.biases).cast(),
            masks: start(regions.masks).cast(),
            mask_words,
            written: (0..rows).map(|_| Vec::with_capacity(room.history)).collect(),
            regions,
        })
    }

    /// Writes the lists of a row: biases, the history as far as the device does not have it, the
    /// mask.
    ///
    /// # Safety
    /// No play that samples is in flight, and the row is one that the room's limits allow.
    pub unsafe fn write(&mut self, index: usize, row: &SampleRow<'_>) {
        let biases = &row.sampling.logit_bias;
        assert!(biases.len() <= MOST_BIASES, "{} biases", biases.len());
        for (entry, &(token, amount)) in biases.iter().enumerate() {
            // SAFETY: inside the row's list; nothing else looks at it, by the caller's promise.
            unsafe { self.biases.add(index * MOST_BIASES + entry).write(Bias { token, amount }) };
        }
        if row.sampling.penalises() {
            let history = counted(row);
            let room = self.regions.history_room;
            assert!(history.len() + row.uniforms.len() <= room, "{} tokens", history.len());
            let written = &mut self.written[index];
            let same = common_prefix(written, history);
            let new = &history[same..];
            // SAFETY: inside the row's history, by the assertion, and as above.
            unsafe {
                let start = self.histories.add(index * room + same);
                start.copy_from_nonoverlapping(new.as_ptr(), new.len());
            }
            written.truncate(same);
            written.extend_from_slice(new);
        }
        if let Some(mask) = row.mask {
            assert_eq!(mask.len(), self.mask_words, "words of a mask");
            // SAFETY: inside the row's mask, by the assertion, and as above.
            unsafe {
                let start = self.masks.add(index * self.mask_words);
                start.copy_from_nonoverlapping(mask.as_ptr(), mask.len());
            }
        }
    }
}

/// The tokens that a row's penalties count before its first play.
pub(crate) fn counted<'a>(row: &SampleRow<'a>) -> &'a [u32] {
    let count = row.history.len().min(row.sampling.penalty_window);
    &row.history[row.history.len() - count..]
}

/// How many tokens both begin with.
fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    // Blocks are compared as memory; only the last one token by token.
    const BLOCK: usize = 256;
    let blocks = a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK));
    let start = BLOCK * blocks.take_while(|(a, b)| a == b).count();
    start + a[start..].iter().zip(&b[start..]).take_while(|(a, b)| a == b).count()
}

impl SampleProgram {
    /// One stage of sampling from the whole vocabulary.
    pub fn whole(&self, stage: Stage, whole: &WholeRegions) -> Vec<Dispatch> {
        let (keys, slices) = slices(self.vocabulary);
        let keys = (sample::KEYS, keys as u32);
        let of_slices = |shader, constants| self.launch(whole, shader, constants, slices as u32);
        let levels = |kind| {
            let constants =
                |level| vec![keys, (sample_select::KIND, kind), (sample_select::LEVEL, level)];
            let level = |level| of_slices(Shader::SampleSelect, constants(level));
            (0..select::LEVELS).map(level).collect()
        };
        match stage {
            Stage::Shape => vec![of_slices(Shader::SampleShape, vec![keys])],
            Stage::TopK => levels(select::TOP_K),
            Stage::TopP => levels(select::TOP_P),
            Stage::Weigh => vec![of_slices(Shader::SampleWeigh, vec![keys])],
            Stage::Sample => {
                let candidates = (slices * MOST_LOGPROBS).div_ceil(LANES) as u32;
                let constants =
                    vec![(sample::KEYS, candidates), (sample_whole::SLICE_KEYS, keys.1)];
                vec![self.launch(whole, Shader::SampleWhole, constants, 1)]
            }
        }
    }

    fn launch(
        &self,
        whole: &WholeRegions,
        shader: Shader,
        constants: Vec<(u32, u32)>,
        groups: u32,
    ) -> Dispatch {
        let SampleProgram { regions, vocabulary, rows, op } = *self;
        let push = [vocabulary, slices(vocabulary).1 as u32, whole.history_room as u32];
        let mut bindings = vec![regions.states, regions.outcomes, regions.scratch, regions.logits];
        // In the order of the bindings.
        bindings.extend(whole.all());
        bindings.push(regions.step);
        let variant = Variant { shader, constants };
        let push = bytemuck::cast_slice(&push);
        let launch = Dispatch::new(variant, bindings, push, [groups, rows, 1], op);
        Dispatch { barrier: true, ..launch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn selections_are_laid_out_as_the_kernels_read_them() {
        assert_eq!(offset_of!(Selection, raw), 1024);
        assert_eq!(offset_of!(Selection, above), 2048);
        assert_eq!(offset_of!(Selection, at_cuts), 2560);
        assert_eq!(offset_of!(Selection, levels), 3584);
        assert_eq!(offset_of!(Selection, cuts), 3680);
        assert_eq!(offset_of!(Selection, bins), 3696);
        assert_eq!(size_of::<Selection>(), 3696 + 3 * 24_576);
        assert_eq!((offset_of!(RawLogits, top), size_of::<RawLogits>()), (16, 176));
    }

    #[test]
    fn histories_are_compared_to_the_first_difference() {
        let long: Vec<u32> = (0..1000).collect();
        assert_eq!(common_prefix(&long, &long), 1000);
        assert_eq!(common_prefix(&long, &long[..700]), 700);
        assert_eq!(common_prefix(&[], &long), 0);
        for at in [0, 255, 256, 511, 999] {
            let mut other = long.clone();
            other[at] = 5000;
            assert_eq!(common_prefix(&long, &other), at);
        }
    }

    #[test]
    fn log_probabilities_are_those_of_the_sum() {
        let mut raw = RawLogits::zeroed();
        (raw.sampled, raw.best, raw.sum, raw.count) = (1.0, 2.0, 4.0, 1);
        raw.top[0] = TopLogit { token: 7, logit: 2.0 };
        assert!((raw.sampled() - (-1.0 - 4f32.ln())).abs() < 1e-6);
        assert_eq!(raw.top().collect::<Vec<_>>(), [(7, -(4f64.ln()) as f32)]);
        raw.sampled = f32::NEG_INFINITY;
        assert_eq!(raw.sampled(), f32::NEG_INFINITY);
        (raw.sampled, raw.best, raw.sum) = (f32::INFINITY, f32::INFINITY, 2.0);
        assert_eq!(raw.sampled(), -(2f64.ln()) as f32);
    }
}
