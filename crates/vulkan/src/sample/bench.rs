//! Sampling alone, on logits of the caller: for tests and timings.

use super::whole::RawLogits;
use super::{MOST_PLAYS, Paths, SampleBuffers, SampleProgram, SampleRoom, room};
use crate::gpu::Gpu;
use crate::lab::Lab;
use crate::memory::{Purpose, Region};
use crate::program::Dispatch;
use crate::step::{STEP_BYTES, write_step};
use bytemuck::Zeroable;
use pianola_plan::{DeviceError, Row, SampleRow, Step};
use std::sync::Arc;

/// Tokens of the longest history.
const CONTEXT: usize = 20_000;

/// What plays on the same logits sampled for a row.
#[derive(Clone, PartialEq, Debug)]
pub struct Sampled {
    /// One token a play, until a stop token.
    pub tokens: Vec<u32>,
    /// Whether a stop token was sampled.
    pub halted: bool,
    /// Whether a logit was not a number, or a mask left no token.
    pub broken: bool,
    /// The step's row, which was token 0 at position 0 of a sequence by its index.
    pub row: Row,
    /// The logits of the last play, with bias, penalties and mask.
    pub logits: Vec<f32>,
    /// Log probabilities of each play, where they were asked for: the token's, and the best ones.
    pub logprobs: Vec<(f32, Vec<(u32, f32)>)>,
}

/// A GPU that samples from a vocabulary.
pub struct SampleBench {
    lab: Lab,
    vocabulary: usize,
    logits: Region,
    buffers: SampleBuffers,
    program: SampleProgram,
}

impl SampleBench {
    /// Makes ready for up to `rows` rows of `vocabulary` logits.
    pub fn new(gpu: &Arc<Gpu>, vocabulary: usize, rows: usize) -> Result<SampleBench, DeviceError> {
        let mut lab = Lab::new(gpu)?;
        let bytes = 4 * (rows * vocabulary) as u64;
        let logits = lab.memory.allocate(Purpose::Step, bytes, "sampling")?;
        let room = SampleRoom::new(rows, vocabulary, CONTEXT, gpu.description().largest_binding);
        let mut buffers = SampleBuffers::new(&mut lab.memory, room)?;
        let whole = buffers.whole(&mut lab.memory)?.regions;
        let regions = buffers.regions(logits, lab.step.slice(0, STEP_BYTES));
        let (tokens, count) = (vocabulary as u32, rows as u32);
        let program = SampleProgram { regions, vocabulary: tokens, rows: count, op: 0 };
        let bench = SampleBench { lab, vocabulary, logits, buffers, program };
        // Nothing may depend on what was there before: states of rows that are not sampled, and
        // the scratch.
        for region in [regions.states, regions.outcomes, regions.scratch] {
            bench.write(region, &vec![0xff; region.size as usize]);
        }
        for region in whole.all() {
            bench.write(region, &vec![0xff; region.size as usize]);
        }
        Ok(bench)
    }

    /// Samples `plays` times from the same rows of logits, `[rows][vocabulary]`.
    ///
    /// # Panics
    /// If the GPU cannot sample so, or the logits are not as many rows.
    pub fn sample(
        &mut self,
        logits: &[f32],
        rows: &[SampleRow<'_>],
        plays: usize,
    ) -> Result<Vec<Sampled>, DeviceError> {
        assert_eq!(logits.len(), rows.len() * self.vocabulary);
        self.begin(rows);
        let program = self.program_of(rows);
        for _ in 0..plays {
            self.write(self.logits, bytemuck::cast_slice(logits));
            self.lab.play(&program)?;
        }
        // The header of a step is four words, like a row.
        let mut words = vec![0u32; 4 + 4 * rows.len()];
        self.read(self.lab.step, bytemuck::cast_slice_mut(&mut words));
        let found = words[4..].chunks_exact(4).zip(rows);
        let sampled = found.enumerate().map(|(index, (words, row))| {
            // SAFETY: inside the mapped outcomes; every play was waited for.
            let outcome = unsafe { self.buffers.outcomes_start.add(index).read() };
            let [token, sequence, position, reserved] = words.try_into().expect("four words");
            Sampled {
                tokens: outcome.sampled().to_vec(),
                halted: outcome.halted != 0,
                broken: outcome.broken != 0,
                row: Row { token, sequence, position, reserved },
                logits: self.shaped(index, row),
                logprobs: self.logprobs(index, row, outcome.sampled().len()),
            }
        });
        Ok(sampled.collect())
    }

    /// The launches that these rows need.
    fn program_of(&self, rows: &[SampleRow<'_>]) -> Vec<Dispatch> {
        let paths = Paths::of(rows);
        let whole = &self.buffers.whole.as_ref().expect("made with the bench").regions;
        let mut program = if paths.best { self.program.best() } else { Vec::new() };
        program.extend(paths.stages().flat_map(|(_, stage)| self.program.whole(stage, whole)));
        program
    }

    /// The logits that a row was sampled from.
    fn shaped(&self, index: usize, row: &SampleRow<'_>) -> Vec<f32> {
        let changed =
            row.mask.is_some() || !row.sampling.logit_bias.is_empty() || row.sampling.penalises();
        let whole = self.buffers.whole.as_ref().expect("made with the bench").regions;
        let apart = room::needs_whole(row) && changed;
        let region = if apart { whole.shaped } else { self.logits };
        let bytes = 4 * self.vocabulary as u64;
        let mut logits = vec![0f32; self.vocabulary];
        let row = region.slice(index as u64 * bytes, bytes);
        self.read(row, bytemuck::cast_slice_mut(&mut logits));
        logits
    }

    fn logprobs(
        &self,
        index: usize,
        row: &SampleRow<'_>,
        plays: usize,
    ) -> Vec<(f32, Vec<(u32, f32)>)> {
        if row.top_logprobs.is_none() {
            return Vec::new();
        }
        let whole = self.buffers.whole.as_ref().expect("made with the bench").regions;
        let bytes = size_of::<RawLogits>() as u64;
        let mut raw = vec![RawLogits::zeroed(); plays];
        let region =
            whole.logprobs.slice((index * MOST_PLAYS) as u64 * bytes, plays as u64 * bytes);
        self.read(region, bytemuck::cast_slice_mut(&mut raw));
        raw.iter().map(|raw| (raw.sampled(), raw.top().collect())).collect()
    }

    /// Seconds of sampling on the device, for all rows at once.
    ///
    /// # Panics
    /// As [`SampleBench::sample`].
    pub fn time(&mut self, logits: &[f32], rows: &[SampleRow<'_>]) -> Result<f64, DeviceError> {
        self.write(self.logits, bytemuck::cast_slice(logits));
        let half = MOST_PLAYS / 2;
        let program = self.program_of(rows);
        let many: Vec<Dispatch> = (0..half).flat_map(|_| program.clone()).collect();
        let with = |uniforms| -> Vec<SampleRow<'_>> {
            rows.iter().map(|&row| SampleRow { uniforms, ..row }).collect()
        };
        // States without plays, to wake the device with launches that do nothing.
        self.begin(&with(&[]));
        self.lab.time_awake(&many, 1)?;
        // Two rounds, of which one counts.
        self.begin(&with(&[0.5; MOST_PLAYS]));
        Ok(self.lab.time_awake(&many, 1)? / half as f64)
    }

    fn begin(&mut self, rows: &[SampleRow<'_>]) {
        let mut step = Step::default();
        (0..rows.len()).for_each(|row| step.push(0, row as u32, 0, true));
        // SAFETY: mapped, and nothing plays: every play is waited for.
        unsafe {
            let rows: Vec<Option<SampleRow<'_>>> = rows.iter().copied().map(Some).collect();
            self.buffers.write(&rows);
            write_step(self.start(self.lab.step), &step);
        }
    }

    fn start(&self, region: Region) -> *mut u8 {
        self.lab.memory.mapped(region).expect("steps are visible to the host")
    }

    fn write(&self, region: Region, bytes: &[u8]) {
        assert!(bytes.len() as u64 <= region.size);
        // SAFETY: mapped, at least as long as the bytes, and nothing plays.
        unsafe { self.start(region).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn read(&self, region: Region, bytes: &mut [u8]) {
        assert!(bytes.len() as u64 <= region.size);
        // SAFETY: as above; plays make what they wrote visible to the host.
        unsafe { self.start(region).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }
}
