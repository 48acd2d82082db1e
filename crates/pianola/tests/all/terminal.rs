//! `chat` and `run` in front of a terminal: what is typed, when, and what is shown of it.

#![cfg(target_os = "linux")]

use std::path::PathBuf;
use std::time::Duration;

use crate::common::pty::Terminal;
use crate::common::{Folder, display, tiny};

/// A chat with the tiny model, whose answers are short, that asks for its first line.
fn chat(folder: &Folder, more: &[&str]) -> Terminal {
    let mut terminal = started(folder, more);
    ready(&mut terminal);
    terminal
}

/// The same, while it loads.
fn started(folder: &Folder, more: &[&str]) -> Terminal {
    let model = folder.model();
    let mut words = words!["chat", "-m", &model, "--temp", "0", "-n", "6"].to_vec();
    words.extend(words!["--logit-bias", "258=-inf"]);
    // Letters only: answers are looked for on the screen.
    words.extend(
        (0..256)
            .filter(|byte| !(97..123).contains(byte))
            .flat_map(|byte| words!["--logit-bias", format!("{byte}=-inf")].to_vec()),
    );
    words.extend(more.iter().map(std::ffi::OsString::from));
    Terminal::start(&folder.path, words)
}

/// Waits for the first line to be asked for; the bar of a load has arrows, too.
fn ready(terminal: &mut Terminal) {
    terminal.expect("/help lists the commands");
    terminal.expect("> ");
}

/// SmolLM2, whose prompts take long enough to be interrupted.
fn smollm2(folder: &Folder, words: &[&str]) -> Terminal {
    let models = std::env::var_os("PIANOLA_TEST_MODELS")
        .expect("PIANOLA_TEST_MODELS is not set: run scripts/test, which fetches the models");
    let model = PathBuf::from(models).join("smollm2.gguf");
    let mut all = vec![std::ffi::OsString::from(words[0]), "-m".into(), model.into()];
    all.extend(words[1..].iter().map(std::ffi::OsString::from));
    Terminal::start(&folder.path, all)
}

/// Some thousand tokens.
fn long_text() -> String {
    let sentences = (0..500).map(|number| format!("Number {number} is followed by the next. "));
    sentences.collect()
}

#[test]
fn lines_typed_ahead_are_kept_and_not_echoed() {
    let folder = Folder::new();
    let mut terminal = started(&folder, &["-v"]);
    // Three lines, of which the last is not ended.
    terminal.expect("device: ");
    terminal.press("first\rsecond\rthi");
    ready(&mut terminal);
    for _ in 0..2 {
        terminal.expect("ended by: token limit");
    }
    terminal.say("rd");
    terminal.expect("ended by: token limit");
    terminal.expect("> ");
    let file = folder.path.join("said.json");
    terminal.say(&format!("/save {}", file.display()));
    terminal.expect("the conversation is in");
    terminal.press("\u{4}");
    assert!(terminal.wait().success());
    assert!(terminal.echoes(), "the terminal is as it was before");
    let said = std::fs::read_to_string(file).unwrap();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let messages = said["messages"].as_array().unwrap();
    let asked: Vec<&str> =
        messages.iter().step_by(2).map(|message| message["content"].as_str().unwrap()).collect();
    assert_eq!(asked, ["first", "second", "third"]);
    // Each is shown where it is read, once, and nowhere else.
    let answers = messages.iter().skip(1).step_by(2);
    for (question, answer) in asked.iter().zip(answers) {
        let answer = answer["content"].as_str().unwrap();
        assert!(terminal.shown().contains(answer), "{answer:?} in {:?}", terminal.shown());
        let lines = terminal.shown().lines().filter(|line| line.contains(question));
        assert!(lines.clone().all(|line| line.contains("> ")), "{:?}", terminal.shown());
    }
}

#[test]
fn what_is_typed_during_an_answer_comes_after_it() {
    let folder = Folder::new();
    // An answer of 60 tokens, by whatever kernels.
    let options = ["chat", "--temp", "0", "-n", "60", "--reproducible"];
    let mut terminal = smollm2(&folder, &options);
    ready(&mut terminal);
    terminal.say("Count from one to fifty.");
    terminal.expect("fifty.");
    // Pastes are marked during the answer, too, after the line editor has ended that.
    terminal.expect("\u{1b}[?2004l");
    assert_eq!(terminal.expect("\u{1b}[?2004h"), "\r\n");
    terminal.expect(" ");
    terminal.press("/stats\r");
    let answer = terminal.expect("> ");
    assert!(!answer.contains("/stats"), "{answer:?}");
    terminal.expect("/stats");
    terminal.expect("generated 60 tokens");
    terminal.press("\u{4}");
    assert!(terminal.wait().success());
    let last = terminal.shown().rfind("\u{1b}[?2004").unwrap();
    assert!(terminal.shown()[last..].starts_with("\u{1b}[?2004l"), "{}", terminal.shown());
}

#[test]
fn messages_of_several_lines() {
    let folder = Folder::new();
    let mut terminal = chat(&folder, &[]);
    let file = folder.path.join("said.json");
    terminal.say("one\\");
    terminal.expect("… ");
    terminal.say("two");
    terminal.expect("> ");
    terminal.say("\"\"\"");
    terminal.expect("… ");
    terminal.say("/three");
    terminal.expect("… ");
    terminal.say("four\"\"\"");
    terminal.expect("> ");
    // A paste as terminals mark it.
    terminal.say("\u{1b}[200~five\nsix\u{1b}[201~");
    // The editor draws lines with their prompt again, so its end is waited for first.
    terminal.expect("\u{1b}[?2004l");
    terminal.expect("> ");
    // A paste that is not marked, when the line has been waited for.
    std::thread::sleep(Duration::from_millis(400));
    terminal.press("seven\r\reight\r");
    terminal.expect("\u{1b}[?2004l");
    terminal.expect("> ");
    // Given up half-way.
    terminal.say("\"\"\"nine");
    terminal.expect("… ");
    terminal.press("\u{3}");
    terminal.expect("> ");
    terminal.say(&format!("/save {}", file.display()));
    terminal.expect("the conversation is in");
    terminal.say("/exit");
    assert!(terminal.wait().success());
    let said: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let asked: Vec<&str> = said["messages"]
        .as_array()
        .unwrap()
        .iter()
        .step_by(2)
        .map(|message| message["content"].as_str().unwrap())
        .collect();
    assert_eq!(asked, ["one\ntwo", "/three\nfour", "five\nsix", "seven\n\neight"]);
}

#[test]
fn ctrl_c_ends_a_prompt_and_the_chat_goes_on() {
    let folder = Folder::new();
    let mut terminal = smollm2(&folder, &["chat", "-v", "--temp", "0", "-n", "4"]);
    // While it loads: longer than a line of a terminal, and kept all the same.
    terminal.expect("device: ");
    terminal.press(&format!("{}\r", long_text()));
    ready(&mut terminal);
    // The line that says how far it is.
    terminal.expect("prompt: ");
    terminal.expect(" tokens");
    terminal.press("\u{3}");
    // Said only where the prompt was not processed to its end.
    terminal.expect("your message was removed");
    terminal.expect("> ");
    terminal.resize(45);
    terminal.say("Hello");
    terminal.expect("Hello");
    terminal.expect("> ");
    terminal.say("/stats");
    terminal.expect("generated 4 tokens");
    terminal.press("\u{4}");
    assert!(terminal.wait().success());
}

#[test]
fn ctrl_c_ends_an_answer() {
    let folder = Folder::new();
    let mut terminal = smollm2(&folder, &["chat", "--temp", "0", "--ignore-nothing"]);
    // A wrong option ends it before anything is loaded, and leaves the terminal alone.
    assert_eq!(terminal.wait().code(), Some(2));
    assert!(terminal.echoes());
    let mut terminal = smollm2(&folder, &["chat", "--temp", "0"]);
    ready(&mut terminal);
    terminal.say("Write a very long story about a lighthouse.");
    terminal.expect("lighthouse.");
    // Past the line that the editor shows, a word of the answer.
    terminal.expect("\n");
    terminal.expect("lighthouse");
    terminal.press("\u{3}");
    terminal.expect("[interrupted]");
    terminal.expect("> ");
    terminal.say("/stats");
    terminal.expect("ended by: interrupted");
    terminal.expect("> ");
    terminal.say("/undo");
    terminal.expect("taken back; 0 answers before it");
    terminal.press("\u{4}");
    assert!(terminal.wait().success());
}

#[test]
fn ctrl_c_ends_a_run() {
    let folder = Folder::new();
    let text = folder.file("long.txt", long_text());
    let text = text.to_str().unwrap();
    let mut terminal = smollm2(&folder, &["run", "-f", text, "--temp", "0"]);
    terminal.expect("prompt: ");
    terminal.press("\u{3}");
    assert_eq!(terminal.wait().code(), Some(130));
    assert!(!terminal.shown().contains("generated"), "{}", terminal.shown());
    let arguments = ["run", "--temp", "0", "--quiet", "Tell me a long story."];
    let mut terminal = smollm2(&folder, &arguments);
    // Nothing is shown but the answer.
    terminal.expect(" ");
    terminal.press("\u{3}");
    assert_eq!(terminal.wait().code(), Some(130));
}

#[test]
fn answers_break_between_words() {
    const COLUMNS: usize = 40;
    let folder = Folder::new();
    let model = folder.model();
    // Letters with blanks between them, drawn by a seed.
    let mut words =
        words!["run", "-m", &model, "--seed", "7", "-n", "120", "--quiet", "x"].to_vec();
    words.extend(words!["--temp", "2", "--top-k", "0", "--min-p", "0", "--logit-bias", "32=3"]);
    words.extend(
        (0..259)
            .filter(|id| !(97..123).contains(id) && *id != 32)
            .flat_map(|id| words!["--logit-bias", format!("{id}=-inf")].to_vec()),
    );
    let text = folder.pianola(&words).output();
    let mut terminal = Terminal::start(&folder.path, &words);
    terminal.resize(COLUMNS as u16);
    assert!(terminal.wait().success());
    let shown = terminal.shown().replace("\r\n", "\n");
    assert!(shown.lines().count() > 2, "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= COLUMNS), "{shown}");
    let whole: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(shown.split_whitespace().collect::<Vec<&str>>(), whole, "{shown}");
}

#[test]
fn commands_of_a_chat() {
    let folder = Folder::new();
    let mut terminal = chat(&folder, &["-v"]);
    let file = folder.path.join("said.json");
    let mut say = |keys: &str, answer: &str| {
        terminal.say(keys);
        terminal.expect(answer);
    };
    say("/undo", "there is nothing to take back");
    say("/regenerate", "there is no answer to give again");
    say("hello", "ended by");
    say("/set temp 0.7", "temp is set");
    say("/set top_p 7", "--top-p is 7, allowed is 0 to 1");
    say("/set parameter seed 5", "seed is set");
    say("/set max_tokens 2", "max_tokens is set");
    say("/set", "temp 0.7");
    say("/regenerate", "generated 2 tokens");
    say("/stats", "seed ");
    say(&format!("/save {}", file.display()), "the conversation is in");
    say("/undo", "taken back; 0 answers");
    say("/load /none", "cannot read /none");
    say(&format!("/load {}", file.display()), "goes on after 1 answer");
    say("/model /none.gguf", "there is no file or folder /none.gguf");
    let model = folder.path.join("tiny.gguf");
    say(&format!("/model {}", model.display()), "tiny goes on");
    say("once more", "generated 2 tokens");
    say("/nonsense", "there is no command /nonsense");
    terminal.say("/bye");
    assert!(terminal.wait().success());
}

#[test]
fn a_model_alone_opens_a_chat() {
    let folder = Folder::new();
    let path = folder.file("models/mine.gguf", tiny().to_bytes().unwrap());
    let path = display(&path);
    // By its name, behind -m, and as llama.cpp's users ask for it.
    let named = ["run", "mine", "-n", "2", "--temp", "0"];
    for words in [&named[..], &["run", "-m", &path, "-n", "2"], &["run", "-cnv", &path]] {
        let mut terminal = Terminal::start(&folder.path, words);
        ready(&mut terminal);
        terminal.say("/set");
        terminal.expect(if words.contains(&"-n") { "max_tokens 2" } else { "max_tokens none" });
        terminal.say("/bye");
        assert!(terminal.wait().success());
    }
    for (words, error) in [
        (&["run", "mine", "--raw"][..], "--raw is for one answer"),
        (&["run", "llama9:8b"], "looks like a model's name, and there is no such model"),
        (&["run"], "no prompt was given"),
    ] {
        let mut terminal = Terminal::start(&folder.path, words);
        terminal.expect(error);
        assert_eq!(terminal.wait().code(), Some(2));
    }
}
