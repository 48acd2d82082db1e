//! Sampling alone, on logits of the caller: for tests and timings.

use super::{MOST_PLAYS, SampleBuffers, sample_program};
use crate::gpu::Gpu;
use crate::lab::Lab;
use crate::memory::{Purpose, Region};
use crate::program::Dispatch;
use crate::step::{STEP_BYTES, write_step};
use pianola_plan::{DeviceError, Row, SampleRow, Step};
use std::sync::Arc;

/// What plays on the same logits chose for a row.
#[derive(Clone, PartialEq, Debug)]
pub struct Sampled {
    /// One token a play, until a stop token.
    pub tokens: Vec<u32>,
    /// Whether a stop token was chosen.
    pub halted: bool,
    /// Whether a logit was not a number.
    pub broken: bool,
    /// The step's row, which was token 0 at position 0 of a sequence by its index.
    pub row: Row,
    /// The logits of the last play, with bias and penalties.
    pub logits: Vec<f32>,
}

/// A GPU that samples from a vocabulary.
pub struct SampleBench {
    lab: Lab,
    vocabulary: usize,
    logits: Region,
    buffers: SampleBuffers,
    program: Vec<Dispatch>,
}

impl SampleBench {
    /// Makes ready for up to `rows` rows of `vocabulary` logits.
    pub fn new(gpu: &Arc<Gpu>, vocabulary: usize, rows: usize) -> Result<SampleBench, DeviceError> {
        let mut lab = Lab::new(gpu)?;
        let bytes = 4 * (rows * vocabulary) as u64;
        let logits = lab.memory.allocate(Purpose::Step, bytes, "sampling")?;
        let buffers = SampleBuffers::new(&mut lab.memory, rows)?;
        let step = lab.step.slice(0, STEP_BYTES);
        let program =
            sample_program(buffers.regions(logits, step), vocabulary as u32, rows as u32, 0);
        let bench = SampleBench { lab, vocabulary, logits, buffers, program };
        // Nothing may depend on what was there before: states of rows that are not drawn for, and
        // the scratch.
        let SampleBuffers { states, outcomes, scratch, .. } = bench.buffers;
        for region in [states, outcomes, scratch] {
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
        for _ in 0..plays {
            self.write(self.logits, bytemuck::cast_slice(logits));
            self.lab.play(&self.program)?;
        }
        // The header of a step is four words, like a row.
        let mut words = vec![0u32; 4 + 4 * rows.len()];
        self.read(self.lab.step, bytemuck::cast_slice_mut(&mut words));
        let mut shaped = vec![0f32; logits.len()];
        self.read(self.logits, bytemuck::cast_slice_mut(&mut shaped));
        let found = words[4..].chunks_exact(4).zip(shaped.chunks_exact(self.vocabulary));
        let sampled = found.enumerate().map(|(index, (words, logits))| {
            // SAFETY: inside the mapped outcomes; every play was waited for.
            let outcome = unsafe { self.buffers.outcomes_start.add(index).read() };
            Sampled {
                tokens: outcome.sampled().to_vec(),
                halted: outcome.halted != 0,
                broken: outcome.broken != 0,
                row: Row {
                    token: words[0],
                    sequence: words[1],
                    position: words[2],
                    reserved: words[3],
                },
                logits: logits.to_vec(),
            }
        });
        Ok(sampled.collect())
    }

    /// Seconds of sampling on the device, for all rows at once.
    ///
    /// # Panics
    /// As [`SampleBench::sample`].
    pub fn time(&mut self, logits: &[f32], rows: &[SampleRow<'_>]) -> Result<f64, DeviceError> {
        self.write(self.logits, bytemuck::cast_slice(logits));
        let half = MOST_PLAYS / 2;
        let many: Vec<Dispatch> = (0..half).flat_map(|_| self.program.clone()).collect();
        let with = |uniforms| -> Vec<SampleRow<'_>> {
            rows.iter().map(|&row| SampleRow { uniforms, ..row }).collect()
        };
        // States without plays, to wake the device with launches that do nothing.
        self.begin(&with(&[]));
        self.lab.time_awake(&many, 1)?;
        // Two rounds, of which one counts.
        self.begin(&with(&[0.5; MOST_PLAYS]));
        Ok(self.lab.time(&many, 1)? / half as f64)
    }

    fn begin(&self, rows: &[SampleRow<'_>]) {
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
