//! Continuous batching: requests join and leave between steps, and one read of the weights serves
//! them all.
//!
//! ```text
//! submit ─► waiting ──admit──► running ──plan_step──► StepPlan ─► (a device) ─► StepOutcome
//!              ▲                  │                                                 │
//!              └──── preempt ─────┘         events ◄──────── complete ◄─────────────┘
//! ```
//!
//! The scheduler owns requests, lanes and KV pages, and knows no device: what it has to know of one
//! is in [`SchedulerOptions`], what a device has to do is in a [`StepPlan`].
//!
//! # Order
//!
//! Requests are ranked by priority, the higher first, and by arrival within a priority. The best
//! ranked is admitted first; when pages run out, the worst ranked that runs goes back to the queue
//! and is computed anew later, from what is still kept of it.
//!
//! Nobody starves: whenever a younger request is admitted before it, or it is preempted, a request
//! is *overtaken*, and for every [`admission::OVERTAKES_PER_LEVEL`] times it is ranked one priority higher. So
//! in the end it is ranked before all that arrive later; the best ranked is never preempted, and the
//! pages always hold one sequence of full length.

mod admission;
mod completion;
mod limits;
mod masks;
mod plan;
mod planning;
mod shares;
#[cfg(test)]
mod tests;

pub(crate) use limits::{Limits, SchedulerOptions};
pub(crate) use plan::{
    EmbedRows, PlannedSample, SampleOptions, SampledBy, StepFailure, StepOutcome, StepPlan,
};

use crate::cache::{Cache, CacheUse};
use crate::error::EngineError;
use crate::lane::Lane;
use crate::request::{Answer, EmbedRequest, Event, Finish, PromptProgress, Request, RequestId};
use crate::speculate::{Boldness, Gauge, MOST_GUESSES, Speculation};
use crate::text::Text;
use shares::{ChunkPace, PlayPace, RowDemand, Share};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Called with every event of every request; breaking off cancels the request.
pub(crate) type Listener<'a> = dyn FnMut(RequestId, Event<'_>) -> ControlFlow<()> + 'a;

/// A request with a slot of the page tables.
struct Running {
    lane: Lane,
    slot: usize,
    /// Its rows of the step that is being made.
    share: Share,
    /// Tokens that may come behind its last.
    guesses: Vec<u32>,
    boldness: Boldness,
    /// Guesses of this step behind which the constraint allows no token.
    dead_end: Option<usize>,
}

impl Running {
    fn new(lane: Lane, slot: usize) -> Running {
        let guesses = Vec::with_capacity(MOST_GUESSES);
        let (share, boldness) = (Share::default(), Boldness::default());
        Running { lane, slot, share, guesses, boldness, dead_end: None }
    }
}

/// Counts since the engine was loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EngineCounters {
    /// Steps played.
    pub steps: u64,
    /// Rows of all steps.
    pub rows: u64,
    /// Tokens of prompts, and those of them that were computed before.
    pub prompt_tokens: u64,
    /// See `prompt_tokens`.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Times that a request made room for one that is ranked before it.
    pub preemptions: u64,
    /// Tokens that were guessed ahead, and those of them that were right.
    pub drafted_tokens: u64,
    /// See `drafted_tokens`.
    pub accepted_tokens: u64,
}

/// Requests on their way from one scheduler to another.
pub(crate) struct Waiting {
    lanes: Vec<Lane>,
    ids: Arc<AtomicU64>,
    counters: EngineCounters,
}

/// Requests, waiting and running, and their KV pages.
pub(crate) struct Scheduler {
    options: SchedulerOptions,
    text: Option<Arc<Text>>,
    pub cache: Cache,
    /// In no order.
    waiting: Vec<Lane>,
    /// The best ranked first.
    running: Vec<Running>,
    /// Slots without a request.
    free: Vec<usize>,
    /// Slots that requests have left since the last [`Scheduler::drain_vacated`].
    vacated: Vec<usize>,
    /// The slot of the sequence that [`crate::Engine::feed`] works on. A request may take it.
    fed: Option<usize>,
    ids: Arc<AtomicU64>,
    chunks: ChunkPace,
    plays: PlayPace,
    speculation: Speculation,
    gauge: Gauge,
    counters: EngineCounters,
    demands: Vec<RowDemand>,
    shares: Vec<Share>,
    prompts: Vec<usize>,
    /// Logits as they were before sampling changed them, where log probabilities are asked for.
    raw_logits: Vec<f32>,
}

impl Scheduler {
    pub fn new(options: SchedulerOptions, text: Option<Arc<Text>>) -> Scheduler {
        let lanes = options.limits.lanes;
        Scheduler {
            cache: Cache::new(&options.pages),
            text,
            waiting: Vec::new(),
            running: Vec::with_capacity(lanes),
            free: (0..lanes).rev().collect(),
            vacated: Vec::with_capacity(lanes),
            fed: None,
            ids: Arc::default(),
            chunks: ChunkPace::default(),
            plays: PlayPace::new(options.tokens_per_submit),
            speculation: Speculation::Off,
            gauge: Gauge::default(),
            counters: EngineCounters::default(),
            demands: Vec::with_capacity(lanes),
            shares: Vec::with_capacity(lanes),
            prompts: Vec::with_capacity(lanes),
            raw_logits: Vec::new(),
            options,
        }
    }

    pub fn limits(&self) -> &Limits {
        &self.options.limits
    }

    /// The counter that request ids are taken from.
    pub fn ids(&self) -> Arc<AtomicU64> {
        self.ids.clone()
    }

    /// An id for a new request.
    pub fn next_id(&self) -> RequestId {
        RequestId(self.ids.fetch_add(1, Ordering::Relaxed))
    }

    /// How a request is to be sampled.
    pub fn sample_options(&self, request: &Request) -> SampleOptions {
        let ends = self.text.as_ref().map_or(&[][..], |text| text.tokenizer.stop_tokens());
        SampleOptions::of(request, ends)
    }

    /// Adds a request to the queue. `by` says who can sample its tokens.
    pub fn submit(
        &mut self,
        id: RequestId,
        request: Request,
        by: SampledBy,
    ) -> Result<(), EngineError> {
        self.limits().check(&request)?;
        let options = self.sample_options(&request);
        let mut lane = Lane::new(id, request, options, self.limits(), self.text.as_deref())?;
        lane.by = by;
        self.enqueue(lane)
    }

    /// Adds a text to embed to the queue.
    pub fn submit_embedding(
        &mut self,
        id: RequestId,
        request: EmbedRequest,
    ) -> Result<(), EngineError> {
        self.limits().check_prompt(&request.tokens)?;
        let lane = Lane::embedding(id, request, self.limits())?;
        self.enqueue(lane)
    }

    fn enqueue(&mut self, lane: Lane) -> Result<(), EngineError> {
        let limits = self.limits();
        // A request that finds a free lane at the next step does not wait.
        if self.waiting.len() + self.running.len() >= limits.max_open() {
            return Err(EngineError::QueueFull { waiting: limits.queue });
        }
        self.counters.prompt_tokens += lane.request.prompt.len() as u64;
        self.waiting.push(lane);
        Ok(())
    }

    /// All requests that wait: after the device was lost that is all there are, and another
    /// scheduler may [`Scheduler::adopt`] them.
    pub fn take_waiting(&mut self) -> Waiting {
        let lanes = std::mem::take(&mut self.waiting);
        Waiting { lanes, ids: self.ids.clone(), counters: self.counters }
    }

    /// Continues requests of another scheduler, and its ids and counters. `by` says who can sample
    /// each. Returns those that are longer than the context.
    pub fn adopt(
        &mut self,
        waiting: Waiting,
        by: &dyn Fn(&SampleOptions) -> SampledBy,
    ) -> Vec<(RequestId, EngineError)> {
        let Waiting { lanes, ids, counters } = waiting;
        (self.ids, self.counters) = (ids, counters);
        let mut refused = Vec::new();
        for mut lane in lanes {
            lane.by = by(&lane.options);
            match self.limits().check_length(lane.tokens.len()) {
                Ok(()) => self.waiting.push(lane),
                Err(error) => refused.push((lane.id, error)),
            }
        }
        refused
    }

    /// Decides anew who can sample each request.
    pub fn assign_samplers(&mut self, by: &dyn Fn(&SampleOptions) -> SampledBy) {
        let running = self.running.iter_mut().map(|running| &mut running.lane);
        for lane in running.chain(&mut self.waiting) {
            lane.by = by(&lane.options);
        }
    }

    /// Ends a request; its pages are free from now on. Returns what there is of its answer; none if
    /// it is over already.
    pub fn cancel(&mut self, id: RequestId) -> Option<Answer> {
        let mut lane = match self.waiting.iter().position(|lane| lane.id == id) {
            Some(at) => self.waiting.swap_remove(at),
            None => {
                let at = self.running.iter().position(|running| running.lane.id == id)?;
                self.end(at)
            }
        };
        Some(lane.finish(Finish::Cancelled))
    }

    /// Guesses come from there from now on, whatever was found before about their use.
    pub fn set_speculation(&mut self, speculation: Speculation) {
        self.speculation = speculation;
        self.gauge = Gauge::default();
    }

    /// Whether guessing was found not to pay, and is switched off for now.
    pub fn is_speculation_off(&self) -> bool {
        self.speculation == Speculation::Off || self.gauge.is_off()
    }

    /// Whether requests wait or run.
    pub fn is_busy(&self) -> bool {
        !(self.waiting.is_empty() && self.running.is_empty())
    }

    /// Whether every request has its first token, which one that embeds never has.
    pub fn all_generate(&self) -> bool {
        let mut lanes = self.waiting.iter().chain(self.running.iter().map(|running| &running.lane));
        lanes.all(|lane| !lane.generated().is_empty())
    }

    /// Requests that wait, and that run.
    pub fn queue_lengths(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }

    pub fn counters(&self) -> EngineCounters {
        self.counters
    }

    /// How the KV pages are used.
    pub fn cache_use(&self) -> CacheUse {
        self.cache.usage()
    }

    /// How far the prompt of a request is; none once it has its first token, or does not run.
    pub fn prompt_progress(&self, id: RequestId) -> Option<PromptProgress> {
        let Running { lane, slot, .. } =
            self.running.iter().find(|running| running.lane.id == id)?;
        lane.generated().is_empty().then(|| PromptProgress {
            processed: self.cache.len(*slot),
            cached: lane.usage.cached_tokens,
            total: lane.tokens.len(),
        })
    }

    /// The slot of the fed sequence, taken now if it has none.
    pub fn fed_slot(&mut self) -> Option<usize> {
        self.fed = self.fed.or_else(|| self.free.pop());
        self.fed
    }

    /// Forgets the fed sequence.
    pub fn reset_fed(&mut self) {
        if let Some(slot) = self.fed.take() {
            self.cache.forget(slot);
            self.free.push(slot);
        }
    }

    /// Slots that requests have left since the last call.
    pub fn drain_vacated(&mut self) -> impl Iterator<Item = usize> + '_ {
        self.vacated.drain(..)
    }
}
