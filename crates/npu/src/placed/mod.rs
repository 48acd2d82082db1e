//! The NPU as a device of plans: it records kernels of a plan and plays them.
//!
//! ```text
//! Plan, TensorSource ─► NpuDevice::record ─► NpuRecording ── jobs ──► worker thread
//!                                                │                       │ norms, sums, rotation, softmax,
//!                                             counters                   │ KV pages: here, on the processor
//!                                                                        └─► Link ─► TiledMatmul, attention
//!                                                                              └─ after a failure: the error,
//!                                                                                 or the same on the processor
//! ```
//!
//! Only matrix products and attention run on the array; everything around them is plain Rust in the worker,
//! which alone owns the driver's objects. Weights are a second copy in host memory, in bf16 or in int8
//! ([`Precision`]), and reach the array through the bounded buffers of [`crate::runner::TiledMatmul`].
//!
//! It never computes elsewhere without counting it ([`NpuCounters`]), and only where it was told to
//! ([`Fallback::Twin`]).

mod arena;
mod assigned;
mod attend;
mod costs;
mod device;
mod encode;
mod error;
mod kv;
mod link;
mod measure;
mod options;
mod packages;
mod parallel;
mod probe;
mod project;
mod recording;
mod rows;
mod session;
mod status;
mod twin;
mod variants;
mod weights;
mod worker;

pub use costs::Switches;
pub use device::{NpuDevice, NpuFacts};
pub use error::OpenError;
pub use options::{Clock, Fallback, NpuOptions, Precision, SystemClock};
pub use packages::Refused;
pub use recording::NpuRecording;
pub use status::NpuCounters;
