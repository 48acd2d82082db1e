//! The kernels as a Radeon 780M (gfx1103) would run them, compiled without one.
//!
//! RADV can pose as a chip that is not there: it compiles pipelines and tells their registers,
//! spills, occupancy and assembly, and runs nothing. Every pipeline that the flagship models come
//! to use is held to gates here, so that a kernel which the chip would run badly fails a test
//! before it meets the chip.
//!
//! `PIANOLA_TEST_MESA25` names a folder that `scripts/mesa25` has prepared. `PIANOLA_TEST_PHOENIX_OUT`, if set, names a folder
//! that gets a line for every pipeline (`raw.json`) and the table (`summary.md`). What the kernels of this tree come to is kept in
//! `statistics.md` beside this file, so that a change of a kernel shows what it does to the chip; with
//! `PIANOLA_WRITE_STATISTICS=1` it is written anew.

mod gates;
mod models;

use gates::{DOT, GATES, Gate, MATRIX, NEVER_PLAYED};
use models::models;
use pianola_formats::TensorType;
use pianola_vulkan::{Gpu, KernelStatistics, Selection, VulkanOptions, compile_plan};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

/// Bytes of shared memory that a workgroup of the chip can have.
const SHARED_MEMORY: u64 = 64 << 10;
/// Bytes of the chip's instruction cache; a loop that exceeds it is fetched anew each round.
const INSTRUCTION_CACHE: u64 = 32 << 10;
/// Models whose rows are in the table, not only among the raw ones.
const FLAGSHIPS: &str = "gemma3";
/// Set in the process that has RADV for its driver.
const CHILD: &str = "PIANOLA_TEST_PHOENIX_CHILD";
/// Name of the test, by which it runs itself again.
const TEST: &str = "phoenix::kernels_fit_the_chip";

/// A compiled kernel, and the first model that uses it.
struct Entry {
    model: String,
    kernel: KernelStatistics,
}

impl Entry {
    fn get(&self, name: &str) -> u64 {
        let found = self.kernel.statistic(name);
        found.unwrap_or_else(|| panic!("RADV tells no '{name}' of {}", self.kernel.kernel))
    }

    fn spilled(&self) -> u64 {
        self.get("Spilled SGPRs") + self.get("Spilled VGPRs")
    }

    fn gate(&self) -> Option<&'static Gate> {
        GATES.iter().find(|gate| gate.kernel == self.kernel.kernel && (gate.applies)(&self.kernel))
    }

    /// What the gate finds wrong.
    fn faults(&self) -> Vec<String> {
        let kernel = &self.kernel;
        let Some(gate) = self.gate() else {
            return vec![format!("no gate is stated for '{}'", kernel.kernel)];
        };
        let mut faults = Vec::new();
        let mut hold = |name: &str, value: u64, least: u64, most: u64| {
            if !(least..=most).contains(&value) {
                faults.push(format!("{name}: {value}, not {least} to {most}"));
            }
        };
        hold("lanes of a subgroup", u64::from(kernel.subgroup), 32, 32);
        hold("spilled registers", self.spilled(), 0, 0);
        hold("bytes of scratch", self.get("Scratch size"), 0, gate.scratch);
        hold("bytes of shared memory", self.get("LDS size"), 0, SHARED_MEMORY);
        hold("subgroups per SIMD", self.get("Subgroups per SIMD"), gate.subgroups, 16);
        hold("bytes of code", self.get("Code size"), 0, INSTRUCTION_CACHE);
        if let Some(instruction) = gate.instruction.filter(|name| !kernel.assembly.contains(name)) {
            faults.push(format!("no {instruction} in its assembly"));
        }
        faults
    }

    /// Constants that are not zero; types by name, the second only where there are two.
    fn constants(&self) -> String {
        let kernel = &self.kernel;
        let words = kernel.constants.iter().filter_map(|(name, value)| match name.as_str() {
            "TYPE_B" if kernel.constant("TYPE_A") == Some(*value) => None,
            name if name.starts_with("TYPE") => {
                Some(format!("{name}={}", TensorType::ALL[*value as usize]))
            }
            _ => (*value != 0).then(|| format!("{name}={value}")),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// Row counts of the plays that use it.
    fn rows(&self) -> String {
        let span = |name: &str, rows: &[u32]| match rows {
            [] => None,
            [rows] => Some(format!("{name} {rows}")),
            [first, .., last] => Some(format!("{name} {first} to {last}")),
        };
        let spans = [span("body", &self.kernel.bodies), span("head", &self.kernel.heads)];
        spans.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    fn json(&self) -> String {
        let kernel = &self.kernel;
        let list = |list: &[(String, u64)]| {
            let words = list.iter().map(|(name, value)| format!("\"{name}\": {value}"));
            words.collect::<Vec<_>>().join(", ")
        };
        let constants: Vec<(String, u64)> =
            kernel.constants.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
        // Hashes change with every build of the driver and say nothing.
        let mut numbers: Vec<(String, u64)> = kernel.statistics.clone();
        numbers.retain(|statistic| !statistic.0.to_lowercase().contains("hash"));
        for name in [DOT, MATRIX].into_iter().flatten() {
            numbers.push((name.to_string(), kernel.assembly.matches(name).count() as u64));
        }
        format!(
            "{{\"model\": \"{}\", \"kernel\": \"{}\", \"constants\": {{{}}}, \"bodies\": {:?}, \"heads\": {:?}, \"subgroup\": {}, {}}}",
            self.model,
            kernel.kernel,
            list(&constants),
            kernel.bodies,
            kernel.heads,
            kernel.subgroup,
            list(&numbers)
        )
    }
}

/// All pipelines of all models, equal ones once, in the order of the models.
fn compile(gpu: &Arc<Gpu>) -> Vec<Entry> {
    let models = models();
    let next = Mutex::new(models.iter().enumerate());
    let done = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some((index, model)) = next.lock().unwrap().next() else { break };
                    let prompt_weights = model.prompt_weights;
                    let options =
                        VulkanOptions { prompt_weights, ..VulkanOptions::new(gpu.clone()) };
                    let compiled = compile_plan(&options, &model.plan)
                        .unwrap_or_else(|error| panic!("{}: {error}", model.name));
                    done.lock().unwrap().push((index, compiled));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|(index, _)| *index);
    let mut entries: Vec<Entry> = Vec::new();
    for (index, compiled) in done {
        for kernel in compiled {
            let same = |entry: &Entry| {
                entry.kernel.kernel == kernel.kernel && entry.kernel.constants == kernel.constants
            };
            if !entries.iter().any(same) {
                entries.push(Entry { model: models[index].name.clone(), kernel });
            }
        }
    }
    entries
}

/// What is kept of all pipelines: the worst of each gate.
fn summary(gpu: &Gpu, entries: &[Entry]) -> String {
    let description = gpu.description();
    let mut text = format!("device: {}\ndriver: {}\n", description.name, description.driver);
    writeln!(text, "pipelines: {}; compiled, not run\n", entries.len()).unwrap();
    text += "| kernel | pipelines | count | VGPRs | LDS | spilled | scratch | code | instructions in all | subgroups per SIMD | at least |\n";
    text += "|---|---|---|---|---|---|---|---|---|---|---|\n";
    for gate in &GATES {
        let same = |entry: &&Entry| {
            entry.gate().is_some_and(|other| (other.kernel, other.name) == (gate.kernel, gate.name))
        };
        let list: Vec<&Entry> = entries.iter().filter(same).collect();
        let most = |name: &str| list.iter().map(|entry| entry.get(name)).max();
        let Some(least) = list.iter().map(|entry| entry.get("Subgroups per SIMD")).min() else {
            continue;
        };
        let spilled = list.iter().map(|entry| entry.spilled()).max();
        let all = list.iter().map(|entry| entry.get("Instructions")).sum();
        let (code, all) = (most("Code size"), Some(all));
        let scratch = most("Scratch size");
        let columns = [most("VGPRs"), most("LDS size"), spilled, scratch, code, all, Some(least)];
        let columns = columns.map(|value| value.unwrap_or(0).to_string()).join(" | ");
        let (kernel, name, count) = (gate.kernel, gate.name, list.len());
        writeln!(text, "| {kernel} | {name} | {count} | {columns} | {} |", gate.subgroups).unwrap();
    }
    text
}

/// Every pipeline of the flagships.
fn table(entries: &[Entry]) -> String {
    let mut text = String::new();
    text += "\n| model | kernel | constants | rows | VGPRs | SGPRs | LDS | spilled | subgroups per SIMD | code | instructions | latency | inverse throughput |\n";
    text += "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
    for entry in entries.iter().filter(|entry| entry.model.starts_with(FLAGSHIPS)) {
        let spilled = entry.spilled();
        let before = ["VGPRs", "SGPRs", "LDS size"].map(|name| entry.get(name).to_string());
        let after =
            ["Subgroups per SIMD", "Code size", "Instructions", "Latency", "Inverse Throughput"]
                .map(|name| entry.get(name).to_string());
        let (before, after) = (before.join(" | "), after.join(" | "));
        let (model, kernel) = (&entry.model, entry.kernel.kernel);
        let (constants, rows) = (entry.constants(), entry.rows());
        writeln!(
            text,
            "| {model} | {kernel} | {constants} | {rows} | {before} | {spilled} | {after} |"
        )
        .unwrap();
    }
    text
}

/// The test proper, in a process that sees no driver but RADV.
fn gates_hold() {
    let gpu = Gpu::open(&Selection::Name("RADV PHOENIX".to_string())).unwrap();
    assert!(u64::from(gpu.description().shared_memory) <= SHARED_MEMORY);
    let entries = compile(&gpu);
    let summary = summary(&gpu, &entries);
    let table = summary.clone() + &table(&entries);
    println!("{table}");
    if let Some(folder) = std::env::var_os("PIANOLA_TEST_PHOENIX_OUT") {
        let rows = entries.iter().map(|entry| entry.json() + "\n").collect::<String>();
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(Path::new(&folder).join("raw.json"), rows).unwrap();
        std::fs::write(Path::new(&folder).join("summary.md"), table).unwrap();
    }
    let faults: Vec<String> = entries
        .iter()
        .flat_map(|entry| {
            let Entry { model, kernel } = entry;
            let name =
                format!("{model} {} {} ({})", kernel.kernel, entry.constants(), entry.rows());
            entry.faults().into_iter().map(move |fault| format!("{name}: {fault}"))
        })
        .collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    let unused = GATES.iter().filter(|gate| {
        let is = |other: &Gate| (other.kernel, other.name) == (gate.kernel, gate.name);
        !entries.iter().any(|entry| entry.gate().is_some_and(is))
    });
    let unused: Vec<String> = unused.map(|gate| format!("{} {}", gate.kernel, gate.name)).collect();
    assert!(unused.is_empty(), "no model has a pipeline of {}", unused.join(", "));
    compare_kept(&gpu, &summary);
}

/// Holds a summary to the one that is kept, if that is by the same driver: another one compiles otherwise.
fn compare_kept(gpu: &Gpu, summary: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/phoenix/statistics.md");
    if std::env::var_os("PIANOLA_WRITE_STATISTICS").is_some() {
        std::fs::write(&file, summary).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap();
    let driver = format!("driver: {}", gpu.description().driver);
    if !kept.lines().any(|line| line == driver) {
        println!("{} is by another driver than {driver}: not compared", file.display());
        return;
    }
    assert_eq!(kept, summary, "if that is meant, PIANOLA_WRITE_STATISTICS=1 writes it down");
}

/// A kernel of this tree that has neither a gate nor a reason to have none would be forgotten.
#[test]
fn every_kernel_has_a_gate_or_is_never_played() {
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR")).join("spirv");
    let files = std::fs::read_dir(compiled).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "spv"));
    let kernels: BTreeSet<String> =
        files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_string()).collect();
    let gated = GATES.iter().map(|gate| gate.kernel);
    let stated: BTreeSet<String> =
        gated.chain(NEVER_PLAYED.map(|never| never.0)).map(str::to_string).collect();
    assert_eq!(kernels, stated);
}

#[test]
#[ignore = "takes a minute and needs Mesa 25: scripts/acceptance runs it"]
fn kernels_fit_the_chip() {
    if std::env::var_os(CHILD).is_some() {
        return gates_hold();
    }
    let folder = std::env::var("PIANOLA_TEST_MESA25")
        .expect("PIANOLA_TEST_MESA25 names a folder that scripts/mesa25 has prepared");
    let manifest = Path::new(&folder).join("radeon_icd.json");
    assert!(manifest.is_file(), "{folder} has no driver: run scripts/mesa25 {folder}");
    // Drivers are chosen by the environment of a process; this one may test others.
    let libraries =
        std::env::var("LD_LIBRARY_PATH").map_or(String::new(), |rest| format!(":{rest}"));
    let output = Command::new(std::env::current_exe().unwrap())
        .args([TEST, "--exact", "--nocapture", "--include-ignored"])
        .env(CHILD, "1")
        .env("VK_DRIVER_FILES", &manifest)
        .env("VK_ICD_FILENAMES", &manifest)
        .env("LD_LIBRARY_PATH", format!("{folder}{libraries}"))
        .env("RADV_FORCE_FAMILY", "phoenix")
        .env("MESA_SHADER_CACHE_DISABLE", "true")
        .output()
        .unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{errors}", output.status);
}
