//! Continuous batching: requests join and leave between steps, and one read of the weights serves
//! them all.
//!
//! ```text
//! submit ─► waiting ──admit──► running ──step──► tokens ─► events
//!              ▲                  │
//!              └──── preempt ─────┘   when pages run out: the youngest makes room, and is computed
//!                                     anew later from what is still kept of it
//! ```
//!
//! The order is that of arrival, throughout: the oldest is admitted first and never preempted by
//! another, so every request that fits the context is served in the end.

mod step;

use crate::cache::{Cache, CacheUse};
use crate::draft::Drafter;
use crate::error::EngineError;
use crate::lane::Lane;
use crate::load::Engine;
use crate::request::{Answer, Event, Finish, Request, RequestId};
use crate::sampler::Sampler;
use crate::schedule::{ChunkPace, PlayPace, RowDemand, Share};
use crate::speculate::{Boldness, Gauge, MOST_GUESSES, Speculation};
use pianola_plan::SampleRow;
use std::collections::VecDeque;
use std::ops::ControlFlow;

/// Who hears of what happens to requests; breaking off cancels the request.
pub type Listener<'a> = dyn FnMut(RequestId, Event<'_>) -> ControlFlow<()> + 'a;

/// A request with a slot of the page tables.
pub(crate) struct Running {
    pub lane: Lane,
    pub slot: usize,
    /// Its rows of the step that is being made.
    share: Share,
    /// Tokens that may come behind its last.
    guesses: Vec<u32>,
    boldness: Boldness,
    /// Random numbers of the tokens that the device is to choose.
    uniforms: Vec<f32>,
    /// Tokens, with the guesses behind them: what the device's penalties look at.
    history: Vec<u32>,
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
    /// Times that a request made room for an older one, or for an embedding.
    pub preemptions: u64,
    /// Tokens that were guessed ahead, and those of them that were right.
    pub drafted_tokens: u64,
    /// See `drafted_tokens`.
    pub accepted_tokens: u64,
}

/// What a request has to keep to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    vocabulary: usize,
    context: usize,
    model_context: usize,
    pub lanes: usize,
    pub queue: usize,
}

impl Limits {
    /// Whether the engine could serve the request at all.
    pub fn check(&self, request: &Request) -> Result<(), EngineError> {
        self.check_prompt(&request.prompt)?;
        Ok(Sampler::check(&request.sampling, self.vocabulary)?)
    }

    /// Whether these are some tokens, and fit the context.
    pub fn check_prompt(&self, tokens: &[u32]) -> Result<(), EngineError> {
        let Limits { context, model_context: model, .. } = *self;
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        self.check_tokens(tokens)?;
        let needed = tokens.len();
        match needed > context {
            true => Err(EngineError::ContextLength { needed, context, model }),
            false => Ok(()),
        }
    }

    /// Whether these are tokens of the vocabulary.
    pub fn check_tokens(&self, tokens: &[u32]) -> Result<(), EngineError> {
        let vocabulary = self.vocabulary;
        match tokens.iter().find(|&&token| token as usize >= vocabulary) {
            Some(&token) => Err(EngineError::UnknownToken { token, vocabulary }),
            None => Ok(()),
        }
    }
}

/// Requests, waiting and running.
pub(crate) struct Scheduler {
    /// In order of arrival, as are those that run.
    waiting: VecDeque<Lane>,
    pub running: Vec<Running>,
    /// Slots without a request.
    free: Vec<usize>,
    /// The slot of the sequence that [`Engine::feed`] works on. A request may take it.
    pub fed: Option<usize>,
    /// Most requests that wait.
    queue: usize,
    next: u64,
    chunks: ChunkPace,
    plays: PlayPace,
    pub speculation: Speculation,
    gauge: Gauge,
    pub drafter: Option<Drafter>,
    /// Why the drafter was given up.
    draft_failure: Option<String>,
    counters: EngineCounters,
    demands: Vec<RowDemand>,
    shares: Vec<Share>,
    samples: Vec<Option<SampleRow<'static>>>,
}

impl Scheduler {
    pub fn new(lanes: usize, queue: usize, tokens_per_submit: Option<usize>) -> Scheduler {
        Scheduler {
            waiting: VecDeque::new(),
            running: Vec::with_capacity(lanes),
            free: (0..lanes).rev().collect(),
            fed: None,
            queue,
            next: 0,
            chunks: ChunkPace::default(),
            plays: PlayPace::new(tokens_per_submit),
            speculation: Speculation::Off,
            gauge: Gauge::default(),
            drafter: None,
            draft_failure: None,
            counters: EngineCounters::default(),
            demands: Vec::with_capacity(lanes),
            shares: Vec::with_capacity(lanes),
            samples: Vec::new(),
        }
    }

    /// A request leaves its slot, whose pages were given back.
    fn vacate(&mut self, at: usize) -> Running {
        let running = self.running.remove(at);
        self.free.push(running.slot);
        self.drafter.iter_mut().for_each(|drafter| drafter.release(running.slot));
        running
    }

    /// The slot of the fed sequence, taken now if it has none.
    pub fn fed_slot(&mut self) -> Option<usize> {
        self.fed = self.fed.or_else(|| self.free.pop());
        self.fed
    }

    /// Gives that slot back, empty.
    pub fn give_fed(&mut self) {
        self.free.extend(self.fed.take());
    }
}

impl Running {
    /// Whether it comes to the end of its tokens in this step, and demands another.
    fn wants_token(&self, cache: &Cache, context: usize) -> bool {
        let played = cache.len(self.slot) + self.share.pending;
        played == self.lane.tokens.len() && self.lane.left(context) > 0
    }

    fn new(lane: Lane, slot: usize, max_tokens_per_submit: usize) -> Running {
        let guesses = Vec::with_capacity(MOST_GUESSES);
        let uniforms = Vec::with_capacity(max_tokens_per_submit.max(MOST_GUESSES + 1));
        let (share, boldness) = (Share::default(), Boldness::default());
        Running { lane, slot, share, guesses, boldness, uniforms, history: Vec::new() }
    }
}

impl Engine {
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            vocabulary: self.config.vocabulary,
            context: self.context(),
            model_context: self.config.context,
            lanes: self.plan().options.sequences,
            queue: self.scheduler.queue,
        }
    }

    /// Lets the engine guess ahead; answers stay the same.
    pub fn set_speculation(&mut self, speculation: Speculation) -> Result<(), EngineError> {
        if speculation == Speculation::Draft && self.scheduler.drafter.is_none() {
            return Err(EngineError::Option(
                "a draft model guesses only once there is one; name it with --draft".to_string(),
            ));
        }
        self.scheduler.speculation = speculation;
        self.scheduler.gauge = Gauge::default();
        Ok(())
    }

    /// Lets a smaller model of the same vocabulary, with as many lanes, guess ahead.
    pub fn set_draft(&mut self, draft: Engine) -> Result<(), EngineError> {
        self.scheduler.drafter = Some(Drafter::new(draft, self)?);
        self.set_speculation(Speculation::Draft)
    }

    /// Why the draft model was given up, if it failed.
    pub fn draft_failure(&self) -> Option<&str> {
        self.scheduler.draft_failure.as_deref()
    }

    /// Whether guessing ahead was found not to pay, and is switched off for now.
    pub fn is_speculation_off(&self) -> bool {
        self.scheduler.speculation == Speculation::Off || self.scheduler.gauge.is_off()
    }

    /// Adds a request to the queue; [`Engine::step`] works on it.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        self.limits().check(&request)?;
        // Who finds a free lane at the next step does not wait.
        let Limits { lanes, queue, .. } = self.limits();
        if self.scheduler.waiting.len() + self.scheduler.running.len() >= lanes + queue {
            return Err(EngineError::QueueFull { waiting: queue });
        }
        let id = RequestId(self.scheduler.next);
        let lane = Lane::new(id, request, self.config.vocabulary, self.text.as_deref())?;
        self.scheduler.next += 1;
        self.scheduler.counters.prompt_tokens += lane.request.prompt.len() as u64;
        self.scheduler.waiting.push_back(lane);
        Ok(id)
    }

    /// Ends a request; its pages are free from now on. Returns what there is of its answer; none if
    /// it is over already.
    pub fn cancel(&mut self, id: RequestId) -> Option<Answer> {
        let scheduler = &mut self.scheduler;
        if let Some(at) = scheduler.waiting.iter().position(|lane| lane.id == id) {
            let mut lane = scheduler.waiting.remove(at)?;
            return Some(lane.finish(Finish::Cancelled));
        }
        let at = scheduler.running.iter().position(|running| running.lane.id == id)?;
        let mut running = self.end(at);
        Some(running.lane.finish(Finish::Cancelled))
    }

    /// Whether requests wait or run.
    pub fn is_busy(&self) -> bool {
        !(self.scheduler.waiting.is_empty() && self.scheduler.running.is_empty())
    }

    /// Whether every request has its first token.
    pub fn all_generate(&self) -> bool {
        let Scheduler { waiting, running, .. } = &self.scheduler;
        let mut lanes = waiting.iter().chain(running.iter().map(|running| &running.lane));
        lanes.all(|lane| !lane.generated().is_empty())
    }

    /// Requests that wait, and that run.
    pub fn queue_lengths(&self) -> (usize, usize) {
        (self.scheduler.waiting.len(), self.scheduler.running.len())
    }

    /// Counts since the engine was loaded.
    pub fn counters(&self) -> EngineCounters {
        self.scheduler.counters
    }

    /// Checks that every KV page is accounted for and none is shared before it is full.
    ///
    /// # Panics
    /// If not.
    #[doc(hidden)]
    pub fn check_pages(&self) {
        self.cache.check();
    }

    /// How the KV pages are used.
    pub fn cache_use(&self) -> CacheUse {
        self.cache.usage()
    }

    /// Gives waiting requests a slot, the oldest first, while there is room for all of their tokens.
    fn admit(&mut self) {
        let max_tokens_per_submit = self.executor.max_tokens_per_submit();
        let scheduler = &mut self.scheduler;
        while let Some(lane) = scheduler.waiting.front() {
            let Some(&slot) = scheduler.free.last().or(scheduler.fed.as_ref()) else { return };
            let running = scheduler.running.len();
            let chunk = self.executor.plan().options.max_rows;
            // A page for each that runs is left, or the newcomer would soon have to go again. Alone
            // it always finds room.
            if running > 0 && !self.cache.has_room(&lane.tokens, chunk, running) {
                return;
            }
            if scheduler.fed == Some(slot) {
                self.cache.forget(slot, &mut self.executor);
                scheduler.fed = None;
            } else {
                scheduler.free.pop();
            }
            let Some(mut lane) = scheduler.waiting.pop_front() else { return };
            let first_time = lane.generated().is_empty() && lane.timing.preemptions == 0;
            let cached = self.cache.attach(slot, &lane.tokens, &mut self.executor);
            lane.admit(cached);
            if first_time {
                scheduler.counters.cached_tokens += cached as u64;
            }
            // Whoever waits is younger than all that run.
            scheduler.running.push(Running::new(lane, slot, max_tokens_per_submit));
        }
    }

    /// A slot for a sequence beside the requests; where there is none, the youngest makes room.
    pub(crate) fn borrow_slot(&mut self) -> Result<usize, EngineError> {
        if self.scheduler.free.is_empty() && self.scheduler.fed.is_some() {
            self.reset_fed();
        }
        if self.scheduler.free.is_empty() {
            self.preempt();
        }
        self.scheduler.free.pop().ok_or(EngineError::PagesInUse)
    }

    /// Gives that slot back; nothing of its sequence is kept.
    pub(crate) fn return_slot(&mut self, slot: usize) {
        self.cache.forget(slot, &mut self.executor);
        self.scheduler.free.push(slot);
    }

    /// Finds pages for a borrowed slot's sequence up to `end`, as for a request older than all.
    pub(crate) fn make_room(&mut self, slot: usize, end: usize) -> Result<(), EngineError> {
        while self.cache.reserve(slot, end, &mut self.executor).is_err() {
            if self.scheduler.fed.is_some() {
                self.reset_fed();
            } else if self.scheduler.running.is_empty() {
                return Err(EngineError::PagesInUse);
            } else {
                self.preempt();
            }
        }
        Ok(())
    }

    /// Finds pages for every row of so many plays, the oldest request first. Where there are none,
    /// first what is not needed gives way: the fed sequence, further plays, guesses; then the
    /// youngest request. Returns how many plays there are pages for.
    fn reserve(&mut self, mut plays: usize) -> usize {
        let mut at = 0;
        while at < self.scheduler.running.len() {
            let Running { slot, share, .. } = self.scheduler.running[at];
            let end = self.cache.len(slot) + share.pending + share.drafts + plays - 1;
            if self.cache.reserve(slot, end, &mut self.executor).is_ok() {
                at += 1;
            } else if self.scheduler.fed.is_some() {
                self.reset_fed();
            } else if plays > 1 {
                plays = 1;
            } else if share.drafts > 0 {
                self.scheduler.running[at].share.drafts = 0;
            } else {
                self.preempt();
            }
        }
        plays
    }

    /// The youngest request that runs goes back to the queue; what it computed is kept while there
    /// is room.
    fn preempt(&mut self) {
        let Some(last) = self.scheduler.running.len().checked_sub(1) else { return };
        let mut running = self.end(last);
        running.lane.timing.preemptions += 1;
        self.scheduler.counters.preemptions += 1;
        // Older than all that wait: those were never admitted, or preempted before it.
        self.scheduler.waiting.push_front(running.lane);
    }

    /// Takes a request out of its slot; what it computed is kept while there is room.
    fn end(&mut self, at: usize) -> Running {
        let slot = self.scheduler.running[at].slot;
        self.cache.release(slot, &mut self.executor);
        self.scheduler.vacate(at)
    }

    /// The same, but nothing of its unfinished page is kept.
    fn discard(&mut self, at: usize) -> Running {
        let slot = self.scheduler.running[at].slot;
        self.cache.forget(slot, &mut self.executor);
        self.scheduler.vacate(at)
    }
}
