//! Models without a file: a known shape with random weights.

use clap::Args;
use pianola_cpu::CpuOptions;
use pianola_formats::TensorType;
use pianola_model::{SHAPES, Shape};
use pianola_plan::Plan;

use crate::failure::Failure;

/// Heading in the long help.
pub const SHAPES_HEADING: &str = "Random weights";

/// A shape instead of a model.
#[derive(Args, Debug)]
#[command(next_help_heading = SHAPES_HEADING)]
pub struct ShapeOptions {
    /// Random weights in the shape of this model instead of a file
    #[arg(long, value_name = "SHAPE", value_parser = known)]
    #[arg(conflicts_with_all = ["model", "named"], long_help = help())]
    pub shape: Option<&'static Shape>,
    /// Type of the random weights
    #[arg(long, value_name = "TYPE", default_value = "q4_0", value_parser = weight_type)]
    #[arg(requires = "shape", conflicts_with_all = ["model", "named"], hide_short_help = true)]
    pub quant: TensorType,
}

fn names() -> String {
    SHAPES.iter().map(|shape| shape.name).collect::<Vec<_>>().join(", ")
}

fn help() -> String {
    let what = "Random weights in the shape of this model instead of a file.";
    format!("{what}\n\nShapes: {}", names())
}

fn known(text: &str) -> Result<&'static Shape, String> {
    // By reference into the table, so that options stay as small as a word.
    let shape = SHAPE_TABLE.iter().find(|shape| shape.name.eq_ignore_ascii_case(text));
    shape.ok_or_else(|| format!("there is no such shape; known are {}", names()))
}

static SHAPE_TABLE: [Shape; SHAPES.len()] = SHAPES;

fn weight_type(text: &str) -> Result<TensorType, String> {
    text.parse().map_err(|error: pianola_formats::UnknownTensorType| error.to_string())
}

/// Refuses what this machine has no memory for, before an hour of swapping shows it.
pub fn check_memory(shape: &Shape, plan: &Plan, cpu: CpuOptions) -> Result<(), Failure> {
    let needed = plan.weight_bytes() + plan.arena.bytes as u64 + plan.kv_bytes();
    match cpu.available() {
        Some(available) if needed > available => Err(Failure::failed(format!(
            "{} needs {:.1} GB of memory and {:.1} GB are available; take a smaller shape, a \
             smaller --quant, or a shorter context",
            shape.name,
            needed as f64 / 1e9,
            available as f64 / 1e9,
        ))),
        _ => Ok(()),
    }
}
