//! Requests to an engine: the scheduler plans a step, the executor plays it, the scheduler takes
//! the outcome.

use crate::cache::{CacheUse, PageChange};
use crate::draft::Drafter;
use crate::error::EngineError;
use crate::executor::Executor;
use crate::load::Engine;
use crate::request::{Answer, Event, Request, RequestId};
use crate::sampler::Sampling;
use crate::scheduler::{
    EngineCounters, Listener, SampledBy, Scheduler, StepFailure, StepOutcome, StepPlan,
};
use crate::speculate::Speculation;
use pianola_plan::{DeviceError, SampleRow};
use std::ops::ControlFlow;
use std::time::Instant;

/// The plan and the outcome of a step, kept from one step to the next for their memory.
#[derive(Default)]
pub(crate) struct StepBuffers {
    pub plan: StepPlan,
    outcome: StepOutcome,
    rows: Vec<Option<SampleRow<'static>>>,
}

/// Makes changes of the page tables known to the devices.
pub(crate) fn apply_pages(executor: &mut Executor, changes: impl Iterator<Item = PageChange>) {
    for PageChange { group, slot, index, page } in changes {
        match page {
            Some(page) => executor.map_page(group, slot, index, page),
            None => executor.unmap_page(group, slot, index),
        }
    }
}

/// An empty list in the memory of another, whose items had another lifetime.
fn recycled<'a>(mut rows: Vec<Option<SampleRow<'_>>>) -> Vec<Option<SampleRow<'a>>> {
    rows.clear();
    rows.into_iter().map(|_| unreachable!("it is empty")).collect()
}

impl Engine {
    /// Lets the engine guess ahead; answers stay the same.
    pub fn set_speculation(&mut self, speculation: Speculation) -> Result<(), EngineError> {
        if speculation == Speculation::Draft && self.drafter.is_none() {
            return Err(EngineError::Option(
                "a draft model guesses only once there is one; name it with --draft".to_string(),
            ));
        }
        self.scheduler.set_speculation(speculation);
        Ok(())
    }

    /// Lets a smaller model of the same vocabulary, with as many lanes, guess ahead.
    pub fn set_draft(&mut self, draft: Engine) -> Result<(), EngineError> {
        self.drafter = Some(Drafter::new(draft, self)?);
        self.set_speculation(Speculation::Draft)
    }

    /// Why the draft model was given up, if it failed.
    pub fn draft_failure(&self) -> Option<&EngineError> {
        self.draft_failure.as_ref()
    }

    /// Whether guessing ahead was found not to pay, and is switched off for now.
    pub fn is_speculation_off(&self) -> bool {
        self.scheduler.is_speculation_off()
    }

    /// Adds a request to the queue; [`Engine::step`] works on it.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        let id = self.scheduler.next_id();
        self.submit_as(id, request)?;
        Ok(id)
    }

    /// The same, under an id that was taken before.
    pub(crate) fn submit_as(&mut self, id: RequestId, request: Request) -> Result<(), EngineError> {
        let options = self.scheduler.sample_options(&request);
        let row = SampleRow {
            stop_tokens: &options.stop_tokens,
            ..SampleRow::new(&options.sampling, &[])
        };
        let by = match self.executor.sampling_unsupported(&row) {
            None => SampledBy::Device,
            Some(_) => SampledBy::Host,
        };
        self.scheduler.submit(id, request, by)
    }

    /// Why the device cannot sample tokens this way; the host then does, from the logits.
    pub fn sampling_unsupported(&self, sampling: &Sampling) -> Option<&'static str> {
        let stops = self.text.as_ref().map_or(&[][..], |text| text.tokenizer.stop_tokens());
        let row = SampleRow { stop_tokens: stops, ..SampleRow::new(sampling, &[]) };
        self.executor.sampling_unsupported(&row)
    }

    /// Ends a request; its pages are free from now on. Returns what there is of its answer; none if
    /// it is over already.
    pub fn cancel(&mut self, id: RequestId) -> Option<Answer> {
        self.scheduler.cancel(id)
    }

    /// Whether requests wait or run.
    pub fn is_busy(&self) -> bool {
        self.scheduler.is_busy()
    }

    /// Whether every request has its first token.
    pub(crate) fn all_generate(&self) -> bool {
        self.scheduler.all_generate()
    }

    /// Requests that wait, and that run.
    pub fn queue_lengths(&self) -> (usize, usize) {
        self.scheduler.queue_lengths()
    }

    /// Counts since the engine was loaded.
    pub fn counters(&self) -> EngineCounters {
        self.scheduler.counters()
    }

    /// Checks that every KV page is accounted for and none is shared before it is full.
    ///
    /// # Panics
    /// If not.
    #[doc(hidden)]
    pub fn check_pages(&self) {
        self.scheduler.cache.check();
    }

    /// How the KV pages are used.
    pub fn cache_use(&self) -> CacheUse {
        self.scheduler.cache_use()
    }

    /// Plays one step for all requests that run, and calls `listener` with what happens to them.
    /// Does nothing if there is nothing to do. An error is the device's: every request that ran has
    /// then failed, and was told.
    pub fn step(&mut self, listener: &mut Listener<'_>) -> Result<(), EngineError> {
        let begun = Instant::now();
        if !self.plan_step() {
            return Ok(());
        }
        let played = self.play_step();
        let lost = self.is_lost();
        let Engine { scheduler, executor, buffers, .. } = self;
        let StepBuffers { plan, outcome, .. } = buffers;
        outcome.clear();
        match &played {
            Ok(()) => collect(scheduler, executor, plan, outcome),
            Err(error) => {
                outcome.failure = Some(StepFailure { reason: error.to_string(), lost });
            }
        }
        outcome.time = begun.elapsed();
        scheduler.complete(plan, outcome, listener);
        Ok(played?)
    }

    /// Makes the next plan, and tells the devices of its pages. False if there is nothing to play.
    fn plan_step(&mut self) -> bool {
        let Engine { scheduler, executor, drafter, draft_failure, buffers, .. } = self;
        let vacated = scheduler.drain_vacated();
        vacated.for_each(|slot| drafter.iter_mut().for_each(|drafter| drafter.release(slot)));
        let mut failure = None;
        let has_rows = scheduler.plan_step(&mut buffers.plan, &mut |lanes| {
            failure = drafter.as_mut().and_then(|drafter| drafter.guess(lanes).err());
        });
        if let Some(error) = failure {
            // Answers do not depend on it; whoever asks is told.
            scheduler.set_speculation(Speculation::Off);
            *drafter = None;
            *draft_failure = Some(error);
        }
        apply_pages(executor, buffers.plan.pages.drain(..));
        has_rows
    }

    fn play_step(&mut self) -> Result<(), DeviceError> {
        let StepBuffers { plan, rows: kept, .. } = &mut self.buffers;
        if !plan.is_sampled_on_device() {
            return self.executor.play(&plan.step);
        }
        let mut rows = recycled(std::mem::take(kept));
        rows.extend((0..plan.samples.len()).map(|index| plan.sample_row(index)));
        let played = self.executor.play_sampling(&plan.step, &rows);
        *kept = recycled(rows);
        played
    }

    /// Generates one answer; `emit` gets the text as it becomes certain and may break off. It is
    /// also called with nothing, after each part of the prompt and where a token completed no text,
    /// so that breaking off need not wait. A model without a tokeniser emits its tokens' ids, each
    /// with a space behind it. Other requests that were submitted go on meanwhile, unheard.
    pub fn generate(
        &mut self,
        request: &Request,
        emit: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, EngineError> {
        let mine = self.submit(request.clone())?;
        let mut result = None;
        loop {
            let stepped = self.step(&mut |id, event| {
                match event {
                    _ if id != mine => {}
                    Event::Prompt => return emit(""),
                    Event::Text(text) => return emit(text),
                    Event::Finished(answer) => result = Some(Ok(answer)),
                    Event::Failed(error) => result = Some(Err(error)),
                }
                ControlFlow::Continue(())
            });
            if let Err(error) = stepped {
                // It may still have been waiting.
                self.cancel(mine);
                return Err(error);
            }
            if let Some(result) = result {
                return result;
            }
        }
    }
}

/// Writes what the device sampled, and what the host samples from its logits, into `outcome`.
fn collect(
    scheduler: &mut Scheduler,
    executor: &mut Executor,
    plan: &StepPlan,
    outcome: &mut StepOutcome,
) {
    // The request whose guess was wrong: its further rows are of no use.
    let mut ended = None;
    for (row, sample) in plan.samples.iter().enumerate() {
        if sample.by == SampledBy::Device {
            match executor.sampled(row) {
                Some(tokens) => outcome.push(tokens),
                None => outcome.push_not_a_number(),
            }
            continue;
        }
        if ended == Some(sample.lane) {
            outcome.push(&[]);
            continue;
        }
        let logits = executor.logits(row);
        // No early exit, which would keep the loop from being vectorised.
        if logits.iter().fold(false, |found, logit| found | logit.is_nan()) {
            outcome.push_not_a_number();
            ended = Some(sample.lane);
            continue;
        }
        let token = scheduler.sample(sample, logits);
        outcome.push(&[token]);
        if sample.guess != Some(token) {
            ended = Some(sample.lane);
        }
    }
}
