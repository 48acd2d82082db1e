//! Walks the segments of a plan over its devices, one or several, and knows none by name.
//!
//! ```text
//! step ─► segment 0 ─► export ─► import ─► segment 1 ─► … ─► logits, or sampled tokens
//! ```
//!
//! Plays alternate between slots. A play without logits returns before it is done, so that the next
//! one, in the other slot, keeps the first device busy while the last still works: a prompt's chunks
//! overlap. Steps with logits are cut in two halves where the plan predicts a gain.
//!
//! Where the plan has several segmentations, one is chosen for each step of many rows, by what segments
//! took lately (`balance.rs`). A device that fails and that the plan can do without is left out for a
//! while (`outage.rs`): the step is played again by the first segmentation. It writes the same rows of keys
//! and values again, so that nothing is lost.

mod balance;
mod outage;
mod play;
mod probe;
mod timeline;

pub use timeline::Span;

use crate::options::{LoadOptions, Warn};
use balance::{Balancer, Choice};
use outage::Outages;
use pianola_formats::TensorSource;
use pianola_plan::{
    Ceilings, Device, DeviceError, DeviceId, DeviceSampler, KernelTime, LogitsTo, Plan,
    PlayStatistics, Recording, SLOTS, SampleRow, Step, TokenLogProbs, Turn,
};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use timeline::Timeline;

/// The error where no device samples.
const NO_SAMPLER: &str = "the device that computes the logits does not sample";

/// How steps of many rows are shared out among devices.
struct Balance {
    /// Fewest rows of such a step.
    least_rows: usize,
    shares: Shares,
}

enum Shares {
    /// Always so, because a device has no speed of its own or is to be used whatever it takes.
    Fixed(Choice),
    /// By what segments took lately.
    Measured(Balancer),
}

/// What a device did so far.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct DeviceUse {
    /// Seconds that it worked, as the host sees it; 0 where it is the only device.
    pub busy_seconds: f64,
    /// Plays that it failed and others did instead.
    pub failures: u64,
    /// Whether it has failed and has not worked since.
    pub left_out: bool,
}

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
    /// Whether halves pay, for a number of rows and of sequences and the pages that rows see on average.
    predicted: Option<([usize; 3], bool)>,
    /// For each segmentation the order in which segments of one and of two plays are submitted.
    turns: Arc<Vec<[Vec<Turn>; SLOTS]>>,
    balance: Option<Balance>,
    outages: Outages,
    timeline: Timeline,
    /// Whether the next play is neither cut nor shared out.
    keep_whole: bool,
    warn: Option<Warn>,
    plays: u64,
    seconds: f64,
}

impl Executor {
    /// Records a plan on its devices, which are among those of the options; `progress` is called with
    /// the bytes of weights done and the bytes in all. Where a device fails that the plan can do
    /// without, it does, and somebody is told.
    pub fn record(
        plan: Plan,
        source: &dyn TensorSource,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Executor, DeviceError> {
        let plan = Arc::new(plan);
        let devices = plan.devices_among(&options.all_devices());
        match record_all(&plan, &devices, source, progress) {
            Ok(recordings) => {
                let mut executor = Executor::with(plan, recordings, options);
                executor.predict_with(&devices);
                Ok(executor)
            }
            Err((id, error)) if plan.ops.iter().all(|op| op.device != id) => {
                let name = &plan.devices[id.0].name;
                let line = format!("{error}; everything is computed without {name}");
                options.warn.iter().for_each(|warn| warn(&line));
                // What was said of its part is not so any more.
                let obsolete = |remark: &String| remark.contains(name.as_str());
                let mut remarks = plan.remarks.clone();
                remarks.retain(|remark| options.remarks.contains(remark) || !obsolete(remark));
                let mut plan = Arc::unwrap_or_clone(plan).without_takeovers();
                plan.remarks = remarks;
                Executor::record(plan, source, options, progress)
            }
            Err((_, error)) => Err(error),
        }
    }

    /// An executor of recordings, without predictions.
    fn with(
        plan: Arc<Plan>,
        recordings: Vec<Box<dyn Recording>>,
        options: &LoadOptions,
    ) -> Executor {
        let turns = |index: usize| std::array::from_fn(|plays| plan.turns(index, plays + 1));
        let widest = plan.segments.iter().flat_map(|segment| &segment.receives).map(|transfer| {
            let spec = plan.graph.tensor(transfer.tensor);
            plan.max_rows(spec.rows) * spec.width
        });
        Executor {
            transfer: vec![0.0; widest.max().unwrap_or(0)],
            sequences: Vec::with_capacity(plan.options.max_rows),
            predicted: None,
            head: plan.head_device().0,
            recordings,
            ceilings: None,
            overlap: options.overlap,
            turns: Arc::new((0..plan.segmentations.len()).map(turns).collect()),
            balance: None,
            outages: Outages::new(plan.devices.len()),
            timeline: Timeline::new(plan.devices.len()),
            keep_whole: false,
            warn: options.warn.clone(),
            next_slot: 0,
            played: [(0, 0); SLOTS],
            halves: Default::default(),
            plays: 0,
            seconds: 0.0,
            plan,
        }
    }

    /// Measures the devices where what is predicted depends on it.
    fn predict_with(&mut self, devices: &[Arc<dyn Device>]) {
        let plan = &self.plan;
        let measure = |device: &Arc<dyn Device>| device.measure(plan.options.numeric);
        // A device that others can do without is not measured for what was placed on it by name.
        let placed_by_name = devices.iter().any(|device| device.takeover().is_some());
        if plan.segmentations[0].segments.len() > 1 && self.overlap && !placed_by_name {
            self.ceilings = devices.iter().map(measure).collect();
        }
        if plan.segmentations.len() > 1 {
            let takeovers = || devices.iter().filter_map(|device| device.takeover());
            let least = takeovers().map(|takeover| takeover.least_rows).min();
            let least = least.unwrap_or(plan.options.max_rows);
            let fixed = takeovers().any(|takeover| takeover.always)
                || devices.iter().any(|device| device.is_emulated());
            let known = |device: &Arc<dyn Device>| match fixed {
                true => Ceilings::UNKNOWN,
                false => measure(device).unwrap_or(Ceilings::UNKNOWN),
            };
            let ceilings: Vec<Ceilings> = devices.iter().map(known).collect();
            self.balance = Balance::of(plan, &ceilings, least, (fixed, self.overlap));
            if self.balance.is_none() {
                let unknown = plan.devices.iter().zip(&ceilings);
                let unknown = unknown.filter(|(_, ceilings)| !ceilings.is_known());
                let names: Vec<&str> = unknown.map(|(spec, _)| spec.name.as_str()).collect();
                let names = names.join(", ");
                self.tell(&format!(
                    "the speed of {names} could not be measured, so all products stay where they were placed"
                ));
            }
        }
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
    /// without logits returns before the devices have finished, unless times decide on the next.
    pub fn play(&mut self, step: &Step) -> Result<(), DeviceError> {
        let start = Instant::now();
        self.submit(step, LogitsTo::Host)?;
        if !step.logits.is_empty() || !self.overlap || self.balance.is_some() {
            self.wait()?;
        }
        self.count(start);
        Ok(())
    }

    /// Lets the next play run as a whole in the first slot, whose arena [`Probe::read_tensor`] reads.
    pub fn use_first_slot(&mut self) {
        self.next_slot = 0;
        self.keep_whole = true;
    }

    fn count(&mut self, start: Instant) {
        self.plays += 1;
        self.seconds += start.elapsed().as_secs_f64();
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
        match self.plan.segmentations[0].segments.len() {
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
        let lanes = step.is_one_row_per_sequence();
        let shared = self.balance.as_ref().is_some_and(|_| !lanes);
        if shared || self.plan.segmentations[0].segments.len() > 1 {
            self.play_forward(step)?;
            return self.sample(rows);
        }
        let start = Instant::now();
        self.played = [(0, step.logits.len()), (0, 0)];
        self.keep_whole = false;
        if self.plan.devices.len() > 1 {
            self.timeline.step += 1;
            let context = step.rows.iter().map(|row| row.position as usize + 1).max();
            self.timeline.begin(self.head, 0, 0, (step.rows.len(), context.unwrap_or(1)));
        }
        let played = self.sampler_mut()?.play_sampling(step, rows);
        if played.is_err() {
            self.timeline.abandon();
        }
        played?;
        self.timeline.end(self.head, 0);
        self.take_times();
        self.tell_notices();
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
            let sampled = self.sampler_mut()?.sample(slot, &rows[first..first + count]);
            if sampled.is_err() {
                self.timeline.abandon();
            }
            sampled?;
            self.timeline.end(self.head, slot);
            first += count;
        }
        self.take_times();
        self.tell_notices();
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

    /// From now on, keep when each device worked on which segment.
    pub fn start_timeline(&mut self) {
        self.timeline.kept = Some(Vec::new());
    }

    /// What was kept since, and an end to it.
    pub fn take_timeline(&mut self) -> Vec<Span> {
        self.timeline.kept.take().unwrap_or_default()
    }

    /// What each device did so far, by device id.
    pub fn device_use(&self) -> impl Iterator<Item = DeviceUse> + '_ {
        (0..self.recordings.len()).map(|device| DeviceUse {
            busy_seconds: self.timeline.busy[device],
            failures: self.outages.failures(device)
                + self.recordings[device].made_up_for().map_or(0, |(count, _)| count),
            left_out: self.outages.is_failed(device),
        })
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

/// Records a plan's part on each of its devices, or says which failed.
fn record_all(
    plan: &Arc<Plan>,
    devices: &[Arc<dyn Device>],
    source: &dyn TensorSource,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Box<dyn Recording>>, (DeviceId, DeviceError)> {
    let bytes: Vec<u64> = plan.device_ids().map(|id| plan.weight_bytes_on(id)).collect();
    let all = bytes.iter().sum();
    let mut before = 0;
    let mut recordings = Vec::new();
    // The last first: where devices have one memory, the processor then knows what is left.
    for id in plan.device_ids().collect::<Vec<_>>().into_iter().rev() {
        let mut done = |done: u64, _| progress(before + done, all);
        let recording = devices[id.0].record(plan, id, source, &mut done);
        recordings.push(recording.map_err(|error| (id, error))?);
        before += bytes[id.0];
    }
    recordings.reverse();
    Ok(recordings)
}

#[cfg(test)]
mod tests;
