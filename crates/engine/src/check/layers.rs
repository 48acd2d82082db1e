//! Some layers as a whole: steps that are submitted as they are in use, against the processor's exact
//! mode.

use super::cases::FEW_TOKENS;
use super::report::{CheckIssue, CheckSection};
use super::rounded::RoundedModel;
use super::sequences::Sequences;
use super::steps::StepKind;
use super::{CheckEvent, Checker};
use crate::error::EngineError;
use pianola_cpu::CpuDevice;
use pianola_model::{ModelSubset, distinct_layers};
use pianola_plan::{Device, DeviceError, KvType, Numeric, Recording, Step};
use std::sync::Arc;
use std::time::Instant;

/// How many times the noise of its roundings a row's logits may be off by. Both are norms over thousands
/// of logits, but of one row, whose errors come from few roundings in early layers. The widest ratios
/// measured are those of Gemma 3 270M, 0.6 to 1.8: their logarithms deviate by 0.3, and this is 4.6 times
/// that.
const MOST_NOISE: f64 = 4.0;

/// Steps that are played: prompts over several pages, one beside lanes, then lanes.
const KINDS: [StepKind; 5] = [
    StepKind::Prompt(130),
    StepKind::Prompt(65),
    StepKind::Mixed(50, 15),
    StepKind::Lanes(3),
    StepKind::Lanes(1),
];

/// A device's recording of some layers, and what its logits are compared with.
struct Layers {
    device: Box<dyn Recording>,
    /// The processor's exact mode, with keys and values of f32.
    exact: Box<dyn Recording>,
    /// The same with the device's roundings.
    rounded: RoundedModel,
}

/// How far a row's logits are off.
struct LogitError {
    /// Row of the step.
    row: u32,
    /// Norm of the error, relative to that of the logits.
    found: f64,
    /// The same of the simulated roundings.
    noise: f64,
}

impl LogitError {
    /// The error as a share of what is allowed; no bound holds what is not a number.
    fn share(&self) -> f64 {
        let share = self.found / (MOST_NOISE * self.noise);
        match self.found == 0.0 {
            true => 0.0,
            false if share.is_nan() => f64::INFINITY,
            false => share,
        }
    }
}

impl Layers {
    fn map_branches(&mut self, branches: &[(usize, usize)]) {
        Sequences::map_branches(self.device.as_mut(), branches);
        Sequences::map_branches(self.exact.as_mut(), branches);
        self.rounded.map_branches(branches);
    }

    /// Plays a step, and compares each row that wants logits.
    fn play(&mut self, step: &Step) -> Result<Vec<LogitError>, DeviceError> {
        self.device.play(step)?;
        self.exact.play(step)?;
        self.rounded.play(self.device.as_ref(), step)?;
        let error = |(index, &row): (usize, &u32)| {
            let expected = centred(self.exact.logits(0, index));
            let size = distance(&expected, &vec![0.0; expected.len()]);
            let found = distance(&centred(self.device.logits(0, index)), &expected) / size;
            let noise = distance(&centred(self.rounded.logits(index)), &expected) / size;
            LogitError { row, found, noise }
        };
        Ok(step.logits.iter().enumerate().map(error).collect())
    }
}

impl Checker<'_> {
    pub(super) fn check_layers(&mut self) -> Result<(), EngineError> {
        let start = Instant::now();
        let (config, source) = (&self.subject.config, self.subject.source());
        let chosen = distinct_layers(config, source);
        let subset = ModelSubset::new(config, source, &chosen, FEW_TOKENS);
        let mut layers = self.record_layers(&subset)?;
        let name = format!(
            "{} layers as a whole against the processor's exact mode, within {MOST_NOISE} times the \
             noise of their roundings",
            chosen.len()
        );
        let mut section = CheckSection { name, ..CheckSection::default() };
        let vocabulary = layers.device.plan().graph.vocabulary;
        let mut sequences = Sequences::new(vocabulary);
        for (index, kind) in KINDS.into_iter().enumerate() {
            if !matches!(kind, StepKind::Prompt(_)) {
                layers.map_branches(&sequences.branch());
            }
            let errors = layers.play(&sequences.step(kind, kind.rows().min(5)))?;
            section.steps += 1;
            section.compared += errors.len();
            section.values += errors.len() * vocabulary;
            for error in errors {
                section.worst_share = section.worst_share.max(error.share());
                if error.share() > 1.0 {
                    let LogitError { row, found, noise } = error;
                    self.result.fail(CheckIssue {
                        section: section.name.clone(),
                        step: kind.to_string(),
                        kernel: "all kernels".to_string(),
                        reason: format!(
                            "the logits of row {row} are off by {:.4} % of their norm, where the noise \
                             of the roundings is {:.4} %",
                            100.0 * found,
                            100.0 * noise
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

    fn record_layers(&self, subset: &ModelSubset<'_>) -> Result<Layers, EngineError> {
        let cpu: Arc<dyn Device> = Arc::new(CpuDevice::default());
        let plan = self.plan(subset, self.used, self.device, true)?;
        let exact = self.plan(subset, (KvType::F32, Numeric::Exact), &cpu, true)?;
        // Every node by itself, so that each product's input can be changed.
        let rounded = self.plan(subset, (self.used.0, Numeric::Exact), &cpu, false)?;
        Ok(Layers {
            device: self.record(self.device, &plan, subset)?,
            exact: self.record(&cpu, &exact, subset)?,
            rounded: RoundedModel::new(self.record(&cpu, &rounded, subset)?),
        })
    }
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

/// Logits less their mean, which no probability depends on, and which may be most of their norm.
fn centred(logits: &[f32]) -> Vec<f64> {
    let mean = logits.iter().map(|&logit| f64::from(logit)).sum::<f64>() / logits.len() as f64;
    logits.iter().map(|&logit| f64::from(logit) - mean).collect()
}
