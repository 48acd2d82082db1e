//! Keys as the files of published models have them: none of these may be refused. The numbers are those of
//! the small models here.

use crate::small::{self, Added};
use pianola_formats::{Array, Value};
use serde_json::json;

/// What every converted file has beside the keys of its architecture.
const COMMON: [(&str, u32); 3] = [
    ("general.file_type", 15),
    ("general.quantization_version", 2),
    ("quantize.imatrix.entries_count", 8),
];

fn accept(shape: &str, architecture: &str, keys: &[(&str, Value)]) {
    let common = COMMON.map(|(key, value)| (key.to_string(), Value::from(value)));
    let own = keys.iter().map(|(key, value)| {
        let full = if key.contains("general.") {
            key.to_string()
        } else {
            format!("{architecture}.{key}")
        };
        (full, value.clone())
    });
    let all: Vec<(String, Value)> = common.into_iter().chain(own).collect();
    let keys: Vec<(&str, Value)> =
        all.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
    let name = format!("real-{architecture}-{}", keys.len());
    let added = Added { keys: &keys, ..Added::default() };
    let path = small::gguf(&name, &small::config(shape), architecture, added);
    small::read(&path).unwrap_or_else(|error| panic!("{architecture}: {error}"));
}

#[test]
fn keys_of_converted_ggufs_are_accepted() {
    let dimensions = || ("rope.dimension_count", Value::from(16u32));
    let vocabulary = || ("vocab_size", Value::from(8u32));
    accept("llama3:8b", "llama", &[vocabulary(), dimensions()]);
    // Of the first converter, and of a mixture's writer for a dense model.
    let old = [
        dimensions(),
        ("tensor_data_layout", "Meta AI original pth".into()),
        ("rope.scaling.finetuned", false.into()),
        ("rope.scale_linear", 1f32.into()),
        ("expert_count", 0u32.into()),
        ("expert_used_count", 0u32.into()),
    ];
    accept("llama3:8b", "llama", &old);
    accept("mistral:7b", "llama", &[vocabulary(), ("attention.sliding_window", 32u32.into())]);
    let stretched = [
        ("rope.scaling.type", "yarn".into()),
        ("rope.scaling.factor", 4f32.into()),
        ("rope.scaling.original_context_length", 32u32.into()),
        ("rope.scaling.yarn_ext_factor", 1f32.into()),
        ("rope.scaling.yarn_attn_factor", 1f32.into()),
        ("rope.scaling.yarn_beta_fast", 16f32.into()),
        ("rope.scaling.yarn_beta_slow", 2f32.into()),
    ];
    accept("qwen2.5:7b", "qwen2", &stretched);
    accept("qwen3:8b", "qwen3", &stretched[..3]);
    accept("qwen3:8b", "qwen3", &[dimensions()]);
    let capped = [
        ("attn_logit_softcapping", 50f32.into()),
        ("final_logit_softcapping", 30f32.into()),
        ("attention.sliding_window", 32u32.into()),
    ];
    accept("gemma2:9b", "gemma2", &capped);
    let gemma = [
        ("attention.sliding_window", 32u32.into()),
        ("attention.sliding_window_pattern", Value::Array(Array::Bool(vec![true, false]))),
        ("rope.freq_base_swa", 1e4f32.into()),
        ("rope.scaling.type", "linear".into()),
        ("rope.scaling.factor", 8f32.into()),
        // Of the part that reads pictures, in one file with the text.
        ("mm.tokens_per_image", 256u32.into()),
        ("vision.block_count", 27u32.into()),
        ("vision.attention.layer_norm_epsilon", 1e-6f32.into()),
    ];
    accept("gemma3:4b", "gemma3", &gemma);
    // By Ollama's converter.
    accept("gemma3:270m", "gemma3", &[("rope.local.freq_base", 1e4f32.into())]);
    let llama = [vocabulary(), dimensions(), ("attention.head_dim", 16u32.into())];
    accept("llama3:8b", "llama", &llama);
    let phi = [
        dimensions(),
        ("attention.sliding_window", 0u32.into()),
        ("rope.scaling.original_context_length", 64u32.into()),
    ];
    accept("phi3:mini", "phi3", &phi);
}

/// Reads a golden case with the keys of a published model of its family.
fn accept_folder(case: &str, keys: serde_json::Value) {
    let rewrite = |config: &mut serde_json::Value| {
        let config = config.as_object_mut().unwrap();
        // Older versions of transformers wrote the base and the stretching apart.
        config.remove("rope_parameters");
        config.extend(keys.as_object().unwrap().clone());
    };
    let path = small::folder(case, &format!("real-{case}"), rewrite, &[]);
    small::read(&path).unwrap_or_else(|error| panic!("{case}: {error}"));
}

#[test]
fn keys_of_published_folders_are_accepted() {
    let common = json!({
        "_name_or_path": "someone/a-model", "torch_dtype": "bfloat16", "use_cache": true,
        "transformers_version": "4.40.1", "initializer_range": 0.02, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": [1, 2], "attention_dropout": 0.0
    });
    let with = |keys: serde_json::Value| {
        let mut all = common.clone();
        all.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        all
    };
    // Llama 2, and SmolLM2, and Falcon 3 under Llama's name, and a tuned one.
    accept_folder(
        "llama-bias",
        with(json!({
            "rope_theta": 10000.0, "rope_scaling": null, "pretraining_tp": 1,
            "is_llama_config": true, "rope_interleaved": false, "activation": "swiglu",
            "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
            "unsloth_fixed": true, "unsloth_version": "2025.3", "neftune_noise_alpha": 5,
            "max_sequence_length": 2048, "quantization_config": null, "model_max_length": 4096
        })),
    );
    accept_folder(
        "llama3-rope",
        with(json!({
            "rope_theta": 500.0, "pretraining_tp": 1,
            "rope_scaling": {
                "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                "original_max_position_embeddings": 64, "rope_type": "llama3"
            }
        })),
    );
    accept_folder("mistral", with(json!({"rope_theta": 10000.0, "sliding_window": 4096})));
    accept_folder(
        "phi3-short",
        with(json!({
            "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "embd_pdrop": 0.0,
            "resid_pdrop": 0.0, "attention_bias": false, "rope_theta": 10000.0,
            "original_max_position_embeddings": 4096, "rope_scaling": null,
            "sliding_window": 2047
        })),
    );
    accept_folder(
        "phi3-long",
        with(json!({
            "rope_theta": 10000.0, "original_max_position_embeddings": 32,
            "rope_scaling": {
                "long_factor": [1.1, 1.5, 2.0, 3.0, 4.5, 6.0, 7.0, 8.0],
                "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6], "type": "su"
            }
        })),
    );
    accept_folder(
        "qwen2-window",
        with(json!({
            "rope_theta": 1000000.0, "sliding_window": 131072, "use_sliding_window": false,
            "max_window_layers": 28, "use_mrope": false, "layer_types": null
        })),
    );
    accept_folder(
        "qwen2-yarn",
        with(json!({
            "rope_theta": 1000000.0,
            "rope_scaling": {
                "factor": 4.0, "original_max_position_embeddings": 64, "type": "yarn",
                "rope_type": "yarn"
            }
        })),
    );
    accept_folder("qwen3", with(json!({"rope_theta": 1000000.0, "rope_scaling": null})));
    accept_folder(
        "gemma2",
        with(json!({
            "rope_theta": 10000.0, "cache_implementation": "hybrid",
            "hidden_act": "gelu_pytorch_tanh"
        })),
    );
    accept_folder(
        "gemma3",
        with(json!({
            "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": null,
            "cache_implementation": "hybrid", "sliding_window_pattern": 2
        })),
    );
}

/// A text model inside one that reads pictures: keys of the pictures stand beside `text_config`.
#[test]
fn keys_of_a_multimodal_folder_are_accepted_beside_the_text_model() {
    let nested = |outer: serde_json::Value| {
        let rewrite = |config: &mut serde_json::Value| {
            let text = std::mem::take(config);
            *config = outer;
            config["text_config"] = text;
        };
        small::read(&small::folder("gemma3", "real-nested", rewrite, &[]))
    };
    let outer = json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
        "boi_token_index": 255999, "eoi_token_index": 256000, "image_token_index": 262144,
        "mm_tokens_per_image": 256, "initializer_range": 0.02, "eos_token_id": [1, 106],
        "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27}, "dtype": "bfloat16"
    });
    nested(outer.clone()).unwrap();
    let mut with = outer;
    with["hidden_act"] = json!("relu");
    let found = nested(with).unwrap_err().to_string();
    assert!(found.contains("hidden_act = \"relu\""), "{found}");
}
