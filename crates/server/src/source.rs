//! Where the models of a server come from.

use pianola_engine::Service;
use std::sync::Arc;

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
    /// The properties that its files state, if they could be read.
    pub facts: Option<Arc<ModelFacts>>,
}

/// The properties of a model that its files state.
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
    /// What is at fault.
    pub kind: LoadFailureKind,
    /// What went wrong, and what to do about it.
    pub message: String,
}

/// What is at fault where a model was not loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadFailureKind {
    /// The model's files.
    Files,
    /// The options that models are loaded with.
    Options,
    /// Memory: it may fit once other models are unloaded.
    Memory,
    /// The models that would have to make room are in use.
    InUse,
    /// The name, which nothing to fetch has.
    UnknownName,
    /// Something that may be over when the load is tried again.
    Temporary,
}

impl LoadFailure {
    /// A failure of a kind.
    pub fn new(kind: LoadFailureKind, message: impl Into<String>) -> LoadFailure {
        LoadFailure { kind, message: message.into() }
    }

    /// Whether the load fails in the same way until the model's files change.
    pub(crate) fn is_lasting(&self) -> bool {
        matches!(self.kind, LoadFailureKind::Files | LoadFailureKind::Options)
    }
}

/// Progress of a model that is being fetched.
#[derive(Clone, Debug)]
pub struct PullProgress {
    /// What is being done.
    pub stage: PullStage,
    /// Sum of the whole model, in hexadecimal; empty where it is not known before it is fetched.
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

    /// Looks again which models there are. It is called when a name is unknown, and before models are
    /// listed.
    fn refresh(&self);

    /// How a model that is not among them can be served: a clause behind an error.
    fn advice(&self, name: &str) -> String;

    /// Loads one of them.
    fn load(&self, id: &str) -> Result<Service, LoadFailure>;

    /// Whether one of them can be loaded once `reclaimable` more bytes of memory are free, as far as that
    /// can be told without reading its weights.
    fn check(&self, id: &str, reclaimable: u64) -> Result<(), LoadFailure>;

    /// A number that changes when the model's files do.
    fn version(&self, id: &str) -> u64;

    /// Fetches a model by a name of the catalogue, and serves it from then on. Gives up once `progress`
    /// returns false.
    fn pull(
        &self,
        name: &str,
        progress: &mut dyn FnMut(PullProgress) -> bool,
    ) -> Result<ModelCard, LoadFailure>;
}
