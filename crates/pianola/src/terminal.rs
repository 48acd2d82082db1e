//! The terminal during a conversation: what is typed while the model answers is kept for the next
//! line, and not shown in the middle of the answer.

#[cfg(unix)]
pub use unix::{Silence, end_when_quiet, mark_pastes, output_width, restore, up, width};

#[cfg(unix)]
mod unix {
    use std::io::{self, IsTerminal, Write};
    use std::os::fd::BorrowedFd;
    use std::sync::{Mutex, MutexGuard};

    use rustix::termios::{
        LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
    };

    /// The terminal's mode before it was changed, while it is.
    static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

    fn before() -> MutexGuard<'static, Option<Termios>> {
        BEFORE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// While it lives, the terminal neither shows what is typed nor waits for the end of a line;
    /// Ctrl-C still interrupts, and what was typed before it is kept.
    pub struct Silence;

    impl Silence {
        /// None where standard input is no terminal, or one that cannot be changed.
        pub fn begin() -> Option<Silence> {
            let input = rustix::stdio::stdin();
            let mode = tcgetattr(input).ok()?;
            let mut silent = mode.clone();
            // Without lines, because a line of a terminal holds 4,096 bytes and drops the rest.
            silent.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL | LocalModes::ICANON);
            silent.local_modes.insert(LocalModes::NOFLSH);
            tcsetattr(input, OptionalActions::Drain, &silent).ok()?;
            *before() = Some(mode);
            mark_pastes();
            Some(Silence)
        }
    }

    impl Drop for Silence {
        fn drop(&mut self) {
            restore();
        }
    }

    /// While there is silence: has the terminal put brackets around a paste, so that several lines are
    /// one message. The line editor ends that whenever it has a line, and a paste may come during an
    /// answer.
    pub fn mark_pastes() {
        if before().is_some() {
            tell("\u{1b}[?2004h");
        }
    }

    /// Moves the cursor to the line above, which an editor has left empty.
    pub fn up() {
        tell("\u{1b}[A");
    }

    /// Whether reading keys ends once a tenth of a second has brought none, instead of waiting for one;
    /// for the line editor, which sets it back itself. False where it cannot be set.
    pub fn end_when_quiet(ends: bool) -> bool {
        let input = rustix::stdio::stdin();
        let Ok(mut mode) = tcgetattr(input) else { return false };
        mode.special_codes[SpecialCodeIndex::VMIN] = u8::from(!ends);
        mode.special_codes[SpecialCodeIndex::VTIME] = u8::from(ends);
        tcsetattr(input, OptionalActions::Now, &mode).is_ok()
    }

    /// Tells the terminal something, wherever it can be written to.
    fn tell(sequence: &str) {
        let (mut err, mut out) = (io::stderr(), io::stdout());
        let terminal: &mut dyn Write = match (err.is_terminal(), out.is_terminal()) {
            (true, _) => &mut err,
            (false, true) => &mut out,
            (false, false) => return,
        };
        // A terminal that is gone has no modes.
        let _ = terminal.write_all(sequence.as_bytes()).and_then(|()| terminal.flush());
    }

    /// Puts the terminal back as it was, before the process ends in whatever way.
    pub fn restore() {
        if let Some(mode) = before().take() {
            tell("\u{1b}[?2004l");
            // A terminal that is gone needs no mode.
            let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &mode);
        }
    }

    /// Columns of the terminal that standard error is.
    pub fn width() -> Option<usize> {
        columns(rustix::stdio::stderr())
    }

    /// Columns of the terminal that standard output is.
    pub fn output_width() -> Option<usize> {
        columns(rustix::stdio::stdout())
    }

    fn columns(terminal: BorrowedFd) -> Option<usize> {
        let size = tcgetwinsize(terminal).ok()?;
        (size.ws_col > 0).then_some(usize::from(size.ws_col))
    }
}

#[cfg(not(unix))]
pub use other::{Silence, end_when_quiet, mark_pastes, output_width, restore, up, width};

/// Consoles elsewhere are left to the line editor.
#[cfg(not(unix))]
mod other {
    pub struct Silence;

    impl Silence {
        pub fn begin() -> Option<Silence> {
            None
        }
    }

    pub fn end_when_quiet(_: bool) -> bool {
        false
    }

    pub fn mark_pastes() {}

    pub fn up() {}

    pub fn restore() {}

    pub fn width() -> Option<usize> {
        None
    }

    pub fn output_width() -> Option<usize> {
        None
    }
}
