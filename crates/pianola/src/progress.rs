//! Shows the user the progress of a long task.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
pub use pianola_hub::Progress;

use crate::console::{progress_bar, to_stderr, writes_json_lines};
use crate::interrupt::{self, Manner, Working};
use pianola_plan::size_text;

/// The way fit for where standard error goes: a bar on a terminal, occasional lines elsewhere, or
/// only notes when `quiet`. Until it is dropped, Ctrl-C ends the task in order.
pub fn on_stderr(quiet: bool) -> Box<dyn Progress> {
    // Where Ctrl-C cannot be listened for, it ends the process, as it does by itself.
    let _ = interrupt::install(Manner::Orderly);
    let shown: Box<dyn Progress> = if quiet {
        Box::new(Quiet)
    } else if std::io::stderr().is_terminal() && !writes_json_lines() {
        let since = Instant::now();
        Box::new(Bar { stage: String::new(), bar: ProgressBar::hidden(), since })
    } else {
        Box::new(Lines::new())
    };
    Box::new(Interruptible { shown, _working: Working::begin() })
}

/// Ends the task when the user presses Ctrl-C.
struct Interruptible {
    shown: Box<dyn Progress>,
    _working: Working,
}

impl Progress for Interruptible {
    fn begin(&mut self, stage: &str, total: u64) {
        self.shown.begin(stage, total);
    }

    fn reach(&mut self, bytes: u64) {
        self.shown.reach(bytes);
    }

    fn end(&mut self) {
        self.shown.end();
    }

    fn is_cancelled(&mut self) -> bool {
        interrupt::asked()
    }

    fn note(&mut self, line: &str) {
        self.shown.note(line);
    }

    fn notice(&mut self, line: &str) {
        self.shown.notice(line);
    }
}

/// Says nothing but notes.
#[derive(Debug)]
pub struct Quiet;

impl Progress for Quiet {
    fn begin(&mut self, _: &str, _: u64) {}
    fn reach(&mut self, _: u64) {}
    fn end(&mut self) {}
    fn note(&mut self, line: &str) {
        to_stderr(line);
    }
    fn notice(&mut self, _: &str) {}
}

/// A bar that is redrawn in place.
struct Bar {
    stage: String,
    bar: ProgressBar,
    /// When the stage began.
    since: Instant,
}

/// What is reached so soon was there before, and says nothing about the rate.
const RESUMED: Duration = Duration::from_millis(100);

impl Progress for Bar {
    fn begin(&mut self, stage: &str, total: u64) {
        const TEMPLATE: &str = "{wide_msg} [{bar:24}] {decimal_bytes} of {decimal_total_bytes}, \
                                {decimal_bytes_per_sec}, {eta} left";
        self.bar = progress_bar(total, TEMPLATE);
        self.bar.set_message(stage.to_string());
        self.stage = stage.to_string();
        self.since = Instant::now();
    }

    fn reach(&mut self, bytes: u64) {
        self.bar.set_position(bytes);
        if self.since.elapsed() < RESUMED {
            self.bar.reset_eta();
        }
    }

    fn end(&mut self) {
        // A finished bar leaves the cursor at its end; a line of text is safe to print after.
        self.bar.finish_and_clear();
        to_stderr(&format!("{}: done", self.stage));
    }

    fn note(&mut self, line: &str) {
        self.bar.suspend(|| to_stderr(line));
    }
}

impl Drop for Bar {
    /// A task that failed takes its bar away, so that the error starts on a line of its own.
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A line now and then, for logs.
struct Lines {
    stage: String,
    total: u64,
    bytes: u64,
    /// What was there soon after the stage began, and says nothing about the rate.
    before: u64,
    begun: Instant,
    last: Instant,
}

/// Often enough to see that it is alive, seldom enough for a log.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

impl Lines {
    fn new() -> Lines {
        let now = Instant::now();
        Lines { stage: String::new(), total: 0, bytes: 0, before: 0, begun: now, last: now }
    }

    /// The bytes, their share, the rate and the time that is left.
    fn text(&self, now: Instant) -> String {
        let Lines { stage, total, bytes, before, begun, .. } = self;
        let rate = (bytes - before) as f64 / now.duration_since(*begun).as_secs_f64().max(1e-3);
        let share = match total {
            0 => String::new(),
            _ => format!(" of {} ({} %)", size_text(*total), bytes * 100 / total),
        };
        let left = match *total > *bytes && rate > 0.0 {
            true => format!(", {:.0} s left", (total - bytes) as f64 / rate),
            false => String::new(),
        };
        format!("{stage}: {}{share}, {}/s{left}", size_text(*bytes), size_text(rate as u64))
    }
}

impl Progress for Lines {
    fn begin(&mut self, stage: &str, total: u64) {
        *self = Lines { stage: stage.to_string(), total, ..Lines::new() };
        to_stderr(&format!("{stage}: {}", size_text(total)));
    }

    fn reach(&mut self, bytes: u64) {
        self.bytes = bytes;
        let now = Instant::now();
        if now.duration_since(self.begun) < RESUMED {
            self.before = bytes;
        }
        if now.duration_since(self.last) >= BETWEEN_LINES {
            self.last = now;
            to_stderr(&self.text(now));
        }
    }

    fn end(&mut self) {
        to_stderr(&format!("{}: done", self.stage));
    }

    fn note(&mut self, line: &str) {
        to_stderr(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_bytes_rate_and_time_left() {
        let stage = "fetching x".to_string();
        let lines = Lines { stage, total: 90_000_000, bytes: 30_000_000, ..Lines::new() };
        let later = lines.begun + Duration::from_secs(10);
        let text = lines.text(later);
        assert_eq!(text, "fetching x: 30.0 MB of 90.0 MB (33 %), 3.0 MB/s, 20 s left");
        // What an earlier pull left does not count as fast.
        let resumed = Lines { before: 20_000_000, ..lines };
        assert!(resumed.text(later).ends_with(", 1.0 MB/s, 60 s left"));
        let unknown = Lines { total: 0, ..resumed };
        assert_eq!(unknown.text(later), "fetching x: 30.0 MB, 1.0 MB/s");
    }
}
