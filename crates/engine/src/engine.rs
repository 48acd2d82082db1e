//! Requests to an engine: the scheduler plans a step, the executor plays it, the scheduler takes
//! the outcome.

mod requests;

use crate::cache::{CacheLayout, CacheUse, PageChange};
use crate::error::{EngineError, device_kind};
use crate::executor::Executor;
use crate::load::Engine;
use crate::request::{Answer, Event, Moment, Request, RequestId};
use crate::scheduler::{
    EngineCounters, Limits, Listener, SampledBy, SchedulerOptions, StepFailure, StepOutcome,
    StepPlan,
};
use crate::speculate::Speculation;
use pianola_model::Config;
use pianola_plan::{DeviceError, SampleRow, TokenLogProbs};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
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

/// What the scheduler has to know of the plan and its devices.
pub(crate) fn scheduler_options(
    executor: &Executor,
    config: &Config,
    queue: usize,
) -> SchedulerOptions {
    let plan = executor.plan();
    let options = plan.options;
    SchedulerOptions {
        limits: Limits {
            vocabulary: config.vocabulary,
            context: options.context,
            model_context: config.context,
            lanes: options.sequences,
            queue,
        },
        pages: CacheLayout {
            groups: plan.graph.kv_groups.clone(),
            pages: plan.kv_pages.clone(),
            context: options.context,
            slots: options.sequences,
        },
        max_rows: options.max_rows,
        max_logit_rows: options.max_logit_rows,
        max_sample_rows: executor.max_sample_rows(),
        max_tokens_per_submit: executor.max_tokens_per_submit(),
        rounds_rows: plan.devices.iter().any(|device| device.rounds_rows),
        tokens_per_submit: None,
    }
}

/// An empty list in the memory of another, whose items had another lifetime.
fn recycled<'a>(mut rows: Vec<Option<SampleRow<'_>>>) -> Vec<Option<SampleRow<'a>>> {
    rows.clear();
    rows.into_iter().map(|_| unreachable!("it is empty")).collect()
}

impl Engine {
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

    /// Plays one step for all requests that run, and calls their sinks with what happens to them.
    /// Does nothing if there is nothing to do. An error is the device's. Where the device is lost
    /// ([`Engine::is_lost`]), requests wait; else every request that ran has failed, and was told.
    pub fn step(&mut self) -> Result<(), EngineError> {
        self.step_with(&mut |_, _| ControlFlow::Continue(()))
    }

    /// The same; `listener` is called with the events of requests that have no sink.
    pub(crate) fn step_with(&mut self, listener: &mut Listener<'_>) -> Result<(), EngineError> {
        let begun = Instant::now();
        if !self.plan_step() {
            return Ok(());
        }
        self.buffers.outcome.clear();
        let played = self.play_step().and_then(|()| self.collect());
        if let Err(error @ DeviceError::Interrupted) = played {
            // Nothing of the step was taken: its requests are where they were before it.
            return Err(error.into());
        }
        let lost = self.is_lost();
        let Engine { scheduler, buffers, sinks, .. } = self;
        let StepBuffers { plan, outcome, .. } = buffers;
        if let Err(error) = &played {
            let (reason, kind) = (error.to_string(), device_kind(error));
            outcome.failure = Some(StepFailure { reason, kind, lost });
        }
        outcome.time = begun.elapsed();
        scheduler.complete(plan, outcome, &mut |id, event| {
            let Some(sink) = sinks.get_mut(&id) else { return listener(id, event) };
            let is_end = event.is_end();
            let flow = sink(event);
            if is_end {
                sinks.remove(&id);
            }
            flow
        });
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

    /// Plays the plan. Where requests have constraints, their masks are filled while the device
    /// computes.
    fn play_step(&mut self) -> Result<(), DeviceError> {
        let Engine { scheduler, executor, buffers, .. } = self;
        let StepBuffers { plan, rows: kept, .. } = buffers;
        let (on_device, constrained) = (plan.is_sampled_on_device(), plan.is_constrained());
        if !plan.embeddings.is_empty() {
            executor.use_first_slot();
        }
        match (on_device, constrained) {
            (false, _) => executor.play(&plan.step)?,
            (true, true) => executor.play_forward(&plan.step)?,
            (true, false) => {}
        }
        if constrained {
            scheduler.fill_masks(plan);
        }
        if !on_device {
            return Ok(());
        }
        let mut rows = recycled(std::mem::take(kept));
        rows.extend((0..plan.samples.len()).map(|index| plan.sample_row(index)));
        let sampled = match constrained {
            true => executor.sample(&rows),
            false => executor.play_sampling(&plan.step, &rows),
        };
        *kept = recycled(rows);
        sampled
    }

    /// Adds what the device sampled, what the host samples from its logits, and embeddings to the
    /// outcome.
    fn collect(&mut self) -> Result<(), DeviceError> {
        let Engine { scheduler, executor, buffers, head_input, .. } = self;
        let StepBuffers { plan, outcome, .. } = buffers;
        // First, because it may fail, and sampling cannot be undone.
        if let Some(head_input) = head_input
            && !plan.embeddings.is_empty()
        {
            head_input.pool(executor, plan, outcome)?;
        }
        // The request whose guess was wrong: its further rows are of no use.
        let mut ended = None;
        for (row, sample) in plan.samples.iter().enumerate() {
            if sample.by == SampledBy::Device {
                read_sampled(executor, row, outcome);
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
            let token = scheduler.sample(sample, plan.mask(sample), logits, outcome);
            if sample.guess != Some(token) {
                ended = Some(sample.lane);
            }
        }
        Ok(())
    }

    /// Generates one answer; `emit` gets the text as it becomes certain and may break off. It is
    /// also called with nothing, after each part of the prompt and where a token completed no text,
    /// so that breaking off need not wait. A model without a tokeniser emits its tokens' ids, each
    /// with a space behind it. Other requests that were submitted go on meanwhile.
    pub fn generate(
        &mut self,
        request: &Request,
        emit: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, EngineError> {
        self.generate_watched(request, &mut |moment| match moment {
            Moment::Prompt(_) => emit(""),
            Moment::Text(text) => emit(text),
        })
    }

    /// The same; `watch` also hears how far the prompt is.
    pub fn generate_watched(
        &mut self,
        request: &Request,
        watch: &mut dyn FnMut(Moment<'_>) -> ControlFlow<()>,
    ) -> Result<Answer, EngineError> {
        let id = self.submit(request.clone())?;
        match self.run_to_end(id, watch)? {
            Event::Finished(answer) => Ok(answer),
            Event::Failed(error) => Err(error),
            _ => Err(EngineError::Stopped),
        }
    }

    /// Gives steps up soon after `flag` is set, as if they had not been begun: [`Engine::generate`]
    /// then returns what there is as cancelled. Whoever sets the flag clears it, before the next call.
    pub fn set_interrupt(&mut self, flag: &Arc<AtomicBool>) {
        self.executor.set_interrupt(flag);
    }

    /// Plays steps until a request without a sink ends, and returns its last event.
    pub(crate) fn run_to_end(
        &mut self,
        id: RequestId,
        watch: &mut dyn FnMut(Moment<'_>) -> ControlFlow<()>,
    ) -> Result<Event<'static>, EngineError> {
        loop {
            let mut end = None;
            let stepped = self.step_with(&mut |of, event| {
                match event {
                    _ if of != id => {}
                    Event::Prompt => {}
                    Event::Token(token) => return watch(Moment::Text(token.text)),
                    Event::Finished(answer) => end = Some(Event::Finished(answer)),
                    Event::Embedding(values) => end = Some(Event::Embedding(values)),
                    Event::Failed(error) => end = Some(Event::Failed(error)),
                }
                ControlFlow::Continue(())
            });
            if let Err(error) = stepped {
                // It may be waiting.
                let answer = self.cancel(id);
                return match (error, answer) {
                    (EngineError::Device(DeviceError::Interrupted), Some(answer)) => {
                        Ok(Event::Finished(answer))
                    }
                    (error, _) => Err(error),
                };
            }
            if let Some(end) = end {
                return Ok(end);
            }
            let progress = self.scheduler.prompt_progress(id);
            if progress.is_some_and(|progress| watch(Moment::Prompt(progress)).is_break())
                && let Some(answer) = self.cancel(id)
            {
                return Ok(Event::Finished(answer));
            }
        }
    }
}

/// Adds what the device sampled for a row to the outcome.
fn read_sampled(executor: &Executor, row: usize, outcome: &mut StepOutcome) {
    let Some(tokens) = executor.sampled(row) else { return outcome.push_not_a_number() };
    outcome.push(tokens);
    for play in 0..tokens.len() {
        let Some(TokenLogProbs { sampled, top: best }) = executor.logprobs(row, play) else {
            return;
        };
        outcome.push_logprobs(play, |top| {
            top.extend_from_slice(best);
            sampled
        });
    }
}
