//! Speed: tokens a second beside the ceiling of the device for that work.

mod ceiling;
mod round;

pub(crate) use round::tokens;

use crate::error::EngineError;
use crate::load::Engine;
use ceiling::ceiling;
use pianola_plan::{Ceilings, PlayStatistics};
use round::{Time, rounds};

/// What to measure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BenchOptions {
    /// Tokens of a prompt; 0 leaves its test out.
    pub prompt: usize,
    /// Tokens to generate; 0 leaves that test out.
    pub generate: usize,
    /// Repetitions.
    pub repeat: usize,
    /// Numbers of requests at once: each a prompt, then its generation. Empty: a prompt, and a
    /// generation from an empty context.
    pub lanes: Vec<usize>,
    /// Prompts of a half to twice the length instead of all alike.
    pub mixed: bool,
}

impl BenchOptions {
    /// Tokens of context that the tests need.
    pub fn context(&self) -> usize {
        match self.lanes.iter().max() {
            // Behind the first token, which is the prompt.
            None => self.prompt.max(self.generate + 1),
            Some(&lanes) => {
                let longest = (0..lanes).map(|lane| self.prompt_of(lane)).max().unwrap_or(0);
                longest.max(1) + self.generate
            }
        }
    }

    /// Length of a lane's prompt.
    fn prompt_of(&self, lane: usize) -> usize {
        /// In fourths of the length asked for: 4 on average.
        const MIXED: [usize; 5] = [2, 8, 3, 4, 3];
        match self.mixed {
            true => (self.prompt * MIXED[lane % MIXED.len()] / 4).max(1),
            false => self.prompt.max(1),
        }
    }
}

/// A test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    /// Processing a prompt of this many tokens.
    Prompt(usize),
    /// Generating this many tokens one by one, from an empty context.
    Generate(usize),
    /// Processing prompts for several requests at once.
    Prompts {
        /// Tokens of each, on average.
        tokens: usize,
        /// Requests.
        lanes: usize,
    },
    /// Generating tokens for several requests at once, after their prompts.
    Lanes {
        /// Tokens of each.
        tokens: usize,
        /// Requests.
        lanes: usize,
    },
}

impl Test {
    /// Requests at once.
    pub fn lanes(self) -> usize {
        match self {
            Test::Prompt(_) | Test::Generate(_) => 1,
            Test::Prompts { lanes, .. } | Test::Lanes { lanes, .. } => lanes,
        }
    }
}

impl std::fmt::Display for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Test::Prompt(tokens) => write!(f, "pp{tokens}"),
            Test::Generate(tokens) => write!(f, "tg{tokens}"),
            Test::Prompts { tokens, lanes } => write!(f, "pp{tokens} x {lanes}"),
            Test::Lanes { tokens, lanes } => write!(f, "tg{tokens} x {lanes}"),
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
    /// Tokens guessed ahead, and those of them that were right.
    pub drafted: u64,
    /// See `drafted`.
    pub accepted: u64,
    /// Most requests that ran at once: fewer than the lanes where the KV pages hold no more.
    pub at_once: usize,
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

/// Runs the tests; `done` is called with the speed of each repetition. Ceilings are measured before,
/// between and after them, and the highest counts: what disturbs a measurement only lowers it.
pub fn bench(
    engine: &mut Engine,
    options: &BenchOptions,
    measure: &mut dyn FnMut(&Engine) -> Option<Vec<Ceilings>>,
    done: &mut dyn FnMut(Test, f64),
) -> Result<(Vec<BenchRow>, Vec<Ceilings>), EngineError> {
    let needed = options.context();
    if needed > engine.context() {
        let (context, model) = (engine.context(), engine.config().context);
        return Err(EngineError::ContextLength { needed, context, model });
    }
    let mut rows = Vec::new();
    let least = Ceilings { bytes_per_second: 1.0, operations_per_second: 1.0 };
    let mut ceilings = vec![least; engine.devices().len()];
    let mut raise = |engine: &Engine| match measure(engine) {
        None => Err(EngineError::NoCeilings),
        Some(found) => {
            ceilings.iter_mut().zip(found).for_each(|(known, found)| known.raise(found));
            Ok(())
        }
    };
    raise(engine)?;
    engine.executor.measure_busy(true);
    for round in rounds(options) {
        round.run(engine, options)?;
        let tests = round.tests(options);
        let mut measured = vec![Measured::default(); tests.len()];
        for _ in 0..options.repeat.max(1) {
            let times = round.run(engine, options)?;
            for ((measured, time), &test) in measured.iter_mut().zip(times).zip(&tests) {
                measured.add(time);
                done(test, time.tokens as f64 / time.seconds);
            }
        }
        let queued = engine.plan().devices[engine.plan().head_device().0].asynchronous;
        rows.extend(
            tests.iter().zip(&measured).map(|(&test, measured)| measured.row(test, queued)),
        );
        raise(engine)?;
    }
    engine.executor.measure_busy(false);
    engine.reset();
    for row in &mut rows {
        row.ceiling = ceiling(engine, row.test, options, &ceilings);
    }
    Ok((rows, ceilings))
}

/// The repetitions of a test.
#[derive(Clone, Debug, Default)]
struct Measured {
    speeds: Vec<f64>,
    wall: f64,
    spent: PlayStatistics,
    drafted: u64,
    accepted: u64,
    at_once: usize,
}

impl Measured {
    fn add(&mut self, time: Time) {
        self.speeds.push(time.tokens as f64 / time.seconds);
        self.wall += time.seconds;
        self.drafted += time.drafted;
        self.accepted += time.accepted;
        self.at_once = self.at_once.max(time.at_once);
        self.spent += time.spent;
    }

    /// The row of a test, its ceiling left open; `queued` says that the device works by itself from
    /// the submission on.
    fn row(&self, test: Test, queued: bool) -> BenchRow {
        let count = self.speeds.len();
        let mean = self.speeds.iter().sum::<f64>() / count as f64;
        let squares = self.speeds.iter().map(|speed| (speed - mean).powi(2)).sum::<f64>();
        let PlayStatistics { plays, seconds, busy_seconds, submits, dispatches, allocations } =
            self.spent;
        let plays = plays as f64;
        let device = if queued { busy_seconds } else { seconds };
        let each = |count: u64| count as f64 / plays;
        BenchRow {
            test,
            tokens_per_second: mean,
            deviation: (squares / (count.max(2) - 1) as f64).sqrt(),
            ceiling: 0.0,
            host_microseconds: 1e6 * (self.wall - device) / plays,
            busy: busy_seconds / self.wall,
            launches: queued.then(|| Launches {
                submits: each(submits),
                dispatches: each(dispatches),
                allocations: each(allocations),
            }),
            drafted: self.drafted,
            accepted: self.accepted,
            at_once: self.at_once,
        }
    }
}
