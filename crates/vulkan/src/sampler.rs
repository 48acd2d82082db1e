//! Plays that sample tokens: those of one play are the rows of the next, in one submission.

use crate::memory::{Memory, Purpose, Region};
use crate::recording::{VulkanRecording, logit_bucket};
use crate::sample::{MOST_PLAYS, MOST_ROWS, Outcome, SampleBuffers, sample_program, unsupported};
use crate::step::write_step;
use ash::vk;
use pianola_plan::{
    DeviceError, DeviceSampler, PAGE_TOKENS, Plan, Row, SampleRow, Step, TokenLogProbs,
};
use std::collections::BTreeMap;
use std::time::Instant;

/// The slot that plays with sampling in one submission run in: each is waited for.
const SAMPLING_SLOT: usize = 0;

/// Command buffers that sample a token for each row with logits, and copy the outcomes to the host.
#[derive(Clone, Copy)]
struct SampleCommands {
    sample: vk::CommandBuffer,
    collect: vk::CommandBuffer,
}

/// What sampling on the device needs.
pub(crate) struct Sampler {
    buffers: SampleBuffers,
    /// Outcomes as the host reads them, and those of them that the last play left.
    readback: Region,
    outcomes: *const Outcome,
    rows: usize,
    /// Of the rows last written, which are sampled here.
    here: [bool; MOST_ROWS],
    /// The slot and the rows with logits of a forward pass that was not sampled yet.
    pub forward: Option<(usize, usize)>,
    /// For each slot, by the rows that its head was recorded for.
    recorded: [BTreeMap<u32, SampleCommands>; 2],
    /// Command buffers of one submission, kept so that none is allocated again.
    list: Vec<vk::CommandBufferSubmitInfo<'static>>,
}

impl Sampler {
    pub fn new(plan: &Plan, memory: &mut Memory) -> Result<Sampler, DeviceError> {
        let rows = plan.options.max_logit_rows.min(MOST_ROWS);
        let buffers = SampleBuffers::new(memory, rows)?;
        let readback = memory.allocate(Purpose::Readback, buffers.outcomes.size, "sampling")?;
        Ok(Sampler {
            buffers,
            readback,
            outcomes: memory.mapped(readback).expect("visible to the host").cast(),
            rows: 0,
            here: [false; MOST_ROWS],
            forward: None,
            recorded: Default::default(),
            list: Vec::with_capacity(3 * MOST_PLAYS + 2),
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
        // SAFETY: by the caller's promise.
        unsafe { self.buffers.write(rows) };
    }

    /// Tokens of the `index`-th row that wanted logits; none where one was not a number.
    pub fn sampled(&self, index: usize) -> Option<&[u32]> {
        if index >= self.rows || !self.here[index] {
            return None;
        }
        // SAFETY: mapped; the play that wrote so many of them was waited for, and the next one
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
        unsupported(row)
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
        self.sampler.rows = 0;
        self.check(step)?;
        let plays = self.check_sampling(step, rows)?;
        self.ready(0, SAMPLING_SLOT, step)?;
        self.write_sampling(SAMPLING_SLOT, step, rows)?;
        let mut list = std::mem::take(&mut self.sampler.list);
        let launched = self.launch_sampling(SAMPLING_SLOT, step, plays, &mut list);
        self.sampler.list = list;
        launched?;
        let submitted = start.elapsed().as_secs_f64();
        self.finish(SAMPLING_SLOT)?;
        self.sampler.rows = rows.len();
        let whole = start.elapsed().as_secs_f64();
        self.statistics.plays += plays as u64;
        self.statistics.seconds += whole;
        self.statistics.busy_seconds += whole - submitted;
        Ok(())
    }

    fn sample(&mut self, slot: usize, rows: &[Option<SampleRow<'_>>]) -> Result<(), DeviceError> {
        let start = Instant::now();
        let Some((_, logits)) = self.sampler.forward.filter(|forward| forward.0 == slot) else {
            return Err(DeviceError::BadStep("no forward pass to sample from".to_string()));
        };
        if rows.len() != logits || !rows.iter().flatten().all(|row| row.uniforms.len() == 1) {
            return Err(DeviceError::BadStep(format!("{} rows to sample of {logits}", rows.len())));
        }
        self.check_rows(rows)?;
        for slot in 0..self.slots.len() {
            self.prepare_sampling(slot, logits)?;
        }
        // SAFETY: whatever sampled before was waited for.
        unsafe { self.sampler.write(rows) };
        let wanted = logit_bucket(logits, &self.plan);
        let SampleCommands { sample, collect } = self.sampler.recorded[slot][&wanted];
        let copy = self.slots[slot].copies[&wanted];
        let list = [sample, collect, copy];
        let list = list.map(|list| vk::CommandBufferSubmitInfo::default().command_buffer(list));
        let count = if rows.iter().all(Option::is_some) { 2 } else { 3 };
        self.sampler.forward = None;
        self.submit_list(Some(slot), &list[..count])?;
        self.statistics.dispatches += 2;
        self.finish(slot)?;
        self.sampler.rows = rows.len();
        let waited = start.elapsed().as_secs_f64();
        self.statistics.seconds += waited;
        self.statistics.busy_seconds += waited;
        Ok(())
    }

    fn sampled(&self, _slot: usize, index: usize) -> Option<&[u32]> {
        self.sampler.sampled(index)
    }

    fn logprobs(&self, _slot: usize, _index: usize, _play: usize) -> Option<TokenLogProbs<'_>> {
        None
    }
}

impl VulkanRecording {
    /// Records what sampling for a step needs, and writes the step and the rows' states.
    fn write_sampling(
        &mut self,
        slot: usize,
        step: &Step,
        rows: &[Option<SampleRow<'_>>],
    ) -> Result<(), DeviceError> {
        for slot in 0..self.slots.len() {
            self.prepare_sampling(slot, step.logits.len())?;
        }
        // SAFETY: the slot's step is mapped, and nothing plays it; whatever sampled before was
        // waited for.
        unsafe {
            write_step(self.slots[slot].start, step);
            self.sampler.write(rows);
        }
        Ok(())
    }

    /// Whether the device can sample every row that is not left to the host.
    fn check_rows(&self, rows: &[Option<SampleRow<'_>>]) -> Result<(), DeviceError> {
        let reason = rows.iter().flatten().find_map(|row| self.sampling_unsupported(row));
        match reason {
            Some(reason) => Err(DeviceError::Unsupported(reason.to_string())),
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

    /// Records what sampling for this many rows needs and is not there yet.
    pub(crate) fn prepare_sampling(
        &mut self,
        slot: usize,
        logits: usize,
    ) -> Result<(), DeviceError> {
        let wanted = logit_bucket(logits, &self.plan);
        if self.sampler.recorded[slot].contains_key(&wanted) {
            return Ok(());
        }
        let from = self.logits_of(slot, wanted as usize).0;
        let regions = self.sampler.buffers.regions(from, self.slots[slot].step);
        let rows = wanted.min(MOST_ROWS as u32);
        let op = self.plan.ops.len() - 1;
        let program = sample_program(regions, self.plan.graph.vocabulary as u32, rows, op);
        let sample = self.record(slot, &program)?;
        let collect = self.recorder.allocate()?;
        let bytes = u64::from(rows) * size_of::<Outcome>() as u64;
        let outcomes = self.sampler.buffers.outcomes.slice(0, bytes);
        let readback = self.sampler.readback;
        self.recorder.write(collect, |recorder| recorder.copy(collect, outcomes, readback))?;
        self.sampler.recorded[slot].insert(wanted, SampleCommands { sample, collect });
        Ok(())
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
        let SampleCommands { sample, collect } = self.sampler.recorded[slot][&wanted];
        let info = |commands| vk::CommandBufferSubmitInfo::default().command_buffer(commands);
        list.clear();
        for _ in 0..plays {
            self.fill(0, slot, step, list)?;
            list.push(info(sample));
        }
        list.push(info(collect));
        if !self.sampler.here[..step.logits.len()].iter().all(|&here| here) {
            list.push(info(self.slots[slot].copies[&wanted]));
        }
        self.statistics.dispatches += 2 * plays as u64;
        self.submit_list(Some(slot), list)
    }
}
