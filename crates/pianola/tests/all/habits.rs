//! What users of other programs type: options and commands that exist there only, and values that mean
//! something there.

use crate::common;
use crate::common::{CONTEXT, Folder, Run, with};

#[test]
fn options_of_other_programs_get_an_answer() {
    let folder = Folder::new();
    let refused = |words: &[&str], parts: &[&str]| {
        let run = folder.pianola(words);
        run.fails(2, parts);
        assert!(!run.err.contains("tip:"), "{run:#?}");
    };
    refused(&["run", "--lora", "x.gguf", "hi"], &["--lora is not offered: ", "merge the adapter"]);
    refused(&["serve", "--lora", "x.gguf"], &["--lora is not offered: "]);
    refused(&["run", "--format", "json", "hi"], &["there is no --format here: --json"]);
    // The parser takes `-fa` for `-f a`.
    refused(&["run", "-fa", "on", "hi"], &["--flash-attn is not needed: "]);
    refused(&["chat", "-ctk", "q8_0"], &["there is no --cache-type-k here: --kv-type"]);
    refused(&["run", "--jinja", "hi"], &["--jinja is not needed: "]);
    refused(&["run", "--mirostat=2", "hi"], &["--mirostat is not offered: ", "--top-p"]);
    refused(&["serve", "--api-key", "x"], &["--api-key-file", "PIANOLA_API_KEYS"]);
    let unknown = folder.pianola(["run", "--frobnicate", "hi"]);
    unknown.fails(2, &["unexpected argument '--frobnicate'"]);
    assert!(!unknown.err.contains("tip:"), "{unknown:#?}");
}

#[test]
fn commands_of_other_programs_get_an_answer() {
    let folder = Folder::new();
    let refused = |words: &[&str], part: &str| folder.pianola(words).fails(2, &[part]);
    refused(&["create", "mine", "-f", "Modelfile"], "create is not offered: ");
    refused(&["push", "mine"], "push is not offered: ");
    refused(&["cp", "a", "b"], "cp is not offered: a model is one file");
    refused(&["download", "smollm2"], "`pianola pull NAME`");
    refused(&["stop", "smollm2"], "/api/ps");
    refused(&["rnu", "hi"], "tip: a similar subcommand exists: 'run'");
    let unknown = folder.pianola(["frobnicate"]);
    unknown.fails(2, &["unrecognized subcommand 'frobnicate'"]);
    assert!(!unknown.err.contains("tip:"), "{unknown:#?}");
}

#[test]
fn values_of_other_programs_mean_the_same() {
    let folder = Folder::new();
    let model = folder.model();
    let run = words!["run", "-m", &model, "--temp", "0", "-n", "2", "-v", "hi"];
    let usual = folder.pianola(&run);
    let of_others = folder.pianola(with(&run, &["-c", "0", "-t", "-1"]));
    let context = format!("context {}", CONTEXT);
    for run in [&usual, &of_others] {
        assert!(run.err.contains(&context), "{run:#?}");
    }
    let threads = |run: &Run| {
        let before = run.err.split(" thread").next().unwrap_or_default().to_string();
        let number = before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        number.parse::<usize>().unwrap_or_else(|_| panic!("{run:#?}"))
    };
    assert_eq!(threads(&usual), threads(&of_others));
    assert_eq!(usual.output(), of_others.output());
    folder
        .pianola(with(&run, &["-c", "-1"]))
        .fails(2, &["'-1'", "0 for all that the model allows"]);
    folder.pianola(with(&run, &["-t", "-2"])).fails(2, &["'-2'", "or -1 for the default"]);
    let bench =
        words!["bench", "-m", &model, "-p", "4", "-n", "1", "--repeat", "1", "-c", "0", "-v"];
    assert!(folder.pianola(bench).err.contains(&context));
    let text = folder.file("text.txt", "word ".repeat(200));
    let windows = folder.pianola(words!["perplexity", "-m", &model, "-c", "0", &text]);
    let windows = windows.output();
    assert!(windows.contains(&format!(" windows of {}", CONTEXT)), "{windows}");
}

/// `run` and `chat` take a model without -m; so do the others that have no text to take.
#[test]
fn a_model_stands_behind_the_command() {
    let folder = Folder::new();
    folder.file("models/mine.gguf", common::tiny().to_bytes().unwrap());
    let bench = ["bench", "mine", "-p", "4", "-n", "1", "--repeat", "1", "--json"];
    assert_eq!(folder.pianola(bench).json()[0]["model"], "mine");
    assert!(folder.pianola(["plan", "mine"]).output().contains("mine fits on cpu"));
    let chat = folder.pianola_with(["chat", "mine", "-n", "2", "-v"], b"hello\n", &[]);
    assert!(chat.err.contains("mine on cpu"), "{chat:#?}");
    for command in ["bench", "plan", "chat", "serve", "check", "tune"] {
        let twice = folder.pianola([command, "mine", "-m", "mine"]);
        twice.fails(2, &["cannot be used with", "--model"]);
        // Without a GPU there is nothing to tune, whatever the model.
        if command != "tune" {
            let absent = folder.pianola([command, "absent-model"]);
            absent.fails(2, &["no model is called 'absent-model'"]);
        }
    }
    for command in ["bench", "plan", "check", "tune"] {
        folder
            .pianola([command, "mine", "--shape", "gemma3:1b"])
            .fails(2, &["cannot be used with"]);
    }
}

#[test]
fn a_folder_stands_for_its_only_gguf_file() {
    let folder = Folder::new();
    let bytes = common::tiny().to_bytes().unwrap();
    folder.file("own/first.gguf", &bytes);
    let own = folder.path.join("own");
    let run = folder.pianola(words!["run", "-m", &own, "-n", "2", "-v", "hello"]);
    assert!(run.err.contains("first on cpu"), "{run:#?}");
    run.output();
    let first = folder.pianola(words!["run", &own, "-n", "2", "-v", "hello"]);
    assert!(first.err.contains("first on cpu"), "{first:#?}");
    folder.file("own/second.gguf", &bytes);
    let several = folder.pianola(words!["run", "-m", &own, "hello"]);
    several.fails(2, &["holds 2 GGUF files: first.gguf, second.gguf; name one", "own/first.gguf"]);
    folder.file("empty/notes.txt", "nothing");
    let empty = folder.pianola(words!["run", "-m", folder.path.join("empty"), "hello"]);
    empty.fails(1, &["config.json"]);
}
