//! Sampling alone, on logits of the caller: for tests and timings.

use super::{
    GpuSampling, MOST_PLAYS, Outcome, SCRATCH_BYTES, SampleRegions, SamplingState, sample_program,
};
use crate::gpu::Gpu;
use crate::lab::Lab;
use crate::memory::{Purpose, Region};
use crate::program::Dispatch;
use crate::step::{STEP_BYTES, write_step};
use bytemuck::Zeroable;
use pianola_plan::{DeviceError, Row, Step};
use std::sync::Arc;

/// What plays on the same logits chose.
#[derive(Clone, Debug)]
pub struct Sampled {
    /// One token a play, until a stop token.
    pub tokens: Vec<u32>,
    /// Whether a stop token was chosen.
    pub halted: bool,
    /// The step's row, which was token 0 at position 0.
    pub row: Row,
    /// The logits of the last play, with bias and penalties.
    pub logits: Vec<f32>,
}

/// A GPU that samples from a vocabulary.
pub struct SampleBench {
    lab: Lab,
    regions: SampleRegions,
    program: Vec<Dispatch>,
}

impl SampleBench {
    /// Makes ready for rows of `vocabulary` logits.
    pub fn new(gpu: &Arc<Gpu>, vocabulary: usize) -> Result<SampleBench, DeviceError> {
        let mut lab = Lab::new(gpu)?;
        let mut allocate = |bytes| lab.memory.allocate(Purpose::Step, bytes, "sampling");
        let regions = SampleRegions {
            logits: allocate(4 * vocabulary as u64)?,
            state: allocate(SamplingState::BYTES)?,
            scratch: allocate(SCRATCH_BYTES)?,
            step: allocate(STEP_BYTES)?,
        };
        let program = sample_program(regions, vocabulary as u32, 0);
        let bench = SampleBench { lab, regions, program };
        // Nothing may depend on what was in the scratch before.
        bench.write(regions.scratch, &vec![0xff; SCRATCH_BYTES as usize]);
        Ok(bench)
    }

    /// Chooses `plays` times from the same logits, with a random number for each.
    ///
    /// # Panics
    /// If the GPU cannot sample so, or the logits are not one row.
    pub fn sample(
        &mut self,
        logits: &[f32],
        sampling: &GpuSampling,
        history: &[u32],
        uniforms: &[f32],
        plays: usize,
    ) -> Result<Sampled, DeviceError> {
        self.begin(&SamplingState::new(sampling, history, uniforms));
        for _ in 0..plays {
            self.write(self.regions.logits, bytemuck::cast_slice(logits));
            self.lab.play(&self.program)?;
        }
        let mut outcome = [Outcome::zeroed()];
        self.read(
            SamplingState::outcome(self.regions.state),
            bytemuck::cast_slice_mut(&mut outcome),
        );
        // The header of a step is four words, like a row.
        let mut words = [0u32; 8];
        self.read(self.regions.step.slice(0, 32), bytemuck::cast_slice_mut(&mut words));
        let [.., token, sequence, position, reserved] = words;
        let mut shaped = vec![0f32; logits.len()];
        self.read(self.regions.logits, bytemuck::cast_slice_mut(&mut shaped));
        Ok(Sampled {
            tokens: outcome[0].chosen().to_vec(),
            halted: outcome[0].halted != 0,
            row: Row { token, sequence, position, reserved },
            logits: shaped,
        })
    }

    /// Seconds of one choice on the device.
    ///
    /// # Panics
    /// As [`SampleBench::sample`].
    pub fn time(
        &mut self,
        logits: &[f32],
        sampling: &GpuSampling,
        history: &[u32],
    ) -> Result<f64, DeviceError> {
        self.write(self.regions.logits, bytemuck::cast_slice(logits));
        let half = MOST_PLAYS / 2;
        let many: Vec<Dispatch> = (0..half).flat_map(|_| self.program.clone()).collect();
        // A state without plays, to wake the device with launches that do nothing.
        self.begin(&SamplingState::new(sampling, history, &[]));
        self.lab.time_awake(&many, 1)?;
        // Two rounds, of which one counts.
        self.begin(&SamplingState::new(sampling, history, &[0.5; MOST_PLAYS]));
        Ok(self.lab.time(&many, 1)? / half as f64)
    }

    fn begin(&self, state: &SamplingState) {
        let mut step = Step::default();
        step.push(0, 0, 0, true);
        self.write(self.regions.state, bytemuck::bytes_of(state));
        // SAFETY: mapped, and nothing plays: every play is waited for.
        unsafe { write_step(self.start(self.regions.step), &step) };
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
