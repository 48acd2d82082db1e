//! The kernels as a Radeon 780M (gfx1103) would run them, compiled without one.
//!
//! RADV can pose as a chip that is not there: it compiles pipelines and tells their registers,
//! spills, occupancy and assembly, and runs nothing. Every pipeline that the flagship models come
//! to use is held to gates here, so that a kernel which the chip would run badly fails a test
//! before it meets the chip.
//!
//! `PIANOLA_TEST_MESA25` names a folder that `scripts/mesa25` has prepared. `PIANOLA_TEST_PHOENIX_OUT`, if set, names a folder that gets a line for every pipeline
//! (`raw.json`) and the table (`summary.md`).

use pianola_formats::TensorType;
use pianola_model::{RandomWeights, Shape, shape};
use pianola_plan::{BUCKETS, KvType, Numeric, Placement, Plan, PlanOptions};
use pianola_vulkan::{Gpu, KernelStatistics, Selection, VulkanDevice, compile_plan};
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
const TEST: &str = "kernels_fit_the_chip";

/// What the pipelines of a kernel must keep to. A SIMD of the chip has 1024 registers for each of
/// its 32 lanes and holds at most 16 subgroups: all of them with up to 64 registers, 12 with 80,
/// 8 with 128, 4 with 256. Shared memory (64 KiB for two SIMDs) may allow fewer.
struct Gate {
    kernel: &'static str,
    /// Which of the kernel's pipelines, in words and in code.
    name: &'static str,
    applies: fn(&KernelStatistics) -> bool,
    /// Least subgroups that a SIMD can hold at once.
    subgroups: u64,
    /// An instruction that must be there.
    instruction: Option<&'static str>,
}

impl Gate {
    /// A gate for all pipelines of a kernel.
    const fn of(kernel: &'static str, subgroups: u64) -> Gate {
        Gate { kernel, name: "all", applies: |_| true, subgroups, instruction: None }
    }
}

const DOT: Option<&str> = Some("v_dot4_i32");
const MATRIX: Option<&str> = Some("v_wmma_");

/// The first gate that applies counts.
static GATES: [Gate; 19] = [
    // These wait for memory all the time.
    Gate::of("embed", 12),
    Gate::of("rope_angles", 12),
    // A row of 5376 values and its two norms are held in registers, so that all loads come first.
    Gate::of("prologue", 8),
    Gate::of("kv_write", 12),
    // Generation: as many reads in flight as can be.
    Gate {
        name: "integer, one row",
        applies: |kernel| integer(kernel) && one_row(kernel),
        instruction: DOT,
        // Four blocks under way a lane, and in a tail the next row: twice what the bus can use.
        ..Gate::of("project_rows", 8)
    },
    // Eight rows of six bits with a gate keep 160 registers.
    Gate { name: "integer", applies: integer, instruction: DOT, ..Gate::of("project_rows", 6) },
    Gate { name: "float", ..Gate::of("project_rows", 8) },
    Gate { name: "integer", applies: integer, instruction: DOT, ..Gate::of("project_tiles", 6) },
    Gate { name: "float", ..Gate::of("project_tiles", 6) },
    Gate { instruction: MATRIX, ..Gate::of("project_matrix", 4) },
    // Sums of 128 columns and what comes next are in registers, the rest in shared memory.
    Gate { instruction: MATRIX, ..Gate::of("attention_matrix", 4) },
    Gate {
        name: "up to two heads",
        applies: |kernel| kernel.constant("HEADS").is_some_and(|heads| heads <= 2),
        ..Gate::of("attention", 8)
    },
    Gate::of("sample_cut", 8),
    Gate::of("sample_best", 8),
    Gate::of("sample_shape", 8),
    Gate::of("sample_select", 8),
    Gate::of("sample_weigh", 8),
    Gate::of("sample_whole", 8),
    // Shared memory, not registers: a workgroup keeps every head's sums several times over.
    Gate { name: "more heads", ..Gate::of("attention", 4) },
];

fn integer(kernel: &KernelStatistics) -> bool {
    kernel.constant("INTEGER") == Some(1)
}

fn one_row(kernel: &KernelStatistics) -> bool {
    kernel.bodies.contains(&1) || kernel.heads.contains(&1)
}

/// A model to compile for.
struct Model {
    name: String,
    plan: Plan,
}

impl Model {
    /// `type_of` says which type a matrix of that name has.
    fn new(name: &str, shape: Shape, type_of: impl Fn(&str) -> TensorType) -> Model {
        Model::with_kv(name, shape, None, type_of)
    }

    /// The same with keys and values of a type of their own.
    fn with_kv(
        name: &str,
        shape: Shape,
        kv_type: Option<KvType>,
        type_of: impl Fn(&str) -> TensorType,
    ) -> Model {
        let config = shape.config();
        let weights = RandomWeights::new(&config, 7, |name, _, columns| {
            // Not every width is a whole number of 256-blocks: eight bits there, as converters do.
            let ty = type_of(name);
            if columns % ty.block_len() == 0 { ty } else { TensorType::Q8_0 }
        });
        let graph = pianola_model::graph(&config, &weights, None).unwrap();
        let options = PlanOptions {
            numeric: Numeric::Fast,
            kv_type,
            max_rows: BUCKETS[BUCKETS.len() - 1],
            // As `pianola perplexity` wants them.
            max_logit_rows: 256,
            context: config.context,
            sequences: 1,
            kv_bytes: None,
            fusion: true,
            reproducible: false,
        };
        let placement = Placement::single(&graph, VulkanDevice::spec_named("vulkan"));
        let plan = Plan::new(graph, options, placement).unwrap();
        Model { name: name.to_string(), plan }
    }
}

/// Files called Q4_K_M keep embeddings and, in half of the layers, values and down in six bits.
fn q4_k_m(name: &str) -> TensorType {
    let layer = name.split('.').find_map(|word| word.parse::<usize>().ok());
    let fine = name.contains("attn_v.") || name.contains("ffn_down.");
    match layer {
        None => TensorType::Q6K,
        Some(layer) if fine && layer % 2 == 0 => TensorType::Q6K,
        Some(_) => TensorType::Q4K,
    }
}

fn models() -> Vec<Model> {
    let of = |name: &str| *shape(name).expect("a known shape");
    let mut models = vec![
        Model::new("gemma3:1b q8_0", of("gemma3:1b"), |_| TensorType::Q8_0),
        Model::new("gemma3:4b q4_0", of("gemma3:4b"), |_| TensorType::Q4_0),
        Model::new("gemma3:4b q4_k", of("gemma3:4b"), |_| TensorType::Q4K),
        Model::new("gemma3:4b q4_k_m", of("gemma3:4b"), q4_k_m),
        Model::new("gemma3:27b q4_0", of("gemma3:27b"), |_| TensorType::Q4_0),
    ];
    // Heads of 256, 128 and 64 values; four, two and three queries to a key.
    for name in ["gemma3:1b", "gemma3:27b", "llama3:8b", "smollm2:135m"] {
        let kv_type = Some(KvType::Q8);
        let title = format!("{name} q4_0, kv q8_0");
        models.push(Model::with_kv(&title, of(name), kv_type, |_| TensorType::Q4_0));
    }
    // One layer with widths that all types can have.
    let small = of("llama3:8b").reduced(1, 4096);
    for &ty in TensorType::ALL {
        models.push(Model::new(&format!("llama {ty}"), small, move |_| ty));
    }
    models
}

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
        hold("bytes of scratch", self.get("Scratch size"), 0, 0);
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
                    let compiled = compile_plan(gpu, &model.plan)
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

/// The worst of each gate, then every pipeline of the flagships.
fn table(gpu: &Gpu, entries: &[Entry]) -> String {
    let description = gpu.description();
    let mut text = format!("device: {}\ndriver: {}\n", description.name, description.driver);
    writeln!(text, "pipelines: {}; compiled, not run\n", entries.len()).unwrap();
    text += "| kernel | pipelines | count | VGPRs | LDS | spilled | code | subgroups per SIMD | at least |\n";
    text += "|---|---|---|---|---|---|---|---|---|\n";
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
        let columns = [most("VGPRs"), most("LDS size"), spilled, most("Code size"), Some(least)];
        let columns = columns.map(|value| value.unwrap_or(0).to_string()).join(" | ");
        let (kernel, name, count) = (gate.kernel, gate.name, list.len());
        writeln!(text, "| {kernel} | {name} | {count} | {columns} | {} |", gate.subgroups).unwrap();
    }
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
    let table = table(&gpu, &entries);
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
