//! `run` on a tiny model: where its prompt comes from, what it prints, and what decides on the answer.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};

use crate::common::{Folder, display, with};
use serde_json::Value;

/// Arguments of a short greedy answer.
fn greedy(model: &std::path::Path) -> Vec<OsString> {
    words!["run", "-m", model, "--temp", "0", "--ignore-eos", "-n", "24", "hello"].to_vec()
}

#[test]
fn run_prints_text_and_statistics() {
    let folder = Folder::new();
    let model = folder.model();
    let run = folder.pianola(greedy(&model));
    let lines: Vec<&str> = run.err.lines().collect();
    assert_eq!(lines.len(), 1, "{run:#?}");
    assert!(lines[0].starts_with("tiny on cpu (no usable GPU): 24 tokens in "), "{run:#?}");
    assert!(lines[0].ends_with(" tokens/s"), "{run:#?}");
    let text = run.output();
    assert!(text.ends_with('\n'));
    let quiet = folder.pianola(with(&greedy(&model), &["--quiet"]));
    assert!(quiet.err.is_empty(), "{quiet:#?}");
    assert_eq!(quiet.output(), text);
    let verbose = folder.pianola(with(&greedy(&model), &["--verbose"]));
    assert!(verbose.err.contains("device: cpu, because"), "{verbose:#?}");
    assert!(verbose.err.contains("generated 24 tokens at "), "{verbose:#?}");
    // A device that was asked for needs no reason.
    let asked = folder.pianola(with(&greedy(&model), &["--device", "cpu"]));
    assert!(asked.err.starts_with("tiny on cpu: 24 tokens in "), "{asked:#?}");
}

#[test]
fn run_prints_json() {
    let folder = Folder::new();
    let model = folder.model();
    let object = folder.pianola(with(&greedy(&model), &["--json"])).json();
    assert_eq!(object["model"], "tiny");
    assert_eq!(object["finish"], "max_tokens");
    assert_eq!(object["generated_tokens"], 24);
    assert_eq!(object["tokens"].as_array().unwrap().len(), 24);
    // <|im_start|> u s e r \n h e l l o <|im_end|> \n <|im_start|> a s s i s t a n t \n
    assert_eq!(object["prompt_tokens"], 1 + 5 + 5 + 2 + 1 + 10);
    let seconds = |key: &str| object[key].as_f64().unwrap();
    let least = seconds("load_seconds") + seconds("prompt_seconds");
    assert!(seconds("first_token_seconds") > least, "{object}");
    assert!(seconds("load_bytes") > 0.0, "{object}");
    let text = folder.pianola(greedy(&model)).output();
    assert_eq!(
        object["text"].as_str().unwrap().trim_end_matches('\n'),
        text.trim_end_matches('\n')
    );
}

#[test]
fn json_comes_in_lines() {
    let folder = Folder::new();
    let model = folder.model();
    let arguments = with(&greedy(&model), &["--json=lines", "-v"]);
    let run = folder.pianola(arguments);
    // One measurement serves the line and the object.
    let shares: Vec<&str> = run.err.matches("% of the ceiling").collect();
    assert_eq!(shares.len(), 2, "{run:#?}");
    let lines: Vec<Value> =
        run.output().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, pieces) = lines.split_last().unwrap();
    assert!(pieces.len() > 1);
    let text: String = pieces.iter().map(|piece| piece["text"].as_str().unwrap()).collect();
    assert_eq!(last["text"], text);
    assert_eq!(last["finish"], "max_tokens");
}

#[test]
fn seeds_decide() {
    let folder = Folder::new();
    let model = folder.model();
    let run = |seed: &str| {
        let base = words!["run", "-m", &model, "--temp", "1.5", "--ignore-eos", "-n", "32"];
        folder.pianola(with(&base, &["--seed", seed, "hello"])).output()
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

#[test]
fn random_seeds_differ_and_can_be_given_again() {
    let folder = Folder::new();
    let model = folder.model();
    let run = |more: &[&str]| {
        let base = words!["run", "-m", &model, "--temp", "1.5", "--ignore-eos", "-n", "24"];
        folder.pianola(with(&with(&base, &["--json", "hello"]), more)).json()
    };
    let (first, second) = (run(&[]), run(&[]));
    assert_ne!(first["seed"], second["seed"]);
    assert_ne!(first["tokens"], second["tokens"]);
    let again = run(&["--seed", &first["seed"].to_string()]);
    assert_eq!(again["tokens"], first["tokens"]);
}

#[test]
fn stop_texts_end_and_are_not_shown() {
    let folder = Folder::new();
    let model = folder.model();
    let json =
        |extra: &[&str]| folder.pianola(with(&with(&greedy(&model), &["--json"]), extra)).json();
    let whole = json(&[])["text"].as_str().unwrap().to_string();
    let stop: String = whole.chars().skip(5).take(2).collect();
    let cut = json(&["--stop", &stop]);
    assert_eq!(cut["finish"], "stop_text");
    let expected = &whole[..whole.find(&stop).unwrap()];
    assert_eq!(cut["text"], expected);
}

#[test]
fn penalties_and_biases_take_effect() {
    let folder = Folder::new();
    let model = folder.model();
    let json =
        |extra: &[&str]| folder.pianola(with(&with(&greedy(&model), &["--json"]), extra)).json();
    let forced = json(&["--logit-bias", "65=1000", "--logit-bias", "66=-inf"]);
    assert!(forced["tokens"].as_array().unwrap().iter().all(|token| token == 65));
    assert_eq!(forced["text"], "A".repeat(24));
}

#[test]
fn prompts_come_from_everywhere() {
    let folder = Folder::new();
    let model = folder.model();
    let base = words!["run", "-m", &model, "--temp", "0", "--ignore-eos", "-n", "8", "--json"];
    let tokens = |extra: &[&str], input: &[u8]| {
        folder.pianola_with(with(&base, extra), input, &[]).json()["tokens"].clone()
    };
    let expected = tokens(&["--raw", "hi there"], b"");
    assert_eq!(tokens(&["--raw", "hi", "there"], b""), expected);
    assert_eq!(tokens(&["--raw"], b"hi there\n"), expected);
    assert_eq!(tokens(&["--raw", "-"], b"hi there"), expected);
    assert_eq!(tokens(&["--tokens", "104,105,32,116,104,101,114,101"], b""), expected);
    assert_ne!(tokens(&["hi there"], b""), expected, "the template counts");
    assert_ne!(tokens(&["--system", "Be brief.", "hi there"], b""), tokens(&["hi there"], b""));
}

#[test]
fn pipes_files_and_words_are_used_together() {
    let folder = Folder::new();
    let model = folder.model();
    let base = words!["run", "-m", &model, "--temp", "0", "-n", "4", "--json", "--raw"];
    let length = |extra: &[&str], input: &[u8]| {
        let run = folder.pianola_with(with(&base, extra), input, &[]);
        run.json()["prompt_tokens"].as_u64().unwrap() as usize
    };
    let file = display(&folder.file("text.txt", "in a file\n"));
    // A token is a byte here.
    assert_eq!(length(&["two", "words"], b"piped\n"), "piped\n\ntwo words".len());
    assert_eq!(length(&["-p", "two words"], b"piped\r\n"), "piped\n\ntwo words".len());
    assert_eq!(length(&["-f", &file], b""), "in a file".len());
    assert_eq!(length(&["--prompt-file", &file, "why"], b""), "in a file\n\nwhy".len());
    assert_eq!(length(&["-f", "-"], b"piped"), "piped".len());
    assert_eq!(length(&["words"], b""), "words".len());
    // The notice does not come while there is something to read.
    let mut child = folder
        .command()
        .args(words!["run", "-m", &model, "-n", "1", "words"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Input ends when the notice has come, or with standard error.
    let input = child.stdin.take();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let waits = |line: Result<String, _>| line.unwrap().contains("waiting for standard input");
    assert!(lines.any(waits), "nothing was said");
    drop(input);
    lines.for_each(drop);
    assert!(child.wait().unwrap().success());
}

#[test]
fn tokens_come_from_numpy_files() {
    let folder = Folder::new();
    let model = folder.model();
    let header = "{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend([5i64, 6, 7].iter().flat_map(|token| token.to_le_bytes()));
    let tokens = folder.file("tokens.npy", bytes);
    let base = words!["run", "-m", &model, "--temp", "0", "-n", "4", "--json", "--ignore-eos"];
    let run = |extra: [&str; 2]| folder.pianola(with(&base, &extra)).json()["tokens"].clone();
    assert_eq!(run(["--tokens-file", &display(&tokens)]), run(["--tokens", "5,6,7"]));
}

#[test]
fn profiles_replace_only_when_they_are_there() {
    let folder = Folder::new();
    let model = folder.model();
    let trace = folder.file("trace.json", "precious");
    let run = |more: &[&str]| {
        let words = with(&words!["run", "-m", &model, "-n", "2", "--profile", &trace], more);
        folder.pianola(words)
    };
    run(&["--simd", "reference", "hi"]).fails(2, &["keeps no times of single kernels"]);
    assert_eq!(fs::read_to_string(&trace).unwrap(), "precious");
    run(&["--context", "8", "a prompt that does not fit"]).fails(1, &["tokens are needed"]);
    assert_eq!(fs::read_to_string(&trace).unwrap(), "precious");
    run(&["hi"]).output();
    assert!(fs::read_to_string(&trace).unwrap().contains("traceEvents"));
}

/// Before any model is loaded: the larger may take minutes.
#[test]
fn a_draft_of_another_vocabulary_is_refused_at_once() {
    let folder = Folder::new();
    let model = folder.model();
    let mut writer = crate::common::tiny();
    let mut tokens = crate::common::tokens();
    tokens.swap(70, 71);
    writer.set("tokenizer.ggml.tokens", tokens);
    let draft = folder.file("other.gguf", writer.to_bytes().unwrap());
    let run = folder.pianola(words!["run", "-v", "-m", &model, "--draft", &draft, "hi"]);
    run.fails(2, &["other cannot draft", "token 70 is another than in tiny"]);
    assert!(!run.err.contains("loaded"), "{run:#?}");
}

#[test]
fn options_without_effect_are_named() {
    let folder = Folder::new();
    let model = folder.model();
    let options = ["--decode", "dispatches", "--overlap", "off", "--gpu-memory", "1GiB"];
    let run = folder.pianola(with(&greedy(&model), &options));
    for option in ["--decode", "--overlap off", "--gpu-memory"] {
        let line = format!("{option} has no effect: the CPU computes\n");
        assert!(run.err.contains(&line), "no '{line}': {run:#?}");
    }
    run.output();
}

#[test]
fn guesses_do_not_change_the_text() {
    let folder = Folder::new();
    let model = folder.model();
    // Without --reproducible guessed rows are rounded otherwise, and near ties may fall otherwise.
    let base = words![
        "run",
        "-m",
        &model,
        "--temp",
        "0.8",
        "--seed",
        "3",
        "-n",
        "30",
        "--raw",
        "--reproducible"
    ];
    let text = |more: &[&str]| folder.pianola(with(&base, more));
    let plain = text(&["a b a b a"]).output();
    let looked_up = text(&["--speculate", "a b a b a"]);
    assert_eq!(looked_up.output(), plain);
    let drafted = text(&["--draft", &display(&model), "a b a b a"]);
    assert!(drafted.err.contains("guesses right"), "{drafted:#?}");
    assert_eq!(drafted.output(), plain);
}
