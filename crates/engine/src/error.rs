use pianola_model::ModelError;
use pianola_plan::{DeviceError, PlanError, size_text};

/// Why the engine cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model's file or configuration.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Tokeniser or chat template.
    #[error(transparent)]
    Text(#[from] pianola_text::Error),
    /// A sampling option.
    #[error(transparent)]
    Sampling(#[from] crate::sampler::SamplingError),
    /// More tokens than the context holds.
    #[error(
        "{needed} tokens are needed, the context holds {context}; {}",
        advice(*context, *model)
    )]
    ContextLength {
        /// Tokens needed.
        needed: usize,
        /// Tokens there is room for.
        context: usize,
        /// Tokens the model was made for.
        model: usize,
    },
    /// A model that a device has no memory for, however it is split.
    #[error(
        "{device} has no room for {what}: with activations and a context of {context} tokens that is {needed}, and {free} are free"
    )]
    NoRoom {
        /// The first device.
        device: String,
        /// The least that may be put there.
        what: String,
        /// Tokens of context.
        context: usize,
        /// Bytes needed, in words.
        needed: String,
        /// Bytes free, in words.
        free: String,
        /// Whether the number of layers was asked for.
        layers_asked: bool,
        /// Whether the context was asked for.
        context_asked: bool,
    },
    /// The only device has no room for the model, even with the shortest context.
    #[error(
        "{device} has no room for the model: {} for weights, {} for working memory and {} for keys \
         and values of {context} tokens; {} are free, and an eighth of that is left to other programs",
        size_text(*.weights), size_text(*.working), size_text(*.kv), size_text(*.free)
    )]
    NoRoomForModel {
        /// The device.
        device: String,
        /// Bytes of weights.
        weights: u64,
        /// Bytes of everything else but keys and values.
        working: u64,
        /// Bytes of keys and values of one sequence.
        kv: u64,
        /// Its tokens.
        context: usize,
        /// Bytes that are free.
        free: u64,
    },
    /// Layers are to be split between devices, and there is one.
    #[error("layers can be split between several devices only, and there is one")]
    OneDevice,
    /// A part of the model is placed on a device that is not there.
    #[error(
        "{part} is placed on '{name}', and the devices of this model are {devices}; name it in --device too, or place {part} elsewhere"
    )]
    NoSuchDevice {
        /// The part.
        part: pianola_plan::ModelPart,
        /// The name given.
        name: String,
        /// Names that there are.
        devices: String,
    },
    /// The options name no device.
    #[error("there is no device to compute on; name at least the CPU")]
    NoDevice,
    /// No layer is to be on the first device.
    #[error("the first device would have no layers; leave it out")]
    NoLayersOnFirst,
    /// Text work on a model without a tokeniser.
    #[error(
        "{0} has no tokeniser, so it cannot read text; use token ids or a folder with tokenizer.json"
    )]
    NoTokenizer(String),
    /// A token id outside the vocabulary.
    #[error("{field}: token {token} is not in the vocabulary of {vocabulary} tokens")]
    UnknownToken {
        /// Where it was named.
        field: &'static str,
        /// Token.
        token: u32,
        /// Entries.
        vocabulary: usize,
    },
    /// The model computed NaN.
    #[error(
        "the logits after {position} tokens are not numbers: the model file is damaged, or a kernel is wrong; exact mode with the reference kernels tells which"
    )]
    NotANumber {
        /// Tokens read so far.
        position: usize,
    },
    /// A constraint that allows no token, or none that the sampling options leave.
    #[error(
        "no token is allowed after {position} tokens: the constraint, or the biases beside it, leave none; check the grammar or schema"
    )]
    ConstraintUnmet {
        /// Tokens so far.
        position: usize,
    },
    /// A constraint that could not be followed any further.
    #[error("the constraint failed after {position} tokens: {reason}")]
    ConstraintFailed {
        /// Tokens so far.
        position: usize,
        /// What the constraint says.
        reason: String,
    },
    /// A file that is there but cannot be read.
    #[error("{path} cannot be read: {reason}")]
    Unreadable {
        /// File.
        path: String,
        /// What the system says.
        reason: String,
    },
    /// More requests than the queue holds.
    #[error(
        "{waiting} requests are waiting already, which is all that the queue holds; try again later"
    )]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
    },
    /// More of something than a request may have.
    #[error("{field} has {found} {what}, and at most {most} are allowed; send fewer")]
    TooMany {
        /// Field of the request.
        field: &'static str,
        /// What is counted.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many are allowed.
        most: usize,
    },
    /// The step that a request was part of failed.
    #[error("{reason}")]
    StepFailed {
        /// What the device said.
        reason: String,
        /// The kind of what it said.
        kind: ErrorKind,
    },
    /// The device is gone, and could not be opened again.
    #[error("the device is lost ({0}), and no request can be served; start the engine again")]
    DeviceLost(String),
    /// Guesses from a draft model where there is none.
    #[error("there is no draft model; name a smaller model of the same family")]
    NoDraft,
    /// A model whose last rows mean nothing outside of it.
    #[error("{0} cannot embed texts; use another model")]
    NoEmbeddings(String),
    /// A number of lanes that no step holds.
    #[error("the number of lanes must be between 1 and {most}, not {found}")]
    Lanes {
        /// Lanes asked for.
        found: usize,
        /// Rows of a step.
        most: usize,
    },
    /// A device whose bandwidth and arithmetic could not be measured.
    #[error("the ceilings of this device cannot be measured, so nothing can be compared with them")]
    NoCeilings,
    /// Nothing to convert to another type.
    #[error(
        "there is nothing to quantise: the model's weights are quantised already, or their rows are not a whole number of blocks; load it as it is"
    )]
    NothingToQuantize,
    /// A draft model that cannot guess for the other.
    #[error("{draft} cannot draft: {reason}; use a smaller model of the same family")]
    Draft {
        /// The smaller model.
        draft: String,
        /// Why not.
        reason: String,
    },
    /// The engine's thread is gone.
    #[error("the engine has stopped; start it again")]
    Stopped,
    /// No pages for a sequence beside those that run.
    #[error("the KV pages are all in use; try again later, or give them more memory")]
    PagesInUse,
    /// Nothing to evaluate.
    #[error("the prompt is empty; give some text or at least one token")]
    EmptyPrompt,
    /// Too little text for an evaluation.
    #[error(
        "the text has {found} tokens, at least {needed} are needed for a context of {context}; use a longer text or a smaller context"
    )]
    ShortText {
        /// Tokens in the text.
        found: usize,
        /// Tokens needed.
        needed: usize,
        /// Window.
        context: usize,
    },
    /// A window of an evaluation that is too short, or longer than the context.
    #[error("the context of an evaluation must be between 4 and {most} tokens, not {found}")]
    Window {
        /// Tokens asked for.
        found: usize,
        /// Most tokens.
        most: usize,
    },
    /// Two models that do not share a vocabulary.
    #[error("the two models cannot be compared: {0}")]
    Incomparable(String),
}

fn advice(context: usize, model: usize) -> String {
    if context < model {
        format!("use fewer tokens or a larger context (the model allows up to {model})")
    } else {
        "that is all this model allows, so use fewer tokens".to_string()
    }
}

/// What a caller can do about an error. A server answers each kind in its own way, without reading
/// the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// A value of the request is not allowed; this is its field. Another value may be.
    InvalidRequest(&'static str),
    /// The prompt is longer than the context.
    ContextLength {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// Too many requests wait. Later there may be room.
    QueueFull,
    /// The model, or the way it was loaded, cannot do what was asked.
    Unsupported,
    /// The device is lost, and all requests fail from now on.
    DeviceLost,
    /// Memory ran out.
    OutOfMemory,
    /// The engine has stopped.
    Stopped,
    /// The model or the options that it is loaded with.
    Load,
    /// The engine, the device or the weights are at fault, and not the request.
    Internal,
}

impl EngineError {
    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        use crate::sampler::SamplingError::{OutOfRange, UnknownToken as BiasedToken, Vocabulary};
        use EngineError::*;
        match self {
            EmptyPrompt => ErrorKind::InvalidRequest("prompt"),
            UnknownToken { field, .. } | TooMany { field, .. } => ErrorKind::InvalidRequest(field),
            ConstraintUnmet { .. } | ConstraintFailed { .. } => {
                ErrorKind::InvalidRequest("constraint")
            }
            Sampling(OutOfRange { field, .. }) => ErrorKind::InvalidRequest(field),
            Sampling(BiasedToken { .. }) => ErrorKind::InvalidRequest("logit_bias"),
            ContextLength { needed, context, .. } => {
                ErrorKind::ContextLength { tokens: *needed, context: *context }
            }
            QueueFull { .. } => ErrorKind::QueueFull,
            NoTokenizer(_) | NoDraft | NoEmbeddings(_) | NoCeilings => ErrorKind::Unsupported,
            Incomparable(_) => ErrorKind::Unsupported,
            ShortText { .. } => ErrorKind::InvalidRequest("text"),
            Window { .. } => ErrorKind::InvalidRequest("context"),
            DeviceLost(_) => ErrorKind::DeviceLost,
            Device(error) => device_kind(error),
            StepFailed { kind, .. } => *kind,
            NoRoom { .. } | NoRoomForModel { .. } | PagesInUse => ErrorKind::OutOfMemory,
            Stopped => ErrorKind::Stopped,
            Model(_) | Plan(_) | Text(_) | Unreadable { .. } | Lanes { .. } | Draft { .. } => {
                ErrorKind::Load
            }
            NoSuchDevice { .. } | OneDevice | NoDevice | NoLayersOnFirst | NothingToQuantize => {
                ErrorKind::Load
            }
            NotANumber { .. } | Sampling(Vocabulary(_)) => ErrorKind::Internal,
        }
    }
}

/// The kind of a device's error.
pub(crate) fn device_kind(error: &DeviceError) -> ErrorKind {
    match error {
        DeviceError::OutOfMemory { .. } => ErrorKind::OutOfMemory,
        DeviceError::Lost { .. } => ErrorKind::DeviceLost,
        DeviceError::MissingTensor(_) | DeviceError::Shape { .. } | DeviceError::File(_) => {
            ErrorKind::Load
        }
        DeviceError::Unsupported(_) | DeviceError::UnsupportedOption(_) => ErrorKind::Unsupported,
        DeviceError::Interrupted => ErrorKind::Stopped,
        DeviceError::BadStep(_) | DeviceError::Timeout { .. } | DeviceError::Failed { .. } => {
            ErrorKind::Internal
        }
    }
}
