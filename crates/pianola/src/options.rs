//! Options that several commands share.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use clap::Args;
use pianola_cpu::{CpuOptions, Level};
use pianola_engine::LoadOptions;
use pianola_formats::TensorType;
use pianola_hub::catalogue;
use pianola_plan::{KvType, Numeric, PromptWeights};
use pianola_vulkan::{Decode, VulkanOptions};

use crate::console::{Console, count};
use crate::device::{self, DeviceChoice, NpuUse};
use crate::failure::Failure;
use crate::npu_device::{self, NpuArguments};
use crate::tuned;

/// The model that commands use by default.
pub const DEFAULT_MODEL: &str = "smollm2:135m";

/// Which model.
#[derive(Args, Debug)]
pub struct ModelOption {
    /// A name from the catalogue (fetched once, then kept), a GGUF file, or a Hugging Face folder
    /// [default: smollm2:135m]
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<OsString>,
}

impl ModelOption {
    /// What was given, or the default.
    pub fn name(&self) -> &OsStr {
        self.model.as_deref().unwrap_or(OsStr::new(DEFAULT_MODEL))
    }
}

/// Whether a name is that of a model in the catalogue that was not made to chat.
pub fn is_base_model(name: &OsStr) -> bool {
    name.to_str().and_then(catalogue::find).is_some_and(|entry| entry.base)
}

/// Where and how to compute.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Computing")]
pub struct ComputeOptions {
    /// Device: auto, cpu, vulkan, vulkan:INDEX or vulkan:NAME (a part of its name). Auto takes a
    /// discrete GPU, then an integrated one, then the processor. Several GPUs, with commas between,
    /// are filled in turn; what a GPU has no memory for runs on the processor (cpu+vulkan says the same).
    /// npu+vulkan and npu+cpu let AMD's NPU (never yet run on silicon) compute products of prompts; where there is none, a notice says so; auto does, too, where there is one
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = device::parse)]
    pub device: DeviceChoice,
    /// Most memory to use on the GPU, as in 12GiB [default: what its driver grants]
    #[arg(long, value_name = "BYTES", value_parser = device::bytes)]
    pub gpu_memory: Option<u64>,
    /// Keep what the GPU's own memory, or --gpu-memory of it, does not hold in the host's memory, which a card
    /// reads over its bus, instead of computing layers on the processor
    #[arg(long)]
    pub gpu_host_memory: bool,
    /// Layers to compute on the GPU, as in 99 for all; the others, the first ones, run on the
    /// processor [default: as many as its memory holds]
    #[arg(long, aliases = ["n-gpu-layers", "gpu-layers"], value_name = "N")]
    pub layers_on_gpu: Option<usize>,
    /// Whether devices that share a model work at once where that pays: auto, or off to compare
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = ["auto", "off"])]
    pub overlap: String,
    /// Whether quantised weights are kept a second time, rotated and in int8, for prompts and many requests at once, in fast
    /// mode, for a byte a weight. On a GPU prompts are about twice as fast. Auto: on a card with matrix units for int8
    /// that has memory left, for models of about a billion parameters and more; on: an error where a GPU cannot; or off. On
    /// the processor, where it computes alone, steps of 16 tokens or more are 1.06 to 2.5 times as fast. Auto: where that takes at
    /// most 2 GiB and a twelfth of the memory available, or for 8 requests at once or more a quarter of it, and half is left; on: an error
    /// where it cannot
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = ["auto", "on", "off"])]
    pub prompt_weights: String,
    /// How a GPU plays the layers of a single token: dispatches, five a layer, one after the other; chained, the same five that overlap,
    /// because kernels wait for one another by themselves; persistent, two a layer, with all products between two attentions in one, by
    /// workgroups that stay (both are errors where a GPU cannot); auto, chained on cards that count their units (NVIDIA's), where it is
    /// as fast or faster for nearly all models. Without a GPU it has no effect
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = ["auto", "dispatches", "chained", "persistent"])]
    pub decode: String,
    /// Tokens that a GPU samples by itself in one submission [default: as many as come within
    /// 40 ms, at most 16; the first of an answer alone]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub tokens_per_submit: Option<usize>,
    /// Most memory for keys and values, as in 4GiB [default: what the weights leave, as far as it is
    /// of use]
    #[arg(long, value_name = "BYTES", value_parser = device::bytes)]
    pub kv_memory: Option<u64>,
    /// Threads to compute with, -1 for the default [default: one for each core]
    #[arg(short, long, value_name = "N", value_parser = threads, allow_negative_numbers = true)]
    pub threads: Option<usize>,
    /// Instruction set: reference, portable, avx2, avx-vnni, avx512 or amx [default: the best there is]
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    pub simd: Option<Level>,
    /// Compute in 32-bit floats throughout: slower, for comparisons. Default for folders of
    /// unquantised weights
    #[arg(long, conflicts_with = "fast")]
    pub exact: bool,
    /// Meet quantised weights with 8-bit activations. Default for quantised weights
    #[arg(long)]
    pub fast: bool,
    /// Compute every row with the same kernels, however many there are: an answer then does not
    /// depend on what else runs, on how its prompt was cut, or on guesses. Slower on a GPU; on the
    /// processor long prompts are, and exact mode is always so
    #[arg(long)]
    pub reproducible: bool,
    /// Type to store keys and values in: f32, f16 or q8_0, which takes half of f16's
    /// memory [default: f32 in exact mode, f16 in fast mode]
    #[arg(long, value_name = "TYPE")]
    pub kv_type: Option<KvType>,
    /// Quantise unquantised weights while loading: q8_0 or q4_0 (embeddings stay at 8 bits)
    #[arg(long, value_name = "TYPE", value_parser = quantisation)]
    pub quantize: Option<TensorType>,
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
            "persistent" => Decode::Persistent,
            _ => Decode::Auto,
        }
    }

    /// Options to load a model with: opens the device, and says which in a line.
    pub fn load(&self, console: Console) -> Result<LoadOptions, Failure> {
        let gpus = device::open(&self.device, console)?;
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
                    "{option} and --place …=npu exclude one another: the NPU computes in int8 or bf16, and \
                     its kernels depend on the number of rows; leave one of them out"
                )));
            }
        }
        let npu = npu_device::open(&self.device, &self.npu, console)?;
        tell_threads(self.threads, console);
        let has_gpu = !gpus.is_empty();
        if !has_gpu {
            let idle = [
                ("--gpu-memory", self.gpu_memory.is_some()),
                ("--gpu-host-memory", self.gpu_host_memory),
                ("--decode", matches!(self.decode(), Decode::Chained | Decode::Persistent)),
                ("--tokens-per-submit", self.tokens_per_submit.is_some()),
                ("--layers-on-gpu", self.layers_on_gpu.is_some_and(|layers| layers > 0)),
            ];
            for (option, _) in idle.iter().filter(|(_, given)| *given) {
                console.notice(&format!("{option} has no effect: the processor computes"));
            }
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
#[command(next_help_heading = "Speculation")]
pub struct SpeculationOptions {
    /// Guess tokens ahead from what was said before, and verify them in one step: sooner where
    /// texts repeat themselves. The same answer with --reproducible, otherwise but for near ties. Switches
    /// itself off where it loses
    #[arg(long, conflicts_with = "draft")]
    pub speculate: bool,
    /// A smaller model of the same vocabulary that guesses tokens ahead, as in gemma3:270m. Switches
    /// itself off where it loses
    #[arg(long, value_name = "MODEL")]
    pub draft: Option<String>,
}

/// Says that threads beyond the cores wait for each other.
pub fn tell_threads(threads: Option<usize>, console: Console) {
    let cores = pianola_cpu::describe().cores;
    if let Some(threads) = chosen(threads).filter(|&threads| threads > cores) {
        let (threads, cores) = (count(threads, "thread"), count(cores, "core"));
        console.notice(&format!("{threads} on {cores} wait for each other, which is slow"));
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
    text.parse().map_err(|_| "it must be a whole number of at least 0".to_string())
}

/// A number of at least one.
pub fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".to_string()),
        Ok(number) => Ok(number),
        Err(_) => Err("it must be a whole number of at least 1".to_string()),
    }
}

/// A number of threads; 0 where -1 leaves it to us.
pub fn threads(text: &str) -> Result<usize, String> {
    const MOST: i64 = 1024;
    match text.parse() {
        Ok(-1) => Ok(0),
        Ok(number @ 1..=MOST) => Ok(number as usize),
        _ => Err(format!("it must be a whole number between 1 and {MOST}, or -1 for the default")),
    }
}

/// An instruction set that this processor has.
pub fn level(text: &str) -> Result<Level, String> {
    let levels = || Level::ALL.iter().filter(|level| level.available());
    let available = || levels().map(|level| level.name()).collect::<Vec<_>>().join(", ");
    match Level::ALL.into_iter().find(|level| level.name() == text) {
        Some(level) if level.available() => Ok(level),
        Some(_) => Err(format!("this processor does not have it; it has {}", available())),
        None => Err(format!("there is no such level; this processor has {}", available())),
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
        assert!(threads("100000").is_err() && threads("0").is_err() && threads("-2").is_err());
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
