//! The kernel's driver `amdxdna`, by direct requests on `/dev/accel/accel*`.
//!
//! ```text
//! discover ─► Device (node, identity, heap 64 MiB) ─► Buffer (SHARE, DEV, CMD)
//!                └─► Context (columns, PDIs) ─► submit(Command, buffers) ─► wait ─► outcome
//! ```
//!
//! Values keep what they depend on: a buffer its device, a context its device and PDIs. So things
//! go in the order that the kernel wants: contexts, buffers, the heap's mapping and handle, the
//! descriptor.

mod abi;
mod buffer;
mod calls;
mod context;
mod device;
mod discover;
mod error;
#[cfg(test)]
mod layout_test;
mod mapping;
mod node;
mod packet;

pub use buffer::{Buffer, BufferKind, DmaBuf};
pub use calls::{Calls, Errno, SystemCalls};
pub use context::{Columns, Command, ComputeUnit, Context, MAX_IN_FLIGHT, Submission};
pub use device::{ContextUse, Device, Generation, HEAP_BYTES, Identity, PowerMode};
pub use discover::{Found, discover, discover_with};
pub use error::DriverError;
pub use packet::{COMMAND_BYTES, CommandState, MAX_BUFFERS, MAX_CHAIN, Packet};
