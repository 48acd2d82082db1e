//! The host's side of a recording: it sends jobs to the worker's thread and waits for them.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pianola_plan::{DeviceError, LogitsTo, Plan, PlayStatistics, Recording, SLOTS, Step, TensorId};

use super::arena::Arena;
use super::kv::PageTables;
use super::link;
use super::options::{Clock, Fallback};
use super::packages::Kernels;
use super::status::{NpuCounters, Status};
use super::worker::{Worker, lock};

/// A job of the worker.
type Task = Box<dyn FnOnce(&mut Worker) + Send>;

/// A plan's part on the NPU. A thread of its own owns the driver's objects, weights and KV pages.
pub struct NpuRecording {
    pub(super) plan: Arc<Plan>,
    pub(super) kernels: Arc<Kernels>,
    pub(super) arenas: Arc<Vec<Mutex<Arena>>>,
    device: String,
    fallback: Fallback,
    clock: Arc<dyn Clock>,
    status: Arc<Mutex<Status>>,
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
    /// What was submitted for each slot and not waited for.
    pending: [VecDeque<Receiver<Result<(), DeviceError>>>; SLOTS],
    /// The worker's, for checks of steps.
    tables: PageTables,
    /// A row of logits, for whoever reads it here.
    logits: Vec<f32>,
    statistics: PlayStatistics,
}

/// What a recording knows besides its worker.
pub(super) struct RecordingParts {
    pub device: String,
    pub fallback: Fallback,
    pub clock: Arc<dyn Clock>,
}

impl NpuRecording {
    pub(super) fn new(mut worker: Worker, parts: RecordingParts) -> NpuRecording {
        let RecordingParts { device, fallback, clock } = parts;
        let (plan, arenas) = (worker.plan.clone(), worker.arenas.clone());
        let (kernels, status) = (worker.link.kernels.clone(), worker.link.status());
        let tables = worker.kv.tables.clone();
        let (tasks, inbox) = channel::<Task>();
        let work = move || inbox.into_iter().for_each(|task| task(&mut worker));
        NpuRecording {
            plan,
            kernels,
            arenas,
            device,
            fallback,
            clock,
            status,
            tasks: Some(tasks),
            thread: Some(std::thread::spawn(work)),
            pending: Default::default(),
            tables,
            logits: Vec::new(),
            statistics: PlayStatistics::default(),
        }
    }

    /// What was computed where, and what failed.
    pub fn counters(&self) -> NpuCounters {
        link::lock(&self.status).counters.clone()
    }

    /// Sends a job; the answer is its result.
    fn send<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Worker) -> T + Send + 'static,
    ) -> Receiver<T> {
        let (reply, answer) = channel();
        // Whoever does not wait for an answer has dropped its receiver.
        let task: Task = Box::new(move |worker| drop(reply.send(task(worker))));
        if let Some(tasks) = &self.tasks {
            // A thread that has ended shows in the answer.
            let _ = tasks.send(task);
        }
        answer
    }

    /// Sends a job and waits for its result.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Worker) -> T + Send + 'static,
    ) -> Result<T, DeviceError> {
        self.send(task).recv().map_err(|_| self.ended())
    }

    fn ended(&self) -> DeviceError {
        DeviceError::Failed {
            device: self.device.clone(),
            what: "its thread".to_string(),
            reason: "it ended by a panic, which standard error shows".to_string(),
        }
    }

    /// Whether a step fits the plan and its pages.
    pub(super) fn check(&self, step: &Step) -> Result<(), DeviceError> {
        step.check(&self.plan, &|group, sequence, index| {
            self.tables.is_mapped(group, sequence, index)
        })
    }

    /// Whether a tensor has a place in the arena with room for so many rows.
    pub(super) fn check_rows(&self, tensor: TensorId, rows: usize) -> Result<(), DeviceError> {
        let spec = self.plan.graph.tensor(tensor);
        match self.plan.views[tensor.0].is_some() && rows <= self.plan.max_rows(spec.rows) {
            true => Ok(()),
            false => Err(DeviceError::BadStep(format!("{} has no {rows} rows", spec.name))),
        }
    }

    /// The same for so many values.
    pub(super) fn check_values(&self, tensor: TensorId, values: usize) -> Result<(), DeviceError> {
        self.check_rows(tensor, values / self.plan.graph.tensor(tensor).width.max(1))
    }

    /// Waits until a slot's jobs are done.
    fn finish(&mut self, slot: usize, limit: Duration) -> Result<(), DeviceError> {
        let end = Instant::now() + limit;
        let mut result = Ok(());
        while let Some(done) = self.pending[slot].front() {
            let answer = done.recv_timeout(end.saturating_duration_since(Instant::now()));
            let answer = match answer {
                Ok(answer) => answer,
                Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
                Err(RecvTimeoutError::Timeout) => {
                    // What is still computed belongs to a play that is given up: its results are
                    // dropped, and the slot is free again once the worker is through with it.
                    self.pending[slot].clear();
                    let through = self.send(|_| Ok(()));
                    self.pending[slot].push_back(through);
                    return Err(DeviceError::Timeout {
                        device: self.device.clone(),
                        during: "a segment".to_string(),
                        seconds: limit.as_secs(),
                    });
                }
            };
            self.pending[slot].pop_front();
            result = result.and(answer);
        }
        result
    }

    fn set_page(&mut self, group: usize, sequence: usize, index: usize, page: Option<u32>) {
        self.tables.set(group, sequence, index, page);
        // In order with the jobs, which read the table as it was when they were sent.
        drop(self.send(move |worker| worker.kv.tables.set(group, sequence, index, page)));
    }
}

impl Drop for NpuRecording {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // A panic has been written to standard error already.
            let _ = thread.join();
        }
    }
}

impl Recording for NpuRecording {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn submit(
        &mut self,
        segment: usize,
        slot: usize,
        step: &Step,
        _logits: LogitsTo,
    ) -> Result<(), DeviceError> {
        self.check(step)?;
        if self.fallback == Fallback::Report
            && let Some(failure) = link::lock(&self.status).blocked(self.clock.now())
        {
            return Err(failure.error());
        }
        let step = step.clone();
        let done = self.send(move |worker| worker.play(segment, slot, &step));
        self.pending[slot].push_back(done);
        self.statistics.plays += 1;
        self.statistics.submits += 1;
        self.statistics.dispatches += self.plan.segments[segment].ops.len() as u64;
        Ok(())
    }

    fn wait(&mut self, slot: usize, limit: Duration) -> Result<(), DeviceError> {
        let start = Instant::now();
        let result = self.finish(slot, limit);
        let seconds = start.elapsed().as_secs_f64();
        self.statistics.seconds += seconds;
        self.statistics.waited_seconds += seconds;
        result
    }

    fn export(
        &mut self,
        slot: usize,
        tensor: TensorId,
        rows: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.check_values(tensor, rows.len())?;
        lock(&self.arenas, slot).read(tensor, rows);
        Ok(())
    }

    fn import(&mut self, slot: usize, tensor: TensorId, rows: &[f32]) -> Result<(), DeviceError> {
        self.check_values(tensor, rows.len())?;
        if self.pending[slot].is_empty() {
            lock(&self.arenas, slot).scatter(tensor, rows);
            return Ok(());
        }
        // The tensor's place may still be another's while earlier segments of the slot play.
        let rows = rows.to_vec();
        drop(self.send(move |worker| lock(&worker.arenas, slot).scatter(tensor, &rows)));
        Ok(())
    }

    fn logits(&mut self, slot: usize, index: usize) -> &mut [f32] {
        let tensor = self.plan.graph.logits.expect("checked by the planner");
        let arena = lock(&self.arenas, slot);
        self.logits.clear();
        self.logits.extend_from_slice(arena.row(tensor, index));
        drop(arena);
        &mut self.logits
    }

    fn map_page(&mut self, group: usize, sequence: usize, index: usize, page: u32) {
        let pages = self.plan.kv_pages[group];
        assert!((page as usize) < pages, "page {page} of {pages}");
        self.set_page(group, sequence, index, Some(page));
    }

    fn unmap_page(&mut self, group: usize, sequence: usize, index: usize) {
        self.set_page(group, sequence, index, None);
    }

    fn set_interrupt(&mut self, flag: Arc<AtomicBool>) {
        drop(self.send(move |worker| worker.interrupt = Some(flag)));
    }

    fn made_up_for(&self) -> Option<(u64, String)> {
        let status = link::lock(&self.status);
        let NpuCounters { on_host, failures, last_failure, .. } = &status.counters;
        (*on_host > 0).then(|| (*failures, last_failure.clone().unwrap_or_default()))
    }

    fn statistics(&self) -> PlayStatistics {
        self.statistics
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn std::any::Any {
        self
    }
}
