//! Measures the possible cuts of a product, on the device and with the model's own weights.

mod compare;

use crate::lab::Lab;
use crate::policy::rows::{self, RowsShape};
use crate::program::{Body, Dispatch};
use crate::recording::VulkanRecording;
use crate::tuning::{RowsKey, Tuning};
use compare::Player;
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
    /// Candidates that were refused because they computed something else than the policy's choice,
    /// each with where.
    pub refused: Vec<String>,
    /// Seconds of a launch as the policy cuts it.
    pub before: f64,
    /// Seconds as the best candidate cuts it.
    pub after: f64,
    /// The best candidate, in words.
    pub choice: String,
}

/// Measures the products of a play of one row, after comparing what each candidate computes with
/// what the policy's choice does; `progress` is called with each product's result and the number of
/// products. The first sequence's first page is overwritten.
pub fn tune(
    recording: &mut VulkanRecording,
    progress: &mut dyn FnMut(&Trial, usize),
) -> Result<Tuning, DeviceError> {
    Tuner::new(recording, None)?.run(progress)
}

/// The same, where candidate `spoiled` of every product leaves out its last workgroup.
#[doc(hidden)]
pub fn tune_spoiled(
    recording: &mut VulkanRecording,
    spoiled: usize,
    progress: &mut dyn FnMut(&Trial, usize),
) -> Result<Tuning, DeviceError> {
    Tuner::new(recording, Some(spoiled))?.run(progress)
}

struct Tuner<'a> {
    recording: &'a mut VulkanRecording,
    lab: Lab,
    player: Player,
    /// The candidate that tests make wrong.
    spoiled: Option<usize>,
}

impl Tuner<'_> {
    fn new(
        recording: &mut VulkanRecording,
        spoiled: Option<usize>,
    ) -> Result<Tuner<'_>, DeviceError> {
        let lab = Lab::new(recording.gpu())?;
        let player = Player::new(recording);
        Ok(Tuner { recording, lab, player, spoiled })
    }

    fn run(mut self, progress: &mut dyn FnMut(&Trial, usize)) -> Result<Tuning, DeviceError> {
        let mut tuning = Tuning::default();
        let mut products: Vec<(RowsKey, rows::Product)> = Vec::new();
        for cut in self.program(&tuning)?.iter().filter_map(|dispatch| dispatch.cut) {
            if !products.iter().any(|(key, _)| *key == cut.0) {
                products.push(cut);
            }
        }
        for (key, product) in &products {
            let (shape, trial) = self.trial(key, product)?;
            tuning.rows.insert(*key, shape);
            progress(&trial, products.len());
        }
        Ok(tuning)
    }

    /// A play of one row.
    fn program(&self, tuning: &Tuning) -> Result<Vec<Dispatch>, DeviceError> {
        let programmer = self.recording.programmer(0, tuning);
        let mut program = Vec::new();
        for segment in programmer.segments() {
            program.extend(programmer.body(Body::single(segment))?);
            program.extend(programmer.head(segment, 1)?);
        }
        Ok(program)
    }

    /// The same with a product cut as `shape` says.
    fn program_of(&self, key: &RowsKey, shape: RowsShape) -> Result<Vec<Dispatch>, DeviceError> {
        let mut tried = Tuning::default();
        tried.rows.insert(*key, shape);
        self.program(&tried)
    }

    /// What the first product of this kind leaves, with the play before it.
    fn outputs(
        &mut self,
        key: &RowsKey,
        mut program: Vec<Dispatch>,
        spoiled: bool,
    ) -> Result<compare::Outputs, DeviceError> {
        let first = program.iter().position(|dispatch| is_of(dispatch, key));
        program.truncate(first.map_or(0, |first| first + 1));
        if let Some(last) = program.last_mut().filter(|_| spoiled) {
            last.groups[0] -= 1;
        }
        self.player.play(self.recording, &program)
    }

    /// Seconds of a launch.
    fn time(&mut self, key: &RowsKey, program: Vec<Dispatch>) -> Result<f64, DeviceError> {
        let mine = program.into_iter().filter(|dispatch| is_of(dispatch, key)).take(LAYERS);
        let mine: Vec<Dispatch> = mine.map(|one| Dispatch { barrier: true, ..one }).collect();
        Ok(self.lab.time_awake(&mine, 5)? / mine.len() as f64)
    }

    fn trial(
        &mut self,
        key: &RowsKey,
        product: &rows::Product,
    ) -> Result<(RowsShape, Trial), DeviceError> {
        let policy = rows::choose(self.recording.limits(), product);
        let program = self.program_of(key, policy)?;
        let expected = self.outputs(key, program.clone(), false)?;
        if !expected.has_numbers() {
            return Err(DeviceError::Unsupported(format!(
                "{} cannot be measured: as the policy cuts it, it computes no numbers to compare with",
                name(key)
            )));
        }
        let before = self.time(key, program)?;
        let mut best = (before, policy);
        let mut refused = Vec::new();
        let mut candidates = rows::ranked(self.recording.limits(), product);
        candidates.truncate(CANDIDATES);
        for (index, &shape) in candidates.iter().enumerate() {
            let program = self.program_of(key, shape)?;
            let spoiled = self.spoiled == Some(index);
            let found = self.outputs(key, program.clone(), spoiled)?;
            if let Some(difference) = expected.difference(&found, key) {
                refused.push(format!("{}: {difference}", words(shape)));
                continue;
            }
            let seconds = self.time(key, program)?;
            if seconds < best.0 {
                best = (seconds, shape);
            }
        }
        let trial = Trial {
            product: name(key),
            candidates: candidates.len() - refused.len(),
            refused,
            before,
            after: best.0,
            choice: words(best.1),
        };
        Ok((best.1, trial))
    }
}

fn is_of(dispatch: &Dispatch, key: &RowsKey) -> bool {
    dispatch.cut.is_some_and(|cut| cut.0 == *key)
}

fn name(RowsKey { ty, rows, blocks, count }: &RowsKey) -> String {
    format!("{rows} x {} {ty}, {count} rows", 32 * blocks)
}

fn words(RowsShape { workgroup, row_invocations, height, unroll }: RowsShape) -> String {
    format!(
        "{workgroup} invocations, {row_invocations} a row, {height} rows of {unroll} blocks at once"
    )
}
