//! `chat` from a pipe, with a tiny model.

use crate::common;
use crate::common::{Folder, VOCABULARY};

#[test]
fn chat_follows_a_script() {
    let folder = Folder::new();
    let model = folder.model();
    let script = "/help\nhello\n/stats\nonce more\n/stats\n/nonsense\n/system Be brief.\n/reset\n\
                  /stats\nagain\n/exit\nnever heard\n";
    let arguments = words!["chat", "-m", &model, "-n", "8", "--temp", "0", "--verbose"];
    let run = folder.pianola_with(arguments, script.as_bytes(), &[]);
    assert!(run.err.contains("/reset         begin a new conversation"), "{run:#?}");
    assert!(run.err.contains("there is no command /nonsense"), "{run:#?}");
    assert!(run.err.contains("there is no answer yet"), "{run:#?}");
    assert!(run.err.contains("model: tiny on cpu (no usable GPU)\n"), "{run:#?}");
    // Three answers; the second found the first turn in the cache. The two /stats repeat a line.
    assert_eq!(run.err.matches("tiny on cpu (").count(), 1 + 3 + 2, "{run:#?}");
    // All that was played before but the last token, whose logits nobody had asked for yet.
    assert_eq!(run.err.matches("(31 cached)").count(), 2, "{run:#?}");
    run.output();
}

#[test]
fn chat_survives_a_turn_that_does_not_fit() {
    let folder = Folder::new();
    let model = folder.model();
    let long = "x".repeat(100);
    let script = format!("hi\n{long}\nhi\n");
    let arguments =
        words!["chat", "-m", &model, "-n", "4", "--context", "100", "--quiet", "--temp", "0"];
    let run = folder.pianola_with(arguments, script.as_bytes(), &[]);
    // It reported the turn that failed, went on, and says so at the end.
    assert_eq!(run.code, Some(1), "{run:#?}");
    assert_eq!(run.err.matches("tokens are needed, the context holds 100").count(), 1, "{run:#?}");
    assert!(run.err.contains("error: 1 of 3 turns failed"), "{run:#?}");
    assert!(run.err.contains("this turn was removed"), "{run:#?}");
}

#[test]
fn chat_needs_a_template() {
    let folder = Folder::new();
    let mut writer = common::tiny();
    // Without markers there is no built-in template either.
    let mut tokens: Vec<String> = (0..VOCABULARY).map(|id| format!("t{id}")).collect();
    tokens[0] = "h".to_string();
    writer.set("tokenizer.chat_template", 0u32).set("tokenizer.ggml.tokens", tokens);
    let model = folder.file("base.gguf", writer.to_bytes().unwrap());
    folder.pianola(words!["chat", "-m", &model]).fails(1, &["no chat template", "run --raw"]);
    let run = folder.pianola(words!["run", "-m", &model, "-n", "2", "--ignore-eos", "h"]);
    assert!(run.err.contains("continues the prompt"), "{run:#?}");
}
