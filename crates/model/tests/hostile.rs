//! Configurations that no model has: an error that names the key, never a panic or a huge
//! allocation.

use pianola_formats::{GgufWriter, Tensor, TensorType, Value};
use pianola_model::ModelFile;
use std::path::Path;

/// A GGUF whose keys are a small llama's, but for `key`.
fn config_error(name: &str, key: &str, value: Value) -> String {
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", "llama");
    let keys: [(&str, Value); 8] = [
        ("llama.block_count", 1u32.into()),
        ("llama.embedding_length", 32u32.into()),
        ("llama.feed_forward_length", 64u32.into()),
        ("llama.attention.head_count", 2u32.into()),
        ("llama.attention.head_count_kv", 2u32.into()),
        ("llama.context_length", 64u32.into()),
        ("llama.rope.freq_base", 10_000f32.into()),
        ("llama.attention.layer_norm_rms_epsilon", 1e-5f32.into()),
    ];
    for (known, standard) in keys {
        writer.set(known, if known == key { value.clone() } else { standard });
    }
    if !key.starts_with("llama.") || key.contains("scaling") {
        writer.set(key, value);
        writer.set("llama.rope.scaling.type", "linear");
    }
    let embedding = Tensor {
        name: "token_embd.weight".to_string(),
        ty: TensorType::F32,
        shape: vec![4, 32],
        bytes: vec![0; 4 * 32 * 4].into(),
    };
    writer.add(embedding);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.gguf"));
    writer.write(&path).unwrap();
    let file = ModelFile::open(&path).unwrap();
    let result = file
        .config()
        .and_then(|config| pianola_model::graph(&config, file.source(), None).map(|_| ()));
    result.unwrap_err().to_string()
}

#[test]
fn impossible_numbers_are_named() {
    let cases: [(&str, &str, Value, &str); 9] = [
        ("layers", "llama.block_count", (1u64 << 60).into(), "layers"),
        ("no-layers", "llama.block_count", 0u32.into(), "layers"),
        ("hidden", "llama.embedding_length", u64::MAX.into(), "hidden size"),
        ("kv-heads", "llama.attention.head_count_kv", 3u32.into(), "kv heads"),
        ("no-heads", "llama.attention.head_count", 0u32.into(), "heads"),
        ("base", "llama.rope.freq_base", f32::NAN.into(), "rope base"),
        ("base-text", "llama.rope.freq_base", "10000".into(), "rope.freq_base"),
        ("epsilon", "llama.attention.layer_norm_rms_epsilon", 0f32.into(), "epsilon"),
        ("factor", "llama.rope.scaling.factor", 0f32.into(), "rope factor"),
    ];
    for (name, key, value, expected) in cases {
        let found = config_error(name, key, value);
        assert!(found.contains(expected), "{key}: {found}");
    }
}

#[test]
fn a_missing_tensor_is_named() {
    let found = config_error("tensors", "llama.context_length", 128u32.into());
    assert!(found.contains("output_norm.weight") || found.contains("blk.0"), "{found}");
}
