//! The workers' side of a play: stages whose jobs they claim one by one.

use crate::record::Recorded;
use crate::stage::{Play, WorkerScratch};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Progress of a stage. Each has its own cache line, because workers write it concurrently.
#[repr(align(64))]
#[derive(Default)]
pub(crate) struct Progress {
    /// Jobs that a worker has taken.
    claimed: AtomicUsize,
    /// Jobs that are done.
    done: AtomicUsize,
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
        // First stage that is not known to be done.
        let mut open = 0;
        for (index, recorded) in self.stages.iter().enumerate() {
            if recorded.barrier {
                while open < index {
                    if !self.wait(open) {
                        return;
                    }
                    open += 1;
                }
            }
            let start = self.busy.map(|_| Instant::now());
            let jobs = recorded.stage.jobs(&self.play);
            let progress = &self.progress[index];
            loop {
                if self.is_interrupted() {
                    return;
                }
                let job = progress.claimed.fetch_add(1, Ordering::Relaxed);
                if job >= jobs {
                    break;
                }
                // SAFETY: claimed by this worker alone; waits order the stages.
                unsafe { recorded.stage.run(&self.play, job, &mut scratch) };
                progress.done.fetch_add(1, Ordering::AcqRel);
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

    /// Waits until every job of a stage is done; false if the play is given up. Jobs are counted,
    /// not workers: a worker that the system has descheduled delays the others only if it has
    /// claimed a job.
    fn wait(&self, stage: usize) -> bool {
        // Longer than workers that finish together need, short enough not to starve other processes.
        const SPINS: usize = 2_000;
        let jobs = self.stages[stage].stage.jobs(&self.play);
        let mut spins = 0;
        while self.progress[stage].done.load(Ordering::Acquire) < jobs {
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
