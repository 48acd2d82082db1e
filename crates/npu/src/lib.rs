//! AMD's XDNA NPU (Ryzen AI), driven through the kernel's own interface: no XRT, no vendor library.
//!
//! ```text
//! npu_kernels/ ─► Package (manifest, xclbin, instructions; checked)
//!                    │
//! /dev/accel ─► Device ─► KernelRunner ─ self_test ─► matmul, attention (one shape)
//!                                │
//!                                ├─► TiledMatmul (any shape: padding, chains, two banks)
//!                                └─► placed::NpuDevice (a device of plans)
//! ```
//!
//! **Nothing here has been run on an NPU.** The interface is that of the kernel's public header, to
//! which a test compares every structure; file formats and packets follow public sources. The
//! driver's tests run against a stand-in and against `pianola-npu-model`, which hold every call to
//! the documented rules (with the feature `emulated` programs can use the model, too). Before a
//! result is used on a real device, [`runner::KernelRunner::self_test`] must pass there.
//!
//! Kernels are not part of this crate: users build them with AMD's open tools (mlir-aie, IRON,
//! mlir-air), and [`package::import`] makes packages of what the builds leave. Each file is
//! strange until checked, and a package that computes wrongly is refused by name.
//!
//! The crate never guesses what a kernel computes, never computes on the processor unless it was told to
//! ([`placed::Fallback`]), and never keeps more memory pinned than its caller allows.

pub mod amdxdna;
mod bytes;
#[cfg(feature = "emulated")]
pub mod emulated;
pub mod instructions;
pub mod package;
pub mod placed;
pub mod runner;
pub mod sharing;
pub mod xclbin;
