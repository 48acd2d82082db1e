//! Segmentations in which a further device computes products: which are worth recording.
//!
//! A device that takes products over has a second copy of their weights, and rows pass to it and back.
//! Whether that pays is predicted from measured ceilings for a prompt's chunk; what does not pay is
//! declined, and the plan says why. Where a device has no speed of its own (it is emulated), or is to be
//! used whatever is predicted, nothing is predicted and all is offered.

use crate::device::{Allocation, AllocationKind, Device, Takeover};
use crate::options::Numeric;
use crate::overlap::Turn;
use crate::part::ModelPart;
use crate::placement::DeviceId;
use crate::plan::Plan;
use crate::statistics::Ceilings;
use crate::units::size_text;

/// Gain below which a prediction is not worth a second copy of weights.
const LEAST_GAIN: f64 = 1.05;

/// What products may be taken over: both parts, or one.
const CHOICES: [(&str, &[ModelPart]); 3] = [
    ("projections", &[ModelPart::Projections]),
    ("ffn", &[ModelPart::Ffn]),
    ("products", &[ModelPart::Projections, ModelPart::Ffn]),
];

/// What is known when a device is offered products.
#[derive(Clone, Copy)]
pub struct TakeoverTerms<'a> {
    /// Ceilings of each device of the plan so far.
    pub ceilings: &'a [Ceilings],
    /// The further device's; none where it could not be measured.
    pub speed: Option<Ceilings>,
    /// What the other devices will take of the memory that it has, too.
    pub shared: &'a [Allocation],
    /// Whether steps may be cut in halves, so that devices work at once.
    pub overlap: bool,
}

impl Plan {
    /// Adds the segmentations in which `device` computes products, as far as they pay.
    pub fn offer(&mut self, device: &dyn Device, terms: TakeoverTerms<'_>) {
        let spec = device.spec();
        let name = spec.name.clone();
        let takeover = match self.takeover_of(device, terms.speed) {
            Ok(takeover) => takeover,
            Err(reason) => return self.remarks.push(format!("{name} is not used: {reason}")),
        };
        let parts = self.graph.parts();
        let before = self.segmentations.len();
        let mut copy = 0;
        for (what, moved) in CHOICES {
            let mut trial = self.clone();
            let moves = |_: usize, op: &crate::PlanOp| {
                let product =
                    matches!(&op.kernel, crate::Kernel::Project(project) if !project.select);
                product && moved.contains(&self.part_of(&parts, op))
            };
            if !trial.add_segmentation(format!("{what} on {name}"), &spec, &moves) {
                continue;
            }
            match trial.verdict(device, takeover, terms) {
                Ok(bytes) => {
                    *self = trial;
                    copy = bytes;
                }
                Err(reason) => {
                    self.remarks.push(format!("{what} are not offered to {name}: {reason}"));
                }
            }
        }
        self.remarks.push(format!(
            "attention is not offered to {name}: keys and values stay on one device; --place \
             attention=DEVICE puts both on another"
        ));
        if self.segmentations.len() > before {
            self.remark_takeover(&name, takeover, copy, device.is_emulated());
        }
    }

    /// How a device takes products over, or why it does not.
    fn takeover_of(
        &self,
        device: &dyn Device,
        speed: Option<Ceilings>,
    ) -> Result<Takeover, &'static str> {
        let takeover = device.takeover().ok_or("it computes no products for other devices")?;
        match (self.options.reproducible, self.options.numeric) {
            (true, _) => Err("which kernel computes a row would depend on the rows beside it"),
            (_, Numeric::Exact) if !takeover.exact => Err("its products are not exact"),
            _ if speed.is_some() || takeover.always || device.is_emulated() => Ok(takeover),
            _ => Err("it could not be measured"),
        }
    }

    /// Says what it takes that a device was offered products.
    fn remark_takeover(&mut self, name: &str, takeover: Takeover, copy: u64, emulated: bool) {
        if emulated {
            self.remarks.push(format!(
                "{name} is emulated and has no speed: nothing is predicted, and prompts always use it"
            ));
        } else if takeover.always {
            self.remarks.push(format!("prompts always use {name}, as asked: nothing is predicted"));
        }
        self.remarks.push(format!(
            "{name} has the weights of what it is offered a second time, {}, converted at load",
            size_text(copy)
        ));
        self.remarks.push(format!(
            "steps of fewer than {} rows are not offered to {name}: {}",
            takeover.least_rows,
            match takeover.shares_memory {
                true => "memory bounds them, and it reads the same memory",
                false => "they would wait for it longer than they gain",
            }
        ));
    }

    /// Bytes of weights that the further device keeps if the last segmentation is worth recording, or why it
    /// is not.
    fn verdict(
        &self,
        device: &dyn Device,
        takeover: Takeover,
        terms: TakeoverTerms<'_>,
    ) -> Result<u64, String> {
        let id = DeviceId(self.devices.len() - 1);
        let mut needed = device.allocations(self, id).map_err(|error| error.to_string())?;
        let copy = weights(&needed);
        needed.extend(terms.shared.iter().cloned());
        if !device.holds(&needed) {
            let copy = size_text(copy);
            return Err(format!("there is no memory for a second copy of their weights, {copy}"));
        }
        let Some(speed) = terms.speed.filter(|_| !takeover.always) else { return Ok(copy) };
        let mut all = terms.ceilings.to_vec();
        all.push(speed);
        let time = |segmentation: usize| {
            let extra = |segment: usize| match self.segments[segment].device == id {
                true => takeover.seconds_each,
                false => 0.0,
            };
            self.predicted(segmentation, &all, terms.overlap, &extra)
        };
        let (with, without) = (time(self.segmentations.len() - 1), time(0));
        if with.is_nan() || without.is_nan() {
            return Err("the speed of the devices that compute them is not known".to_string());
        }
        if without > LEAST_GAIN * with {
            return Ok(copy);
        }
        let rows = self.options.max_rows;
        Err(format!(
            "a prompt's {rows} rows would take {:.1} ms at best instead of {:.1}",
            1e3 * with,
            1e3 * without
        ))
    }

    /// Shortest time of a chunk of a prompt, whole or, where devices may overlap, in halves; `extra` are
    /// seconds that a segment takes besides.
    fn predicted(
        &self,
        segmentation: usize,
        ceilings: &[Ceilings],
        overlap: bool,
        extra: &dyn Fn(usize) -> f64,
    ) -> f64 {
        let rows = self.options.max_rows.min(self.options.context);
        let time = |plays: usize| {
            let sequences: Vec<(usize, usize)> =
                (1..=plays).map(|play| (rows / plays, rows * play / plays)).collect();
            let seconds = |turn: Turn| {
                let play = &sequences[turn.play..=turn.play];
                self.segment_seconds(turn.segment, ceilings, play)
                    + self.transfer_seconds(turn.segment, ceilings, play[0].0)
                    + extra(turn.segment)
            };
            self.finish_time(&self.turns(segmentation, plays), &seconds)
        };
        if rows < 2 || !overlap { time(1) } else { time(1).min(time(2)) }
    }
}

/// Bytes of weights among allocations.
fn weights(allocations: &[Allocation]) -> u64 {
    let weights = allocations.iter().filter(|item| item.kind == AllocationKind::Weights);
    weights.map(|item| item.bytes).sum()
}

#[cfg(test)]
mod tests;
