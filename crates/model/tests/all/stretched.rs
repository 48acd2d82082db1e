//! Numbers that files leave to their reader: those of YaRN, and the epsilon of norms.

use crate::small::{self, Added};
use pianola_formats::Value;
use pianola_model::RopeScaling;
use serde_json::json;

/// Factor, turns, training context and magnitude.
fn yarn(scaling: &RopeScaling) -> [f64; 5] {
    match *scaling {
        RopeScaling::Yarn { factor, fast, slow, original, magnitude } => {
            [factor, fast, slow, original, magnitude]
        }
        ref other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_near(found: [f64; 5], expected: [f64; 5]) {
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12 * b.abs();
    assert!(found.iter().zip(&expected).all(near), "{found:?} for {expected:?}");
}

/// A tenth of the natural logarithm of 4, and 1.
const MAGNITUDE: f64 = 1.138_629_436_111_989;

#[test]
fn a_gguf_leaves_the_turns_and_the_magnitude_of_yarn_to_the_reader() {
    let read = |name: &str, factor: f32, more: &[(&str, Value)]| {
        let mut keys = vec![
            ("qwen2.rope.scaling.type", "yarn".into()),
            ("qwen2.rope.scaling.factor", factor.into()),
            ("qwen2.rope.scaling.original_context_length", 32u32.into()),
        ];
        keys.extend(more.iter().cloned());
        let added = Added { keys: &keys, ..Added::default() };
        let path = small::gguf(name, &small::config("qwen2.5:7b"), "qwen2", added);
        yarn(&small::read(&path).unwrap().rope.scaling)
    };
    assert_near(read("yarn", 4.0, &[]), [4.0, 32.0, 1.0, 32.0, MAGNITUDE]);
    // Nothing is stretched.
    assert_near(read("yarn-of-one", 1.0, &[]), [1.0, 32.0, 1.0, 32.0, 1.0]);
    let turns = [
        ("qwen2.rope.scaling.yarn_beta_fast", 16f32.into()),
        ("qwen2.rope.scaling.yarn_beta_slow", 2f32.into()),
    ];
    assert_near(read("yarn-turns", 4.0, &turns), [4.0, 16.0, 2.0, 32.0, MAGNITUDE]);
}

#[test]
fn a_folder_leaves_the_turns_and_the_magnitude_of_yarn_to_the_reader() {
    let read = |name: &str, key: &str, value: serde_json::Value| {
        let rewrite = |config: &mut serde_json::Value| config["rope_parameters"][key] = value;
        yarn(&small::read(&small::folder("qwen2-yarn", name, rewrite, &[])).unwrap().rope.scaling)
    };
    let plain = read("yarn-plain", "factor", json!(4.0));
    assert_near(plain, [4.0, 32.0, 1.0, 64.0, MAGNITUDE]);
    let turns = read("yarn-fast", "beta_fast", json!(16.0));
    assert_near(turns, [4.0, 16.0, 1.0, 64.0, MAGNITUDE]);
    let told = read("yarn-magnitude", "attention_factor", json!(1.25));
    assert_near(told, [4.0, 32.0, 1.0, 64.0, 1.25]);
}

/// Families differ, so that none is right for every file.
#[test]
fn a_gguf_without_an_epsilon_is_refused() {
    const KEY: &str = "llama.attention.layer_norm_rms_epsilon";
    let read = |name: &str, added: Added<'_>| {
        small::read(&small::gguf(name, &small::config("llama3:8b"), "llama", added))
    };
    let error = read("no-epsilon", Added { without: &[KEY], ..Added::default() }).unwrap_err();
    assert!(error.to_string().contains(KEY), "{error}");
    let keys = [(KEY, 1e-5f32.into())];
    assert_eq!(read("epsilon", Added { keys: &keys, ..Added::default() }).unwrap().epsilon, 1e-5);
}
