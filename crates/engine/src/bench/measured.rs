//! The repetitions of a test, and what is said of them.

use super::round::Time;
use super::test::Test;
use pianola_plan::PlayStatistics;

/// One measured test.
#[derive(Clone, PartialEq, Debug)]
pub struct BenchRow {
    /// Which.
    pub test: Test,
    /// Mean over the repetitions that count.
    pub tokens_per_second: f64,
    /// Their standard deviation.
    pub deviation: f64,
    /// All repetitions, in order.
    pub repetitions: Vec<Repetition>,
    /// What came before them.
    pub warm_up: WarmUp,
    /// What the device's bandwidth and arithmetic allow for this work.
    pub ceiling: f64,
    /// Bytes that the kernels of a token move at least; none where plays have several tokens.
    pub bytes_per_token: Option<f64>,
    /// Microseconds of a step that the host spent on its own work instead of waiting for the device,
    /// or, where the processor is the device, outside its kernels.
    pub host_microseconds: f64,
    /// Share of the time that the devices computed ([`PlayStatistics::busy_seconds`]), on average over
    /// the devices, in the last round before the repetitions; none where a device keeps no time.
    pub busy: Option<f64>,
    /// What a step costs a queue; none on the processor.
    pub launches: Option<Launches>,
    /// Tokens guessed ahead, and those of them that were right.
    pub drafted: u64,
    /// See `drafted`.
    pub accepted: u64,
    /// Most requests that ran at once: fewer than the lanes where the KV pages hold no more.
    pub at_once: usize,
}

/// One repetition.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Repetition {
    /// Its speed.
    pub tokens_per_second: f64,
    /// It does not count: the GPU took far longer for the same work than in another repetition.
    pub left_out: bool,
}

/// The rounds before those that count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WarmUp {
    /// How many.
    pub rounds: usize,
    /// Whether the last two were equally fast.
    pub agreed: bool,
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
    /// Bytes of them.
    pub allocated_bytes: f64,
}

impl BenchRow {
    /// Share of the ceiling that was reached.
    pub fn fraction(&self) -> f64 {
        self.tokens_per_second / self.ceiling
    }

    /// Repetitions that do not count.
    pub fn left_out(&self) -> usize {
        self.repetitions.iter().filter(|repetition| repetition.left_out).count()
    }
}

/// The repetitions of a test.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    times: Vec<Time>,
}

impl Measured {
    pub fn add(&mut self, time: Time) {
        self.times.push(time);
    }

    /// Which repetitions to leave out: those much slower than the best one, if the host spent the
    /// difference waiting. The work is the same each time, so the device computed it more slowly: a
    /// card that was idle or hot runs at a fraction of its clock. A processor's repetitions all
    /// count: what slows them down is a part of that machine.
    fn left_out(&self, queued: bool) -> Vec<bool> {
        const SLOW: f64 = 0.75;
        let best = self.times.iter().max_by(|a, b| a.speed().total_cmp(&b.speed()));
        let Some(best) = best.filter(|_| queued) else { return vec![false; self.times.len()] };
        let slow = |time: &Time| {
            let lost = time.seconds - best.seconds;
            let waited = time.spent.waited_seconds - best.spent.waited_seconds;
            time.speed() < SLOW * best.speed() && waited > lost / 2.0
        };
        self.times.iter().map(slow).collect()
    }

    /// The row of a test, with ceiling, busy share and warm-up left open; `queued` says that the
    /// device works by itself from the submission on.
    pub fn row(&self, test: Test, queued: bool) -> BenchRow {
        let left_out = self.left_out(queued);
        let repetitions = self
            .times
            .iter()
            .zip(&left_out)
            .map(|(time, &left_out)| Repetition { tokens_per_second: time.speed(), left_out });
        let counted = self.times.iter().zip(&left_out).filter(|(_, left_out)| !**left_out);
        let counted: Vec<&Time> = counted.map(|(time, _)| time).collect();
        let count = counted.len();
        let mean = counted.iter().map(|time| time.speed()).sum::<f64>() / count as f64;
        let squares = counted.iter().map(|time| (time.speed() - mean).powi(2)).sum::<f64>();
        let wall: f64 = counted.iter().map(|time| time.seconds).sum();
        let mut spent = PlayStatistics::default();
        counted.iter().for_each(|time| spent += time.spent);
        let each = |count: u64| count as f64 / spent.plays as f64;
        BenchRow {
            test,
            tokens_per_second: mean,
            deviation: (squares / (count.max(2) - 1) as f64).sqrt(),
            repetitions: repetitions.collect(),
            warm_up: WarmUp::default(),
            ceiling: 0.0,
            bytes_per_token: None,
            host_microseconds: 1e6 * (wall - spent.waited_seconds) / spent.plays as f64,
            busy: None,
            launches: queued.then(|| Launches {
                submits: each(spent.submits),
                dispatches: each(spent.dispatches),
                allocations: each(spent.allocations),
                allocated_bytes: each(spent.allocated_bytes),
            }),
            drafted: self.times.iter().map(|time| time.drafted).sum(),
            accepted: self.times.iter().map(|time| time.accepted).sum(),
            at_once: self.times.iter().map(|time| time.at_once).max().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::TestKind;

    const TEST: Test = Test { kind: TestKind::Generate, tokens: 100, lanes: None, depth: 0 };

    /// 100 plays in `seconds`, of which the host waited for `waited`.
    fn time(seconds: f64, waited: f64) -> Time {
        let spent = PlayStatistics {
            plays: 100,
            seconds,
            waited_seconds: waited,
            ..PlayStatistics::default()
        };
        Time { tokens: 100, seconds, spent, ..Time::default() }
    }

    fn row(times: &[Time], queued: bool) -> BenchRow {
        Measured { times: times.to_vec() }.row(TEST, queued)
    }

    #[test]
    fn a_card_at_a_fraction_of_its_clock_is_left_out_of_the_mean() {
        let times = [time(1.0, 0.9), time(3.0, 2.9), time(1.0, 0.9)];
        let left_out = |row: &BenchRow| -> Vec<bool> {
            row.repetitions.iter().map(|repetition| repetition.left_out).collect()
        };
        let gpu = row(&times, true);
        assert_eq!(left_out(&gpu), [false, true, false]);
        assert_eq!((gpu.tokens_per_second, gpu.deviation, gpu.left_out()), (100.0, 0.0, 1));
        assert!((gpu.repetitions[1].tokens_per_second - 100.0 / 3.0).abs() < 1e-9);
        // A processor's all count, and so does what the host lost.
        assert_eq!(row(&times, false).left_out(), 0);
        let host = row(&[time(1.0, 0.9), time(3.0, 0.9), time(1.0, 0.9)], true);
        assert_eq!(host.left_out(), 0);
        assert!(host.tokens_per_second < 80.0 && host.deviation > 30.0);
        // Somewhat slower is noise.
        assert_eq!(row(&[time(1.0, 0.9), time(1.3, 1.2)], true).left_out(), 0);
    }

    #[test]
    fn host_time_is_what_was_not_waited_for() {
        let row = row(&[time(1.0, 0.9), time(1.0, 0.7)], true);
        assert!((row.host_microseconds - 2000.0).abs() < 1e-6, "{}", row.host_microseconds);
    }
}
