//! Small models to change: GGUF files of every family, and golden folders with another configuration.

use pianola_formats::{GgufWriter, Tensor, TensorSource, TensorType, Value};
use pianola_model::{Config, ModelError, ModelFile, RandomWeights, shape};
use serde_json::json;
use std::path::{Path, PathBuf};

/// A configuration of two layers in the family of a known shape.
pub fn config(name: &str) -> Config {
    let full = shape(name).unwrap().config();
    Config {
        context: 64,
        vocabulary: 8,
        hidden: 32,
        feed_forward: 64,
        layers: 2,
        heads: 2,
        kv_heads: 1,
        head_dim: 16,
        attention_scale: 0.25,
        windows: vec![None; 2],
        ..full
    }
}

/// The keys that a file of the configuration needs.
fn keys(config: &Config, architecture: &str) -> Vec<(String, Value)> {
    let own: [(&str, Value); 10] = [
        ("context_length", (config.context as u32).into()),
        ("embedding_length", (config.hidden as u32).into()),
        ("feed_forward_length", (config.feed_forward as u32).into()),
        ("block_count", (config.layers as u32).into()),
        ("attention.head_count", (config.heads as u32).into()),
        ("attention.head_count_kv", (config.kv_heads as u32).into()),
        ("attention.key_length", (config.head_dim as u32).into()),
        ("attention.value_length", (config.head_dim as u32).into()),
        ("attention.layer_norm_rms_epsilon", 1e-6f32.into()),
        ("rope.freq_base", (config.rope.base as f32).into()),
    ];
    own.map(|(key, value)| (format!("{architecture}.{key}"), value)).into()
}

/// What is added to a file, and the keys and tensors that it lacks, with full names.
#[derive(Clone, Copy, Default)]
pub struct Added<'a> {
    pub keys: &'a [(&'a str, Value)],
    pub tensors: &'a [(&'a str, &'a [usize])],
    pub without: &'a [&'a str],
}

/// A GGUF of a family, with something added and something left out.
pub fn gguf(file: &str, config: &Config, architecture: &str, added: Added<'_>) -> PathBuf {
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", architecture);
    let needed = keys(config, architecture);
    for (key, value) in needed.into_iter().filter(|(key, _)| !added.without.contains(&&**key)) {
        writer.set(key, value);
    }
    for (key, value) in added.keys {
        writer.set(*key, value.clone());
    }
    let weights = RandomWeights::new(config, 3, |_, _, _| TensorType::F32);
    let infos = weights.tensor_infos();
    for info in infos.iter().filter(|info| !added.without.contains(&&*info.name)) {
        writer.add(weights.tensor(&info.name).unwrap());
    }
    for (name, shape) in added.tensors {
        let bytes: Vec<u8> =
            (0..shape.iter().product()).flat_map(|_: usize| 1f32.to_le_bytes()).collect();
        let (name, shape) = (name.to_string(), shape.to_vec());
        writer.add(Tensor { name, ty: TensorType::F32, shape, bytes: bytes.into() });
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{file}.gguf"));
    writer.write(&path).unwrap();
    path
}

/// A golden case with another configuration and more tensors.
pub fn folder(
    case: &str,
    name: &str,
    rewrite: impl FnOnce(&mut serde_json::Value),
    tensors: &[&str],
) -> PathBuf {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case);
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&target).unwrap();
    let text = std::fs::read_to_string(golden.join("config.json")).unwrap();
    let mut config = serde_json::from_str(&text).unwrap();
    rewrite(&mut config);
    std::fs::write(target.join("config.json"), config.to_string()).unwrap();
    let weights = std::fs::read(golden.join("model.safetensors")).unwrap();
    std::fs::write(target.join("model.safetensors"), with_tensors(&weights, tensors)).unwrap();
    target
}

/// A safetensors file with a small tensor more for each of these names.
fn with_tensors(file: &[u8], names: &[&str]) -> Vec<u8> {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let mut data = file[8 + length..].to_vec();
    for name in names {
        let start = data.len();
        data.extend(1f32.to_le_bytes());
        header[name] = json!({"dtype": "F32", "shape": [1], "data_offsets": [start, data.len()]});
    }
    let header = header.to_string().into_bytes();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// What a file becomes: its configuration, where its graph can be written.
pub fn read(path: &Path) -> Result<Config, ModelError> {
    let file = ModelFile::open(path)?;
    let config = file.config()?;
    pianola_model::graph(&config, file.source(), None)?;
    Ok(config)
}
