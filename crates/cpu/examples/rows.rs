//! What a step costs by threads and instruction set: some layers of a known shape with random weights,
//! scaled to all of them, without the head. All settings take turns in one process.
//! usage: cargo run --release -p pianola-cpu --example rows SHAPE TYPE LAYERS SETTING,… ROWS[@DEPTH]…
//! `rows gemma3:12b q4_0 6 avx512:1,amx:16 1 512` is a token, and a prompt of 512, each twice;
//! `rows smollm2:135m q4_1 4 avx512:1:reproducible,avx512:1,avx512:1:kept 256` a prompt without rotated weights, with
//! weights that are rotated as they are read, and with such that are kept; `rows qwen2.5:1.5b q4_k 4 avx512:1 1@4096` a
//! token behind 4,096 others.

#![allow(unsafe_code, reason = "the clock of a thread")]

use pianola_cpu::{CpuDevice, CpuOptions, CpuRecording, Level};
use pianola_formats::TensorType;
use pianola_model::{Config, RandomWeights, SHAPES};
use pianola_plan::{
    DeviceId, Numeric, PAGE_TOKENS, Placement, Plan, PlanOptions, Probe, PromptWeights, Recording,
    Step,
};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long each setting of a step is repeated before it counts, and while it does.
const AWAKE: Duration = Duration::from_millis(200);
const COUNTED: Duration = Duration::from_millis(700);
const LEAST_PLAYS: usize = 5;
/// Rows of the embedding: enough to look tokens up in.
const VOCABULARY: usize = 1024;
const MOST_ROWS: usize = 512;
const CONTEXT: usize = 8192;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [shape, ty, layers, settings, steps @ ..] = &arguments[..] else {
        return Err(
            "usage: rows SHAPE TYPE LAYERS LEVEL:THREADS[:reproducible|:kept],… ROWS[@DEPTH]…"
                .into(),
        );
    };
    let known = SHAPES.iter().find(|known| known.name == shape).ok_or("no such shape")?;
    let ty: TensorType = ty.parse()?;
    let steps = steps.iter().map(|step| StepSize::parse(step));
    let steps = steps.collect::<Result<Vec<StepSize>, Box<dyn Error>>>()?;
    let mut config = known.config();
    let scale = config.layers as f64 / layers.parse::<f64>()?;
    config.layers = layers.parse()?;
    config.windows.truncate(config.layers);
    config.vocabulary = VOCABULARY;
    let weights = RandomWeights::new(&config, 1, |_, _, _| ty);
    let mut settings = (settings.split(','))
        .map(|name| Setting::new(name, &config, &weights))
        .collect::<Result<Vec<Setting>, Box<dyn Error>>>()?;
    for &size in &steps {
        measure(&mut settings, size, scale)?;
    }
    Ok(())
}

/// Rows of a step, and how many tokens they come behind.
#[derive(Clone, Copy)]
struct StepSize {
    rows: u32,
    depth: u32,
}

impl StepSize {
    fn parse(text: &str) -> Result<StepSize, Box<dyn Error>> {
        let (rows, depth) = text.split_once('@').unwrap_or((text, "0"));
        let size = StepSize { rows: rows.parse()?, depth: depth.parse()? };
        let fits = size.rows as usize <= MOST_ROWS && (size.rows + size.depth) as usize <= CONTEXT;
        if fits { Ok(size) } else { Err("too many rows, or too deep".into()) }
    }

    fn step(self) -> Step {
        let mut step = Step::default();
        (0..self.rows).for_each(|row| step.push(row % 1000, 0, self.depth + row, false));
        step
    }
}

/// A recording, and what it took for a step.
struct Setting {
    name: String,
    threads: usize,
    recording: CpuRecording,
    seconds: Vec<f64>,
    /// Least seconds of the kernels of each name, and how many there are.
    kernels: BTreeMap<String, (f64, f64)>,
}

impl Setting {
    fn new(
        name: &str,
        config: &Config,
        weights: &RandomWeights,
    ) -> Result<Setting, Box<dyn Error>> {
        let mut words = name.split(':');
        let level = Level::ALL.into_iter().find(|known| words.clone().next() == Some(known.name()));
        let level = level.ok_or("no such level")?;
        let threads = words.nth(1).ok_or("a setting is LEVEL:THREADS")?.parse()?;
        let word = words.next().unwrap_or_default();
        let prompt_weights = match word {
            "" | "reproducible" => PromptWeights::Off,
            "kept" => PromptWeights::On,
            _ => return Err("a setting is LEVEL:THREADS[:reproducible|:kept]".into()),
        };
        let options = PlanOptions {
            numeric: Numeric::Fast,
            max_rows: MOST_ROWS,
            max_logit_rows: 1,
            context: CONTEXT,
            sequences: 1,
            fusion: true,
            reproducible: word == "reproducible",
            kv_bytes: None,
            kv_type: None,
        };
        let graph = pianola_model::graph(config, weights, None)?;
        let placement = Placement::single(&graph, CpuDevice::spec());
        let plan = Arc::new(Plan::new(graph, options, placement)?);
        let cpu = CpuOptions { prompt_weights, ..CpuOptions::bare(level, threads) };
        let mut recording =
            CpuRecording::new(plan.clone(), DeviceId(0), weights, cpu, &mut |_, _| ())?;
        for group in 0..plan.graph.kv_groups.len() {
            for index in 0..plan.kv_pages[group].min(plan.options.context / PAGE_TOKENS) {
                recording.map_page(group, 0, index, index as u32);
            }
        }
        if let Some(ceilings) = recording.measure() {
            let (read, computed) = (ceilings.bytes_per_second, ceilings.operations_per_second);
            println!("{name}: reads {:.1} GB/s, {:.2} T operations/s", read / 1e9, computed / 1e12);
        }
        Ok(Setting {
            name: name.to_string(),
            threads,
            recording,
            seconds: Vec::new(),
            kernels: BTreeMap::new(),
        })
    }

    /// Plays a step kernel by kernel and notes their times: of one thread those of the processor, which
    /// other processes do not disturb as much.
    fn play(&mut self, step: &Step) -> Result<(), Box<dyn Error>> {
        let plan = self.recording.plan().clone();
        let begun = Instant::now();
        let now =
            || if self.threads == 1 { thread_seconds() } else { begun.elapsed().as_secs_f64() };
        let mut play = BTreeMap::<String, (f64, f64)>::new();
        let mut all = 0.0;
        self.recording.begin(step)?;
        for op in (0..plan.ops.len()).filter(|&op| !plan.is_head(op)) {
            let start = now();
            self.recording.play_op(op, step)?;
            let seconds = now() - start;
            all += seconds;
            let name = &plan.ops[op].name;
            let inner = name.strip_prefix("blk.").and_then(|name| name.split_once('.'));
            let name = inner.map_or(name.as_str(), |inner| inner.1);
            let entry = play.entry(name.to_string()).or_default();
            *entry = (entry.0 + seconds, entry.1 + 1.0);
        }
        self.seconds.push(all);
        for (name, (seconds, count)) in play {
            let entry = self.kernels.entry(name).or_insert((f64::INFINITY, count));
            entry.0 = entry.0.min(seconds);
        }
        Ok(())
    }
}

/// Time that this thread has had on a processor.
fn thread_seconds() -> f64 {
    const CLOCK_THREAD_CPUTIME_ID: i32 = 3;
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
    }
    let mut time = [0; 2];
    // SAFETY: Linux's function and type; there is room for a time.
    let failed = unsafe { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "the clock of a thread");
    time[0] as f64 + 1e-9 * time[1] as f64
}

fn measure(settings: &mut [Setting], size: StepSize, scale: f64) -> Result<(), Box<dyn Error>> {
    let (step, StepSize { rows, depth }) = (size.step(), size);
    // What was never written would be read from one page of zeros.
    for start in (0..depth).step_by(MOST_ROWS) {
        let before = StepSize { rows: (depth - start).min(MOST_ROWS as u32), depth: start };
        for setting in settings.iter_mut() {
            setting.recording.play(&before.step())?;
        }
    }
    let count = settings.len() as u32;
    let begun = Instant::now();
    while begun.elapsed() < AWAKE * count {
        for setting in settings.iter_mut() {
            setting.recording.play(&step)?;
        }
    }
    settings.iter_mut().for_each(|setting| {
        setting.seconds.clear();
        setting.kernels.clear();
    });
    let begun = Instant::now();
    while begun.elapsed() < COUNTED * count || settings[0].seconds.len() < LEAST_PLAYS {
        for setting in settings.iter_mut() {
            setting.play(&step)?;
        }
    }
    let mut first = None;
    for setting in settings {
        setting.seconds.sort_by(f64::total_cmp);
        let (median, best) = (setting.seconds[setting.seconds.len() / 2], setting.seconds[0]);
        let (first_median, first_best) = *first.get_or_insert((median, best));
        println!(
            "{} {rows} rows behind {depth}: {:.1} tokens/s of all layers; a play {:.2} ms, best {:.2}; \
             {:.2} times as fast as the first by medians, {:.2} by the best",
            setting.name,
            f64::from(rows) / (median * scale),
            1e3 * median,
            1e3 * best,
            first_median / median,
            first_best / best,
        );
        let list: Vec<String> = (setting.kernels.iter())
            .map(|(name, (seconds, count))| format!("{name} {:.0}", 1e6 * seconds / count))
            .collect();
        println!("    us, the least: {}", list.join(", "));
    }
    Ok(())
}
