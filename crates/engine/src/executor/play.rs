//! Playing a step: choosing a segmentation, cutting halves, submitting segments in turn, and playing the
//! step again where a device fails that the plan can do without.

use super::balance::{Balancer, Choice};
use super::outage::can_replay;
use super::{Balance, Executor, Shares};
use pianola_plan::{
    Ceilings, DeviceError, LogitsTo, OverlapTimes, PAGE_TOKENS, Plan, SLOTS, Step, TensorId, Turn,
    WAIT_LIMIT,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a device that has failed is waited for: what it still does belongs to a play that is given up.
const FAILED_LIMIT: Duration = Duration::from_secs(1);

/// A device's failure.
struct Failed {
    device: usize,
    error: DeviceError,
}

impl Balance {
    /// For a plan in which devices may take products over from steps of `least_rows` rows on; none
    /// where there is nothing to choose, or where a device could not be measured. `fixed` says that the
    /// last segmentation is played whatever it takes.
    pub fn of(
        plan: &Arc<Plan>,
        ceilings: &[Ceilings],
        least_rows: usize,
        (fixed, overlap): (bool, bool),
    ) -> Option<Balance> {
        let last = plan.segmentations.len() - 1;
        let known = ceilings.iter().all(Ceilings::is_known);
        let shares = match (last, fixed, known) {
            (0, _, _) | (_, false, false) => return None,
            (_, true, _) => Shares::Fixed(Choice { segmentation: last, halves: overlap }),
            (_, false, true) => {
                Shares::Measured(Balancer::new(plan.clone(), ceilings.to_vec(), overlap))
            }
        };
        Some(Balance { least_rows, shares })
    }
}

impl Executor {
    /// Submits a step, whole or in halves.
    pub(super) fn submit(&mut self, step: &Step, logits: LogitsTo) -> Result<(), DeviceError> {
        let choice = self.choose(step);
        let slot = self.next_slot;
        self.timeline.step += 1;
        let Err(Failed { device, error }) = self.play_by(choice, step, logits) else {
            self.succeed(choice);
            return Ok(());
        };
        let drained = self.drain(device);
        if !can_replay(&error) || !self.can_do_without(device) {
            return Err(error);
        }
        drained?;
        self.leave_out(device, &error);
        self.next_slot = slot;
        self.play_by(Choice::PLACED, step, logits).map_err(|Failed { device, error }| {
            // The error is the step's; what the drain finds besides adds nothing to it.
            let _ = self.drain(device);
            error
        })
    }

    /// Waits until nothing is under way any more, after device `failed` did not do its part. Errors of
    /// devices that the plan can do without belong to the play that has failed.
    fn drain(&mut self, failed: usize) -> Result<(), DeviceError> {
        let mut result = Ok(());
        for (device, slot) in
            (0..self.recordings.len()).flat_map(|device| (0..SLOTS).map(move |slot| (device, slot)))
        {
            let limit = if device == failed { FAILED_LIMIT } else { WAIT_LIMIT };
            let waited = self.recordings[device].wait(slot, limit);
            if result.is_ok() && device != failed && !self.can_do_without(device) {
                result = waited;
            }
        }
        self.timeline.abandon();
        result
    }

    /// How to play a step.
    fn choose(&mut self, step: &Step) -> Choice {
        if std::mem::take(&mut self.keep_whole) {
            return Choice::PLACED;
        }
        let lanes = step.is_one_row_per_sequence();
        let offered = |balance: &&Balance| !lanes && step.rows.len() >= balance.least_rows;
        if self.balance.as_ref().filter(offered).is_none() {
            return Choice { halves: self.pays_in_halves(step), ..Choice::PLACED };
        }
        let now = Instant::now();
        let count = self.plan.segmentations.len();
        let usable: Vec<bool> = (0..count).map(|index| self.is_usable(index, now)).collect();
        match self.balance.as_mut().map(|balance| &mut balance.shares) {
            Some(Shares::Measured(balancer)) => balancer.choose(step, &usable),
            Some(Shares::Fixed(choice)) if usable[choice.segmentation] => *choice,
            _ => Choice::PLACED,
        }
    }

    /// Whether the first segmentation has no segment on a device.
    pub(super) fn can_do_without(&self, device: usize) -> bool {
        let mut first = self.plan.segmentations[0].segments.clone();
        !first.any(|segment| self.plan.segments[segment].device.0 == device)
    }

    /// Whether a segmentation has no segment on a device that is left out.
    fn is_usable(&self, segmentation: usize, now: Instant) -> bool {
        let mut segments = self.plan.segmentations[segmentation].segments.clone();
        !segments.any(|segment| self.outages.is_out(self.plan.segments[segment].device.0, now))
    }

    /// Does without a device for a while.
    fn leave_out(&mut self, device: usize, error: &DeviceError) {
        if self.outages.fail(device, Instant::now()) {
            let name = &self.plan.devices[device].name;
            self.tell(&format!(
                "{error}; the step is computed without {name}, which is tried again later"
            ));
        }
    }

    /// Whether a segmentation has a segment on a device.
    fn uses(&self, segmentation: usize, device: usize) -> bool {
        let mut segments = self.plan.segmentations[segmentation].segments.clone();
        segments.any(|segment| self.plan.segments[segment].device.0 == device)
    }

    /// Takes in that a step went well.
    fn succeed(&mut self, choice: Choice) {
        for device in 0..self.recordings.len() {
            let used = self.uses(choice.segmentation, device) && self.can_do_without(device);
            if used && self.outages.succeed(device) {
                let name = &self.plan.devices[device].name;
                self.tell(&format!("{name} works again"));
            }
        }
        self.tell_made_up_for();
    }

    /// Tells what recordings found while they played, once what they played was waited for.
    pub(super) fn tell_notices(&mut self) {
        for device in 0..self.recordings.len() {
            if let Some(line) = self.recordings[device].take_notice() {
                self.tell(&line);
            }
        }
    }

    /// Takes in how long the segments of the last step took, once it was waited for.
    pub(super) fn take_times(&mut self) {
        let Executor { timeline, balance, .. } = self;
        let step = timeline.step;
        timeline.take_closed(&mut |span| {
            if let Some(Balance { shares: Shares::Measured(balancer), .. }) = balance
                && span.step == step
            {
                balancer.record(span.segment, (span.rows, span.context), span.end - span.start);
            }
        });
    }

    /// Tells once of each device that failed while its recording went on by itself.
    fn tell_made_up_for(&mut self) {
        for device in 0..self.recordings.len() {
            if let Some((_, reason)) = self.recordings[device].made_up_for()
                && self.outages.notice(device)
            {
                let name = &self.plan.devices[device].name;
                self.tell(&format!("{reason}; the processor computes in place of {name}"));
            }
        }
    }

    pub(super) fn tell(&self, line: &str) {
        self.warn.iter().for_each(|warn| warn(line));
    }

    /// Submits all segments of a step.
    fn play_by(&mut self, choice: Choice, step: &Step, logits: LogitsTo) -> Result<(), Failed> {
        if !choice.halves || step.rows.len() < 2 {
            let slot = self.take_slot(choice)?;
            self.played = [(slot, step.logits.len()), (slot, 0)];
            return self.run(choice.segmentation, &[(slot, step)], logits);
        }
        let halves = std::mem::take(&mut self.halves);
        let [mut first, mut second] = halves;
        cut(step, &mut first, &mut second);
        let mut run = || {
            let slots = [self.take_slot(choice)?, self.take_slot(choice)?];
            self.played = [(slots[0], first.logits.len()), (slots[1], second.logits.len())];
            self.run(choice.segmentation, &[(slots[0], &first), (slots[1], &second)], logits)
        };
        let result = run();
        self.halves = [first, second];
        result
    }

    /// The slot that is next, once what it played is done. A device that failed and that the play does
    /// not use is not waited for.
    fn take_slot(&mut self, choice: Choice) -> Result<usize, Failed> {
        let slot = self.next_slot;
        for device in 0..self.recordings.len() {
            if self.uses(choice.segmentation, device) || !self.outages.is_failed(device) {
                self.wait_for(device, slot)?;
            }
        }
        self.next_slot = (slot + 1) % SLOTS;
        Ok(slot)
    }

    /// Submits the segments of some plays in turn, each with what it receives.
    fn run(
        &mut self,
        segmentation: usize,
        plays: &[(usize, &Step)],
        logits: LogitsTo,
    ) -> Result<(), Failed> {
        let (plan, turns) = (self.plan.clone(), self.turns.clone());
        for &Turn { play, segment: index } in &turns[segmentation][plays.len() - 1] {
            let ((slot, step), segment) = (plays[play], &plan.segments[index]);
            if plan.is_idle(index, step) {
                continue;
            }
            let device = segment.device.0;
            for transfer in &segment.receives {
                let from = plan.segments[transfer.from].device.0;
                self.pass(slot, transfer.tensor, (from, device), step)?;
            }
            if plan.devices.len() > 1 {
                let context = step.rows.iter().map(|row| row.position as usize + 1).max();
                let size = (step.rows.len(), context.unwrap_or(1));
                self.timeline.begin(device, slot, index, size);
            }
            let submitted = self.recordings[device].submit(index, slot, step, logits);
            submitted.map_err(|error| Failed { device, error })?;
            if !plan.devices[device].asynchronous {
                self.timeline.end(device, slot);
            }
        }
        // What a device fails at that the plan can do without, fails in the step that it was asked for.
        for device in 0..self.recordings.len() {
            if segmentation > 0 && self.can_do_without(device) {
                plays.iter().try_for_each(|&(slot, _)| self.wait_for(device, slot))?;
            }
        }
        Ok(())
    }

    /// Passes a tensor from one device to another.
    fn pass(
        &mut self,
        slot: usize,
        tensor: TensorId,
        (from, to): (usize, usize),
        step: &Step,
    ) -> Result<(), Failed> {
        self.wait_for(from, slot)?;
        let values = self.plan.rows(tensor, step) * self.plan.graph.tensor(tensor).width;
        let rows = &mut self.transfer[..values];
        let exported = self.recordings[from].export(slot, tensor, rows);
        exported.map_err(|error| Failed { device: from, error })?;
        let imported = self.recordings[to].import(slot, tensor, rows);
        imported.map_err(|error| Failed { device: to, error })
    }

    /// Waits for what a device was given for a slot. Only what succeeds has a time.
    fn wait_for(&mut self, device: usize, slot: usize) -> Result<(), Failed> {
        let waited = self.recordings[device].wait(slot, WAIT_LIMIT);
        waited.map_err(|error| Failed { device, error })?;
        self.timeline.end(device, slot);
        Ok(())
    }

    /// Waits for the last play.
    pub(super) fn wait(&mut self) -> Result<(), DeviceError> {
        for (slot, _) in self.played {
            for device in 0..self.recordings.len() {
                if !self.outages.is_failed(device) {
                    self.wait_for(device, slot).map_err(|failed| {
                        self.timeline.abandon();
                        failed.error
                    })?;
                }
            }
        }
        self.take_times();
        self.tell_notices();
        Ok(())
    }

    /// Whether a step is faster in two halves, by the plan's prediction. A step without logits stays whole:
    /// nobody waits for it, and the next one overlaps with it.
    fn pays_in_halves(&mut self, step: &Step) -> bool {
        let Some(ceilings) = &self.ceilings else { return false };
        if step.logits.is_empty() || step.rows.len() < 2 {
            return false;
        }
        self.sequences.clear();
        self.sequences.extend(
            step.runs().map(|run| (run.len(), step.rows[run.end - 1].position as usize + 1)),
        );
        // The prediction hardly changes from token to token.
        let tokens: usize = step.rows.iter().map(|row| row.position as usize).sum();
        let pages = tokens / (step.rows.len() * PAGE_TOKENS);
        let asked = [step.rows.len(), self.sequences.len(), pages];
        if self.predicted.is_none_or(|(known, _)| known != asked) {
            let times = OverlapTimes::predict(&self.plan, 0, ceilings, &self.sequences);
            self.predicted = Some((asked, times.pays()));
        }
        self.predicted.is_some_and(|(_, pays)| pays)
    }
}

/// Writes the rows of a step in two halves.
fn cut(step: &Step, first: &mut Step, second: &mut Step) {
    first.clear();
    second.clear();
    let mut wanted = step.logits.iter().peekable();
    for (index, row) in step.rows.iter().enumerate() {
        let logits = wanted.next_if(|&&at| at as usize == index).is_some();
        let half = if index < step.rows.len() / 2 { &mut *first } else { &mut *second };
        half.push(row.token, row.sequence, row.position, logits);
    }
}
