//! What a step costs by threads and instruction set: some layers of a known shape with random weights,
//! scaled to all of them, without the head.
//! usage: cargo run --release -p pianola-cpu --example rows SHAPE TYPE LAYERS LEVEL:THREADS,… ROWS…
//! `rows gemma3:12b q4_0 6 avx512:1,amx:16 1 512` is a token, and a prompt of 512, each twice.

use pianola_cpu::{CpuDevice, CpuOptions, CpuRecording, Level};
use pianola_formats::TensorType;
use pianola_model::{RandomWeights, SHAPES};
use pianola_plan::{DeviceId, Numeric, PAGE_TOKENS, Placement, Plan, PlanOptions, Recording, Step};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a step is repeated before it counts, and how long while it does.
const AWAKE: Duration = Duration::from_millis(300);
const COUNTED: Duration = Duration::from_millis(700);
/// Rows of the embedding: enough to look tokens up in.
const VOCABULARY: usize = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [shape, ty, layers, settings, steps @ ..] = &arguments[..] else {
        return Err("usage: rows SHAPE TYPE LAYERS LEVEL:THREADS,… ROWS…".into());
    };
    let known = SHAPES.iter().find(|known| known.name == shape).ok_or("no such shape")?;
    let ty: TensorType = ty.parse()?;
    let steps: Vec<u32> = steps.iter().map(|rows| rows.parse()).collect::<Result<_, _>>()?;
    let mut config = known.config();
    let scale = config.layers as f64 / layers.parse::<f64>()?;
    config.layers = layers.parse()?;
    config.windows.truncate(config.layers);
    config.vocabulary = VOCABULARY;
    let weights = RandomWeights::new(&config, 1, |_, _, _| ty);
    let options = PlanOptions {
        numeric: Numeric::Fast,
        max_rows: 512,
        max_logit_rows: 1,
        context: 1024,
        sequences: 1,
        fusion: true,
        reproducible: false,
        kv_bytes: None,
        kv_type: None,
    };
    let graph = pianola_model::graph(&config, &weights, None)?;
    let placement = Placement::single(&graph, CpuDevice::spec());
    let plan = Arc::new(Plan::new(graph, options, placement)?);
    for setting in settings.split(',') {
        let (level, threads) = setting.split_once(':').ok_or("a setting is LEVEL:THREADS")?;
        let level = Level::ALL.into_iter().find(|known| known.name() == level);
        let level = level.ok_or("no such level")?;
        let cpu = CpuOptions { level, threads: threads.parse()? };
        let mut recording =
            CpuRecording::new(plan.clone(), DeviceId(0), &weights, cpu, &mut |_, _| ())?;
        for group in 0..plan.graph.kv_groups.len() {
            for index in 0..plan.kv_pages[group].min(plan.options.context / PAGE_TOKENS) {
                recording.map_page(group, 0, index, index as u32);
            }
        }
        if let Some(ceilings) = recording.measure() {
            let (read, computed) = (ceilings.bytes_per_second, ceilings.operations_per_second);
            println!(
                "{setting}: reads {:.1} GB/s, {:.2} T operations/s",
                read / 1e9,
                computed / 1e12
            );
        }
        for &rows in &steps {
            measure(&mut recording, setting, rows, scale)?;
        }
    }
    Ok(())
}

fn measure(
    recording: &mut CpuRecording,
    setting: &str,
    rows: u32,
    scale: f64,
) -> Result<(), Box<dyn Error>> {
    let mut step = Step::default();
    (0..rows).for_each(|row| step.push(row % 1000, 0, row, false));
    let begun = Instant::now();
    while begun.elapsed() < AWAKE {
        recording.play(&step)?;
    }
    let mut seconds = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < COUNTED || seconds.len() < 3 {
        let start = Instant::now();
        recording.play(&step)?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    let median = seconds[seconds.len() / 2];
    let plan = recording.plan().clone();
    let read = plan.weight_bytes_on(DeviceId(0)) as f64;
    println!(
        "{setting} {rows} rows: {:.1} tokens/s of all layers, {:.1} GB/s; a play {:.2} ms, best {:.2}",
        f64::from(rows) / (median * scale),
        read / median / 1e9,
        1e3 * median,
        1e3 * seconds[0],
    );
    recording.start_profile();
    for _ in 0..3 {
        recording.play(&step)?;
    }
    let mut kernels = BTreeMap::<String, (f64, f64)>::new();
    for time in recording.take_profile().iter().filter(|time| time.play == 2) {
        let name = time.op.map_or("", |op| &plan.ops[op].name);
        let inner = name.strip_prefix("blk.").and_then(|name| name.split_once('.'));
        let name = inner.map_or(name, |inner| inner.1);
        let entry = kernels.entry(name.to_string()).or_default();
        *entry = (entry.0 + time.seconds, entry.1 + 1.0);
    }
    let list: Vec<String> = kernels
        .into_iter()
        .map(|(name, (seconds, count))| format!("{name} {:.0}", 1e6 * seconds / count))
        .collect();
    println!("    us: {}", list.join(", "));
    Ok(())
}
