//! Options that several commands share.

use clap::Args;
use pianola_cpu::{CpuOptions, Level};
use pianola_engine::LoadOptions;
use pianola_engine::sampler::Sampling;
use pianola_formats::TensorType;
use pianola_plan::{KvType, Numeric};
use pianola_vulkan::VulkanOptions;

use crate::console::Console;
use crate::device::{self, DeviceChoice};
use crate::failure::Failure;
use crate::tuned;

/// The model that commands use by default.
pub const DEFAULT_MODEL: &str = "smollm2:135m";

/// Which model.
#[derive(Args, Debug)]
pub struct ModelOption {
    /// A name from the catalogue (fetched once, then kept), a GGUF file, or a Hugging Face folder
    #[arg(short, long, value_name = "MODEL", default_value = DEFAULT_MODEL)]
    pub model: String,
}

/// Where and how to compute.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Computing")]
pub struct ComputeOptions {
    /// Device: auto, cpu, vulkan, vulkan:INDEX or vulkan:NAME (a part of its name). Auto takes a
    /// discrete GPU, then an integrated one, then the processor. Several GPUs, with commas between,
    /// are filled in turn
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = device::parse)]
    pub device: DeviceChoice,
    /// Most memory to use on the GPU, as in 12GiB [default: what its driver grants]
    #[arg(long, value_name = "BYTES", value_parser = device::bytes)]
    pub gpu_memory: Option<u64>,
    /// Layers to compute on the GPU; the others, the first ones, run on the processor [default: as
    /// many as its memory holds]
    #[arg(long, value_name = "N")]
    pub layers_on_gpu: Option<usize>,
    /// Whether devices that share a model work at once where that pays: auto, or off to compare
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = ["auto", "off"])]
    pub overlap: String,
    /// Tokens that a GPU samples by itself in one submission [default: as many as come within
    /// 40 ms, at most 8]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub tokens_per_submit: Option<usize>,
    /// Most memory for keys and values, as in 4GiB [default: what the weights leave, as far as it is
    /// of use]
    #[arg(long, value_name = "BYTES", value_parser = device::bytes)]
    pub kv_memory: Option<u64>,
    /// Threads to compute with [default: one for each core]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// Instruction set: reference, portable, avx2 or avx512 [default: the best there is]
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
    /// processor it is always so
    #[arg(long)]
    pub reproducible: bool,
    /// Type to store keys and values in: f32, f16 or q8_0, which takes half of f16's
    /// memory [default: f32 in exact mode, f16 in fast mode]
    #[arg(long, value_name = "TYPE")]
    pub kv_type: Option<KvType>,
    /// Quantise unquantised weights while loading: q8_0 or q4_0 (embeddings stay at 8 bits)
    #[arg(long, value_name = "TYPE", value_parser = quantisation)]
    pub quantize: Option<TensorType>,
}

impl ComputeOptions {
    /// Workers and instruction set.
    pub fn cpu(&self) -> CpuOptions {
        let default = CpuOptions::default();
        CpuOptions {
            level: self.simd.unwrap_or(default.level),
            threads: self.threads.unwrap_or(default.threads),
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

    /// Options to load a model with: opens the device, and says which in a line.
    pub fn load(&self, console: Console) -> Result<LoadOptions, Failure> {
        let gpus = device::open(&self.device, console)?;
        let gpus: Vec<VulkanOptions> = gpus
            .into_iter()
            .map(|gpu| VulkanOptions {
                tuning: tuned::load(&gpu, console),
                memory: self.gpu_memory,
                ..VulkanOptions::new(gpu)
            })
            .collect();
        if gpus.is_empty() {
            let idle = [
                ("--gpu-memory", self.gpu_memory.is_some()),
                ("--tokens-per-submit", self.tokens_per_submit.is_some()),
            ];
            for (option, _) in idle.iter().filter(|(_, given)| *given) {
                console.notice(&format!("{option} has no effect: the processor computes"));
            }
        }
        Ok(LoadOptions {
            devices: LoadOptions::devices(gpus, self.cpu()),
            layers_on_first: self.layers_on_gpu,
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
    /// texts repeat themselves. The same answer on the processor and with --reproducible, on a GPU but for
    /// near ties. Switches itself off where it loses
    #[arg(long, conflicts_with = "draft")]
    pub speculate: bool,
    /// A smaller model of the same vocabulary that guesses tokens ahead, as in gemma3:270m. Switches
    /// itself off where it loses
    #[arg(long, value_name = "MODEL")]
    pub draft: Option<String>,
}

/// How the next token is sampled.
#[derive(Args, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingOptions {
    /// Temperature: 0 always takes the likeliest token, higher values dare more
    #[arg(long, visible_alias = "temperature", value_name = "T", default_value_t = 0.3)]
    #[arg(allow_negative_numbers = true)]
    pub temp: f32,
    /// Sample from this many of the likeliest tokens; 0: all
    #[arg(long, value_name = "K", default_value_t = 40, allow_negative_numbers = true)]
    pub top_k: usize,
    /// Sample from the likeliest tokens whose probabilities reach this sum; 1: all
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true)]
    pub top_p: f32,
    /// Leave out tokens less likely than this share of the likeliest; 0: none
    #[arg(long, value_name = "P", default_value_t = 0.05, allow_negative_numbers = true)]
    pub min_p: f32,
    /// Make tokens seen before less likely; 1: off [default: 1.05, or 1 with --temp 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub repeat_penalty: Option<f32>,
    /// Subtract this from the logit of every token seen before
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Subtract this from the logit of a token each time it was seen before
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Tokens back that the three penalties look at
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub penalty_window: usize,
    /// Add X to the logit of token ID; -inf bans it. May be repeated
    #[arg(long, value_name = "ID=X", value_parser = bias, allow_hyphen_values = true)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers: the same seed gives the same text, on a GPU beside other requests or
    /// with guesses only with --reproducible [default: a random one, which the last line tells]
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    pub seed: Option<u64>,
}

impl SamplingOptions {
    /// The sampler's options, checked.
    pub fn sampling(&self) -> Result<Sampling, Failure> {
        // Greedy means the model's own choice, unless a penalty was asked for by name.
        let default_penalty = if self.temp == 0.0 { 1.0 } else { 1.05 };
        let sampling = Sampling {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty.unwrap_or(default_penalty),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_window: self.penalty_window,
            logit_bias: self.logit_bias.clone(),
            ..Sampling::default()
        };
        sampling.validate().map_err(|error| Failure::usage(error.to_string()))?;
        Ok(sampling)
    }
}

/// A number of at least one.
pub fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".to_string()),
        Ok(number) => Ok(number),
        Err(_) => Err("it must be a whole number of at least 1".to_string()),
    }
}

/// A number of threads.
pub fn threads(text: &str) -> Result<usize, String> {
    const MOST: usize = 1024;
    match text.parse() {
        Ok(number) if (1..=MOST).contains(&number) => Ok(number),
        _ => Err(format!("it must be a whole number between 1 and {MOST}")),
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

fn bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text.split_once('=').and_then(|(id, amount)| {
        Some((id.trim().parse().ok()?, amount.trim().parse::<f32>().ok()?))
    });
    match parsed {
        Some((_, amount)) if amount.is_nan() => Err("the amount is not a number".to_string()),
        Some(pair) => Ok(pair),
        None => {
            Err("it must be a token's id, '=' and a number, as in 42=-5 or 42=-inf".to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_are_read() {
        assert_eq!(bias("42=-1.5"), Ok((42, -1.5)));
        assert_eq!(bias("7=-inf"), Ok((7, f32::NEG_INFINITY)));
        for wrong in ["", "7", "7=", "=1", "-7=1", "7=nan", "x=1"] {
            assert!(bias(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn counts_are_positive() {
        assert_eq!(positive("3"), Ok(3));
        assert!(positive("0").is_err() && positive("-1").is_err() && positive("x").is_err());
        assert!(threads("100000").is_err());
    }
}
