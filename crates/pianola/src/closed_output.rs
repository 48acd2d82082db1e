//! Finds out whether standard output is closed (`>&-`), so that results are not lost in silence.
//!
//! Rust's runtime opens /dev/null in place of a closed standard output, for reading and writing. Python
//! and Node open it in the same way for a command whose output they discard. Shells do not: for
//! `>/dev/null` they open it for writing only. So the parent decides.

#[cfg(target_os = "linux")]
use std::path::Path;

use crate::failure::Failure;

/// Refuses a closed standard output.
pub fn check() -> Result<(), Failure> {
    match is_closed() {
        true => Err(Failure::Output(
            "standard output is closed, so results would be lost; \
             redirect it (`>/dev/null` discards them)"
                .to_string(),
        )),
        false => Ok(()),
    }
}

#[cfg(target_os = "linux")]
fn is_closed() -> bool {
    // Whoever discards errors as well does not want the results.
    if !opens_null("self", "1") || opens_null("self", "2") {
        return false;
    }
    let parent = std::os::unix::process::parent_id().to_string();
    // A shell may have inherited its output from a program that discards it.
    !opens_null(&parent, "1") && (is_shell(&parent) || has_no_output(&parent))
}

/// Whether a process is a shell.
#[cfg(target_os = "linux")]
fn is_shell(process: &str) -> bool {
    const SHELLS: [&str; 10] =
        ["sh", "dash", "bash", "zsh", "fish", "ksh", "mksh", "ash", "busybox", "tcsh"];
    let program = std::fs::read_link(format!("/proc/{process}/exe")).unwrap_or_default();
    program.file_name().is_some_and(|name| SHELLS.iter().any(|shell| name == *shell))
}

/// Whether a process has a closed standard output, as one has that a shell started with `>&-`.
#[cfg(target_os = "linux")]
fn has_no_output(process: &str) -> bool {
    let folder = format!("/proc/{process}/fd");
    // Descriptors of another user's process cannot be listed.
    std::fs::read_dir(&folder).is_ok() && std::fs::symlink_metadata(folder + "/1").is_err()
}

/// Elsewhere it cannot be found out.
#[cfg(not(target_os = "linux"))]
fn is_closed() -> bool {
    false
}

/// Whether a process has /dev/null as this descriptor, for reading and writing.
#[cfg(target_os = "linux")]
fn opens_null(process: &str, descriptor: &str) -> bool {
    const READ_AND_WRITE: u32 = 2;
    const ACCESS: u32 = 3;
    let folder = format!("/proc/{process}");
    let target = std::fs::read_link(format!("{folder}/fd/{descriptor}"));
    if !target.is_ok_and(|path| path == Path::new("/dev/null")) {
        return false;
    }
    let Ok(facts) = std::fs::read_to_string(format!("{folder}/fdinfo/{descriptor}")) else {
        return false;
    };
    let flags = facts.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok());
    flags.is_some_and(|flags| flags & ACCESS == READ_AND_WRITE)
}
