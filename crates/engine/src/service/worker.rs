//! The engine's side of a service.

use super::info::device_use;
use super::status::Status;
use super::{BusyTime, Reopen, Report};
use crate::error::EngineError;
use crate::load::Engine;
use crate::request::{EmbedRequest, Event, EventSink, Request, RequestId};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// What the engine's thread is asked to do.
pub(super) enum Command {
    Submit {
        id: RequestId,
        task: Task,
        sink: EventSink,
    },
    Cancel {
        id: RequestId,
    },
    Report {
        reply: Sender<Result<Report, EngineError>>,
    },
    /// The [`Status`] has changed.
    Wake,
}

/// What is submitted.
pub(super) enum Task {
    Generate(Box<Request>),
    Embed(EmbedRequest),
}

/// How often a device may be lost without a step between that succeeded.
const MOST_LOSSES: usize = 3;

/// How old the published use of the KV pages may be while steps are short: counting the pages walks the
/// whole prefix tree, which is too much work for every step.
const CACHE_USE_AGE: Duration = Duration::from_millis(50);

pub(super) struct Worker {
    /// None once its device is lost for good.
    engine: Option<Engine>,
    inbox: Receiver<Command>,
    reopen: Option<Reopen>,
    /// Losses since the last step that succeeded.
    losses: usize,
    status: Arc<Status>,
    pub(super) started: Instant,
    /// Seconds that plays have taken, of all engines there were.
    played_seconds: f64,
    /// Those of the engine that are part of it.
    counted_seconds: f64,
    /// The last report, and when its KV pages were counted.
    published: (Report, Instant),
}

impl Worker {
    pub fn new(
        engine: Engine,
        inbox: Receiver<Command>,
        reopen: Option<Reopen>,
        status: Arc<Status>,
    ) -> Worker {
        let started = Instant::now();
        let report = Report { cache: engine.cache_use(), ..Report::default() };
        status.publish(report);
        Worker {
            engine: Some(engine),
            inbox,
            reopen,
            losses: 0,
            status,
            started,
            played_seconds: 0.0,
            counted_seconds: 0.0,
            published: (report, started),
        }
    }

    pub fn run(mut self) {
        while !self.status.is_stopping() {
            let is_busy = self.engine.as_ref().is_some_and(Engine::is_busy);
            let measures = self.engine.is_some() && self.status.wants_ceiling();
            // Waits only if there is nothing else to do.
            let command = match is_busy || measures {
                true => self.inbox.try_recv().ok(),
                false => match self.inbox.recv() {
                    Ok(command) => Some(command),
                    // Nobody is left who could ask for anything.
                    Err(_) => break,
                },
            };
            match command {
                Some(command) => self.obey(command),
                None if is_busy => self.step(),
                None => self.measure_ceiling(),
            }
            self.publish();
        }
        self.tell_all();
    }

    /// Tells every request that there will be no answer.
    fn tell_all(&mut self) {
        self.status.end();
        let sinks = self.engine.as_mut().map(|engine| std::mem::take(&mut engine.sinks));
        let running = sinks.into_iter().flat_map(std::collections::HashMap::into_values);
        let submitted = self.inbox.try_iter().filter_map(|command| match command {
            Command::Submit { sink, .. } => Some(sink),
            _ => None,
        });
        for mut sink in running.chain(submitted) {
            let _ = sink(Event::Failed(EngineError::Stopped));
        }
    }

    /// Measures what one sequence could reach at best.
    fn measure_ceiling(&mut self) {
        let Some(engine) = &self.engine else { return };
        self.status.set_ceiling(engine.generation_ceiling());
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit { id, task, mut sink } => {
                if let Err(error) = self.submit(id, task) {
                    let _ = sink(Event::Failed(error));
                } else if let Some(engine) = &mut self.engine {
                    engine.set_sink(id, sink);
                }
            }
            Command::Cancel { id } => {
                self.engine.as_mut().and_then(|engine| engine.cancel(id));
            }
            Command::Report { reply } => {
                let _ = reply.send(self.report());
                // However many reports are asked for, requests get on.
                self.step();
            }
            Command::Wake => {}
        }
    }

    /// The engine, or the error that says it is lost.
    fn engine(&mut self) -> Result<&mut Engine, EngineError> {
        self.status.check()?;
        self.engine.as_mut().ok_or(EngineError::Stopped)
    }

    fn report(&mut self) -> Result<Report, EngineError> {
        self.count_seconds();
        let wall_seconds = self.started.elapsed().as_secs_f64();
        let busy = BusyTime { seconds: self.played_seconds, wall_seconds };
        let engine = self.engine()?;
        let (waiting, running) = engine.queue_lengths();
        let (counters, cache) = (engine.counters(), engine.cache_use());
        let devices = device_use(engine);
        Ok(Report { waiting, running, counters, cache, busy, devices })
    }

    /// Publishes how the engine is doing, for those who do not wait for the next step.
    fn publish(&mut self) {
        self.count_seconds();
        let Some(engine) = &self.engine else { return };
        let (before, counted_at) = self.published;
        let counts = !engine.is_busy() || counted_at.elapsed() > CACHE_USE_AGE;
        let (cache, counted_at) = match counts {
            true => (engine.cache_use(), Instant::now()),
            false => (before.cache, counted_at),
        };
        let (waiting, running) = engine.queue_lengths();
        let wall_seconds = self.started.elapsed().as_secs_f64();
        let busy = BusyTime { seconds: self.played_seconds, wall_seconds };
        let (counters, devices) = (engine.counters(), device_use(engine));
        let report = Report { waiting, running, counters, cache, busy, devices };
        self.published = (report, counted_at);
        self.status.publish(report);
    }

    /// Adds the plays since the last call. The engine's own count goes back where its draft model is
    /// given up.
    fn count_seconds(&mut self) {
        let now = self.engine.as_ref().map_or(0.0, Engine::play_seconds);
        self.played_seconds += (now - self.counted_seconds).max(0.0);
        self.counted_seconds = now;
    }

    fn submit(&mut self, id: RequestId, task: Task) -> Result<(), EngineError> {
        let engine = self.engine()?;
        match task {
            Task::Generate(request) => engine.submit_as(id, *request),
            Task::Embed(request) => engine.submit_embedding_as(id, request),
        }
    }

    fn step(&mut self) {
        let Some(engine) = &mut self.engine else { return };
        match engine.step() {
            Ok(()) => self.losses = 0,
            Err(error) if engine.is_lost() => self.recover(&error),
            // Every request that ran was told.
            Err(_) => {}
        }
        // Those who wait for the events may have no core of their own.
        std::thread::yield_now();
    }

    /// Opens the device again and continues there, or tells all requests that it is lost.
    fn recover(&mut self, error: &EngineError) {
        self.count_seconds();
        self.counted_seconds = 0.0;
        // What the old engine still holds of the device goes first.
        let Some(pending) = self.engine.take().map(Engine::into_pending) else { return };
        self.losses += 1;
        let reopened = match &mut self.reopen {
            Some(reopen) if self.losses <= MOST_LOSSES => Some(reopen()),
            _ => None,
        };
        let reason = match reopened {
            Some(Ok(mut engine)) => {
                engine.adopt(pending);
                self.engine = Some(engine);
                return;
            }
            Some(Err(again)) => format!("{error}; opening it again failed: {again}"),
            None => error.to_string(),
        };
        let reason = self.status.lose(reason);
        pending.fail(&|| EngineError::DeviceLost(reason.to_string()));
    }
}

impl Drop for Worker {
    /// Also where a sink or a kernel panicked.
    fn drop(&mut self) {
        self.status.end();
    }
}
