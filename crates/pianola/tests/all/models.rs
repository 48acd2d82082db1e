//! Models as files: what is in them, where they are kept, how they are called.

use crate::common;
use std::fs;

use crate::common::{CONTEXT, Folder, VOCABULARY};

#[test]
fn inspect_tells_what_is_there() {
    let folder = Folder::new();
    let model = folder.model();
    let object =
        folder.pianola(words!["inspect", &model, "--json", "--tensors", "--template"]).json();
    assert_eq!(object["config"]["architecture"], "llama");
    assert_eq!(object["config"]["context"], CONTEXT);
    assert_eq!(object["tokenizer"]["tokens"], VOCABULARY);
    assert_eq!(object["chat_template"]["origin"], "the model file's own");
    assert!(object["chat_template"]["text"].as_str().unwrap().contains("message.role"));
    assert_eq!(object["metadata"]["tokenizer.ggml.tokens"], format!("array of {VOCABULARY}"));
    assert!(object["tensor_types"]["q8_0"]["count"].as_u64().unwrap() > 10);
    let text = folder.pianola(words!["inspect", &model]).output();
    assert!(text.contains("feed_forward") && text.contains("chat template"), "{text}");
}

#[test]
fn inspect_explains_what_cannot_run() {
    let folder = Folder::new();
    let mut writer = common::tiny();
    writer.set("general.architecture", "mamba9");
    let model = folder.file("odd.gguf", writer.to_bytes().unwrap());
    let text = folder.pianola(words!["inspect", &model]).output();
    assert!(text.contains("cannot be run: architecture 'mamba9'"), "{text}");
    // A newline in a file's strings does not begin a line of ours.
    writer.set("general.architecture", "x'\n\nmetadata\n  forged = 1");
    let model = folder.file("odd.gguf", writer.to_bytes().unwrap());
    let text = folder.pianola(words!["inspect", "-m", &model]).output();
    assert!(!text.contains("\n  forged"), "{text}");
}

#[test]
fn inspect_says_what_there_is_of_a_damaged_file() {
    let folder = Folder::new();
    let whole = common::tiny().to_bytes().unwrap();
    let model = folder.file("short.gguf", &whole[..whole.len() - 5000]);
    let text = folder.pianola(words!["inspect", &model, "--tensors"]).output();
    for words in ["truncated", "blk.1.ffn_down.weight", "general.name = \"tiny\"", "tensors listed"]
    {
        assert!(text.contains(words), "no {words} in {text}");
    }
    let mut odd = whole.clone();
    let name = b"blk.0.attn_q.weight";
    let at = odd.windows(name.len()).position(|window| window == name).unwrap();
    odd[at + name.len() + 4 + 2 * 8] = 16;
    let model = folder.file("odd.gguf", &odd);
    let object = folder.pianola(words!["inspect", &model, "--json"]).json();
    assert!(object["problem"].as_str().unwrap().contains("iq2_xxs"), "{object}");
    assert_eq!(object["tensor_types"]["iq2_xxs"]["count"], 1);
    // In the middle of the metadata: what came before is there.
    let model = folder.file("head.gguf", &whole[..300]);
    let text = folder.pianola(words!["inspect", &model]).output();
    assert!(text.contains("general.architecture = \"llama\""), "{text}");
    folder.pianola(words!["inspect", folder.file("no.gguf", "GG")]).fails(1, &["no.gguf"]);
}

#[test]
fn models_in_the_store_are_listed_and_removed() {
    let folder = Folder::new();
    let empty = folder.pianola(["list"]);
    assert!(empty.err.contains("there is no model in "), "{empty:#?}");
    assert_eq!(folder.pianola(["list", "--json"]).json(), serde_json::json!([]));
    let bytes = common::tiny().to_bytes().unwrap();
    folder.file("models/mine.gguf", &bytes);
    folder.file("models/smollm2-135m.gguf", b"short");
    let listed = folder.pianola(["list", "--json"]).json();
    assert_eq!(
        (&listed[0]["name"], &listed[0]["state"]),
        (&"smollm2:135m".into(), &"damaged".into())
    );
    assert_eq!((&listed[1]["name"], &listed[1]["bytes"]), (&"mine".into(), &bytes.len().into()));
    folder.pianola(["run", "hello"]).fails(1, &["is damaged", "pianola pull smollm2:135m"]);
    folder.pianola(["run", "-m", "mine", "-n", "2", "hello"]).output();
    assert!(folder.pianola(["rm", "mine"]).output().starts_with("removed mine"));
    assert!(folder.pianola(["rm", "smollm2"]).output().starts_with("removed smollm2"));
    assert!(!folder.path.join("models/mine.gguf").exists());
}

#[test]
fn names_that_are_no_text_are_files_all_the_same() {
    use std::os::unix::ffi::OsStrExt;
    let folder = Folder::new();
    let name = std::ffi::OsStr::from_bytes(b"m\xffdel.gguf");
    let path = folder.path.join(name);
    fs::write(&path, common::tiny().to_bytes().unwrap()).unwrap();
    folder.pianola(words!["run", "-m", &path, "-n", "2", "hi"]).output();
    assert!(folder.pianola(words!["inspect", &path, "--json"]).json()["parameters"].is_u64());
    let mut exact = path.clone().into_os_string();
    exact.push(",exact");
    let text = folder.file("text.txt", "a line of a text. ".repeat(20));
    let compare = words!["compare", exact, &path, "--text", text, "--context", "64", "--json"];
    assert!(folder.pianola(compare).json()["positions"].as_u64().unwrap() > 0);
    let absent = folder.path.join(std::ffi::OsStr::from_bytes(b"n\xffne.gguf"));
    assert_eq!(folder.pianola(words!["run", "-m", &absent, "hi"]).code, Some(1));
}
