//! What a device offers: it records a plan and plays steps.

use crate::graph::TensorId;
use crate::kv::KvSlot;
use crate::plan::{DeviceKind, Plan};
use crate::profile::KernelTime;
use crate::sampling::DeviceSampler;
use crate::step::{Row, Step};

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
    /// The device is gone: reset by its driver, or unplugged.
    #[error(
        "{device} was lost during {during}: its driver reset it, often because a submission took too long; what was being generated is incomplete"
    )]
    Lost {
        /// Device.
        device: String,
        /// What it was doing.
        during: String,
    },
    /// The device did not answer.
    #[error("{device} did not finish {during} within {seconds} s; it may hang: try --device cpu")]
    Timeout {
        /// Device.
        device: String,
        /// What it was doing.
        during: String,
        /// How long was waited.
        seconds: u64,
    },
    /// A call to the device failed.
    #[error("{device} failed at {what}: {reason}; update its driver or use --device cpu")]
    Failed {
        /// Device.
        device: String,
        /// What was asked of it.
        what: String,
        /// What it said.
        reason: String,
    },
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
    /// Seconds of `seconds` that the device computed: workers' time divided by their number, or
    /// the time between a submission and its end.
    pub busy_seconds: f64,
    /// Submissions to a queue.
    pub submits: u64,
    /// Kernels launched by them.
    pub dispatches: u64,
    /// Device memory allocated while playing; none, unless an experiment asks for it.
    pub allocations: u64,
}

impl std::ops::Sub for PlayStatistics {
    type Output = PlayStatistics;
    fn sub(self, before: PlayStatistics) -> PlayStatistics {
        PlayStatistics {
            plays: self.plays - before.plays,
            seconds: self.seconds - before.seconds,
            busy_seconds: self.busy_seconds - before.busy_seconds,
            submits: self.submits - before.submits,
            dispatches: self.dispatches - before.dispatches,
            allocations: self.allocations - before.allocations,
        }
    }
}

impl std::ops::AddAssign for PlayStatistics {
    fn add_assign(&mut self, more: PlayStatistics) {
        self.plays += more.plays;
        self.seconds += more.seconds;
        self.busy_seconds += more.busy_seconds;
        self.submits += more.submits;
        self.dispatches += more.dispatches;
        self.allocations += more.allocations;
    }
}

/// A plan in replayable form on one device.
pub trait Recording: Send {
    /// The plan that this plays.
    fn plan(&self) -> &Plan;

    /// Plays one step. Afterwards [`Recording::logits`] holds a row for each of `step.logits`.
    fn play(&mut self, step: &Step) -> Result<(), DeviceError>;

    /// Logits of the `index`-th row that wanted them, `[vocabulary]`. Writable, because sampling
    /// works in place.
    fn logits(&mut self, index: usize) -> &mut [f32];

    /// What samples on the device; none where tokens are sampled by the host, from the logits.
    fn sampler(&self) -> Option<&dyn DeviceSampler> {
        None
    }

    /// The same, to sample with.
    fn sampler_mut(&mut self) -> Option<&mut dyn DeviceSampler> {
        None
    }

    /// Makes everything ready that any step may need, where the first step of its kind would
    /// otherwise wait for it.
    fn record_ahead(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Points entry `index` of a sequence's page table at `page`.
    fn map_page(&mut self, group: usize, sequence: usize, index: usize, page: u32);

    /// Forgets that entry: no row may see it any more.
    fn unmap_page(&mut self, group: usize, sequence: usize, index: usize);

    /// From now on, also count how long the device computes rather than waits, where counting
    /// costs anything.
    fn measure_busy(&mut self, _on: bool) {}

    /// From now on, time every kernel of every play, at the cost of speed. False where the device
    /// cannot.
    fn start_profile(&mut self) -> bool {
        false
    }

    /// What was timed since, and an end to it.
    fn take_profile(&mut self) -> Vec<KernelTime> {
        Vec::new()
    }

    /// Counters since the recording was made.
    fn statistics(&self) -> PlayStatistics;
}

/// A recording that can be looked into: kernel by kernel, tensor by tensor. For checks only; slow.
pub trait Probe: Recording {
    /// Makes ready to play the kernels of `step` one by one.
    fn begin(&mut self, step: &Step) -> Result<(), DeviceError>;

    /// Plays kernel `op` of the plan, on what the kernels before it left.
    fn play_op(&mut self, op: usize, step: &Step) -> Result<(), DeviceError>;

    /// The first `rows` rows of a tensor that has a place in the arena.
    fn read_tensor(&mut self, tensor: TensorId, rows: usize) -> Result<Vec<f32>, DeviceError>;

    /// Stored keys and values of some rows, `[rows][kv_heads * head_dim]` each.
    fn read_kv(&mut self, slot: KvSlot, rows: &[Row]) -> Result<[Vec<f32>; 2], DeviceError>;

    /// The recording itself, for what only one device has.
    fn as_any(&self) -> &dyn std::any::Any;

    /// The same, to be changed.
    fn as_any_mut(&mut self) -> &mut dyn std::any::Any;

    /// Overwrites the arena with NaN, so that reading what was never written shows.
    fn poison(&mut self) -> Result<(), DeviceError>;
}
