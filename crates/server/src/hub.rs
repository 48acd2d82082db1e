//! The models of a server: loaded when first asked for, unloaded when idle or memory is short.
//!
//! ```text
//! Unloaded ──first request──► Loading ──► Loaded ──idle, or room is needed──► Unloaded
//!                                └──────► Failed (tried again after some seconds, or once its files change)
//! ```
//!
//! A request holds its model by an `Arc`: a model with holders is in use and never unloaded. A model that
//! cannot be loaded unloads no other: before room is made, the source checks what it can.

mod entry;

use crate::error::{ApiError, ErrorKind, shown};
use crate::log::Log;
use crate::model::LoadedModel;
use crate::source::{LoadFailure, LoadFailureKind, ModelCard, ModelSource};
use entry::{Entry, LoadState, Loading, unavailable};
use pianola_engine::{Report, ServiceInfo};
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How models are kept.
#[derive(Clone, Copy, Debug)]
pub struct KeepOptions {
    /// Models that are loaded at once.
    pub max_loaded: usize,
    /// How long an idle model stays loaded where several are served; none, and where there is only one:
    /// until room is needed.
    pub idle: Option<Duration>,
}

/// The models of a server.
pub(crate) struct Hub {
    source: Arc<dyn ModelSource>,
    keep: KeepOptions,
    log: Arc<Log>,
    entries: Mutex<HashMap<String, Entry>>,
    /// When the source last looked which models there are.
    refreshed: Mutex<Option<Instant>>,
    /// Held while a model is loaded.
    loading: Mutex<()>,
}

/// How long a model waits for others that are in use to make room, and how often it looks.
const MAX_WAIT_FOR_ROOM: Duration = Duration::from_secs(300);
const WAIT_FOR_ROOM: Duration = Duration::from_millis(20);
/// How often the source looks which models there are, at most.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// A model as `/status` and `/api/ps` describe it.
pub(crate) struct ModelState {
    pub card: ModelCard,
    pub state: &'static str,
    pub reason: Option<String>,
    pub loaded: Option<EngineState>,
    /// Time until it is unloaded.
    pub expires_in: Option<Duration>,
}

/// The engine of a loaded model. Copies: a handle of the engine would keep its memory from being freed.
pub(crate) struct EngineState {
    pub info: ServiceInfo,
    /// None once the engine serves no request any more.
    pub report: Option<Report>,
}

impl Hub {
    pub fn new(source: Arc<dyn ModelSource>, keep: KeepOptions, log: Arc<Log>) -> Hub {
        let (entries, refreshed) = (Mutex::default(), Mutex::default());
        Hub { source, keep, log, entries, refreshed, loading: Mutex::new(()) }
    }

    pub fn source(&self) -> &Arc<dyn ModelSource> {
        &self.source
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Has the source look again which models there are, unless it did so a moment ago: it reads folders.
    pub async fn refresh(self: &Arc<Hub>) {
        let due = {
            let mut refreshed = self.refreshed.lock().unwrap_or_else(PoisonError::into_inner);
            let due = refreshed.is_none_or(|last| last.elapsed() >= REFRESH_INTERVAL);
            if due {
                *refreshed = Some(Instant::now());
            }
            due
        };
        if due {
            let source = self.source.clone();
            // A source that panics has found nothing new.
            let _ = tokio::task::spawn_blocking(move || source.refresh()).await;
        }
    }

    /// The model of a name; the first where none is given.
    pub fn find(&self, name: Option<&str>) -> Result<ModelCard, ApiError> {
        let cards = self.source.models();
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return cards.into_iter().next().ok_or_else(|| {
                ApiError::new(ErrorKind::ModelNotFound, "the server has no model to serve")
            });
        };
        // Ollama's clients add a tag to names that have none.
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let same =
            |other: &str| other.eq_ignore_ascii_case(name) || other.eq_ignore_ascii_case(plain);
        // A model's own name goes before another's alias.
        let named = cards.iter().find(|card| same(&card.id));
        let found =
            named.or_else(|| cards.iter().find(|card| card.aliases.iter().any(|one| same(one))));
        found.cloned().ok_or_else(|| {
            let served: Vec<&str> = cards.iter().map(|card| card.id.as_str()).collect();
            let (advice, name, served) =
                (self.source.advice(plain), shown(name), served.join(", "));
            let message =
                format!("the model '{name}' does not exist here; served: {served}; {advice}");
            ApiError {
                param: Some("model".into()),
                ..ApiError::new(ErrorKind::ModelNotFound, message)
            }
        })
    }

    /// A loaded model; loads it first if it is not. Requests that come while it is loading wait for the
    /// same load, unless `wait` is false.
    pub async fn get(
        self: &Arc<Hub>,
        name: Option<&str>,
        wait: bool,
    ) -> Result<Arc<LoadedModel>, ApiError> {
        let card = match self.find(name) {
            Ok(card) => card,
            Err(_) => {
                self.refresh().await;
                self.find(name)?
            }
        };
        loop {
            let version = self.version_of_failed(&card.id).await;
            let mut loading = {
                let mut entries = self.entries();
                let failure = entries.get(&card.id).and_then(|entry| entry.failure(version));
                if let Some(failure) = failure {
                    return Err(unavailable(&card.id, failure));
                }
                match entries.get_mut(&card.id) {
                    Some(Entry { state: LoadState::Loading(done), .. }) => done.clone(),
                    Some(Entry { state: LoadState::Loaded(model), last_used, .. }) => {
                        let Some(reason) = model.service().is_lost() else {
                            *last_used = Instant::now();
                            return Ok(model.clone());
                        };
                        let lost = entries.remove(&card.id);
                        drop(entries);
                        // Frees gigabytes, and waits for the engine's thread.
                        tokio::task::spawn_blocking(move || drop(lost));
                        self.log_unloaded(&card.id, &reason);
                        continue;
                    }
                    _ => self.begin(&mut entries, &card.id),
                }
            };
            if !wait {
                let message = format!("{} is being loaded; retry later", card.id);
                return Err(ApiError::new(ErrorKind::Unavailable, message).retry_after(2));
            }
            // Returns once the entry's state is set: loaded or failed.
            let _ = loading.changed().await;
            let loaded = loading.borrow().clone();
            if let Some(model) = loaded {
                return Ok(model);
            }
        }
    }

    /// The version of a model's files, where it failed to load because of them. Read without the lock and
    /// off the HTTP thread: a disk may be slow.
    async fn version_of_failed(self: &Arc<Hub>, id: &str) -> Option<u64> {
        if !self.entries().get(id).is_some_and(Entry::has_lasting_failure) {
            return None;
        }
        let (source, id) = (self.source.clone(), id.to_string());
        tokio::task::spawn_blocking(move || source.version(&id)).await.ok()
    }

    /// Starts a load on a thread of its own.
    fn begin(self: &Arc<Hub>, entries: &mut HashMap<String, Entry>, id: &str) -> Loading {
        let (done, loading) = watch::channel(None);
        entries.insert(id.to_string(), Entry::new(LoadState::Loading(loading.clone())));
        let (hub, id) = (self.clone(), id.to_string());
        tokio::task::spawn_blocking(move || {
            // One at a time, until it is counted as loaded: each takes what memory the others leave.
            let one = hub.loading.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            // Before the files are read: a change during the load is a reason to try again.
            let version = hub.source.version(&id);
            // Requests would wait for ever for an entry that stayed in `Loading`.
            let loaded = std::panic::catch_unwind(AssertUnwindSafe(|| hub.load(&id)));
            let loaded = loaded.unwrap_or_else(|_| {
                let message = "the loading thread panicked; its message is in the log";
                Err(LoadFailure::new(LoadFailureKind::Temporary, message))
            });
            let (state, model) = match loaded.map(Arc::new) {
                Ok(model) => (LoadState::Loaded(model.clone()), Some(model)),
                Err(failure) => {
                    let error = failure.message.as_str().into();
                    hub.log
                        .write("load failed", &[("model", id.as_str().into()), ("error", error)]);
                    (LoadState::Failed { failure, version }, None)
                }
            };
            if let Some(entry) = hub.entries().get_mut(&id) {
                entry.state = state;
                entry.last_used = Instant::now();
            }
            drop(one);
            let _ = done.send(model);
        });
        loading
    }

    /// Loads a model; idle ones make room.
    fn load(&self, id: &str) -> Result<LoadedModel, LoadFailure> {
        let mut checked = false;
        let begun = Instant::now();
        while self.loaded() >= self.keep.max_loaded {
            let made = self.make_room(id, &mut checked)?;
            if !made && begun.elapsed() < MAX_WAIT_FOR_ROOM {
                std::thread::sleep(WAIT_FOR_ROOM);
            } else if !made {
                let message = format!(
                    "{} models are loaded and all are in use (--max-loaded)",
                    self.keep.max_loaded
                );
                return Err(LoadFailure::new(LoadFailureKind::InUse, message));
            }
        }
        loop {
            let begun = Instant::now();
            match self.source.load(id) {
                Ok(service) => {
                    let model = LoadedModel::new(id.to_string(), service);
                    self.log_loaded(&model, begun.elapsed());
                    return Ok(model);
                }
                Err(failure) if failure.kind == LoadFailureKind::Memory => {
                    if !self.make_room(id, &mut checked)? {
                        return Err(failure);
                    }
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    fn log_loaded(&self, model: &LoadedModel, took: Duration) {
        self.log.write(
            "model loaded",
            &[
                ("model", model.id.as_str().into()),
                ("seconds", ((took.as_secs_f64() * 1e3).round() / 1e3).into()),
                ("weight_bytes", model.weight_bytes().into()),
                ("kv_limit_bytes", model.kv_limit_bytes().into()),
                ("device", model.service().info().devices.as_str().into()),
            ],
        );
    }

    fn loaded(&self) -> usize {
        self.entries().values().filter(|entry| entry.model().is_some()).count()
    }

    /// Unloads the model that was idle longest, to make room for `id`; false if all are in use. Before
    /// the first is unloaded, checks that `id` can be loaded at all.
    fn make_room(&self, id: &str, checked: &mut bool) -> Result<bool, LoadFailure> {
        loop {
            let (oldest, reclaimable) = {
                let entries = self.entries();
                let idle = || entries.iter().filter(|(_, entry)| entry.is_idle());
                let oldest = idle().min_by_key(|(_, entry)| entry.last_used);
                let bytes: u64 = idle().map(|(_, entry)| entry.memory_bytes()).sum();
                (oldest.map(|(id, _)| id.clone()), bytes)
            };
            let Some(oldest) = oldest else { return Ok(false) };
            if !*checked {
                self.source.check(id, reclaimable)?;
                *checked = true;
            }
            // A request may have taken it in the meantime.
            if self.unload_because(&oldest, &format!("room for {id}")) {
                return Ok(true);
            }
        }
    }

    /// Unloads a model at a request's demand, unless it is in use. Blocks until its memory is free.
    pub fn unload(&self, id: &str) -> bool {
        self.unload_because(id, "requested")
    }

    fn unload_because(&self, id: &str, reason: &str) -> bool {
        let entry = {
            let mut entries = self.entries();
            match entries.get(id).is_some_and(Entry::is_idle) {
                true => entries.remove(id),
                false => None,
            }
        };
        let unloaded = entry.is_some();
        drop(entry);
        if unloaded {
            self.log_unloaded(id, reason);
        }
        unloaded
    }

    fn log_unloaded(&self, id: &str, reason: &str) {
        self.log.write("model unloaded", &[("model", id.into()), ("reason", reason.into())]);
    }

    /// Tells every engine to end and waits for none: dropping a model no longer waits for the step
    /// under way.
    pub fn abandon(&self) {
        self.entries().values().filter_map(Entry::model).for_each(|model| model.service().stop());
    }

    /// Why the first model is not loaded, where that was tried.
    pub fn first_failure(&self) -> Option<LoadFailure> {
        let id = self.source.models().into_iter().next()?.id;
        match &self.entries().get(&id)?.state {
            LoadState::Failed { failure, .. } => Some(failure.clone()),
            _ => None,
        }
    }

    /// Sets how long a model stays loaded when idle, as a request may.
    pub fn set_idle(&self, id: &str, idle: Duration) {
        if let Some(entry) = self.entries().get_mut(id) {
            entry.idle = Some(idle);
            entry.last_used = Instant::now();
        }
    }

    /// Unloads what was idle for long enough; blocks while memory is freed.
    pub fn unload_idle(&self) {
        let default = self.default_idle(self.source.models().len());
        let due: Vec<String> = {
            let mut entries = self.entries();
            // The time counts from the end of the last request.
            entries.values_mut().filter(|entry| entry.is_used()).for_each(|entry| {
                entry.last_used = Instant::now();
            });
            let due = |entry: &Entry| {
                entry.is_idle() && time_left(entry, default) == Some(Duration::ZERO)
            };
            entries.iter().filter(|(_, entry)| due(entry)).map(|(id, _)| id.clone()).collect()
        };
        due.iter().for_each(|id| {
            self.unload_because(id, "idle");
        });
    }

    /// How long an idle model stays where no request said so. The only one of a server stays: unloading it
    /// makes room for no other. Models may be added while the server runs.
    fn default_idle(&self, models: usize) -> Option<Duration> {
        self.keep.idle.filter(|_| models > 1)
    }

    /// The most tokens a second that the devices of a loaded model allow, once it is known. Asking has it
    /// measured.
    pub fn ceiling(&self, id: &str) -> Option<f64> {
        self.entries().get(id)?.model()?.service().ceiling()
    }

    /// All models and their states, the default first.
    pub fn states(&self) -> Vec<ModelState> {
        let cards = self.source.models();
        let default = self.default_idle(cards.len());
        let entries = self.entries();
        let state = |card: ModelCard| {
            let entry = entries.get(&card.id);
            let (state, reason, loaded) = match entry.map(|entry| &entry.state) {
                None => ("unloaded", None, None),
                Some(LoadState::Loading(_)) => ("loading", None, None),
                Some(LoadState::Failed { failure, .. }) => {
                    ("failed", Some(failure.message.clone()), None)
                }
                Some(LoadState::Loaded(model)) => match model.service().is_lost() {
                    Some(reason) => ("failed", Some(reason), None),
                    None => ("loaded", None, Some(EngineState::of(model))),
                },
            };
            let expires_in = entry.filter(|_| loaded.is_some());
            let expires_in = expires_in.and_then(|entry| time_left(entry, default));
            ModelState { card, state, reason, loaded, expires_in }
        };
        cards.into_iter().map(state).collect()
    }
}

/// The time until a model is unloaded if no request comes.
fn time_left(entry: &Entry, default_idle: Option<Duration>) -> Option<Duration> {
    Some(entry.idle.or(default_idle)?.saturating_sub(entry.last_used.elapsed()))
}

impl EngineState {
    fn of(model: &LoadedModel) -> EngineState {
        let service = model.service();
        EngineState { info: service.info().clone(), report: service.snapshot() }
    }
}
