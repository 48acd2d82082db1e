//! The Vulkan device: plays a [`pianola_plan::Plan`] on a GPU.
//!
//! ```text
//! Plan + weights ──► VulkanRecording { packed weights, pages, arena, programs }
//!                         │ first play of a row count: program ─► command buffer
//!                         │ play(step)
//!                         ▼
//!          write the step (a few bytes) ─► one submission ─► logits
//! ```
//!
//! [`program`] turns the plan into a list of dispatches, plain data; [`commands`] makes command
//! buffers of it. Kernels are in `shaders/`, one operation a file; their compiled form is kept in
//! `spirv/` (`scripts/shaders` makes it, a test compares the sums of the sources). [`policy`] says
//! how a kernel's work is cut. Once a row count was played, playing
//! it again allocates, records and chooses nothing.
//!
//! Every wait has a limit, and a lost device is an error, never a hang.
//!
//! Unsafe code lies in the modules that allow it below: they call Vulkan or write to mapped memory.

#[allow(unsafe_code)]
mod ablate;
mod budget;
#[allow(unsafe_code)]
mod busy;
#[allow(unsafe_code)]
mod commands;
mod constants;
mod decode;
#[allow(unsafe_code)]
mod describe;
mod device;
mod dry_run;
#[allow(unsafe_code)]
mod gpu;
#[allow(unsafe_code)]
mod instance;
#[allow(unsafe_code)]
mod lab;
mod layout;
#[allow(unsafe_code)]
mod measure;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
mod pipeline;
#[allow(unsafe_code)]
mod pipeline_cache;
mod policy;
#[allow(unsafe_code)]
mod probe;
#[allow(unsafe_code)]
mod profile;
mod program;
mod properties;
#[allow(unsafe_code)]
mod recording;
mod rotated;
#[allow(unsafe_code)]
mod sample;
#[allow(unsafe_code)]
mod sampler;
#[allow(unsafe_code)]
mod shared_memory;
#[allow(unsafe_code)]
mod statistics;
#[allow(unsafe_code)]
mod step;
#[allow(unsafe_code)]
mod transfer;
mod tune;
mod tuning;
#[allow(unsafe_code)]
mod upload;
mod weights;

pub use ablate::Ablation;
pub use decode::{ChainTrial, Decode};
pub use describe::{GpuDescription, GpuKind, Heap, MatrixShape, Selection, describe, select};
pub use device::{VulkanDevice, VulkanOptions};
pub use dry_run::{OpLaunch, decode_in_words, launches};
pub use gpu::Gpu;
pub use instance::Instance;
#[doc(hidden)]
pub use measure::atomic_additions;
pub use measure::measure;
pub use memory::HeapUse;
pub use pianola_plan::PromptWeights;
pub use properties::{Properties, description_json, shape_text};
pub use recording::VulkanRecording;
#[doc(hidden)]
pub use sample::bench::{SampleBench, Sampled};
pub use shared_memory::{HandleType, SharedBuffer, SharedMemoryError, Way};
pub use statistics::{KernelStatistics, compile_plan};
#[doc(hidden)]
pub use tune::tune_spoiled;
pub use tune::{Trial, tune};
pub use tuning::{Stale, Tuning};
