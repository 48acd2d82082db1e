//! A paste of several lines in a terminal that does not mark pastes: its keys come faster than anybody
//! types, and so does the Enter between two of its lines, which must not end the message.
//!
//! ```text
//! keys while the line is edited ── Enter at the pace of typing ─────────────► the message ends
//!                               └─ Enter at the pace of a paste ── more ────► a newline in the message
//!                                                               └─ nothing ─► the message ends
//! lines typed before they were asked for ── Enter ──────────────────────────► the message ends
//! ```

use std::cell::RefCell;
use std::time::{Duration, Instant};

use rustyline::completion::Completer;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper};

use crate::terminal;

/// Longest between two keys of a paste. Whoever types as fast as that waits a tenth of a second more.
const PASTED: Duration = Duration::from_millis(50);
/// Longest between the keys of what was typed ahead, and from the prompt to the first of them.
const TYPED_AHEAD: Duration = Duration::from_millis(200);

/// Sees the keys of the line editor: a hint is asked for after each, and a verdict at Enter.
pub struct PasteWatch {
    keys: RefCell<Keys>,
}

struct Keys {
    last: Instant,
    /// Whether all keys so far were there before the line was asked for.
    ahead: bool,
    /// The line at an Enter that ends the message unless more keys come.
    held: Option<String>,
}

impl Keys {
    fn new() -> Keys {
        Keys { last: Instant::now(), ahead: true, held: None }
    }
}

impl PasteWatch {
    pub fn new() -> PasteWatch {
        PasteWatch { keys: RefCell::new(Keys::new()) }
    }

    /// A line is asked for now.
    pub fn begin(&self) {
        *self.keys.borrow_mut() = Keys::new();
    }

    /// The message that ended because no more keys came.
    pub fn ended(&self) -> Option<String> {
        self.keys.borrow_mut().held.take()
    }
}

impl Hinter for PasteWatch {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        let mut keys = self.keys.borrow_mut();
        let own_newline = keys.held.as_ref().is_some_and(|held| line.len() == held.len() + 1);
        if own_newline {
            return None;
        }
        if keys.held.take().is_some() {
            terminal::end_when_quiet(false);
        }
        keys.ahead &= keys.last.elapsed() < TYPED_AHEAD;
        keys.last = Instant::now();
        None
    }
}

impl Validator for PasteWatch {
    fn validate(&self, line: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let mut keys = self.keys.borrow_mut();
        let typed = keys.ahead || keys.last.elapsed() >= PASTED;
        if typed || !terminal::end_when_quiet(true) {
            return Ok(ValidationResult::Valid(None));
        }
        keys.last = Instant::now();
        keys.held = Some(line.input().to_string());
        // The editor takes a newline into the line, and waits for more.
        Ok(ValidationResult::Incomplete)
    }
}

impl Completer for PasteWatch {
    type Candidate = String;
}

impl Highlighter for PasteWatch {}

impl Helper for PasteWatch {}
