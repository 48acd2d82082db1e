//! Ctrl-C: it asks the running work to stop; without running work the program ends at once.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use crate::failure::Failure;
use crate::terminal;

static ASKED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
static WORKING: AtomicBool = AtomicBool::new(false);
static MANNER: AtomicU8 = AtomicU8::new(Manner::Soon as u8);

/// What Ctrl-C does to work that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    /// The work has a moment to notice and to say what there is; then the process ends, whatever a
    /// device still computes.
    Soon,
    /// The work stops where that is safe; a second Ctrl-C ends the process.
    Orderly,
    /// The work stops, and there is more to do after it.
    Stays,
}

/// Longest that a user waits for a process that ends [`Manner::Soon`]: a tenth of a second passes for
/// at once.
const MOMENT: Duration = Duration::from_millis(90);

/// From now on Ctrl-C while [`Working`] sets the flag; outside of work it ends the process.
pub fn install(manner: Manner) -> Result<(), Failure> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    MANNER.store(manner as u8, Ordering::Relaxed);
    let mut installed = INSTALLED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !*installed {
        ctrlc::set_handler(interrupted)
            .map_err(|error| Failure::failed(format!("cannot listen for Ctrl-C: {error}")))?;
        *installed = true;
    }
    Ok(())
}

/// Runs on a thread of its own, not inside the signal.
fn interrupted() {
    let again = ASKED.swap(true, Ordering::Relaxed);
    if !WORKING.load(Ordering::Relaxed) {
        leave();
    }
    let manner = MANNER.load(Ordering::Relaxed);
    if manner == Manner::Soon as u8 {
        std::thread::sleep(MOMENT);
        leave();
    }
    if manner == Manner::Orderly as u8 && again {
        leave();
    }
}

/// Ends the process: the shell's prompt begins on a line of its own.
fn leave() -> ! {
    terminal::restore();
    if io::stderr().is_terminal() {
        let _ = writeln!(io::stderr());
    }
    std::process::exit(i32::from(Failure::Interrupted.exit_code()));
}

/// Whether the user has asked to stop.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// What is set when the user asks to stop.
pub fn flag() -> &'static Arc<AtomicBool> {
    &ASKED
}

/// While it lives, Ctrl-C waits for the work to notice.
pub struct Working;

impl Working {
    /// Work that looks at [`asked`] begins.
    pub fn begin() -> Working {
        ASKED.store(false, Ordering::Relaxed);
        WORKING.store(true, Ordering::Relaxed);
        Working
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        WORKING.store(false, Ordering::Relaxed);
        ASKED.store(false, Ordering::Relaxed);
    }
}
