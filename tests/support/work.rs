//! How long a test has computed, whatever else the machine does.

use std::time::{Duration, Instant};

/// Work of this thread from now on.
pub struct Work {
    begun: Instant,
    before: Option<Duration>,
}

impl Work {
    pub fn begin() -> Work {
        Work { begun: Instant::now(), before: computed() }
    }

    /// Time that this thread has computed; time that has passed where the system does not report it.
    pub fn spent(&self) -> Duration {
        let spent = computed().zip(self.before).map(|(now, before)| now - before);
        spent.unwrap_or_else(|| self.begun.elapsed())
    }
}

/// Processor time of this thread.
fn computed() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}
