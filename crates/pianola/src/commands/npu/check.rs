//! `npu check`: runs each package on the device and compares it with the processor.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use pianola_npu::amdxdna::{Calls, Device, Generation, SystemCalls, discover};
use pianola_npu::package::{Package, PackageError, packages};
use pianola_npu::runner::{KernelRunner, RunError, RunOptions, SelfTest};
use serde_json::json;

use super::list::name;
use super::{FolderOption, described, processors};
use crate::console::{self, Console};
use crate::failure::Failure;

/// Run kernel packages on the NPU and compare them with the processor.
///
/// Runs each package on random data and compares the result with a plain computation on the CPU,
/// within error bounds that follow from the types. If a package cannot be used or is wrong, the exit
/// code is 1. No speed is printed: most of the time is spent on the CPU.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola npu check
  pianola npu check --package matmul_i8_512x512x512
  pianola npu check --emulate     # without an NPU")]
pub struct Arguments {
    /// Check only this package
    #[arg(long, value_name = "NAME")]
    package: Option<String>,
    /// Emulate the NPU in this process
    ///
    /// The emulator computes what the manifests state. It shows that files, manifests and driver fit
    /// together, and nothing about a kernel's own arithmetic.
    #[cfg(feature = "npu-emulation")]
    #[arg(long)]
    emulate: bool,
    /// Seconds that a command may take
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    #[command(flatten)]
    folder: FolderOption,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// A package by its manifest, or what is wrong with it.
type Listed = (PathBuf, Result<Package, PackageError>);

/// The device that packages are run on.
struct Subject {
    name: String,
    calls: Arc<dyn Calls>,
    node: PathBuf,
    emulated: bool,
}

impl Subject {
    /// This machine's first NPU.
    fn found() -> Result<(Subject, Generation), Failure> {
        let devices = discover()?;
        // Discovery returns devices or an error.
        let Some(device) = devices.into_iter().next() else {
            return Err(pianola_npu::amdxdna::DriverError::NoDevice.into());
        };
        let (generation, node) = (device.identity.generation, device.identity.path);
        let name = format!("npu: {}, {}", generation.name(), processors(generation));
        let calls = Arc::new(SystemCalls);
        Ok((Subject { name, calls, node, emulated: false }, generation))
    }

    /// A model that knows the packages.
    #[cfg(feature = "npu-emulation")]
    fn emulated(listed: &[Listed]) -> Result<Subject, Failure> {
        use pianola_npu::emulated::{Emulated, NODE};
        let sound = listed.iter().filter_map(|(_, package)| package.as_ref().ok());
        let calls = Arc::new(Emulated::of_packages(sound)?);
        let name = "npu (emulated)".to_string();
        Ok(Subject { name, calls, node: NODE.into(), emulated: true })
    }

    /// Opens the device anew, so that what one package does to it is not the next one's fault.
    fn check(&self, package: &Package, options: RunOptions) -> Result<SelfTest, RunError> {
        let device = Device::open_with(self.calls.clone(), &self.node)?;
        KernelRunner::load(&device, package, options)?.self_test(1)
    }
}

/// What became of a package.
struct Outcome {
    name: String,
    words: String,
    result: Result<SelfTest, String>,
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    let folder = arguments.folder.path()?;
    let (subject, listed) = prepare(arguments, &folder)?;
    if !arguments.json {
        console::print_line(&subject.name)?;
    }
    let options = RunOptions { timeout: Duration::from_secs(arguments.timeout) };
    let mut outcomes = Vec::new();
    for (path, package) in &listed {
        let check = |package: &Package| subject.check(package, options);
        let outcome = outcome(path, package, check);
        if !arguments.json {
            console::print_line(&line(&outcome))?;
        }
        outcomes.push(outcome);
    }
    if arguments.json {
        console::print_json(&object(&subject, &outcomes))?;
    }
    if subject.emulated {
        console.notice(
            "emulated: the kernels themselves did not run; only `pianola npu check` on a device \
             shows what they compute",
        );
    }
    verdict(&outcomes)
}

/// The device, and the packages that are asked for.
fn prepare(arguments: &Arguments, folder: &Path) -> Result<(Subject, Vec<Listed>), Failure> {
    #[cfg(feature = "npu-emulation")]
    if arguments.emulate {
        let listed = wanted(arguments, folder, Generation::Npu1)?;
        return Ok((Subject::emulated(&listed)?, listed));
    }
    let (subject, generation) = Subject::found()?;
    Ok((subject, wanted(arguments, folder, generation)?))
}

fn wanted(
    arguments: &Arguments,
    folder: &Path,
    generation: Generation,
) -> Result<Vec<Listed>, Failure> {
    let mut listed = packages(folder, generation)?;
    let place = folder.join(generation.name());
    if listed.is_empty() {
        return Err(Failure::failed(format!(
            "no kernel packages in {}: build one of AMD's open designs and `pianola npu import` it \
             (docs/how-to/try-an-npu.md has the commands)",
            place.display()
        )));
    }
    if let Some(asked) = &arguments.package {
        let names: Vec<String> = listed.iter().map(|(path, _)| name(path)).collect();
        listed.retain(|(path, _)| name(path) == *asked);
        if listed.is_empty() {
            return Err(Failure::usage(format!(
                "no package is called '{asked}' in {}; there are {}",
                place.display(),
                names.join(", ")
            )));
        }
    }
    Ok(listed)
}

fn outcome(
    path: &Path,
    package: &Result<Package, PackageError>,
    check: impl Fn(&Package) -> Result<SelfTest, RunError>,
) -> Outcome {
    let name = name(path);
    match package {
        Ok(package) => Outcome {
            name,
            words: described(&package.manifest().operation),
            result: check(package).map_err(|error| error.to_string()),
        },
        Err(error) => {
            Outcome { name, words: "cannot be used".to_string(), result: Err(error.to_string()) }
        }
    }
}

fn line(Outcome { name, words, result }: &Outcome) -> String {
    match result {
        Ok(SelfTest { compared, worst }) => {
            let error = match *worst > 0.0 {
                true => format!("worst error {:.0} % of its bound", 100.0 * worst),
                false => "all exact".to_string(),
            };
            format!("  ok    {name}: {words}; {compared} values compared, {error}")
        }
        // The reason is the error that the command ends with.
        Err(_) => format!("  FAIL  {name}: {words}"),
    }
}

fn object(subject: &Subject, outcomes: &[Outcome]) -> serde_json::Value {
    let packages = outcomes.iter().map(|Outcome { name, result, .. }| {
        json!({
            "name": name,
            "passed": result.is_ok(),
            "compared": result.as_ref().ok().map(|test| test.compared),
            "worst_share_of_bound": result.as_ref().ok().map(|test| test.worst),
            "problem": result.as_ref().err(),
        })
    });
    json!({
        "device": subject.name,
        "emulated": subject.emulated,
        "passed": outcomes.iter().all(|outcome| outcome.result.is_ok()),
        "packages": packages.collect::<Vec<_>>(),
    })
}

fn verdict(outcomes: &[Outcome]) -> Result<(), Failure> {
    let problem = |outcome: &Outcome| {
        let error = outcome.result.as_ref().err()?;
        Some(format!("{}: {error}", outcome.name))
    };
    let problems: Vec<String> = outcomes.iter().filter_map(problem).collect();
    match problems.is_empty() {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{} of {} failed: {}",
            problems.len(),
            console::count(outcomes.len(), "package"),
            problems.join("; ")
        ))),
    }
}
