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

/// A model whose answers end with the context only.
#[test]
fn an_answer_that_the_context_cuts_is_kept_and_continued() {
    let folder = Folder::new();
    let model = folder.model();
    let file = folder.path.join("said.json");
    let script = format!(
        "hi\ngo on\n/save {}\n/set context 9999\n/set\n/set context 0\n/set\nand on\n/undo\n",
        file.display()
    );
    let mut arguments =
        words!["chat", "-m", &model, "--context", "100", "--temp", "0", "-v"].to_vec();
    for end in 256..=258 {
        arguments.extend(words!["--logit-bias", format!("{end}=-inf")]);
    }
    let run = folder.pianola_with(arguments, script.as_bytes(), &[]);
    let told = |words: &str| run.err.matches(words).count();
    let full = "the context of 100 tokens is full: the answer is cut short, and kept";
    assert_eq!((told(full), told("the context of 256 tokens is full: ")), (2, 1), "{run:#?}");
    assert_eq!(told("/set context N gives more room (the model allows 256)"), 2, "{run:#?}");
    assert_eq!(told("the model does not see the beginning of the last answer"), 1, "{run:#?}");
    // The second prompt has the end of the first answer; the third has all that was said.
    let prompts = run.err.split(": prompt ").skip(1);
    let tokens = prompts.map(|rest| rest.split(' ').next().unwrap().parse().unwrap());
    let tokens: Vec<usize> = tokens.collect();
    assert!(tokens.len() == 3 && tokens[0] < 30, "{tokens:?}");
    assert!((40..100).contains(&tokens[1]) && tokens[2] > 100, "{tokens:?}");
    let set = |context: usize| told(&format!("max_tokens none, context {context}\n"));
    assert_eq!((set(100), set(256)), (1, 1), "{run:#?}");
    let said: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let said = said["messages"].as_array().unwrap();
    assert_eq!(said.len(), 4, "{said:?}");
    assert!(said[1]["content"].as_str().unwrap().len() > 60, "{said:?}");
    assert!(run.err.contains("taken back; 2 answers before it"), "{run:#?}");
    // The refused context and the cut answers count for a script.
    assert!(run.err.contains("9999") && run.err.contains("3 of 3 turns failed"), "{run:#?}");
    assert_eq!(run.code, Some(1));
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
