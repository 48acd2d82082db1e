//! The workers' side of a play: stages whose jobs they claim one by one.

use crate::pack::LINE;
use crate::record::Recorded;
use crate::simd::kernels::Kernels;
use crate::stage::{Play, Stage, WorkerScratch};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// A count with a cache line of its own, because workers write it concurrently.
#[repr(align(64))]
#[derive(Default)]
struct Count(AtomicUsize);

/// Progress of a stage.
pub(crate) struct Progress {
    /// Jobs of each range that a worker has taken.
    claimed: Box<[Count]>,
    /// Jobs that are done.
    done: Count,
}

impl Progress {
    /// For at most `ranges` ranges.
    pub fn new(ranges: usize) -> Progress {
        Progress {
            claimed: (0..ranges).map(|_| Count::default()).collect(),
            done: Count::default(),
        }
    }

    pub fn reset(&mut self) {
        self.claimed.iter_mut().for_each(|count| *count.0.get_mut() = 0);
        *self.done.0.get_mut() = 0;
    }

    /// Takes a job for `worker`: of the range it begins with, then of the others. A range is a run of
    /// successive jobs, so that a worker reads the weights of a product as one long stream.
    fn claim(&self, worker: usize, jobs: usize, ranges: usize) -> Option<usize> {
        for turn in 0..ranges {
            let range = (worker + turn) % ranges;
            let (first, end) = (first_job(range, jobs, ranges), first_job(range + 1, jobs, ranges));
            let claimed = &self.claimed[range].0;
            if first + claimed.load(Ordering::Relaxed) < end {
                let job = first + claimed.fetch_add(1, Ordering::Relaxed);
                if job < end {
                    return Some(job);
                }
            }
        }
        None
    }
}

/// First job of a range.
fn first_job(range: usize, jobs: usize, ranges: usize) -> usize {
    range * jobs / ranges
}

/// Weights that a worker will read, which it asks for while it waits.
struct Ahead<'a> {
    /// The stage that reads them.
    stage: usize,
    bytes: &'a [u8],
}

impl Ahead<'_> {
    /// Bytes that stay in a core's own cache beside what else it reads.
    const MOST: usize = 256 << 10;
    /// Cache lines between two looks at what is waited for.
    const LINES: usize = 8;

    /// Asks for the next few lines; false if there are none.
    fn fetch(&mut self, kernels: &Kernels) -> bool {
        let Some((next, rest)) = self.bytes.split_at_checked(Self::LINES * LINE) else {
            return false;
        };
        // SAFETY: a prefetch reads nothing.
        unsafe { (kernels.prefetch)(next.as_ptr(), Self::LINES) };
        self.bytes = rest;
        true
    }
}

/// What the workers of one play share.
pub(crate) struct Work<'a> {
    pub play: Play<'a>,
    pub stages: &'a [Recorded],
    pub progress: &'a [Progress],
    pub scratch: &'a [Mutex<WorkerScratch>],
    /// Nanoseconds that workers were busy, where they are counted.
    pub busy: Option<&'a AtomicU64>,
    /// A worker panicked: its job will never be done, so the others must not wait for it.
    pub failed: AtomicBool,
    /// Set by the user of the recording to give the play up.
    pub interrupt: Option<&'a AtomicBool>,
    /// A worker has seen that: jobs may stay undone, so nobody waits for them any more. Apart from
    /// the flag itself, which may be cleared while others still wait.
    pub interrupted: AtomicBool,
}

/// Tells the other workers if this one unwinds.
struct Alarm<'a>(&'a AtomicBool);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::SeqCst);
        }
    }
}

// SAFETY: the stages' raw pointers lead to memory that the workers divide by jobs: a job is
// claimed once, jobs of a stage write disjoint bytes, and barriers stand where stages conflict.
unsafe impl Sync for Work<'_> {}

impl Work<'_> {
    /// What one worker does.
    pub fn run(&self, worker: usize) {
        let mut scratch =
            self.scratch[worker].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let _alarm = Alarm(&self.failed);
        let mut busy = 0;
        let mut ahead = Ahead { stage: 0, bytes: &[] };
        // First stage that is not known to be done.
        let mut open = 0;
        for (index, recorded) in self.stages.iter().enumerate() {
            if recorded.barrier {
                while open < index {
                    if !self.is_done(open) {
                        self.look_ahead(worker, index, &mut ahead);
                        if !self.wait(open, &mut ahead) {
                            return;
                        }
                    }
                    open += 1;
                }
            }
            let start = self.busy.map(|_| Instant::now());
            let jobs = recorded.stage.jobs(&self.play);
            let ranges = recorded.stage.ranges(&self.play).min(jobs.max(1));
            let progress = &self.progress[index];
            loop {
                if self.is_interrupted() {
                    return;
                }
                let Some(job) = progress.claim(worker, jobs, ranges) else { break };
                // SAFETY: claimed by this worker alone; waits order the stages.
                unsafe { recorded.stage.run(&self.play, job, &mut scratch) };
                progress.done.0.fetch_add(1, Ordering::AcqRel);
            }
            busy += start.map_or(0, |start| start.elapsed().as_nanos() as u64);
        }
        if let Some(total) = self.busy {
            total.fetch_add(busy, Ordering::Relaxed);
        }
    }

    /// Whether the play is given up.
    fn is_interrupted(&self) -> bool {
        let Some(flag) = self.interrupt else { return false };
        if flag.load(Ordering::Relaxed) {
            self.interrupted.store(true, Ordering::Relaxed);
        }
        self.interrupted.load(Ordering::Relaxed)
    }

    fn is_done(&self, stage: usize) -> bool {
        let jobs = self.stages[stage].stage.jobs(&self.play);
        self.progress[stage].done.0.load(Ordering::Acquire) >= jobs
    }

    /// Turns to the weights that a worker begins with in the next product from stage `from` on.
    fn look_ahead<'a>(&'a self, worker: usize, from: usize, ahead: &mut Ahead<'a>) {
        let next = self.stages[from..].iter().position(|it| matches!(it.stage, Stage::Product(_)));
        let Some(stage) = next.map(|next| from + next).filter(|stage| *stage != ahead.stage) else {
            return;
        };
        let Stage::Product(product) = &self.stages[stage].stage else { return };
        let (jobs, ranges) = (product.jobs(&self.play), product.ranges(&self.play));
        let job = first_job(worker, jobs, ranges);
        let bytes = product.first_bytes(&self.play, job).unwrap_or_default();
        *ahead = Ahead { stage, bytes: &bytes[..bytes.len().min(Ahead::MOST)] };
    }

    /// Waits until every job of a stage is done; false if the play is given up. Jobs are counted,
    /// not workers: a worker that the system has descheduled delays the others only if it has
    /// claimed a job. Meanwhile weights are fetched.
    fn wait(&self, stage: usize, ahead: &mut Ahead<'_>) -> bool {
        // Longer than workers that finish together need, short enough not to starve other processes.
        const SPINS: usize = 2_000;
        let jobs = self.stages[stage].stage.jobs(&self.play);
        let mut spins = 0;
        while self.progress[stage].done.0.load(Ordering::Acquire) < jobs {
            if ahead.fetch(self.play.kernels) {
                continue;
            }
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                assert!(!self.failed.load(Ordering::SeqCst), "another worker panicked");
                if self.is_interrupted() {
                    return false;
                }
                std::thread::yield_now();
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_claimed_once_and_a_workers_own_range_first() {
        for (jobs, ranges) in [(12, 2), (7, 3), (5, 5), (3, 1), (0, 1)] {
            let mut progress = Progress::new(5);
            for _ in 0..2 {
                let mut claimed: Vec<usize> =
                    std::iter::from_fn(|| progress.claim(ranges - 1, jobs, ranges)).collect();
                let own = first_job(ranges - 1, jobs, ranges)..jobs;
                assert!(claimed.iter().copied().take(own.len()).eq(own));
                claimed.sort_unstable();
                assert!(claimed.into_iter().eq(0..jobs));
                progress.reset();
            }
        }
    }
}
