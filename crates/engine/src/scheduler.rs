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
//! The order is that of arrival, throughout: the oldest is admitted first and never preempted, so
//! every request that fits the context is served in the end.

use crate::cache::CacheUse;
use crate::error::EngineError;
use crate::lane::Lane;
use crate::load::Engine;
use crate::request::{Answer, Event, Finish, Request, RequestId};
use crate::schedule::{ChunkPace, Room, Share, Want, share};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Instant;

/// Who hears of what happens to requests; breaking off cancels the request.
pub type Listener<'a> = dyn FnMut(RequestId, Event<'_>) -> ControlFlow<()> + 'a;

/// A request with a slot of the page tables.
pub(crate) struct Running {
    pub lane: Lane,
    pub slot: usize,
    /// Its rows of the step that is being made.
    pub share: Share,
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
    /// Times that a request made room for an older one.
    pub preemptions: u64,
    /// Tokens that were guessed ahead, and those of them that were right.
    pub drafted_tokens: u64,
    /// See `drafted_tokens`.
    pub accepted_tokens: u64,
}

/// Requests, waiting and running.
pub(crate) struct Scheduler {
    /// In order of arrival, as are those that run.
    waiting: VecDeque<Lane>,
    pub running: Vec<Running>,
    /// Slots without a request.
    free: Vec<usize>,
    /// The slot of the sequence that [`Engine::feed`] works on. A request may take it.
    pub side: Option<usize>,
    /// Most requests that wait.
    queue: usize,
    next: u64,
    pace: ChunkPace,
    pub counters: EngineCounters,
}

impl Scheduler {
    pub fn new(lanes: usize, queue: usize) -> Scheduler {
        Scheduler {
            waiting: VecDeque::new(),
            running: Vec::with_capacity(lanes),
            free: (0..lanes).rev().collect(),
            side: None,
            queue,
            next: 0,
            pace: ChunkPace::default(),
            counters: EngineCounters::default(),
        }
    }

    /// The slot of the fed sequence, taken now if it has none.
    pub fn side_slot(&mut self) -> Option<usize> {
        self.side = self.side.or_else(|| self.free.pop());
        self.side
    }

    /// Gives that slot back, empty.
    pub fn give_side(&mut self) {
        self.free.extend(self.side.take());
    }
}

impl Engine {
    /// Adds a request to the queue; [`Engine::step`] works on it.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        if request.prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        self.check_tokens(&request.prompt)?;
        let (needed, context) = (request.prompt.len(), self.context());
        if needed > context {
            let model = self.config.context;
            return Err(EngineError::ContextLength { needed, context, model });
        }
        if self.scheduler.waiting.len() >= self.scheduler.queue {
            return Err(EngineError::QueueFull { waiting: self.scheduler.queue });
        }
        let id = RequestId(self.scheduler.next);
        let lane = Lane::new(id, request, self.config.vocabulary, self.text.as_ref())?;
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
    pub fn load_now(&self) -> (usize, usize) {
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

    /// Plays one step for all that run, and tells `listener` what came of it. Does nothing if there
    /// is nothing to do. An error is of the device: every request under way has then failed, and
    /// was told.
    pub fn step(&mut self, listener: &mut Listener<'_>) -> Result<(), EngineError> {
        self.admit();
        self.divide();
        self.reserve();
        if self.scheduler.running.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        self.write_step();
        if let Err(error) = self.recording.play(&self.step) {
            self.fail_all(&error.to_string(), listener);
            return Err(error.into());
        }
        self.read_step(listener);
        let (rows, logits) = (self.step.rows.len(), self.step.logits.len());
        let scheduler = &mut self.scheduler;
        scheduler.counters.steps += 1;
        scheduler.counters.rows += rows as u64;
        // Without logits a GPU may still be at it.
        if logits > 0 {
            scheduler.pace.took(rows, begun.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// Gives waiting requests a slot, the oldest first, while there is room for all of their tokens.
    fn admit(&mut self) {
        let scheduler = &mut self.scheduler;
        while let Some(lane) = scheduler.waiting.front() {
            let Some(&slot) = scheduler.free.last().or(scheduler.side.as_ref()) else { return };
            let running = scheduler.running.len();
            let chunk = self.recording.plan().options.max_rows;
            // A page for each that runs is left, or the newcomer would soon have to go again. Alone
            // it always finds room.
            if running > 0 && !self.cache.has_room(&lane.tokens, chunk, running) {
                return;
            }
            if scheduler.side == Some(slot) {
                self.cache.forget(slot, self.recording.as_mut());
                scheduler.side = None;
            } else {
                scheduler.free.pop();
            }
            let Some(mut lane) = scheduler.waiting.pop_front() else { return };
            let first_time = lane.generated().is_empty() && lane.timing.preemptions == 0;
            let cached = self.cache.attach(slot, &lane.tokens, self.recording.as_mut());
            lane.admit(cached);
            if first_time {
                scheduler.counters.cached_tokens += cached as u64;
            }
            let at = scheduler.running.partition_point(|running| running.lane.id < lane.id);
            scheduler.running.insert(at, Running { lane, slot, share: Share::default() });
        }
    }

    /// Decides how many rows each gets.
    fn divide(&mut self) {
        let options = self.recording.plan().options;
        let Scheduler { running, pace, .. } = &mut self.scheduler;
        let room = Room {
            rows: options.max_rows,
            logits: options.max_logit_rows,
            chunk: pace.rows(options.max_rows),
        };
        let want = |running: &Running| Want {
            pending: running.lane.tokens.len() - self.cache.len(running.slot),
            drafts: 0,
        };
        let wants: Vec<Want> = running.iter().map(want).collect();
        for (running, share) in running.iter_mut().zip(share(&wants, room)) {
            running.share = share;
        }
    }

    /// Finds pages for every row, the oldest request first; where there are none, the youngest
    /// makes room.
    fn reserve(&mut self) {
        let mut at = 0;
        while at < self.scheduler.running.len() {
            let Running { slot, share, .. } = self.scheduler.running[at];
            let end = self.cache.len(slot) + share.pending + share.drafts;
            match self.cache.reserve(slot, end, self.recording.as_mut()) {
                Ok(()) => at += 1,
                Err(_) => self.preempt(),
            }
        }
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

    /// Takes a request out of its slot.
    fn end(&mut self, at: usize) -> Running {
        let running = self.scheduler.running.remove(at);
        self.cache.release(running.slot, self.recording.as_mut());
        self.scheduler.free.push(running.slot);
        running
    }

    fn write_step(&mut self) {
        self.step.clear();
        for Running { lane, slot, share, .. } in &self.scheduler.running {
            let start = self.cache.len(*slot);
            let end = start + share.pending;
            for (position, &token) in lane.tokens.iter().enumerate().take(end).skip(start) {
                let last = position + 1 == lane.tokens.len();
                let wanted = last && lane.left(self.recording.plan().options.context) > 0;
                self.step.push(token, *slot as u32, position as u32, wanted);
            }
        }
    }

    /// Chooses tokens from the logits of the step, and hands them on.
    fn read_step(&mut self, listener: &mut Listener<'_>) {
        let context = self.context();
        let mut logits = 0;
        let mut at = 0;
        while at < self.scheduler.running.len() {
            let Running { lane, slot, share, .. } = &mut self.scheduler.running[at];
            let start = self.cache.len(*slot);
            self.cache.append(*slot, &lane.tokens[start..start + share.pending]);
            let whole = start + share.pending == lane.tokens.len();
            let mut outcome = Ok(None);
            let mut text = "";
            if whole && lane.left(context) == 0 {
                outcome = Ok(Some(Finish::MaxTokens));
            } else if whole {
                let row = self.recording.logits(logits);
                logits += 1;
                // Weights or kernels are broken, and any token would be a lie. No early exit, which
                // would keep the loop from being vectorised.
                if row.iter().fold(false, |found, logit| found | logit.is_nan()) {
                    outcome = Err(EngineError::NotANumber { position: lane.tokens.len() });
                } else {
                    let token = lane.sampler.sample(row, lane.tokens.len() as u64);
                    outcome = Ok(lane.take(token, self.text.as_ref(), context));
                    self.scheduler.counters.generated_tokens += 1;
                    text = lane.text();
                }
            }
            let id = lane.id;
            let outcome = match outcome {
                // An end brings its text with what was held back.
                Ok(None) if listener(id, Event::Text(text)).is_break() => {
                    Ok(Some(Finish::Cancelled))
                }
                other => other,
            };
            match outcome {
                Ok(None) => at += 1,
                Ok(Some(finish)) => self.tell_end(at, finish, listener),
                Err(error) => {
                    self.end(at);
                    let _ = listener(id, Event::Failed(error));
                }
            }
        }
    }

    fn tell_end(&mut self, at: usize, finish: Finish, listener: &mut Listener<'_>) {
        let mut lane = self.end(at).lane;
        let answer = lane.finish(finish);
        // Nobody breaks off an answer that is over.
        if finish != Finish::Cancelled && !lane.text().is_empty() {
            let _ = listener(lane.id, Event::Text(lane.text()));
        }
        let _ = listener(lane.id, Event::Finished(answer));
    }

    /// The device failed: nothing that runs can go on.
    fn fail_all(&mut self, reason: &str, listener: &mut Listener<'_>) {
        while !self.scheduler.running.is_empty() {
            let at = self.scheduler.running.len() - 1;
            let slot = self.scheduler.running[at].slot;
            let lane = self.scheduler.running.remove(at).lane;
            // What the failed step left in its pages is not to be trusted.
            self.cache.forget(slot, self.recording.as_mut());
            self.scheduler.free.push(slot);
            let _ = listener(lane.id, Event::Failed(EngineError::Step(reason.to_string())));
        }
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
            self.step(&mut |id, event| {
                match event {
                    _ if id != mine => {}
                    Event::Text(text) => return emit(text),
                    Event::Finished(answer) => result = Some(Ok(answer)),
                    Event::Failed(error) => result = Some(Err(error)),
                }
                ControlFlow::Continue(())
            })?;
            if let Some(result) = result {
                return result;
            }
        }
    }
}
