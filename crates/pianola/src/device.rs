//! Which device computes: the requested one, those found, and why.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pianola_vulkan::{Gpu, GpuDescription, Selection};

use crate::console::Console;
use crate::failure::Failure;

/// Devices to compute on, as a user names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceChoice {
    /// What has the whole model.
    pub main: MainDevice,
    /// What takes products over from it.
    pub npu: NpuUse,
}

/// What has the whole model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MainDevice {
    /// The best one there is.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// GPUs through Vulkan, in the order in which they are filled.
    Vulkan(Vec<Selection>),
}

/// Whether an NPU takes products over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NpuUse {
    /// It does not.
    No,
    /// If there is one, and it pays.
    #[default]
    IfThere,
    /// It was asked for.
    Asked,
}

/// Reads devices with `+` between: `npu`, and `auto`, `cpu` or GPUs.
pub fn parse(text: &str) -> Result<DeviceChoice, String> {
    let (npu, others): (Vec<&str>, Vec<&str>) =
        text.split('+').map(str::trim).partition(|&part| part == "npu");
    let main = match others[..] {
        [] => MainDevice::Auto,
        [one] => parse_main(one)?,
        // What a GPU has no memory for runs on the processor anyway.
        ["cpu", gpus] | [gpus, "cpu"] => match parse_main(gpus)? {
            main @ MainDevice::Vulkan(_) => main,
            _ => return Err(wrong_device()),
        },
        _ => return Err(wrong_device()),
    };
    let npu = match (npu.len(), text) {
        (0, "auto") => NpuUse::IfThere,
        (0, _) => NpuUse::No,
        (1, _) => NpuUse::Asked,
        _ => return Err(wrong_device()),
    };
    Ok(DeviceChoice { main, npu })
}

/// Reads `auto`, `cpu`, `vulkan`, `vulkan:INDEX` or `vulkan:NAME`, or several of the last three with
/// commas between.
fn parse_main(text: &str) -> Result<MainDevice, String> {
    if text.contains(',') {
        let mut all = Vec::new();
        for part in text.split(',') {
            match parse_main(part.trim())? {
                MainDevice::Vulkan(found) => all.extend(found),
                _ => return Err(wrong_device()),
            }
        }
        return Ok(MainDevice::Vulkan(all));
    }
    let (kind, which) = match text.split_once(':') {
        Some((kind, which)) => (kind, Some(which.trim())),
        None => (text, None),
    };
    match (kind, which) {
        ("auto", None) => Ok(MainDevice::Auto),
        ("cpu", None) => Ok(MainDevice::Cpu),
        ("vulkan", None) => Ok(MainDevice::Vulkan(vec![Selection::Best])),
        ("vulkan", Some(which)) if !which.is_empty() => {
            Ok(MainDevice::Vulkan(vec![match which.parse() {
                Ok(index) => Selection::Index(index),
                Err(_) => Selection::Name(which.to_string()),
            }]))
        }
        _ => Err(wrong_device()),
    }
}

/// Reads one GPU: `vulkan`, `vulkan:INDEX` or `vulkan:NAME`.
pub fn one_gpu(text: &str) -> Result<Selection, String> {
    match parse_main(text) {
        Ok(MainDevice::Vulkan(found)) if found.len() == 1 => Ok(found[0].clone()),
        _ => Err("it must be one GPU: vulkan, vulkan:INDEX or vulkan:NAME".to_string()),
    }
}

fn wrong_device() -> String {
    "a device is auto, cpu, vulkan, vulkan:INDEX or vulkan:NAME, several GPUs with commas between, \
     cpu+vulkan, npu, or npu with one of these, as in npu+vulkan; `pianola devices` lists what is here"
        .to_string()
}

/// When a choice of `auto` is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announce {
    /// In a line when the device is opened.
    Now,
    /// By the command itself, beside its result.
    WithResult,
}

/// Shows what was chosen: with -v always and in full.
fn announce(choice: &DeviceChoice, when: Announce, short: &str, long: &str, console: Console) {
    static SHOWN: AtomicBool = AtomicBool::new(false);
    console.detail(&format!("device: {long}"));
    let ours = choice.main == MainDevice::Auto && when == Announce::Now && !console.verbose;
    // A command may open the device twice.
    if ours && !SHOWN.swap(true, Ordering::Relaxed) {
        console.notice(&format!("device: {short}"));
    }
}

/// Opens the GPUs that were asked for; none if the CPU computes.
pub fn open(
    choice: &DeviceChoice,
    when: Announce,
    console: Console,
) -> Result<Vec<Arc<Gpu>>, Failure> {
    let found = |gpu: Arc<Gpu>, why: &str| {
        let GpuDescription { name, driver, kind, .. } = gpu.description();
        let long = format!("vulkan, {name} ({kind}, {driver}), {why}");
        announce(choice, when, &format!("vulkan ({name})"), &long, console);
        gpu
    };
    match &choice.main {
        MainDevice::Cpu => {
            announce(choice, when, "cpu", "cpu, as asked", console);
            Ok(Vec::new())
        }
        MainDevice::Vulkan(selections) => {
            let mut gpus: Vec<Arc<Gpu>> = Vec::new();
            for selection in selections {
                let gpu = Gpu::open(selection).map_err(pianola_engine::EngineError::from)?;
                let GpuDescription { index, name, .. } = gpu.description();
                if gpus.iter().any(|other| other.description().index == *index) {
                    return Err(Failure::usage(format!(
                        "--device names {name} (vulkan:{index}) twice; name each GPU once"
                    )));
                }
                gpus.push(found(gpu, "as asked"));
            }
            Ok(gpus)
        }
        MainDevice::Auto => match Gpu::open(&Selection::Best) {
            Ok(gpu) => Ok(vec![found(gpu, "the best there is (--device auto)")]),
            Err(reason) => {
                let long = format!("cpu, because {reason}");
                announce(choice, when, "cpu (no usable GPU; -v shows why)", &long, console);
                Ok(Vec::new())
            }
        },
    }
}

/// Reads a number of bytes: `12GiB`, `800 MB`, `1.5G`, or plain bytes.
pub fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| wrong_bytes())?;
    let factor: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err(wrong_bytes()),
    };
    match number * factor {
        bytes if (1.0..1e18).contains(&bytes) => Ok(bytes as u64),
        _ => Err(wrong_bytes()),
    }
}

fn wrong_bytes() -> String {
    "it must be a number of bytes, as in 12GiB, 800MB or 1500000000".to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read() {
        let main = |text: &str| parse(text).map(|choice| choice.main);
        assert_eq!(parse("auto"), Ok(DeviceChoice::default()));
        assert_eq!(main("cpu"), Ok(MainDevice::Cpu));
        let vulkan = |list: &[Selection]| Ok(MainDevice::Vulkan(list.to_vec()));
        assert_eq!(main("vulkan"), vulkan(&[Selection::Best]));
        assert_eq!(main("vulkan:1"), vulkan(&[Selection::Index(1)]));
        let both = vulkan(&[Selection::Index(0), Selection::Name("780M".into())]);
        assert_eq!(main("vulkan:0, vulkan:780M"), both);
        assert_eq!(main("vulkan:780M"), vulkan(&[Selection::Name("780M".into())]));
        assert_eq!(main("cpu+vulkan"), vulkan(&[Selection::Best]));
        for wrong in [
            "",
            "cuda",
            "vulkan:",
            "cpu:0",
            "auto:1",
            "cpu,vulkan",
            "vulkan,",
            "npu+npu",
            "cpu+cpu",
            "npu+cuda",
            "cpu+vulkan+vulkan",
            "npu:0",
            "+",
        ] {
            assert!(parse(wrong).unwrap_err().contains("vulkan:INDEX"), "{wrong}");
        }
    }

    #[test]
    fn an_npu_stands_beside_others() {
        let read = |text: &str| parse(text).map(|choice| (choice.main, choice.npu));
        assert_eq!(read("npu"), Ok((MainDevice::Auto, NpuUse::Asked)));
        assert_eq!(read("npu+cpu"), Ok((MainDevice::Cpu, NpuUse::Asked)));
        assert_eq!(
            read("vulkan+npu"),
            Ok((MainDevice::Vulkan(vec![Selection::Best]), NpuUse::Asked))
        );
        assert_eq!(read("npu+auto"), Ok((MainDevice::Auto, NpuUse::Asked)));
        assert_eq!(read("cpu"), Ok((MainDevice::Cpu, NpuUse::No)));
    }

    #[test]
    fn bytes_are_read() {
        assert_eq!(bytes("12GiB"), Ok(12 << 30));
        assert_eq!(bytes("1.5 GB"), Ok(1_500_000_000));
        assert_eq!(bytes("4096"), Ok(4096));
        for wrong in ["", "x", "12 parsecs", "-1GB", "0", "1e30"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
