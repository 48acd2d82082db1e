//! Constraints as the engine uses them: guesses taken back, copies, and whole answers of a model.

use crate::support::{Random, checker, model, schemas, smollm2};
use pianola_engine::sampler::Sampling;
use pianola_engine::{Engine, EngineError, LoadOptions, Request, Service, Speculation};
use pianola_grammar::Grammars;
use pianola_text::SpecialTokens;
use proptest::prelude::*;
use serde_json::{Value, json};

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// After k tokens and a step back of j, masks are those of a constraint that took k - j.
    #[test]
    fn rollback_leads_to_the_state_before(seed in 1u64..1_000_000, steps in 1usize..60, back in 0usize..60) {
        let words = smollm2();
        let all = schemas::all();
        let (name, schema) = &all[seed as usize % all.len()];
        let mut constraint = words.grammars.json_schema(schema).unwrap();
        let fresh = constraint.clone();
        let mut random = Random(seed);
        let mut tokens: Vec<u32> = Vec::new();
        let mut masks = Vec::new();
        while tokens.len() < steps && !constraint.is_complete() {
            masks.push(words.mask(constraint.as_mut()));
            // A token that is not allowed changes nothing.
            let other = random.below(words.vocabulary) as u32;
            let mask = masks.last().unwrap();
            if mask[other as usize / 32] >> (other % 32) & 1 == 0 {
                prop_assert!(!constraint.advance(other), "{name}: {other}");
                prop_assert_eq!(&words.mask(constraint.as_mut()), mask);
            }
            let allowed = words.allowed(constraint.as_mut());
            let token = allowed[random.below(allowed.len())];
            if words.tokenizer.stop_tokens().contains(&token) {
                break;
            }
            prop_assert!(constraint.advance(token));
            tokens.push(token);
        }
        let back = back.min(tokens.len());
        let copy_before = constraint.clone();
        constraint.rollback(back);
        let kept = tokens.len() - back;
        let mut again = fresh.clone();
        for &token in &tokens[..kept] {
            prop_assert!(again.advance(token));
        }
        prop_assert_eq!(constraint.is_complete(), again.is_complete());
        prop_assert_eq!(words.mask(constraint.as_mut()), words.mask(again.as_mut()));
        if kept < masks.len() {
            prop_assert_eq!(&words.mask(constraint.as_mut()), &masks[kept]);
        }
        // A copy keeps its own state.
        let mut copy = copy_before;
        for &token in &tokens[kept..] {
            prop_assert!(constraint.advance(token));
        }
        prop_assert_eq!(words.mask(constraint.as_mut()), words.mask(copy.as_mut()));
    }
}

/// A schema whose parser exceeds its limits after a few properties.
fn too_many_properties() -> Value {
    let name = |index: usize| (format!("property_{index}"), json!({ "type": "integer" }));
    let properties: serde_json::Map<String, Value> = (0..1_900).map(name).collect();
    json!({ "type": "object", "properties": properties, "required": ["property_1899"] })
}

/// After a failure the parser cannot go back; the constraint can.
#[test]
fn rollback_mends_a_failure() {
    let words = smollm2();
    let mut constraint = words.grammars.json_schema(&too_many_properties()).unwrap();
    let first = words.mask(constraint.as_mut());
    let text: String = (0..20).map(|index| format!("\"property_{index}\":{index},")).collect();
    let tokens = words.tokenizer.encode(&format!("{{{text}"), SpecialTokens::Plain).unwrap();
    let mut taken = 0;
    for &token in &tokens {
        words.mask(constraint.as_mut());
        if !constraint.advance(token) {
            break;
        }
        taken += 1;
    }
    assert!(constraint.failure().is_some(), "no failure after {taken} tokens");
    constraint.rollback(taken);
    assert!(constraint.failure().is_none(), "{:?}", constraint.failure());
    assert_eq!(words.mask(constraint.as_mut()), first);
}

fn load() -> Engine {
    let options = LoadOptions { context: Some(1024), lanes: 2, ..LoadOptions::default() };
    Engine::load(&model("smollm2.gguf"), options, &mut |_, _| ()).unwrap()
}

/// A parser that exceeds its limits ends the request in an error that says so.
#[test]
fn a_failure_reaches_the_caller() {
    let service = Service::start(load());
    let tokenizer = &service.text().unwrap().tokenizer;
    let grammars = Grammars::new(tokenizer, service.info().vocabulary).unwrap();
    let request = Request {
        max_tokens: Some(50),
        constraint: Some(grammars.json_schema(&too_many_properties()).unwrap()),
        ..Request::new(tokenizer.encode_prompt("JSON: ", SpecialTokens::Plain).unwrap())
    };
    let mut stream = service.submit(request).unwrap();
    let error = stream.find_map(Result::err).expect("an error");
    let EngineError::ConstraintFailed { reason, .. } = error else { panic!("{error}") };
    assert!(reason.contains("items") && reason.contains("simplify"), "{reason}");
}

#[test]
fn a_model_writes_valid_json_with_guesses() {
    let mut engine = load();
    engine.set_speculation(Speculation::Lookup).unwrap();
    let service = Service::start(engine);
    let tokenizer = &service.text().unwrap().tokenizer;
    let grammars = Grammars::new(tokenizer, service.info().vocabulary).unwrap();
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["people"],
        "properties": { "people": { "type": "array", "minItems": 2, "maxItems": 4, "items": {
            "type": "object", "additionalProperties": false, "required": ["name", "age", "role"],
            "properties": {
                "name": { "type": "string", "minLength": 1, "maxLength": 20 },
                "age": { "type": "integer", "minimum": 0, "maximum": 120 },
                "role": { "enum": ["cook", "pilot", "nurse"] }
            }
        } } }
    });
    let prompt = "People as JSON: {\"people\": [{\"name\": \"Ada\", \"age\": 36, \"role\": \"pilot\"}]}\nMore people as JSON: ";
    let constraint = grammars.json_schema(&schema).unwrap();
    for (sampling, seed) in [
        (Sampling::greedy(), 1),
        (Sampling { temperature: 1.0, ..Sampling::default() }, 2),
        (Sampling { temperature: 1.0, ..Sampling::default() }, 3),
    ] {
        let request = Request {
            sampling,
            seed: Some(seed),
            max_tokens: Some(400),
            constraint: Some(constraint.clone()),
            ..Request::new(tokenizer.encode_prompt(prompt, SpecialTokens::Plain).unwrap())
        };
        let mut stream = service.submit(request).unwrap();
        let text: String = stream.by_ref().map(Result::unwrap).collect();
        println!("{:?}: {text}", stream.answer().map(|answer| answer.finish));
        let value: Value = serde_json::from_str(&text).expect(&text);
        checker::check(&schema, &schema, &value).unwrap();
    }
    assert!(service.report().unwrap().counters.drafted_tokens > 0, "nothing was guessed");
}
