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
use crate::segment::Segment;
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

impl Plan {
    /// Adds the segmentations in which `device` computes products, as far as they pay. `ceilings` has
    /// one entry for each device of the plan so far; `speed` is the further device's. `shared` is what the
    /// other devices will take of the same memory.
    pub fn offer(
        &mut self,
        device: &dyn Device,
        (ceilings, speed): (&[Ceilings], Option<Ceilings>),
        shared: &[Allocation],
    ) {
        let spec = device.spec();
        let name = spec.name.clone();
        let declined = match device.takeover() {
            None => Err("it takes no products over"),
            Some(takeover) if speed.is_none() && !takeover.always && !device.is_emulated() => {
                Err("it could not be measured")
            }
            Some(_) if self.options.reproducible => {
                Err("which kernel computes a row would depend on the rows beside it")
            }
            Some(takeover) if !takeover.exact && self.options.numeric == Numeric::Exact => {
                Err("its products are not exact")
            }
            Some(takeover) => Ok(takeover),
        };
        let takeover = match declined {
            Ok(takeover) => takeover,
            Err(reason) => return self.remarks.push(format!("{name} is not used: {reason}")),
        };
        let before = self.clone();
        let parts = self.graph.parts();
        let (mut declined, mut copy) = (Vec::new(), 0);
        for (what, moved) in CHOICES {
            let mut trial = self.clone();
            let moves = |_: usize, op: &crate::PlanOp| {
                let product =
                    matches!(&op.kernel, crate::Kernel::Project(project) if !project.select);
                product && moved.contains(&before.part_of(&parts, op))
            };
            if !trial.add_segmentation(format!("{what} on {name}"), &spec, &moves) {
                continue;
            }
            match trial.verdict(device, takeover, (ceilings, speed), shared) {
                Ok(bytes) => {
                    self.add_segmentation(format!("{what} on {name}"), &spec, &moves);
                    copy = bytes;
                }
                Err(reason) => declined.push(format!("{what} are not offered to {name}: {reason}")),
            }
        }
        self.remarks.extend(declined);
        if self.segmentations.len() == before.segmentations.len() {
            return;
        }
        if device.is_emulated() {
            self.remarks.push(format!(
                "{name} has no speed of its own: nothing is predicted, and prompts always use it"
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
        (ceilings, speed): (&[Ceilings], Option<Ceilings>),
        shared: &[Allocation],
    ) -> Result<u64, String> {
        let id = DeviceId(self.devices.len() - 1);
        let mut needed = device.allocations(self, id).map_err(|error| error.to_string())?;
        let copy = weights(&needed);
        needed.extend(shared.iter().cloned());
        if !device.holds(&needed) {
            let copy = size_text(copy);
            return Err(format!("there is no memory for a second copy of their weights, {copy}"));
        }
        let Some(speed) = speed.filter(|_| !takeover.always) else { return Ok(copy) };
        let mut all = ceilings.to_vec();
        all.push(speed);
        let with = self.predicted(self.segmentations.len() - 1, &all, takeover, id);
        let without = self.predicted(0, &all, takeover, id);
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

    /// Shortest time of a chunk of a prompt, whole or in halves, with what passing rows to device
    /// `id` and back costs.
    fn predicted(
        &self,
        segmentation: usize,
        ceilings: &[Ceilings],
        takeover: Takeover,
        id: DeviceId,
    ) -> f64 {
        let rows = self.options.max_rows.min(self.options.context);
        let time = |plays: usize| {
            let sequences: Vec<(usize, usize)> =
                (1..=plays).map(|play| (rows / plays, rows * play / plays)).collect();
            let seconds = |turn: Turn| {
                let segment = &self.segments[turn.segment];
                let play = &sequences[turn.play..=turn.play];
                let extra = if segment.device == id { takeover.seconds_each } else { 0.0 };
                let passed = self.received_bytes(segment, play[0].0);
                // Copied out of one device's memory and into the other's.
                let copied = 2.0 * passed as f64 / ceilings[segment.device.0].bytes_per_second;
                self.segment_seconds(turn.segment, ceilings, play) + extra + copied
            };
            self.finish_time(&self.turns(segmentation, plays), &seconds)
        };
        if rows < 2 { time(1) } else { time(1).min(time(2)) }
    }

    fn received_bytes(&self, segment: &Segment, rows: usize) -> u64 {
        let width = |transfer: &crate::Transfer| self.graph.tensor(transfer.tensor).width as u64;
        4 * rows as u64 * segment.receives.iter().map(width).sum::<u64>()
    }
}

/// Bytes of weights among allocations.
fn weights(allocations: &[Allocation]) -> u64 {
    let weights = allocations.iter().filter(|item| item.kind == AllocationKind::Weights);
    weights.map(|item| item.bytes).sum()
}

#[cfg(test)]
mod tests;
