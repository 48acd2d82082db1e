//! Hugging Face folders, whole, sharded and wrong.

use std::fs;
use std::path::Path;

use crate::common::{Scratch, safetensors, small_safetensors};
use pianola_formats::{ErrorKind, HuggingFaceFolder, Safetensors, TensorSource, TensorType};

fn refuse(path: &Path, kind: ErrorKind, text: &str) {
    let error = HuggingFaceFolder::open(path).expect_err(text);
    assert!(error.to_string().contains(text), "{error}");
    assert_eq!(error.kind(), kind, "{error}");
}

/// A folder with a config and these files.
fn folder(files: &[(&str, &[u8])]) -> Scratch {
    let scratch = Scratch::new();
    fs::write(scratch.join("config.json"), br#"{"model_type": "test"}"#).unwrap();
    for (name, bytes) in files {
        fs::write(scratch.join(name), bytes).unwrap();
    }
    scratch
}

#[test]
fn single_file_folder_opens() {
    let scratch = folder(&[
        ("model.safetensors", &small_safetensors()),
        ("generation_config.json", br#"{"eos_token_id": 1}"#),
    ]);
    let folder = HuggingFaceFolder::open(&scratch).unwrap();
    assert_eq!(folder.path(), &*scratch);
    assert_eq!(folder.config()["model_type"], "test");
    assert_eq!(folder.generation_config().unwrap()["eos_token_id"], 1);
    assert_eq!(folder.file("config.json"), Some(scratch.join("config.json")));
    for name in ["tokenizer.json", "../config.json", "..", "/etc/passwd", "", "./config.json"] {
        assert_eq!(folder.file(name), None, "{name}");
    }

    let names: Vec<_> = folder.tensor_infos().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["a", "b"]);
    let a = folder.tensor("a").unwrap();
    assert_eq!((a.ty, &a.shape[..]), (TensorType::F32, &[2, 2][..]));
    assert_eq!(a.to_f32(), [1.0, 2.0, 3.0, -4.0]);
    assert_eq!(folder.tensor("b").unwrap().to_f32(), [1.0, -2.5]);
    assert_eq!(folder.info("b").unwrap().bytes, 4);
}

#[test]
fn undecoded_dtypes_fail_only_when_asked_for() {
    let scratch = folder(&[("model.safetensors", &small_safetensors())]);
    let folder = HuggingFaceFolder::open(&scratch).unwrap();
    assert_eq!(folder.unsupported().collect::<Vec<_>>(), [("ids", "I64")]);
    assert!(folder.tensor("ids").is_none() && folder.info("ids").is_none());
    let error = folder.try_tensor("ids").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("tensor 'ids' has dtype 'I64'"), "{error}");
    assert_eq!(folder.try_tensor("none").unwrap_err().kind(), ErrorKind::Missing);
}

fn shard(name: &str, value: f32) -> Vec<u8> {
    let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#);
    safetensors(&header, &value.to_le_bytes())
}

const INDEX: &str = "model.safetensors.index.json";

#[test]
fn sharded_folder_opens() {
    let index = br#"{"metadata": {"total_size": 8},
        "weight_map": {"y": "two.safetensors", "x": "one.safetensors"}}"#;
    let scratch = folder(&[
        (INDEX, index),
        ("one.safetensors", &shard("x", 1.5)),
        ("two.safetensors", &shard("y", 2.5)),
    ]);
    let folder = HuggingFaceFolder::open(&scratch).unwrap();
    assert_eq!(folder.tensor("x").unwrap().to_f32(), [1.5]);
    assert_eq!(folder.tensor("y").unwrap().to_f32(), [2.5]);
    assert!(folder.tensor("z").is_none());
    let names: Vec<_> = folder.tensor_infos().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["y", "x"]);
}

#[test]
fn shards_must_be_files_of_the_folder_that_hold_the_tensor() {
    let outside = Scratch::new();
    fs::write(outside.join("x.safetensors"), shard("x", 1.0)).unwrap();
    let absolute = outside.join("x.safetensors").display().to_string();
    let climbing = format!("../{}/x.safetensors", outside.file_name().unwrap().display());
    for (file, kind, text) in [
        (absolute.as_str(), ErrorKind::Malformed, "outside the folder"),
        (climbing.as_str(), ErrorKind::Malformed, "outside the folder"),
        ("..\\\\x.safetensors", ErrorKind::Malformed, "outside the folder"),
        ("absent.safetensors", ErrorKind::Missing, "absent"),
        ("other.safetensors", ErrorKind::Malformed, "does not hold it"),
    ] {
        let index = format!(r#"{{"weight_map": {{"x": "{file}"}}}}"#);
        let scratch = folder(&[(INDEX, index.as_bytes()), ("other.safetensors", &shard("y", 1.0))]);
        refuse(&scratch, kind, text);
    }
}

#[test]
fn incomplete_folders_say_what_is_missing() {
    let scratch = Scratch::new();
    refuse(&scratch.join("none"), ErrorKind::Missing, "does not exist");
    refuse(&scratch, ErrorKind::Missing, "no config.json");
    refuse(&folder(&[]), ErrorKind::Missing, "neither model.safetensors nor");
    refuse(&folder(&[("pytorch_model.bin", b"")]), ErrorKind::Missing, "pickle");
    let scratch = folder(&[("config.json", b"{\"a\":"), ("model.safetensors", &shard("x", 1.0))]);
    refuse(&scratch, ErrorKind::Truncated, "config.json: invalid JSON");
    refuse(&folder(&[(INDEX, b"{}")]), ErrorKind::Malformed, "weight_map");
    let twice = br#"{"weight_map": {"x": "a", "x": "b"}}"#;
    refuse(&folder(&[(INDEX, twice)]), ErrorKind::Malformed, "'x' occurs twice");
}

#[test]
fn safetensors_contradictions_are_refused() {
    let refuse = |bytes: Vec<u8>, kind: ErrorKind, text: &str| {
        let error = Safetensors::from_bytes(Path::new("m.safetensors"), bytes).expect_err(text);
        let message = error.to_string();
        assert!(message.starts_with("m.safetensors: ") && message.contains(text), "{message}");
        assert_eq!(error.kind(), kind, "{message}");
    };
    let entry = |shape: &str, from: u64, to: u64| {
        format!(r#"{{"dtype":"F32","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let one = |shape: &str, from: u64, to: u64| {
        safetensors(&format!(r#"{{"x":{}}}"#, entry(shape, from, to)), &[0; 16])
    };
    let malformed = ErrorKind::Malformed;
    refuse(one("[3]", 0, 16), malformed, "does not take the 16 bytes");
    refuse(one("[4294967296,4294967296]", 0, 0), malformed, "does not take the 0 bytes");
    refuse(one("[4]", 16, 0), malformed, "before it begins");
    refuse(one("[8]", 0, 32), ErrorKind::Truncated, "needs bytes 0..32 of the data");
    refuse(one("[1,1,1,1,1,1,1,1,1]", 0, 4), malformed, "at most 8 dimensions");
    refuse(one("[-1]", 0, 4), malformed, "invalid value");
    let two = format!(r#"{{"x":{},"y":{}}}"#, entry("[2]", 0, 8), entry("[2]", 4, 12));
    refuse(safetensors(&two, &[0; 16]), malformed, "'x' and 'y' overlap");
    let twice = format!(r#"{{"x":{0},"x":{0}}}"#, entry("[2]", 0, 8));
    refuse(safetensors(&twice, &[0; 16]), malformed, "'x' occurs twice");
    let wide = r#"{"x":{"dtype":"I64","shape":[3],"data_offsets":[0,16]}}"#;
    refuse(safetensors(wide, &[0; 16]), malformed, "does not take the 16 bytes");
    let deep = format!(r#"{{"__metadata__":{}"#, "[".repeat(100_000));
    refuse(safetensors(&deep, &[]), ErrorKind::Truncated, "invalid safetensors header");
    refuse(b"GGUF....".to_vec(), ErrorKind::Foreign, "looks like a GGUF file");
    let mut long = small_safetensors();
    long[..8].copy_from_slice(&90_000_000u64.to_le_bytes());
    refuse(long, ErrorKind::Truncated, "header needs 90000000 bytes");
}

/// A dtype of the future has an unknown size: it is kept, checked for its range, not decoded.
#[test]
fn unknown_dtypes_are_kept() {
    let header = r#"{"x":{"dtype":"F3_E1M1","shape":[8],"data_offsets":[0,3]}}"#;
    let file = Safetensors::from_bytes(Path::new("m"), safetensors(header, &[0; 3])).unwrap();
    assert!(file.contains("x") && file.tensor("x").is_none());
    let header = r#"{"x":{"dtype":"F3_E1M1","shape":[8],"data_offsets":[0,4]}}"#;
    assert!(Safetensors::from_bytes(Path::new("m"), safetensors(header, &[0; 3])).is_err());
}
