//! A model with its products on the NPU against the processor's exact mode.

use std::sync::Arc;

use pianola_cpu::CpuOptions;
use pianola_engine::{Engine, LoadOptions, LogitRows};
use pianola_npu::placed::Precision;
use pianola_plan::{ModelPart, Numeric, Plan};
use serde_json::json;

use super::Arguments;
use crate::console::{self, Console};
use crate::failure::Failure;
use crate::model::{self, Located};
use crate::npu_device;

/// Tokens that are fed: more than a step has to have for the NPU, and over two pages.
const TOKENS: usize = 96;

/// Opens the NPU, whose packages are tested on the way, places the model's products on it, and compares
/// logits.
pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    if arguments.shape.shape.is_some() {
        return Err(Failure::usage(
            "the NPU is checked with a model from a file; leave out --shape",
        ));
    }
    let opened = npu_device::open_for_check(&arguments.npu, console)?;
    let located = model::locate(arguments.model.name(), console)?;
    let description = opened.device.description();
    if !arguments.json {
        console::print_line(&format!("{} on {description}", located.label))?;
    }
    let cpu = CpuOptions { memory: arguments.memory, ..CpuOptions::default() };
    let options = |place: Vec<(ModelPart, String)>| LoadOptions {
        devices: LoadOptions::devices(Vec::new(), cpu),
        accelerators: if place.is_empty() { Vec::new() } else { vec![opened.device.clone()] },
        place,
        numeric: Some(Numeric::Exact),
        context: Some(2 * TOKENS),
        max_logit_rows: TOKENS,
        ..LoadOptions::default()
    };
    let expected = logits(&located, options(Vec::new()), console)?;
    let parts = [ModelPart::Projections, ModelPart::Ffn].map(|part| (part, "npu".to_string()));
    let found = logits(&located, options(parts.to_vec()), console)?;
    let width = found.plan.graph.vocabulary;
    let off = difference(&found.values, &expected.values, width);
    let most = bound(opened.precision, &found.plan);
    let passed = off <= most;
    if arguments.json {
        console::print_json(&json!([{
            "device": description, "model": located.label, "precision": opened.precision.to_string(),
            "tokens": TOKENS, "difference": off, "bound": most, "passed": passed,
        }]))?;
    } else {
        console::print_line(&format!(
            "  {}  logits of {TOKENS} tokens with all products of {} layers in {}: the median row off by \
             {:.3} % of its norm, of {:.3} % that its roundings explain",
            if passed { "ok  " } else { "FAIL" },
            found.plan.layers(),
            opened.precision,
            100.0 * off,
            100.0 * most
        ))?;
    }
    match passed {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{description} computes wrongly; please report this with the output of `pianola npu check`"
        ))),
    }
}

/// What a model made of the tokens.
struct Computed {
    values: Vec<f32>,
    plan: Arc<Plan>,
}

fn logits(located: &Located, options: LoadOptions, console: Console) -> Result<Computed, Failure> {
    let mut engine: Engine = model::load(located, options, console)?;
    let vocabulary = engine.plan().graph.vocabulary as u64;
    // Spread over the vocabulary, the same every time.
    let token = |at: u64| ((at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) % vocabulary;
    let tokens: Vec<u32> = (0..TOKENS as u64).map(|at| token(at) as u32).collect();
    let mut values = Vec::new();
    engine
        .feed(&tokens, TOKENS, LogitRows::From(0), &mut |_, row| values.extend_from_slice(row))?;
    Ok(Computed { values, plan: Arc::new(engine.plan().clone()) })
}

/// The norm of a row's error, relative to that of its logits less their mean, of the median row: few rows
/// of some models, such as a first one, are far more sensitive than all others. What is no number is
/// farther off than anything.
fn difference(found: &[f32], expected: &[f32], width: usize) -> f32 {
    let relative = |(found, expected): (&[f32], &[f32])| {
        let mean = expected.iter().sum::<f32>() / width as f32;
        let error: f32 = found.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum();
        let size: f32 = expected.iter().map(|value| (value - mean).powi(2)).sum();
        let share = (error / size).sqrt();
        if share.is_nan() { f32::INFINITY } else { share }
    };
    let rows = found.chunks_exact(width).zip(expected.chunks_exact(width));
    let mut errors: Vec<f32> = rows.map(relative).collect();
    if errors.iter().any(|error| error.is_infinite()) {
        return f32::INFINITY;
    }
    errors.sort_by(f32::total_cmp);
    errors[errors.len() / 2]
}

/// How far logits may be off: each product brings the relative error of its roundings, of inputs and of weights
/// (in bf16 uniform within a unit of 2^-8, in int8 within half a step, of which the largest of a piece has
/// 127 at three deviations); those of four products a layer add up by chance, and twice that is allowed.
fn bound(precision: Precision, plan: &Plan) -> f32 {
    let each = match precision {
        Precision::Bf16 => 1.0 / 256.0 / 3f32.sqrt(),
        Precision::Int8Pieces => 3.0 / 127.0 / 12f32.sqrt(),
    };
    2.0 * (plan.layers() as f32 * 4.0 * 2.0).sqrt() * each
}
