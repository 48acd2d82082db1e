//! Workers that stay: they spin briefly for the next play, then sleep.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Rounds of spinning before a worker lets other threads run between two looks.
const SPINS: usize = 2_000;

/// How long a worker looks before it sleeps: longer than the gap between two plays, far shorter than a
/// person's pause.
const PATIENCE: Duration = Duration::from_micros(500);

/// A number that only grows; waiting for it to pass a value spins first, then sleeps.
struct Gate {
    value: AtomicUsize,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Gate {
    fn new() -> Gate {
        Gate {
            value: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    fn open(&self) {
        self.value.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = self.lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            self.wake.notify_all();
        }
    }

    /// Waits until the value differs from `seen`.
    fn wait(&self, seen: usize) {
        for _ in 0..SPINS {
            if self.value.load(Ordering::Acquire) != seen {
                return;
            }
            std::hint::spin_loop();
        }
        // A server's threads share the cores, and what the last play brought is theirs to pass on.
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if self.value.load(Ordering::Acquire) != seen {
                return;
            }
            std::thread::yield_now();
        }
        let mut guard = self.lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.value.load(Ordering::SeqCst) == seen {
            guard = self.wake.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Lets all workers meet.
struct Barrier {
    workers: usize,
    arrived: AtomicUsize,
    gate: Gate,
}

impl Barrier {
    fn new(workers: usize) -> Barrier {
        Barrier { workers, arrived: AtomicUsize::new(0), gate: Gate::new() }
    }

    /// Returns when all have called it.
    fn meet(&self) {
        let seen = self.gate.value.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.workers {
            self.arrived.store(0, Ordering::Relaxed);
            self.gate.open();
        } else {
            self.gate.wait(seen);
        }
    }
}

type Job = dyn Fn(usize) + Sync + 'static;

struct Shared {
    /// The job of this round. Valid from `start` opening until every worker has reported in
    /// `finished`; see [`Pool::run`].
    job: Mutex<Option<*const Job>>,
    start: Gate,
    finished: Barrier,
    stop: AtomicBool,
    panicked: AtomicBool,
}

// SAFETY: the raw pointer in `job` is only followed between `start` and `finished`, while
// `Pool::run` keeps what it points to alive.
unsafe impl Send for Shared {}
// SAFETY: as above; access is under the mutex.
unsafe impl Sync for Shared {}

/// A fixed number of workers, the calling thread being one of them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool of `workers` (at least one).
    pub fn new(workers: usize) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared {
            job: Mutex::new(None),
            start: Gate::new(),
            finished: Barrier::new(workers),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        });
        let mut pool = Pool { shared: shared.clone(), threads: Vec::new() };
        for worker in 1..workers {
            let shared = shared.clone();
            let name = format!("pianola-{worker}");
            let thread =
                std::thread::Builder::new().name(name).spawn(move || work(&shared, worker))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    pub fn workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `job` once on every worker and returns when all are done.
    ///
    /// # Panics
    /// If `job` panicked on another worker.
    pub fn run<'a>(&self, job: &'a (dyn Fn(usize) + Sync + 'a)) {
        // SAFETY: only the lifetime is forgotten. The pointer is followed by workers between
        // `start.open` and their `finished.meet`, and this function returns after that.
        let job_pointer: *const Job =
            unsafe { std::mem::transmute::<&'a (dyn Fn(usize) + Sync + 'a), *const Job>(job) };
        *self.shared.job.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) =
            Some(job_pointer);
        self.shared.start.open();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(0)));
        self.shared.finished.meet();
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
        assert!(!self.shared.panicked.swap(false, Ordering::SeqCst), "a worker panicked");
    }
}

fn work(shared: &Shared, worker: usize) {
    let mut seen = 0;
    loop {
        shared.start.wait(seen);
        seen += 1;
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let job = *shared.job.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(job) = job {
            // SAFETY: `Pool::run` waits in `finished`, so the job is alive.
            let job = unsafe { &*job };
            let run = std::panic::AssertUnwindSafe(|| job(worker));
            if std::panic::catch_unwind(run).is_err() {
                shared.panicked.store(true, Ordering::SeqCst);
            }
        }
        shared.finished.meet();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.start.open();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_runs_every_round() {
        let pool = Pool::new(3).unwrap();
        let total = AtomicUsize::new(0);
        for round in 1..=200 {
            pool.run(&|_| {
                total.fetch_add(1, Ordering::SeqCst);
            });
            assert_eq!(total.load(Ordering::SeqCst), 3 * round);
        }
    }

    #[test]
    fn sleeping_workers_wake() {
        let pool = Pool::new(2).unwrap();
        let total = AtomicUsize::new(0);
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            pool.run(&|_| {
                total.fetch_add(1, Ordering::SeqCst);
            });
        }
        assert_eq!(total.load(Ordering::SeqCst), 6);
    }
}
