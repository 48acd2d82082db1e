//! `perplexity`: how well a model predicts a text.

use std::ffi::OsString;
use std::time::Instant;

use clap::Args;
use serde_json::json;

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::input::LongTextInput;
use crate::model;
use crate::options::{ComputeOptions, ModelOption, chosen, context};

/// Rows with logits in one play: enough to read the weights seldom, few enough for memory, since
/// a row of Gemma's logits is a megabyte.
pub const LOGIT_ROWS: usize = 256;

/// Measure how well a model predicts a text.
///
/// The text is cut into windows of --context tokens. The second half of each window is scored, as in
/// llama.cpp. Lower is better. The error is one standard error.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola perplexity -m smollm2:135m book.txt
  pianola perplexity -m gemma3:270m --exact --json book.txt")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelOption,
    /// File with the text, or the text itself
    #[arg(value_name = "FILE", conflicts_with_all = ["file", "text"])]
    named: Vec<OsString>,
    #[command(flatten)]
    text: LongTextInput,
    /// Tokens per window
    #[arg(short, long, alias = "ctx-size", value_name = "N", default_value_t = 512)]
    #[arg(value_parser = context)]
    context: usize,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compute: ComputeOptions,
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    let text = arguments.text.read(&arguments.named, console)?;
    let located = model::locate(arguments.model.name(), console)?;
    let mut options = arguments.compute.load_announced(console)?;
    options.max_logit_rows = LOGIT_ROWS;
    options.context = chosen(Some(arguments.context));
    let mut engine = model::load(&located, options, console)?;
    let window = chosen(Some(arguments.context)).unwrap_or(engine.context());
    let start = Instant::now();
    let mut bar = console.bar("[{bar:24}] {pos} of {len} windows, {msg}, {eta} left");
    let result =
        pianola_engine::perplexity(&mut engine, &text, window, &mut |done, all, so_far| {
            bar.reach(done as u64, all as u64);
            bar.say(format!("perplexity {so_far:.3}"));
        })?;
    drop(bar);
    let seconds = start.elapsed().as_secs_f64();
    let emulated = engine.emulated_device().is_some();
    let numeric = engine.plan().options.numeric.to_string();
    if arguments.json {
        return console::print_json(&json!({
            "model": located.label,
            "numeric": numeric,
            "perplexity": result.perplexity,
            "error": result.error,
            "tokens": result.tokens,
            "scored": result.scored,
            "windows": result.windows,
            "context": window,
            "seconds": seconds,
        }));
    }
    console::print_line(&format!(
        "perplexity {:.4} +/- {:.4} ({} mode, {} tokens scored in {} windows of {})",
        result.perplexity, result.error, numeric, result.scored, result.windows, window
    ))?;
    let read = result.windows * window;
    if !emulated {
        let speed = read as f64 / seconds;
        console.notice(&format!("{read} tokens in {seconds:.1} s: {speed:.1} tokens/s"));
    }
    Ok(())
}
