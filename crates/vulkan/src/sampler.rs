//! Plays that sample tokens: those of one play are the rows of the next, in one submission.

mod record;
mod report;

use crate::memory::{Memory, Purpose, Region};
use crate::recording::{PlayedBy, VulkanRecording, info, logit_bucket};
use crate::sample::whole::{Stage, WholeRegions};
use crate::sample::{
    MOST_PLAYS, MOST_ROWS, Outcome, Paths, SampleBuffers, SampleProgram, SampleRegions, SampleRoom,
    changes_path,
};
use crate::statistics::named;
use crate::step::write_step;
use ash::vk;
use pianola_plan::{
    DeviceError, DeviceSampler, KernelVariant, PAGE_TOKENS, Plan, Row, SLOTS, SampleRow, Step,
    TokenLogProbs,
};
use report::LogProbReport;
use std::collections::BTreeMap;
use std::time::Instant;

/// Command buffers that sample a token for each row with logits, and copy the outcomes to the host.
#[derive(Clone, Copy)]
struct SampleCommands {
    best: vk::CommandBuffer,
    collect: vk::CommandBuffer,
    /// Recorded at first use.
    whole: Option<WholeCommands>,
}

/// The same for rows that look at the whole vocabulary.
#[derive(Clone, Copy)]
struct WholeCommands {
    stages: [vk::CommandBuffer; Stage::ALL.len()],
    collect: vk::CommandBuffer,
}

/// The slot that plays with sampling in one submission run in: each is waited for.
const SAMPLING_SLOT: usize = 0;

/// What sampling from the logits of one arena needs.
pub(crate) struct Sampler {
    buffers: SampleBuffers,
    /// Outcomes as the host reads them, and those of them that the last play left.
    readback: Region,
    outcomes: *const Outcome,
    rows: usize,
    /// Of the rows last written, which are sampled here, and the kernels that they need.
    here: [bool; MOST_ROWS],
    paths: Paths,
    /// Log probabilities of the rows last written that ask for them.
    report: Option<LogProbReport>,
    /// For each slot, the rows with logits of a forward pass that was not sampled yet.
    pub forward: [Option<usize>; SLOTS],
    /// For each slot, by the rows that its head was recorded for.
    recorded: [BTreeMap<u32, SampleCommands>; SLOTS],
    /// Command buffers of one submission, kept so that none is allocated again.
    list: Vec<vk::CommandBufferSubmitInfo<'static>>,
}

impl Sampler {
    /// Ready for as many rows as `plan` has logits for, on a device whose bindings hold at most `binding` bytes.
    pub fn new(plan: &Plan, memory: &mut Memory, binding: u64) -> Result<Sampler, DeviceError> {
        let rows = plan.options.max_logit_rows.min(MOST_ROWS);
        let room = SampleRoom::new(rows, plan.graph.vocabulary, plan.options.context, binding);
        let buffers = SampleBuffers::new(memory, room)?;
        let readback = memory.allocate(Purpose::Readback, buffers.outcomes.size, "sampling")?;
        // A play is a body, a head and these, and behind the last one come three copies.
        let most = MOST_PLAYS * (3 + Stage::ALL.len()) + 3;
        Ok(Sampler {
            buffers,
            readback,
            outcomes: memory.mapped(readback).expect("visible to the host").cast(),
            rows: 0,
            here: [false; MOST_ROWS],
            paths: Paths::default(),
            report: None,
            forward: [None; SLOTS],
            recorded: Default::default(),
            list: Vec::with_capacity(most),
        })
    }

    /// Makes ready to sample some rows.
    ///
    /// # Safety
    /// No play that samples is in flight.
    unsafe fn write(&mut self, rows: &[Option<SampleRow<'_>>]) {
        for (here, row) in self.here.iter_mut().zip(rows) {
            *here = row.is_some();
        }
        self.paths = Paths::of(rows.iter().flatten());
        if let Some(report) = &mut self.report {
            report.begin(rows);
        }
        // SAFETY: by the caller's promise.
        unsafe { self.buffers.write(rows) };
    }

    /// Adds the command buffers that sample the rows last written.
    fn push_samples(
        &self,
        commands: SampleCommands,
        list: &mut Vec<vk::CommandBufferSubmitInfo<'static>>,
    ) {
        if self.paths.best {
            list.push(info(commands.best));
        }
        if let Some(whole) = commands.whole {
            list.extend(self.paths.stages().map(|(index, _)| info(whole.stages[index])));
        }
    }

    /// Adds the command buffers that copy the outcome to the host; `logits` copies the logits of rows left to the host.
    fn push_copies(
        &self,
        commands: SampleCommands,
        logits: vk::CommandBuffer,
        rows: usize,
        list: &mut Vec<vk::CommandBufferSubmitInfo<'static>>,
    ) {
        list.push(info(commands.collect));
        if let Some(whole) = commands.whole.filter(|_| self.paths.logprobs) {
            list.push(info(whole.collect));
        }
        if !self.here[..rows].iter().all(|&here| here) {
            list.push(info(logits));
        }
    }

    /// What plays of `rows` rows left is there to be read.
    fn collect(&mut self, rows: usize) {
        self.rows = rows;
        let Some(report) = self.report.as_mut().filter(|_| self.paths.logprobs) else { return };
        for row in 0..rows {
            // SAFETY: mapped; the play that wrote them was waited for. Any bits are an
            // outcome.
            let outcome = unsafe { &*self.outcomes.add(row) };
            report.read(row, outcome.sampled().len());
        }
    }

    /// Tokens of the `index`-th row that wanted logits; none where one was not a number.
    pub fn sampled(&self, index: usize) -> Option<&[u32]> {
        if index >= self.rows || !self.here[index] {
            return None;
        }
        // SAFETY: mapped; the play that wrote them was waited for, and the next one
        // takes what borrows this mutably. Any bits are an outcome.
        let outcome = unsafe { &*self.outcomes.add(index) };
        (outcome.broken == 0).then(|| outcome.sampled())
    }
}

impl DeviceSampler for VulkanRecording {
    /// Also while kernels are timed one by one, or plays are part of an experiment.
    fn sampling_unsupported(&self, row: &SampleRow<'_>) -> Option<&'static str> {
        if self.profiler.is_some() || self.ablation.is_some() {
            return Some("its kernels are being timed");
        }
        if self.plan.options.reproducible && changes_path(row) {
            return Some("it would depend on the number of tokens that are sampled at once");
        }
        self.samplers.first().and_then(|sampler| sampler.buffers.room.unsupported(row))
    }

    fn sampling_variants(&self, rows: &[Option<SampleRow<'_>>]) -> Vec<KernelVariant> {
        let paths = Paths::of(rows.iter().flatten());
        let program = SampleProgram {
            regions: SampleRegions::dry_run(),
            vocabulary: self.plan.graph.vocabulary as u32,
            rows: rows.len() as u32,
            op: 0,
        };
        let best = if paths.best { program.best() } else { Vec::new() };
        let regions = WholeRegions::dry_run();
        let whole = paths.stages().flat_map(|(_, stage)| program.whole(stage, &regions));
        best.into_iter().chain(whole).map(|dispatch| named(&dispatch.variant)).collect()
    }

    fn max_sample_rows(&self) -> usize {
        self.plan.options.max_logit_rows.min(MOST_ROWS)
    }

    fn max_tokens_per_submit(&self) -> usize {
        MOST_PLAYS
    }

    fn play_sampling(
        &mut self,
        step: &Step,
        rows: &[Option<SampleRow<'_>>],
    ) -> Result<(), DeviceError> {
        let start = Instant::now();
        let slot = SAMPLING_SLOT;
        self.sampler_mut_of(slot).rows = 0;
        self.check(step)?;
        let plays = self.check_sampling(step, rows)?;
        self.settle_all()?;
        self.ready(0, slot, step)?;
        let by = self.played_by(slot, step);
        self.play_samples(slot, step, rows, plays)?;
        if by != PlayedBy::Dispatches && self.gave_up() {
            // From the same state: step and rows are written anew, and so are keys and values.
            self.fall_back()?;
            self.play_samples(slot, step, rows, plays)?;
        }
        self.sampler_mut_of(slot).collect(rows.len());
        self.statistics.plays += plays as u64;
        self.statistics.seconds += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn sample(&mut self, slot: usize, rows: &[Option<SampleRow<'_>>]) -> Result<(), DeviceError> {
        let start = Instant::now();
        let Some(logits) = self.sampler_of(slot).forward[slot] else {
            return Err(DeviceError::BadStep("no forward pass to sample from".to_string()));
        };
        if rows.len() != logits || !rows.iter().flatten().all(|row| row.uniforms.len() == 1) {
            return Err(DeviceError::BadStep(format!("{} rows to sample of {logits}", rows.len())));
        }
        self.check_rows(rows)?;
        self.slots[slot].replayed = false;
        self.sample_forward(slot, logits, rows)?;
        if std::mem::take(&mut self.slots[slot].replayed) {
            // What was sampled came from a pass that was given up; now the logits are there.
            self.sample_forward(slot, logits, rows)?;
        }
        self.sampler_mut_of(slot).collect(rows.len());
        self.statistics.seconds += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn sampled(&self, slot: usize, index: usize) -> Option<&[u32]> {
        self.sampler_of(slot).sampled(index)
    }

    fn logprobs(&self, slot: usize, index: usize, play: usize) -> Option<TokenLogProbs<'_>> {
        let sampler = self.sampler_of(slot);
        let tokens = sampler.sampled(index)?;
        sampler.report.as_ref().filter(|_| play < tokens.len())?.get(index, play)
    }
}

impl VulkanRecording {
    /// Whether tokens are sampled here. Host and device sum in different precisions: where results
    /// must be reproducible, which of them samples may not depend on the rows of a play.
    pub(crate) fn samples(&self) -> bool {
        let options = &self.plan.options;
        let always = options.max_logit_rows <= MOST_ROWS;
        !self.samplers.is_empty() && (always || !options.reproducible)
    }

    /// What samples the logits of a slot.
    fn sampler_of(&self, slot: usize) -> &Sampler {
        &self.samplers[slot % self.samplers.len()]
    }

    fn sampler_mut_of(&mut self, slot: usize) -> &mut Sampler {
        let count = self.samplers.len();
        &mut self.samplers[slot % count]
    }

    /// Plays and samples a step whose command buffers are recorded, and waits.
    fn play_samples(
        &mut self,
        slot: usize,
        step: &Step,
        rows: &[Option<SampleRow<'_>>],
        plays: usize,
    ) -> Result<(), DeviceError> {
        self.write_sampling(slot, step, rows)?;
        let mut list = std::mem::take(&mut self.sampler_mut_of(slot).list);
        let launched = self.launch_sampling(slot, step, plays, &mut list);
        self.sampler_mut_of(slot).list = list;
        launched?;
        self.await_interruptibly(slot)?;
        self.finish(slot)
    }

    /// Samples from the logits of a forward pass, and waits.
    fn sample_forward(
        &mut self,
        slot: usize,
        logits: usize,
        rows: &[Option<SampleRow<'_>>],
    ) -> Result<(), DeviceError> {
        self.write_rows(slot, logits, rows)?;
        let wanted = logit_bucket(logits, &self.plan);
        let copy = self.slots[slot].copies[&wanted];
        let sampler = self.sampler_mut_of(slot);
        let commands = sampler.recorded[slot][&wanted];
        let mut list = std::mem::take(&mut sampler.list);
        list.clear();
        sampler.push_samples(commands, &mut list);
        sampler.push_copies(commands, copy, logits, &mut list);
        sampler.forward[slot] = None;
        let dispatches = u64::from(sampler.paths.dispatches());
        let submitted = self.submit_list(Some(slot), &list);
        self.sampler_mut_of(slot).list = list;
        submitted?;
        self.statistics.dispatches += dispatches;
        self.await_interruptibly(slot)?;
        self.finish(slot)
    }

    /// Records what sampling for a step needs, and writes the step and the rows' states.
    fn write_sampling(
        &mut self,
        slot: usize,
        step: &Step,
        rows: &[Option<SampleRow<'_>>],
    ) -> Result<(), DeviceError> {
        self.write_rows(slot, step.logits.len(), rows)?;
        // SAFETY: the slot's step is mapped, and nothing plays it.
        unsafe { write_step(self.slots[slot].start, step) };
        Ok(())
    }

    /// Records what sampling `logits` rows needs, and writes their states.
    fn write_rows(
        &mut self,
        slot: usize,
        logits: usize,
        rows: &[Option<SampleRow<'_>>],
    ) -> Result<(), DeviceError> {
        let whole = Paths::of(rows.iter().flatten()).is_whole();
        for slot in 0..self.slots.len() {
            self.prepare_sampling(slot, logits, whole)?;
        }
        // SAFETY: whatever sampled from this arena before was waited for.
        unsafe { self.sampler_mut_of(slot).write(rows) };
        Ok(())
    }

    /// Whether the device can sample every row that is not left to the host.
    fn check_rows(&self, rows: &[Option<SampleRow<'_>>]) -> Result<(), DeviceError> {
        let reason = rows.iter().flatten().find_map(|row| self.sampling_unsupported(row));
        if let Some(reason) = reason {
            return Err(DeviceError::Unsupported(reason.to_string()));
        }
        let words = pianola_plan::mask_words(self.plan.graph.vocabulary);
        let mut masks = rows.iter().flatten().filter_map(|row| row.mask);
        match masks.find(|mask| mask.len() != words) {
            Some(mask) => {
                let found = mask.len();
                Err(DeviceError::BadStep(format!("a mask of {found} words instead of {words}")))
            }
            None => Ok(()),
        }
    }

    /// Whether the rows fit the step, and how many plays they ask for.
    fn check_sampling(
        &self,
        step: &Step,
        rows: &[Option<SampleRow<'_>>],
    ) -> Result<usize, DeviceError> {
        let bad = |reason: String| Err(DeviceError::BadStep(reason));
        let most = self.max_sample_rows();
        if rows.len() != step.logits.len() || !(1..=most).contains(&rows.len()) {
            let (rows, logits) = (rows.len(), step.logits.len());
            return bad(format!(
                "{rows} rows to sample, of at most {most}, for {logits} logit rows"
            ));
        }
        self.check_rows(rows)?;
        let plays = rows.iter().flatten().next().map_or(1, |row| row.uniforms.len());
        let same = rows.iter().flatten().all(|row| row.uniforms.len() == plays);
        if !same || !(1..=MOST_PLAYS).contains(&plays) {
            return bad(format!(
                "{plays} plays, of at most {MOST_PLAYS} and the same for all rows"
            ));
        }
        if plays == 1 {
            return Ok(1);
        }
        let alone = rows.iter().all(|row| row.is_some_and(|row| row.mask.is_none()));
        if !alone || rows.len() < step.rows.len() || !step.is_one_row_per_sequence() {
            return bad("a row of several plays that no other one follows".to_string());
        }
        for row in &step.rows {
            self.check_pages(row, plays)?;
        }
        Ok(plays)
    }

    /// Whether so many plays from `row` on stay within the context and its pages.
    fn check_pages(&self, row: &Row, plays: usize) -> Result<(), DeviceError> {
        let first = row.position as usize;
        let last = first + plays - 1;
        if last >= self.plan.options.context {
            return Err(DeviceError::BadStep(format!("{plays} plays from position {first}")));
        }
        let sequence = row.sequence as usize;
        let unmapped = self.plan.graph.kv_groups.iter().enumerate().find_map(|(index, group)| {
            let mut seen = group.first_visible(first) / PAGE_TOKENS..=last / PAGE_TOKENS;
            seen.find(|&page| !self.is_mapped(index, sequence, page))
        });
        match unmapped {
            None => Ok(()),
            Some(page) => {
                Err(DeviceError::BadStep(format!("sequence {sequence} has no page {page}")))
            }
        }
    }

    /// Submits plays whose step and states are written: one submission, unless their body is cut.
    fn launch_sampling(
        &mut self,
        slot: usize,
        step: &Step,
        plays: usize,
        list: &mut Vec<vk::CommandBufferSubmitInfo<'static>>,
    ) -> Result<(), DeviceError> {
        let wanted = logit_bucket(step.logits.len(), &self.plan);
        let commands = self.sampler_of(slot).recorded[slot][&wanted];
        list.clear();
        for _ in 0..plays {
            self.fill(0, slot, step, list)?;
            self.sampler_of(slot).push_samples(commands, list);
        }
        let copy = self.slots[slot].copies[&wanted];
        self.sampler_of(slot).push_copies(commands, copy, step.logits.len(), list);
        let dispatches = u64::from(self.sampler_of(slot).paths.dispatches());
        self.statistics.dispatches += dispatches * plays as u64;
        self.submit_list(Some(slot), list)
    }
}
