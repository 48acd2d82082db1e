//! The CPU device: plays a [`pianola_plan::Plan`] on worker threads.
//!
//! ```text
//! Plan + weights ──► CpuRecording { tiles16 weights, arena, KV pages, stages }
//!                         │ play(step)
//!                         ▼
//!      workers claim the jobs of a stage; the next waits until they are done
//! ```
//!
//! [`reference`] holds every operation in plain code, the measure of all others; [`simd`] holds
//! the kernels that run. Nothing is allocated while playing, and nothing is chosen: a stage has
//! its pointers, shapes and kernel from the recording.
//!
//! Unsafe code is all over this crate: kernels on raw pointers (`simd`), an arena that workers
//! divide by jobs (`stage`, `record`, `device`), and the memory under both.

#![allow(unsafe_code)]

mod check;
mod device;
mod kv;
mod measure;
mod memory;
mod pack;
mod policy;
mod pool;
mod profile;
mod record;
mod recording;
pub mod reference;
pub mod simd;
mod stage;
mod weights;
mod work;

pub use check::{CheckFailure, CheckReport, ReferenceModel};
pub use device::{CpuDevice, CpuOptions};
pub use measure::{CpuDescription, describe, measure};
pub use recording::CpuRecording;
pub use reference::rms_norm;
pub use simd::Level;
