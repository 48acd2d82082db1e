//! Speed: tokens a second beside the ceiling of the device for that work.

use crate::decode::Pace;
use crate::error::EngineError;
use crate::load::Engine;
use crate::sampler::Sampling;
use crate::sequence::Wanted;
use pianola_plan::{Ceilings, DeviceKind, PlanOp};
use std::ops::Range;
use std::time::Instant;

/// What to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BenchOptions {
    /// Tokens of the prompt test; 0 leaves it out.
    pub prompt: usize,
    /// Tokens of the generation test; 0 leaves it out.
    pub generate: usize,
    /// Repetitions.
    pub repeat: usize,
    /// Tokens that a GPU chooses in one submission.
    pub tokens_per_submit: usize,
}

/// A test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    /// Processing a prompt of so many tokens.
    Prompt(usize),
    /// Generating so many tokens one by one, from an empty context.
    Generate(usize),
}

impl std::fmt::Display for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Test::Prompt(tokens) => write!(f, "pp{tokens}"),
            Test::Generate(tokens) => write!(f, "tg{tokens}"),
        }
    }
}

/// One measured test.
#[derive(Clone, PartialEq, Debug)]
pub struct BenchRow {
    /// Which.
    pub test: Test,
    /// Mean over the repetitions.
    pub tokens_per_second: f64,
    /// Their standard deviation.
    pub deviation: f64,
    /// What the device's bandwidth and arithmetic allow for this work.
    pub ceiling: f64,
    /// Host time a step outside the device's own work, in microseconds.
    pub host_microseconds: f64,
    /// Share of the time that the device computed rather than waited.
    pub busy: f64,
    /// Submissions, kernels launched and device allocations a step; none on the processor.
    pub launches: Option<Launches>,
}

/// What a step costs a queue.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Launches {
    /// Submissions a step.
    pub submits: f64,
    /// Kernels launched a step.
    pub dispatches: f64,
    /// Device allocations a step.
    pub allocations: f64,
}

impl BenchRow {
    /// Share of the ceiling that was reached.
    pub fn fraction(&self) -> f64 {
        self.tokens_per_second / self.ceiling
    }
}

/// Runs the tests; `done` hears of each repetition's speed. Ceilings are measured before, between
/// and after them, and the highest stands: what disturbs a measurement only ever lowers it.
pub fn bench(
    engine: &mut Engine,
    options: BenchOptions,
    measure: &mut dyn FnMut() -> Option<Ceilings>,
    done: &mut dyn FnMut(Test, f64),
) -> Result<(Vec<BenchRow>, Ceilings), EngineError> {
    let longest = options.prompt.max(options.generate);
    if longest > engine.context() {
        let (context, model) = (engine.context(), engine.config().context);
        return Err(EngineError::ContextLength { needed: longest, context, model });
    }
    let prompt = (options.prompt > 0).then_some(Test::Prompt(options.prompt));
    let generate = (options.generate > 0).then_some(Test::Generate(options.generate));
    let mut rows = Vec::new();
    let mut ceilings = Ceilings { bytes_per_second: 1.0, operations_per_second: 1.0 };
    let mut raise = || match measure() {
        None => Err(EngineError::Option(
            "the ceilings of this processor cannot be measured".to_string(),
        )),
        Some(found) => {
            ceilings.bytes_per_second = ceilings.bytes_per_second.max(found.bytes_per_second);
            ceilings.operations_per_second =
                ceilings.operations_per_second.max(found.operations_per_second);
            Ok(())
        }
    };
    raise()?;
    engine.recording.measure_busy(true);
    for test in [prompt, generate].into_iter().flatten() {
        run(engine, test, options.tokens_per_submit)?;
        let before = engine.recording.statistics();
        let mut speeds = Vec::with_capacity(options.repeat);
        let mut wall = 0.0;
        for _ in 0..options.repeat.max(1) {
            let (seconds, tokens) = run(engine, test, options.tokens_per_submit)?;
            wall += seconds;
            speeds.push(tokens as f64 / seconds);
            done(test, tokens as f64 / seconds);
        }
        let after = engine.recording.statistics();
        let plays = (after.plays - before.plays) as f64;
        let playing = after.seconds - before.seconds;
        let mean = speeds.iter().sum::<f64>() / speeds.len() as f64;
        let variance = speeds.iter().map(|speed| (speed - mean).powi(2)).sum::<f64>()
            / (speeds.len().max(2) - 1) as f64;
        let busy = after.busy_seconds - before.busy_seconds;
        let queued = engine.device().kind() == DeviceKind::Vulkan;
        // A queue works by itself from the submission on; workers are the host.
        let device = if queued { busy } else { playing };
        let each = |before: u64, after: u64| (after - before) as f64 / plays;
        rows.push(BenchRow {
            test,
            tokens_per_second: mean,
            deviation: variance.sqrt(),
            ceiling: 0.0,
            host_microseconds: 1e6 * (wall - device) / plays,
            busy: busy / playing,
            launches: queued.then(|| Launches {
                submits: each(before.submits, after.submits),
                dispatches: each(before.dispatches, after.dispatches),
                allocations: each(before.allocations, after.allocations),
            }),
        });
        raise()?;
    }
    engine.recording.measure_busy(false);
    engine.reset();
    for row in &mut rows {
        row.ceiling = ceiling(engine, row.test, ceilings);
    }
    Ok((rows, ceilings))
}

/// Tokens that look like text to the engine: spread over the vocabulary, never the same twice in
/// a row.
fn token(index: usize, vocabulary: usize) -> u32 {
    ((index * 7919 + 13) % vocabulary) as u32
}

fn run(
    engine: &mut Engine,
    test: Test,
    tokens_per_submit: usize,
) -> Result<(f64, usize), EngineError> {
    engine.reset();
    let vocabulary = engine.config().vocabulary;
    let start = Instant::now();
    // Chosen on the device where it can.
    let greedy = Sampling::greedy();
    let on_device = engine.cannot_choose(&greedy, &[]).is_none();
    let count = match test {
        Test::Prompt(count) => {
            let tokens: Vec<u32> = (0..count).map(|index| token(index, vocabulary)).collect();
            engine.feed(&tokens, usize::MAX, Wanted::Last, &mut |_, _| ())?;
            count
        }
        Test::Generate(count) if on_device => {
            let mut token = token(0, vocabulary);
            let mut done = 0;
            let mut pace = Pace::new(Some(tokens_per_submit), engine.recording.most_plays());
            while done < count {
                let begun = Instant::now();
                let each = pace.tokens(count - done);
                let chosen = engine.feed_choosing(token, each, &greedy, &[])?;
                pace.took(chosen.len(), begun.elapsed().as_secs_f64());
                done += chosen.len();
                token = chosen.last().copied().unwrap_or(token);
            }
            count
        }
        Test::Generate(count) => {
            for index in 0..count {
                engine.feed(&[token(index, vocabulary)], 1, Wanted::Last, &mut |_, _| ())?;
            }
            count
        }
    };
    Ok((start.elapsed().as_secs_f64(), count))
}

/// Tokens a second if every play took exactly the time its bytes or operations need.
fn ceiling(engine: &Engine, test: Test, ceilings: Ceilings) -> f64 {
    match test {
        Test::Prompt(count) => engine.ceiling(0..count, engine.plan().options.max_rows, ceilings),
        Test::Generate(count) => engine.ceiling(0..count, 1, ceilings),
    }
}

impl Engine {
    /// Tokens a second for positions `tokens` of a sequence, `chunk` at a time, if every play took
    /// exactly the time that its bytes or operations need.
    pub fn ceiling(&self, tokens: Range<usize>, chunk: usize, ceilings: Ceilings) -> f64 {
        let count = tokens.len();
        let end = tokens.end;
        let host = self.host_ceilings();
        let seconds = |start: usize| -> f64 {
            let rows = chunk.min(end - start);
            let work = |op: &PlanOp| op.cost.work(rows, 1, start + rows);
            let on = |op: &PlanOp| match host {
                Some(host) if op.device == DeviceKind::Cpu => host,
                _ => ceilings,
            };
            self.plan().ops.iter().map(|op| on(op).seconds(work(op))).sum()
        };
        count as f64 / tokens.step_by(chunk).map(seconds).sum::<f64>()
    }
}
