//! `npu (emulated)`: a model of AMD's XDNA1 NPU (Phoenix, Hawk Point) and of the Linux driver
//! `amdxdna` in front of it, as strict as the kernel.
//!
//! It exists to prove a user-mode driver right, and so shares no type and no constant with one: every
//! offset here was written down a second time from the kernel's public interface.
//!
//! ```text
//! open, ioctl, mmap ──► Model ──► request ──► buffers, contexts, syncobjs      (the kernel's rules)
//!                                    │
//!                                EXEC_CMD ──► worker: packet ──► stream ──► kernel description
//!                                                                              │
//!                      SYNC_BO ◄── device view of each buffer ◄── matmul, attention
//! ```
//!
//! - Buffers have two views, the host's (memory that is really mapped) and the device's. Only `SYNC_BO`
//!   copies between them, so that a missing flush or invalidation shows as stale data.
//! - What the array computes cannot be read from a PDI. A [`Kernel`] registered for a PDI says it; the
//!   instruction stream is decoded for real and has to agree with it.
//! - [`Faults`] plan timeouts, errors, lost contexts, refused allocations and wrong results.
//!
//! Where the kernel's releases differ, the model takes the stricter rule. It never touches a real
//! device and never claims that a number it computes was measured on one.

pub mod artefacts;
mod attention;
mod buffer;
mod bytes;
mod client;
mod command;
mod config;
mod context;
mod description;
mod descriptor;
mod device;
mod errno;
mod execute;
mod fault;
mod handle;
mod heap;
mod info;
mod kernel;
mod matmul;
mod memory;
mod packet;
mod prime;
mod registry;
mod request;
mod rounding;
mod state;
mod stream;
mod syncobj;
mod user;
mod worker;

pub use config::{Addressing, Config};
pub use description::{Description, DescriptionError, parse_kernels};
pub use device::Model;
pub use errno::Errno;
pub use fault::{FaultError, Faults};
pub use kernel::{
    Activation, Attention, Element, Kernel, KernelError, Layout, Matmul, Partial, Tile,
};
pub use matmul::pack;
pub use rounding::Rounding;
