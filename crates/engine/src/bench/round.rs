//! Runs the tests, and takes the time.

use super::{BenchOptions, Test};
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
pub(super) enum Round {
    Prompt,
    Generate,
    Lanes(usize),
}

pub(super) fn rounds(options: &BenchOptions) -> Vec<Round> {
    if !options.lanes.is_empty() {
        return options.lanes.iter().map(|&lanes| Round::Lanes(lanes)).collect();
    }
    let prompt = (options.prompt > 0).then_some(Round::Prompt);
    let generate = (options.generate > 0).then_some(Round::Generate);
    prompt.into_iter().chain(generate).collect()
}

/// One repetition of a test.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Time {
    pub tokens: usize,
    pub seconds: f64,
    pub spent: PlayStatistics,
    pub drafted: u64,
    pub accepted: u64,
    pub at_once: usize,
}

impl Round {
    /// The tests that a run is the measurement of.
    pub fn tests(self, options: &BenchOptions) -> Vec<Test> {
        let BenchOptions { prompt, generate, .. } = *options;
        match self {
            Round::Prompt => vec![Test::Prompt(prompt)],
            Round::Generate => vec![Test::Generate(generate)],
            Round::Lanes(lanes) => {
                let prompts = Test::Prompts { tokens: prompt, lanes };
                let generates = Test::Lanes { tokens: generate, lanes };
                [(prompts, prompt), (generates, generate)]
                    .into_iter()
                    .filter(|(_, tokens)| *tokens > 0)
                    .map(|(test, _)| test)
                    .collect()
            }
        }
    }

    pub fn run(
        self,
        engine: &mut Engine,
        options: &BenchOptions,
    ) -> Result<Vec<Time>, EngineError> {
        engine.reset();
        match self {
            Round::Prompt => {
                let tokens = tokens(engine.config().vocabulary, 0, 0..options.prompt);
                let watch = Watch::start(engine);
                engine.feed(&tokens, usize::MAX, LogitRows::Last, &mut |_, _| ())?;
                Ok(vec![watch.stop(engine, tokens.len())])
            }
            Round::Generate => {
                let times = run_lanes(engine, 1, &|_| 1, options.generate)?;
                Ok(vec![times[1]])
            }
            Round::Lanes(lanes) => {
                let prompt = |lane: usize| options.prompt_of(lane);
                let times = run_lanes(engine, lanes, &prompt, options.generate)?;
                let wanted = [options.prompt > 0, options.generate > 0];
                Ok(times.into_iter().zip(wanted).filter(|p| p.1).map(|p| p.0).collect())
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
        Time { tokens, seconds, spent, drafted, accepted, at_once: 1 }
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
