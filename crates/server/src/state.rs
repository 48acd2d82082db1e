//! What all connections share.

use crate::body::BodyBudget;
use crate::error::{ApiError, ErrorKind};
use crate::hub::Hub;
use crate::log::Log;
use crate::metrics::Metrics;
use crate::openai::responses::ResponseStore;
use crate::options::ServerOptions;
use crate::source::ModelSource;
use crate::status::BusyShares;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, Semaphore, watch};

/// Jobs of [`State::prepare`] that run at once; further ones wait.
const PREPARING: usize = 4;

/// What all connections share.
pub(crate) struct State {
    pub options: ServerOptions,
    pub hub: Arc<Hub>,
    pub metrics: Metrics,
    pub log: Arc<Log>,
    pub busy: BusyShares,
    pub responses: ResponseStore,
    /// A permit for each job of [`State::prepare`] that may run.
    preparing: Arc<Semaphore>,
    pub bodies: BodyBudget,
    pub started: Instant,
    next_id: AtomicU64,
    /// Requests under way, streams included.
    active: AtomicUsize,
    idle: Notify,
    draining: AtomicBool,
    /// Whether the requests under way are to end at once.
    cut_off: watch::Sender<bool>,
    warm: AtomicBool,
    /// Why the first model has not generated a token, where that was tried and failed.
    start_failure: OnceLock<String>,
    /// Random keys that ids are made with.
    ids: RandomState,
}

/// A request under way.
pub(crate) struct Active(Arc<State>);

impl Drop for Active {
    fn drop(&mut self) {
        if self.0.active.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

impl State {
    pub fn new(options: ServerOptions, source: Arc<dyn ModelSource>) -> State {
        let log = Arc::new(Log::new(options.log));
        let responses = ResponseStore::new(options.keys.len());
        State {
            hub: Arc::new(Hub::new(source, options.keep, log.clone())),
            log,
            bodies: BodyBudget::new(options.limits.body_bytes),
            options,
            metrics: Metrics::default(),
            busy: BusyShares::default(),
            responses,
            preparing: Arc::new(Semaphore::new(PREPARING)),
            started: Instant::now(),
            next_id: AtomicU64::new(0),
            active: AtomicUsize::new(0),
            idle: Notify::new(),
            draining: AtomicBool::new(false),
            cut_off: watch::Sender::new(false),
            warm: AtomicBool::new(false),
            start_failure: OnceLock::new(),
            ids: RandomState::new(),
        }
    }

    /// A name for something new, such as `chatcmpl-…`: no other thing has it.
    pub fn fresh_id(&self, prefix: &str) -> String {
        let number = self.next_id.fetch_add(1, Ordering::Relaxed);
        // Keyed hashes: whoever knows one id cannot tell the next, which may name a kept answer.
        let [a, b] = [0u8, 1].map(|half| self.ids.hash_one((half, number)));
        format!("{prefix}{a:016x}{b:016x}")
    }

    /// Does what takes milliseconds (templates, tokenisers, schemas, large JSON) on another thread: on the
    /// HTTP thread it would block all other connections.
    pub async fn prepare<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = self.preparing.clone().acquire_owned().await;
        let job = tokio::task::spawn_blocking(move || {
            // Held to the end, also where the client has gone meanwhile.
            let _permit = permit;
            work()
        });
        let panicked = |_| {
            let message = "the request could not be processed; standard error has the reason";
            ApiError::new(ErrorKind::Internal, message)
        };
        job.await.map_err(panicked)?
    }

    /// A request begins.
    pub fn begin(self: &Arc<State>) -> Active {
        self.active.fetch_add(1, Ordering::SeqCst);
        Active(self.clone())
    }

    pub fn active(&self) -> usize {
        self.active.load(Ordering::SeqCst)
    }

    /// From now on no request is begun.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// The requests under way end in an error now.
    pub fn cut_off(&self) {
        self.cut_off.send_replace(true);
    }

    /// Resolves once the requests under way have to end.
    pub async fn until_cut_off(&self) {
        // The sender lives as long as `self`, so that this ends only with the value.
        let _ = self.cut_off.subscribe().wait_for(|&cut_off| cut_off).await;
    }

    /// The first model has generated a token.
    pub fn set_warm(&self) {
        self.warm.store(true, Ordering::SeqCst);
    }

    pub fn is_warm(&self) -> bool {
        self.warm.load(Ordering::SeqCst)
    }

    /// The first model could not be loaded, or could not generate a token.
    pub fn set_start_failure(&self, reason: String) {
        // It is tried once.
        let _ = self.start_failure.set(reason);
    }

    /// Why the server is not ready; none while the first model is being loaded, and once a token was
    /// generated.
    pub fn start_failure(&self) -> Option<&str> {
        self.start_failure.get().map(String::as_str).filter(|_| !self.is_warm())
    }

    /// Resolves once no request is under way.
    pub async fn until_idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.active() == 0 {
                return;
            }
            idle.await;
        }
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
