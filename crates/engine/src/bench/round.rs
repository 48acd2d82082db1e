//! Runs the tests, and takes the time.

use super::test::{BenchOptions, Test, TestKind, start_of_generation};
use crate::error::EngineError;
use crate::load::Engine;
use crate::request::{Event, Request, RequestId};
use crate::scheduler::EngineCounters;
use crate::sequence::LogitRows;
use pianola_plan::PlayStatistics;
use std::ops::{ControlFlow, Range};
use std::time::Instant;

/// A run that measures one test, or a prompt and a generation together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    work: RoundWork,
    /// Tokens of context before it.
    depth: usize,
}

#[derive(Clone, Copy, Debug)]
enum RoundWork {
    Prompt,
    Generate,
    Lanes(usize),
}

pub(super) fn rounds(options: &BenchOptions) -> Vec<Round> {
    let mut works: Vec<RoundWork> = options.lanes.iter().copied().map(RoundWork::Lanes).collect();
    if works.is_empty() {
        works.extend((options.prompt > 0).then_some(RoundWork::Prompt));
        works.extend((options.generate > 0).then_some(RoundWork::Generate));
    }
    let all = options.depths.iter();
    all.flat_map(|&depth| works.iter().map(move |&work| Round { work, depth })).collect()
}

/// One repetition of a test.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Time {
    pub tokens: usize,
    /// Of prompts, tokens that were there already.
    pub cached: usize,
    pub seconds: f64,
    pub spent: PlayStatistics,
    pub drafted: u64,
    pub accepted: u64,
    pub at_once: usize,
}

impl Time {
    /// This and what follows it, `tokens` in all: more than both count, where some were generated beside prompts.
    fn and(self, next: Time, tokens: usize) -> Time {
        let mut spent = self.spent;
        spent += next.spent;
        Time {
            tokens,
            cached: self.cached + next.cached,
            seconds: self.seconds + next.seconds,
            spent,
            drafted: self.drafted + next.drafted,
            accepted: self.accepted + next.accepted,
            at_once: self.at_once.max(next.at_once),
        }
    }

    /// Tokens a second.
    pub fn speed(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

impl Round {
    /// The tests that a run is the measurement of.
    pub fn tests(self, options: &BenchOptions) -> Vec<Test> {
        let lanes = match self.work {
            RoundWork::Lanes(lanes) => Some(lanes),
            RoundWork::Prompt | RoundWork::Generate => None,
        };
        let mut tests = Vec::new();
        let mut add = |kind: TestKind, tokens: usize| {
            if tokens > 0 {
                tests.push(Test { kind, tokens, lanes, depth: self.depth });
            }
        };
        if !matches!(self.work, RoundWork::Generate) {
            add(TestKind::Prompt, options.prompt);
        }
        if !matches!(self.work, RoundWork::Prompt) {
            add(TestKind::Generate, options.generate);
        }
        if lanes.is_some() && options.prompt > 0 && options.generate > 0 {
            let kind = TestKind::Both { generate: options.generate };
            tests.push(Test { kind, tokens: options.prompt, lanes, depth: self.depth });
        }
        tests
    }

    pub fn run(
        self,
        engine: &mut Engine,
        options: &BenchOptions,
    ) -> Result<Vec<Time>, EngineError> {
        engine.reset();
        let depth = self.depth;
        match self.work {
            RoundWork::Prompt => {
                let all = tokens(engine.config().vocabulary, 0, 0..depth + options.prompt);
                let (before, prompt) = all.split_at(depth);
                // With logits, so that the devices are done with it.
                engine.feed(before, usize::MAX, LogitRows::Last, &mut |_, _| ())?;
                let watch = Watch::start(engine);
                engine.feed(prompt, usize::MAX, LogitRows::Last, &mut |_, _| ())?;
                Ok(vec![watch.stop(engine, prompt.len())])
            }
            RoundWork::Generate => {
                let prompt = |_| start_of_generation(depth);
                let times = run_lanes(engine, 1, &prompt, options.generate)?;
                Ok(vec![times[1]])
            }
            RoundWork::Lanes(lanes) => {
                if depth > 0 && options.prompt > 0 {
                    // The pages stay, and the prompts go on from them.
                    run_lanes(engine, lanes, &|_| depth, 0)?;
                }
                let prompt = |lane: usize| options.prompt_of(lane, depth);
                let [mut prompts, generation] =
                    run_lanes(engine, lanes, &prompt, options.generate)?;
                prompts.tokens -= prompts.cached.min(lanes * depth);
                let tokens = prompts.tokens + lanes * options.generate;
                let both = prompts.and(generation, tokens);
                let (prompted, generates) = (options.prompt > 0, options.generate > 0);
                let wanted = [prompted, generates, prompted && generates];
                let times = [prompts, generation, both].into_iter().zip(wanted);
                Ok(times.filter(|time| time.1).map(|time| time.0).collect())
            }
        }
    }
}

/// A stretch of time, and what the device did in it.
struct Watch {
    start: Instant,
    before: PlayStatistics,
    counters: EngineCounters,
}

impl Watch {
    fn start(engine: &Engine) -> Watch {
        let (before, counters) = (engine.executor.statistics(), engine.counters());
        Watch { before, counters, start: Instant::now() }
    }

    fn stop(&self, engine: &Engine, tokens: usize) -> Time {
        let seconds = self.start.elapsed().as_secs_f64();
        let spent = engine.executor.statistics() - self.before;
        let (before, after) = (self.counters, engine.counters());
        let drafted = after.drafted_tokens - before.drafted_tokens;
        let accepted = after.accepted_tokens - before.accepted_tokens;
        let cached = (after.cached_tokens - before.cached_tokens) as usize;
        Time { tokens, cached, seconds, spent, drafted, accepted, at_once: 1 }
    }
}

/// Tokens at these positions that look like text to the engine: spread over the vocabulary, never
/// the same twice in a row, and others for every lane.
pub(crate) fn tokens(vocabulary: usize, lane: usize, positions: Range<usize>) -> Vec<u32> {
    let token = |at: usize| ((lane * 104_729 + at * 7919 + 13) % vocabulary) as u32;
    positions.map(token).collect()
}

/// The prompts of `lanes` requests until each has its first token; then `generate` more of each.
fn run_lanes(
    engine: &mut Engine,
    lanes: usize,
    prompt: &dyn Fn(usize) -> usize,
    generate: usize,
) -> Result<[Time; 2], EngineError> {
    let mut prompted = 0;
    let watch = Watch::start(engine);
    for lane in 0..lanes {
        let prompt = tokens(engine.config().vocabulary, lane, 0..prompt(lane));
        prompted += prompt.len();
        engine.submit(Request {
            max_tokens: Some(generate + 1),
            ignore_end: true,
            ..Request::new(prompt)
        })?;
    }
    let mut failure = None;
    let mut listen = |_: RequestId, event: Event<'_>| {
        if let Event::Failed(error) = event {
            failure = Some(error);
        }
        ControlFlow::Continue(())
    };
    let mut at_once = 0;
    while engine.is_busy() && !engine.all_generate() {
        engine.step_with(&mut listen)?;
        at_once = at_once.max(engine.queue_lengths().1);
    }
    let prompts = Time { at_once, ..watch.stop(engine, prompted) };
    let before = engine.counters().generated_tokens;
    let watch = Watch::start(engine);
    while engine.is_busy() {
        engine.step_with(&mut listen)?;
        at_once = at_once.max(engine.queue_lengths().1);
    }
    let generated = (engine.counters().generated_tokens - before) as usize;
    let generation = Time { at_once, ..watch.stop(engine, generated) };
    match failure {
        Some(error) => Err(error),
        None => Ok([prompts, generation]),
    }
}
