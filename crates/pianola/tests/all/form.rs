//! Answers of a form: `--schema` and `--grammar` of `run` and `chat`.

use std::ffi::OsString;

use serde_json::{Value, json};

use crate::common::{Folder, Run, with};

const SCHEMA: &str = r#"{
    "type": "object",
    "properties": {
        "colour": { "enum": ["red", "green"] },
        "count": { "type": "integer", "minimum": 0, "maximum": 99 }
    },
    "required": ["colour", "count"],
    "additionalProperties": false
}"#;

/// The tiny model, whose own answers are noise.
fn run(folder: &Folder, command: &str, more: &[&str], input: &str) -> Run {
    let words = words![command, "-m", folder.model(), "-q", "--seed", "5", "--temp", "1"];
    let words: Vec<OsString> = with(&words, more);
    folder.pianola_with(words, input.as_bytes(), &[])
}

fn check(answer: &str) {
    let value: Value = serde_json::from_str(answer).unwrap_or_else(|e| panic!("{e}: {answer:?}"));
    assert!(matches!(value["colour"].as_str(), Some("red" | "green")), "{value}");
    assert!(value["count"].as_u64().is_some_and(|count| count < 100), "{value}");
    assert_eq!(value.as_object().unwrap().len(), 2, "{value}");
}

#[test]
fn answers_are_valid_by_a_schema() {
    let folder = Folder::new();
    let file = folder.file("schema.json", SCHEMA).display().to_string();
    check(&run(&folder, "run", &["--schema", &file, "hello"], "").output());
    // Written out, and as llama.cpp calls it.
    check(&run(&folder, "run", &["-j", SCHEMA, "hello"], "").output());
    let all = run(&folder, "run", &["--json-schema-file", &file, "--json", "hello"], "").json();
    check(all["text"].as_str().unwrap());
    assert_ne!(all["finish"], "length");
    let twice = run(&folder, "chat", &["--schema", &file], "hello\nonce more\n").output();
    let values = serde_json::Deserializer::from_str(&twice).into_iter::<Value>();
    let values: Vec<Value> = values.map(Result::unwrap).collect();
    assert_eq!(values.len(), 2, "{twice}");
    values.iter().for_each(|value| check(&value.to_string()));
}

#[test]
fn answers_are_of_a_grammar() {
    let folder = Folder::new();
    let lark = "start: \"pi\" DIGITS\nDIGITS: /[0-9]{3}/\n";
    let file = folder.file("pi.lark", lark).display().to_string();
    for command in ["run", "chat"] {
        let words = if command == "run" {
            vec!["--grammar", &file, "hello"]
        } else {
            vec!["--grammar", &file]
        };
        let answer = run(&folder, command, &words, "hello\n").output();
        let digits = answer.trim_end().strip_prefix("pi").unwrap_or_else(|| panic!("{answer}"));
        assert!(digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit()), "{answer}");
    }
}

#[test]
fn bad_forms_are_refused_before_anything_is_loaded() {
    let folder = Folder::new();
    let file = |name: &str, text: &str| folder.file(name, text).display().to_string();
    let unique = json!({ "type": "array", "uniqueItems": true }).to_string();
    let nested = json!({ "properties": { "a": { "type": "thing" } } }).to_string();
    let refused = |words: &[&str], code: i32, parts: &[&str]| {
        let failed = run(&folder, "run", &[words, &["hello"]].concat(), "");
        failed.fails(code, parts);
        assert!(failed.out.is_empty(), "{failed:#?}");
    };
    let list = file("list.json", &unique);
    refused(&["--schema", &list], 2, &["list.json: ", "uniqueItems", "cannot be enforced"]);
    refused(&["--schema", &nested], 2, &["--schema: ", "thing"]);
    let half = file("half.json", "{\n  \"type\": ");
    refused(&["--schema", &half], 2, &["half.json: no JSON", "line 2"]);
    refused(&["--schema", "absent.json"], 1, &["cannot read absent.json", "check the path"]);
    let gbnf = file("list.gbnf", "root ::= \"a\"\n");
    refused(&["--grammar", &gbnf], 2, &["list.gbnf: ", "line 1 is in GBNF"]);
    let lark = file("bad.lark", "start: \"a\"\nword /b/\n");
    refused(&["--grammar", &lark], 2, &["bad.lark: ", "line 2, column"]);
    refused(&["--grammar", &lark, "--schema", &list], 2, &["cannot be used with"]);
    let served = folder.pianola(["serve", "--schema", &list]);
    served.fails(2, &["unexpected argument '--schema'"]);
}
