//! `doctor` through the binary: its rows, its exit codes, and what its report keeps to itself.

use crate::common;
use std::ffi::OsStr;
use std::fs;

use crate::common::Folder;
use serde_json::Value;

/// The rows of a group.
fn rows<'a>(object: &'a Value, group: &str) -> Vec<&'a Value> {
    let groups = object["groups"].as_array().unwrap();
    let found = groups.iter().find(|found| found["name"] == group).unwrap();
    found["rows"].as_array().unwrap().iter().collect()
}

fn row<'a>(object: &'a Value, group: &str, name: &str) -> &'a Value {
    let rows = rows(object, group);
    rows.into_iter()
        .find(|row| row["name"] == name)
        .unwrap_or_else(|| panic!("no {name}: {object:#}"))
}

#[test]
fn a_machine_is_examined() {
    let folder = Folder::new();
    let text = folder.pianola(["doctor"]).output();
    for words in [
        "\ngpu\n",
        "\nnpu\n",
        "\ncpu\n",
        "\nmemory\n",
        "\nstorage\n",
        "\nenvironment\n",
        "GB/s read",
    ] {
        assert!(text.contains(words), "no '{words}' in {text}");
    }
    let object = folder.pianola(["doctor", "--json"]).json();
    assert_eq!(object["passed"], true);
    // The tests' driver list leads nowhere.
    let drivers = row(&object, "gpu", "drivers");
    assert_eq!(drivers["verdict"], "warn");
    assert_eq!(drivers["fix"], "unset VK_DRIVER_FILES");
    assert!(row(&object, "gpu", "auto")["text"].as_str().unwrap().contains("the processor"));
    let models = row(&object, "storage", "models")["text"].as_str().unwrap();
    assert!(models.ends_with("not there yet, writable"), "{models}");
}

#[test]
fn unfinished_downloads_are_warnings_and_damaged_models_fail() {
    let folder = Folder::new();
    folder.file("models/.partial/gemma3-270m/part", "some");
    folder.file("huggingface/hub/models--me--tiny/blobs/abc.pianola", "some");
    let object = folder.pianola(["doctor", "--json"]).json();
    let fixes: Vec<&str> = rows(&object, "storage")
        .iter()
        .filter(|row| row["name"] == "download")
        .map(|row| row["fix"].as_str().unwrap())
        .collect();
    assert!(fixes[0].starts_with("pianola pull gemma3:270m "), "{fixes:?}");
    assert!(fixes[1].starts_with("pianola pull me/tiny "), "{fixes:?}");
    let whole = fs::read(folder.model()).unwrap();
    folder.file("models/mine.gguf", &whole);
    folder.pianola(["doctor"]).output();
    folder.file("models/mine.gguf", &whole[..whole.len() / 2]);
    let run = folder.pianola(["doctor"]);
    run.fails(1, &["this prevents running: model: mine is damaged"]);
    assert!(run.out.contains("FAIL  model"), "{}", run.out);
    assert!(run.out.contains("-> pianola rm mine "), "{}", run.out);
}

#[test]
fn a_folder_that_cannot_be_written_to_fails() {
    let folder = Folder::new();
    let file = folder.file("file", "x");
    let place = file.join("models");
    let run = folder.pianola_with(["doctor"], b"", &[("PIANOLA_HOME", place.as_os_str())]);
    run.fails(1, &["this prevents running: models:", "not writable"]);
}

#[test]
fn a_report_tells_nothing_private() {
    let folder = Folder::new();
    let path = folder.path.join("report.txt");
    let variables: [(&str, &OsStr); 5] = [
        ("USER", "alice-in-tests".as_ref()),
        ("HF_TOKEN", "hf_very_secret".as_ref()),
        ("PIANOLA_API_KEYS", "key-one,key-two".as_ref()),
        ("HF_ENDPOINT", "https://alice-in-tests:word-of-pass@hub.example".as_ref()),
        ("LLAMA_CACHE", "/media/alice-in-tests/llama".as_ref()),
    ];
    let arguments = [OsStr::new("doctor"), OsStr::new("--report"), path.as_os_str()];
    let run = folder.pianola_with(arguments, b"", &variables);
    assert!(run.err.contains("report without user name"), "{run:#?}");
    for secret in ["hf_very_secret", "key-one", "key-two", "word-of-pass"] {
        assert!(!run.out.contains(secret), "{run:#?}");
    }
    // What the user sees has whole paths.
    assert!(run.out.contains(&common::display(&folder.path)), "{run:#?}");
    run.output();
    let report = fs::read_to_string(&path).unwrap();
    let home = common::display(&folder.path);
    for words in [home.as_str(), "alice-in-tests", "hf_very_secret", "key-one", "word-of-pass"] {
        assert!(!report.contains(words), "'{words}' in {report}");
    }
    // The name of a machine may be part of any word; by itself it is not there.
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut words = report.split(|c: char| c.is_whitespace() || "/:,;()".contains(c));
    assert!(host.trim().is_empty() || words.all(|word| word != host.trim()), "{report}");
    assert!(report.contains("~/models") && report.contains("/media/USER/llama"), "{report}");
    // A report replaces the one before, as all files of ours do; what cannot be written is said at once.
    folder.pianola_with(arguments, b"", &variables).output();
    let absent = folder.path.join("absent/report.txt");
    let arguments = [OsStr::new("doctor"), OsStr::new("--report"), absent.as_os_str()];
    let run = folder.pianola_with(arguments, b"", &variables);
    run.fails(1, &["the report cannot be written to"]);
    assert!(run.out.is_empty(), "{run:#?}");
}
