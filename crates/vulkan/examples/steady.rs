//! Generates the same tokens twice with random weights: their ids and, at every page's end and at the last token, the
//! bits of the logits have to be equal. Fails where they are not, and where chained kernels gave up on the way.
//! usage: cargo run --release -p pianola-vulkan --example steady SHAPE TYPE DEVICE TOKENS dispatches|chained
//!     as in: steady gemma3:1b q8_0 H200 10000 chained
//! `--layers=N` loads so many layers only. `--units=N` says that so many workgroups run at once on a driver that does not
//! count its units (Mesa's software driver: its threads).

mod shared;

use pianola_plan::{DeviceSampler, PAGE_TOKENS, Recording, SampleRow, Sampling, Step};
use pianola_vulkan::{Decode, PromptWeights, VulkanOptions, VulkanRecording};
use shared::{Model, Steps};
use std::error::Error;
use std::time::Instant;

/// Tokens of one submission, as the engine has them. It divides a page.
const PLAYS: usize = 8;
/// The token that a run begins with.
const FIRST: u32 = 5;

/// What a run gave.
#[derive(PartialEq, Debug)]
struct Run {
    tokens: Vec<u32>,
    /// Of the logits after every page of tokens, and of the last token's.
    sums: Vec<u64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let (options, arguments) = shared::arguments();
    let (mut units, mut layers) = (None, usize::MAX);
    for option in &options {
        match option.split_once('=') {
            Some(("--units", count)) => units = Some(count.parse()?),
            Some(("--layers", count)) => layers = count.parse()?,
            _ => return Err(format!("{option} is no option").into()),
        }
    }
    let [shape, ty, device, tokens, decode] = &arguments[..] else {
        return Err(
            "usage: steady SHAPE TYPE DEVICE TOKENS dispatches|chained [--layers=N] [--units=N]"
                .into(),
        );
    };
    let decode = match &decode[..] {
        "dispatches" => Decode::Dispatches,
        "chained" => Decode::Chained,
        other => return Err(format!("{other} is neither dispatches nor chained").into()),
    };
    let tokens = tokens.parse::<usize>()?.next_multiple_of(PLAYS);
    let model = Model::new(shape, ty, layers, &Steps::single(tokens + 1))?;
    let gpu = shared::gpu(device)?;
    let described = gpu.description();
    println!("{} of {}, {} layers", described.name, described.driver, model.layers);
    let prompt_weights = PromptWeights::Off;
    let options = VulkanOptions { units, decode, prompt_weights, ..VulkanOptions::new(gpu) };
    let mut recording = model.record(options)?;
    shared::map_pages(&mut recording);
    match recording.is_chained() {
        true => println!("kernels overlap"),
        false => println!("by dispatches"),
    }
    let first = generate(&mut recording, tokens)?;
    let second = generate(&mut recording, tokens)?;
    if let Some(notice) = recording.take_notice() {
        return Err(format!("it was given up on the way: {notice}").into());
    }
    compare(&first, &second)?;
    let mut different = first.tokens.clone();
    different.sort_unstable();
    different.dedup();
    println!(
        "{tokens} tokens twice, {} different ones: ids are equal, and so are the logits' bits at {} places",
        different.len(),
        first.sums.len()
    );
    Ok(())
}

/// Generates from the first position on, whatever is in the pages.
fn generate(recording: &mut VulkanRecording, tokens: usize) -> Result<Run, Box<dyn Error>> {
    let sampling = Sampling::default();
    let mut run = Run { tokens: vec![FIRST], sums: Vec::new() };
    let begun = Instant::now();
    while run.tokens.len() <= tokens {
        let position = run.tokens.len() - 1;
        let token = run.tokens[position];
        let mut step = Step::default();
        step.push(token, 0, position as u32, true);
        if position.is_multiple_of(PAGE_TOKENS) && position > 0 {
            run.sums.push(logits_sum(recording, &step)?);
        }
        let uniforms: [f32; PLAYS] = std::array::from_fn(|play| uniform(position + play));
        let row = SampleRow { history: &[token], ..SampleRow::new(&sampling, &uniforms) };
        recording.play_sampling(&step, &[Some(row)])?;
        let sampled = recording.sampled(0, 0).ok_or("nothing was sampled")?;
        run.tokens.extend_from_slice(sampled);
    }
    let mut step = Step::default();
    step.push(run.tokens[tokens], 0, tokens as u32, true);
    run.sums.push(logits_sum(recording, &step)?);
    let seconds = begun.elapsed().as_secs_f64();
    println!("{tokens} tokens in {seconds:.1} s, {:.1} a second", tokens as f64 / seconds);
    Ok(run)
}

/// A sum over the bits of a step's logits, in which their order counts (FNV-1a).
fn logits_sum(recording: &mut VulkanRecording, step: &Step) -> Result<u64, Box<dyn Error>> {
    recording.play(step)?;
    let logits = recording.logits(0, 0);
    if !logits.iter().all(|logit| logit.is_finite()) {
        return Err(format!("a logit of row {:?} is no number", step.rows).into());
    }
    let add =
        |sum: u64, logit: &f32| (sum ^ u64::from(logit.to_bits())).wrapping_mul(0x100_0000_01b3);
    Ok(logits.iter().fold(0xcbf2_9ce4_8422_2325, add))
}

/// A number in [0, 1) for a position (SplitMix64).
fn uniform(position: usize) -> f32 {
    let mut x = (position as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 40) as f32 / (1 << 24) as f32
}

fn compare(first: &Run, second: &Run) -> Result<(), Box<dyn Error>> {
    let apart = first.tokens.iter().zip(&second.tokens).position(|(first, second)| first != second);
    if let Some(at) = apart {
        return Err(format!(
            "token {at} is {} once and {} then",
            first.tokens[at], second.tokens[at]
        )
        .into());
    }
    let apart = first.sums.iter().zip(&second.sums).position(|(first, second)| first != second);
    match apart {
        Some(at) => Err(format!("logits behind token {} differ", (at + 1) * PAGE_TOKENS).into()),
        None if first != second => Err("one run is longer than the other".into()),
        None => Ok(()),
    }
}
