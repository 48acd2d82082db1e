//! Walks the segments of a plan over its devices, one or several, and knows none by name.
//!
//! ```text
//! step ─► segment 0 ─► export ─► import ─► segment 1 ─► … ─► logits, or sampled tokens
//! ```
//!
//! Plays alternate between slots. A play without logits returns before it is done, so that the next
//! one, in the other slot, keeps the first device busy while the last still works: a prompt's chunks
//! overlap. Steps of many sequences are cut in two halves where the plan predicts a gain.

mod probe;

use pianola_formats::TensorSource;
use pianola_plan::{
    Ceilings, Device, DeviceError, DeviceSampler, KernelTime, LogitsTo, OverlapTimes, PAGE_TOKENS,
    Plan, PlayStatistics, Recording, SLOTS, SampleRow, Step, TensorId, TokenLogProbs, WAIT_LIMIT,
};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// The error where no device samples.
const NO_SAMPLER: &str = "the device that computes the logits does not sample";

/// A recorded plan, ready to play.
pub(crate) struct Executor {
    plan: Arc<Plan>,
    /// By device id.
    recordings: Vec<Box<dyn Recording>>,
    /// The device that computes the logits.
    head: usize,
    /// What each device can reach, where several may overlap.
    ceilings: Option<Vec<Ceilings>>,
    overlap: bool,
    next_slot: usize,
    /// The slots that the last play ran in, each with its rows with logits.
    played: [(usize, usize); SLOTS],
    /// The halves of a step that is cut.
    halves: [Step; SLOTS],
    /// Rows of a tensor between two devices.
    transfer: Vec<f32>,
    /// Rows and context of each sequence of a step.
    sequences: Vec<(usize, usize)>,
    /// Whether halves pay, for a number of sequences and the pages that each has on average.
    predicted: Option<((usize, usize), bool)>,
    plays: u64,
    seconds: f64,
}

impl Executor {
    /// Records the plan on its devices, which are given by their ids; `progress` is called with
    /// the bytes of weights done and the bytes in all.
    pub fn record(
        plan: &Arc<Plan>,
        devices: &[Arc<dyn Device>],
        source: &dyn TensorSource,
        overlap: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Executor, DeviceError> {
        let bytes: Vec<u64> = plan.device_ids().map(|id| plan.weight_bytes_on(id)).collect();
        let all = bytes.iter().sum();
        let mut before = 0;
        let mut recordings: Vec<Option<Box<dyn Recording>>> = Vec::new();
        recordings.resize_with(devices.len(), || None);
        // The last first: where devices have one memory, the processor then knows what is left.
        for id in plan.device_ids().collect::<Vec<_>>().into_iter().rev() {
            let mut done = |done: u64, _| progress(before + done, all);
            let recording = devices[id.0].record(plan, id, source, &mut done)?;
            recordings[id.0] = Some(recording);
            before += bytes[id.0];
        }
        let several = plan.segments.len() > 1 && overlap && plan.options.sequences > 1;
        let measure = |device: &Arc<dyn Device>| device.measure(plan.options.numeric);
        let widest = plan.segments.iter().flat_map(|segment| &segment.receives).map(|transfer| {
            let spec = plan.graph.tensor(transfer.tensor);
            plan.max_rows(spec.rows) * spec.width
        });
        Ok(Executor {
            transfer: vec![0.0; widest.max().unwrap_or(0)],
            sequences: Vec::with_capacity(plan.options.max_rows),
            predicted: None,
            plan: plan.clone(),
            head: plan.head_device().0,
            recordings: recordings.into_iter().flatten().collect(),
            ceilings: several.then(|| devices.iter().map(measure).collect()).flatten(),
            overlap,
            next_slot: 0,
            played: [(0, 0); SLOTS],
            halves: Default::default(),
            plays: 0,
            seconds: 0.0,
        })
    }

    /// The plan that is played.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Each device's recording, by device id.
    pub fn recordings(&self) -> impl Iterator<Item = &dyn Recording> {
        self.recordings.iter().map(Box::as_ref)
    }

    /// The same, to be changed.
    pub fn recordings_mut(&mut self) -> impl Iterator<Item = &mut (dyn Recording + 'static)> {
        self.recordings.iter_mut().map(Box::as_mut)
    }

    /// Plays a step; afterwards [`Executor::logits`] holds a row for each of `step.logits`. A step
    /// without logits returns before the devices have finished.
    pub fn play(&mut self, step: &Step) -> Result<(), DeviceError> {
        let start = Instant::now();
        self.submit(step, LogitsTo::Host)?;
        if !step.logits.is_empty() || !self.overlap {
            self.wait()?;
        }
        self.count(start);
        Ok(())
    }

    /// Lets the next play run in the first slot, whose arena [`Probe::read_tensor`] reads.
    pub fn use_first_slot(&mut self) {
        self.next_slot = 0;
    }

    fn count(&mut self, start: Instant) {
        self.plays += 1;
        self.seconds += start.elapsed().as_secs_f64();
    }

    /// Submits a step, whole or in halves.
    fn submit(&mut self, step: &Step, logits: LogitsTo) -> Result<(), DeviceError> {
        if !self.cut(step) {
            let slot = self.take_slot()?;
            self.played = [(slot, step.logits.len()), (slot, 0)];
            return self.run(slot, step, logits);
        }
        let halves = std::mem::take(&mut self.halves);
        let mut run = || {
            for (half, step) in halves.iter().enumerate() {
                let slot = self.take_slot()?;
                self.played[half] = (slot, step.logits.len());
                self.run(slot, step, logits)?;
            }
            Ok(())
        };
        let result = run();
        self.halves = halves;
        result
    }

    /// The slot that is next, once what it played is done.
    fn take_slot(&mut self) -> Result<usize, DeviceError> {
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % SLOTS;
        self.recordings.iter_mut().try_for_each(|recording| recording.wait(slot, WAIT_LIMIT))?;
        Ok(slot)
    }

    /// Submits the segments of a step one after another, each with what it receives.
    fn run(&mut self, slot: usize, step: &Step, logits: LogitsTo) -> Result<(), DeviceError> {
        let plan = self.plan.clone();
        for (index, segment) in plan.segments.iter().enumerate() {
            if plan.is_idle(index, step) {
                continue;
            }
            for transfer in &segment.receives {
                let from = plan.segments[transfer.from].device;
                self.pass(slot, transfer.tensor, from.0, segment.device.0, step)?;
            }
            self.recordings[segment.device.0].submit(index, slot, step, logits)?;
        }
        Ok(())
    }

    /// Passes a tensor from one device to another.
    fn pass(
        &mut self,
        slot: usize,
        tensor: TensorId,
        from: usize,
        to: usize,
        step: &Step,
    ) -> Result<(), DeviceError> {
        let values = self.plan.rows(tensor, step) * self.plan.graph.tensor(tensor).width;
        let rows = &mut self.transfer[..values];
        self.recordings[from].wait(slot, WAIT_LIMIT)?;
        self.recordings[from].export(slot, tensor, rows)?;
        self.recordings[to].import(slot, tensor, rows)
    }

    /// Waits for the last play.
    fn wait(&mut self) -> Result<(), DeviceError> {
        for (slot, _) in self.played {
            self.recordings
                .iter_mut()
                .try_for_each(|recording| recording.wait(slot, WAIT_LIMIT))?;
        }
        Ok(())
    }

    /// Whether a step is faster in two halves, of which each has whole sequences; they are then
    /// written.
    fn cut(&mut self, step: &Step) -> bool {
        let Some(ceilings) = &self.ceilings else { return false };
        if step.logits.len() < step.rows.len() || !step.is_one_row_per_sequence() {
            return false;
        }
        // The prediction hardly changes from token to token.
        let tokens: usize = step.rows.iter().map(|row| row.position as usize).sum();
        let asked = (step.rows.len(), tokens / (step.rows.len() * PAGE_TOKENS));
        if self.predicted.is_none_or(|(known, _)| known != asked) {
            let contexts = step.rows.iter().map(|row| (1, row.position as usize + 1));
            self.sequences.clear();
            self.sequences.extend(contexts);
            let times = OverlapTimes::predict(&self.plan, ceilings, &self.sequences);
            self.predicted = Some((asked, times.pays()));
        }
        if self.predicted.is_some_and(|(_, pays)| !pays) {
            return false;
        }
        let (first, second) = step.rows.split_at(step.rows.len() / 2);
        for (half, rows) in self.halves.iter_mut().zip([first, second]) {
            half.clear();
            rows.iter().for_each(|row| half.push(row.token, row.sequence, row.position, true));
        }
        true
    }

    /// The slot and the row in it of the `index`-th row with logits of the last play.
    fn place(&self, index: usize) -> (usize, usize) {
        let [(first, rows), (second, _)] = self.played;
        if index < rows { (first, index) } else { (second, index - rows) }
    }

    /// Logits of the `index`-th row that wanted them.
    pub fn logits(&mut self, index: usize) -> &mut [f32] {
        let (slot, row) = self.place(index);
        self.recordings[self.head].logits(slot, row)
    }

    fn sampler(&self) -> Option<&dyn DeviceSampler> {
        self.recordings[self.head].sampler()
    }

    fn sampler_mut(&mut self) -> Result<&mut dyn DeviceSampler, DeviceError> {
        let sampler = self.recordings[self.head].sampler_mut();
        sampler.ok_or_else(|| DeviceError::Unsupported(NO_SAMPLER.to_string()))
    }

    /// Most rows that are sampled on a device at once; 0 where none samples.
    pub fn max_sample_rows(&self) -> usize {
        self.sampler().map_or(0, DeviceSampler::max_sample_rows)
    }

    /// Most tokens of a row that are sampled in one submission.
    pub fn max_tokens_per_submit(&self) -> usize {
        match self.plan.segments.len() {
            1 => self.sampler().map_or(1, DeviceSampler::max_tokens_per_submit),
            _ => 1,
        }
    }

    /// Why a row has to be sampled by the host, from its logits.
    pub fn sampling_unsupported(&self, row: &SampleRow<'_>) -> Option<&'static str> {
        match self.sampler() {
            Some(sampler) => sampler.sampling_unsupported(row),
            None => Some(NO_SAMPLER),
        }
    }

    /// Plays a step and samples its rows with logits; see [`DeviceSampler::play_sampling`].
    pub fn play_sampling(
        &mut self,
        step: &Step,
        rows: &[Option<SampleRow<'_>>],
    ) -> Result<(), DeviceError> {
        if self.plan.segments.len() > 1 {
            self.play_forward(step)?;
            return self.sample(rows);
        }
        let start = Instant::now();
        self.played = [(0, step.logits.len()), (0, 0)];
        self.sampler_mut()?.play_sampling(step, rows)?;
        self.plays += rows.iter().flatten().next().map_or(0, |row| row.uniforms.len() as u64 - 1);
        self.count(start);
        Ok(())
    }

    /// Submits a step whose logits [`Executor::sample`] will read, and returns before it is done.
    pub fn play_forward(&mut self, step: &Step) -> Result<(), DeviceError> {
        let start = Instant::now();
        self.submit(step, LogitsTo::Sampler)?;
        self.count(start);
        Ok(())
    }

    /// Samples the rows with logits of the last [`Executor::play_forward`].
    pub fn sample(&mut self, rows: &[Option<SampleRow<'_>>]) -> Result<(), DeviceError> {
        let start = Instant::now();
        let mut first = 0;
        for (slot, count) in self.played.into_iter().filter(|played| played.1 > 0) {
            self.sampler_mut()?.sample(slot, &rows[first..first + count])?;
            first += count;
        }
        self.seconds += start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Tokens sampled for the `index`-th row with logits; see [`DeviceSampler::sampled`].
    pub fn sampled(&self, index: usize) -> Option<&[u32]> {
        let (slot, row) = self.place(index);
        self.sampler()?.sampled(slot, row)
    }

    /// Log probabilities of the `play`-th of them.
    pub fn logprobs(&self, index: usize, play: usize) -> Option<TokenLogProbs<'_>> {
        let (slot, row) = self.place(index);
        self.sampler()?.logprobs(slot, row, play)
    }

    /// Points entry `index` of a sequence's page table at `page`.
    pub fn map_page(&mut self, group: usize, sequence: usize, index: usize, page: u32) {
        for recording in &mut self.recordings {
            recording.map_page(group, sequence, index, page);
        }
    }

    /// Forgets that entry: no row may see it any more.
    pub fn unmap_page(&mut self, group: usize, sequence: usize, index: usize) {
        for recording in &mut self.recordings {
            recording.unmap_page(group, sequence, index);
        }
    }

    /// See [`Recording::set_interrupt`].
    pub fn set_interrupt(&mut self, flag: &Arc<AtomicBool>) {
        self.recordings.iter_mut().for_each(|recording| recording.set_interrupt(flag.clone()));
    }

    /// Makes everything ready that any step may need.
    pub fn record_ahead(&mut self) -> Result<(), DeviceError> {
        self.recordings.iter_mut().try_for_each(|recording| recording.record_ahead())
    }

    /// See [`Recording::measure_busy`].
    pub fn measure_busy(&mut self, on: bool) -> bool {
        let counted: Vec<bool> =
            self.recordings.iter_mut().map(|recording| recording.measure_busy(on)).collect();
        !counted.contains(&false)
    }

    /// Times every kernel of every play from now on; false where a device cannot.
    pub fn start_profile(&mut self) -> bool {
        let started: Vec<bool> =
            self.recordings.iter_mut().map(|recording| recording.start_profile()).collect();
        if started.contains(&false) {
            self.take_profile();
            return false;
        }
        true
    }

    /// What was timed since, and an end to it.
    pub fn take_profile(&mut self) -> Vec<KernelTime> {
        let times = self.recordings.iter_mut().flat_map(|recording| recording.take_profile());
        let mut times: Vec<KernelTime> = times.collect();
        times.sort_by_key(|time| (time.play, time.op));
        times
    }

    /// Counters since the plan was recorded: plays as a whole, the rest of all devices together.
    pub fn statistics(&self) -> PlayStatistics {
        let mut all = PlayStatistics::default();
        self.recordings.iter().for_each(|recording| all += recording.statistics());
        PlayStatistics { plays: self.plays, seconds: self.seconds, ..all }
    }
}
