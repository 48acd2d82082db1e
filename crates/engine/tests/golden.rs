//! Golden cases: tiny models whose logits and greedy tokens Hugging Face transformers computed in
//! float32. Those in `tests/golden` come with the project (`make.py` there makes them);
//! `PIANOLA_TEST_GOLDEN` may name a folder with more.

use pianola_cpu::{CpuOptions, Level};
use pianola_engine::{Engine, LoadOptions, LogitRows};
use pianola_formats::{GgufWriter, HuggingFaceFolder, Tensor, TensorSource, npy};
use pianola_plan::{KvType, Numeric};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const CASES: [&str; 5] = ["gemma3", "llama3-rope", "llama-bias", "qwen2-window", "qwen2-yarn"];

fn folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case)
}

/// A case of the folder that `PIANOLA_TEST_GOLDEN` names, if it names one.
fn more(case: &str) -> Option<PathBuf> {
    let root = std::env::var_os("PIANOLA_TEST_GOLDEN");
    if root.is_none() {
        println!("{case}: skipped, PIANOLA_TEST_GOLDEN is not set");
    }
    Some(PathBuf::from(root?).join(case))
}

fn load(path: &Path, level: Level) -> Engine {
    load_with_kv(path, level, None)
}

fn load_with_kv(path: &Path, level: Level, kv_type: Option<KvType>) -> Engine {
    let options = LoadOptions {
        devices: LoadOptions::devices(vec![], CpuOptions { level, threads: 2 }),
        numeric: Some(Numeric::Exact),
        kv_type,
        max_logit_rows: 64,
        ..LoadOptions::default()
    };
    Engine::load(path, options, &mut |_, _| ()).unwrap()
}

/// All logits, fed `chunk` rows at a time.
fn logits(engine: &mut Engine, tokens: &[u32], chunk: usize) -> Vec<f32> {
    engine.reset();
    let mut all = Vec::new();
    engine
        .feed(tokens, chunk, LogitRows::From(0), &mut |_, row| all.extend_from_slice(row))
        .unwrap();
    all
}

/// Compares a model at `path` with what is written down in `golden`.
fn check(golden: &Path, path: &Path, level: Level, chunks: &[usize]) {
    if !level.available() {
        println!("{}: this processor has no {level}, skipped", path.display());
        return;
    }
    let tokens = npy::read_tokens(golden.join("tokens.npy")).unwrap();
    let (shape, expected) = npy::read_f32(golden.join("logits.npy")).unwrap();
    assert_eq!(shape[0], tokens.len());
    let range = expected.iter().copied().fold(f32::NEG_INFINITY, f32::max)
        - expected.iter().copied().fold(f32::INFINITY, f32::min);
    let mut engine = load(path, level);
    let mut first: Option<Vec<f32>> = None;
    for &chunk in chunks {
        let found = logits(&mut engine, &tokens, chunk);
        assert_eq!(found.len(), expected.len());
        let error = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{} {level} chunk {chunk}: {:.1e} of the range", golden.display(), error / range);
        // Written so that NaN fails.
        assert!(error <= 2e-4 * range && found.iter().all(|logit| logit.is_finite()));
        // Each row is summed in an order of its own, whatever stands beside it.
        assert_eq!(first.get_or_insert_with(|| found.clone()), &found, "chunks of {chunk} differ");
    }
    let greedy = npy::read_tokens(golden.join("greedy.npy")).unwrap();
    engine.reset();
    let (mut next, mut found) = (0, Vec::new());
    engine.feed(&tokens, 512, LogitRows::Last, &mut |_, row| next = argmax(row)).unwrap();
    while found.len() < greedy.len() {
        found.push(next);
        engine.feed(&[next], 1, LogitRows::Last, &mut |_, row| next = argmax(row)).unwrap();
    }
    assert_eq!(found, greedy, "{} greedy", golden.display());
}

fn argmax(row: &[f32]) -> u32 {
    let best = |best: usize, index: usize| if row[index] > row[best] { index } else { best };
    (0..row.len()).fold(0, best) as u32
}

#[test]
fn every_case_on_every_level() {
    for case in CASES {
        for level in Level::ALL {
            check(&folder(case), &folder(case), level, &[512, 7, 1]);
        }
    }
}

/// Keys and values in halves and in bytes: each level within what their rounding may do, and the
/// same bits however the prompt is cut.
#[test]
fn smaller_keys_and_values_stay_close() {
    for case in CASES {
        let tokens = npy::read_tokens(folder(case).join("tokens.npy")).unwrap();
        let (_, expected) = npy::read_f32(folder(case).join("logits.npy")).unwrap();
        let norm = expected.iter().map(|x| x * x).sum::<f32>().sqrt();
        // A half is off by up to 2^-11 of itself. The largest of a head's values is near 2.5
        // deviations, so a byte is off by up to half of 2.5 / 127 of one. Both are evenly spread;
        // keys and values of up to three layers add up as square roots, and scores pass the
        // softmax, which may double them.
        let bound = |most: f32| 2.0 * 6f32.sqrt() * most / 3f32.sqrt();
        let types = [(KvType::F16, 2f32.powi(-11)), (KvType::Q8, 0.5 * 2.5 / 127.0)];
        for (ty, bound) in types.map(|(ty, most)| (ty, bound(most))) {
            for level in Level::ALL.into_iter().filter(|level| level.available()) {
                let mut engine = load_with_kv(&folder(case), level, Some(ty));
                let found = logits(&mut engine, &tokens, 512);
                let squares = expected.iter().zip(&found).map(|(a, b)| (a - b) * (a - b));
                let error = squares.sum::<f32>().sqrt() / norm;
                println!("{case} {level} {ty}: relative error {error:.5}");
                assert!(error > 1e-5 && error < bound, "{case} {level} {ty}: {error}");
                for chunk in [7, 1] {
                    assert_eq!(logits(&mut engine, &tokens, chunk), found, "{case} {level} {ty}");
                }
            }
        }
    }
}

#[test]
fn more_cases() {
    for path in ["gemma3-a", "llama-a"].into_iter().filter_map(more) {
        check(&path, &path, Level::best(), &[512, 7, 1]);
    }
    // 1,100 tokens: across pages, chunks and the window.
    if let Some(path) = more("gemma3-d") {
        check(&path, &path, Level::best(), &[512, 64, 100, 1]);
    }
}

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

/// What llama.cpp's converter does to a folder: other names, `1 + w` in Gemma's norms, llama's q
/// and k permuted so that rotated pairs are neighbours.
fn to_gguf(case: &str, keys: &[(&str, Value)], norms_plus_one: bool, permute: bool) -> PathBuf {
    let source = HuggingFaceFolder::open(&folder(case)).unwrap();
    let config = source.config().clone();
    let architecture = keys[0].1.as_str().unwrap().to_string();
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", architecture.as_str());
    let standard = [
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("block_count", "num_hidden_layers"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("context_length", "max_position_embeddings"),
    ];
    for (key, from) in standard {
        writer.set(format!("{architecture}.{key}"), config[from].as_u64().unwrap() as u32);
    }
    writer.set(format!("{architecture}.attention.layer_norm_rms_epsilon"), 1e-6f32);
    for (key, value) in &keys[1..] {
        let key = format!("{architecture}.{key}");
        match value.as_u64() {
            Some(number) => writer.set(key, number as u32),
            None => writer.set(key, value.as_f64().unwrap() as f32),
        };
    }
    for info in source.tensor_infos() {
        let mut name =
            info.name.replace("model.layers.", "blk.").replace("model.embed_tokens", "token_embd");
        let renames = [
            ("self_attn.q_proj", "attn_q"),
            ("self_attn.k_proj", "attn_k"),
            ("self_attn.v_proj", "attn_v"),
            ("self_attn.o_proj", "attn_output"),
            ("self_attn.q_norm", "attn_q_norm"),
            ("self_attn.k_norm", "attn_k_norm"),
            ("mlp.gate_proj", "ffn_gate"),
            ("mlp.up_proj", "ffn_up"),
            ("mlp.down_proj", "ffn_down"),
            ("input_layernorm", "attn_norm"),
            ("pre_feedforward_layernorm", "ffn_norm"),
            ("post_feedforward_layernorm", "post_ffw_norm"),
            (
                "post_attention_layernorm",
                if norms_plus_one { "post_attention_norm" } else { "ffn_norm" },
            ),
            ("lm_head", "output"),
            ("model.norm", "output_norm"),
        ];
        for (from, to) in renames {
            name = name.replace(from, to);
        }
        let mut values = source.tensor(&info.name).unwrap().to_f32();
        if norms_plus_one && name.contains("norm") {
            values.iter_mut().for_each(|value| *value += 1.0);
        }
        if permute && (name.contains("attn_q.") || name.contains("attn_k.")) {
            let head_dim = 16;
            let width = values.len() / info.shape[0];
            let rows: Vec<Vec<f32>> = values.chunks(width).map(<[f32]>::to_vec).collect();
            values = (0..rows.len())
                .flat_map(|row| {
                    let (head, at) = (row / head_dim, row % head_dim);
                    rows[head * head_dim + at / 2 + (at % 2) * (head_dim / 2)].clone()
                })
                .collect();
        }
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let ty = pianola_formats::TensorType::F32;
        writer.add(Tensor { name, ty, shape: info.shape, bytes: bytes.into() });
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{case}.gguf"));
    writer.write(&path).unwrap();
    path
}

#[test]
fn gguf_conventions_mean_the_same() {
    let keys = [
        ("architecture", json!("gemma3")),
        ("attention.key_length", json!(32)),
        ("attention.value_length", json!(32)),
        ("attention.sliding_window", json!(9)),
        ("attention.sliding_window_pattern", json!(2)),
        ("rope.freq_base", json!(1e6f32)),
        ("rope.scaling.factor", json!(8.0)),
    ];
    // GGUF has no key for the attention scale, and this case has an unusual one: it must differ.
    let path = to_gguf("gemma3", &keys, true, false);
    let tokens = npy::read_tokens(folder("gemma3").join("tokens.npy")).unwrap();
    let gguf = logits(&mut load(&path, Level::best()), &tokens, 512);
    let rescaled = rewritten("gemma3", "gemma3-scale", |config| {
        config["query_pre_attn_scalar"] = json!(32);
    });
    let expected = logits(&mut load(&rescaled, Level::best()), &tokens, 512);
    assert_eq!(gguf, expected);

    let keys = [("architecture", json!("llama")), ("rope.freq_base", json!(10_000.0f32))];
    let path = to_gguf("llama-bias", &keys, false, true);
    check(&folder("llama-bias"), &path, Level::best(), &[512, 5]);

    let keys = [("architecture", json!("qwen2")), ("rope.freq_base", json!(10_000.0f32))];
    let path = to_gguf("qwen2-yarn", &keys, false, false);
    let plain = rewritten("qwen2-yarn", "qwen2-plain", |config| {
        config["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 1e4});
    });
    let tokens = npy::read_tokens(folder("qwen2-yarn").join("tokens.npy")).unwrap();
    let expected = logits(&mut load(&plain, Level::best()), &tokens, 512);
    assert_eq!(logits(&mut load(&path, Level::best()), &tokens, 512), expected);
}

/// Quantised at load, a folder still says nearly the same.
#[test]
fn quantising_at_load_stays_close() {
    let tokens = npy::read_tokens(folder("llama-bias").join("tokens.npy")).unwrap();
    let (_, expected) = npy::read_f32(folder("llama-bias").join("logits.npy")).unwrap();
    let norm = expected.iter().map(|x| x * x).sum::<f32>().sqrt();
    // The largest of 32 normal values is near 2.1 deviations, so a step is 2.1 / 127 (or 2.1 / 8)
    // of one and its rounding 1 / sqrt(12) of that. Activations are rounded to int8 as well; 15
    // products add up as square roots; as much again for attention, which is not linear.
    let rounding = |levels: f32| 2.1 / levels / 12f32.sqrt();
    let bound = |levels: f32| {
        let product = (rounding(levels).powi(2) + rounding(127.0).powi(2)).sqrt();
        2.0 * 15f32.sqrt() * product
    };
    for (ty, bound) in [("q8_0", bound(127.0)), ("q4_0", bound(8.0))] {
        let options = LoadOptions {
            quantize: Some(ty.parse().unwrap()),
            max_logit_rows: 64,
            ..LoadOptions::default()
        };
        let mut engine = Engine::load(&folder("llama-bias"), options, &mut |_, _| ()).unwrap();
        let found = logits(&mut engine, &tokens, 512);
        let error = expected.iter().zip(&found).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt();
        println!("{ty}: relative error {:.4}", error / norm);
        assert!(error > 0.0 && error <= bound * norm);
    }
}
