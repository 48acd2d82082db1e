//! One token by dispatches with barriers and by kernels that overlap, in turn, with random weights: microseconds of
//! each, and how far their logits are apart.
//! usage: cargo run --release -p pianola-vulkan --example decode SHAPE TYPE LAYERS DEVICE CONTEXT…
//!     as in: decode gemma3:27b q4_0 8 H200 20 600
//! LAYERS are as many of the model's as are loaded. `--units=N` says that so many workgroups run at once on a driver that does not
//! count its units (Mesa's software driver: its threads).

mod shared;

use pianola_plan::{DeviceSampler, Recording, SampleRow, Sampling, Step};
use pianola_vulkan::{Decode, GpuKind, PromptWeights, VulkanOptions, VulkanRecording};
use shared::{Model, Steps};
use std::error::Error;
use std::time::{Duration, Instant};

/// Tokens of one submission.
const PLAYS: usize = 8;
/// Submissions that count, of each kind in turn; the best does.
const ROUNDS: usize = 20;
/// How long the card is kept busy before: an idle one takes its time to wake.
const AWAKE: Duration = Duration::from_millis(500);

fn main() -> Result<(), Box<dyn Error>> {
    let (options, arguments) = shared::arguments();
    let units = match options.first().map(|option| option.strip_prefix("--units=")) {
        None => None,
        Some(Some(units)) => Some(units.parse()?),
        Some(None) => return Err(format!("{} is no option", options[0]).into()),
    };
    let [shape, ty, layers, device, contexts @ ..] = &arguments[..] else {
        return Err("usage: decode SHAPE TYPE LAYERS DEVICE CONTEXT… [--units=N]".into());
    };
    let contexts: Vec<u32> = contexts.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
    let longest = contexts.iter().max().ok_or("no context")? + PLAYS as u32;
    let steps = Steps::single(longest as usize + 1);
    let model = Model::new(shape, ty, layers.parse()?, &steps)?;
    let gpu = shared::gpu(device)?;
    let (decode, prompt_weights) = (Decode::Chained, PromptWeights::Off);
    let options = VulkanOptions { units, decode, prompt_weights, ..VulkanOptions::new(gpu) };
    let mut recording = model.record(options)?;
    shared::map_pages(&mut recording);
    for &context in &contexts {
        compare(&mut recording, context, &model)?;
    }
    Ok(())
}

/// How a token is played: with barriers, or chained.
const WAYS: [(&str, bool); 2] = [("Barriers", false), ("Chained", true)];

/// Prints the time of a token behind `context` others in each way, and how far its logits are from those with barriers.
fn compare(
    recording: &mut VulkanRecording,
    context: u32,
    model: &Model,
) -> Result<(), Box<dyn Error>> {
    let (layers, all) = (model.layers, model.all_layers);
    let mut step = Step::default();
    step.push(5, 0, context, true);
    let mut logits = Vec::new();
    for (_, chained) in WAYS {
        recording.set_chained(chained)?;
        recording.play(&step)?;
        logits.push(recording.logits(0, 0).to_vec());
    }
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    let uniforms = [0.5; PLAYS];
    let row = SampleRow { history: &[5], ..SampleRow::new(&sampling, &uniforms) };
    let mut best = [f64::INFINITY; WAYS.len()];
    let begun = Instant::now();
    let mut round = 0;
    // Times of a software driver say nothing.
    let software = recording.gpu().description().kind == GpuKind::Software;
    let (rounds, awake) = if software { (1, Duration::ZERO) } else { (ROUNDS, AWAKE) };
    while round < rounds || begun.elapsed() < awake {
        for (best, (_, chained)) in best.iter_mut().zip(WAYS) {
            recording.set_chained(chained)?;
            let start = Instant::now();
            recording.play_sampling(&step, &[Some(row)])?;
            *best = best.min(start.elapsed().as_secs_f64() / PLAYS as f64);
        }
        round += 1;
    }
    let largest = logits[0].iter().fold(0f32, |most, x| most.max(x.abs()));
    println!("at {context}, us a token of {layers} layers:");
    for (((name, _), seconds), found) in WAYS.iter().zip(&best).zip(&logits) {
        let apart = found.iter().zip(&logits[0]).map(|(a, b)| (a - b).abs());
        let apart = apart.map(|x| if x.is_nan() { f32::INFINITY } else { x }).fold(0f32, f32::max);
        let saved = (best[0] - seconds) / layers as f64;
        println!(
            "    {name}: {:.1}, {:.2} a layer less, {:.0} in all {all}; logits apart by {:e} of the largest",
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
