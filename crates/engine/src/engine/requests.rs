//! Requests join an engine, leave it, and move to another.

use crate::draft::Drafter;
use crate::error::EngineError;
use crate::executor::Executor;
use crate::load::Engine;
use crate::request::{Answer, EmbedRequest, Event, EventSink, Request, RequestId};
use crate::scheduler::{SampleOptions, SampledBy, Waiting};
use crate::speculate::Speculation;
use pianola_plan::SampleRow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Requests that were under way when their engine's device was lost.
pub(crate) struct PendingRequests {
    waiting: Waiting,
    sinks: HashMap<RequestId, EventSink>,
}

impl PendingRequests {
    /// Tells all of them that there will be no answer.
    pub fn fail(self, error: &dyn Fn() -> EngineError) {
        for mut sink in self.sinks.into_values() {
            let _ = sink(Event::Failed(error()));
        }
    }
}

impl Engine {
    /// Lets the engine guess ahead; answers stay the same.
    pub fn set_speculation(&mut self, speculation: Speculation) -> Result<(), EngineError> {
        if speculation == Speculation::Draft && self.drafter.is_none() {
            return Err(EngineError::NoDraft);
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

    /// Adds a request to the queue; [`Engine::step`] works on it. Nobody is told of its events: see
    /// [`Engine::submit_to`].
    pub fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        let id = self.scheduler.next_id();
        self.submit_as(id, request)?;
        Ok(id)
    }

    /// The same; `sink` is called with each of its events.
    pub fn submit_to(
        &mut self,
        request: Request,
        sink: EventSink,
    ) -> Result<RequestId, EngineError> {
        let id = self.submit(request)?;
        self.set_sink(id, sink);
        Ok(id)
    }

    /// Adds a text to embed to the queue; `sink` is called with each of its events.
    pub fn submit_embedding_to(
        &mut self,
        request: EmbedRequest,
        sink: EventSink,
    ) -> Result<RequestId, EngineError> {
        let id = self.scheduler.next_id();
        self.submit_embedding_as(id, request)?;
        self.set_sink(id, sink);
        Ok(id)
    }

    /// Calls `sink` with the events of a request from now on.
    pub(crate) fn set_sink(&mut self, id: RequestId, sink: EventSink) {
        self.sinks.insert(id, sink);
    }

    /// Adds a request under an id that was taken before.
    pub(crate) fn submit_as(
        &mut self,
        id: RequestId,
        mut request: Request,
    ) -> Result<(), EngineError> {
        request.seed.get_or_insert_with(random_seed);
        let by = sampled_by(&self.executor, &self.scheduler.sample_options(&request));
        self.scheduler.submit(id, request, by)
    }

    /// Why the device cannot sample the tokens of a request; the host then does, from the logits.
    pub fn sampling_unsupported(&self, request: &Request) -> Option<&'static str> {
        unsupported(&self.executor, &self.scheduler.sample_options(request))
    }

    /// Asks the device anew what it can sample, which depends on whether its kernels are timed.
    pub(crate) fn assign_samplers(&mut self) {
        let Engine { scheduler, executor, .. } = self;
        scheduler.assign_samplers(&|options| sampled_by(executor, options));
    }

    /// Ends a request; its pages are free from now on. Its sink is told. Returns what there is of
    /// its answer; none if it is over already.
    pub fn cancel(&mut self, id: RequestId) -> Option<Answer> {
        let answer = self.scheduler.cancel(id)?;
        if let Some(mut sink) = self.sinks.remove(&id) {
            let _ = sink(Event::Finished(answer.clone()));
        }
        Some(answer)
    }

    /// Takes all requests out of an engine whose device is lost; see [`Engine::adopt`].
    pub(crate) fn into_pending(mut self) -> PendingRequests {
        let sinks = std::mem::take(&mut self.sinks);
        PendingRequests { waiting: self.scheduler.take_waiting(), sinks }
    }

    /// Continues requests of another engine. Their prompts and tokens are computed again; text that
    /// was sent is not sent again.
    pub(crate) fn adopt(&mut self, pending: PendingRequests) {
        let Engine { scheduler, executor, sinks, .. } = self;
        sinks.extend(pending.sinks);
        let by = |options: &SampleOptions| sampled_by(executor, options);
        for (id, error) in scheduler.adopt(pending.waiting, &by) {
            if let Some(mut sink) = sinks.remove(&id) {
                let _ = sink(Event::Failed(error));
            }
        }
    }
}

/// Why a device cannot sample so; none where it can.
fn unsupported(executor: &Executor, options: &SampleOptions) -> Option<&'static str> {
    let words = if options.constrained {
        pianola_plan::mask_words(executor.plan().graph.vocabulary)
    } else {
        0
    };
    let mask = vec![u32::MAX; words];
    let mask = options.constrained.then_some(&mask[..]);
    executor.sampling_unsupported(&SampleRow { mask, ..options.row() })
}

fn sampled_by(executor: &Executor, options: &SampleOptions) -> SampledBy {
    match unsupported(executor, options) {
        None => SampledBy::Device,
        Some(_) => SampledBy::Host,
    }
}

/// A random seed: of 32 bits, so that it is easily written down and survives JSON.
fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish() >> 32
}
