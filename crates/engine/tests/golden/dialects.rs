//! Golden cases in other words: configurations as older versions of transformers write them, and GGUF
//! files as llama.cpp's converter does.

use crate::support::golden::{check, folder, load, logits, options};
use pianola_cpu::Level;
use pianola_engine::LoadOptions;
use pianola_formats::{
    Array, GgufWriter, HuggingFaceFolder, Tensor, TensorSource, TensorType, convert_row, npy,
};
use pianola_model::ModelFile;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A copy of a case with another configuration, in a folder of its own.
fn rewritten(case: &str, name: &str, rewrite: impl Fn(&mut Value)) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&target).unwrap();
    let text = std::fs::read_to_string(folder(case).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    rewrite(&mut config);
    std::fs::write(target.join("config.json"), config.to_string()).unwrap();
    std::fs::copy(folder(case).join("model.safetensors"), target.join("model.safetensors"))
        .unwrap();
    target
}

/// Older configurations spell the rotary tables differently.
#[test]
fn the_older_dialect_means_the_same() {
    let gemma = rewritten("gemma3", "gemma3-older", |config| {
        let map = config.as_object_mut().unwrap();
        map.remove("rope_parameters");
        map.remove("layer_types");
        map.insert("sliding_window_pattern".into(), json!(2));
        map.insert("rope_theta".into(), json!(1e6));
        map.insert("rope_local_base_freq".into(), json!(1e4));
        map.insert("rope_scaling".into(), json!({"rope_type": "linear", "factor": 8.0}));
    });
    check(&folder("gemma3"), &gemma, Level::best(), &[512]);
    let llama = rewritten("llama3-rope", "llama3-older", |config| {
        let map = config.as_object_mut().unwrap();
        let rope = map.remove("rope_parameters").unwrap();
        map.insert("rope_theta".into(), rope["rope_theta"].clone());
        map.insert("rope_scaling".into(), rope);
    });
    check(&folder("llama3-rope"), &llama, Level::best(), &[512]);
    for case in ["qwen3", "gemma2", "mistral"] {
        let older = rewritten(case, &format!("{case}-older"), |config| {
            let map = config.as_object_mut().unwrap();
            let rope = map.remove("rope_parameters").unwrap();
            map.insert("rope_theta".into(), rope["rope_theta"].clone());
            map.insert("rope_scaling".into(), Value::Null);
            // Gemma 2 had no list of layers: every other one has a window.
            map.remove("layer_types");
        });
        check(&folder(case), &older, Level::best(), &[512]);
    }
    for (case, name) in [("phi3-short", "longrope"), ("phi3-long", "su")] {
        let older = rewritten(case, &format!("{case}-older"), |config| {
            let map = config.as_object_mut().unwrap();
            let mut rope = map.remove("rope_parameters").unwrap();
            let parameters = rope.as_object_mut().unwrap();
            parameters.retain(|key, _| key.ends_with("_factor") && key != "partial_rotary_factor");
            parameters.insert("type".into(), json!(name));
            map.insert("rope_theta".into(), json!(1e4));
            map.insert("rope_scaling".into(), rope);
        });
        check(&folder(case), &older, Level::best(), &[512]);
    }
}

/// What a configuration leaves out has the default of its class in transformers; `null` switches a
/// default off.
#[test]
fn defaults_are_those_of_transformers() {
    let windows = |name: &str, value: Option<Value>| {
        let folder = rewritten("mistral", name, |config| {
            let map = config.as_object_mut().unwrap();
            map.remove("sliding_window");
            map.insert("max_position_embeddings".into(), json!(8192));
            map.extend(value.clone().map(|value| ("sliding_window".to_string(), value)));
        });
        ModelFile::open(&folder).unwrap().config().unwrap().windows
    };
    assert_eq!(windows("mistral-absent", None), [Some(4096); 2]);
    assert_eq!(windows("mistral-null", Some(Value::Null)), [None; 2]);
    assert_eq!(windows("mistral-seven", Some(json!(7))), [Some(7); 2]);
    let caps = |name: &str, rewrite: fn(&mut serde_json::Map<String, Value>)| {
        let folder = rewritten("gemma2", name, |config| rewrite(config.as_object_mut().unwrap()));
        let config = ModelFile::open(&folder).unwrap().config().unwrap();
        (config.attention_soft_cap, config.final_soft_cap)
    };
    let absent = caps("gemma2-absent", |map| map.retain(|key, _| !key.ends_with("softcapping")));
    assert_eq!(absent, (Some(50.0), Some(30.0)));
    let null = caps("gemma2-null", |map| {
        map.insert("attn_logit_softcapping".into(), Value::Null);
    });
    assert_eq!(null, (None, Some(4.0)));
}

/// The text part of a multimodal configuration.
#[test]
fn a_multimodal_configuration_gives_its_text_model() {
    let nested = rewritten("gemma3", "gemma3-multimodal", |config| {
        let text = config.take();
        *config = json!({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 8}});
    });
    check(&folder("gemma3"), &nested, Level::best(), &[512]);
}

/// What llama.cpp's converter does to a folder.
struct Conversion<'a> {
    case: &'a str,
    architecture: &'a str,
    /// Keys behind the architecture's name, besides those of every model.
    keys: &'a [(&'a str, Value)],
    /// Gemma's norms hold `1 + w`.
    norms_plus_one: bool,
    /// Llama's q and k are permuted so that rotated pairs are neighbours.
    permute: bool,
    /// Type of matrices.
    ty: TensorType,
}

const NAMES: [(&str, &str); 18] = [
    ("model.layers.", "blk."),
    ("model.embed_tokens", "token_embd"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("input_layernorm", "attn_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("lm_head", "output"),
    ("model.norm", "output_norm"),
];

impl Conversion<'_> {
    fn name(&self, name: &str) -> String {
        let behind = if self.norms_plus_one { "post_attention_norm" } else { "ffn_norm" };
        let name = name.replace("post_attention_layernorm", behind);
        NAMES.iter().fold(name, |name, (from, to)| name.replace(from, to))
    }

    /// Writes `NAME.gguf`.
    fn write(&self, file: &str) -> PathBuf {
        let source = HuggingFaceFolder::open(&folder(self.case)).unwrap();
        let mut writer = GgufWriter::new();
        writer.set("general.architecture", self.architecture);
        self.set_keys(&mut writer, source.config());
        for info in source.tensor_infos() {
            let name = self.name(&info.name);
            let mut values = source.tensor(&info.name).unwrap().to_f32();
            if self.norms_plus_one && name.contains("norm") {
                values.iter_mut().for_each(|value| *value += 1.0);
            }
            if self.permute && (name.contains("attn_q.") || name.contains("attn_k.")) {
                values = permuted(&values, info.shape[0]);
            }
            let ty = if info.shape.len() == 2 { self.ty } else { TensorType::F32 };
            writer.add(tensor(name, ty, info.shape, &values));
        }
        for kind in ["short", "long"] {
            let factors = &source.config()["rope_parameters"][format!("{kind}_factor")];
            if let Some(factors) = factors.as_array() {
                let values: Vec<f32> =
                    factors.iter().map(|factor| factor.as_f64().unwrap() as f32).collect();
                let name = format!("rope_factors_{kind}.weight");
                writer.add(tensor(name, TensorType::F32, vec![values.len()], &values));
            }
        }
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{file}.gguf"));
        writer.write(&path).unwrap();
        path
    }

    fn set_keys(&self, writer: &mut GgufWriter<'_>, config: &Value) {
        let standard = [
            ("embedding_length", "hidden_size"),
            ("feed_forward_length", "intermediate_size"),
            ("block_count", "num_hidden_layers"),
            ("attention.head_count", "num_attention_heads"),
            ("attention.head_count_kv", "num_key_value_heads"),
            ("context_length", "max_position_embeddings"),
            ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ];
        let standard = standard.map(|(key, from)| (key, config[from].clone()));
        for (key, value) in standard.iter().chain(self.keys) {
            let key = format!("{}.{key}", self.architecture);
            match (value.as_u64(), value.as_array()) {
                (Some(number), _) => writer.set(key, number as u32),
                (None, Some(list)) => {
                    let list: Vec<bool> = list.iter().map(|flag| flag.as_bool().unwrap()).collect();
                    writer.set(key, pianola_formats::Value::Array(Array::Bool(list)))
                }
                (None, None) => writer.set(key, value.as_f64().unwrap() as f32),
            };
        }
    }
}

/// Rows of heads of 16 values, so that rotated pairs are neighbours.
fn permuted(values: &[f32], rows: usize) -> Vec<f32> {
    let (head_dim, width) = (16, values.len() / rows);
    let from = |row: usize| {
        let (head, at) = (row / head_dim, row % head_dim);
        head * head_dim + at / 2 + (at % 2) * (head_dim / 2)
    };
    (0..rows).flat_map(|row| values[from(row) * width..][..width].to_vec()).collect()
}

fn tensor(name: String, ty: TensorType, shape: Vec<usize>, values: &[f32]) -> Tensor<'static> {
    let columns = shape[shape.len() - 1];
    let row = |row: &[f32]| {
        let stored: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
        convert_row(TensorType::F32, &stored, ty, columns)
    };
    let bytes: Vec<u8> = values.chunks(columns).flat_map(row).collect();
    Tensor { name, ty, shape, bytes: bytes.into() }
}

/// Of a case whose GGUF file cannot say all that its configuration does: the same as the folder with
/// another configuration, bit for bit.
fn same_as_rewritten(conversion: &Conversion<'_>, rewrite: impl Fn(&mut Value)) {
    let case = conversion.case;
    let golden = folder(case);
    let tokens = npy::read_tokens(golden.join("tokens.npy")).unwrap();
    let rewritten = rewritten(case, &format!("{case}-as-gguf"), rewrite);
    let expected = logits(&mut load(&rewritten, options(&golden, Level::best())), &tokens, 512);
    let path = conversion.write(case);
    let found = logits(&mut load(&path, options(&golden, Level::best())), &tokens, 512);
    assert_eq!(found, expected, "{case}");
}

#[test]
fn gguf_conventions_mean_the_same() {
    let plain = Conversion {
        case: "qwen2-yarn",
        architecture: "qwen2",
        keys: &[("rope.freq_base", json!(1e4))],
        norms_plus_one: false,
        permute: false,
        ty: TensorType::F32,
    };
    same_as_rewritten(&plain, |config| {
        config["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 1e4});
    });
    let llama = Conversion { case: "llama-bias", architecture: "llama", permute: true, ..plain };
    check(&folder("llama-bias"), &llama.write("llama-bias"), Level::best(), &[512, 5]);
    let keys = [("rope.freq_base", json!(1e4)), ("attention.sliding_window", json!(13))];
    let mistral = Conversion { case: "mistral", keys: &keys, ..llama };
    check(&folder("mistral"), &mistral.write("mistral"), Level::best(), &[512, 5]);
    let keys = [
        ("attention.key_length", json!(32)),
        ("attention.value_length", json!(32)),
        ("rope.freq_base", json!(1e6)),
    ];
    let qwen3 = Conversion { case: "qwen3", architecture: "qwen3", keys: &keys, ..plain };
    check(&folder("qwen3"), &qwen3.write("qwen3"), Level::best(), &[512, 5]);
}

/// GGUF has no key for Gemma's attention scale, and these cases have an unusual one.
#[test]
fn gguf_conventions_of_gemma_mean_the_same() {
    let head_scale = |config: &mut Value| config["query_pre_attn_scalar"] = json!(32);
    let keys = [
        ("attention.key_length", json!(32)),
        ("attention.value_length", json!(32)),
        ("attention.sliding_window", json!(9)),
        ("attention.sliding_window_pattern", json!(2)),
        ("rope.freq_base", json!(1e6)),
        ("rope.scaling.factor", json!(8.0)),
    ];
    let gemma3 = Conversion {
        case: "gemma3",
        architecture: "gemma3",
        keys: &keys,
        norms_plus_one: true,
        permute: false,
        ty: TensorType::F32,
    };
    same_as_rewritten(&gemma3, head_scale);
    // Newer files list the layers that have a window.
    let mut keys = keys.clone();
    keys[3].1 = json!([true, false, true]);
    same_as_rewritten(&Conversion { keys: &keys, ..gemma3 }, head_scale);
    let keys = [
        ("attention.key_length", json!(32)),
        ("attention.value_length", json!(32)),
        ("attention.sliding_window", json!(9)),
        ("attn_logit_softcapping", json!(5.0)),
        ("final_logit_softcapping", json!(4.0)),
    ];
    let gemma2 = Conversion { case: "gemma2", architecture: "gemma2", keys: &keys, ..gemma3 };
    same_as_rewritten(&gemma2, head_scale);
}

/// Fused tensors and both sets of divisors; quantised, the file is what `--quantize` makes of the
/// folder, row by row.
#[test]
fn gguf_conventions_of_phi3_mean_the_same() {
    let rope = |original: usize| {
        let magnitude = (1.0 + (256.0 / original as f64).ln() / (original as f64).ln()).sqrt();
        [
            ("attention.sliding_window", json!(21)),
            ("rope.dimension_count", json!(16)),
            ("rope.freq_base", json!(1e4)),
            ("rope.scaling.original_context_length", json!(original)),
            ("rope.scaling.attn_factor", json!(magnitude)),
        ]
    };
    let short = Conversion {
        case: "phi3-short",
        architecture: "phi3",
        keys: &rope(128),
        norms_plus_one: false,
        permute: false,
        ty: TensorType::F32,
    };
    check(&folder("phi3-short"), &short.write("phi3-short"), Level::best(), &[512, 5]);
    let long = Conversion { case: "phi3-long", keys: &rope(32), ..short };
    check(&folder("phi3-long"), &long.write("phi3-long"), Level::best(), &[512, 5]);
    let golden = folder("phi3-short");
    let tokens = npy::read_tokens(golden.join("tokens.npy")).unwrap();
    let ty = TensorType::Q8_0;
    let plain = options(&golden, Level::best());
    let quantize = LoadOptions { quantize: Some(ty), ..plain.clone() };
    let expected = logits(&mut load(&golden, quantize), &tokens, 512);
    let file = Conversion { ty, ..short }.write("phi3-q8_0");
    assert_eq!(logits(&mut load(&file, plain), &tokens, 512), expected);
}
