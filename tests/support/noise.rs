//! The statistical bounds beside the noise that is really there, at widths of real models.

#![allow(dead_code, reason = "each test uses a part")]

use super::case::{Case, Runs, step_of, usual};
use pianola_cpu::{CheckReport, ReferenceModel, SampledRows};
use pianola_formats::TensorType;
use pianola_plan::{Numeric, Recording};

/// A model as wide as one of four thousand million parameters, with heads and vocabulary to match.
pub fn wide(ty: TensorType, numeric: Numeric) -> Case {
    Case {
        hidden: 2560,
        feed_forward: 5376,
        vocabulary: 5376,
        kv_heads: 4,
        group: 2,
        head_dim: 256,
        window: None,
        numeric,
        ..usual(ty)
    }
}

/// What a step is checked with: rows, and how many of each run want logits.
pub fn report(
    recording: &mut dyn Recording,
    reference_model: &mut ReferenceModel,
    runs: &Runs,
    wanted: u32,
) -> CheckReport {
    let step = step_of(runs, recording.plan().graph.vocabulary as u32, wanted);
    recording.poison().unwrap();
    let checked = reference_model.check_step(recording, &step).unwrap();
    checked.unwrap_or_else(|failure| panic!("{runs:?}: {failure}"))
}

/// The same of a prompt of `rows` rows of which the reference computes those in `compared`.
pub fn report_of_some(
    recording: &mut dyn Recording,
    reference_model: &mut ReferenceModel,
    rows: u32,
    compared: &[usize],
) -> CheckReport {
    let step = step_of(&[(0, 0, rows)], recording.plan().graph.vocabulary as u32, 0);
    recording.poison().unwrap();
    let sampled = SampledRows { rows: compared.to_vec(), logits: Vec::new() };
    let report = reference_model.check_rows(recording, &step, &sampled, &|_| true).unwrap();
    assert!(report.failures.is_empty(), "{rows} rows: {:?}", report.failures);
    report
}

/// How many times the noise of a product's rows the bound is, for each tensor that a product leaves:
/// the smallest and the largest.
pub fn looseness(what: &str, report: &CheckReport) -> (f64, f64) {
    let products = ["attn_q", "attn_k", "attn_v", "attn_output", "gated", "ffn_down", "logits"];
    let mut range = (f64::INFINITY, 0.0f64);
    for noise in &report.noise {
        let name = noise.tensor.rsplit(' ').next().unwrap();
        if products.iter().any(|product| name.ends_with(product)) {
            let ratio = noise.limit / noise.found;
            println!(
                "{what}: {name}: bound {:.2}, found {:.2} of the expected noise, {ratio:.2} times",
                noise.limit, noise.found
            );
            range = (range.0.min(ratio), range.1.max(ratio));
        }
    }
    assert!(range.0.is_finite(), "a product left a tensor");
    range
}
