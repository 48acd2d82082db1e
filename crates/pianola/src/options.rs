//! Options that several commands share.

use std::ffi::{OsStr, OsString};
use std::num::IntErrorKind;
use std::sync::Arc;

use clap::Args;
use pianola_cpu::{CpuOptions, Level};
use pianola_engine::LoadOptions;
use pianola_formats::TensorType;
use pianola_hub::catalogue;
use pianola_plan::{KvType, Numeric, PromptWeights};
use pianola_vulkan::{Decode, VulkanOptions};

use crate::console::{Console, count};
use crate::device::{self, Announce, DeviceChoice, NpuUse};
use crate::failure::Failure;
use crate::npu_device::{self, NpuArguments};
use crate::tuned;

/// The model that commands use by default.
pub const DEFAULT_MODEL: &str = "smollm2:135m";

/// The model of the packages that answers best.
pub const BETTER_MODEL: &str = "qwen2.5-coder:1.5b";

/// Headings of the long help; [`crate::commands::help`] shows their options by topic.
pub const DEVICES: &str = "Devices";
pub const MEMORY: &str = "Memory";
pub const NUMERICS: &str = "Numerics";
pub const SPECULATION: &str = "Speculation";

/// Which model.
#[derive(Args, Debug)]
pub struct ModelOption {
    /// Model: a name, a GGUF file or a Hugging Face folder [default: smollm2:135m]
    ///
    /// Names are those of `pianola list --all`, which are fetched once and then kept. owner/name is a
    /// repository of Hugging Face's hub. `pianola help models` explains more.
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<OsString>,
}

impl ModelOption {
    /// What was given, or the default.
    pub fn name(&self) -> &OsStr {
        self.model.as_deref().unwrap_or(OsStr::new(DEFAULT_MODEL))
    }
}

/// Which model, where nothing else stands behind a command.
#[derive(Args, Debug)]
pub struct NamedModel {
    /// Model, as -m takes it
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub named: Option<OsString>,
    #[command(flatten)]
    pub model: ModelOption,
}

impl NamedModel {
    /// What was given, or the default.
    pub fn name(&self) -> &OsStr {
        self.named.as_deref().unwrap_or(self.model.name())
    }
}

/// Whether a name is that of a model in the catalogue that was not made to chat.
pub fn is_base_model(name: &OsStr) -> bool {
    name.to_str().and_then(catalogue::find).is_some_and(|entry| entry.base)
}

/// Where and how to compute.
#[derive(Args, Clone, Debug, Default)]
pub struct ComputeOptions {
    /// Device: auto, cpu, vulkan, vulkan:INDEX or vulkan:NAME
    ///
    /// `auto` takes a discrete GPU, else an integrated one, else the CPU. NAME is a part of the GPU's
    /// name. `vulkan:0,vulkan:1` fills several GPUs in turn. Layers that do not fit run on the CPU.
    /// npu+cpu and npu+vulkan add AMD's NPU for prompts.
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = device::parse)]
    #[arg(help_heading = DEVICES)]
    pub device: DeviceChoice,
    /// Threads to compute with; -1: the default [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = threads, help_heading = DEVICES)]
    #[arg(allow_negative_numbers = true)]
    pub threads: Option<usize>,
    /// Layers to compute on the GPU, as in 99 for all [default: as many as fit]
    ///
    /// The remaining layers, which are the first ones, run on the CPU.
    #[arg(long, aliases = ["n-gpu-layers", "gpu-layers"], value_name = "N")]
    #[arg(hide_short_help = true, help_heading = DEVICES)]
    pub layers_on_gpu: Option<usize>,
    /// Run devices that share a model at the same time if that is faster
    ///
    /// `off` is for comparisons.
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = ["auto", "off"])]
    #[arg(hide_short_help = true, help_heading = DEVICES)]
    pub overlap: String,
    /// How a GPU runs the layers of a single token
    ///
    /// `dispatches` runs five kernels per layer, one after the other. `chained` starts each kernel
    /// before the previous one has finished; kernels wait for their own input. It is an error on a GPU
    /// that cannot do it. `auto` takes `chained` where it is faster, which is on NVIDIA's cards.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    #[arg(value_parser = ["auto", "dispatches", "chained"])]
    #[arg(hide_short_help = true, help_heading = DEVICES)]
    pub decode: String,
    /// Tokens that a GPU samples in one submission
    ///
    /// By default as many as take 40 ms, at most 16. The first token of an answer comes alone.
    #[arg(long, value_name = "N", value_parser = positive)]
    #[arg(hide_short_help = true, help_heading = DEVICES)]
    pub tokens_per_submit: Option<usize>,
    /// Instruction set of the CPU [default: the best one available]
    ///
    /// One of reference, portable, avx2, avx-vnni, avx512 and amx.
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    #[arg(hide_short_help = true, help_heading = DEVICES)]
    pub simd: Option<Level>,
    /// Memory of the machine to use, as in 12GiB [default: what is free]
    ///
    /// Pianola plans with this many bytes in place of what is free when it loads the model.
    #[arg(long, value_name = "BYTES", value_parser = device::bytes)]
    #[arg(hide_short_help = true, help_heading = MEMORY)]
    pub memory: Option<u64>,
    /// Most memory to use on the GPU, as in 12GiB [default: what its driver grants]
    #[arg(long, value_name = "BYTES", value_parser = device::bytes)]
    #[arg(hide_short_help = true, help_heading = MEMORY)]
    pub gpu_memory: Option<u64>,
    /// Keep weights that do not fit on the GPU in host memory
    ///
    /// The GPU reads them over its bus and computes every layer. Without this option the CPU computes
    /// the layers that do not fit.
    #[arg(long, hide_short_help = true, help_heading = MEMORY)]
    pub gpu_host_memory: bool,
    /// Most memory for keys and values, as in 4GiB [default: what the weights leave]
    #[arg(long, value_name = "BYTES", value_parser = device::bytes)]
    #[arg(hide_short_help = true, help_heading = MEMORY)]
    pub kv_memory: Option<u64>,
    /// Type of keys and values: f32, f16 or q8_0
    ///
    /// q8_0 takes half the memory of f16. The default is f16 in fast mode and f32 in exact mode.
    #[arg(long, value_name = "TYPE")]
    #[arg(hide_short_help = true, help_heading = MEMORY)]
    pub kv_type: Option<KvType>,
    /// Quantise unquantised weights while loading: q8_0 or q4_0
    ///
    /// Embeddings stay at 8 bits.
    #[arg(long, value_name = "TYPE", value_parser = quantisation)]
    #[arg(hide_short_help = true, help_heading = MEMORY)]
    pub quantize: Option<TensorType>,
    /// Also keep an int8 copy of quantised weights, for faster prompts
    ///
    /// The copy takes one byte per weight. Steps of 16 tokens or more run faster with it and round
    /// slightly differently. `auto` makes it where memory is ample; `on` fails where it cannot be
    /// made. `pianola help memory` gives the limits.
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = ["auto", "on", "off"])]
    #[arg(hide_short_help = true, help_heading = MEMORY)]
    pub prompt_weights: String,
    /// Compute in 32-bit floats throughout: slower, for comparisons
    ///
    /// The default for folders of unquantised weights.
    #[arg(long, conflicts_with = "fast", hide_short_help = true, help_heading = NUMERICS)]
    pub exact: bool,
    /// Compute products of quantised weights with 8-bit activations
    ///
    /// The default for quantised weights.
    #[arg(long, hide_short_help = true, help_heading = NUMERICS)]
    pub fast: bool,
    /// Make an answer independent of other requests, of caching and of guesses
    ///
    /// Every row is computed by the same kernels, whatever the batch size. Prompts are slower, and on
    /// a GPU tokens too. Exact mode on the CPU is always reproducible.
    #[arg(long, hide_short_help = true, help_heading = NUMERICS)]
    pub reproducible: bool,
    #[command(flatten)]
    pub npu: NpuArguments,
}

impl ComputeOptions {
    /// Workers and instruction set.
    pub fn cpu(&self) -> CpuOptions {
        let default = CpuOptions::default();
        CpuOptions {
            level: self.simd.unwrap_or(default.level),
            threads: chosen(self.threads).unwrap_or(default.threads),
            prompt_weights: self.prompt_weights(),
            memory: self.memory,
        }
    }

    /// Numeric mode, if one was requested.
    pub fn numeric(&self) -> Option<Numeric> {
        match (self.exact, self.fast) {
            (true, _) => Some(Numeric::Exact),
            (_, true) => Some(Numeric::Fast),
            _ => None,
        }
    }

    /// Whether prompts have weights of their own.
    fn prompt_weights(&self) -> PromptWeights {
        match self.prompt_weights.as_str() {
            "on" => PromptWeights::On,
            "off" => PromptWeights::Off,
            _ => PromptWeights::Auto,
        }
    }

    /// The defaults, for answers about models that are not loaded: no NPU is opened and measured for
    /// them.
    pub fn without_npu() -> ComputeOptions {
        let device = DeviceChoice { npu: NpuUse::No, ..DeviceChoice::default() };
        ComputeOptions { device, ..ComputeOptions::default() }
    }

    /// How a GPU plays single tokens.
    fn decode(&self) -> Decode {
        match self.decode.as_str() {
            "dispatches" => Decode::Dispatches,
            "chained" => Decode::Chained,
            _ => Decode::Auto,
        }
    }

    /// Options to load a model with. Opens the device; the command's result names it.
    pub fn load(&self, console: Console) -> Result<LoadOptions, Failure> {
        self.load_and(Announce::WithResult, console)
    }

    /// The same for a command whose result does not name the device: a line does.
    pub fn load_announced(&self, console: Console) -> Result<LoadOptions, Failure> {
        self.load_and(Announce::Now, console)
    }

    fn load_and(&self, announce: Announce, console: Console) -> Result<LoadOptions, Failure> {
        let gpus = device::open(&self.device, announce, console)?;
        let gpus: Vec<VulkanOptions> = gpus
            .into_iter()
            .map(|gpu| VulkanOptions {
                tuning: tuned::load(&gpu, console),
                pipeline_file: tuned::pipeline_file(&gpu),
                memory: self.gpu_memory,
                host_memory: self.gpu_host_memory,
                prompt_weights: self.prompt_weights(),
                decode: self.decode(),
                ..VulkanOptions::new(gpu)
            })
            .collect();
        let on_npu = self.npu.place.iter().any(|(_, device)| device.starts_with("npu"));
        for (option, given) in [("--exact", self.exact), ("--reproducible", self.reproducible)] {
            if on_npu && given {
                return Err(Failure::usage(format!(
                    "{option} cannot be combined with --place …=npu: the NPU computes in int8 or bf16, and \
                     its kernels depend on the number of rows; leave one of them out"
                )));
            }
        }
        let npu = npu_device::open(&self.device, &self.npu, self.memory, console)?;
        tell_threads(self.threads, console);
        let has_gpu = !gpus.is_empty();
        if !has_gpu {
            let alone = npu.device.is_none();
            let idle = [
                ("--gpu-memory", self.gpu_memory.is_some()),
                ("--gpu-host-memory", self.gpu_host_memory),
                ("--decode", self.decode() != Decode::Auto),
                ("--overlap off", self.overlap == "off" && alone),
                ("--tokens-per-submit", self.tokens_per_submit.is_some()),
                ("--layers-on-gpu", self.layers_on_gpu.is_some_and(|layers| layers > 0)),
            ];
            for (option, _) in idle.iter().filter(|(_, given)| *given) {
                console.notice(&format!("{option} has no effect: the CPU computes"));
            }
        } else if let Some(level) = self.simd {
            console
                .notice(&format!("--simd {level} has no effect on layers that the GPU computes"));
        }
        let mut cpu = self.cpu();
        if has_gpu && cpu.prompt_weights == PromptWeights::On {
            // Asked of the GPU: layers that it has no memory for run as they otherwise would.
            cpu.prompt_weights = PromptWeights::Auto;
        }
        Ok(LoadOptions {
            devices: LoadOptions::devices(gpus, cpu),
            accelerators: npu.device.into_iter().collect(),
            place: npu.place,
            remarks: npu.remarks,
            warn: Some(Arc::new(move |line: &str| console.notice(line))),
            layers_on_first: self.layers_on_gpu.filter(|_| has_gpu),
            overlap: self.overlap != "off",
            numeric: self.numeric(),
            kv_type: self.kv_type,
            quantize: self.quantize,
            kv_memory: self.kv_memory,
            tokens_per_submit: self.tokens_per_submit,
            reproducible: self.reproducible,
            ..LoadOptions::default()
        })
    }
}

/// Guessing ahead.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = SPECULATION)]
pub struct SpeculationOptions {
    /// Guess tokens from earlier text and verify them in one step
    ///
    /// Faster where texts repeat themselves. The answer is the same with --reproducible; without it
    /// near-tied tokens may differ. Turns itself off where it is slower.
    #[arg(long, conflicts_with = "draft", hide_short_help = true)]
    pub speculate: bool,
    /// Smaller model of the same vocabulary that guesses tokens, as in gemma3:270m
    ///
    /// Turns itself off where it is slower.
    #[arg(long, value_name = "MODEL", hide_short_help = true)]
    pub draft: Option<String>,
}

/// Says that threads beyond the cores wait for each other.
pub fn tell_threads(threads: Option<usize>, console: Console) {
    let cores = pianola_cpu::describe().cores;
    if let Some(threads) = chosen(threads).filter(|&threads| threads > cores) {
        let (threads, cores) = (count(threads, "thread"), count(cores, "core"));
        console.notice(&format!("{threads} on {cores} are slow: they wait for each other"));
    }
}

/// Most tokens of an answer: at least one, or -1 for no bound, which is [`usize::MAX`].
pub fn most_tokens(text: &str) -> Result<usize, String> {
    match text {
        "-1" => Ok(usize::MAX),
        _ => positive(text).map_err(|why| format!("{why}, or -1 for no bound")),
    }
}

/// The bound that [`most_tokens`] read.
pub fn bound(most: Option<usize>) -> Option<usize> {
    most.filter(|&most| most < usize::MAX)
}

/// Tokens of context: at least one, or 0 for as many as the model allows.
pub fn context(text: &str) -> Result<usize, String> {
    match text {
        "0" => Ok(0),
        _ => positive(text).map_err(|why| format!("{why}, or 0 for all that the model allows")),
    }
}

/// The number that was chosen with an option whose 0 stands for its default.
pub fn chosen(number: Option<usize>) -> Option<usize> {
    number.filter(|&number| number > 0)
}

/// A number of at least zero.
pub fn natural(text: &str) -> Result<usize, String> {
    whole(text, 0)
}

/// A number of at least one.
pub fn positive(text: &str) -> Result<usize, String> {
    whole(text, 1)
}

fn whole(text: &str, least: usize) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(number) if number >= least => Ok(number),
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => {
            Err(format!("it must be at most {}", usize::MAX))
        }
        _ => Err(format!("it must be a whole number of at least {least}")),
    }
}

/// More threads than this only wait for each other: four for each core, and 16 on any machine.
fn most_threads() -> usize {
    (4 * pianola_cpu::describe().cores).max(16)
}

/// A number of threads; 0 for -1, which is the default.
pub fn threads(text: &str) -> Result<usize, String> {
    let most = most_threads();
    match text.parse::<usize>() {
        _ if text == "-1" => Ok(0),
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ => Err(format!(
            "it must be a whole number between 1 and {most} on this machine, or -1 for the default"
        )),
    }
}

/// An instruction set that this processor has.
pub fn level(text: &str) -> Result<Level, String> {
    let levels = || Level::ALL.iter().filter(|level| level.available());
    let available = || levels().map(|level| level.name()).collect::<Vec<_>>().join(", ");
    match Level::ALL.into_iter().find(|level| level.name() == text) {
        Some(level) if level.available() => Ok(level),
        Some(_) => Err(format!("this CPU does not have it; it has {}", available())),
        None => Err(format!("there is no such level; this CPU has {}", available())),
    }
}

/// A type that weights can be quantised to at load.
pub fn quantisation(text: &str) -> Result<TensorType, String> {
    match text.parse() {
        Ok(ty @ (TensorType::Q8_0 | TensorType::Q4_0)) => Ok(ty),
        _ => Err("weights can be quantised to q8_0 or q4_0".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_positive() {
        assert_eq!(positive("3"), Ok(3));
        assert!(positive("0").is_err() && positive("-1").is_err() && positive("x").is_err());
        let huge = "99999999999999999999";
        assert_eq!(positive(huge), Err(format!("it must be at most {}", usize::MAX)));
        assert!(most_tokens(huge).unwrap_err().contains("or -1 for no bound"));
        assert!(threads("100000").unwrap_err().contains(&most_threads().to_string()));
        assert!(threads("0").is_err() && threads("-2").is_err());
        assert_eq!((threads("-1"), threads("8")), (Ok(0), Ok(8)));
        assert_eq!((context("0"), context("64")), (Ok(0), Ok(64)));
        assert_eq!((chosen(Some(0)), chosen(Some(64))), (None, Some(64)));
        assert!(context("-1").is_err());
        assert!(natural("0") == Ok(0) && natural("-1").is_err());
        assert_eq!(bound(most_tokens("-1").ok()), None);
        assert_eq!(bound(most_tokens("7").ok()), Some(7));
        assert!(most_tokens("0").is_err() && most_tokens("-2").is_err());
    }
}
