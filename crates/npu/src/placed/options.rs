//! How the NPU is used as a device of plans.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use crate::runner::{RunOptions, TiledOptions};

/// The form in which weights and inputs are multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// Both in bf16, summed in f32.
    Bf16,
    /// Both in int8, the columns cut into pieces of the package's K. Each row of a weight and each row of
    /// an input has a scale of its own in each piece; sums of a piece are i32, and pieces are added up in
    /// f32 on the processor, in their order.
    Int8Pieces,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::Bf16 => "bf16",
            Precision::Int8Pieces => "int8",
        })
    }
}

/// What happens to a product that the device did not compute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallback {
    /// The play ends with the error.
    Report,
    /// The processor computes it, and the play goes on: in int8 with the same bits. It is counted.
    Twin,
}

/// A clock that never goes back: when a device that failed is tried again.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;
}

/// The system's clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        START.elapsed()
    }
}

/// How the NPU is used.
#[derive(Clone, Debug)]
pub struct NpuOptions {
    /// The folder of kernel packages, `npu_kernels`.
    pub kernels: PathBuf,
    /// The device node; none: the first NPU there is.
    pub node: Option<PathBuf>,
    /// None: what the packages allow; int8 before bf16, which the array computes at half the rate, unless
    /// the rotation is off. Divergence (KL) of the next token's distribution from exact mode's on SmolLM2
    /// 135M and Gemma 3 270M: bf16 0.0001; int8 in pieces of 512 0.0045 and 0.0039, without the rotation
    /// 0.032 and 0.031 (`tests/all/placed_quality.rs`). The processor's fast mode has 0.0020 and 0.0016.
    pub precision: Option<Precision>,
    /// Whether weights and inputs are rotated by a Hadamard matrix before they become int8, which spreads
    /// outliers over up to 128 columns. Off only to show what it is worth.
    pub rotation: bool,
    /// What happens to a product that the device did not compute.
    pub fallback: Fallback,
    /// Whether prompts use it whatever is predicted.
    pub always: bool,
    /// How long a command or a chain may take.
    pub run: RunOptions,
    /// Bounds of the staging buffers of each matmul package in use.
    pub tiled: TiledOptions,
    /// When a device that failed is tried again.
    pub clock: Arc<dyn Clock>,
    /// Bytes of the host's memory that may be used; none: what is available when a plan is made.
    pub memory: Option<u64>,
}

impl NpuOptions {
    /// With the packages of a folder, and otherwise the defaults.
    pub fn new(kernels: PathBuf) -> NpuOptions {
        NpuOptions {
            kernels,
            node: None,
            precision: None,
            rotation: true,
            fallback: Fallback::Report,
            always: false,
            run: RunOptions::default(),
            tiled: TiledOptions::default(),
            clock: Arc::new(SystemClock),
            memory: None,
        }
    }
}
