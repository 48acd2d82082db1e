//! The models of a server: loaded when first asked for, unloaded when idle or memory is short.
//!
//! ```text
//! Unloaded ──first request──► Loading ──► Loaded ──idle, or room is needed──► Unloaded
//!                                └──────► Failed (tried again by a later request)
//! ```
//!
//! A request holds its model by an `Arc`: a model with holders is in use and never unloaded.

use crate::error::{ApiError, ErrorKind, shown};
use crate::model::LoadedModel;
use pianola_engine::Service;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A model that can be served.
#[derive(Clone, Debug, Default)]
pub struct ModelCard {
    /// What clients call it.
    pub id: String,
    /// Further names that clients may use.
    pub aliases: Vec<String>,
    /// Bytes of its files, if they are here.
    pub bytes: Option<u64>,
    /// When its files were written, in seconds since 1970.
    pub modified: u64,
    /// A sum of its content, where it is known.
    pub sha256: Option<String>,
    /// What its files say of it, if they could be read.
    pub facts: Option<Arc<ModelFacts>>,
}

/// What the files of a model say of it before it is loaded.
#[derive(Clone, Debug, Default)]
pub struct ModelFacts {
    /// `gguf` or `safetensors`.
    pub format: String,
    /// Family of models, as GGUF files name it.
    pub architecture: String,
    /// Weights.
    pub parameters: u64,
    /// Type of most weights.
    pub quantization: String,
    /// Tokens that the model was made for.
    pub context: usize,
    /// Values of an embedding.
    pub embedding_width: usize,
    /// Layers.
    pub layers: usize,
    /// Entries of the vocabulary.
    pub vocabulary: usize,
    /// Its own chat template.
    pub chat_template: Option<String>,
}

/// Why a model was not loaded.
#[derive(Clone, Debug)]
pub struct LoadFailure {
    /// What went wrong, and what to do about it.
    pub message: String,
    /// Whether it would fit if other models were unloaded.
    pub out_of_memory: bool,
}

/// Progress of a model that is being fetched.
#[derive(Clone, Debug)]
pub struct PullProgress {
    /// What is being done.
    pub stage: PullStage,
    /// Sum of the whole model, in hexadecimal.
    pub digest: String,
    /// Bytes of the stage that are done.
    pub done: u64,
    /// Bytes of the stage in all.
    pub total: u64,
}

/// What is being done to fetch a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PullStage {
    /// Its parts arrive.
    Fetching,
    /// They are put together, and their sum is compared.
    Checking,
}

/// Where models come from. Its functions block.
pub trait ModelSource: Send + Sync {
    /// The models that can be served, the default first.
    fn models(&self) -> Vec<ModelCard>;

    /// Loads one of them.
    fn load(&self, id: &str) -> Result<Service, LoadFailure>;

    /// Fetches a model by a name of the catalogue, and serves it from then on. Gives up once `progress`
    /// returns false.
    fn pull(
        &self,
        name: &str,
        progress: &mut dyn FnMut(PullProgress) -> bool,
    ) -> Result<ModelCard, LoadFailure>;
}

/// How models are kept.
#[derive(Clone, Copy, Debug)]
pub struct KeepOptions {
    /// Models that are loaded at once.
    pub max_loaded: usize,
    /// How long an idle model stays loaded; none: until room is needed.
    pub idle: Option<Duration>,
}

/// What is known of a model that is or was asked for.
enum State {
    Loading(watch::Receiver<bool>),
    Loaded(Arc<LoadedModel>),
    Failed(LoadFailure),
}

struct Entry {
    state: State,
    last_used: Instant,
    /// How long it stays when idle, where a request said so.
    idle: Option<Duration>,
}

/// The models of a server.
pub(crate) struct Hub {
    source: Arc<dyn ModelSource>,
    keep: KeepOptions,
    entries: Mutex<HashMap<String, Entry>>,
    /// Held while a model is loaded.
    loading: Mutex<()>,
}

/// How long a failed load is reported before it is tried again.
const FAILURE_KEPT: Duration = Duration::from_secs(5);

/// What `/status` and `/api/ps` say of a model.
pub(crate) struct ModelState {
    pub card: ModelCard,
    pub state: &'static str,
    pub reason: Option<String>,
    /// Its engine. Not the model itself, which would count as in use.
    pub loaded: Option<Service>,
    /// Seconds until it is unloaded.
    pub expires_in: Option<Duration>,
}

impl Hub {
    pub fn new(source: Arc<dyn ModelSource>, keep: KeepOptions) -> Hub {
        Hub { source, keep, entries: Mutex::new(HashMap::new()), loading: Mutex::new(()) }
    }

    pub fn source(&self) -> &Arc<dyn ModelSource> {
        &self.source
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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
        let is = |card: &ModelCard, name: &str| {
            card.id.eq_ignore_ascii_case(name)
                || card.aliases.iter().any(|alias| alias.eq_ignore_ascii_case(name))
        };
        let found = cards.iter().find(|card| is(card, name) || is(card, plain));
        found.cloned().ok_or_else(|| {
            let served: Vec<&str> = cards.iter().map(|card| card.id.as_str()).collect();
            let (name, served) = (shown(name), served.join(", "));
            let message = format!("the model '{name}' does not exist here; served: {served}");
            ApiError {
                param: Some("model".into()),
                ..ApiError::new(ErrorKind::ModelNotFound, message)
            }
        })
    }

    /// A loaded model, loading it first if need be. Those who come while it is loading wait for the same
    /// load, unless they asked not to.
    pub async fn get(
        self: &Arc<Hub>,
        name: Option<&str>,
        wait: bool,
    ) -> Result<Arc<LoadedModel>, ApiError> {
        let card = self.find(name)?;
        loop {
            let mut loading = {
                let mut entries = self.entries();
                match entries.get_mut(&card.id) {
                    Some(Entry { state: State::Loaded(model), last_used, .. }) => {
                        if model.service().is_lost().is_none() {
                            *last_used = Instant::now();
                            return Ok(model.clone());
                        }
                        entries.remove(&card.id);
                        continue;
                    }
                    // All that come soon after a failure are told of it; later ones try again.
                    Some(Entry { state: State::Failed(failure), last_used, .. })
                        if last_used.elapsed() < FAILURE_KEPT =>
                    {
                        return Err(unavailable(&card.id, failure));
                    }
                    Some(Entry { state: State::Loading(done), .. }) => done.clone(),
                    _ => self.begin(&mut entries, &card.id),
                }
            };
            if !wait {
                let message = format!("{} is being loaded; ask again", card.id);
                return Err(ApiError::new(ErrorKind::Unavailable, message).retry_after(2));
            }
            // Ends once the state of the entry is set, whatever became of it.
            let _ = loading.changed().await;
        }
    }

    /// Starts a load on a thread of its own.
    fn begin(
        self: &Arc<Hub>,
        entries: &mut HashMap<String, Entry>,
        id: &str,
    ) -> watch::Receiver<bool> {
        let (done, loading) = watch::channel(false);
        let entry =
            Entry { state: State::Loading(loading.clone()), last_used: Instant::now(), idle: None };
        entries.insert(id.to_string(), entry);
        let (hub, id) = (self.clone(), id.to_string());
        tokio::task::spawn_blocking(move || {
            // An entry that stayed "loading" would be waited for without end.
            let loaded = std::panic::catch_unwind(AssertUnwindSafe(|| hub.load(&id)));
            let state = match loaded {
                Ok(Ok(model)) => State::Loaded(Arc::new(model)),
                Ok(Err(failure)) => State::Failed(failure),
                Err(_) => State::Failed(LoadFailure {
                    message: "the loading thread panicked; its message is in the log".to_string(),
                    out_of_memory: false,
                }),
            };
            if let Some(entry) = hub.entries().get_mut(&id) {
                entry.state = state;
                entry.last_used = Instant::now();
            }
            let _ = done.send(true);
        });
        loading
    }

    /// Loads a model; idle ones make room.
    fn load(&self, id: &str) -> Result<LoadedModel, LoadFailure> {
        // One at a time: each takes what memory the others leave.
        let _one = self.loading.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        while self.loaded() >= self.keep.max_loaded {
            if !self.unload_one() {
                let message = format!(
                    "{} models are loaded and all are in use (--max-loaded)",
                    self.keep.max_loaded
                );
                return Err(LoadFailure { message, out_of_memory: true });
            }
        }
        loop {
            match self.source.load(id) {
                Ok(service) => return Ok(LoadedModel::new(id.to_string(), service)),
                Err(failure) if failure.out_of_memory && self.unload_one() => {}
                Err(failure) => return Err(failure),
            }
        }
    }

    fn loaded(&self) -> usize {
        let is_loaded = |entry: &&Entry| matches!(entry.state, State::Loaded(_));
        self.entries().values().filter(is_loaded).count()
    }

    /// Unloads the model that was idle longest; false if all are in use.
    fn unload_one(&self) -> bool {
        let oldest = {
            let entries = self.entries();
            let idle = entries.iter().filter(|(_, entry)| entry.is_idle());
            idle.min_by_key(|(_, entry)| entry.last_used).map(|(id, _)| id.clone())
        };
        oldest.is_some_and(|id| self.unload(&id))
    }

    /// Unloads a model, unless it is in use. Blocks until its memory is free.
    pub fn unload(&self, id: &str) -> bool {
        let entry = {
            let mut entries = self.entries();
            match entries.get(id).is_some_and(Entry::is_idle) {
                true => entries.remove(id),
                false => None,
            }
        };
        entry.is_some()
    }

    /// How long a model stays loaded when idle from now on: a request's wish.
    pub fn set_idle(&self, id: &str, idle: Duration) {
        if let Some(entry) = self.entries().get_mut(id) {
            entry.idle = Some(idle);
            entry.last_used = Instant::now();
        }
    }

    /// Unloads what was idle for long enough; blocks while memory is freed.
    pub fn unload_idle(&self) {
        let due: Vec<String> = {
            let mut entries = self.entries();
            // The time counts from the end of the last request.
            entries.values_mut().filter(|entry| entry.is_used()).for_each(|entry| {
                entry.last_used = Instant::now();
            });
            let due =
                |entry: &Entry| entry.is_idle() && self.expires_in(entry) == Some(Duration::ZERO);
            entries.iter().filter(|(_, entry)| due(entry)).map(|(id, _)| id.clone()).collect()
        };
        due.iter().for_each(|id| {
            self.unload(id);
        });
    }

    fn expires_in(&self, entry: &Entry) -> Option<Duration> {
        let idle = entry.idle.or(self.keep.idle)?;
        Some(idle.saturating_sub(entry.last_used.elapsed()))
    }

    /// All models and how they are.
    pub fn states(&self) -> Vec<ModelState> {
        let cards = self.source.models();
        let entries = self.entries();
        let state = |card: ModelCard| {
            let entry = entries.get(&card.id);
            let (state, reason, loaded) = match entry.map(|entry| &entry.state) {
                None => ("unloaded", None, None),
                Some(State::Loading(_)) => ("loading", None, None),
                Some(State::Failed(failure)) => ("failed", Some(failure.message.clone()), None),
                Some(State::Loaded(model)) => match model.service().is_lost() {
                    Some(reason) => ("failed", Some(reason), None),
                    None => ("loaded", None, Some(model.service().clone())),
                },
            };
            let expires_in = entry.and_then(|entry| self.expires_in(entry));
            ModelState { card, state, reason, loaded, expires_in }
        };
        cards.into_iter().map(state).collect()
    }
}

impl Entry {
    /// Loaded, and a request holds it.
    fn is_used(&self) -> bool {
        matches!(&self.state, State::Loaded(model) if Arc::strong_count(model) > 1)
    }

    /// Loaded, and no request holds it.
    fn is_idle(&self) -> bool {
        matches!(&self.state, State::Loaded(model) if Arc::strong_count(model) == 1)
    }
}

fn unavailable(id: &str, failure: &LoadFailure) -> ApiError {
    let message = format!("{id} cannot be loaded: {}", failure.message);
    ApiError::new(ErrorKind::Unavailable, message).retry_after(10)
}
