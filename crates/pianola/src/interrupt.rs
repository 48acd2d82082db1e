//! Ctrl-C: the first asks the running work to stop; without running work the program ends at once.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;

static ASKED: AtomicBool = AtomicBool::new(false);
static WORKING: AtomicBool = AtomicBool::new(false);

/// What a second Ctrl-C does while the first has not been noticed yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Second {
    /// It ends the process.
    Ends,
    /// Nothing: the work will stop, and there is more to do after it.
    Waits,
}

/// From now on Ctrl-C while [`Working`] sets a flag; outside of work it ends the process.
pub fn install(second: Second) -> Result<(), Failure> {
    let handler = move || {
        let insists = ASKED.swap(true, Ordering::Relaxed) && second == Second::Ends;
        if insists || !WORKING.load(Ordering::Relaxed) {
            std::process::exit(i32::from(Failure::Interrupted.exit_code()));
        }
    };
    ctrlc::set_handler(handler)
        .map_err(|error| Failure::failed(format!("cannot listen for Ctrl-C: {error}")))
}

/// Whether the user has asked to stop.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
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
