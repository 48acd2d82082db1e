//! Speed: tokens a second beside the ceiling of the device for that work.

mod ceiling;
mod measured;
mod round;
mod test;

pub use measured::{BenchRow, Launches, Repetition, WarmUp};
pub(crate) use round::tokens;
pub use test::{BenchOptions, Test, TestKind};

use crate::error::EngineError;
use crate::load::Engine;
use ceiling::{bytes_per_token, ceiling};
use measured::Measured;
use pianola_plan::Ceilings;
use round::{Round, Time, rounds};
use std::time::{Duration, Instant};

/// Runs the tests; `done` is called with the speed of each repetition. Each test is played until two
/// successive rounds agree, then the repetitions that count follow one another without a pause.
/// Ceilings are measured before, between and after the tests, and the highest counts: what disturbs a
/// measurement only lowers it.
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
    let queued = engine.plan().devices[engine.plan().head_device().0].asynchronous;
    for round in rounds(options) {
        let tests = round.tests(options);
        let (warm_up, busy) = warm_up(engine, round, options)?;
        let mut measured = vec![Measured::default(); tests.len()];
        for _ in 0..options.repeat.max(1) {
            let times = round.run(engine, options)?;
            for ((measured, time), &test) in measured.iter_mut().zip(times).zip(&tests) {
                measured.add(time);
                done(test, time.speed());
            }
        }
        let rounds = tests.iter().zip(&measured).zip(busy);
        rows.extend(rounds.map(|((&test, measured), busy)| BenchRow {
            busy,
            warm_up,
            ..measured.row(test, queued)
        }));
        raise(engine)?;
    }
    engine.reset();
    for row in &mut rows {
        row.ceiling = ceiling(engine, row.test, options, &ceilings);
        row.bytes_per_token = bytes_per_token(engine, row.test);
    }
    Ok((rows, ceilings))
}

/// Plays a round until two in succession agree, and counts how long the devices compute: that costs
/// time, which no repetition shall be charged with. Returns the devices' busy share of each test in
/// the last round, where all of them can count it.
fn warm_up(
    engine: &mut Engine,
    round: Round,
    options: &BenchOptions,
) -> Result<(WarmUp, Vec<Option<f64>>), EngineError> {
    /// A GPU that was idle needs as long to reach its clock.
    const LEAST: Duration = Duration::from_millis(300);
    const MOST: Duration = Duration::from_secs(20);
    let start = Instant::now();
    let counted = engine.executor.measure_busy(true);
    let mut before: Option<Vec<Time>> = None;
    let mut rounds = 0;
    let result = loop {
        let times = match round.run(engine, options) {
            Ok(times) => times,
            Err(error) => break Err(error),
        };
        rounds += 1;
        let agreed = before.is_some_and(|before| agree(&before, &times));
        let enough = agreed && start.elapsed() >= LEAST;
        if enough || rounds >= options.warm_up || start.elapsed() >= MOST {
            break Ok((WarmUp { rounds, agreed }, times));
        }
        before = Some(times);
    };
    engine.executor.measure_busy(false);
    let devices = engine.devices().len() as f64;
    let busy = |time: &Time| counted.then(|| time.spent.busy_seconds / (time.seconds * devices));
    result.map(|(warm_up, times)| (warm_up, times.iter().map(busy).collect()))
}

/// Whether two rounds were equally fast in each of their tests.
fn agree(before: &[Time], after: &[Time]) -> bool {
    const WITHIN: f64 = 0.03;
    before.iter().zip(after).all(|(before, after)| {
        let (before, after) = (before.speed(), after.speed());
        (before - after).abs() <= WITHIN * before.max(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(speed: f64) -> Time {
        Time { tokens: 1000, seconds: 1000.0 / speed, ..Time::default() }
    }

    #[test]
    fn rounds_agree_within_three_percent_in_every_test() {
        assert!(agree(&[at(100.0), at(50.0)], &[at(102.9), at(49.0)]));
        assert!(!agree(&[at(100.0), at(50.0)], &[at(100.0), at(48.0)]));
        assert!(!agree(&[at(100.0)], &[at(104.0)]) && !agree(&[at(104.0)], &[at(100.0)]));
    }
}
