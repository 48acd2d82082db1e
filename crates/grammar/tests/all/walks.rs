//! Answers of random allowed tokens are valid by their schemas, whatever the vocabulary.

use crate::support;
use crate::support::{Random, Words, checker, gemma3, schemas, smollm2};
use pianola_grammar::{GrammarError, JsonAnswer, SchemaStrictness, ToolSchema};
use pianola_text::CallSyntax;
use serde_json::{Value, json};
use std::io::Write;

/// Answers for each schema, unless `PIANOLA_WALK_COUNT` says otherwise.
const WALKS: u64 = 8;

/// Appends schema and text to the file named by `PIANOLA_WALKS`, for `validate.py`.
fn keep(name: &str, schema: &Value, text: &str) {
    if let Some(path) = std::env::var_os("PIANOLA_WALKS") {
        let mut file = std::fs::File::options().append(true).create(true).open(path).unwrap();
        let line = json!({ "name": name, "schema": schema, "text": text }).to_string();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

fn walk_all(words: &Words) {
    let (mut ended, mut walked) = (0, 0);
    let walks = std::env::var("PIANOLA_WALK_COUNT").map_or(WALKS, |count| count.parse().unwrap());
    for (name, schema) in schemas::all() {
        let constraint =
            words.grammars.json_schema(&schema).unwrap_or_else(|e| panic!("{name}: {e}"));
        for seed in 0..walks {
            walked += 1;
            let mut random = Random(seed * 7919 + 11);
            let mut constraint = constraint.clone();
            let Some(tokens) = words.walk(constraint.as_mut(), &mut random, 400) else { continue };
            let text = words.text(&tokens);
            let value: Value = match serde_json::from_str(&text) {
                Ok(value) => value,
                // JSON knows no largest number; f64 does.
                Err(error) if error.to_string().contains("number out of range") => continue,
                Err(error) => panic!("{name}: {error}: {text}"),
            };
            keep(name, &schema, &text);
            checker::check(&schema, &schema, &value)
                .unwrap_or_else(|e| panic!("{name}: {text}: {e}"));
            ended += 1;
        }
    }
    println!("{ended} of {walked} answers ended");
    assert!(ended * 10 >= walked * 9, "only {ended} of {walked} answers ended");
}

#[test]
fn answers_are_valid_with_smollm2s_tokens() {
    walk_all(&smollm2());
}

#[test]
fn answers_are_valid_with_gemmas_tokens() {
    walk_all(&gemma3());
}

#[test]
fn padding_special_and_end_tokens_are_not_allowed_inside() {
    let words = smollm2();
    let mut constraint = words.grammars.json_schema(&json!({ "type": "object" })).unwrap();
    for piece in ["{\"a", "\":", " [1, 2", "]", "}"] {
        for token in words.tokenizer.encode(piece, pianola_text::SpecialTokens::Plain).unwrap() {
            let allowed = words.allowed(constraint.as_mut());
            assert!(allowed.iter().all(|&id| (id as usize) < words.tokenizer.len()));
            assert!(!allowed.iter().any(|&id| words.tokenizer.is_special(id)), "before {piece:?}");
            assert!(constraint.advance(token), "{piece:?}");
        }
    }
    assert!(constraint.is_complete());
    let stops = words.tokenizer.stop_tokens();
    let allowed = words.allowed(constraint.as_mut());
    assert!(!allowed.is_empty() && allowed.iter().all(|id| stops.contains(id)));
}

#[test]
fn an_end_is_allowed_exactly_where_the_text_may_end() {
    let words = smollm2();
    let stop = words.tokenizer.stop_tokens()[0];
    let mut constraint = words.grammars.json_schema(&json!({ "type": "integer" })).unwrap();
    for piece in ["-", "1", "2"] {
        let token = words.tokenizer.encode(piece, pianola_text::SpecialTokens::Plain).unwrap()[0];
        assert!(constraint.advance(token));
        assert!(!constraint.advance(stop), "the constraint is not advanced by an end");
        let ends = words.allowed(constraint.as_mut()).contains(&stop);
        assert_eq!(ends, piece != "-");
        assert!(!constraint.is_complete());
    }
}

#[test]
fn white_space_is_bounded() {
    let words = smollm2();
    for space in [" ", "\n", "\t"] {
        let mut constraint = words.grammars.json_schema(&schemas::medium()).unwrap();
        let encode =
            |text| words.tokenizer.encode(text, pianola_text::SpecialTokens::Plain).unwrap();
        encode("{").into_iter().for_each(|token| assert!(constraint.advance(token)));
        let token = encode(space)[0];
        let count = (0..100).take_while(|_| constraint.advance(token)).count();
        assert!(count < 30, "{count} of {space:?}");
    }
}

#[test]
fn grammars_are_followed() {
    let words = smollm2();
    let grammar = "start: greeting (\", \" NAME)? \"!\"\n\
        greeting: \"hello\" | \"good day\"\n\
        NAME: /[A-Z][a-z]{1,8}/\n";
    let expected = fancy_regex::Regex::new("^(hello|good day)(, [A-Z][a-z]{1,8})?!$").unwrap();
    let (mut random, mut seen) = (Random(7), std::collections::HashSet::new());
    for _ in 0..200 {
        let mut constraint = words.grammars.lark(grammar).unwrap();
        let tokens = words.walk(constraint.as_mut(), &mut random, 100).expect("an end");
        let text = words.text(&tokens);
        assert!(expected.is_match(&text).unwrap(), "{text:?}");
        seen.insert(text);
    }
    assert!(seen.contains("good day!") && seen.len() > 20, "{seen:?}");
}

const HERMES: CallSyntax = CallSyntax {
    begin: "<tool_call>\n",
    separator: "\n</tool_call>\n<tool_call>\n",
    end: "\n</tool_call>",
    arguments_key: "arguments",
    list: false,
    begin_special: false,
};

fn tools() -> [(&'static str, Value); 2] {
    let weather = json!({
        "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
        "properties": { "city": { "$ref": "#/definitions/city" }, "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["city"], "additionalProperties": false,
        "definitions": { "city": { "type": "string", "maxLength": 12 } }
    });
    // What agents send: conditions that no grammar states, and one that its expressions cannot.
    let edit = json!({
        "type": "object", "required": ["path"], "additionalProperties": false,
        "properties": {
            "path": { "type": "string", "pattern": "^(?!/etc)/.*" },
            "tags": { "type": "array", "uniqueItems": true, "items": { "type": "string", "format": "made-up" } },
            "map": { "type": "object", "propertyNames": { "pattern": "^k" }, "additionalProperties": { "type": "boolean" } }
        }
    });
    [("get \"weather\"", weather), ("edit", edit)]
}

fn check_call(call: &Value, key: &str) {
    let tools = tools();
    let (_, schema) = tools.iter().find(|(name, _)| call["name"] == *name).expect("a known tool");
    let relaxed = |schema: &Value| {
        let mut schema = schema.clone();
        if let Some(path) = schema.pointer_mut("/properties/path") {
            *path = json!({ "type": "string" });
        }
        schema
    };
    let schema = relaxed(schema);
    checker::check(&schema, &schema, &call[key]).unwrap();
}

fn schemas_of(tools: &[(&'static str, Value)]) -> Vec<ToolSchema<'static>> {
    let leak = |(name, schema): &(&'static str, Value)| ToolSchema {
        name,
        parameters: Box::leak(Box::new(schema.clone())),
        strictness: SchemaStrictness::Relaxed,
    };
    tools.iter().map(leak).collect()
}

#[test]
fn tool_calls_are_forced() {
    let words = smollm2();
    let tools = schemas_of(&tools());
    let (mut calls, mut several) = (0, 0);
    for seed in 1..25 {
        let parallel = seed % 2 == 0;
        let mut constraint = words.grammars.tool_calls(&HERMES, &tools, parallel).unwrap();
        let walked = words.walk(constraint.as_mut(), &mut Random(seed), 400);
        let Some(text) = walked.map(|tokens| words.text(&tokens)) else { continue };
        let inner = text.strip_prefix(HERMES.begin).and_then(|text| text.strip_suffix(HERMES.end));
        let found: Vec<&str> = inner.expect(&text).split(HERMES.separator).collect();
        assert!(parallel || found.len() == 1, "{text}");
        several += usize::from(found.len() > 1);
        calls += found.len();
        found
            .iter()
            .for_each(|call| check_call(&serde_json::from_str(call).expect(call), "arguments"));
    }
    assert!(calls > 20 && several > 2, "{calls} calls, {several} answers with several");
}

/// Vocabularies with tokens for calls: as text (Qwen), and as a special token (Mistral).
#[test]
fn tool_calls_with_tokens_of_their_own() {
    let tools = schemas_of(&tools());
    let mistral = CallSyntax {
        begin: "[TOOL_CALLS]",
        separator: ", ",
        end: "",
        arguments_key: "arguments",
        list: true,
        begin_special: true,
    };
    for (name, syntax) in [("qwen2_5", HERMES), ("mistral_nemo", mistral), ("llama2", HERMES)] {
        let words = support::tokenizer_json(name);
        let mut ended = 0;
        for seed in 1..6 {
            let mut constraint = words.grammars.tool_calls(&syntax, &tools, true).unwrap();
            let walked = words.walk(constraint.as_mut(), &mut Random(seed), 500);
            let Some(text) = walked.map(|tokens| words.text(&tokens)) else { continue };
            ended += 1;
            let inner =
                text.strip_prefix(syntax.begin).and_then(|text| text.strip_suffix(syntax.end));
            let inner = inner.expect(&text);
            let calls = match syntax.list {
                true => serde_json::from_str::<Vec<Value>>(inner).expect(inner),
                false => inner
                    .split(syntax.separator)
                    .map(|call| serde_json::from_str(call).expect(call))
                    .collect(),
            };
            calls.iter().for_each(|call| check_call(call, "arguments"));
        }
        assert!(ended > 2, "{name}: {ended}");
    }
}

#[test]
fn tool_calls_in_a_list_behind_a_special_token() {
    // SmolLM2 has no token for calls; another of its special tokens takes the part.
    let syntax = CallSyntax {
        begin: "<jupyter_output>",
        separator: "",
        end: "",
        arguments_key: "parameters",
        list: true,
        begin_special: true,
    };
    let words = smollm2();
    let tools = schemas_of(&tools());
    let mut ended = 0;
    for seed in 1..15 {
        let mut constraint = words.grammars.tool_calls(&syntax, &tools, true).unwrap();
        let first = words.allowed(constraint.as_mut());
        assert_eq!(first.len(), 1);
        assert!(words.tokenizer.is_special(first[0]));
        let walked = words.walk(constraint.as_mut(), &mut Random(seed), 400);
        let Some(text) = walked.map(|tokens| words.text(&tokens)) else { continue };
        let list: Value =
            serde_json::from_str(text.strip_prefix(syntax.begin).unwrap()).expect(&text);
        list.as_array().unwrap().iter().for_each(|call| check_call(call, "parameters"));
        ended += 1;
    }
    assert!(ended > 8, "{ended}");
    let missing = CallSyntax { begin: "[TOOL_CALLS]", ..syntax };
    let error = words.grammars.tool_calls(&missing, &tools, true).unwrap_err();
    assert!(error.to_string().contains("[TOOL_CALLS]"), "{error}");
}

/// A strict tool's schema is enforced in full or refused, naming the tool and the keyword.
#[test]
fn strict_tools_are_not_relaxed() {
    let words = smollm2();
    let mut tools = schemas_of(&tools());
    tools[0].strictness = SchemaStrictness::Strict;
    words.grammars.tool_calls(&HERMES, &tools, true).unwrap();
    words.grammars.check_strict(&tools).unwrap();
    tools[1].strictness = SchemaStrictness::Strict;
    let checked = words.grammars.check_strict(&tools).unwrap_err();
    assert_eq!(words.grammars.tool_calls(&HERMES, &tools, true).unwrap_err(), checked);
    let GrammarError::Tool { name, error } = &checked else { panic!("{checked}") };
    let GrammarError::Unsupported { keyword, place, .. } = &**error else { panic!("{checked}") };
    assert_eq!((name.as_str(), keyword.as_str()), ("edit", "pattern"));
    assert!(place.contains("#/properties/path"), "{checked}");
    // What only the compiler refuses is not loosened to its structure either.
    let overlapping = json!({ "type": "object", "properties": { "x": {
        "oneOf": [{ "type": "integer" }, { "type": "number" }] } } });
    let mut tool = ToolSchema { parameters: &overlapping, ..tools[0] };
    let error = words.grammars.tool_calls(&HERMES, &[tool], true).unwrap_err().to_string();
    assert!(error.contains("weather") && error.contains("may overlap"), "{error}");
    tool.strictness = SchemaStrictness::Relaxed;
    words.grammars.tool_calls(&HERMES, &[tool], true).unwrap();
    // An answer's schema is told from those of tools.
    let answer = JsonAnswer { schema: &overlapping, strictness: SchemaStrictness::Strict };
    let either = words.grammars.tool_calls_or_json(&HERMES, &[tool], true, answer);
    let error = either.unwrap_err();
    assert!(matches!(error, GrammarError::Answer { .. }), "{error:?}");
    assert!(error.to_string().contains("may overlap"), "{error}");
}

/// With both allowed an answer is calls or JSON by the schema, and both come.
#[test]
fn calls_or_json() {
    let schema = json!({ "type": "object", "required": ["name"], "additionalProperties": false,
        "properties": { "name": { "type": "string", "maxLength": 9 } } });
    let answer = JsonAnswer { schema: &schema, strictness: SchemaStrictness::Strict };
    let tools = schemas_of(&tools()[..1]);
    let fence = CallSyntax { begin: "```json\n", separator: "\n", end: "\n```", ..HERMES };
    for syntax in [HERMES, fence] {
        let words = smollm2();
        let (mut calls, mut answers) = (0, 0);
        for seed in 1..40 {
            let mut constraint =
                words.grammars.tool_calls_or_json(&syntax, &tools, false, answer).unwrap();
            // Calls are one token of many at the start: the walk is led to them every other time.
            if seed % 2 == 0 {
                let first =
                    words.tokenizer.encode(syntax.begin, pianola_text::SpecialTokens::Plain);
                assert!(constraint.advance(first.unwrap()[0]));
            }
            let walked = words.walk(constraint.as_mut(), &mut Random(seed), 300);
            let Some(text) = walked.map(|tokens| words.text(&tokens)) else { continue };
            // A free walk may begin a call, too.
            if seed % 2 == 0 || text.starts_with(syntax.begin) {
                let inner = text.strip_suffix(syntax.end).expect(&text);
                let object = &inner[inner.find('{').expect(&text)..];
                check_call(&serde_json::from_str(object).expect(&text), "arguments");
                calls += 1;
            } else {
                let value = serde_json::from_str(&text).expect(&text);
                checker::check(&schema, &schema, &value).unwrap();
                answers += 1;
            }
        }
        assert!(calls > 5 && answers > 5, "{calls} calls, {answers} answers");
    }
}
