//! Which segmentation plays a step, and whether in halves.
//!
//! A segment's time is predicted from its device's ceilings and multiplied by its *pace*: what it took
//! lately over what was predicted. A segment that was not played yet, or not for long, goes at the pace of
//! its device, and that falls back to the prediction. The choice changes only where another one
//! is predicted to be faster by a tenth, and not again for some steps.

use pianola_plan::{Ceilings, Plan, Step, Turn, bucket};
use std::collections::HashMap;
use std::sync::Arc;

/// How a step is played.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    /// Index in [`Plan::segmentations`].
    pub segmentation: usize,
    /// In two halves that follow one another.
    pub halves: bool,
}

impl Choice {
    /// Everything where it was placed, at once.
    pub const PLACED: Choice = Choice { segmentation: 0, halves: false };
}

/// Another choice must be this much faster.
const LEAST_GAIN: f64 = 1.1;
/// Steps between two changes.
const LEAST_STEPS: u64 = 4;
/// Share of a new time in a pace.
const NEWEST: f64 = 0.25;
/// Steps after which half of what was measured is forgotten.
const HALF_LIFE: f64 = 64.0;

/// What was measured over what was predicted.
#[derive(Clone, Copy, Debug)]
struct Pace {
    factor: f64,
    /// The step at which it was last measured.
    step: u64,
}

impl Pace {
    fn at(&self, step: u64) -> f64 {
        let age = (step - self.step) as f64;
        1.0 + (self.factor - 1.0) * 0.5f64.powf(age / HALF_LIFE)
    }
}

/// Chooses from times that drift.
pub(crate) struct Balancer {
    plan: Arc<Plan>,
    ceilings: Vec<Ceilings>,
    choices: Vec<(Choice, Vec<Turn>)>,
    /// By segment and bucket of rows.
    segments: HashMap<(usize, usize), Pace>,
    devices: HashMap<usize, Pace>,
    /// For each bucket of rows the choice, as an index, and the step that it was made at.
    current: HashMap<usize, (usize, u64)>,
    step: u64,
}

impl Balancer {
    /// For a plan with several segmentations. `ceilings` are those of its devices; `overlap` says whether
    /// steps may be cut in halves.
    pub fn new(plan: Arc<Plan>, ceilings: Vec<Ceilings>, overlap: bool) -> Balancer {
        let mut choices = Vec::new();
        for segmentation in 0..plan.segmentations.len() {
            for halves in [false, true] {
                let alone = plan.segmentations[segmentation].segments.len() == 1;
                if !halves || (overlap && !alone) {
                    let turns = plan.turns(segmentation, 1 + usize::from(halves));
                    choices.push((Choice { segmentation, halves }, turns));
                }
            }
        }
        let (segments, devices, current) = Default::default();
        Balancer { plan, ceilings, choices, segments, devices, current, step: 0 }
    }

    /// The choice for a step; `usable` says which segmentations can be played now.
    pub fn choose(&mut self, step: &Step, usable: &[bool]) -> Choice {
        self.step += 1;
        let rows = bucket(step.rows.len()).unwrap_or(step.rows.len());
        let context = step.rows.iter().map(|row| row.position as usize + 1).max().unwrap_or(1);
        let times: Vec<f64> = self
            .choices
            .iter()
            .map(|(choice, turns)| match usable[choice.segmentation] {
                true => self.estimate(*choice, turns, step.rows.len(), context),
                false => f64::INFINITY,
            })
            .collect();
        let best = (0..times.len()).min_by(|&a, &b| times[a].total_cmp(&times[b])).unwrap_or(0);
        let now = self.step;
        let (chosen, since) = self.current.entry(rows).or_insert((best, now));
        let faster = times[*chosen] > LEAST_GAIN * times[best];
        let settled = now - *since >= LEAST_STEPS;
        if times[*chosen].is_infinite() || (faster && settled) {
            (*chosen, *since) = (best, now);
        }
        self.choices[*chosen].0
    }

    /// Predicted seconds of a step.
    fn estimate(&self, choice: Choice, turns: &[Turn], rows: usize, context: usize) -> f64 {
        let plays = if choice.halves { 2 } else { 1 };
        let sequences: Vec<(usize, usize)> = (0..plays)
            .map(|play| {
                let before = (plays - 1 - play) * (rows / plays);
                (rows.div_ceil(plays), context.saturating_sub(before))
            })
            .collect();
        let seconds = |turn: Turn| {
            let sequences = &sequences[turn.play..=turn.play];
            let predicted = self.plan.segment_seconds(turn.segment, &self.ceilings, sequences);
            predicted * self.pace(turn.segment, sequences[0].0)
                + self.plan.transfer_seconds(turn.segment, &self.ceilings, sequences[0].0)
        };
        self.plan.finish_time(turns, &seconds)
    }

    /// Whether a segment of a device was ever timed.
    #[cfg(test)]
    pub fn has_measured(&self, device: usize) -> bool {
        self.devices.contains_key(&device)
    }

    fn pace(&self, segment: usize, rows: usize) -> f64 {
        let key = (segment, bucket(rows).unwrap_or(rows));
        let device = self.plan.segments[segment].device.0;
        let own = self.segments.get(&key).filter(|pace| self.step - pace.step <= HALF_LIFE as u64);
        own.or_else(|| self.devices.get(&device)).map_or(1.0, |pace| pace.at(self.step))
    }

    /// Takes in how long a segment took for some rows at a context.
    pub fn record(&mut self, segment: usize, (rows, context): (usize, usize), seconds: f64) {
        let predicted = self.plan.segment_seconds(segment, &self.ceilings, &[(rows, context)]);
        if predicted <= 0.0 {
            return;
        }
        let (factor, step) = (seconds / predicted, self.step);
        let device = self.plan.segments[segment].device.0;
        let key = (segment, bucket(rows).unwrap_or(rows));
        for pace in
            [self.segments.get_mut(&key), self.devices.get_mut(&device)].into_iter().flatten()
        {
            pace.factor += NEWEST * (factor - pace.factor);
            pace.step = step;
        }
        self.segments.entry(key).or_insert(Pace { factor, step });
        self.devices.entry(device).or_insert(Pace { factor, step });
    }
}

#[cfg(test)]
mod tests;
