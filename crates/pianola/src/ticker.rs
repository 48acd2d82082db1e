//! A line that shows how far long work is: redrawn in place on a terminal, now and then in a log.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::console::{Console, to_stderr, writes_json_lines};
use crate::terminal;
use crate::visible::visible;

/// Work that takes less shows nothing.
const SHORT: Duration = Duration::from_secs(1);
/// Between two redraws on a terminal.
const REDRAWN: Duration = Duration::from_millis(250);

/// Shows the line from its first second on, until it is dropped.
pub struct Ticker {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Whether a line is on the terminal; held while one is drawn.
    drawn: Arc<Mutex<bool>>,
}

impl Ticker {
    /// Shows what `text` returns, in a log once in every `logged`.
    pub fn start(
        text: impl Fn(Instant) -> String + Send + 'static,
        logged: Duration,
        console: Console,
    ) -> Ticker {
        let drawn = Arc::new(Mutex::new(false));
        if console.quiet {
            return Ticker { end: None, thread: None, drawn };
        }
        let (end, ended) = mpsc::channel();
        let shown = drawn.clone();
        let thread = std::thread::spawn(move || {
            let terminal = io::stderr().is_terminal() && !writes_json_lines();
            let mut wait = if terminal { SHORT } else { SHORT.min(logged) };
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(wait) {
                let text = text(Instant::now());
                match terminal {
                    true => draw(&text, &mut shown.lock().unwrap_or_else(PoisonError::into_inner)),
                    false => to_stderr(&text),
                }
                wait = if terminal { REDRAWN } else { logged };
            }
        });
        Ticker { end: Some(end), thread: Some(thread), drawn }
    }

    /// Does something with the line out of the way.
    pub fn aside<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        erase(&mut drawn);
        work()
    }
}

impl Drop for Ticker {
    /// The line is gone when this returns.
    fn drop(&mut self) {
        self.end.take();
        if let Some(thread) = self.thread.take() {
            // It has nothing that could fail but the drawing.
            let _ = thread.join();
        }
        erase(&mut self.drawn.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Replaces the line that the cursor is on.
fn draw(text: &str, drawn: &mut bool) {
    let columns = terminal::width().unwrap_or(80).saturating_sub(1);
    let shown: String = visible(text).chars().take(columns).collect();
    let mut out = io::stderr().lock();
    // A terminal that is gone shows nothing.
    let _ = write!(out, "\r\u{1b}[K{shown}").and_then(|()| out.flush());
    *drawn = true;
}

fn erase(drawn: &mut bool) {
    if *drawn {
        draw("", drawn);
        *drawn = false;
    }
}
