//! What a file holds and nothing reads: each is refused by its name, unless it changes no result.

use crate::small::{self, Added};
use pianola_formats::Value;
use serde_json::json;

fn assert_names(found: &str, parts: &[&str]) {
    assert!(parts.iter().all(|part| found.contains(part)), "{found}: not {parts:?}");
}

/// Why a GGUF of a Llama is refused.
fn gguf_error(name: &str, added: Added<'_>) -> String {
    let path = small::gguf(name, &small::config("llama3:8b"), "llama", added);
    small::read(&path).unwrap_err().to_string()
}

/// Why a folder of a Llama is refused.
fn folder_error(name: &str, key: &str, value: &serde_json::Value) -> String {
    let path = small::folder("llama3-rope", name, |config| config[key] = value.clone(), &[]);
    small::read(&path).unwrap_err().to_string()
}

#[test]
fn tensors_of_a_gguf_are_refused_by_name() {
    let cases = [
        ("blk.0.attn_q_norm.weight", "norms on the heads"),
        ("blk.1.post_attention_norm.weight", "norm behind attention"),
        ("blk.0.attn_sinks.weight", "attention sinks"),
        ("blk.1.attn_q.bias", "a bias"),
        ("output_norm.bias", "a bias"),
        ("output.bias", "a bias"),
        ("blk.0.ffn_gate_inp.weight", "router of a mixture of experts"),
        ("blk.0.ffn_gate_exps.weight", "experts of a mixture of experts"),
        ("blk.2.attn_norm.weight", "layer 2, where the configuration has 2 layers"),
        ("dense_2.weight", "embedding models"),
        ("cls.output.weight", "classifier"),
        ("blk.0.attn_q.weight.lora_a", "LoRA"),
        ("blk.0.ssm_a", "recurrent"),
        ("blk.0.new_thing.weight", "an unknown tensor"),
    ];
    for (name, meaning) in cases {
        let found = gguf_error("tensor", Added { tensors: &[(name, &[32])], ..Added::default() });
        assert_names(&found, &[&format!("'{name}'"), meaning, "llama does not read"]);
    }
    let two: [(&str, &[usize]); 2] = [("output.bias", &[8]), ("output_norm.bias", &[32])];
    let found = gguf_error("tensors", Added { tensors: &two, ..Added::default() });
    assert_names(&found, &["'output.bias' and 1 more"]);
}

/// A mixture in Llama's names has no `ffn_gate.weight`; that is not what is wrong with it.
#[test]
fn a_mixture_is_called_one() {
    let mixture = Added {
        tensors: &[("blk.0.ffn_gate_inp.weight", &[2, 32])],
        without: &["blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"],
        ..Added::default()
    };
    assert_names(&gguf_error("mixture", mixture), &["mixture of experts"]);
    let keys = [("llama.expert_count", Value::from(8u32))];
    let found = gguf_error("mixture-keys", Added { keys: &keys, ..mixture });
    assert_names(&found, &["llama.expert_count = 8", "a mixture of experts"]);
    // Of several keys the one that tells what the file is, not the first.
    let rewrite = |config: &mut serde_json::Value| {
        config["a_new_thing"] = json!(1);
        config["num_experts_per_tok"] = json!(2);
    };
    let folder = small::folder("qwen3", "mixture", rewrite, &[]);
    let found = small::read(&folder).unwrap_err().to_string();
    assert_names(&found, &["num_experts_per_tok = 2", "a mixture of experts"]);
}

#[test]
fn keys_of_a_gguf_are_refused_by_name_unless_neutral() {
    let neutral = |value: Value| Some(value);
    let cases: [(&str, Value, Option<Value>, &str); 21] = [
        ("expert_count", 8u32.into(), neutral(0u32.into()), "mixture of experts"),
        ("expert_used_count", 2u32.into(), neutral(0u32.into()), "mixture of experts"),
        ("attention.scale", 0.5f32.into(), neutral(0.25f32.into()), "it must be 0.25"),
        ("logit_scale", 16f32.into(), neutral(1f32.into()), "logits"),
        ("residual_scale", 0.2f32.into(), neutral(1f32.into()), "factor"),
        ("embedding_scale", 12f32.into(), neutral(1f32.into()), "embeddings"),
        ("attention.causal", false.into(), neutral(true.into()), "both directions"),
        ("attention.clamp_kqv", 8f32.into(), neutral(0f32.into()), "limit"),
        ("pooling_type", 1u32.into(), neutral(0u32.into()), "embedding models"),
        ("classifier.output_labels", vec!["a".to_string()].into(), None, "classifier"),
        ("rope.scaling.attn_factor", 1.2f32.into(), neutral(1f32.into()), "rotated values"),
        ("rope.scaling.yarn_log_multiplier", 0.1f32.into(), neutral(0f32.into()), "rotated"),
        ("rope.scaling.yarn_beta_fast", 16f32.into(), neutral(32f32.into()), "positions"),
        ("rope.scale_linear", 4f32.into(), neutral(1f32.into()), "positions"),
        ("rope.dimension_count", 8u32.into(), neutral(16u32.into()), "head size, 16"),
        ("rope.freq_base_swa", 5f32.into(), neutral(5e5f32.into()), "it must be 500000"),
        ("vocab_size", 9u32.into(), neutral(8u32.into()), "it must be 8"),
        ("nextn_predict_layers", 1u32.into(), neutral(0u32.into()), "further tokens"),
        ("use_parallel_residual", true.into(), neutral(false.into()), "side by side"),
        ("ssm.state_size", 16u32.into(), None, "recurrent"),
        ("new_thing", 1u32.into(), None, "an unknown key"),
    ];
    let config = small::config("llama3:8b");
    for (key, value, neutral, meaning) in cases {
        let key = format!("llama.{key}");
        let keys = [(&*key, value)];
        let found = gguf_error("key", Added { keys: &keys, ..Added::default() });
        assert_names(&found, &[&format!("{key} = "), meaning]);
        if let Some(neutral) = neutral {
            let keys = [(&*key, neutral)];
            let path =
                small::gguf("key", &config, "llama", Added { keys: &keys, ..Added::default() });
            assert_eq!(small::read(&path).unwrap().layers, 2, "{key}");
        }
    }
}

/// Keys of other architectures and other namespaces say nothing about the model.
#[test]
fn other_namespaces_are_free() {
    let keys: [(&str, Value); 6] = [
        ("qwen2.expert_count", 8u32.into()),
        ("general.anything", 1u32.into()),
        ("tokenizer.ggml.anything", 1u32.into()),
        ("quantize.imatrix.chunks_count", 128u32.into()),
        ("split.count", 1u32.into()),
        ("llamas.anything", 1u32.into()),
    ];
    let added = Added { keys: &keys, ..Added::default() };
    small::read(&small::gguf("free", &small::config("llama3:8b"), "llama", added)).unwrap();
}

/// The form that EmbeddingGemma has where it is called `gemma3`.
#[test]
fn an_embedding_model_is_refused() {
    let config = small::config("gemma3:270m");
    let all: [(&str, Value); 2] =
        [("gemma3.attention.causal", false.into()), ("gemma3.pooling_type", 1u32.into())];
    let dense: [(&str, &[usize]); 1] = [("dense.0.weight", &[32, 32])];
    let cases = [
        (Added { keys: &all[..1], ..Added::default() }, "attention in both directions"),
        (Added { keys: &all[1..], ..Added::default() }, "gemma3.pooling_type = 1"),
        (Added { tensors: &dense, ..Added::default() }, "'dense.0.weight'"),
        (Added { keys: &all, tensors: &dense, ..Added::default() }, "gemma3.attention.causal"),
    ];
    for (added, expected) in cases {
        let path = small::gguf("embedding", &config, "gemma3", added);
        assert_names(&small::read(&path).unwrap_err().to_string(), &[expected, "embedding models"]);
    }
}

/// Windowed layers of Gemma 3 have the usual base, global ones do not.
#[test]
fn a_gemma_without_a_base_of_positions_is_refused() {
    let read = |key: &str| {
        let path = small::gguf("base", &small::config("gemma3:270m"), "gemma3", Added::default());
        let bytes = std::fs::read(&path).unwrap();
        let from = b"gemma3.rope.freq_base";
        let at = bytes.windows(from.len()).position(|part| part == from).unwrap();
        let mut renamed = bytes;
        renamed[at..at + from.len()].copy_from_slice(key.as_bytes());
        std::fs::write(&path, renamed).unwrap();
        small::read(&path)
    };
    let found = read("other0.rope.freq_base").unwrap_err().to_string();
    assert_names(&found, &["no 'gemma3.rope.freq_base'"]);
}

#[test]
fn keys_of_a_folder_are_refused_by_name_unless_neutral() {
    let cases = [
        ("num_local_experts", json!(8), json!(0), "a mixture of experts"),
        ("attention_multiplier", json!(0.015), json!(null), "as in Granite"),
        ("logits_scaling", json!(8.0), json!(1.0), "as in Granite"),
        ("residual_multiplier", json!(0.22), json!(1.0), "as in Granite"),
        ("embedding_multiplier", json!(12.0), json!(1.0), "as in Granite"),
        ("no_rope_layers", json!([1, 1, 1, 0]), json!([1, 1]), "as in SmolLM3"),
        ("clip_qkv", json!(8.0), json!(null), "limit"),
        ("is_causal", json!(false), json!(true), "both directions"),
        ("use_bidirectional_attention", json!(true), json!(false), "causal"),
        ("use_sliding_window", json!(true), json!(false), "windows"),
        ("sliding_window", json!(16), json!(null), "windows"),
        ("rope_interleaved", json!(true), json!(false), "rotated values"),
        ("quantization", json!({"bits": 4}), json!(null), "quantised"),
        ("new_thing", json!(1), json!(null), "an unknown key"),
        ("architectures", json!(["LlamaForSequenceClassification"]), json!(null), "another head"),
        ("architectures", json!(["LlamaModel"]), json!(["LlamaForCausalLM"]), "another head"),
        ("layer_types", json!(["full_attention"]), json!(null), "it must list all"),
        ("rope_theta", json!(7.0), json!(500.0), "rope_theta is 7"),
    ];
    for (key, value, neutral, meaning) in cases {
        let found = folder_error("folder-key", key, &value);
        assert_names(&found, &[&format!("{key} = "), meaning]);
        let rewrite = |config: &mut serde_json::Value| config[key] = neutral.clone();
        small::read(&small::folder("llama3-rope", "folder-key", rewrite, &[])).unwrap();
    }
}

#[test]
fn parameters_of_positions_are_refused_by_name() {
    let yarn = json!({
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 64
    });
    let read = |key: &str, value: &serde_json::Value| {
        let rewrite = |config: &mut serde_json::Value| {
            config["rope_parameters"] = yarn.clone();
            config["rope_parameters"][key] = value.clone();
        };
        small::read(&small::folder("qwen2-yarn", "yarn", rewrite, &[]))
    };
    let cases = [
        ("mscale", json!(1.0), json!(0.0)),
        ("mscale_all_dim", json!(1.0), json!(null)),
        ("truncate", json!(false), json!(true)),
        ("llama_4_scaling_beta", json!(0.1), json!(0.0)),
        ("new_thing", json!(1), json!(null)),
        ("type", json!("linear"), json!("yarn")),
    ];
    for (key, value, neutral) in cases {
        let found = read(key, &value).unwrap_err().to_string();
        assert_names(&found, &[&format!("rope_parameters.{key} = ")]);
        read(key, &neutral).unwrap();
    }
    // What older versions wrote beside what newer ones write.
    let beside = |scaling: serde_json::Value| {
        let rewrite = |config: &mut serde_json::Value| config["rope_scaling"] = scaling;
        small::read(&small::folder("qwen2-yarn", "beside", rewrite, &[]))
    };
    let found = beside(json!({"type": "linear", "factor": 4.0})).unwrap_err().to_string();
    assert_names(&found, &["rope_scaling = ", "rope_parameters says otherwise"]);
    beside(yarn).unwrap();
}

/// Models whose folders are called `llama` though they are not.
#[test]
fn other_models_in_the_name_of_llama_are_refused() {
    let refused = |rewrite: &dyn Fn(&mut serde_json::Value)| {
        let path = small::folder("llama3-rope", "labelled", rewrite, &[]);
        small::read(&path).unwrap_err().to_string()
    };
    let granite = refused(&|config| {
        config["architectures"] = json!(["LlamaForCausalLM"]);
        config["attention_multiplier"] = json!(0.0078125);
        config["embedding_multiplier"] = json!(12.0);
        config["logits_scaling"] = json!(16.0);
        config["residual_multiplier"] = json!(0.22);
    });
    assert_names(&granite, &["attention_multiplier = 0.0078125", "Granite"]);
    let ministral = refused(&|config| {
        config["rope_parameters"] = json!({
            "llama_4_scaling_beta": 0.1, "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0,
            "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 16384
        });
    });
    assert_names(&ministral, &["rope_parameters.llama_4_scaling_beta = 0.1", "Ministral 3"]);
    let smollm = refused(&|config| {
        config["no_rope_layers"] = json!([1, 1, 1, 0]);
        config["no_rope_layer_interval"] = json!(4);
    });
    assert_names(&smollm, &["no_rope_layer", "SmolLM3"]);
}

#[test]
fn tensors_of_a_folder_are_refused_by_name() {
    let read = |case: &str, tensor: &str| {
        small::read(&small::folder(case, "folder-tensor", |_| {}, &[tensor]))
    };
    let cases = [
        ("model.layers.0.self_attn.q_norm.weight", "norms on the heads"),
        ("model.layers.0.self_attn.q_proj.bias", "a bias"),
        ("model.layers.9.input_layernorm.weight", "layer 9"),
        ("model.layers.0.block_sparse_moe.gate.weight", "mixture of experts"),
        ("score.weight", "classifier"),
        ("model.layers.0.self_attn.sinks", "attention sinks"),
    ];
    for (tensor, meaning) in cases {
        let found = read("llama3-rope", tensor).unwrap_err().to_string();
        assert_names(&found, &[&format!("'{tensor}'"), meaning]);
    }
    // Computed from the configuration, and the part that reads pictures.
    read("llama3-rope", "model.layers.0.self_attn.rotary_emb.inv_freq").unwrap();
    read("gemma3", "vision_tower.embeddings.weight").unwrap();
    // A head beside an embedding that is one already.
    let found = read("gemma3", "lm_head.weight").unwrap_err().to_string();
    assert_names(&found, &["'lm_head.weight'"]);
}
