//! An engine on a thread of its own, for many callers at once.
//!
//! ```text
//! callers ──submit_to, cancel, embed──► thread: Engine::step, over and over
//!    ▲                                     │
//!    └──────────── EventSink ◄─────────────┘
//! ```
//!
//! Where the device is lost, the thread opens another engine, if it was told how
//! ([`Service::start_with`]), and requests go on there; else it refuses all requests from then on.

mod info;
mod status;
mod stream;
mod worker;

pub use info::{BusyTime, MOST_DEVICES, Report, ServiceInfo};
pub use stream::Stream;

use crate::embed::Pooling;
use crate::error::EngineError;
use crate::load::Engine;
use crate::request::{EmbedRequest, Event, EventSink, Request, RequestId};
use crate::scheduler::Limits;
use crate::text::Text;
use status::Status;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;
use worker::{Command, Task, Worker};

/// Opens an engine for the same model again, after its device was lost.
pub type Reopen = Box<dyn FnMut() -> Result<Engine, EngineError> + Send>;

/// An engine that serves requests. Clones serve the same engine, which stops when the last is
/// dropped. That waits for the step under way and until the devices are free again, unless it happens
/// on the engine's own thread, in a sink; [`Service::stop`] never waits.
#[derive(Clone)]
pub struct Service {
    shared: Arc<Shared>,
}

struct Shared {
    commands: Sender<Command>,
    text: Option<Arc<Text>>,
    info: ServiceInfo,
    limits: Limits,
    /// Requests submitted and not over.
    open: Arc<AtomicUsize>,
    ids: Arc<AtomicU64>,
    status: Arc<Status>,
    started: Instant,
    /// None once nobody is to wait for it.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Shared {
    /// Asks the thread to end after the step under way. Returns it, if it was not asked before.
    fn stop(&self) -> Option<JoinHandle<()>> {
        self.status.stop();
        // Wakes it up; one that has ended already needs no waking.
        let _ = self.commands.send(Command::Wake);
        self.thread.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Some(thread) = self.stop() else { return };
        // A sink may hold the last clone, and no thread can wait for its own end.
        if thread.thread().id() != std::thread::current().id() {
            // A thread that panicked has said so itself.
            let _ = thread.join();
        }
    }
}

/// A request that counts as open until its sink is dropped.
struct OpenRequest(Arc<AtomicUsize>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Service {
    /// Starts serving. If the device is lost, all requests fail from then on.
    pub fn start(engine: Engine) -> Service {
        Service::spawn(engine, None)
    }

    /// Starts serving. If the device is lost, `reopen` makes another engine for the same model, on
    /// which the requests under way go on.
    pub fn start_with(engine: Engine, reopen: Reopen) -> Service {
        Service::spawn(engine, Some(reopen))
    }

    fn spawn(engine: Engine, reopen: Option<Reopen>) -> Service {
        let (commands, inbox) = channel();
        let (limits, info) = (*engine.scheduler.limits(), ServiceInfo::of(&engine));
        let (text, ids) = (engine.text.clone(), engine.scheduler.ids());
        let status = Arc::new(Status::default());
        let worker = Worker::new(engine, inbox, reopen, status.clone());
        let started = worker.started;
        let thread = std::thread::spawn(move || worker.run());
        let (open, thread) = (Arc::default(), Mutex::new(Some(thread)));
        let shared = Shared { commands, text, info, limits, open, ids, status, started, thread };
        Service { shared: Arc::new(shared) }
    }

    /// Tokeniser and template; none if the model has no vocabulary of its own.
    pub fn text(&self) -> Option<&Text> {
        self.shared.text.as_deref()
    }

    /// The model, its devices and limits, as they were at the start.
    pub fn info(&self) -> &ServiceInfo {
        &self.shared.info
    }

    /// Why no request can be served any more: the device is lost for good, or the engine's thread
    /// has ended or was asked to. None while requests are served.
    pub fn is_lost(&self) -> Option<String> {
        self.shared.status.reason()
    }

    /// Ends the engine, for all clones, and returns at once. The step under way is played to its end,
    /// which may take seconds; then every request that waits or runs is told
    /// [`EngineError::Stopped`], and the engine's thread frees the devices and ends.
    pub fn stop(&self) {
        drop(self.shared.stop());
    }

    /// The most tokens a second that the devices' bandwidth and arithmetic allow for one sequence,
    /// over its first 128 tokens. None until it is known: the first call asks for a measurement,
    /// which takes some tenths of a second of the engine's thread and is made once nothing else is
    /// to be done. None for ever where a device cannot be measured.
    pub fn ceiling(&self) -> Option<f64> {
        let Shared { status, commands, .. } = &*self.shared;
        if status.ask_for_ceiling() {
            let _ = commands.send(Command::Wake);
        }
        status.ceiling()
    }

    /// Submits a request: `sink` is called with each of its events, on the engine's thread, and
    /// should not block, nor call what waits for that thread ([`Service::report`],
    /// [`Service::embed`]). What is wrong with the request is said here and now, as is that too many
    /// wait.
    pub fn submit_to(&self, request: Request, sink: EventSink) -> Result<RequestId, EngineError> {
        self.shared.limits.check(&request)?;
        self.send(Task::Generate(Box::new(request)), sink)
    }

    /// Submits a text to embed, likewise.
    pub fn submit_embedding_to(
        &self,
        request: EmbedRequest,
        sink: EventSink,
    ) -> Result<RequestId, EngineError> {
        self.shared.limits.check_prompt(&request.tokens)?;
        self.send(Task::Embed(request), sink)
    }

    fn send(&self, task: Task, mut sink: EventSink) -> Result<RequestId, EngineError> {
        let Shared { commands, limits, open, ids, status, .. } = &*self.shared;
        status.check()?;
        let entered = open.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |open| {
            (open < limits.max_open()).then_some(open + 1)
        });
        if entered.is_err() {
            return Err(EngineError::QueueFull { waiting: limits.queue });
        }
        let open = OpenRequest(open.clone());
        let sink: EventSink = Box::new(move |event| {
            let _counted = &open;
            sink(event)
        });
        let id = RequestId(ids.fetch_add(1, Ordering::Relaxed));
        let sent = commands.send(Command::Submit { id, task, sink });
        sent.map_err(|_| EngineError::Stopped)?;
        Ok(id)
    }

    /// Submits a request: its text comes out of the stream as it is generated.
    pub fn submit(&self, request: Request) -> Result<Stream, EngineError> {
        let (events, messages) = channel();
        let id = self.submit_to(request, stream::sink(events))?;
        Ok(Stream::new(id, messages, self.shared.commands.clone()))
    }

    /// Ends a request; its sink is told. Does nothing if it is over already.
    pub fn cancel(&self, id: RequestId) {
        // An engine that has stopped has no request to cancel.
        let _ = self.shared.commands.send(Command::Cancel { id });
    }

    /// The meaning of some tokens as a vector of length one; see [`Engine::embed`].
    pub fn embed(&self, tokens: Vec<u32>, pooling: Pooling) -> Result<Vec<f32>, EngineError> {
        let (reply, result) = channel();
        let sink: EventSink = Box::new(move |event| {
            let _ = match event {
                Event::Embedding(values) => reply.send(Ok(values)),
                Event::Failed(error) => reply.send(Err(error)),
                _ => Ok(()),
            };
            ControlFlow::Continue(())
        });
        self.submit_embedding_to(EmbedRequest { tokens, pooling, priority: 0, tenant: 0 }, sink)?;
        result.recv().map_err(|_| EngineError::Stopped)?
    }

    /// How the engine was doing after its last step, at once: never waits for the step under way.
    /// Requests are counted as of now. None once no request can be served any more.
    pub fn snapshot(&self) -> Option<Report> {
        let Shared { status, open, started, .. } = &*self.shared;
        status.check().ok()?;
        let mut report = status.published();
        let open = open.load(Ordering::SeqCst);
        report.running = report.running.min(open);
        report.waiting = open - report.running;
        // The step under way is not among the busy seconds, so neither is its time.
        if open == 0 {
            report.busy.wall_seconds = started.elapsed().as_secs_f64();
        }
        Some(report)
    }

    /// How the engine is doing. The engine's thread answers between two steps, so that the call waits
    /// for the one under way.
    pub fn report(&self) -> Result<Report, EngineError> {
        let (reply, result) = channel();
        let sent = self.shared.commands.send(Command::Report { reply });
        sent.map_err(|_| EngineError::Stopped)?;
        result.recv().map_err(|_| EngineError::Stopped)?
    }
}
