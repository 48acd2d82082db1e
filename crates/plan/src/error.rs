//! Why a device cannot record or play.

/// Why a device cannot record or play.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A weight the plan names is not in the file.
    #[error(
        "tensor '{0}' is missing from the model; the file is incomplete or of another architecture"
    )]
    MissingTensor(String),
    /// A weight has another shape than the architecture says.
    #[error("tensor '{name}' has shape {found:?}, but the configuration asks for {expected:?}")]
    Shape {
        /// Tensor.
        name: String,
        /// Shape by the configuration.
        expected: Vec<usize>,
        /// Shape in the file.
        found: Vec<usize>,
    },
    /// The model's file was cut short, or could not be read, while it was loaded.
    #[error(transparent)]
    File(#[from] pianola_formats::Error),
    /// Memory the plan needs is not there.
    #[error("{device} has no room for {what}: {} could not be allocated", crate::size_text(*.bytes))]
    OutOfMemory {
        /// Device.
        device: String,
        /// What was being allocated.
        what: String,
        /// How much.
        bytes: u64,
    },
    /// The step does not fit the plan: a defect of the caller.
    #[error("a step does not fit its recording: {0}")]
    BadStep(String),
    /// The device is gone: reset by its driver, or unplugged.
    #[error(
        "{device} was lost during {during}: its driver reset it, often because a submission took too long"
    )]
    Lost {
        /// Device.
        device: String,
        /// What it was doing.
        during: String,
    },
    /// The device did not answer.
    #[error("{device} did not finish {during} within {seconds} s; it may hang")]
    Timeout {
        /// Device.
        device: String,
        /// What it was doing.
        during: String,
        /// How long was waited.
        seconds: u64,
    },
    /// A call to the device failed.
    #[error("{device} failed at {what}: {reason}; update its driver or use another device")]
    Failed {
        /// Device.
        device: String,
        /// The call that failed.
        what: String,
        /// What it said.
        reason: String,
    },
    /// The flag of [`crate::Recording::set_interrupt`] was set during a play: nothing of it counts.
    #[error("the play was interrupted")]
    Interrupted,
    /// The machine lacks something that was asked for.
    #[error("{0}")]
    Unsupported(String),
    /// An option that the device or the plan cannot do; the message names the one to use instead.
    #[error("{0}")]
    UnsupportedOption(String),
}
