//! The first day of a new user: `first_day/transcript`, played in a shell, and what shows in front of a
//! terminal only.

#![cfg(target_os = "linux")]

use crate::common;
use std::ffi::OsStr;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::pty::Terminal;
use crate::common::{Folder, Run};

const TRANSCRIPT: &str = include_str!("first_day/transcript");

/// Of panics, and of values as `{:?}` writes them.
const NEVER: [&str; 7] =
    ["panicked at", "RUST_BACKTRACE", "Some(", "Err(", "PathBuf", "Utf8Error", "Os { code"];

/// A command of the transcript, and what must come of it.
#[derive(Default)]
struct Step<'a> {
    line: usize,
    command: &'a str,
    code: i32,
    out: Vec<&'a str>,
    err: Vec<&'a str>,
    absent: Vec<&'a str>,
}

fn steps() -> Vec<Step<'static>> {
    let mut steps: Vec<Step> = Vec::new();
    for (index, text) in TRANSCRIPT.lines().enumerate() {
        let line = index + 1;
        let (mark, words) = text.split_once(' ').unwrap_or((text, ""));
        if mark == "$" {
            steps.push(Step { line, command: words, ..Step::default() });
            continue;
        }
        let code = mark.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')?.parse().ok());
        match (steps.last_mut(), mark, code) {
            (_, "" | "#", _) => {}
            (Some(step), _, Some(code)) => step.code = code,
            (Some(step), "|", _) => step.out.push(words),
            (Some(step), "!", _) => step.err.push(words),
            (Some(step), "-", _) => step.absent.push(words),
            _ => panic!("line {line} of the transcript is neither a command nor what comes of it"),
        }
    }
    steps
}

/// A store with the models that the tests have fetched.
fn store() -> Folder {
    let models = std::env::var_os("PIANOLA_TEST_MODELS")
        .map(PathBuf::from)
        .expect("PIANOLA_TEST_MODELS is not set: run scripts/test, which fetches the models");
    let folder = Folder::new();
    std::fs::create_dir(folder.path.join("models")).unwrap();
    for (file, name) in [("smollm2.gguf", "smollm2-135m.gguf"), ("gemma3.gguf", "gemma3-270m.gguf")]
    {
        symlink(models.join(file), folder.path.join("models").join(name)).unwrap();
    }
    folder
}

impl Step<'_> {
    /// What is wrong with how it ran.
    fn complaints(&self, run: &Run) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut check = |holds: bool, what: String| {
            if !holds {
                wrong.push(format!("line {}: {what}: $ {}\n{run:#?}", self.line, self.command));
            }
        };
        check(run.code == Some(self.code), format!("the status is not {}", self.code));
        for words in &self.out {
            check(run.out.contains(words), format!("no '{words}' in the output"));
        }
        for words in &self.err {
            check(run.err.contains(words), format!("no '{words}' in the notices"));
        }
        for words in self.absent.iter().chain(&NEVER) {
            let found = run.out.contains(words) || run.err.contains(words);
            check(!found, format!("'{words}' is shown"));
        }
        check(run.err.matches("device: ").count() <= 1, "the device is named twice".into());
        let errors = run.err.matches("error: ").count();
        check(errors <= 1, "there is more than one error".into());
        check(errors == 0 || self.code != 0, "an error is shown, and the status is 0".into());
        wrong
    }
}

#[test]
fn the_transcript_is_played() {
    let folder = store();
    // Nobody listens where somebody has just stopped to.
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).unwrap();
    let endpoint = format!("http://{closed}");
    let variables: [(&str, &OsStr); 2] =
        [("HF_ENDPOINT", endpoint.as_ref()), ("HF_HUB_OFFLINE", "0".as_ref())];
    let steps = steps();
    assert!(steps.len() > 50, "{} commands", steps.len());
    let played =
        steps.iter().flat_map(|step| step.complaints(&folder.shell(step.command, &variables)));
    let complaints: Vec<String> = played.collect();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// A prompt of some thousand tokens, in a file.
fn long_prompt(folder: &Folder) -> String {
    let sentences = (0..500).map(|number| format!("Number {number} is followed by the next. "));
    common::display(&folder.file("long.txt", sentences.collect::<String>()))
}

/// How long Ctrl-C took to end a prompt whose progress was shown.
fn interrupted(home: &Path, prompt: &str) -> Duration {
    let mut terminal = Terminal::start(home, ["run", "-f", prompt, "--device", "cpu"]);
    terminal.expect("prompt: ");
    terminal.expect(" tokens/s, ");
    terminal.expect(" s left");
    let pressed = Instant::now();
    terminal.press("\u{3}");
    let status = terminal.wait();
    let took = pressed.elapsed();
    assert_eq!(status.code(), Some(130), "{}", terminal.shown());
    assert!(terminal.echoes() && !terminal.shown().contains("panicked"), "{}", terminal.shown());
    took
}

/// The whole prompt takes a quarter of a minute where nothing else runs. The system may be busy, so
/// one of several times counts.
#[test]
fn a_long_prompt_shows_progress_and_ends_at_once() {
    let folder = store();
    let prompt = long_prompt(&folder);
    let mut times = (0..10).map(|_| interrupted(&folder.path, &prompt));
    assert!(times.any(|took| took < Duration::from_secs(1)), "ten times it was not given up soon");
}
