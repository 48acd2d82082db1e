//! `npu list`: the NPU of this machine, and the kernel packages.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use pianola_npu::amdxdna::{Found, Generation, PowerMode, discover};
use pianola_npu::package::{Package, PackageError, packages};
use serde_json::{Value, json};

use super::{FolderOption, described, firmware, processors};
use crate::console::{self, Console};
use crate::failure::Failure;

/// Show the NPU of this machine and the kernel packages, with what is wrong with each.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  pianola npu list\n  pianola npu list --json")]
pub struct Arguments {
    #[command(flatten)]
    folder: FolderOption,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// A package by its manifest, or what is wrong with it.
type Listed = (PathBuf, Result<Package, PackageError>);

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    let folder = arguments.folder.path()?;
    let mut listed: Vec<Listed> = Vec::new();
    for generation in [Generation::Npu1, Generation::Npu2] {
        listed.extend(packages(&folder, generation)?);
    }
    // Packages are there or not whatever this machine has.
    let (devices, problem) = match discover() {
        Ok(devices) => (devices, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    if arguments.json {
        return console::print_json(&json!({
            "devices": devices.iter().map(device_value).collect::<Vec<_>>(),
            "problem": problem,
            "folder": folder,
            "packages": listed.iter().map(package_value).collect::<Vec<_>>(),
        }));
    }
    if let Some(problem) = problem {
        console.notice(&problem);
    }
    let mut text: String = devices.iter().map(device_text).collect();
    text.push_str(&packages_text(&folder, &listed));
    console::print(&text)
}

/// What `devices` shows as well.
pub fn device_text(device: &Found) -> String {
    let identity = &device.identity;
    let generation = identity.generation;
    let (major, minor) = identity.driver;
    format!(
        "npu: {}, {}\n  node:        {}\n  driver:      amdxdna {major}.{minor}, firmware {}\n  \
         array:       {} columns, {} of them for kernels, {} cores each\n  contexts:    {}\n  \
         power mode:  {}\n",
        generation.name(),
        processors(generation),
        identity.path.display(),
        firmware(identity.firmware),
        identity.columns,
        generation.columns(),
        identity.core_rows,
        contexts(device),
        match device.power_mode {
            Some(mode) => format!("{}; {CHANGE_POWER_MODE} changes it", mode.name()),
            None => "the driver does not say".to_string(),
        },
    )
}

/// The command that changes the power mode: of AMD's runtime (XRT), because the driver lets only root do so.
pub const CHANGE_POWER_MODE: &str = "`sudo xrt-smi configure --pmode performance`";

/// How many are in use, and by whom.
pub fn contexts(device: &Found) -> String {
    let limit = device.identity.generation.contexts();
    let Some(contexts) = &device.contexts else {
        return format!("{limit}; the driver does not say how many are in use");
    };
    let mut processes: Vec<i64> = contexts.iter().map(|context| context.process).collect();
    processes.sort_unstable();
    processes.dedup();
    let processes: Vec<String> = processes.iter().map(i64::to_string).collect();
    match contexts.len() {
        0 => format!("none of {limit} in use"),
        used => format!("{used} of {limit} in use, by process {}", processes.join(", ")),
    }
}

/// For machines.
pub fn device_value(device: &Found) -> Value {
    let identity = &device.identity;
    let contexts = device.contexts.as_ref();
    json!({
        "device": "npu",
        "name": identity.generation.name(),
        "node": identity.path,
        "driver": [identity.driver.0, identity.driver.1],
        "firmware": firmware(identity.firmware),
        "columns": identity.columns,
        "usable_columns": identity.generation.columns(),
        "cores_per_column": identity.core_rows,
        "contexts": identity.generation.contexts(),
        "contexts_in_use": contexts.map(Vec::len),
        "power_mode": device.power_mode.map(PowerMode::name),
        "processes": contexts.map(|contexts| {
            contexts.iter().map(|context| context.process).collect::<Vec<_>>()
        }),
    })
}

fn packages_text(folder: &Path, listed: &[Listed]) -> String {
    if listed.is_empty() {
        return format!(
            "no kernel packages in {}; `pianola npu import` makes them of AMD's open builds \
             (docs/how-to/try-an-npu.md)\n",
            folder.display()
        );
    }
    let mut text = format!("kernel packages in {}:\n", folder.display());
    for (path, package) in listed {
        let name = name(path);
        let _ = match package {
            Ok(package) => {
                let manifest = package.manifest();
                let (device, columns) = (manifest.device.name(), manifest.columns);
                let columns = console::count(columns.into(), "column");
                let words = described(&manifest.operation);
                writeln!(text, "  {name}: {device}, {columns}, {words}")
            }
            Err(error) => writeln!(text, "  {name}: cannot be used: {error}"),
        };
    }
    text
}

fn package_value((path, package): &Listed) -> Value {
    let manifest = package.as_ref().ok().map(Package::manifest);
    json!({
        "name": name(path),
        "manifest": path,
        "problem": package.as_ref().err().map(ToString::to_string),
        "device": manifest.map(|manifest| manifest.device.name()),
        "columns": manifest.map(|manifest| manifest.columns),
        "operation": manifest.map(|manifest| &manifest.operation),
    })
}

/// The package's name, whether it can be read or not.
pub fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
