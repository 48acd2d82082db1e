//! Text as tokens, vectors, logits and probabilities, on a tiny model.

use std::ffi::OsString;

use crate::common::{Folder, MARKERS, VOCABULARY, display, with};
use serde_json::Value;

#[test]
fn tokenize_shows_ids_and_pieces() {
    let folder = Folder::new();
    let model = folder.model();
    let json = |extra: &[&str], input: &[u8]| {
        let base = words!["tokenize", "-m", &model, "--json"];
        folder.pianola_with(with(&base, extra), input, &[]).json()
    };
    let plain = json(&["hi"], b"");
    assert_eq!(plain["tokens"], serde_json::json!([104, 105]));
    assert_eq!(plain["pieces"], serde_json::json!(["h", "i"]));
    assert_eq!(json(&[], b"hi\n"), plain);
    assert_eq!(json(&["--special", MARKERS[1]], b"")["tokens"], serde_json::json!([257]));
    assert_eq!(json(&[MARKERS[1]], b"")["tokens"].as_array().unwrap().len(), MARKERS[1].len());
    assert_eq!(json(&["--bos", "h"], b"")["tokens"], serde_json::json!([256, 104]));
    let text = folder.pianola(words!["tokenize", "-m", &model, "a b"]).output();
    assert_eq!(text.lines().count(), 3);
    assert!(text.contains("\" \""));
}

#[test]
fn tokens_become_text_again() {
    let folder = Folder::new();
    let model = folder.model();
    let detokenize = |more: &[&str], input: &[u8]| {
        let words = with(&words!["detokenize", "-m", &model], more);
        folder.pianola_with(words, input, &[])
    };
    let text = "two lines\nand ünïcode";
    let tokens = folder.pianola(words!["tokenize", "-m", &model, "--json", text]).json();
    let ids = tokens["tokens"].to_string();
    assert_eq!(detokenize(&[], ids.as_bytes()).output(), text);
    assert_eq!(detokenize(&["104,105"], b"").output(), "hi");
    assert_eq!(detokenize(&["104", "105", "258"], b"").output(), "hi");
    assert_eq!(detokenize(&["--special", "258"], b"").output(), MARKERS[2]);
    detokenize(&["104,x"], b"").fails(2, &["'x' is not a token id"]);
    detokenize(&["99999"], b"").fails(2, &["token 99999 is not in the vocabulary"]);
}

#[test]
fn texts_become_vectors() {
    let folder = Folder::new();
    let model = folder.model();
    let embed = |more: &[&str], input: &[u8]| {
        let words = with(&words!["embed", "-m", &model], more);
        folder.pianola_with(words, input, &[])
    };
    let two = embed(&["a cat", "a dog"], b"").json();
    assert_eq!((&two["dimensions"], &two["prompt_tokens"]), (&64.into(), &10.into()));
    let vectors = two["embeddings"].as_array().unwrap();
    assert_eq!(vectors.len(), 2);
    let length: f64 =
        vectors[0].as_array().unwrap().iter().map(|value| value.as_f64().unwrap().powi(2)).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    let piped = embed(&["--lines"], b"a cat\na dog\n").json();
    assert_eq!(piped["embeddings"], two["embeddings"]);
    assert_ne!(embed(&["--pooling", "last", "a cat"], b"").json()["embeddings"][0], vectors[0]);
    let file = folder.path.join("vectors.npy");
    embed(&["-o", &display(&file), "a cat", "a dog"], b"").output();
    let (shape, values) = pianola_formats::npy::read_f32(&file).unwrap();
    assert_eq!(shape, [2, 64]);
    assert_eq!(f64::from(values[0]), vectors[0][0].as_f64().unwrap());
    embed(&["--lines"], b"a\n\nb\n").fails(2, &["line 2 is empty"]);
}

#[test]
fn logits_of_a_text_are_those_of_its_tokens() {
    let folder = Folder::new();
    let model = folder.model();
    let logits = |more: &[&str]| {
        let out = folder.path.join("out.npy");
        let words = with(&words!["logits", "-m", &model, "-o", &out], more);
        folder.pianola(words).output();
        pianola_formats::npy::read_f32(&out).unwrap()
    };
    assert_eq!(logits(&["--text", "hi"]), logits(&["--tokens", "104,105"]));
}

/// The same text by each way in which a command takes one.
#[test]
fn every_command_takes_its_text_alike() {
    let folder = Folder::new();
    let model = folder.model();
    let (short, long) = ("hello there", &text()[..]);
    let short_file = folder.file("short.txt", short);
    let long_file = folder.file("long.txt", long);
    let out = folder.path.join("out.npy");
    let commands = [
        (words!["tokenize", "--json"].to_vec(), short, &short_file),
        (words!["logits", "-o", &out, "--greedy", "3"].to_vec(), short, &short_file),
        (words!["embed"].to_vec(), short, &short_file),
        (words!["run", "--raw", "--temp", "0", "-n", "4", "-q"].to_vec(), short, &short_file),
        (words!["perplexity", "-c", "64"].to_vec(), long, &long_file),
        (words!["compare", &model, &model, "-c", "64"].to_vec(), long, &long_file),
    ];
    for (command, text, file) in commands {
        let output = |more: &[OsString], input: &str| {
            let mut all = command.clone();
            if command[0] != "compare" {
                all.extend(words!["-m", &model]);
            }
            all.extend(more.iter().cloned());
            folder.pianola_with(all, input.as_bytes(), &[]).output()
        };
        let expected = output(&words!["-f", file], "");
        assert!(!expected.is_empty());
        for way in [words!["-p", text], words!["--prompt", text], words!["--text", text]] {
            assert_eq!(output(&way, ""), expected, "{command:?} {way:?}");
        }
        assert_eq!(output(&[], text), expected, "{command:?} from standard input");
        assert_eq!(output(&words!["-f", "-"], text), expected, "{command:?} -f -");
        if command[0] != "compare" {
            assert_eq!(output(&words![text], ""), expected, "{command:?} TEXT");
        }
    }
}

#[test]
fn logits_do_not_depend_on_chunks() {
    let folder = Folder::new();
    let model = folder.model();
    let tokens = "10,20,30,40,50,60,70,80,90,100,110";
    let out = folder.path.join("out.npy");
    let logits = |extra: &[&str]| {
        let base = words!["logits", "-m", &model, "--tokens", tokens, "-o", &out];
        let printed = folder.pianola(with(&base, extra)).output();
        let (shape, values) = pianola_formats::npy::read_f32(&out).unwrap();
        assert_eq!(shape, [11, VOCABULARY]);
        (values, printed)
    };
    let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-3);
    let (whole, printed) = logits(&["--exact"]);
    assert!(printed.is_empty());
    for chunk in ["1", "3", "512"] {
        assert!(close(&logits(&["--exact", "--chunk", chunk]).0, &whole), "chunk {chunk}");
    }
    for level in ["reference", "portable"] {
        assert!(close(&logits(&["--exact", "--simd", level]).0, &whole), "{level}");
    }
    let greedy: Value = serde_json::from_str(&logits(&["--exact", "--greedy", "6"]).1).unwrap();
    let run = words!["run", "-m", &model, "--exact", "--temp", "0", "--ignore-eos", "-n", "6"];
    let run = with(&run, &["--json", "--tokens", tokens]);
    assert_eq!(greedy["greedy"], folder.pianola(run).json()["tokens"]);
}

fn text() -> String {
    (0..200).map(|number| format!("line {number} of a text. ")).collect()
}

#[test]
fn perplexity_is_measured() {
    let folder = Folder::new();
    let model = folder.model();
    let text = folder.file("text.txt", text());
    let base = words!["perplexity", "-m", &model, "--context", "64", &text];
    let object = folder.pianola(with(&base, &["--json"])).json();
    let perplexity = object["perplexity"].as_f64().unwrap();
    // Random weights know nothing: about as surprised as a fair choice of a byte.
    assert!(perplexity > 20.0 && perplexity < 5000.0, "{perplexity}");
    assert!(object["error"].as_f64().unwrap() > 0.0);
    let windows = object["windows"].as_u64().unwrap();
    assert_eq!(object["scored"], 31 * windows);
    assert!(object["tokens"].as_u64().unwrap() >= 64 * windows);
    assert!(folder.pianola(base).output().starts_with("perplexity "));
    let absent = words!["perplexity", "-m", &model, "absent.txt"];
    folder.pianola(absent).fails(1, &["cannot read absent.txt"]);
}

#[test]
fn compare_tells_modes_apart() {
    let folder = Folder::new();
    let model = display(&folder.model());
    let text = folder.file("text.txt", text());
    let compare = |a: &str, b: &str, extra: &[&str]| {
        let (a, b) = (format!("{model},{a}"), format!("{model},{b}"));
        let base = words!["compare", a, b, "--text", &text, "--context", "64"];
        folder.pianola(with(&base, extra))
    };
    let modes = compare("exact", "fast", &["--json"]).json();
    let mean = modes["mean_kl"].as_f64().unwrap();
    assert!(mean > 0.0 && mean < 0.05, "{mean}");
    assert!(modes["top1_agreement"].as_f64().unwrap() > 0.8);
    assert_eq!(modes["worst"].as_array().unwrap().len(), 10);
    let levels = compare("exact", "exact,simd=portable", &["--json"]).json();
    assert!(levels["max_kl"].as_f64().unwrap() < 1e-6, "{levels}");
    let bytes = compare("exact", "exact,kv-type=q8_0", &["--json"]).json();
    let mean = bytes["mean_kl"].as_f64().unwrap();
    assert!(mean > 0.0 && mean < 0.01, "{mean}");
    let printed = compare("exact", "fast,threads=1", &[]).output();
    assert!(printed.contains("KL divergence") && printed.contains("worst positions"));
}
