//! What a step of several rows costs, kernel by kernel: some layers of a known shape with random
//! weights, scaled to all of them.
//! usage: cargo run --release -p pianola-vulkan --example lanes SHAPE TYPE LAYERS DEVICE STEP…
//! `--prompt-weights=off` anywhere leaves out the weights' form for prompts, `=on` asks for it.
//! A STEP is LANESxROWS@CONTEXT: LANES sequences that have seen CONTEXT tokens, with ROWS new ones
//! each, of which the last wants logits. `8x1@600` is eight lanes generating, `1x512@0` a prompt.

mod shared;

use pianola_plan::{KernelTime, PAGE_TOKENS, Recording, Step};
use pianola_vulkan::{PromptWeights, VulkanOptions, VulkanRecording};
use shared::{Model, Steps};
use std::collections::BTreeMap;
use std::error::Error;
use std::time::{Duration, Instant};

/// Plays of a step that are timed; the best counts.
const ROUNDS: usize = 5;
/// How long a step is repeated at least before it counts: an idle card takes its time to wake.
const AWAKE: Duration = Duration::from_secs(1);

struct Shape {
    lanes: u32,
    rows: u32,
    context: u32,
}

fn parse(text: &str) -> Option<Shape> {
    let (lanes, rest) = text.split_once('x')?;
    let (rows, context) = rest.split_once('@')?;
    Some(Shape {
        lanes: lanes.parse().ok()?,
        rows: rows.parse().ok()?,
        context: context.parse().ok()?,
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let (options, arguments) = shared::arguments();
    let prompt_weights = match options.first().map(String::as_str) {
        None => PromptWeights::Auto,
        Some("--prompt-weights=on") => PromptWeights::On,
        Some("--prompt-weights=off") => PromptWeights::Off,
        Some(other) => return Err(format!("{other} is no option").into()),
    };
    let [shape, ty, layers, device, steps @ ..] = &arguments[..] else {
        return Err("usage: lanes SHAPE TYPE LAYERS DEVICE LANESxROWS@CONTEXT…".into());
    };
    let steps = steps.iter().map(|step| parse(step).ok_or("a step is LANESxROWS@CONTEXT"));
    let steps: Vec<Shape> = steps.collect::<Result<_, _>>()?;
    let most = |of: fn(&Shape) -> u32| steps.iter().map(of).max().unwrap_or(1) as usize;
    let largest = Steps {
        rows: 512,
        sequences: most(|step| step.lanes),
        context: most(|step| step.context + step.rows),
    };
    let model = Model::new(shape, ty, layers.parse()?, &largest)?;
    let gpu = shared::gpu(device)?;
    let mut recording =
        model.record(VulkanOptions { prompt_weights, ..VulkanOptions::new(gpu) })?;
    let scale = model.all_layers as f64 / model.layers as f64;
    for shape in &steps {
        measure(&mut recording, shape, scale)?;
    }
    Ok(())
}

fn measure(
    recording: &mut VulkanRecording,
    shape: &Shape,
    scale: f64,
) -> Result<(), Box<dyn Error>> {
    let &Shape { lanes, rows, context } = shape;
    let mut step = Step::default();
    for lane in 0..lanes {
        for position in context..context + rows {
            step.push(
                lane * 31 + position % 100 + 2,
                lane,
                position,
                position + 1 == context + rows,
            );
        }
    }
    for group in 0..recording.plan().graph.kv_groups.len() {
        let pages = recording.plan().kv_pages[group] as u32;
        let each = ((context + rows) as usize).div_ceil(PAGE_TOKENS) as u32;
        for (lane, index) in (0..lanes).flat_map(|lane| (0..each).map(move |index| (lane, index))) {
            recording.map_page(group, lane as usize, index as usize, (lane * each + index) % pages);
        }
    }
    let mut wall = f64::INFINITY;
    let begun = Instant::now();
    for round in 0.. {
        let start = Instant::now();
        recording.play(&step)?;
        wall = wall.min(start.elapsed().as_secs_f64());
        if round >= ROUNDS && begun.elapsed() > AWAKE {
            break;
        }
    }
    recording.start_profile();
    for _ in 0..=ROUNDS {
        recording.play(&step)?;
    }
    let times = recording.take_profile();
    let best = (1..=ROUNDS)
        .map(|play| times.iter().filter(|time| time.play == play).collect::<Vec<_>>())
        .min_by(|a, b| total(a).total_cmp(&total(b)))
        .ok_or("the device has no timestamps")?;
    // Kernels of all layers together, by what they do.
    let mut kernels = BTreeMap::<(String, &str), (f64, f64)>::new();
    let (mut layers, mut others) = (0.0, 0.0);
    for time in &best {
        let name = time.op.map_or("", |op| &recording.plan().ops[op].name);
        let inner = name.strip_prefix("blk.").and_then(|name| name.split_once('.'));
        match inner {
            Some(_) => layers += time.seconds,
            None => others += time.seconds,
        }
        let entry = kernels.entry((inner.map_or(name, |inner| inner.1).to_string(), &time.kernel));
        let entry = entry.or_default();
        *entry = (entry.0 + time.seconds, entry.1 + 1.0);
    }
    let whole = layers * scale + others;
    println!(
        "{lanes}x{rows}@{context}: {:.2} ms a step of all layers, {:.0} tokens/s; wall of these layers {:.2} ms, kernels {:.2} ms",
        1e3 * whole,
        f64::from(lanes * rows) / whole,
        1e3 * wall,
        1e3 * (layers + others),
    );
    for ((name, kernel), (seconds, count)) in kernels {
        println!("    {:8.1} us x {count:3}  {kernel:15} {name}", 1e6 * seconds / count);
    }
    Ok(())
}

fn total(times: &[&KernelTime]) -> f64 {
    times.iter().map(|time| time.seconds).sum()
}
