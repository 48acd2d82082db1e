//! The engine's side of a service.

use super::{Reopen, Report};
use crate::error::EngineError;
use crate::load::Engine;
use crate::request::{EmbedRequest, Event, EventSink, Request, RequestId};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, OnceLock};

/// What the engine's thread is asked to do.
pub(super) enum Command {
    Submit { id: RequestId, task: Task, sink: EventSink },
    Cancel { id: RequestId },
    Report { reply: Sender<Result<Report, EngineError>> },
    Stop,
}

/// What is submitted.
pub(super) enum Task {
    Generate(Box<Request>),
    Embed(EmbedRequest),
}

/// How often a device may be lost without a step between that succeeded.
const MOST_LOSSES: usize = 3;

pub(super) struct Worker {
    /// None once its device is lost for good.
    engine: Option<Engine>,
    inbox: Receiver<Command>,
    reopen: Option<Reopen>,
    /// Losses since the last step that succeeded.
    losses: usize,
    lost: Arc<OnceLock<String>>,
}

impl Worker {
    pub fn new(
        engine: Engine,
        inbox: Receiver<Command>,
        reopen: Option<Reopen>,
        lost: Arc<OnceLock<String>>,
    ) -> Worker {
        Worker { engine: Some(engine), inbox, reopen, losses: 0, lost }
    }

    pub fn run(mut self) {
        loop {
            // Waits only if there is nothing else to do.
            let command = match self.engine.as_ref().is_some_and(Engine::is_busy) {
                true => self.inbox.try_recv().ok(),
                false => self.inbox.recv().ok().or(Some(Command::Stop)),
            };
            match command {
                Some(Command::Stop) => return,
                Some(command) => self.obey(command),
                None => self.step(),
            }
        }
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
                let _ = reply.send(self.engine().map(|engine| engine.report()));
                // However many reports are asked for, requests get on.
                self.step();
            }
            Command::Stop => {}
        }
    }

    /// The engine, or the error that says it is lost.
    fn engine(&mut self) -> Result<&mut Engine, EngineError> {
        let reason = self.lost.get().cloned().unwrap_or_default();
        self.engine.as_mut().ok_or(EngineError::DeviceLost(reason))
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
    }

    /// Opens the device again and continues there, or tells all requests that it is lost.
    fn recover(&mut self, error: &EngineError) {
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
        let reason = self.lost.get_or_init(|| reason).clone();
        pending.fail(&|| EngineError::DeviceLost(reason.clone()));
    }
}

impl Engine {
    fn report(&self) -> Report {
        let (waiting, running) = self.queue_lengths();
        Report { waiting, running, counters: self.counters(), cache: self.cache_use() }
    }
}
