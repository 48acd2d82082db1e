//! `compare`: how far one model's predictions are from another's.

use std::ffi::{OsStr, OsString};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use pianola_engine::{Comparison, Deviation, Engine};
use pianola_plan::{KvType, KvTypeError};
use serde_json::{Value, json};

use super::perplexity::LOGIT_ROWS;
use crate::console::{self, Console};
use crate::device::{self, DeviceChoice};
use crate::failure::Failure;
use crate::input::LongTextInput;
use crate::model;
use crate::npu_device::{self, NpuArguments};
use crate::options::{ComputeOptions, level, positive, quantisation, threads};

/// Compare the predictions of two models, or of one model computed in two ways.
///
/// A and B are models, each followed by options with commas between: exact, fast, device=DEVICE,
/// simd=LEVEL, kv-type=TYPE, quantize=TYPE, threads=N. With an NPU also emulate-npu,
/// npu-kernels=FOLDER, npu-precision=TYPE, npu-rotation=off. The result is the KL divergence of B's
/// predictions from A's in nats, over the second half of each window.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola compare smollm2:135m,exact smollm2:135m,fast -f book.txt
  pianola compare folder folder,quantize=q4_0,fast -f book.txt --context 256 --json")]
pub struct Arguments {
    /// Model that is the reference
    #[arg(value_name = "A", value_parser = specification())]
    first: Specification,
    /// Model that is compared with it
    #[arg(value_name = "B", value_parser = specification())]
    second: Specification,
    #[command(flatten)]
    text: LongTextInput,
    /// Tokens per window
    #[arg(short, long, alias = "ctx-size", value_name = "N", default_value_t = 512)]
    #[arg(value_parser = positive)]
    context: usize,
    /// Memory of the machine to use, as in 12GiB [default: what is free]
    #[arg(long, value_name = "BYTES", value_parser = device::bytes)]
    memory: Option<u64>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// `MODEL[,exact|fast][,device=DEVICE][,simd=LEVEL][,kv-type=TYPE][,quantize=TYPE][,threads=N]`, and for
/// the NPU `[,emulate-npu][,npu-kernels=FOLDER][,npu-precision=TYPE][,npu-rotation=off]`
#[derive(Clone, Debug)]
struct Specification {
    /// For people, who may have written what is no text.
    written: String,
    model: OsString,
    exact: bool,
    fast: bool,
    device: DeviceChoice,
    simd: Option<pianola_cpu::Level>,
    kv_type: Option<KvType>,
    quantize: Option<pianola_formats::TensorType>,
    threads: Option<usize>,
    npu: NpuArguments,
}

/// Names of files need not be text, so the parser of arguments must not want one.
fn specification() -> impl TypedValueParser<Value = Specification> {
    OsStringValueParser::new().try_map(|written| Specification::parse(&written))
}

/// What stands before the first comma.
#[cfg(unix)]
fn model_of(written: &OsStr) -> OsString {
    use std::os::unix::ffi::OsStrExt;
    let bytes = written.as_bytes().split(|&byte| byte == b',').next().unwrap_or_default();
    OsStr::from_bytes(bytes).to_os_string()
}

/// What stands before the first comma; elsewhere names are text but for rare halves of characters.
#[cfg(not(unix))]
fn model_of(written: &OsStr) -> OsString {
    written.to_string_lossy().split(',').next().unwrap_or_default().into()
}

impl Specification {
    fn parse(written: &OsStr) -> Result<Specification, String> {
        let model = model_of(written);
        let written = written.to_string_lossy().into_owned();
        if model.is_empty() {
            return Err("it must begin with a model".to_string());
        }
        let mut specification = Specification {
            written: written.clone(),
            model,
            exact: false,
            fast: false,
            device: DeviceChoice::default(),
            simd: None,
            kv_type: None,
            quantize: None,
            threads: None,
            npu: NpuArguments::default(),
        };
        for word in written.split(',').skip(1) {
            match word.split_once('=') {
                None if word == "exact" => specification.exact = true,
                None if word == "fast" => specification.fast = true,
                Some(("device", name)) => specification.device = device::parse(name)?,
                Some(("simd", name)) => specification.simd = Some(level(name)?),
                Some(("kv-type", name)) => {
                    let ty = name.parse().map_err(|error: KvTypeError| error.to_string())?;
                    specification.kv_type = Some(ty);
                }
                Some(("quantize", name)) => specification.quantize = Some(quantisation(name)?),
                Some(("threads", count)) => specification.threads = Some(threads(count)?),
                None if word == "emulate-npu" => specification.npu.emulate_npu = true,
                Some(("npu-kernels", folder)) => {
                    specification.npu.npu_kernels = Some(folder.into());
                }
                Some(("npu-precision", name)) => {
                    specification.npu.npu_precision = Some(npu_device::precision(name)?);
                }
                Some(("npu-rotation", "off")) => specification.npu.npu_without_rotation = true,
                _ => {
                    return Err(format!(
                        "'{word}' is no way to compute; known are exact, fast, device=DEVICE, simd=LEVEL, \
                         kv-type=TYPE, quantize=TYPE, threads=N, emulate-npu, npu-kernels=FOLDER, \
                         npu-precision=TYPE and npu-rotation=off"
                    ));
                }
            }
        }
        if specification.exact && specification.fast {
            return Err("exact and fast exclude each other".to_string());
        }
        Ok(specification)
    }

    fn load(&self, arguments: &Arguments, console: Console) -> Result<Engine, Failure> {
        let compute = ComputeOptions {
            device: self.device.clone(),
            threads: self.threads,
            simd: self.simd,
            kv_type: self.kv_type,
            exact: self.exact,
            fast: self.fast,
            quantize: self.quantize,
            npu: self.npu.clone(),
            memory: arguments.memory,
            ..ComputeOptions::default()
        };
        let located = model::locate(&self.model, console)?;
        let mut options = compute.load_announced(console)?;
        options.max_logit_rows = LOGIT_ROWS;
        options.context = Some(arguments.context);
        model::load(&located, options, console)
    }
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    let text = arguments.text.read(&[], console)?;
    let mut first = arguments.first.load(arguments, console)?;
    let mut second = arguments.second.load(arguments, console)?;
    let mut bar = console.bar("comparing [{bar:24}] {pos} of {len} windows, {eta} left");
    let result = pianola_engine::compare(
        &mut first,
        &mut second,
        &text,
        arguments.context,
        &mut |done, all| bar.reach(done as u64, all as u64),
    )?;
    drop(bar);
    if arguments.json {
        return console::print_json(&object(arguments, &first, &result)?);
    }
    console::print(&summary(arguments, &first, &result)?)
}

/// A token's text, quoted where it is for people.
fn piece(engine: &Engine, token: u32) -> Result<String, Failure> {
    let bytes = engine.text()?.tokenizer.token_bytes(token).unwrap_or_default();
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

fn summary(arguments: &Arguments, engine: &Engine, result: &Comparison) -> Result<String, Failure> {
    let mut text = format!(
        "A: {}, perplexity {:.4}\nB: {}, perplexity {:.4}\n\
         KL divergence of B from A over {} positions: mean {:.6}, median {:.6}, largest {:.6} nats\n\
         same likeliest token: {:.2} %\nworst positions:\n",
        arguments.first.written,
        result.perplexities.0,
        arguments.second.written,
        result.perplexities.1,
        result.positions,
        result.mean_divergence,
        result.median_divergence,
        result.largest_divergence,
        100.0 * result.top_agreement,
    );
    for Deviation { window, position, token, divergence, top } in &result.worst {
        text.push_str(&format!(
            "  window {window} position {position}: {divergence:.6} nats after {:?}: A {:?}, B {:?}\n",
            piece(engine, *token)?,
            piece(engine, top.0)?,
            piece(engine, top.1)?,
        ));
    }
    Ok(text)
}

fn object(arguments: &Arguments, engine: &Engine, result: &Comparison) -> Result<Value, Failure> {
    let worst = result.worst.iter().map(|deviation| {
        Ok(json!({
            "window": deviation.window,
            "position": deviation.position,
            "token": deviation.token,
            "text": piece(engine, deviation.token)?,
            "kl": deviation.divergence,
            "top_a": deviation.top.0,
            "top_a_text": piece(engine, deviation.top.0)?,
            "top_b": deviation.top.1,
            "top_b_text": piece(engine, deviation.top.1)?,
        }))
    });
    let worst: Vec<Value> = worst.collect::<Result<_, Failure>>()?;
    Ok(json!({
        "a": arguments.first.written,
        "b": arguments.second.written,
        "context": arguments.context,
        "positions": result.positions,
        "mean_kl": result.mean_divergence,
        "median_kl": result.median_divergence,
        "max_kl": result.largest_divergence,
        "top1_agreement": result.top_agreement,
        "perplexity_a": result.perplexities.0,
        "perplexity_b": result.perplexities.1,
        "worst": worst,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifications_are_read() {
        let parse = |written: &str| Specification::parse(OsStr::new(written));
        let full = parse("m.gguf,exact,simd=portable,threads=2").unwrap();
        assert_eq!((full.exact, full.threads), (true, Some(2)));
        assert_eq!(full.model, "m.gguf");
        for wrong in ["", ",exact", "m,exakt", "m,exact,fast", "m,simd=sse9", "m,threads=0"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
