//! The line that shows how far a long prompt is, where nothing else would show for seconds.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pianola_engine::PromptProgress;

use crate::console::{Console, count};
use crate::ticker::Ticker;

/// Between two lines in a log.
const LOGGED: Duration = Duration::from_secs(10);

/// What is known of a prompt that is being processed.
#[derive(Clone, Copy)]
struct Known {
    progress: PromptProgress,
    /// When processing began, and when this much was done.
    begun: Instant,
    reached: Instant,
    /// Whether a speed says anything: not that of a device that is emulated.
    has_speed: bool,
}

impl Known {
    fn text(&self, now: Instant) -> String {
        let PromptProgress { processed, cached, total } = self.progress;
        let done = processed.saturating_sub(cached);
        let start = format!("prompt: {processed} of {}", count(total, "token"));
        if done == 0 {
            return start;
        }
        let rate = done as f64 / self.reached.duration_since(self.begun).as_secs_f64().max(1e-3);
        // The part that is under way is not counted yet; its time is.
        let left = (total - processed) as f64 / rate;
        let left = (left - now.duration_since(self.reached).as_secs_f64()).max(0.0);
        match self.has_speed {
            true => format!("{start}, {rate:.1} tokens/s, {left:.0} s left"),
            false => format!("{start}, {left:.0} s left"),
        }
    }
}

/// Shows the line from its first second on, until it is dropped.
pub struct PromptLine {
    known: Arc<Mutex<Known>>,
    _ticker: Ticker,
}

impl PromptLine {
    /// A prompt of `total` tokens is given to the engine now.
    pub fn begin(total: usize, has_speed: bool, console: Console) -> PromptLine {
        let now = Instant::now();
        let progress = PromptProgress { processed: 0, cached: 0, total };
        let known = Arc::new(Mutex::new(Known { progress, begun: now, reached: now, has_speed }));
        let shown = known.clone();
        let text = move |now| shown.lock().unwrap_or_else(PoisonError::into_inner).text(now);
        PromptLine { known, _ticker: Ticker::start(text, LOGGED, console) }
    }

    /// So much is done.
    pub fn reach(&self, progress: PromptProgress) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.progress = progress;
        known.reached = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_leave_out_what_was_cached() {
        let begun = Instant::now();
        let reached = begun + Duration::from_secs(2);
        let progress = PromptProgress { processed: 1500, cached: 500, total: 2500 };
        let known = Known { progress, begun, reached, has_speed: true };
        let text = known.text(reached + Duration::from_secs(1));
        assert_eq!(text, "prompt: 1500 of 2500 tokens, 500.0 tokens/s, 1 s left");
        let progress = PromptProgress { processed: 0, cached: 0, total: 1 };
        assert_eq!(Known { progress, ..known }.text(reached), "prompt: 0 of 1 token");
    }
}
