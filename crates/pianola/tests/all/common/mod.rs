//! What black-box tests share: a folder, a tiny model, and the binary itself.

#![allow(dead_code)] // Each test file uses its part.

pub mod npu;
pub mod pty;
pub mod server;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use pianola_formats::{GgufWriter, TensorSource, TensorType};
use pianola_model::{Config, RandomWeights, shape};

/// A folder of its own for a test, removed at its end.
pub struct Folder {
    pub path: PathBuf,
}

impl Folder {
    pub fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pianola-cli-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder { path }
    }

    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// The tiny model, as a file.
    pub fn model(&self) -> PathBuf {
        self.file("tiny.gguf", tiny().to_bytes().unwrap())
    }

    /// The binary with a store of its own in this folder.
    pub fn pianola<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Run {
        self.pianola_with(arguments, b"", &[])
    }

    /// The same with bytes on standard input and variables in the environment.
    pub fn pianola_with<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
        input: &[u8],
        variables: &[(&str, &OsStr)],
    ) -> Run {
        start(self.command().args(arguments), input, variables)
    }

    /// The binary, apart from this machine and without a GPU.
    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pianola"));
        isolate(&mut command, &self.path);
        without_gpu(&mut command);
        command
    }

    /// The binary with the Vulkan drivers that this machine has.
    pub fn pianola_vulkan<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Run {
        self.pianola_vulkan_with(arguments, &[])
    }

    /// The same with variables in the environment.
    pub fn pianola_vulkan_with<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
        variables: &[(&str, &OsStr)],
    ) -> Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pianola"));
        isolate(&mut command, &self.path);
        start(command.args(arguments), b"", variables)
    }

    /// A line for a shell that finds the binary by its name, in this folder and without a GPU.
    pub fn shell(&self, line: &str, variables: &[(&str, &OsStr)]) -> Run {
        let binary = Path::new(env!("CARGO_BIN_EXE_pianola")).parent().unwrap();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(binary.to_path_buf()).chain(std::env::split_paths(&path));
        // Whatever hangs is ended, and fails by its status.
        let mut command = Command::new("timeout");
        command.args(["120", "sh", "-c", line]).current_dir(&self.path);
        isolate(&mut command, &self.path);
        without_gpu(&mut command);
        command.env("PATH", std::env::join_paths(folders).unwrap());
        start(&mut command, b"", variables)
    }
}

/// Variables that say how this machine or its user likes things.
const FOREIGN: [&str; 16] = [
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "COLUMNS",
    "HF_ENDPOINT",
    "HF_HUB_CACHE",
    "HF_TOKEN",
    "HF_TOKEN_PATH",
    "LD_PRELOAD",
    "LINES",
    "NO_COLOR",
    "PIANOLA_API_KEYS",
    "PIANOLA_FAULT",
    "RUST_BACKTRACE",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
];

/// Keeps a program apart from what is on this machine: a home and a store of its own, no models of other
/// programs, and no network.
pub fn isolate(command: &mut Command, home: &Path) {
    for name in FOREIGN {
        command.env_remove(name);
    }
    command
        .env("HOME", home)
        .env("PIANOLA_HOME", home)
        // This pip fails at once.
        .env("PIANOLA_PIP", "false")
        .env("HF_HOME", home.join("huggingface"))
        .env("HF_HUB_OFFLINE", "1")
        .env("OLLAMA_MODELS", home.join("ollama"))
        .env("LLAMA_CACHE", home.join("llama.cpp"));
}

/// Whatever GPU this machine has, every machine computes alike.
pub fn without_gpu(command: &mut Command) {
    command.env("VK_DRIVER_FILES", "/none").env("VK_ICD_FILENAMES", "/none");
}

/// Runs a command to its end.
fn start(command: &mut Command, input: &[u8], variables: &[(&str, &OsStr)]) -> Run {
    let mut child = command
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read its input has closed it: that is its right.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    Run {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The Vulkan device that tests name: by default Mesa's software driver, or what `PIANOLA_TEST_VULKAN` says.
pub fn vulkan_device() -> String {
    let name = std::env::var("PIANOLA_TEST_VULKAN").unwrap_or_else(|_| "llvmpipe".to_string());
    format!("vulkan:{name}")
}

/// How a run of the binary ended.
#[derive(Debug)]
pub struct Run {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Run {
    /// It succeeded: what it printed.
    #[track_caller]
    pub fn output(self) -> String {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self.out
    }

    /// It succeeded and printed JSON.
    #[track_caller]
    pub fn json(self) -> serde_json::Value {
        let text = self.output();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// It failed with this code and one error that contains all these words.
    #[track_caller]
    pub fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert_eq!(self.err.matches("pianola: error: ").count(), 1, "{self:#?}");
        for word in words {
            assert!(self.err.contains(word), "no '{word}' in {}", self.err);
        }
        assert!(!self.err.contains("panicked"), "{self:#?}");
    }
}

/// Tokens: all bytes in GPT-2's alphabet, then the markers.
pub const MARKERS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
pub const VOCABULARY: usize = 256 + MARKERS.len();
pub const CONTEXT: usize = 256;

const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
    {{ message.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}\
    <|im_start|>assistant\n{% endif %}";

pub fn config() -> Config {
    Config {
        context: CONTEXT,
        vocabulary: VOCABULARY,
        hidden: 64,
        feed_forward: 96,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        attention_scale: 0.25,
        windows: vec![None; 2],
        ..shape("smollm2:135m").unwrap().config()
    }
}

/// Each byte as GPT-2 writes it: itself where it can be printed, else a letter from 256 on.
fn alphabet() -> Vec<String> {
    let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    let spell = |byte| {
        let code = if printable(byte) { byte } else { next };
        next += u32::from(!printable(byte));
        char::from_u32(code).unwrap().to_string()
    };
    (0..256).map(spell).collect()
}

/// The vocabulary.
pub fn tokens() -> Vec<String> {
    [alphabet(), MARKERS.map(String::from).to_vec()].concat()
}

/// The keys of a two-layer llama, without vocabulary or weights.
pub fn keys() -> GgufWriter<'static> {
    let config = config();
    let mut writer = GgufWriter::new();
    writer
        .set("general.architecture", "llama")
        .set("general.name", "tiny")
        .set("llama.context_length", config.context as u32)
        .set("llama.embedding_length", config.hidden as u32)
        .set("llama.feed_forward_length", config.feed_forward as u32)
        .set("llama.block_count", config.layers as u32)
        .set("llama.attention.head_count", config.heads as u32)
        .set("llama.attention.head_count_kv", config.kv_heads as u32)
        .set("llama.attention.layer_norm_rms_epsilon", 1e-6f32)
        .set("llama.rope.dimension_count", config.head_dim as u32)
        .set("llama.rope.freq_base", 10_000f32);
    writer
}

/// A two-layer llama with random weights and a vocabulary of bytes.
pub fn tiny() -> GgufWriter<'static> {
    let config = config();
    let mut writer = keys();
    let kinds: Vec<i32> = (0..VOCABULARY).map(|id| if id < 256 { 1 } else { 3 }).collect();
    writer
        .set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.pre", "gpt-2")
        .set("tokenizer.ggml.tokens", tokens())
        .set("tokenizer.ggml.token_type", kinds)
        .set("tokenizer.ggml.merges", Vec::<String>::new())
        .set("tokenizer.ggml.bos_token_id", 256u32)
        .set("tokenizer.ggml.eos_token_id", 258u32)
        .set("tokenizer.chat_template", TEMPLATE);
    add_weights(&mut writer, &config);
    writer
}

/// Random weights of a configuration, in eight bits.
pub fn add_weights(writer: &mut GgufWriter<'static>, config: &Config) {
    let weights = RandomWeights::new(config, 3, |_, _, _| TensorType::Q8_0);
    for info in weights.tensor_infos() {
        let tensor = weights.tensor(&info.name).unwrap();
        let bytes = tensor.bytes.into_owned().into();
        writer.add(pianola_formats::Tensor { bytes, ..tensor_without_bytes(info) });
    }
}

fn tensor_without_bytes(info: pianola_formats::TensorInfo) -> pianola_formats::Tensor<'static> {
    let bytes = Vec::new().into();
    pianola_formats::Tensor { name: info.name, ty: info.ty, shape: info.shape, bytes }
}

/// Arguments from words and paths alike.
#[macro_export]
macro_rules! words {
    ($($word:expr),* $(,)?) => { [$(std::ffi::OsString::from($word)),*] };
}

pub fn display(path: &Path) -> String {
    path.display().to_string()
}

/// Arguments, and some more behind them.
pub fn with(arguments: &[OsString], more: &[&str]) -> Vec<OsString> {
    arguments.iter().cloned().chain(more.iter().map(OsString::from)).collect()
}
