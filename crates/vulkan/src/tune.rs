//! Measures the possible cuts of a product, on the device and with the model's own weights.

use crate::lab::Lab;
use crate::policy::rows;
use crate::program::{Body, Dispatch};
use crate::recording::VulkanRecording;
use crate::tuning::{RowsKey, Tuning};
use pianola_plan::DeviceError;

/// Layers whose weights are read in one measurement: together more than the caches hold.
const LAYERS: usize = 24;
/// Candidates that are measured for a product, the most promising by the policy first.
const CANDIDATES: usize = 20;

/// What was found for one product.
#[derive(Clone, PartialEq, Debug)]
pub struct Trial {
    /// The product, in words.
    pub product: String,
    /// Candidates measured.
    pub candidates: usize,
    /// Seconds of a launch as the policy cuts it.
    pub before: f64,
    /// Seconds as the best candidate cuts it.
    pub after: f64,
    /// The best candidate, in words.
    pub choice: String,
}

/// Measures the products of a play of one row; `progress` is called with each product's
/// result and the number of products.
pub fn tune(
    recording: &VulkanRecording,
    progress: &mut dyn FnMut(&Trial, usize),
) -> Result<Tuning, DeviceError> {
    let mut lab = Lab::new(recording.gpu())?;
    let mut tuning = Tuning::default();
    let program = |tuning: &Tuning| -> Result<Vec<Dispatch>, DeviceError> {
        let programmer = recording.programmer(0, tuning);
        let mut program = Vec::new();
        for segment in programmer.segments() {
            program.extend(programmer.body(Body::single(segment))?);
            program.extend(programmer.head(segment, 1)?);
        }
        Ok(program)
    };
    let mut products: Vec<(RowsKey, rows::Product)> = Vec::new();
    for cut in program(&tuning)?.iter().filter_map(|dispatch| dispatch.cut) {
        if !products.iter().any(|(key, _)| *key == cut.0) {
            products.push(cut);
        }
    }
    for (key, product) in &products {
        let mut time = |shape: Option<rows::RowsShape>| -> Result<f64, DeviceError> {
            let mut tried = Tuning::default();
            tried.rows.extend(shape.map(|shape| (*key, shape)));
            let mut mine: Vec<Dispatch> = program(&tried)?
                .into_iter()
                .filter(|dispatch| dispatch.cut.is_some_and(|cut| cut.0 == *key))
                .take(LAYERS)
                .collect();
            mine.iter_mut().for_each(|dispatch| dispatch.barrier = true);
            Ok(lab.time_awake(&mine, 5)? / mine.len() as f64)
        };
        let before = time(None)?;
        let mut best = (before, rows::choose(recording.limits(), product));
        let candidates = rows::ranked(recording.limits(), product);
        for &shape in candidates.iter().take(CANDIDATES) {
            let seconds = time(Some(shape))?;
            if seconds < best.0 {
                best = (seconds, shape);
            }
        }
        tuning.rows.insert(*key, best.1);
        let RowsKey { ty, rows, blocks, count } = key;
        let shape = best.1;
        let trial = Trial {
            product: format!("{rows} x {} {ty}, {count} rows", 32 * blocks),
            candidates: candidates.len().min(CANDIDATES),
            before,
            after: best.0,
            choice: format!(
                "{} invocations, {} a row, {} rows of {} blocks at once",
                shape.workgroup, shape.row_invocations, shape.height, shape.unroll
            ),
        };
        progress(&trial, products.len());
    }
    Ok(tuning)
}
