//! AMD's NPU as a device that computes beside others: opened where it was asked for or is there.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use pianola_npu::placed::{Fallback, NpuDevice, NpuOptions, OpenError, Precision, Refused};
use pianola_plan::{Device, ModelPart};

use crate::commands::npu::default_folder;
use crate::console::Console;
use crate::device::{DeviceChoice, NpuUse};
use crate::failure::Failure;

/// Heading of these options in the long help.
pub const NPU: &str = "NPU (never run on real hardware: docs/how-to/try-an-npu.md)";

/// How to use the NPU.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = NPU)]
pub struct NpuArguments {
    /// Put parts of the model on devices, as in attention=npu,ffn=vulkan
    ///
    /// Parts are embedding, projections, attention (with its keys and values), ffn and head.
    #[arg(long, value_name = "PART=DEVICE", value_delimiter = ',', value_parser = place)]
    #[arg(hide_short_help = true)]
    pub place: Vec<(ModelPart, String)>,
    /// Emulate an NPU in this process, for tests
    ///
    /// The emulator computes what the manifests of the kernel packages state. It has no speed.
    #[arg(long, hide_short_help = true)]
    pub emulate_npu: bool,
    /// Folder of kernel packages for the NPU [default: npu_kernels beside the models]
    #[arg(long, value_name = "FOLDER", hide_short_help = true)]
    pub npu_kernels: Option<PathBuf>,
    /// Precision of products on the NPU: bf16 or int8
    ///
    /// int8 computes in separately scaled pieces. It is the default if such a package is installed.
    #[arg(long, value_name = "TYPE", value_parser = precision, hide_short_help = true)]
    pub npu_precision: Option<Precision>,
    /// When the NPU computes products of prompts
    ///
    /// `auto` uses it if it is predicted to be faster and proves to be. `always` is for trying it.
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = ["auto", "always"])]
    #[arg(hide_short_help = true)]
    pub npu_work: String,
    /// Do not rotate weights and inputs before they become int8 for the NPU, for comparisons
    #[arg(long, hide = true)]
    pub npu_without_rotation: bool,
}

impl NpuArguments {
    /// Whether prompts use it whatever is predicted.
    fn always(&self) -> bool {
        self.npu_work == "always"
    }
}

/// The NPU, if it can be used.
#[derive(Default)]
pub struct Opened {
    /// The device, where it can be used.
    pub device: Option<Arc<dyn Device>>,
    /// Parts of the model that were placed by name, without those on an NPU that cannot be used.
    pub place: Vec<(ModelPart, String)>,
    /// For the plan: why it, or a kernel package of it, is not used.
    pub remarks: Vec<String>,
}

/// Opens the NPU if it was asked for, or if one is there and the choice is ours. Where it cannot be used,
/// everything runs without it, and somebody is told.
pub fn open(
    choice: &DeviceChoice,
    arguments: &NpuArguments,
    memory: Option<u64>,
    console: Console,
) -> Result<Opened, Failure> {
    let place = arguments.place.clone();
    let by_name = place.iter().any(|(_, device)| device.starts_with("npu"));
    if let Some((part, _)) = (place.iter().enumerate())
        .find_map(|(at, one)| place[..at].iter().find(|other| other.0 == one.0))
    {
        return Err(Failure::usage(format!("--place names {part} twice")));
    }
    if choice.npu == NpuUse::No && !arguments.emulate_npu {
        let option = match (by_name, arguments.always()) {
            (true, _) => Some("--place names npu"),
            (_, true) => Some("--npu-work wants npu"),
            _ => None,
        };
        if let Some(option) = option {
            let why = format!("{option}, and --device does not; name it there, as in npu+cpu");
            return Err(Failure::usage(why));
        }
        return Ok(Opened { place, ..Opened::default() });
    }
    // What was placed on it has no other device to go to.
    let fallback = if by_name { Fallback::Twin } else { Fallback::Report };
    let options = NpuOptions { memory, ..options(arguments, fallback)? };
    if arguments.emulate_npu {
        let device = emulated(options)?;
        console.detail(&format!("npu: {}", device.description()));
        let remarks = tell_refused(&device, console);
        return Ok(Opened { device: Some(device), place, remarks });
    }
    match NpuDevice::open(options) {
        Ok(device) => {
            let line = format!("npu: {}", device.description());
            match choice.npu {
                NpuUse::IfThere => console.notice(&line),
                _ => console.detail(&line),
            }
            let remarks = tell_refused(&device, console);
            Ok(Opened { device: Some(Arc::new(device)), place, remarks })
        }
        Err(reason) => {
            let line = format!("npu is not used: {reason}");
            let asked = choice.npu == NpuUse::Asked || by_name || arguments.always();
            match asked {
                true => console.notice(&line),
                false => console.detail(&line),
            }
            let place =
                place.into_iter().filter(|(_, device)| !device.starts_with("npu")).collect();
            // Machines without an NPU need not hear of it.
            let remarks = if asked { vec![line] } else { Vec::new() };
            Ok(Opened { device: None, place, remarks })
        }
    }
}

/// Tells of each kernel package that cannot be read or failed its self-test: what computes in its place may
/// be slower, or round otherwise.
fn tell_refused(device: &NpuDevice, console: Console) -> Vec<String> {
    let refused = device.facts().refused;
    let line = |refused: &Refused| format!("npu: a kernel package is not used: {refused}");
    let lines: Vec<String> = refused.iter().map(line).collect();
    lines.iter().for_each(|line| console.notice(line));
    lines
}

/// An NPU to be checked, which hides no failure.
pub struct Checked {
    pub device: Arc<dyn Device>,
    pub precision: Precision,
}

/// Opens the NPU for a check. Here what cannot be used is an error.
pub fn open_for_check(arguments: &NpuArguments, console: Console) -> Result<Checked, Failure> {
    if !arguments.place.is_empty() {
        return Err(Failure::usage("a check of the NPU gives it all products; leave out --place"));
    }
    let options = options(arguments, Fallback::Report)?;
    let device = match arguments.emulate_npu {
        true => emulated(options)?,
        false => Arc::new(NpuDevice::open(options).map_err(failure)?),
    };
    tell_refused(&device, console);
    Ok(Checked { precision: device.facts().precision, device })
}

fn options(arguments: &NpuArguments, fallback: Fallback) -> Result<NpuOptions, Failure> {
    let kernels = match &arguments.npu_kernels {
        Some(folder) => folder.clone(),
        None => default_folder()?,
    };
    let (precision, rotation) = (arguments.npu_precision, !arguments.npu_without_rotation);
    let always = arguments.always();
    Ok(NpuOptions { precision, rotation, fallback, always, ..NpuOptions::new(kernels) })
}

fn failure(error: OpenError) -> Failure {
    Failure::failed(error.to_string())
}

#[cfg(feature = "npu-emulation")]
fn emulated(options: NpuOptions) -> Result<Arc<NpuDevice>, Failure> {
    Ok(Arc::new(NpuDevice::emulated(options).map_err(failure)?))
}

#[cfg(not(feature = "npu-emulation"))]
fn emulated(_options: NpuOptions) -> Result<Arc<NpuDevice>, Failure> {
    Err(Failure::usage(
        "this build has no model of the NPU; build it with the feature npu-emulation",
    ))
}

/// Reads `attention=npu`.
fn place(text: &str) -> Result<(ModelPart, String), String> {
    let Some((part, device)) = text.split_once('=') else {
        return Err("it must be a part and a device, as in attention=npu".to_string());
    };
    let (part, device): (ModelPart, &str) = (part.trim().parse()?, device.trim());
    match device.is_empty() {
        true => Err(format!("{part} needs a device behind its =")),
        false => Ok((part, device.to_string())),
    }
}

/// Reads a precision of products.
pub fn precision(text: &str) -> Result<Precision, String> {
    match text {
        "bf16" => Ok(Precision::Bf16),
        "int8" => Ok(Precision::Int8Pieces),
        _ => Err("a precision is bf16 or int8".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        assert_eq!(place("attention=npu"), Ok((ModelPart::Attention, "npu".to_string())));
        assert_eq!(place("ffn = vulkan:1"), Ok((ModelPart::Ffn, "vulkan:1".to_string())));
        for wrong in ["", "attention", "attention=", "nose=cpu"] {
            assert!(place(wrong).is_err(), "{wrong}");
        }
        assert!(place("nose=cpu").unwrap_err().contains("projections"));
    }
}
