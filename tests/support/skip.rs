//! Tests that cannot run here say so: `scripts/test` counts them and prints their names at its end.

#![allow(dead_code, reason = "each test uses a part")]

use std::fs::OpenOptions;
use std::io::Write;
use std::panic::Location;

/// Says that the test that calls this leaves something out, and why: `no amx here`.
///
/// `PIANOLA_TEST_SKIPS` names the file that collects such lines.
#[track_caller]
pub fn skip(why: &str) {
    let place = Location::caller();
    let thread = std::thread::current();
    let name = thread.name().filter(|name| *name != "main");
    let test = name.map_or_else(|| format!("{}:{}", place.file(), place.line()), str::to_string);
    println!("skipped: {test}: {why}");
    if let Some(path) = std::env::var_os("PIANOLA_TEST_SKIPS") {
        // A line at once, because several programs write to the file.
        let line = format!("{why}\t{} {test}\n", env!("CARGO_PKG_NAME"));
        let file = OpenOptions::new().append(true).create(true).open(&path);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
    }
}

/// Whether something is there. If not, the test says that it goes without.
#[track_caller]
pub fn has(what: impl std::fmt::Display, there: bool) -> bool {
    if !there {
        skip(&format!("no {what} here"));
    }
    there
}
