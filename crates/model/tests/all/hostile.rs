//! Configurations that no model has: an error that names the key, never a panic or a huge
//! allocation.

use pianola_formats::{Array, GgufWriter, Tensor, TensorType, Value};
use pianola_model::ModelFile;
use serde_json::json;
use std::path::Path;

/// Why a model cannot become a graph.
fn error_of(path: &Path) -> String {
    let file = ModelFile::open(path).unwrap();
    let result = file
        .config()
        .and_then(|config| pianola_model::graph(&config, file.source(), None).map(|_| ()));
    result.unwrap_err().to_string()
}

/// A GGUF with the keys and tensors of a small model, but for those given.
fn gguf_error(
    name: &str,
    architecture: &str,
    keys: &[(&str, Value)],
    tensors: &[(&str, &[usize])],
) -> String {
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", architecture);
    let standard: [(&str, Value); 8] = [
        ("block_count", 1u32.into()),
        ("embedding_length", 32u32.into()),
        ("feed_forward_length", 64u32.into()),
        ("attention.head_count", 2u32.into()),
        ("attention.head_count_kv", 2u32.into()),
        ("context_length", 64u32.into()),
        ("rope.freq_base", 10_000f32.into()),
        ("attention.layer_norm_rms_epsilon", 1e-5f32.into()),
    ];
    let kept = standard.iter().filter(|(key, _)| keys.iter().all(|(given, _)| given != key));
    for (key, value) in kept.chain(keys) {
        writer.set(format!("{architecture}.{key}"), value.clone());
    }
    let embedding: (&str, &[usize]) = ("token_embd.weight", &[4, 32]);
    for (name, shape) in [embedding].iter().chain(tensors) {
        let ones = vec![1f32; shape.iter().product()];
        let bytes: Vec<u8> = ones.iter().flat_map(|one| one.to_le_bytes()).collect();
        let (ty, shape) = (TensorType::F32, shape.to_vec());
        writer.add(Tensor { name: name.to_string(), ty, shape, bytes: bytes.into() });
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.gguf"));
    writer.write(&path).unwrap();
    error_of(&path)
}

/// A golden case with another configuration.
fn folder_error(case: &str, name: &str, rewrite: impl Fn(&mut serde_json::Value)) -> String {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case);
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&target).unwrap();
    let text = std::fs::read_to_string(golden.join("config.json")).unwrap();
    let mut config = serde_json::from_str(&text).unwrap();
    rewrite(&mut config);
    std::fs::write(target.join("config.json"), config.to_string()).unwrap();
    std::fs::copy(golden.join("model.safetensors"), target.join("model.safetensors")).unwrap();
    error_of(&target)
}

fn assert_names(found: &str, parts: &[&str]) {
    assert!(parts.iter().all(|part| found.contains(part)), "{found}: not {parts:?}");
}

#[test]
fn impossible_numbers_are_named() {
    let cases: [(&str, &str, Value, &str); 9] = [
        ("layers", "block_count", (1u64 << 60).into(), "layers"),
        ("no-layers", "block_count", 0u32.into(), "layers"),
        ("hidden", "embedding_length", u64::MAX.into(), "hidden size"),
        ("kv-heads", "attention.head_count_kv", 3u32.into(), "kv heads"),
        ("no-heads", "attention.head_count", 0u32.into(), "heads"),
        ("base", "rope.freq_base", f32::NAN.into(), "rope base"),
        ("base-text", "rope.freq_base", "10000".into(), "rope.freq_base"),
        ("epsilon", "attention.layer_norm_rms_epsilon", 0f32.into(), "epsilon"),
        ("factor", "rope.scaling.factor", 0f32.into(), "rope factor"),
    ];
    for (name, key, value, expected) in cases {
        let found = gguf_error(name, "llama", &[(key, value)], &[]);
        assert!(found.contains(expected), "{key}: {found}");
    }
}

#[test]
fn a_missing_tensor_is_named() {
    let found = gguf_error("tensors", "llama", &[("context_length", 128u32.into())], &[]);
    assert!(found.contains("blk.0.attn_norm.weight"), "{found}");
}

#[test]
fn window_patterns_of_another_length_are_named() {
    let windows = |pattern: Value| {
        [("attention.sliding_window", 8u32.into()), ("attention.sliding_window_pattern", pattern)]
    };
    let list = Value::Array(Array::Bool(vec![true, false]));
    let found = gguf_error("pattern-long", "gemma3", &windows(list), &[]);
    assert_names(
        &found,
        &["gemma3.attention.sliding_window_pattern", "a list of 2", "of 1 layers"],
    );
    let words = Value::Array(Array::String(vec!["yes".to_string()]));
    let found = gguf_error("pattern-text", "gemma3", &windows(words), &[]);
    assert_names(&found, &["gemma3.attention.sliding_window_pattern", "true or false"]);
    let found = gguf_error("pattern-zero", "gemma2", &windows(0u32.into()), &[]);
    assert_names(&found, &["gemma2.attention.sliding_window_pattern = 0", "at least 1"]);
    let found = folder_error("gemma2", "types-short", |config| {
        config["layer_types"] = json!(["sliding_attention", "full_attention"]);
    });
    assert_names(&found, &["layer_types", "all 3 layers"]);
    let found = folder_error("gemma2", "types-zero", |config| {
        config["sliding_window_pattern"] = json!(0);
    });
    assert_names(&found, &["sliding_window_pattern = 0", "at least 1"]);
    let found = folder_error("mistral", "window-zero", |config| {
        config["sliding_window"] = json!(0);
    });
    assert_names(&found, &["sliding window = 0", "at least 1"]);
}

#[test]
fn rotary_divisors_are_counted() {
    const SHORT: &str = "rope_factors_short.weight";
    const LONG: &str = "rope_factors_long.weight";
    let original = [("rope.scaling.original_context_length", Value::from(32u32))];
    let found = gguf_error("no-long", "phi3", &original, &[(SHORT, &[8])]);
    assert_names(&found, &[LONG, "missing"]);
    let found = gguf_error("no-short", "phi3", &original, &[(LONG, &[8])]);
    assert_names(&found, &[SHORT, "missing"]);
    let found = gguf_error("few-long", "phi3", &original, &[(SHORT, &[8]), (LONG, &[4])]);
    assert_names(&found, &[LONG, "[4]", "[8]"]);
    let found = gguf_error("no-original", "phi3", &[], &[(SHORT, &[8]), (LONG, &[8])]);
    assert_names(&found, &["phi3.rope.scaling.original_context_length"]);
    let named = [("rope.scaling.type", Value::from("longrope"))];
    assert_names(&gguf_error("no-divisors", "phi3", &named, &[]), &[SHORT, "missing"]);
    let rope = |name: &str, key: &str, value: serde_json::Value| {
        folder_error("phi3-short", name, |config| config["rope_parameters"][key] = value.clone())
    };
    assert_names(
        &rope("null-short", "short_factor", json!(null)),
        &["'rope_parameters.short_factor'"],
    );
    assert_names(&rope("few-short", "short_factor", json!([1.0])), &["short_factor", "8 numbers"]);
    let words = json!(["a", "b", "c", "d", "e", "f", "g", "h"]);
    assert_names(&rope("text-long", "long_factor", words), &["long_factor", "8 numbers"]);
    let zeros = json!([0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    assert_names(&rope("zero-long", "long_factor", zeros), &["rope long factor = 0", "positive"]);
    let part = rope("partial", "partial_rotary_factor", json!(0.75));
    assert_names(&part, &["partial_rotary_factor = 0.75", "whole heads"]);
    let original = |config: &mut serde_json::Value| {
        config["original_max_position_embeddings"] = json!(1);
    };
    let found = folder_error("phi3-short", "original-two", original);
    assert_names(&found, &["original_max_position_embeddings = 128", "beside the table it is 1"]);
    let found = folder_error("phi3-short", "original-one", |config| {
        original(config);
        original(&mut config["rope_parameters"]);
    });
    assert_names(&found, &["attention factor", "positive"]);
}

#[test]
fn fused_tensors_of_another_shape_are_named() {
    let tensors: [(&str, &[usize]); 3] = [
        ("blk.0.attn_norm.weight", &[32]),
        ("blk.0.attn_qkv.weight", &[64, 32]),
        ("blk.0.attn_output.weight", &[32, 32]),
    ];
    let found = gguf_error("qkv", "phi3", &[], &tensors);
    assert_names(&found, &["blk.0.attn_qkv.weight", "[64, 32]", "expected [96, 32]"]);
    let found = gguf_error("no-qkv", "phi3", &[], &tensors[..1]);
    assert_names(&found, &["blk.0.attn_qkv.weight", "missing"]);
    let found = folder_error("phi3-short", "kv-heads", |config| {
        config["num_key_value_heads"] = json!(4);
    });
    assert_names(
        &found,
        &["layers.0.self_attn.qkv_proj.weight", "[128, 64]", "expected [192, 64]"],
    );
    let found = folder_error("phi3-short", "gate-up", |config| {
        config["intermediate_size"] = json!(100);
    });
    assert_names(&found, &["layers.0.mlp.gate_up_proj.weight", "[192, 64]", "expected [200, 64]"]);
}
