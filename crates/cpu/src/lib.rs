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
//! Unsafe code lies in the modules that allow it below: kernels on raw pointers (`simd`), an arena
//! that workers divide by jobs (`stage`, `record`, `recording`), and the memory under both.

// Tests that other crates share name this one.
#[cfg(test)]
extern crate self as pianola_cpu;

mod available;
mod check;
mod device;
#[macro_use]
mod fault;
#[allow(unsafe_code)]
mod kept;
#[allow(unsafe_code)]
mod kv;
#[allow(unsafe_code)]
mod measure;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
mod pack;
mod policy;
#[allow(unsafe_code)]
mod pool;
mod profile;
#[allow(unsafe_code)]
mod record;
#[allow(unsafe_code)]
mod recording;
mod reference;
#[allow(unsafe_code)]
mod simd;
#[cfg(test)]
#[path = "../../../tests/support/skip.rs"]
mod skip;
#[allow(unsafe_code)]
mod stage;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[allow(unsafe_code)]
mod system;
#[cfg(test)]
mod tests;
mod topology;
mod variants;
#[allow(unsafe_code)]
mod weights;
#[allow(unsafe_code)]
mod work;

pub use check::{CheckFailure, CheckReport, Noise, ReferenceModel, SampledRows, rounded};
pub use device::{CpuDevice, CpuOptions};
pub use measure::{CpuDescription, describe, measure};
pub use recording::CpuRecording;
pub use reference::rms_norm;
pub use simd::Level;
pub use simd::limit::check as check_simd_limit;
