//! What the parser of arguments knows: help, completions, and the habits of other programs.

use crate::common;
use crate::common::{Folder, with};

#[test]
fn help_teaches() {
    let folder = Folder::new();
    let commands = [
        "run",
        "chat",
        "pull",
        "list",
        "rm",
        "inspect",
        "tokenize",
        "detokenize",
        "embed",
        "completions",
        "logits",
        "perplexity",
        "compare",
        "plan",
        "devices",
        "bench",
    ];
    let overview = folder.pianola(["--help"]).output();
    for command in commands {
        assert!(overview.contains(&format!("\n  {command}")), "{command} in {overview}");
        let help = folder.pianola([command, "--help"]).output();
        assert!(help.contains("Example"), "{command}: {help}");
    }
    assert!(overview.contains("PIANOLA_HOME") && overview.contains("PIANOLA_PIP"), "{overview}");
    // The version, and the commit of the build: seven digits, or a word for what is not known.
    let version = folder.pianola(["--version"]).output();
    let build = version.trim().strip_prefix(concat!("pianola ", env!("CARGO_PKG_VERSION"), " ("));
    let commit = build.and_then(|build| build.strip_suffix(')')).expect("a commit");
    let digits = commit.strip_suffix("-dirty").unwrap_or(commit);
    let hexadecimal = digits.len() >= 7 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(hexadecimal || commit == "unknown", "{version}");
}

#[test]
fn shells_are_taught() {
    let folder = Folder::new();
    for (shell, word) in
        [("bash", "complete"), ("zsh", "#compdef"), ("fish", "complete -c pianola")]
    {
        let script = folder.pianola(["completions", shell]).output();
        assert!(script.contains(word) && script.contains("detokenize"), "{shell}");
    }
    folder.pianola(["completions", "cmd"]).fails(2, &["bash"]);
}

#[test]
fn habits_of_other_programs_work() {
    let folder = Folder::new();
    let model = folder.model();
    folder.file("models/mine.gguf", common::tiny().to_bytes().unwrap());
    let run = folder.pianola(["run", "mine", "hello", "-n", "2", "--seed", "-1", "--top-k", "-1"]);
    assert!(run.err.contains("model: mine, the first word"), "{run:#?}");
    assert!(run.err.contains("mine on cpu"), "{run:#?}");
    run.output();
    // Taken as a model with a pipe, too.
    let run = folder.pianola_with(["run", "mine", "-n", "2"], b"hello", &[]);
    assert!(run.err.contains("mine on cpu"), "{run:#?}");
    folder.pianola(words!["run", "llama9:8b", "hello"]).fails(2, &["looks like a model's name"]);
    let quoted = folder.pianola(words!["run", "-m", &model, "-n", "1", "llama9:8b is good"]);
    quoted.output();
    let flags = words!["run", "-m", &model, "-p", "hi", "-n", "2", "-c", "64", "-t", "1"];
    let run = folder.pianola(&flags);
    assert!(run.err.contains("(avx512, 1 thread") || run.err.contains("1 thread"), "{run:#?}");
    run.output();
    let more = |words: &[&str]| folder.pianola(with(&flags, words));
    let layers = more(&["-ngl", "99"]);
    assert!(layers.err.contains("--layers-on-gpu has no effect"), "{layers:#?}");
    layers.output();
    assert!(!more(&["-ngl", "0"]).err.contains("--layers-on-gpu"));
    more(&["-i"]).fails(2, &["pianola chat"]);
    more(&["--temp", "-1"]).fails(2, &["--temp is -1"]);
    more(&["--seed", "-5"]).fails(2, &["--seed", "-1 for a random one"]);
    assert!(folder.pianola(["ls"]).output().contains("mine"));
    assert!(folder.pianola(["show", "mine"]).output().contains("feed_forward"));
    folder.pianola(["ps"]).fails(2, &["/api/ps"]);
    let cores = std::thread::available_parallelism().unwrap().get();
    let many = (cores + 1).to_string();
    let slow = folder.pianola(words!["run", "-m", &model, "-n", "1", "-t", &many, "hi"]);
    assert!(slow.err.contains(&format!("{many} threads on")), "{slow:#?}");
}
