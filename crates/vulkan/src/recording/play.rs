//! Recording command buffers for row counts, and submitting them.

use super::{Recorded, VulkanRecording, logit_bucket};
use crate::busy::BusyClock;
use crate::describe::GpuKind;
use crate::memory::Region;
use crate::policy::submissions::{self, Piece};
use crate::program::{Body, Dispatch};
use crate::sampler::Sampler;
use crate::transfer::Direction;
use ash::vk;
use pianola_plan::{BUCKETS, DeviceError, LogitsTo, PlanOptions, Step, WAIT_LIMIT, bucket};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl VulkanRecording {
    /// Where a body of `rows` rows is cut: by the time its kernels will take at worst.
    fn cuts(&self, rows: u32, program: &[Dispatch]) -> Vec<Range<usize>> {
        let mut launches = BTreeMap::<usize, f64>::new();
        program.iter().for_each(|dispatch| *launches.entry(dispatch.op).or_default() += 1.0);
        let mut before = None;
        let pieces: Vec<Piece> = program
            .iter()
            .map(|dispatch| {
                let cost = &self.plan.ops[dispatch.op].cost;
                let work = cost.work(rows as usize, 0, self.plan.options.context);
                let layer = self.plan.ops[dispatch.op].layer;
                let cut = before != Some(layer);
                before = Some(layer);
                let seconds = work.operations as f64 / (self.rate * submissions::EFFICIENCY);
                Piece { seconds: seconds / launches[&dispatch.op], cut }
            })
            .collect();
        submissions::submissions(&pieces)
    }

    /// A command buffer of a program.
    pub(crate) fn record(
        &mut self,
        slot: usize,
        program: &[Dispatch],
    ) -> Result<vk::CommandBuffer, DeviceError> {
        let set = self.slots[slot].set;
        let launches = self.recorder.realise(&mut self.pipelines, program)?;
        let commands = self.recorder.allocate()?;
        self.recorder.write(commands, |recorder| {
            recorder.launches(commands, set, &launches, |_, _| ());
        })?;
        Ok(commands)
    }

    /// Records the command buffers that a play of this body needs and that do not exist yet.
    fn prepare(&mut self, slot: usize, body: Body, logits: usize) -> Result<(), DeviceError> {
        if !self.slots[slot].bodies.contains_key(&body) {
            let program = self.programmer(slot, &self.tuning).body(body)?;
            let dispatches = program.len() as u32;
            // A single row is bound by memory, and short.
            let parts = match (program.is_empty(), body.rows) {
                (true, _) => vec![],
                (false, 1) => std::iter::once(0..program.len()).collect(),
                _ => self.cuts(body.rows, &program),
            };
            let parts = parts.into_iter().map(|part| self.record(slot, &program[part]));
            let commands = parts.collect::<Result<Vec<_>, DeviceError>>()?;
            self.slots[slot].bodies.insert(body, Recorded { commands, dispatches });
        }
        if body == Body::single(body.segment) {
            self.prepare_chain(slot)?;
        }
        let wanted = logit_bucket(logits, &self.plan);
        self.prepare_moves(slot, body, wanted)?;
        if logits > 0 {
            self.prepare_head(slot, body.segment, wanted)?;
        }
        Ok(())
    }

    fn prepare_moves(&mut self, slot: usize, body: Body, wanted: u32) -> Result<(), DeviceError> {
        if self.plan.segments.len() == 1 || self.slots[slot].moves.contains_key(&(body, wanted)) {
            return Ok(());
        }
        let counts = [body.rows as usize, wanted as usize];
        let import = self.record_transfers(slot, body.segment, Direction::Import, counts)?;
        let export = self.record_transfers(slot, body.segment, Direction::Export, counts)?;
        self.slots[slot].moves.insert((body, wanted), [import, export]);
        Ok(())
    }

    fn prepare_head(
        &mut self,
        slot: usize,
        segment: usize,
        wanted: u32,
    ) -> Result<(), DeviceError> {
        if self.slots[slot].heads.contains_key(&(segment, wanted)) {
            return Ok(());
        }
        let program = self.programmer(slot, &self.tuning).head(segment, wanted)?;
        let dispatches = program.len() as u32;
        let commands = if program.is_empty() { vec![] } else { vec![self.record(slot, &program)?] };
        self.slots[slot].heads.insert((segment, wanted), Recorded { commands, dispatches });
        if !self.logits.is_empty() && !self.slots[slot].copies.contains_key(&wanted) {
            let commands = self.recorder.allocate()?;
            let (from, to) = self.logits_of(slot, wanted as usize);
            self.recorder.write(commands, |recorder| recorder.copy(commands, from, to))?;
            self.slots[slot].copies.insert(wanted, commands);
        }
        Ok(())
    }

    /// Records all that steps of this plan may need. Not on software drivers, where compiling takes
    /// longer than what it saves.
    pub(super) fn prepare_all(&mut self) -> Result<(), DeviceError> {
        if self.gpu.description().kind == GpuKind::Software {
            return Ok(());
        }
        let PlanOptions { max_rows, max_logit_rows, sequences, .. } = self.plan.options;
        let most = |rows: usize| bucket(rows).unwrap_or(max_rows) as u32;
        let segments: Vec<usize> = self.programmer(0, &self.tuning).segments().collect();
        for (slot, segment) in (0..self.slots.len())
            .flat_map(|slot| segments.iter().map(move |&segment| (slot, segment)))
        {
            for rows in BUCKETS.map(|rows| rows as u32) {
                let body = |one_row_per_sequence| Body { segment, rows, one_row_per_sequence };
                if (2..=most(max_rows)).contains(&rows) {
                    self.prepare(slot, body(false), 0)?;
                }
                if rows <= most(sequences) {
                    self.prepare(slot, body(true), 0)?;
                }
            }
            for logits in 1..=max_logit_rows {
                self.prepare(slot, Body::single(segment), logits)?;
                if !self.logits.is_empty() {
                    self.prepare_sampling(slot, logits, true)?;
                }
            }
        }
        Ok(())
    }

    /// Makes a slot ready for a segment: done with what it played, and with all recorded that
    /// `step` needs.
    pub(crate) fn ready(
        &mut self,
        segment: usize,
        slot: usize,
        step: &Step,
    ) -> Result<(), DeviceError> {
        self.finish(slot)?;
        // All slots at once, so that only the first play of a row count pays for recording.
        for slot in 0..self.slots.len() {
            self.prepare(slot, Body::of(segment, step), step.logits.len())?;
        }
        Ok(())
    }

    /// Submits a segment whose step is written: one submission, unless its body is cut. Without a
    /// fence where its logits wait for the sampler, whose submission has one.
    pub(super) fn launch(
        &mut self,
        segment: usize,
        slot: usize,
        step: &Step,
        logits: LogitsTo,
    ) -> Result<(), DeviceError> {
        let mut list = std::mem::take(&mut self.list);
        list.clear();
        self.note_unsettled(slot, step);
        let result = self.fill(segment, slot, step, &mut list).and_then(|()| {
            let wanted = step.logits.len();
            let head = self.plan.is_head(self.plan.segments[segment].ops.end - 1);
            let here = wanted > 0 && head && !self.samplers.is_empty();
            let moves = self.moves(segment, slot, step);
            list.extend(moves[1].map(info));
            match logits {
                LogitsTo::Sampler if here => {
                    let at = slot % self.samplers.len();
                    self.samplers[at].forward[slot] = Some(wanted);
                    return self.submit_list(None, &list);
                }
                LogitsTo::Host if here => {
                    let wanted = logit_bucket(wanted, &self.plan);
                    list.extend(self.slots[slot].copies.get(&wanted).map(|&copy| info(copy)));
                }
                _ => {}
            }
            self.submit_list(Some(slot), &list)
        });
        self.list = list;
        result
    }

    /// Copies that a segment receives and sends by.
    fn moves(&self, segment: usize, slot: usize, step: &Step) -> [Option<vk::CommandBuffer>; 2] {
        let wanted = logit_bucket(step.logits.len(), &self.plan);
        let body = Body::of(segment, step);
        self.slots[slot].moves.get(&(body, wanted)).copied().unwrap_or([None; 2])
    }

    /// Fills a list with the last part of a segment's body and its head, having submitted what
    /// comes before.
    pub(crate) fn fill(
        &mut self,
        segment: usize,
        slot: usize,
        step: &Step,
        list: &mut Vec<vk::CommandBufferSubmitInfo<'static>>,
    ) -> Result<(), DeviceError> {
        let played = Body::of(segment, step);
        list.extend(self.moves(segment, slot, step)[0].map(info));
        let by = self.played_by(slot, step);
        let recorded = self.slots[slot].body(&played, by);
        self.statistics.dispatches += u64::from(recorded.dispatches);
        let parts = recorded.commands.len();
        for part in 0..parts {
            list.push(info(self.slots[slot].body(&played, by).commands[part]));
            if part + 1 < parts {
                self.submit_list(None, list)?;
                list.clear();
            }
        }
        if !step.logits.is_empty() {
            let wanted = logit_bucket(step.logits.len(), &self.plan);
            let head = &self.slots[slot].heads[&(segment, wanted)];
            self.statistics.dispatches += u64::from(head.dispatches);
            list.extend(head.commands.iter().map(|&commands| info(commands)));
        }
        Ok(())
    }

    /// All rows of logits in the arena of a slot, as kernels bind them.
    pub(crate) fn logits_region(&self, slot: usize) -> Region {
        let view = self.plan.view(self.plan.graph.logits.expect("checked by the planner"));
        let buffer = &self.plan.buffers[view.buffer];
        let bytes = 4 * self.plan.max_rows(buffer.rows) * buffer.width;
        self.arena(slot).slice(self.plan.arena.offsets[view.buffer] as u64, bytes as u64)
    }

    /// Regions of the first `rows` rows of logits, on the device and for the host.
    pub(crate) fn logits_of(&self, slot: usize, rows: usize) -> (Region, Region) {
        let tensor = self.plan.graph.logits.expect("checked by the planner");
        let view = self.plan.view(tensor);
        let offset = self.plan.arena.offsets[view.buffer] as u64;
        let bytes = (4 * rows * self.plan.graph.vocabulary) as u64;
        let host = self.logits[slot % self.logits.len()].region;
        (self.arena(slot).slice(offset, bytes), host.slice(0, bytes))
    }

    /// Submits one command buffer; with a slot, its fence is signalled behind it.
    pub(crate) fn submit_one(
        &mut self,
        slot: Option<usize>,
        commands: vk::CommandBuffer,
    ) -> Result<(), DeviceError> {
        self.submit_list(slot, &[info(commands)])
    }

    /// The same for any number of them.
    pub(crate) fn submit_list(
        &mut self,
        slot: Option<usize>,
        list: &[vk::CommandBufferSubmitInfo<'_>],
    ) -> Result<(), DeviceError> {
        let timed = match &mut self.busy {
            Some(clock) if !list.is_empty() => clock.around(list),
            _ => Vec::new(),
        };
        let list = if timed.is_empty() { list } else { &timed };
        let submit = [vk::SubmitInfo2::default().command_buffer_infos(list)];
        let fence = slot.map_or(vk::Fence::null(), |slot| self.slots[slot].fence);
        self.gpu.submit(&submit, fence, "a play")?;
        if let Some(slot) = slot {
            self.slots[slot].in_flight = true;
            self.slots[slot].stamped = self.busy.as_ref().map_or(0, BusyClock::stamped);
        }
        self.statistics.submits += 1;
        Ok(())
    }

    /// Waits until a slot is done, and makes its fence usable again.
    pub(crate) fn finish(&mut self, slot: usize) -> Result<(), DeviceError> {
        self.finish_within(slot, WAIT_LIMIT)
    }

    /// Waits for a slot as long as nobody interrupts; then it is still in flight.
    pub(crate) fn await_interruptibly(&mut self, slot: usize) -> Result<(), DeviceError> {
        /// Far below what a person notices.
        const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
        let Some(flag) = &self.interrupt else { return Ok(()) };
        let fence = self.slots[slot].fence;
        let start = Instant::now();
        // Beyond the limit, [`VulkanRecording::finish`] says what is wrong.
        while self.slots[slot].in_flight && start.elapsed() < WAIT_LIMIT {
            if self.gpu.is_signalled_within(fence, BETWEEN_LOOKS, "a play")? {
                break;
            }
            if flag.load(Ordering::Relaxed) {
                return Err(DeviceError::Interrupted);
            }
        }
        self.statistics.waited_seconds += start.elapsed().as_secs_f64();
        Ok(())
    }

    pub(super) fn finish_within(
        &mut self,
        slot: usize,
        limit: Duration,
    ) -> Result<(), DeviceError> {
        // A forward pass without sampling after it: its logits are lost.
        let waits = |sampler: &Sampler| sampler.forward[slot].is_some();
        if let Some(at) = self.samplers.iter().position(waits) {
            self.samplers[at].forward[slot] = None;
            self.submit_list(Some(slot), &[])?;
        }
        if !self.slots[slot].in_flight {
            return Ok(());
        }
        let start = Instant::now();
        let fence = self.slots[slot].fence;
        self.gpu.wait(fence, limit, "a play")?;
        self.statistics.waited_seconds += start.elapsed().as_secs_f64();
        self.slots[slot].in_flight = false;
        // SAFETY: signalled, and in no submission.
        unsafe { self.gpu.raw.reset_fences(&[fence]) }
            .map_err(|error| self.gpu.failure("resetting a fence", error))?;
        self.count_busy(slot)?;
        self.settle(slot)
    }

    /// Waits until nothing plays.
    pub fn idle(&mut self) -> Result<(), DeviceError> {
        (0..self.slots.len()).try_for_each(|slot| self.finish(slot))?;
        self.finished = self.statistics.plays;
        Ok(())
    }
}

pub(crate) fn info(commands: vk::CommandBuffer) -> vk::CommandBufferSubmitInfo<'static> {
    vk::CommandBufferSubmitInfo::default().command_buffer(commands)
}
