//! Helpers shared by the integration tests: scratch folders, small files, repeatable weights.
#![allow(dead_code)] // Each test binary uses its own share of these.

use std::borrow::Cow;
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use pianola_formats::{GgufWriter, Tensor, TensorType, quantize_row};

/// A folder that is removed with its contents when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("pianola-formats-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Uniform numbers in [-1, 1) from a 64-bit linear congruential generator: the same every run.
pub struct Uniform(pub u64);

impl Uniform {
    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn vector(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }
}

/// A tensor of the given type holding (an approximation of) the values.
pub fn tensor(name: &str, ty: TensorType, shape: &[usize], values: &[f32]) -> Tensor<'static> {
    let mut bytes = vec![0; ty.row_bytes(values.len()).unwrap()];
    quantize_row(ty, values, &mut bytes);
    Tensor { name: name.into(), ty, shape: shape.to_vec(), bytes: Cow::Owned(bytes) }
}

/// A small GGUF model with a value of most kinds and two tensors.
pub fn small_gguf() -> GgufWriter<'static> {
    let mut writer = GgufWriter::new();
    writer
        .set("general.architecture", "test")
        .set("test.block_count", 2u32)
        .set("test.epsilon", 1e-6f32)
        .set("test.flag", true)
        .set("tokenizer.ggml.tokens", vec!["a".to_string(), "▁b".to_string(), String::new()])
        .set("tokenizer.ggml.scores", vec![0.0f32, -1.0, -2.5])
        .set("tokenizer.ggml.token_type", vec![1i32, 1, 3])
        .add(tensor("first", TensorType::Q4_0, &[2, 32], &Uniform(1).vector(64)))
        .add(tensor("second", TensorType::F32, &[3], &[1.0, 2.0, 3.0]));
    writer
}

/// A safetensors file from its header's text and its data.
pub fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

/// A small safetensors file: f32 `[2, 2]`, bf16 `[2]` and an i64 buffer.
pub fn small_safetensors() -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt"},
        "a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},
        "b":{"dtype":"BF16","shape":[2],"data_offsets":[16,20]},
        "ids":{"dtype":"I64","shape":[1],"data_offsets":[20,28]}}"#;
    let mut data = Vec::new();
    data.extend([1.0f32, 2.0, 3.0, -4.0].iter().flat_map(|v| v.to_le_bytes()));
    data.extend([0x80, 0x3f, 0x20, 0xc0]); // 1 and -2.5 as bf16
    data.extend(7i64.to_le_bytes());
    safetensors(header, &data)
}
