//! What a device offers: it records a plan and plays steps.

use crate::plan::DeviceKind;
use crate::step::Step;

/// Physical ceilings of a device, measured on the spot.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ceilings {
    /// Bytes per second that a plain read of memory reaches.
    pub bytes_per_second: f64,
    /// Operations per second of the arithmetic that the plan's mode uses.
    pub operations_per_second: f64,
}

impl Ceilings {
    /// Shortest time, in seconds, that the work can take.
    pub fn seconds(&self, work: crate::Work) -> f64 {
        let memory = work.bytes as f64 / self.bytes_per_second;
        memory.max(work.operations as f64 / self.operations_per_second)
    }
}

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
    /// Memory the plan needs is not there.
    #[error("{device} has no room for {what}: {bytes} bytes could not be allocated")]
    OutOfMemory {
        /// Device.
        device: DeviceKind,
        /// What was being allocated.
        what: String,
        /// How much.
        bytes: u64,
    },
    /// The step does not fit the plan: a defect of the caller.
    #[error("a step does not fit its recording: {0}")]
    BadStep(String),
    /// The machine lacks something that was asked for.
    #[error("{0}")]
    Unsupported(String),
}

/// What playing cost so far.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct PlayStatistics {
    /// Plays.
    pub plays: u64,
    /// Wall-clock seconds inside plays.
    pub seconds: f64,
    /// Seconds of `seconds` that the workers spent computing, summed and divided by their number.
    pub busy_seconds: f64,
}

/// A plan in replayable form on one device.
pub trait Recording: Send {
    /// Plays one step. Afterwards [`Recording::logits`] holds a row for each of `step.logits`.
    fn play(&mut self, step: &Step) -> Result<(), DeviceError>;

    /// Logits of the `index`-th row that wanted them, `[vocabulary]`. Writable, because sampling
    /// works in place.
    fn logits(&mut self, index: usize) -> &mut [f32];

    /// Points entry `index` of a sequence's page table at `page`.
    fn map_page(&mut self, group: usize, sequence: usize, index: usize, page: u32);

    /// Forgets that entry: no row may see it any more.
    fn unmap_page(&mut self, group: usize, sequence: usize, index: usize);

    /// Counters since the recording was made.
    fn statistics(&self) -> PlayStatistics;
}
