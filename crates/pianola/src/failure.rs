//! Why a command ended early, in the one form that `main` turns into words and an exit code.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use pianola_engine::sampler::SamplingError;
use pianola_engine::{EngineError, ErrorKind};
use pianola_hub::{HubError, ObtainError, PullError, SeveralFiles, StoreError};
use pianola_model::ModelError;
use pianola_npu::amdxdna::DriverError;
use pianola_npu::package::PackageError;
use pianola_plan::{DeviceError, PlanError};

use crate::interrupt;

/// Options of the command that runs; not set in tests, where all are known.
static OPTIONS: OnceLock<BTreeSet<String>> = OnceLock::new();

/// From now on errors advise only options that the command has.
pub fn set_options(options: impl Iterator<Item = String>) {
    // A process runs one command.
    let _ = OPTIONS.set(options.collect());
}

/// Those of some options that the command has, as advice behind a message.
fn advise(options: &[&str]) -> String {
    let name = |option: &str| option.split(' ').next().unwrap_or_default().to_string();
    let known = |option: &&&str| OPTIONS.get().is_none_or(|known| known.contains(&name(option)));
    let known: Vec<&str> = options.iter().filter(known).copied().collect();
    match known.is_empty() {
        true => String::new(),
        false => format!("; see {}", known.join(", ")),
    }
}

/// Why a command ended before its work was done.
#[derive(Debug)]
pub enum Failure {
    /// A usage error: other arguments would work. Exit code 2.
    Usage(String),
    /// It made sense and went wrong. Exit code 1.
    Failed(String),
    /// The files of a model cannot be used: the same until they change. Exit code 1.
    Model(String),
    /// Memory does not hold it; it may where less is in use. Exit code 1.
    Memory(String),
    /// Our output cannot be written, as on a full disk. Exit code 1.
    Output(String),
    /// The user pressed Ctrl-C. Exit code 130, as shells have it for signal 2.
    Interrupted,
    /// The same, and there is something to say about it. No error.
    Stopped(String),
    /// The reader of our output has closed it, as after `| head`: no error.
    ReaderGone,
}

impl Failure {
    /// A nonsensical request.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::Usage(message.into())
    }

    /// A sensible one that failed.
    pub fn failed(message: impl Into<String>) -> Failure {
        Failure::Failed(message.into())
    }

    /// The same, beginning with the file it is about, where it does not name it yet.
    pub fn about(self, path: &Path) -> Failure {
        let name = path.display().to_string();
        match self {
            Failure::Failed(message) if !message.contains(&name) => {
                Failure::Failed(format!("{name}: {message}"))
            }
            Failure::Model(message) if !message.contains(&name) => {
                Failure::Model(format!("{name}: {message}"))
            }
            Failure::Memory(message) if !message.contains(&name) => {
                Failure::Memory(format!("{name}: {message}"))
            }
            other => other,
        }
    }

    /// What the process returns.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Failed(_) | Failure::Model(_) | Failure::Memory(_) | Failure::Output(_) => 1,
            Failure::Interrupted | Failure::Stopped(_) => 130,
            Failure::ReaderGone => 0,
        }
    }

    /// The sentence to print, if there is something to say.
    pub fn message(&self) -> Option<&str> {
        match self {
            Failure::Usage(message)
            | Failure::Failed(message)
            | Failure::Model(message)
            | Failure::Memory(message)
            | Failure::Output(message) => Some(message),
            Failure::Interrupted | Failure::Stopped(_) | Failure::ReaderGone => None,
        }
    }

    /// What becomes of an error of standard output.
    pub fn of_output(error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ReaderGone,
            _ => Failure::Output(format!(
                "cannot write to standard output: {error}; check where it is redirected to"
            )),
        }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        let message = format!("{error}{}", option_for(&error));
        match error {
            EngineError::Sampling(error) => error.into(),
            EngineError::EmptyPrompt
            | EngineError::Draft { .. }
            | EngineError::NoDraft
            | EngineError::Lanes { .. }
            | EngineError::NoCeilings
            | EngineError::NothingToQuantize
            | EngineError::OneDevice
            | EngineError::Window { .. } => Failure::Usage(message),
            EngineError::TooMany { field, .. } | EngineError::UnknownToken { field, .. } => {
                Failure::Usage(with_option(&message, field))
            }
            EngineError::NoLayersOnFirst => {
                Failure::usage("--layers-on-gpu 0 leaves the GPU without work; use --device cpu")
            }
            EngineError::NoRoom { layers_asked, context_asked, .. } => {
                let advice = match (layers_asked, context_asked) {
                    (true, _) => "ask for fewer --layers-on-gpu or a smaller --context",
                    (false, true) => "ask for a smaller --context, or use --device cpu",
                    (false, false) => "give more with --gpu-memory, or use --device cpu",
                };
                Failure::Memory(format!("{error}; {advice}"))
            }
            EngineError::NoRoomForModel { weights, working, free, .. } => {
                let advice = match weights + working < free - free / 8 {
                    true => {
                        "ask for a smaller --context or for --kv-type q8_0, or take a smaller model"
                    }
                    false => "take a smaller model or quantisation, or close other programs",
                };
                Failure::Memory(format!("{error}; {advice} (`pianola list --all` shows what fits)"))
            }
            EngineError::Plan(error) => error.into(),
            EngineError::Model(error) => error.into(),
            _ => match error.kind() {
                ErrorKind::OutOfMemory => Failure::Memory(message),
                ErrorKind::Load | ErrorKind::Unsupported => Failure::Model(message),
                _ => Failure::Failed(message),
            },
        }
    }
}

/// The options of the command line that mend what went wrong: the engine knows none.
fn option_for(error: &EngineError) -> String {
    match error {
        EngineError::ContextLength { context, model, .. } if context < model => {
            advise(&["--context"])
        }
        EngineError::NoTokenizer(_) => " (`pianola run --tokens` takes token ids)".to_string(),
        EngineError::NotANumber { .. } => " (`pianola run --exact --simd reference`)".to_string(),
        EngineError::PagesInUse => advise(&["--kv-memory"]),
        EngineError::ShortText { .. } | EngineError::Window { .. } => advise(&["--context"]),
        EngineError::OneDevice => {
            ": --layers-on-gpu needs a GPU; name one with --device, or leave it out".to_string()
        }
        EngineError::NoDraft => advise(&["--draft"]),
        EngineError::NothingToQuantize => " (without --quantize)".to_string(),
        EngineError::Device(error) => device_advice(error),
        _ => String::new(),
    }
}

fn device_advice(error: &DeviceError) -> String {
    match error {
        // Where the processor has no room, nothing about a GPU helps.
        DeviceError::OutOfMemory { device, .. } if device == "cpu" => {
            advise(&["--context", "--kv-type", "--kv-memory"])
        }
        DeviceError::OutOfMemory { .. } => {
            advise(&["--context", "--kv-type", "--layers-on-gpu", "--device cpu"])
        }
        DeviceError::Unsupported(_) | DeviceError::Timeout { .. } | DeviceError::Failed { .. } => {
            advise(&["--device cpu"])
        }
        _ => String::new(),
    }
}

/// A message of the engine, which names a field of a request, with the option of the command line in
/// its place.
fn with_option(message: &str, field: &str) -> String {
    let option = match field {
        "temperature" => "--temp".to_string(),
        "repetition_penalty" => "--repeat-penalty".to_string(),
        // A prompt of token ids; text has none that are unknown.
        "prompt" => "--tokens".to_string(),
        other => format!("--{}", other.replace('_', "-")),
    };
    message.replacen(field, &option, 1)
}

impl From<SamplingError> for Failure {
    fn from(error: SamplingError) -> Failure {
        let message = error.to_string();
        Failure::Usage(match &error {
            SamplingError::OutOfRange { field, .. } => with_option(&message, field),
            SamplingError::UnknownToken { .. } => with_option(&message, "logit_bias"),
            SamplingError::Vocabulary(_) => message,
        })
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Failure {
        match error {
            PlanError::Limit { .. } => Failure::Usage(error.to_string()),
            PlanError::KvSize { .. } => {
                Failure::Usage(format!("{error}{}", advise(&["--context"])))
            }
            PlanError::KvBudget { .. } => {
                Failure::Usage(format!("{error}{}", advise(&["--kv-memory", "--context"])))
            }
            PlanError::NoLogits(_) | PlanError::NoKernel(_) | PlanError::KvApart { .. } => {
                Failure::Failed(error.to_string())
            }
        }
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Failure {
        Failure::Model(error.to_string())
    }
}

impl From<pianola_text::Error> for Failure {
    fn from(error: pianola_text::Error) -> Failure {
        let advice = match error {
            pianola_text::Error::Template(_) | pianola_text::Error::TemplateLimit(_) => {
                "; `pianola run --raw` does without the template"
            }
            _ => "",
        };
        Failure::Model(format!("{error}{advice}"))
    }
}

impl From<pianola_formats::Error> for Failure {
    fn from(error: pianola_formats::Error) -> Failure {
        let source = std::error::Error::source(&error);
        let source = source.and_then(|source| source.downcast_ref::<io::Error>());
        let advice = match source.map(io::Error::kind) {
            Some(io::ErrorKind::StorageFull) => "; make room on that disk, or write to another",
            Some(io::ErrorKind::NotFound) => "; check the path",
            _ => "",
        };
        Failure::Failed(format!("{error}{advice}"))
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        match error {
            StoreError::Unknown { .. } | StoreError::NoSuchPath { .. } => {
                Failure::Usage(error.to_string())
            }
            _ => Failure::Failed(error.to_string()),
        }
    }
}

impl From<SeveralFiles> for Failure {
    fn from(error: SeveralFiles) -> Failure {
        Failure::usage(error.to_string())
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Failure {
        match error {
            HubError::Name { .. } | HubError::SeveralLocal { .. } | HubError::NoLocal { .. } => {
                Failure::Usage(error.to_string())
            }
            _ => Failure::Failed(error.to_string()),
        }
    }
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Failure {
        match error {
            DriverError::OutOfMemory { .. } | DriverError::LockedMemory { .. } => {
                Failure::Memory(error.to_string())
            }
            _ => Failure::Failed(error.to_string()),
        }
    }
}

impl From<PackageError> for Failure {
    fn from(error: PackageError) -> Failure {
        match error {
            PackageError::Name(_) | PackageError::Exists(_) => Failure::Usage(error.to_string()),
            _ => Failure::Failed(error.to_string()),
        }
    }
}

const PARTS_KEPT: &str = "interrupted; finished parts are kept, and `pianola pull` continues";

impl From<ObtainError> for Failure {
    fn from(error: ObtainError) -> Failure {
        match error {
            ObtainError::Hub(error) => error.into(),
            ObtainError::Pull(error) => error.into(),
            ObtainError::Store(error) => error.into(),
        }
    }
}

impl From<PullError> for Failure {
    fn from(error: PullError) -> Failure {
        match error {
            // pip hears Ctrl-C too, and may have ended before we noticed.
            _ if interrupt::asked() => Failure::Stopped(PARTS_KEPT.to_string()),
            PullError::Cancelled => Failure::Stopped(PARTS_KEPT.to_string()),
            PullError::Store(error) => error.into(),
            _ => Failure::Failed(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_named_instead_of_fields() {
        let error = SamplingError::OutOfRange { field: "top_p", value: 1.5, allowed: "0 to 1" };
        let failure = Failure::from(EngineError::Sampling(error));
        assert_eq!(failure.message(), Some("--top-p is 1.5, allowed is 0 to 1"));
        let error = EngineError::UnknownToken { field: "prompt", token: 9, vocabulary: 4 };
        assert!(Failure::from(error).message().unwrap().starts_with("--tokens: token 9"));
    }

    #[test]
    fn nonsense_is_told_from_misfortune() {
        let code = |failure: Failure| failure.exit_code();
        assert_eq!(code(EngineError::EmptyPrompt.into()), 2);
        let long = EngineError::ContextLength { needed: 9, context: 8, model: 8 };
        assert_eq!(code(long.into()), 1);
        assert_eq!(code(StoreError::NoHome.into()), 1);
        let gone = io::Error::from(io::ErrorKind::BrokenPipe);
        assert_eq!(code(Failure::of_output(&gone)), 0);
    }
}
