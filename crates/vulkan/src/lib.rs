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
//! how a kernel's work is cut. Nothing is allocated, recorded or chosen while playing.
//!
//! Every wait has a limit, and a lost device is an error, never a hang.
//!
//! Unsafe code is all over this crate: it calls Vulkan.

#![allow(unsafe_code)]

mod ablate;
mod budget;
mod commands;
mod describe;
mod device;
mod dry_run;
mod gpu;
mod instance;
mod lab;
mod layout;
mod measure;
mod memory;
mod pipeline;
mod policy;
mod probe;
mod profile;
mod program;
mod recording;
mod sample;
mod sampler;
mod statistics;
mod step;
mod transfer;
mod tune;
mod tuning;
mod upload;
mod weights;

pub use ablate::Ablation;
pub use describe::{GpuDescription, GpuKind, Heap, MatrixShape, Selection, describe, select};
pub use device::{VulkanDevice, VulkanOptions};
pub use dry_run::{OpLaunch, launches};
pub use gpu::Gpu;
pub use instance::Instance;
#[doc(hidden)]
pub use measure::atomic_additions;
pub use measure::measure;
pub use memory::HeapUse;
pub use recording::VulkanRecording;
#[doc(hidden)]
pub use sample::bench::{SampleBench, Sampled};
pub use statistics::{KernelStatistics, compile_plan};
pub use tune::{Trial, tune};
pub use tuning::{Stale, Tuning};
