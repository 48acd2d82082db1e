//! Commands that end when this process ends, even by SIGKILL.
//!
//! The kernel signals a process at the death of its parent only if the process asked for it itself. So
//! the program starts its own file as a launcher, which asks and then becomes the command:
//!
//! ```text
//! program ─► program --end-with-parent PID COMMAND… ─► COMMAND…
//! ```

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first argument of a launcher.
const WORD: &str = "--end-with-parent";

/// Set if this program can be its own launcher.
static LAUNCHES: AtomicBool = AtomicBool::new(false);

/// Called with a program's arguments before it reads them. A launcher becomes its command; an error
/// says why it could not. Any other program may from now on be its own launcher.
pub fn launch(mut arguments: impl Iterator<Item = OsString>) -> io::Result<()> {
    match arguments.nth(1) {
        Some(word) if word == WORD => Err(become_command(arguments)),
        _ => {
            LAUNCHES.store(cfg!(target_os = "linux"), Ordering::Relaxed);
            Ok(())
        }
    }
}

/// A command that ends with this process if the program called [`launch`].
pub(crate) fn command(program: &OsStr) -> Command {
    if !LAUNCHES.load(Ordering::Relaxed) {
        return Command::new(program);
    }
    // Not by its path, where another version may lie by now.
    let mut command = Command::new("/proc/self/exe");
    command.arg(WORD).arg(std::process::id().to_string()).arg(program);
    command
}

#[cfg(target_os = "linux")]
fn become_command(mut arguments: impl Iterator<Item = OsString>) -> io::Error {
    use rustix::process::{Signal, set_parent_process_death_signal};
    use std::os::unix::process::{CommandExt, parent_id};

    let parent = arguments.next().and_then(|word| word.to_str()?.parse::<u32>().ok());
    let (Some(parent), Some(program)) = (parent, arguments.next()) else {
        let usage = format!("{WORD} needs a process and a command");
        return io::Error::new(io::ErrorKind::InvalidInput, usage);
    };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return error.into();
    }
    // It may have died before the signal was asked for.
    if parent_id() != parent {
        return io::Error::other("the parent has ended");
    }
    Command::new(program).args(arguments).exec()
}

#[cfg(not(target_os = "linux"))]
fn become_command(_: impl Iterator<Item = OsString>) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("{WORD} needs Linux"))
}
