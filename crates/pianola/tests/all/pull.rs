//! `pull` that is ended from outside: the program that it fetches with must not go on.

#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::Folder;

/// Longer than anything here takes, also on a machine that does other things.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something to be there.
#[track_caller]
fn until<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        match look() {
            Some(found) => return found,
            None if start.elapsed() > PATIENCE => panic!("{what} never came"),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Whether a process runs; one that nobody has waited for yet has ended.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// A pull by a pip that writes its process's number into `number` and then fetches for ever.
fn pull(folder: &Folder, number: &Path) -> Child {
    let pip = format!(
        "[ \"$1\" = --version ] && exit 0\necho $$ >{0}.new\nmv {0}.new {0}\nexec sleep 1000\n",
        number.display()
    );
    let pip = folder.file("pip.sh", pip);
    Command::new(env!("CARGO_BIN_EXE_pianola"))
        .args(["pull", "smollm2:135m"])
        .env("PIANOLA_HOME", &folder.path)
        .env("PIANOLA_PIP", format!("sh {}", pip.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn pip_ends_with_the_pull() {
    for signal in [Signal::KILL, Signal::TERM, Signal::INT] {
        let folder = Folder::new();
        let number = folder.path.join("pip.pid");
        let mut child = pull(&folder, &number);
        let pip: u32 = until("pip", || fs::read_to_string(&number).ok()?.trim().parse().ok());
        assert!(runs(pip), "{signal:?}");
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert!(!child.wait().unwrap().success(), "{signal:?}");
        until("the end of pip", || (!runs(pip)).then_some(()));
    }
}
