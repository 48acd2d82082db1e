//! Plays steps on the devices of a plan.

use pianola_plan::{
    DeviceError, DeviceSampler, KernelTime, Plan, PlayStatistics, Probe, SampleRow, Step,
    TokenLogProbs,
};

/// What is said where no device samples.
const NO_SAMPLER: &str = "the device that computes the logits does not sample";

/// A recorded plan, ready to play.
pub(crate) struct Executor {
    recording: Box<dyn Probe>,
}

impl Executor {
    pub fn new(recording: Box<dyn Probe>) -> Executor {
        Executor { recording }
    }

    /// The plan that is played.
    pub fn plan(&self) -> &Plan {
        self.recording.plan()
    }

    /// The recording, for checks and counters.
    pub fn probe(&self) -> &dyn Probe {
        self.recording.as_ref()
    }

    /// The same, to be played kernel by kernel.
    pub fn probe_mut(&mut self) -> &mut dyn Probe {
        self.recording.as_mut()
    }

    /// Plays a step; afterwards [`Executor::logits`] holds a row for each of `step.logits`.
    pub fn play(&mut self, step: &Step) -> Result<(), DeviceError> {
        self.recording.play(step)
    }

    /// Logits of the `index`-th row that wanted them.
    pub fn logits(&mut self, index: usize) -> &mut [f32] {
        self.recording.logits(index)
    }

    /// Most rows that are sampled on a device at once; 0 where none samples.
    pub fn max_sample_rows(&self) -> usize {
        self.recording.sampler().map_or(0, DeviceSampler::max_sample_rows)
    }

    /// Most tokens of a row that are sampled in one submission.
    pub fn max_tokens_per_submit(&self) -> usize {
        self.recording.sampler().map_or(1, DeviceSampler::max_tokens_per_submit)
    }

    /// Why a row has to be sampled by the host, from its logits.
    pub fn sampling_unsupported(&self, row: &SampleRow<'_>) -> Option<&'static str> {
        match self.recording.sampler() {
            Some(sampler) => sampler.sampling_unsupported(row),
            None => Some(NO_SAMPLER),
        }
    }

    /// See [`DeviceSampler::play_sampling`].
    pub fn play_sampling(
        &mut self,
        step: &Step,
        rows: &[Option<SampleRow<'_>>],
    ) -> Result<(), DeviceError> {
        self.sampler_mut()?.play_sampling(step, rows)
    }

    /// See [`DeviceSampler::play_forward`].
    pub fn play_forward(&mut self, step: &Step) -> Result<(), DeviceError> {
        self.sampler_mut()?.play_forward(step)
    }

    /// See [`DeviceSampler::sample`].
    pub fn sample(&mut self, rows: &[Option<SampleRow<'_>>]) -> Result<(), DeviceError> {
        self.sampler_mut()?.sample(rows)
    }

    /// See [`DeviceSampler::sampled`].
    pub fn sampled(&self, index: usize) -> Option<&[u32]> {
        self.recording.sampler()?.sampled(index)
    }

    /// See [`DeviceSampler::logprobs`].
    pub fn logprobs(&self, index: usize, play: usize) -> Option<TokenLogProbs<'_>> {
        self.recording.sampler()?.logprobs(index, play)
    }

    fn sampler_mut(&mut self) -> Result<&mut dyn DeviceSampler, DeviceError> {
        let sampler = self.recording.sampler_mut();
        sampler.ok_or_else(|| DeviceError::Unsupported(NO_SAMPLER.to_string()))
    }

    /// Points entry `index` of a sequence's page table at `page`.
    pub fn map_page(&mut self, group: usize, sequence: usize, index: usize, page: u32) {
        self.recording.map_page(group, sequence, index, page);
    }

    /// Forgets that entry: no row may see it any more.
    pub fn unmap_page(&mut self, group: usize, sequence: usize, index: usize) {
        self.recording.unmap_page(group, sequence, index);
    }

    /// Makes everything ready that any step may need.
    pub fn record_ahead(&mut self) -> Result<(), DeviceError> {
        self.recording.record_ahead()
    }

    /// See [`pianola_plan::Recording::measure_busy`].
    pub fn measure_busy(&mut self, on: bool) {
        self.recording.measure_busy(on);
    }

    /// See [`pianola_plan::Recording::start_profile`].
    pub fn start_profile(&mut self) -> bool {
        self.recording.start_profile()
    }

    /// See [`pianola_plan::Recording::take_profile`].
    pub fn take_profile(&mut self) -> Vec<KernelTime> {
        self.recording.take_profile()
    }

    /// Counters since the plan was recorded.
    pub fn statistics(&self) -> PlayStatistics {
        self.recording.statistics()
    }
}
