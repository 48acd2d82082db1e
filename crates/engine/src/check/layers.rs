//! Some layers as a whole: steps that are submitted as they are in use, against the processor's exact
//! mode.

use super::cases::FEW_TOKENS;
use super::report::{CheckIssue, CheckSection};
use super::sequences::Sequences;
use super::steps::StepKind;
use super::{CheckEvent, Checker};
use crate::error::EngineError;
use pianola_cpu::CpuDevice;
use pianola_model::{ModelSubset, distinct_layers};
use pianola_plan::{Device, KvType, Numeric, Plan, Recording, Step, WeightShape};
use std::sync::Arc;
use std::time::Instant;

/// What the head's rounding takes the logits off by, relative to their norm: at worst weights and
/// inputs are half floats.
const HEAD: f64 = 1.0 / 1024.0;

/// Steps that are played: prompts over several pages, one beside lanes, then lanes. Of row counts
/// whose kernels were compiled before.
const KINDS: [StepKind; 5] = [
    StepKind::Prompt(130),
    StepKind::Prompt(65),
    StepKind::Mixed(50, 15),
    StepKind::Lanes(3),
    StepKind::Lanes(1),
];

impl Checker<'_> {
    pub(super) fn check_layers(&mut self) -> Result<(), EngineError> {
        let start = Instant::now();
        let (config, source) = (&self.subject.config, self.subject.source());
        let layers = distinct_layers(config, source);
        let subset = ModelSubset::new(config, source, &layers, FEW_TOKENS);
        let cpu: Arc<dyn Device> = Arc::new(CpuDevice::default());
        let plan = self.plan(&subset, self.used, self.device)?;
        let exact = self.plan(&subset, (KvType::F32, Numeric::Exact), &cpu)?;
        // Without layers: what the embedding alone gives, which is most of some models' logits.
        let bare = ModelSubset::new(config, source, &[], FEW_TOKENS);
        let bare_plan = self.plan(&bare, (KvType::F32, Numeric::Exact), &cpu)?;
        let bound = bound(&plan);
        let mut recordings = [
            self.record(self.device, &plan, &subset)?,
            self.record(&cpu, &exact, &subset)?,
            self.record(&cpu, &bare_plan, &bare)?,
        ];
        let mut section = CheckSection {
            name: format!(
                "{} layers as a whole against the processor's exact mode, within {:.1} % of what they add",
                layers.len(),
                100.0 * bound
            ),
            ..CheckSection::default()
        };
        let mut sequences = Sequences::new(plan.graph.vocabulary);
        let mut branched = false;
        for (index, kind) in KINDS.into_iter().enumerate() {
            if !branched && !matches!(kind, StepKind::Prompt(_)) {
                let branches = sequences.branch();
                let each = recordings.iter_mut();
                each.for_each(|recording| Sequences::map_branches(recording.as_mut(), &branches));
                branched = true;
            }
            let step = sequences.step(kind, kind.rows().min(5));
            recordings.iter_mut().try_for_each(|recording| recording.play(&step))?;
            let errors = errors(&mut recordings, &step);
            section.steps += 1;
            section.compared += errors.len();
            section.values += errors.len() * plan.graph.vocabulary;
            for (row, error) in errors {
                // No bound holds what is not a number.
                let share = if error.is_nan() { f64::INFINITY } else { error / bound };
                section.worst_share = section.worst_share.max(share);
                if share > 1.0 {
                    self.result.fail(CheckIssue {
                        section: section.name.clone(),
                        step: kind.to_string(),
                        kernel: "all kernels".to_string(),
                        reason: format!(
                            "the logits of row {row} are off by {:.2} % of what the layers add to them, \
                             at most {:.2} % are expected",
                            100.0 * error,
                            100.0 * bound
                        ),
                    });
                }
            }
            let (done, all) = (index + 1, KINDS.len());
            (self.events)(CheckEvent::Progress { section: &section.name, done, all });
        }
        section.seconds = start.elapsed().as_secs_f64();
        self.finish(section);
        Ok(())
    }
}

/// For each row with logits of a played step, how far the first recording's are from the second's,
/// relative to what the layers add to the third's, which has none.
fn errors(recordings: &mut [Box<dyn Recording>; 3], step: &Step) -> Vec<(u32, f64)> {
    let error = |(index, &row): (usize, &u32)| {
        let [found, expected, bare] =
            recordings.each_mut().map(|recording| centred(recording.logits(0, index)));
        let distance = |a: &[f64], b: &[f64]| {
            a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
        };
        let norm = distance(&expected, &vec![0.0; expected.len()]);
        let (error, added) = (distance(&found, &expected), distance(&expected, &bare));
        // The head rounds all of them.
        let rounded = HEAD * norm;
        (row, if error <= rounded { 0.0 } else { (error - rounded) / added })
    };
    step.logits.iter().enumerate().map(error).collect()
}

/// Logits less their mean, which no probability depends on, and which may be most of their norm.
fn centred(logits: &[f32]) -> Vec<f64> {
    let mean = logits.iter().map(|&logit| f64::from(logit)).sum::<f64>() / logits.len() as f64;
    logits.iter().map(|&logit| f64::from(logit) - mean).collect()
}

/// How far rounding may take the logits of a plan, relative to what its layers add to them. Roundings are independent
/// of one another, so that their squares add up; norms and gates may double an error on its way.
fn bound(plan: &Plan) -> f64 {
    // An int8 is off by at most half of 1/127 of the largest of 32 values, evenly spread; at worst
    // that one has all of the block's norm.
    let int8 = 32f64.sqrt() / 127.0 / 12f64.sqrt();
    // Sums of f32 are off by a rounding a term.
    let columns = plan.graph.weights.iter().map(|weight| weight.shape.rows().1).max().unwrap_or(1);
    let float = f64::from(f32::EPSILON) * (columns as f64).sqrt();
    let matrices = plan.graph.weights.iter();
    let mut matrices = matrices.filter(|weight| matches!(weight.shape, WeightShape::Matrix { .. }));
    let quantized = matrices.any(|weight| weight.ty.is_quantized());
    let product = match plan.options.numeric {
        Numeric::Fast if quantized => int8,
        _ => float,
    };
    let head_dim = plan.graph.kv_groups.iter().map(|group| group.head_dim).max().unwrap_or(1);
    let stored = match plan.options.kv_type() {
        KvType::F32 => 0.0,
        KvType::F16 => 2f64.powi(-11),
        // One scale for a head.
        KvType::Q8 => int8 * (head_dim as f64 / 32.0).sqrt(),
    };
    // q, k, v; the output; gate and up; down. Keys and values.
    const PRODUCTS: f64 = 4.0;
    let layers = plan.layers() as f64;
    let squares = layers * (PRODUCTS * product * product + 2.0 * stored * stored) + float * float;
    2.0 * squares.sqrt()
}
