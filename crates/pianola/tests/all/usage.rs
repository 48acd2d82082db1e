//! What the parser of arguments knows: help, completions, and the habits of other programs.

use crate::common;
use crate::common::{Folder, with};

/// Commands that a help text lists.
fn listed(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.take_while(|line| !line.is_empty()).filter_map(|line| {
        // The lines between continue a description.
        let name = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' '))?;
        name.split_whitespace().next().map(String::from)
    });
    names.collect()
}

/// Every command as its words, those of groups included.
fn commands(folder: &Folder) -> Vec<Vec<String>> {
    let mut all = vec![Vec::new()];
    let mut at = 0;
    while at < all.len() {
        let words: Vec<String> = all[at].clone();
        let help = folder.pianola(words.iter().map(String::as_str).chain(["-h"])).output();
        // The parser's own `help` of a group repeats the group.
        let names = listed(&help).into_iter().filter(|name| words.is_empty() || name != "help");
        all.extend(names.map(|name| [&words[..], &[name]].concat()));
        at += 1;
    }
    all
}

#[test]
fn help_is_short_and_narrow() {
    const MOST_LINES: usize = 59;
    const MOST_COLUMNS: usize = 100;
    let folder = Folder::new();
    let commands = commands(&folder);
    let run = ["run".to_string()];
    assert!(commands.len() > 20 && commands.iter().any(|words| *words == run), "{commands:?}");
    for words in &commands {
        let help = |flag| folder.pianola(words.iter().map(String::as_str).chain([flag])).output();
        let (short, long) = (help("-h"), help("--help"));
        let lines = short.lines().count();
        assert!(lines <= MOST_LINES, "{words:?} -h has {lines} lines");
        for line in short.lines().chain(long.lines()) {
            let columns = line.chars().count();
            assert!(columns <= MOST_COLUMNS, "{words:?}: {columns} columns: {line}");
        }
    }
}

#[test]
fn help_teaches() {
    let folder = Folder::new();
    let overview = folder.pianola(["--help"]).output();
    for words in commands(&folder) {
        let help = folder.pianola(words.iter().map(String::as_str).chain(["--help"])).output();
        let group = words == ["npu"];
        assert!(help.contains("Example") || group || words == ["help"], "{words:?}: {help}");
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
fn topics_explain_their_options() {
    let folder = Folder::new();
    let help = |words: &[&str]| folder.pianola([&["help"], words].concat());
    let overview = help(&[]).output();
    assert_eq!(overview, folder.pianola(["-h"]).output());
    let lines = overview.lines().skip_while(|line| !line.starts_with("Topics of")).skip(1);
    let topics: Vec<&str> = lines.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(topics.contains(&"devices") && topics.contains(&"numerics"), "{topics:?}");
    for topic in topics {
        let text = help(&[topic]).output();
        assert!(text.lines().count() > 2, "{topic}: {text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{topic}: {text}");
    }
    let sampling = help(&["sampling"]).output();
    assert!(sampling.contains("--min-p <P>") && !sampling.contains("--device <"), "{sampling}");
    assert!(help(&["serving"]).output().contains("--tls-cert <FILE>"));
    assert_eq!(help(&["run"]).output(), folder.pianola(["run", "--help"]).output());
    assert_eq!(help(&["npu", "list"]).output(), folder.pianola(["npu", "list", "--help"]).output());
    help(&["bogus"]).fails(2, &["no command or topic 'bogus'", "pianola help"]);
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
    assert!(run.err.contains("model: mine (the first word"), "{run:#?}");
    assert!(run.err.contains("mine on cpu"), "{run:#?}");
    run.output();
    // Taken as a model with a pipe, too.
    let run = folder.pianola_with(["run", "mine", "-n", "2"], b"hello", &[]);
    assert!(run.err.contains("mine on cpu"), "{run:#?}");
    folder.pianola(words!["run", "llama9:8b", "hello"]).fails(2, &["looks like a model's name"]);
    let quoted = folder.pianola(words!["run", "-m", &model, "-n", "1", "llama9:8b is good"]);
    quoted.output();
    let flags = words!["run", "-v", "-m", &model, "-p", "hi", "-n", "2", "-c", "64", "-t", "1"];
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
