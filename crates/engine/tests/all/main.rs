//! All tests of the crate from outside, in one program: linking one for each file takes minutes.

mod bench;
mod check;
mod constraints;
mod events;
mod gpu_sampling;
mod gpu_sampling_whole;
mod interrupt;
mod library_page;
mod models;
mod npu;
mod placement;
mod reproducible;
mod sampling;
mod sampling_mixed;
mod scheduler;
mod service;
mod support;
mod vulkan;
