//! `tune`: measures how kernels are best cut on the GPU at hand.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use pianola_engine::Engine;
use pianola_vulkan::{VulkanDevice, VulkanOptions, VulkanRecording};

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::model;
use crate::options::{ComputeOptions, NamedModel};
use crate::shapes::ShapeOptions;
use crate::ticker::Ticker;
use crate::tuned;

/// Measure the fastest kernel parameters for this GPU, and keep them.
///
/// Every matrix product of a generated token is timed with each division of its work, using the
/// model's own weights. A division counts only if its result is the usual one. The fastest are stored
/// beside the models for this device, driver and version of the kernels. Every model with products of
/// the same shape then uses them.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola tune -m gemma3:270m
  pianola tune --shape gemma3:27b --quant q4_0 --device vulkan:0")]
pub struct Arguments {
    #[command(flatten)]
    model: NamedModel,
    #[command(flatten)]
    shape: ShapeOptions,
    #[command(flatten)]
    compute: ComputeOptions,
}

/// Between two lines in a log.
const LOGGED: Duration = Duration::from_secs(5);

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    /// Enough for the one row that is measured.
    const CONTEXT: usize = 64;
    let mut options = arguments.compute.load_announced(console)?;
    options.context = Some(CONTEXT);
    let Some(VulkanDevice { options: VulkanOptions { gpu, .. }, .. }) = options.gpu().cloned()
    else {
        return Err(Failure::usage("the CPU has nothing to tune; name a GPU with --device vulkan"));
    };
    tuned::prepare(&gpu)?;
    let mut engine = match arguments.shape.shape {
        Some(shape) => {
            let mut bar =
                console.bar("drawing weights [{bar:24}] {decimal_bytes} of {decimal_total_bytes}");
            Engine::random(shape, arguments.shape.quant, options, &mut |done, all| {
                bar.reach(done, all);
            })?
        }
        None => {
            let located = model::locate(arguments.model.name(), console)?;
            model::load(&located, options, console)?
        }
    };
    let recording = engine
        .recording_mut::<VulkanRecording>()
        .ok_or_else(|| Failure::failed("no part of the model is on the GPU"))?;
    // Of several GPUs the one whose kernels are measured.
    let gpu = recording.gpu().clone();
    let head = ["product", "tried", "us by policy", "us measured", "gain", "choice"];
    let mut table = vec![head.map(String::from).to_vec()];
    let reached = Arc::new(Mutex::new("measuring the first product".to_string()));
    let shown = reached.clone();
    let text = move |_| shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let ticker = Ticker::start(text, LOGGED, console);
    let mut done = 0;
    let mut refused: Vec<String> = Vec::new();
    let found = pianola_vulkan::tune(recording, &mut |trial, all| {
        done += 1;
        let line = format!("measured {done} of {all} products, the last: {}", trial.product);
        *reached.lock().unwrap_or_else(PoisonError::into_inner) = line;
        table.push(vec![
            trial.product.clone(),
            trial.candidates.to_string(),
            format!("{:.1}", 1e6 * trial.before),
            format!("{:.1}", 1e6 * trial.after),
            format!("{:.0} %", 100.0 * (trial.before / trial.after - 1.0)),
            trial.choice.clone(),
        ]);
        let refusals = trial.refused.iter();
        refused.extend(refusals.map(|refusal| format!("{}: {refusal}", trial.product)));
    })
    .map_err(pianola_engine::EngineError::from)?;
    drop(ticker);
    let mut all = tuned::load(&gpu, console);
    all.merge(&found);
    let path = tuned::save(&gpu, &all)?;
    console::print(&console::table(&table))?;
    for refusal in refused {
        console.notice(&format!("not used, because its result differs: {refusal}"));
    }
    console.notice(&format!("stored in {}", path.display()));
    Ok(())
}
