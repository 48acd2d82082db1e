//! What cannot be enforced is refused by name; what is hostile ends soon.

use crate::support;
use crate::support::{Random, smollm2};
use crate::work::Work;
use pianola_grammar::{GrammarError, SchemaStrictness, ToolSchema};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

#[test]
fn keywords_that_cannot_be_enforced_are_named() {
    let words = smollm2();
    let cases = [
        ("uniqueItems", json!({ "type": "array", "uniqueItems": true })),
        ("not", json!({ "not": { "type": "string" } })),
        ("if", json!({ "if": { "type": "string" }, "then": { "minLength": 2 } })),
        ("contains", json!({ "type": "array", "contains": {} })),
        ("propertyNames", json!({ "type": "object", "propertyNames": { "pattern": "^a" } })),
        ("dependentRequired", json!({ "dependentRequired": { "a": ["b"] } })),
        ("unevaluatedProperties", json!({ "unevaluatedProperties": false })),
        ("format", json!({ "type": "string", "format": "iri" })),
        ("$ref", json!({ "$ref": "https://example.com/schema" })),
        ("$ref", json!({ "$ref": "#/$defs/nowhere" })),
        ("pattern", json!({ "type": "string", "pattern": "^(?!x)" })),
        ("patternProperties", json!({ "type": "object", "patternProperties": { "(a)\\1": {} } })),
        ("const", json!({ "const": 9_007_199_254_740_993i64 })),
        ("minimum", json!({ "type": "number", "minimum": 1e30 })),
        ("minProperties", json!({ "type": "object", "minProperties": 3 })),
    ];
    for (keyword, schema) in cases {
        let nested =
            json!({ "type": "object", "properties": { "in": schema }, "required": ["in"] });
        // A reference into the schema is from its root; none of these has a target.
        match words.grammars.json_schema(&nested).unwrap_err() {
            GrammarError::Unsupported { keyword: named, place, .. } => {
                assert_eq!(named, keyword);
                assert!(place.starts_with("#/properties/in"), "{place}");
            }
            other => panic!("{keyword}: {other}"),
        }
        let relaxed = words.grammars.json_schema_with(&nested, SchemaStrictness::Relaxed);
        let mut constraint = relaxed.unwrap_or_else(|error| panic!("{keyword}: {error}"));
        let tokens = words.walk(constraint.as_mut(), &mut Random(3), 2_000);
        let text = words.text(&tokens.unwrap_or_else(|| panic!("{keyword}: no end")));
        serde_json::from_str::<Value>(&text).expect(&text);
    }
}

#[test]
fn what_the_compiler_refuses_says_why() {
    let words = smollm2();
    let overlapping = json!({ "oneOf": [{ "type": "integer" }, { "type": "number" }] });
    let patterns =
        json!({ "type": "object", "patternProperties": { "^x": { "type": "null" }, "y$": {} } });
    let nothing = json!({ "type": "integer", "minimum": 5, "maximum": 4 });
    for (schema, reason) in [
        (overlapping, "may overlap"),
        (json!({ "$ref": "#" }), "leads back to itself"),
        (patterns, "disjoint"),
        (nothing, "Unsatisfiable"),
        (json!({ "type": "thing" }), "thing"),
        (json!(3), "a schema is"),
        (json!({ "properties": 3 }), "object of schemas"),
        (json!({ "enum": 3 }), "list of values"),
        (json!(false), "false"),
    ] {
        let error = words.grammars.json_schema(&schema).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(error.len() < 600, "{error}");
    }
    assert!(words.grammars.tool_calls(&HERMES, &[], true).is_err());
}

/// One place has many spellings: they are one definition, and escapes are those of JSON pointers in URIs.
#[test]
fn references_are_places() {
    let words = smollm2();
    let definitions =
        json!({ "a b": { "const": 1 }, "c/d": { "const": 2 }, "e~f": { "const": 3 } });
    let with = |reference: &str| json!({ "$ref": reference, "$defs": definitions });
    for (reference, only) in [
        ("#/$defs/a b", "1"),
        ("#/$defs/a%20b", "1"),
        ("#/%24defs/a%20b", "1"),
        ("#/$defs/c~1d", "2"),
        ("#/$defs/c%7E1d", "2"),
        ("#/$defs/e~0f", "3"),
    ] {
        let mut constraint = words.grammars.json_schema(&with(reference)).unwrap();
        let tokens = words.walk(constraint.as_mut(), &mut Random(1), 9).unwrap();
        assert_eq!(words.text(&tokens), only, "{reference}");
    }
    for reference in ["#/$defs/a%2", "#/$defs/a%+0b", "#/$defs/c/d", "#a b", "#/$defs/a%ff"] {
        let error = words.grammars.json_schema(&with(reference)).unwrap_err();
        assert!(matches!(error, GrammarError::Unsupported { .. }), "{reference}: {error}");
    }
    // The whole schema is a place, too.
    let tree = json!({ "type": "object", "additionalProperties": false,
        "properties": { "next": { "$ref": "#" } } });
    let mut constraint = words.grammars.json_schema(&tree).unwrap();
    for piece in ["{\"next\": ", "{\"next\": ", "{}", "}", "}"] {
        for token in words.tokenizer.encode(piece, pianola_text::SpecialTokens::Plain).unwrap() {
            assert!(constraint.advance(token), "{piece:?}");
        }
    }
    assert!(constraint.is_complete());
}

/// Places inside of each other, each referred to: every one becomes a definition of all below it.
#[test]
fn small_schemas_do_not_expand_without_bound() {
    let mut deep = json!({ "type": "integer" });
    let mut references = Vec::new();
    let mut place = String::from("#/properties/deep");
    for _ in 0..55 {
        references.push(json!({ "$ref": place }));
        place.push_str("/properties/inner");
        let mut wide = properties(33, &json!({ "type": "null" }));
        wide.insert("inner".into(), deep);
        deep = json!({ "type": "object", "properties": wide });
    }
    let schema = json!({ "type": "object",
        "properties": { "deep": deep, "all": { "prefixItems": references } } });
    let work = Work::begin();
    let error = smollm2().grammars.json_schema(&schema).unwrap_err();
    let GrammarError::TooLarge { found, limit, .. } = &error else { panic!("{error}") };
    assert!(found.contains("references") && *limit == 40_000, "{error}");
    assert!(work.spent() < Duration::from_secs(2));
}

const HERMES: pianola_text::CallSyntax = pianola_text::CallSyntax {
    begin: "<tool_call>\n",
    separator: "",
    end: "",
    arguments_key: "arguments",
    list: false,
    begin_special: false,
};

fn properties(count: usize, schema: &Value) -> Map<String, Value> {
    (0..count).map(|index| (format!("property_{index}"), schema.clone())).collect()
}

/// Definitions that each refer to the next.
fn chain(length: usize) -> Value {
    let link = |index: usize| {
        let next = json!({ "$ref": format!("#/$defs/l{}", (index + 1).min(length - 1)) });
        (format!("l{index}"), json!({ "type": "object", "properties": { "n": next } }))
    };
    let links: Map<String, Value> = (0..length).map(link).collect();
    json!({ "$ref": "#/$defs/l0", "$defs": links })
}

/// What each tool may have alone, many may not have together.
#[test]
fn the_schemas_of_a_request_are_limited_together() {
    let words = smollm2();
    let tool = |parameters: &Value| json!({ "type": "object", "properties": parameters });
    let wide = tool(&Value::Object(properties(1_000, &json!({ "type": "null" }))));
    let long = tool(&json!({ "a": { "description": "a".repeat(500 << 10) } }));
    let many = tool(&json!({ "a": { "enum": (0..19_000).collect::<Vec<_>>() } }));
    for (schema, unit) in [(wide, "properties"), (long, "bytes of text"), (many, "JSON values")] {
        let tool = |strictness| ToolSchema { name: "f", parameters: &schema, strictness };
        let work = Work::begin();
        let calls = [tool(SchemaStrictness::Relaxed); 512];
        let calls = words.grammars.tool_calls(&HERMES, &calls, true).unwrap_err();
        assert!(work.spent() < Duration::from_secs(5), "{unit}");
        let GrammarError::Tool { error, .. } = &calls else { panic!("{calls}") };
        assert!(matches!(**error, GrammarError::TooLarge { .. }), "{calls}");
        assert!(calls.to_string().contains(&format!("{unit} together")), "{calls}");
    }
    // None is compiled before the sizes of all are known.
    let small = tool(&Value::Object(properties(30, &json!({ "type": "integer" }))));
    let strict = ToolSchema { name: "f", parameters: &small, strictness: SchemaStrictness::Strict };
    let work = Work::begin();
    let checked = words.grammars.check_strict(&[strict; 512]).unwrap_err();
    assert!(checked.to_string().contains("properties together"), "{checked}");
    assert!(work.spent() < Duration::from_secs(5), "{checked}");
}

fn hostile() -> Vec<(&'static str, Value)> {
    let mut deep = json!({ "type": "integer" });
    for _ in 0..2_000 {
        deep = json!({ "type": "array", "items": deep });
    }
    let mut nested = json!({ "type": "integer" });
    for _ in 0..60 {
        nested = json!({ "type": "array", "items": nested });
    }
    let doubling: Map<String, Value> = (0..40)
        .map(|index| {
            let next = json!({ "$ref": format!("#/$defs/d{}", index + 1) });
            let both = json!({ "allOf": [{ "anyOf": [next, next] }, { "anyOf": [next, { "type": "object" }] }] });
            (format!("d{index}"), if index == 39 { json!({ "type": "object" }) } else { both })
        })
        .collect();
    let texts =
        |count: usize| (0..count).map(|n| json!(format!("value number {n}"))).collect::<Vec<_>>();
    vec![
        ("deep", deep),
        ("nested", nested),
        ("chain of 100", chain(100)),
        ("chain of 700", chain(700)),
        ("chain of 5000", chain(5_000)),
        ("doubling", json!({ "$ref": "#/$defs/d0", "$defs": doubling })),
        ("enum of 1 MB", json!({ "enum": texts(60_000) })),
        ("enum", json!({ "enum": texts(15_000) })),
        (
            "properties",
            json!({ "type": "object", "properties": properties(9_000, &json!({ "type": "integer" })) }),
        ),
        (
            "optional",
            json!({ "type": "object", "properties": properties(1_900, &json!({ "type": "integer" })) }),
        ),
        ("merged", {
            let half = |name: &str| {
                properties(900, &json!({ "type": "integer" }))
                    .into_iter()
                    .map(|(key, value)| (format!("{name}{key}"), value))
                    .collect::<Map<_, _>>()
            };
            let both = json!({ "allOf": [{ "$ref": "#/$defs/a" }, { "$ref": "#/$defs/b" }] });
            json!({ "type": "object", "properties": properties(20, &both), "$defs": { "a": { "properties": half("a") }, "b": { "properties": half("b") } } })
        }),
        ("required", json!({ "type": "object", "required": texts(9_000) })),
        (
            "combined",
            json!({ "properties": properties(1_500, &json!({ "type": "null" })), "anyOf": vec![json!({ "type": "null" }); 1_000] }),
        ),
        (
            "one of many",
            json!({ "oneOf": (0..1_000).map(|n| json!({ "const": n })).collect::<Vec<_>>() }),
        ),
        ("loop", json!({ "$ref": "#" })),
        (
            "loop of two",
            json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
        ),
        (
            "endless",
            json!({ "type": "object", "properties": { "a": { "$ref": "#" } }, "required": ["a"] }),
        ),
        ("loop beside", json!({ "allOf": [{ "$ref": "#" }], "type": "object" })),
        (
            "expression",
            json!({ "type": "string", "pattern": "^(((a{1,900}){1,900}){1,900}){1,900}$" }),
        ),
        ("exponential", json!({ "type": "string", "pattern": "(a|b)*a(a|b){60}$" })),
        ("groups", json!({ "type": "string", "pattern": "(".repeat(4_000) })),
        (
            "lengths",
            json!({ "type": "string", "minLength": 1_000_000_000, "maxLength": 4_000_000_000u64 }),
        ),
        (
            "items",
            json!({ "type": "array", "items": { "type": "integer" }, "minItems": 1_000_000_000, "maxItems": 2_000_000_000 }),
        ),
        ("multiple", json!({ "type": "number", "multipleOf": 1e-300 })),
        (
            "multiples",
            json!({ "allOf": [{ "multipleOf": 999_999_937 }, { "multipleOf": 999_999_929 }, { "multipleOf": 999_999_893 }], "type": "integer" }),
        ),
        ("zero", json!({ "type": "integer", "multipleOf": 0 })),
        ("options", json!({ "type": "string", "x-guidance": { "whitespace_pattern": "(" } })),
    ]
}

/// Compiles and walks a little: neither may take long, panic, or exhaust the stack.
#[test]
fn hostile_schemas_end_soon() {
    let words = smollm2();
    for (name, schema) in hostile() {
        for strictness in [SchemaStrictness::Strict, SchemaStrictness::Relaxed] {
            let work = Work::begin();
            let result = words.grammars.json_schema_with(&schema, strictness);
            let compiled = work.spent();
            let said = match result {
                Err(error) => error.to_string(),
                Ok(mut constraint) => follow(&words, constraint.as_mut()),
            };
            let said: String = said.chars().take(160).collect();
            println!("{name}, {strictness:?}: {compiled:?} to compile, {:?}: {said}", work.spent());
            assert!(work.spent() < Duration::from_secs(15), "{name}: {said}");
        }
    }
}

/// Some tokens of an answer. If the constraint fails on the way it allows nothing, is not complete,
/// and says why.
fn follow(words: &support::Words, constraint: &mut dyn pianola_engine::Constraint) -> String {
    let mut random = Random(5);
    for taken in 0..20 {
        if constraint.is_complete() {
            return format!("complete after {taken}");
        }
        let allowed = words.allowed(constraint);
        let Some(&token) = allowed.get(random.below(allowed.len())) else {
            let failure = constraint.failure().expect("a reason");
            assert!(!constraint.is_complete() && !constraint.advance(5));
            return format!("failed after {taken}: {failure}");
        };
        if !constraint.advance(token) {
            let failure = constraint.failure();
            assert!(failure.is_some() || words.tokenizer.stop_tokens().contains(&token));
            return format!("ended after {taken}: {failure:?}");
        }
    }
    "still going".into()
}

#[test]
fn grammars_that_are_wrong_say_where() {
    let words = smollm2();
    for (grammar, part) in [
        ("", ""),
        ("start: \"a\"\nword /b/\n", "line 2, column"),
        ("start: missing\n", "missing"),
        ("begin: \"a\"\n", "start"),
        ("start: /(?!x)y/\n", ""),
        ("root ::= \"a\"\n", "line 1 is in GBNF"),
    ] {
        match words.grammars.lark(grammar) {
            Err(GrammarError::Refused { what, reason }) => {
                assert_eq!(what, "rules");
                assert!(reason.contains(part) && !reason.contains('\n'), "{grammar:?}: {reason}");
            }
            Err(other) => panic!("{grammar:?}: {other}"),
            Ok(_) => panic!("{grammar:?} is accepted"),
        }
    }
}

#[test]
fn hostile_grammars_end_soon() {
    let words = smollm2();
    let chain: String = (0..4_000).map(|at| format!("T{at}: T{}\n", at + 1)).collect();
    let repeated = format!("start: {}\n", "/a{1000}/{1000} ".repeat(50));
    let nested = format!("start: {}\"a\"{}\n", "(".repeat(120), ")".repeat(120));
    let wide: String = (0..3_000).map(|at| format!("| \"{at}\" ")).collect();
    for grammar in [
        format!("start: T0\n{chain}T4000: /a/\n"),
        repeated,
        nested,
        format!("start: \"x\" {wide}\n"),
        "start: start start | \"a\"\n".to_string(),
    ] {
        let begun = Instant::now();
        // Accepted or not: soon, and without an end of the process.
        drop(words.grammars.lark(&grammar));
        assert!(begun.elapsed() < Duration::from_secs(20), "{:.60}", grammar);
    }
}
