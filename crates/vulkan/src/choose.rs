//! Plays that choose tokens: those of one play are the rows of the next, in one submission.

use crate::device::{VulkanRecording, logit_bucket};
use crate::memory::{Memory, Purpose, Region};
use crate::program::Body;
use crate::sample::{Choices, MOST_PLAYS, MOST_ROWS, Outcome, sample_program, unsupported};
use crate::step::write_step;
use ash::vk;
use pianola_plan::{DeviceError, Draw, PAGE_TOKENS, Plan, Row, Sampling, Step};
use std::collections::BTreeMap;
use std::time::Instant;

/// Command buffers that choose a token for each row with logits, and copy the outcomes to the host.
#[derive(Clone, Copy)]
struct Choice {
    choose: vk::CommandBuffer,
    collect: vk::CommandBuffer,
}

/// What choosing on the device needs.
pub(crate) struct Chooser {
    choices: Choices,
    /// Outcomes as the host reads them, and those of them that the last play left.
    readback: Region,
    outcomes: *const Outcome,
    rows: usize,
    /// For each take, by the rows that its head was recorded for.
    recorded: [BTreeMap<u32, Choice>; 2],
    /// Command buffers of one submission, kept so that none is allocated again.
    list: Vec<vk::CommandBufferSubmitInfo<'static>>,
}

impl Chooser {
    pub fn new(plan: &Plan, memory: &mut Memory) -> Result<Chooser, DeviceError> {
        let rows = plan.options.max_logit_rows.min(MOST_ROWS);
        let choices = Choices::new(memory, rows)?;
        let readback = memory.allocate(Purpose::Readback, choices.outcomes.size, "sampling")?;
        Ok(Chooser {
            choices,
            readback,
            outcomes: memory.mapped(readback).expect("visible to the host").cast(),
            rows: 0,
            recorded: Default::default(),
            list: Vec::with_capacity(3 * MOST_PLAYS + 1),
        })
    }

    /// Tokens of the `index`-th row that wanted logits; none where one was not a number.
    pub fn chosen(&self, index: usize) -> Option<&[u32]> {
        if index >= self.rows {
            return None;
        }
        // SAFETY: mapped; the play that wrote so many of them was waited for, and the next one
        // takes what borrows this mutably. Any bits are an outcome.
        let outcome = unsafe { &*self.outcomes.add(index) };
        (outcome.broken == 0).then(|| outcome.chosen())
    }
}

impl VulkanRecording {
    /// Why tokens cannot be chosen so on the device: also while kernels are timed one by one, or
    /// plays are part of an experiment.
    pub(crate) fn why_not(&self, sampling: &Sampling, stop_tokens: &[u32]) -> Option<&'static str> {
        if self.profiler.is_some() || self.ablation.is_some() {
            return Some("its kernels are being timed");
        }
        unsupported(sampling, stop_tokens)
    }

    pub(crate) fn choose(&mut self, step: &Step, draws: &[Draw<'_>]) -> Result<(), DeviceError> {
        let start = Instant::now();
        self.chooser.rows = 0;
        self.check(step)?;
        let plays = self.check_draws(step, draws)?;
        let take = self.turn(step)?;
        for take in 0..self.takes.len() {
            self.prepare_choice(take, step.logits.len())?;
        }
        // SAFETY: the take's step is mapped, and nothing plays it; whatever chose was waited for.
        unsafe {
            write_step(self.takes[take].start, step);
            self.chooser.choices.write(draws);
        }
        let mut list = std::mem::take(&mut self.chooser.list);
        let launched = self.launch_choosing(take, step, plays, &mut list);
        self.chooser.list = list;
        launched?;
        let submitted = start.elapsed().as_secs_f64();
        self.finish(take)?;
        self.chooser.rows = draws.len();
        let whole = start.elapsed().as_secs_f64();
        self.statistics.plays += plays as u64;
        self.statistics.seconds += whole;
        self.statistics.busy_seconds += whole - submitted;
        Ok(())
    }

    /// Whether the draws fit the step, and how many plays they ask for.
    fn check_draws(&self, step: &Step, draws: &[Draw<'_>]) -> Result<usize, DeviceError> {
        let bad = |reason: String| Err(DeviceError::BadStep(reason));
        let most = self.plan.options.max_logit_rows.min(MOST_ROWS);
        if draws.len() != step.logits.len() || !(1..=most).contains(&draws.len()) {
            let (draws, logits) = (draws.len(), step.logits.len());
            return bad(format!("{draws} choices, of at most {most}, for {logits} logit rows"));
        }
        let why_not = |draw: &Draw<'_>| self.why_not(draw.sampling, draw.stop_tokens);
        if let Some(reason) = draws.iter().find_map(why_not) {
            return Err(DeviceError::Unsupported(reason.to_string()));
        }
        let plays = draws[0].uniforms.len();
        let same = draws.iter().all(|draw| draw.uniforms.len() == plays);
        if !same || !(1..=MOST_PLAYS).contains(&plays) {
            return bad(format!(
                "{plays} plays, of at most {MOST_PLAYS} and the same for all rows"
            ));
        }
        if plays == 1 {
            return Ok(1);
        }
        if draws.len() < step.rows.len() || !step.is_one_row_per_sequence() {
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

    /// Records what choosing for this many rows needs and is not there yet.
    pub(crate) fn prepare_choice(&mut self, take: usize, logits: usize) -> Result<(), DeviceError> {
        let wanted = logit_bucket(logits, &self.plan);
        if self.chooser.recorded[take].contains_key(&wanted) {
            return Ok(());
        }
        let from = self.logits_of(wanted as usize).0;
        let regions = self.chooser.choices.regions(from, self.takes[take].step);
        let rows = wanted.min(MOST_ROWS as u32);
        let op = self.plan.ops.len() - 1;
        let program = sample_program(regions, self.plan.graph.vocabulary as u32, rows, op);
        let choose = self.record(take, &program)?;
        let collect = self.recorder.allocate()?;
        let bytes = u64::from(rows) * size_of::<Outcome>() as u64;
        let outcomes = self.chooser.choices.outcomes.slice(0, bytes);
        let readback = self.chooser.readback;
        self.recorder.write(collect, |recorder| recorder.copy(collect, outcomes, readback))?;
        self.chooser.recorded[take].insert(wanted, Choice { choose, collect });
        Ok(())
    }

    /// Submits plays whose step and draws are written: one submission, unless their body is cut.
    fn launch_choosing(
        &mut self,
        take: usize,
        step: &Step,
        plays: usize,
        list: &mut Vec<vk::CommandBufferSubmitInfo<'static>>,
    ) -> Result<(), DeviceError> {
        let body = Body::of(step);
        let wanted = logit_bucket(step.logits.len(), &self.plan);
        let Choice { choose, collect } = self.chooser.recorded[take][&wanted];
        let head = &self.takes[take].heads[&wanted];
        let (head, dispatches) = (head.commands[0], head.dispatches + 2);
        let dispatches = dispatches + self.takes[take].bodies[&body].dispatches;
        let parts = self.takes[take].bodies[&body].commands.len();
        let info = |commands| vk::CommandBufferSubmitInfo::default().command_buffer(commands);
        list.clear();
        for _ in 0..plays {
            for part in 0..parts {
                list.push(info(self.takes[take].bodies[&body].commands[part]));
                if part + 1 < parts {
                    self.submit_all(None, list)?;
                    list.clear();
                }
            }
            list.extend([head, choose].map(info));
        }
        list.push(info(collect));
        self.statistics.dispatches += u64::from(dispatches) * plays as u64;
        self.submit_all(Some(take), list)
    }
}
