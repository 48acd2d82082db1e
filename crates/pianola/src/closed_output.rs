//! Finds out whether standard output is closed (`>&-`), so that results are not lost in silence.
//!
//! Rust's runtime opens /dev/null in place of a closed standard output, for reading and writing. Python
//! opens it in the same way for a command whose output it discards, but keeps its own copy open. That
//! copy, or one that a shell between has inherited, tells the two apart.

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
    opens_null("self", "1") && !opens_null("self", "2") && !parent_holds_null()
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

/// Whether our parent has /dev/null open in this way. One whose descriptors cannot be listed may.
#[cfg(target_os = "linux")]
fn parent_holds_null() -> bool {
    let parent = std::os::unix::process::parent_id().to_string();
    match std::fs::read_dir(format!("/proc/{parent}/fd")) {
        Err(_) => true,
        Ok(list) => list
            .filter_map(Result::ok)
            .any(|entry| opens_null(&parent, &entry.file_name().to_string_lossy())),
    }
}
