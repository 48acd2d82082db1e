//! Models made to harm: whatever a file says, no control character reaches the terminal of the
//! user who looks at it, and no template takes the process down.

use crate::common;
use std::fs::File;
use std::io::Read;
use std::process::Stdio;

use crate::common::{Folder, Run, tiny};
use pianola_formats::{GgufWriter, Tensor, TensorType};

/// Turns the text red, clears the screen by a C1 control, renames the window, reverses the order of
/// letters, goes back to the beginning of the line, and rings.
const HOSTILE: &str = "\u{1b}[31m\u{9b}2J\u{1b}]0;owned\u{7}\u{202e}txt\u{2066}\u{200f}\r\u{7f}x";

/// Code points that a terminal acts on, as they stand in the standards.
fn is_forbidden(character: char) -> bool {
    let code = character as u32;
    (code < 0x20 && character != '\n' && character != '\t')
        || (0x7f..=0x9f).contains(&code)
        || [0x61c, 0x200e, 0x200f, 0x2028, 0x2029].contains(&code)
        || (0x202a..=0x202e).contains(&code)
        || (0x2066..=0x2069).contains(&code)
}

#[track_caller]
fn check(run: &Run, words: &[&str]) {
    for text in [&run.out, &run.err] {
        assert!(!text.contains(is_forbidden), "{text:?}");
    }
    assert!(!run.err.contains("panicked"), "{run:#?}");
    for word in words {
        assert!(run.out.contains(word) || run.err.contains(word), "no {word} in {run:#?}");
    }
}

/// Everything that looks at a model before it generates.
fn look(folder: &Folder, writer: &GgufWriter) -> Vec<Run> {
    let model = folder.file("hostile.gguf", writer.to_bytes().unwrap());
    let commands = [
        words!["inspect", &model].to_vec(),
        words!["inspect", &model, "--tensors", "--template"].to_vec(),
        words!["inspect", &model, "--tensors", "--template", "--json"].to_vec(),
        // Greedy: a pipe gets the answer byte for byte, and a sampled byte may be a control character.
        words!["run", "-v", "-m", &model, "-n", "1", "--temp", "0", "hi"].to_vec(),
        words!["chat", "-v", "-m", &model].to_vec(),
        words!["plan", "-m", &model].to_vec(),
        words!["tokenize", "-m", &model, "--special", "hi"].to_vec(),
        words!["logits", "-m", &model, "--tokens", "1", "-o", "/dev/null"].to_vec(),
    ];
    commands.into_iter().map(|words| folder.pianola(words)).collect()
}

#[test]
fn names_and_values_of_a_file_are_shown_and_not_obeyed() {
    let folder = Folder::new();
    for key in ["general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre"] {
        let mut writer = tiny();
        writer.set(key, HOSTILE);
        for run in look(&folder, &writer) {
            check(&run, &[]);
        }
    }
    let mut writer = tiny();
    writer
        .set("general.name", HOSTILE)
        .set(HOSTILE, 1u32)
        .set("hostile.list", vec![HOSTILE.to_string()]);
    let (name, shape, bytes) = (HOSTILE.to_string(), vec![1], vec![0; 4].into());
    writer.add(Tensor { name, ty: TensorType::F32, shape, bytes });
    let runs = look(&folder, &writer);
    runs.iter().for_each(|run| check(run, &[]));
    check(&runs[1], &["\\u{1b}[31m", "\\u{9b}2J", "\\u{202e}txt"]);
    check(&runs[2], &["\\u001b[31m", "\\u009b2J", "\\u202etxt", "\\u007fx"]);
    // What is escaped for the eye is the same for a machine.
    let object: serde_json::Value = serde_json::from_str(&runs[2].out).unwrap();
    assert_eq!(object["metadata"]["general.name"], HOSTILE);
    let tensors = object["tensors"].as_array().unwrap();
    assert!(tensors.iter().any(|tensor| tensor["name"] == HOSTILE));
}

#[test]
fn tensors_that_are_wrong_are_named_harmlessly() {
    let folder = Folder::new();
    let mut bytes = tiny().to_bytes().unwrap();
    let name = b"blk.0.attn_q.weight";
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
    // As long as the name it replaces, so that the file stays whole.
    bytes[at..at + 4].copy_from_slice("\u{1b}\u{9b}A".as_bytes());
    let model = folder.file("model.gguf", &bytes);
    let run = folder.pianola(words!["run", "-m", &model, "hi"]);
    assert_eq!(run.code, Some(1));
    check(&run, &["'\\u{1b}\\u{9b}A0.attn_q.weight'", "does not read"]);
    let ty = at + name.len() + 4 + 2 * 8;
    bytes[ty] = 200;
    let model = folder.file("model.gguf", &bytes);
    let run = folder.pianola(words!["run", "-m", &model, "hi"]);
    assert_eq!(run.code, Some(1));
    check(&run, &["\\u{1b}"]);
}

#[test]
fn templates_and_tokens_are_shown_and_not_obeyed() {
    let folder = Folder::new();
    let refusal = format!("{{{{ raise_exception('no {HOSTILE}') }}}}");
    let mut writer = tiny();
    writer.set("tokenizer.chat_template", refusal.as_str());
    let runs = look(&folder, &writer);
    runs.iter().for_each(|run| check(run, &[]));
    check(&runs[3], &["refuses", "no \\u{1b}[31m"]);
    for template in
        [format!("{{% {HOSTILE} %}}"), format!("{{{{ 1 | {HOSTILE} }}}}"), HOSTILE.into()]
    {
        let mut writer = tiny();
        writer.set("tokenizer.chat_template", template.as_str());
        look(&folder, &writer).iter().for_each(|run| check(run, &[]));
    }
    // A marker of a vocabulary, and bytes of one.
    let mut writer = tiny();
    let mut tokens = common::tokens();
    tokens[258] = HOSTILE.to_string();
    writer.set("tokenizer.ggml.tokens", tokens);
    look(&folder, &writer).iter().for_each(|run| check(run, &[]));
    let model = folder.file("tokens.gguf", writer.to_bytes().unwrap());
    let with = |more: &[&str]| {
        let mut words = words!["tokenize", "-m", &model, "--special"].to_vec();
        words.extend(more.iter().map(std::ffi::OsString::from));
        folder.pianola(words)
    };
    let text = format!("a{HOSTILE}\u{85}b");
    check(&with(&[&text]), &["     258"]);
    let json = with(&["--json", &text]);
    check(&json, &[]);
    assert_eq!(json.json()["pieces"][1], HOSTILE);
}

#[test]
fn folders_and_paths_are_shown_and_not_obeyed() {
    let folder = Folder::new();
    let place = folder.path.join(format!("model {HOSTILE}"));
    let name = format!("model {HOSTILE}");
    let text = serde_json::to_string(HOSTILE).unwrap();
    for config in [
        format!("{{\"model_type\": {text}, \"architectures\": [{text}]}}"),
        format!("{{\"model_type\": \"llama\", {text}: {text}, \"hidden_act\": {text}}}"),
        HOSTILE.to_string(),
    ] {
        folder.file(&format!("{name}/config.json"), &config);
        folder.file(
            &format!("{name}/tokenizer.json"),
            format!("{{\"model\": {{\"type\": {text}}}}}"),
        );
        folder.file(&format!("{name}/model.safetensors"), HOSTILE);
        for command in
            [vec!["inspect"], vec!["run", "-m"], vec!["plan", "-m"], vec!["tokenize", "-m"]]
        {
            let mut words: Vec<std::ffi::OsString> = command.iter().map(Into::into).collect();
            words.push(place.clone().into());
            let run = folder.pianola(words);
            check(&run, &[]);
            assert_ne!(run.code, Some(0));
        }
    }
    // What the user typed, or what a glob made him type.
    let odd = format!("--{HOSTILE}");
    check(&folder.pianola(["run", &odd]), &["\\u{9b}2J"]);
    check(&folder.pianola(["run", "-m", HOSTILE, "hi"]), &["\\u{1b}[31m"]);
}

/// The token of the byte 27, three times.
fn escapes(folder: &Folder) -> Vec<std::ffi::OsString> {
    let mut words = words!["run", "-m", folder.model(), "--device", "cpu", "--raw", "hi"].to_vec();
    words.extend(words!["-n", "3", "--temp", "0", "--ignore-eos", "--quiet"]);
    // The first 256 tokens are the bytes.
    words.extend(words!["--logit-bias", "27=1000"]);
    words
}

#[test]
fn answers_are_exact_in_a_pipe() {
    let folder = Folder::new();
    let run = folder.pianola(escapes(&folder));
    assert_eq!(run.output(), "\u{1b}\u{1b}\u{1b}\n");
    let mut words = escapes(&folder);
    words.push("--json".into());
    let run = folder.pianola(words);
    check(&run, &["\\u001b\\u001b\\u001b"]);
}

/// A terminal of our own, as the child's standard output.
#[cfg(target_os = "linux")]
#[test]
fn answers_are_shown_on_a_terminal() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let folder = Folder::new();
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
    let end = File::options().read(true).write(true).open(name).unwrap();
    let mut child = folder
        .command()
        .args(escapes(&folder))
        .stdin(Stdio::null())
        .stdout(end)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(child.wait().unwrap().success());
    // Our copies of its end are gone with the command, so that reading ends in an error.
    let mut shown = Vec::new();
    let _ = File::from(terminal).read_to_end(&mut shown);
    let shown = String::from_utf8(shown).unwrap().replace("\r\n", "\n");
    assert_eq!(shown, "\\u{1b}\\u{1b}\\u{1b}\n");
}

#[test]
fn templates_without_end_are_errors() {
    let folder = Folder::new();
    for (template, why) in [
        (
            "{% set n = namespace(a='x') %}{% for i in range(40) %}{% set n.a = n.a ~ n.a %}\
             {% endfor %}{{ n.a }}",
            "256 MiB of memory",
        ),
        (
            "{% set n = namespace(a=[]) %}{% for i in range(100000) %}{% set n.a = [n.a] %}\
             {% endfor %}{{ n.a }}",
            "nest too deeply",
        ),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nest too deeply"),
        (
            "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
            "million steps",
        ),
    ] {
        let mut writer = tiny();
        writer.set("tokenizer.chat_template", template);
        let model = folder.file("model.gguf", writer.to_bytes().unwrap());
        folder
            .pianola(words!["run", "-m", &model, "hello"])
            .fails(1, &["chat template: stopped", why, "--raw"]);
        // The model itself is none the worse for it.
        folder.pianola(words!["run", "-m", &model, "--raw", "hello", "-n", "1"]).output();
    }
}

#[test]
fn a_model_can_do_without_a_template_that_does_not_parse() {
    let folder = Folder::new();
    let mut writer = tiny();
    writer.set("tokenizer.chat_template", "{% nonsense %}");
    let model = folder.file("hostile.gguf", writer.to_bytes().unwrap());
    let run = words!["run", "-m", &model, "-n", "1", "hi"].to_vec();
    folder.pianola(run.clone()).fails(1, &["chat template", "nonsense", "--raw"]);
    folder.pianola([run, words!["--raw"].to_vec()].concat()).output();
    folder.pianola(words!["tokenize", "-m", &model, "hi"]).output();
}

#[test]
fn a_tokeniser_s_pattern_that_gives_up_is_an_error() {
    let folder = Folder::new();
    let text = format!("{}c", "a".repeat(40));
    let tokenizer = serde_json::json!({
        "model": { "type": "BPE", "vocab": { "a": 0, "b": 1, "c": 2 }, "merges": [] },
        "pre_tokenizer": {
            "type": "Split", "behavior": "Isolated",
            "pattern": { "Regex": "(?:(?=a)a+)+b" },
        },
    });
    folder.file("folder/tokenizer.json", tokenizer.to_string());
    folder.file("folder/config.json", "{\"model_type\": \"llama\"}");
    // No tensors: the length of the header, and the header.
    folder.file("folder/model.safetensors", b"\x02\0\0\0\0\0\0\0{}");
    let place = folder.path.join("folder");
    let run = folder.pianola(words!["tokenize", "-m", &place, &text]);
    run.fails(1, &["gives up on this text", "(?:(?=a)a+)+b"]);
    assert!(run.out.is_empty(), "{run:#?}");
}
