//! An engine on a thread of its own, for many callers at once.
//!
//! ```text
//! callers ──submit, cancel, embed──► thread: Engine::step, over and over
//!    ▲                                  │
//!    └────────── Stream ◄───────────────┘
//! ```

use crate::cache::CacheUse;
use crate::embed::Pooling;
use crate::error::EngineError;
use crate::load::{Engine, Text};
use crate::request::{Answer, Event, Request, RequestId};
use crate::scheduler::{EngineCounters, Limits};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What the engine's thread is asked to do.
enum Command {
    Submit { id: RequestId, request: Request, events: Sender<Message> },
    Cancel { id: RequestId },
    Embed { tokens: Vec<u32>, pooling: Pooling, reply: Sender<Result<Vec<f32>, EngineError>> },
    Report { reply: Sender<Report> },
    Stop,
}

/// What a stream hears.
enum Message {
    Text(String),
    Finished(Answer),
    Failed(EngineError),
}

/// How an engine is doing.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Report {
    /// Requests that wait.
    pub waiting: usize,
    /// Requests that run.
    pub running: usize,
    /// Counts since the start.
    pub counters: EngineCounters,
    /// How the KV pages are used.
    pub cache: CacheUse,
}

/// An engine that serves requests. Clones serve the same engine, which stops when the last is
/// dropped.
#[derive(Clone)]
pub struct Service {
    shared: Arc<Shared>,
}

struct Shared {
    commands: Sender<Command>,
    text: Option<Arc<Text>>,
    limits: Limits,
    /// Requests submitted and not over.
    open: Arc<AtomicUsize>,
    ids: Arc<AtomicU64>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop);
        let thread = self.thread.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        // A thread that panicked has said so itself.
        let _ = thread.map(JoinHandle::join);
    }
}

impl Service {
    /// Starts serving.
    pub fn start(engine: Engine) -> Service {
        let (commands, inbox) = channel();
        let open = Arc::new(AtomicUsize::new(0));
        let (text, limits) = (engine.text.clone(), *engine.scheduler.limits());
        let ids = engine.scheduler.ids();
        let count = open.clone();
        let thread = std::thread::spawn(move || Worker::new(engine, inbox, count).run());

        let thread = Mutex::new(Some(thread));
        Service { shared: Arc::new(Shared { commands, text, limits, open, ids, thread }) }
    }

    /// Tokeniser and template; none if the model has no vocabulary of its own.
    pub fn text(&self) -> Option<&Text> {
        self.shared.text.as_deref()
    }

    /// Submits a request: its text comes out of the stream as it is generated. What is wrong with
    /// the request is said here and now, as is that too many wait.
    pub fn submit(&self, request: Request) -> Result<Stream, EngineError> {
        let Shared { commands, limits, open, ids, .. } = &*self.shared;
        limits.check(&request)?;
        let most = limits.max_open();
        let entered = open.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |open| {
            (open < most).then_some(open + 1)
        });
        if entered.is_err() {
            return Err(EngineError::QueueFull { waiting: limits.queue });
        }
        let id = RequestId(ids.fetch_add(1, Ordering::Relaxed));
        let (events, messages) = channel();
        let sent = commands.send(Command::Submit { id, request, events });
        sent.map_err(|_| EngineError::Stopped)?;
        Ok(Stream { id, messages, commands: commands.clone(), answer: None, over: false })
    }

    /// The meaning of some tokens as a vector of length one; see [`Engine::embed`].
    pub fn embed(&self, tokens: Vec<u32>, pooling: Pooling) -> Result<Vec<f32>, EngineError> {
        let (reply, result) = channel();
        let sent = self.shared.commands.send(Command::Embed { tokens, pooling, reply });
        sent.map_err(|_| EngineError::Stopped)?;
        result.recv().map_err(|_| EngineError::Stopped)?
    }

    /// How the engine is doing; asked between two steps.
    pub fn report(&self) -> Result<Report, EngineError> {
        let (reply, result) = channel();
        let sent = self.shared.commands.send(Command::Report { reply });
        sent.map_err(|_| EngineError::Stopped)?;
        result.recv().map_err(|_| EngineError::Stopped)
    }
}

/// The text of an answer, piece by piece. Dropping it before the end cancels the request.
pub struct Stream {
    id: RequestId,
    messages: Receiver<Message>,
    commands: Sender<Command>,
    answer: Option<Answer>,
    over: bool,
}

impl Stream {
    /// The finished answer, once the last piece has come.
    pub fn answer(&self) -> Option<&Answer> {
        self.answer.as_ref()
    }

    /// Ends the request. What was certain until then still comes.
    pub fn cancel(&self) {
        // An engine that has stopped has no request to cancel.
        let _ = self.commands.send(Command::Cancel { id: self.id });
    }

    /// Waits for the end: the whole text that had not come yet, and the answer.
    pub fn finish(mut self) -> Result<(String, Answer), EngineError> {
        let text = self.by_ref().collect::<Result<String, EngineError>>()?;
        let answer = self.answer.take().ok_or(EngineError::Stopped)?;
        Ok((text, answer))
    }
}

impl Iterator for Stream {
    type Item = Result<String, EngineError>;

    fn next(&mut self) -> Option<Result<String, EngineError>> {
        if self.over {
            return None;
        }
        match self.messages.recv() {
            Ok(Message::Text(text)) => Some(Ok(text)),
            Ok(Message::Finished(answer)) => {
                self.over = true;
                self.answer = Some(answer);
                None
            }
            Ok(Message::Failed(error)) => {
                self.over = true;
                Some(Err(error))
            }
            Err(_) => {
                self.over = true;
                Some(Err(EngineError::Stopped))
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.over {
            self.cancel();
        }
    }
}

/// The engine's side.
struct Worker {
    engine: Engine,
    inbox: Receiver<Command>,
    open: Arc<AtomicUsize>,
    streams: HashMap<RequestId, Sender<Message>>,
}

impl Worker {
    fn new(engine: Engine, inbox: Receiver<Command>, open: Arc<AtomicUsize>) -> Worker {
        Worker { engine, inbox, open, streams: HashMap::new() }
    }

    fn run(mut self) {
        loop {
            // Waits only if there is nothing else to do.
            let command = match self.engine.is_busy() {
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
            Command::Submit { id, request, events } => match self.engine.submit_as(id, request) {
                Ok(()) => drop(self.streams.insert(id, events)),
                Err(error) => {
                    self.open.fetch_sub(1, Ordering::SeqCst);
                    let _ = events.send(Message::Failed(error));
                }
            },
            Command::Cancel { id } => {
                if let Some(answer) = self.engine.cancel(id) {
                    self.end(id, Message::Finished(answer));
                }
            }
            Command::Embed { tokens, pooling, reply } => {
                let _ = reply.send(self.engine.embed(&tokens, pooling));
                // However many embeddings are asked for, requests get on.
                self.step();
            }
            Command::Report { reply } => {
                let (waiting, running) = self.engine.queue_lengths();
                let (counters, cache) = (self.engine.counters(), self.engine.cache_use());
                let _ = reply.send(Report { waiting, running, counters, cache });
                self.step();
            }
            Command::Stop => {}
        }
    }

    fn step(&mut self) {
        let Worker { engine, streams, open, .. } = self;
        // What a failed device means for each request, its stream was told.
        let _ = engine.step(&mut |id, event| {
            let Some(stream) = streams.get(&id) else { return ControlFlow::Break(()) };
            let message = match event {
                Event::Prompt | Event::Text("") => return ControlFlow::Continue(()),
                Event::Text(text) => Message::Text(text.to_string()),
                Event::Finished(answer) => Message::Finished(answer),
                Event::Failed(error) => Message::Failed(error),
            };
            let over = !matches!(message, Message::Text(_));
            let heard = stream.send(message).is_ok();
            if over {
                streams.remove(&id);
                open.fetch_sub(1, Ordering::SeqCst);
            }
            // Nobody listens any more.
            if heard || over { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
    }

    fn end(&mut self, id: RequestId, message: Message) {
        if let Some(stream) = self.streams.remove(&id) {
            self.open.fetch_sub(1, Ordering::SeqCst);
            let _ = stream.send(message);
        }
    }
}
