//! Recording command buffers for row counts, and submitting them.

use super::{Recorded, VulkanRecording, logit_bucket};
use crate::describe::GpuKind;
use crate::memory::Region;
use crate::policy::segments::{self, Piece};
use crate::program::{Body, Dispatch};
use ash::vk;
use pianola_plan::{BUCKETS, DeviceError, PlanOptions, Step, bucket};
use std::collections::BTreeMap;
use std::ops::Range;

impl VulkanRecording {
    /// Where a body of `rows` rows is cut: by the time its kernels will take at worst.
    fn cuts(&self, rows: u32, program: &[Dispatch]) -> Vec<Range<usize>> {
        let layer = |op: usize| self.plan.ops[op].name.split('.').nth(1).map(str::to_string);
        let mut launches = BTreeMap::<usize, f64>::new();
        program.iter().for_each(|dispatch| *launches.entry(dispatch.op).or_default() += 1.0);
        let mut before = None;
        let pieces: Vec<Piece> = program
            .iter()
            .map(|dispatch| {
                let cost = &self.plan.ops[dispatch.op].cost;
                let work = cost.work(rows as usize, 0, self.plan.options.context);
                let here = layer(dispatch.op);
                let cut = before.as_ref() != Some(&here);
                before = Some(here);
                let seconds = work.operations as f64 / (self.rate * segments::EFFICIENCY);
                Piece { seconds: seconds / launches[&dispatch.op], cut }
            })
            .collect();
        segments::segments(&pieces)
    }

    /// A command buffer of a program.
    pub(crate) fn record(
        &mut self,
        take: usize,
        program: &[Dispatch],
    ) -> Result<vk::CommandBuffer, DeviceError> {
        let set = self.takes[take].set;
        let launches = self.recorder.realise(&mut self.pipelines, program)?;
        let commands = self.recorder.allocate()?;
        self.recorder.write(commands, |recorder| {
            recorder.launches(commands, set, &launches, |_, _| ());
        })?;
        Ok(commands)
    }

    /// Records what a play of such a step needs and is not there yet.
    fn prepare(&mut self, take: usize, body: Body, logits: usize) -> Result<(), DeviceError> {
        if !self.takes[take].bodies.contains_key(&body) {
            let program = self.programmer(&self.tuning).body(body)?;
            let dispatches = program.len() as u32;
            // A single row is bound by memory, and short.
            let commands = match body.rows {
                1 => vec![self.record(take, &program)?],
                _ => {
                    let parts = self.cuts(body.rows, &program).into_iter();
                    parts
                        .map(|part| self.record(take, &program[part]))
                        .collect::<Result<Vec<_>, DeviceError>>()?
                }
            };
            self.takes[take].bodies.insert(body, Recorded { commands, dispatches });
        }
        if logits == 0 {
            return Ok(());
        }
        let wanted = logit_bucket(logits, &self.plan);
        if !self.takes[take].heads.contains_key(&wanted) {
            let program = self.programmer(&self.tuning).head(wanted)?;
            let dispatches = program.len() as u32;
            let recorded = Recorded { commands: vec![self.record(take, &program)?], dispatches };
            self.takes[take].heads.insert(wanted, recorded);
            let commands = self.recorder.allocate()?;
            let (from, to) = self.logits_of(wanted as usize);
            self.recorder.write(commands, |recorder| recorder.copy(commands, from, to))?;
            self.takes[take].copies.insert(wanted, commands);
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
        for take in 0..self.takes.len() {
            for rows in BUCKETS.map(|rows| rows as u32) {
                if (2..=most(max_rows)).contains(&rows) {
                    self.prepare(take, Body { rows, one_row_per_sequence: false }, 0)?;
                }
                if rows <= most(sequences) {
                    self.prepare(take, Body { rows, one_row_per_sequence: true }, 0)?;
                }
            }
            for logits in 1..=max_logit_rows {
                self.prepare(take, Body::SINGLE, logits)?;
                self.prepare_sampling(take, logits, true)?;
            }
        }
        Ok(())
    }

    /// The take that is next: done with what it played, and with all recorded that `step` needs.
    pub(crate) fn turn(&mut self, step: &Step) -> Result<usize, DeviceError> {
        // A forward pass that nobody sampled from is waited for, and its logits are lost.
        if let Some((take, _)) = self.sampler.forward.take() {
            self.submit_all(Some(take), &[])?;
        }
        let take = self.next;
        self.next = (self.next + 1) % self.takes.len();
        self.finish(take)?;
        // Both takes at once, so that only the first play of a row count pays for recording.
        for take in 0..self.takes.len() {
            self.prepare(take, Body::of(step), step.logits.len())?;
        }
        Ok(take)
    }

    /// Submits a play whose step is written, with its logits for the host: one submission, unless
    /// its body is cut.
    pub(super) fn launch(
        &mut self,
        take: usize,
        played: Body,
        logits: usize,
    ) -> Result<(), DeviceError> {
        let (body, head) = self.launch_parts(take, played, logits)?;
        match head {
            None => self.submit(Some(take), &[body]),
            Some(head) => {
                let copy = self.takes[take].copies[&logit_bucket(logits, &self.plan)];
                self.submit(Some(take), &[body, head, copy])
            }
        }
    }

    /// The same without a fence, and with the logits left where they are.
    pub(crate) fn launch_forward(
        &mut self,
        take: usize,
        played: Body,
        logits: usize,
    ) -> Result<(), DeviceError> {
        match self.launch_parts(take, played, logits)? {
            (body, None) => self.submit(None, &[body]),
            (body, Some(head)) => self.submit(None, &[body, head]),
        }
    }

    /// Submits all of a body but its last part, which it returns with the head, if there is one.
    fn launch_parts(
        &mut self,
        take: usize,
        played: Body,
        logits: usize,
    ) -> Result<(vk::CommandBuffer, Option<vk::CommandBuffer>), DeviceError> {
        let body = &self.takes[take].bodies[&played];
        self.statistics.dispatches += u64::from(body.dispatches);
        let (mut index, last) = (0, body.commands.len() - 1);
        while index < last {
            let commands = self.takes[take].bodies[&played].commands[index];
            self.submit(None, &[commands])?;
            index += 1;
        }
        let body = self.takes[take].bodies[&played].commands[last];
        if logits == 0 {
            return Ok((body, None));
        }
        let head = &self.takes[take].heads[&logit_bucket(logits, &self.plan)];
        self.statistics.dispatches += u64::from(head.dispatches);
        Ok((body, Some(head.commands[0])))
    }

    /// Regions of the first `rows` rows of logits, on the device and for the host.
    pub(crate) fn logits_of(&self, rows: usize) -> (Region, Region) {
        let tensor = self.plan.graph.logits.expect("checked by the planner");
        let view = self.plan.view(tensor);
        let offset = self.plan.arena.offsets[view.buffer] as u64;
        let bytes = (4 * rows * self.plan.graph.vocabulary) as u64;
        (self.resources.arena.slice(offset, bytes), self.logits.slice(0, bytes))
    }

    /// Submits up to three command buffers; with a take, its fence is signalled behind them.
    pub(crate) fn submit(
        &mut self,
        take: Option<usize>,
        list: &[vk::CommandBuffer],
    ) -> Result<(), DeviceError> {
        assert!((1..=3).contains(&list.len()));
        let infos: [vk::CommandBufferSubmitInfo<'_>; 3] = std::array::from_fn(|index| {
            let commands = list.get(index).copied().unwrap_or(list[0]);
            vk::CommandBufferSubmitInfo::default().command_buffer(commands)
        });
        self.submit_all(take, &infos[..list.len()])
    }

    /// The same for any number of them.
    pub(crate) fn submit_all(
        &mut self,
        take: Option<usize>,
        list: &[vk::CommandBufferSubmitInfo<'_>],
    ) -> Result<(), DeviceError> {
        let submit = [vk::SubmitInfo2::default().command_buffer_infos(list)];
        let fence = take.map_or(vk::Fence::null(), |take| self.takes[take].fence);
        self.gpu.submit(&submit, fence, "a play")?;
        if let Some(take) = take {
            self.takes[take].in_flight = true;
        }
        self.statistics.submits += 1;
        Ok(())
    }

    /// Waits until a take is done, and makes its fence usable again.
    pub(crate) fn finish(&mut self, take: usize) -> Result<(), DeviceError> {
        let take = &mut self.takes[take];
        if !take.in_flight {
            return Ok(());
        }
        self.gpu.wait(take.fence, "a play")?;
        take.in_flight = false;
        // SAFETY: signalled, and in no submission.
        unsafe { self.gpu.raw.reset_fences(&[take.fence]) }
            .map_err(|error| self.gpu.failure("resetting a fence", error))
    }

    /// Waits until nothing plays.
    pub fn idle(&mut self) -> Result<(), DeviceError> {
        (0..self.takes.len()).try_for_each(|take| self.finish(take))?;
        self.finished = self.statistics.plays;
        Ok(())
    }
}
