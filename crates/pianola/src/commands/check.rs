//! `check`: whether this device computes what the reference computes.

mod npu;

use clap::Args;
use pianola_cpu::{CpuDevice, CpuOptions, Level};
use pianola_engine::{CheckEvent, CheckOptions, CheckSection, CheckSubject, DeviceCheck};
use pianola_plan::{Device, PromptWeights};
use pianola_vulkan::{Gpu, VulkanDevice, VulkanOptions};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::console::{self, Console, count};
use crate::device::{self, Announce, DeviceChoice, NpuUse};
use crate::failure::Failure;
use crate::model;
use crate::npu_device::NpuArguments;
use crate::options::{DEVICES, NamedModel, chosen, level, tell_threads, threads};
use crate::shapes::ShapeOptions;
use crate::ticker::Ticker;
use crate::tuned;

/// Check a device's kernels against the reference.
///
/// Runs each kernel that the model needs, with the model's own sizes: 1 to 64 requests at once,
/// prompts of up to 512 tokens, contexts of several pages, every type of weights and of keys and
/// values. The reference computes the same values with error bounds that follow from the types. Then
/// whole layers are compared with the CPU's exact mode, and sampled tokens with the host's sampler.
/// If anything is wrong the exit code is 1.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola check -m gemma3:270m --quick
  pianola check --shape gemma3:27b --quant q4_0 --device vulkan
  pianola check --shape gemma3:270m --device cpu --json")]
pub struct Arguments {
    #[command(flatten)]
    model: NamedModel,
    #[command(flatten)]
    shape: ShapeOptions,
    /// Test only the model's own weight types, and begin no step after 70 s
    ///
    /// Takes less than two minutes in most cases.
    #[arg(long)]
    quick: bool,
    /// Check the kernels that --reproducible of other commands uses
    #[arg(long)]
    reproducible: bool,
    /// Device: auto, cpu, vulkan, vulkan:INDEX, vulkan:NAME or npu
    ///
    /// Several GPUs are checked one by one. The CPU is checked in every instruction set that it has.
    /// `npu` gives all products of the model to the NPU.
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = device::parse)]
    #[arg(help_heading = DEVICES)]
    device: DeviceChoice,
    /// Check only this instruction set: portable, avx2, avx-vnni, avx512 or amx
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    #[arg(hide_short_help = true, help_heading = DEVICES)]
    simd: Option<Level>,
    /// Threads of the CPU [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = threads, help_heading = DEVICES)]
    #[arg(allow_negative_numbers = true)]
    threads: Option<usize>,
    /// Memory of the machine to use, as in 12GiB [default: what is free]
    #[arg(long, value_name = "BYTES", value_parser = device::bytes, help_heading = DEVICES)]
    #[arg(hide_short_help = true)]
    memory: Option<u64>,
    /// Print a JSON array with an object per device
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    npu: NpuArguments,
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    if arguments.simd == Some(Level::Reference) {
        return Err(Failure::usage(
            "the reference cannot be checked against itself; name another --simd",
        ));
    }
    if arguments.device.npu == NpuUse::Asked {
        return npu::run(arguments, console);
    }
    let devices = devices(arguments, console)?;
    let subject = match arguments.shape.shape {
        Some(shape) => CheckSubject::shape(shape, arguments.shape.quant),
        None => {
            let located = model::locate(arguments.model.name(), console)?;
            CheckSubject::file(located.label, &located.path, None)?
        }
    };
    let options = CheckOptions {
        quick: arguments.quick,
        reproducible: arguments.reproducible,
        ..CheckOptions::default()
    };
    let mut checks = Vec::new();
    for device in &devices {
        if !arguments.json {
            console::print_line(&format!("{} on {}", subject.name(), device.description()))?;
        }
        let check = check(&subject, device, options, !arguments.json, console)?;
        if !arguments.json {
            console::print(&report(&check, arguments.quick))?;
        }
        checks.push(check);
    }
    if arguments.json {
        console::print_json(&Value::Array(checks.iter().map(object).collect()))?;
    }
    verdict(&checks)
}

/// An error that says how many things are wrong, if any is.
pub fn verdict(checks: &[DeviceCheck]) -> Result<(), Failure> {
    let failed: Vec<&DeviceCheck> = checks.iter().filter(|check| !check.passed()).collect();
    let Some(first) = failed.first() else { return Ok(()) };
    let wrong: usize = failed.iter().map(|check| check.issues.len()).sum();
    Err(Failure::failed(format!(
        "the check against the reference failed on {}, {wrong} times; the first: {}; its results \
         cannot be trusted, please report this with the output of `pianola devices`",
        first.device, first.issues[0]
    )))
}

/// The devices to check, each by itself.
fn devices(arguments: &Arguments, console: Console) -> Result<Vec<Arc<dyn Device>>, Failure> {
    let gpus = device::open(&arguments.device, Announce::WithResult, console)?;
    if !gpus.is_empty() {
        if arguments.simd.is_some() {
            return Err(Failure::usage("--simd is for the CPU; add --device cpu"));
        }
        if chosen(arguments.threads).is_some() {
            return Err(Failure::usage("--threads is for the CPU; add --device cpu"));
        }
        let device = |gpu: Arc<Gpu>| -> Arc<dyn Device> {
            let (tuning, pipeline_file) = (tuned::load(&gpu, console), tuned::pipeline_file(&gpu));
            let options = VulkanOptions { tuning, pipeline_file, ..VulkanOptions::new(gpu) };
            Arc::new(VulkanDevice::new(options))
        };
        return Ok(gpus.into_iter().map(device).collect());
    }
    tell_threads(arguments.threads, console);
    let threads = chosen(arguments.threads).unwrap_or(CpuOptions::default().threads);
    let memory = arguments.memory;
    let levels = Level::ALL.into_iter().filter(|level| {
        level.available()
            && *level != Level::Reference
            && arguments.simd.is_none_or(|asked| asked == *level)
    });
    let device = |(level, prompt_weights)| -> Arc<dyn Device> {
        Arc::new(CpuDevice { options: CpuOptions { level, threads, prompt_weights, memory } })
    };
    // A check's plans have many sequences, so that the second of them keeps weights in rotated form.
    let forms = |level: Level| {
        let kept = level.rotates() && !arguments.reproducible;
        let forms = [Some(PromptWeights::Off), kept.then_some(PromptWeights::Auto)];
        forms.into_iter().flatten().map(move |form| (level, form))
    };
    Ok(levels.flat_map(forms).map(device).collect())
}

/// Between two lines in a log.
const LOGGED: Duration = Duration::from_secs(5);

/// How far a check is.
struct Reached {
    section: String,
    done: usize,
    all: usize,
    begun: Instant,
}

impl Reached {
    fn text(&self, now: Instant) -> String {
        let seconds = now.duration_since(self.begun).as_secs();
        match self.all {
            0 => format!("checking, {seconds} s"),
            all => format!(
                "checking {}: {} of {}, {seconds} s",
                self.section,
                self.done,
                count(all, "step")
            ),
        }
    }
}

/// Checks one device and shows how far it is; `lines` prints a line for each section as it ends.
pub fn check(
    subject: &CheckSubject,
    device: &Arc<dyn Device>,
    options: CheckOptions,
    lines: bool,
    console: Console,
) -> Result<DeviceCheck, Failure> {
    let begin = || Reached { section: String::new(), done: 0, all: 0, begun: Instant::now() };
    let reached = Arc::new(Mutex::new(begin()));
    let lock = || reached.lock().unwrap_or_else(PoisonError::into_inner);
    let shown = reached.clone();
    let text = move |now| shown.lock().unwrap_or_else(PoisonError::into_inner).text(now);
    let ticker = Ticker::start(text, LOGGED, console);
    let mut printed = Ok(());
    let result = pianola_engine::check(subject, device, options, &mut |event| match event {
        CheckEvent::Progress { section, done, all } => {
            let mut reached = lock();
            (reached.section, reached.done, reached.all) = (section.to_string(), done, all);
        }
        CheckEvent::Section(section) => {
            *lock() = begin();
            if lines && printed.is_ok() {
                printed = ticker.aside(|| console::print_line(&section_line(section)));
            }
        }
    });
    drop(ticker);
    printed?;
    Ok(result?)
}

fn section_line(section: &CheckSection) -> String {
    let CheckSection { name, steps, compared, worst_share, seconds, .. } = section;
    let worst = match *worst_share > 0.0 {
        true => format!(", worst error {:.0} % of its bound", 100.0 * worst_share),
        false => String::new(),
    };
    format!("  {name}: {steps} steps, {compared} comparisons{worst}, {seconds:.1} s")
}

/// What was covered, what was not, and what is wrong.
fn report(check: &DeviceCheck, quick: bool) -> String {
    let mut text = String::new();
    let mut line = |words: String| text.push_str(&format!("{words}\n"));
    for coverage in &check.coverage {
        let (covered, all) = (coverage.covered(), coverage.reachable.len());
        line(format!("covered: {covered} of {all} kernel variants of {}", coverage.what));
        let why = match quick {
            true => "left out by --quick",
            false => "types and row counts are paired, not multiplied",
        };
        for (kernel, choices) in coverage.missing() {
            line(format!(
                "  not covered ({why}): {} of {kernel}, as {}",
                choices.len(),
                choices[0]
            ));
        }
    }
    check.notes.iter().for_each(|note| line(format!("not checked: {note}")));
    for issue in &check.issues {
        line(format!("WRONG: {issue}"));
    }
    let missing: usize =
        check.coverage.iter().map(|part| part.reachable.len() - part.covered()).sum();
    let verdict = match (check.passed(), missing) {
        (false, _) => "FAILED".to_string(),
        (true, 0) => "nothing is wrong".to_string(),
        (true, _) => format!("nothing is wrong in what was compared, {missing} variants were not"),
    };
    line(format!("{verdict}: {} comparisons in {:.1} s", check.compared(), check.seconds));
    text
}

/// The check of a device for machines.
pub fn object(check: &DeviceCheck) -> Value {
    let sections = check.sections.iter().map(|section| {
        json!({
            "name": section.name,
            "steps": section.steps,
            "comparisons": section.compared,
            "values": section.values,
            "worst_share_of_bound": section.worst_share,
            "seconds": section.seconds,
        })
    });
    let coverage = check.coverage.iter().map(|coverage| {
        json!({
            "what": coverage.what,
            "covered": coverage.covered(),
            "variants": coverage.reachable.len(),
            "missing": coverage.missing(),
        })
    });
    let issues = check.issues.iter().map(|issue| {
        json!({
            "section": issue.section,
            "step": issue.step,
            "kernel": issue.kernel,
            "reason": issue.reason,
        })
    });
    json!({
        "device": check.device,
        "model": check.subject,
        "passed": check.passed(),
        "seconds": check.seconds,
        "sections": sections.collect::<Vec<_>>(),
        "coverage": coverage.collect::<Vec<_>>(),
        "not_checked": check.notes,
        "issues": issues.collect::<Vec<_>>(),
    })
}
