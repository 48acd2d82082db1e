//! One token by dispatches with barriers, by kernels that overlap and by resident workgroups, in turn, with random weights: microseconds
//! of each, and how far their logits are apart.
//! usage: cargo run --release -p pianola-vulkan --example decode SHAPE TYPE LAYERS DEVICE CONTEXT…
//!     as in: decode gemma3:27b q4_0 8 H200 20 600
//! LAYERS are as many of the model's as are loaded. `--units=N` says that so many workgroups run at once on a driver that does not
//! count its units (Mesa's software driver: its threads).

use pianola_formats::TensorType;
use pianola_model::{RandomWeights, SHAPES};
use pianola_plan::{
    DeviceId, DeviceSampler, Numeric, PAGE_TOKENS, Placement, Plan, PlanOptions, Recording,
    SampleRow, Sampling, Step,
};
use pianola_vulkan::{
    Decode, Gpu, GpuKind, PersistentTrial, PromptWeights, Selection, VulkanDevice, VulkanOptions,
    VulkanRecording,
};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tokens of one submission.
const PLAYS: usize = 8;
/// Submissions that count, of each kind in turn; the best does.
const ROUNDS: usize = 20;
/// How long the card is kept busy before: an idle one takes its time to wake.
const AWAKE: Duration = Duration::from_millis(500);

fn main() -> Result<(), Box<dyn Error>> {
    let (options, arguments): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let units = match options.first().map(|option| option.strip_prefix("--units=")) {
        None => None,
        Some(Some(units)) => Some(units.parse()?),
        Some(None) => return Err(format!("{} is no option", options[0]).into()),
    };
    let [shape, ty, layers, device, contexts @ ..] = &arguments[..] else {
        return Err("usage: decode SHAPE TYPE LAYERS DEVICE CONTEXT… [--units=N]".into());
    };
    let known = SHAPES.iter().find(|known| known.name == shape).ok_or("no such shape")?;
    let ty: TensorType = ty.parse()?;
    let contexts: Vec<u32> = contexts.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
    let longest = contexts.iter().max().ok_or("no context")? + PLAYS as u32;
    let mut config = known.config();
    let all_layers = config.layers;
    config.layers = layers.parse::<usize>()?.min(all_layers);
    config.windows.truncate(config.layers);
    let weights = RandomWeights::new(&config, 1, |_, _, _| ty);
    let options = PlanOptions {
        numeric: Numeric::Fast,
        max_rows: 64,
        max_logit_rows: 1,
        context: (longest as usize + 1).next_multiple_of(PAGE_TOKENS),
        sequences: 1,
        fusion: true,
        reproducible: false,
        kv_bytes: None,
        kv_type: None,
    };
    let graph = pianola_model::graph(&config, &weights, None)?;
    let placement = Placement::single(&graph, VulkanDevice::spec_named("vulkan"));
    let plan = Arc::new(Plan::new(graph, options, placement)?);
    let gpu = Gpu::open(&Selection::Name(device.clone()))?;
    let resident = units.is_some();
    let policy = PersistentTrial { resident, ..PersistentTrial::default() };
    let options = VulkanOptions {
        units,
        decode: Decode::Chained,
        prompt_weights: PromptWeights::Off,
        ..VulkanOptions::new(gpu)
    };
    let mut recording = VulkanRecording::new(plan, DeviceId(0), &weights, options, &mut |_, _| ())?;
    for group in 0..recording.plan().graph.kv_groups.len() {
        let pages = recording.plan().kv_pages[group];
        for index in 0..(longest as usize).div_ceil(PAGE_TOKENS) {
            recording.map_page(group, 0, index, (index % pages) as u32);
        }
    }
    let mut ways = vec![Way::Barriers, Way::Chained];
    match recording.set_up_persistent(policy) {
        Ok(()) => ways.push(Way::Resident),
        Err(refused) => println!("{refused}"),
    }
    for &context in &contexts {
        compare(&mut recording, context, &ways, (config.layers, all_layers))?;
    }
    Ok(())
}

/// How a token is played.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Barriers,
    Chained,
    Resident,
}

impl Way {
    fn set(self, recording: &mut VulkanRecording) -> Result<(), Box<dyn Error>> {
        recording.set_chained(self == Way::Chained)?;
        recording.set_persistent(self == Way::Resident)?;
        Ok(())
    }
}

/// Prints the time of a token behind `context` others in each way, and how far its logits are from those with barriers.
fn compare(
    recording: &mut VulkanRecording,
    context: u32,
    ways: &[Way],
    (layers, all): (usize, usize),
) -> Result<(), Box<dyn Error>> {
    let mut step = Step::default();
    step.push(5, 0, context, true);
    let mut logits = Vec::new();
    for way in ways {
        way.set(recording)?;
        recording.play(&step)?;
        logits.push(recording.logits(0, 0).to_vec());
    }
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    let uniforms = [0.5; PLAYS];
    let row = SampleRow { history: &[5], ..SampleRow::new(&sampling, &uniforms) };
    let mut best = vec![f64::INFINITY; ways.len()];
    let begun = Instant::now();
    let mut round = 0;
    // Times of a software driver say nothing.
    let software = recording.gpu().description().kind == GpuKind::Software;
    let (rounds, awake) = if software { (1, Duration::ZERO) } else { (ROUNDS, AWAKE) };
    while round < rounds || begun.elapsed() < awake {
        for (best, way) in best.iter_mut().zip(ways) {
            way.set(recording)?;
            let start = Instant::now();
            recording.play_sampling(&step, &[Some(row)])?;
            *best = best.min(start.elapsed().as_secs_f64() / PLAYS as f64);
        }
        round += 1;
    }
    let largest = logits[0].iter().fold(0f32, |most, x| most.max(x.abs()));
    println!("at {context}, us a token of {layers} layers:");
    for ((way, seconds), found) in ways.iter().zip(&best).zip(&logits) {
        let apart = found.iter().zip(&logits[0]).map(|(a, b)| (a - b).abs());
        let apart = apart.map(|x| if x.is_nan() { f32::INFINITY } else { x }).fold(0f32, f32::max);
        let saved = (best[0] - seconds) / layers as f64;
        println!(
            "    {way:?}: {:.1}, {:.2} a layer less, {:.0} in all {all}; logits apart by {:e} of the largest",
            1e6 * seconds,
            1e6 * saved,
            1e6 * saved * all as f64,
            apart / largest,
        );
    }
    match recording.take_notice() {
        Some(notice) => Err(notice.into()),
        None => Ok(()),
    }
}
