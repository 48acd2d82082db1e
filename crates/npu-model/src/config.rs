//! What kind of machine the model is.

use std::time::Duration;

use crate::fault::Faults;

/// The address by which the device knows a SHARE buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addressing {
    /// The user address of the buffer's mapping; `GET_BO_INFO` says `~0` (older kernels).
    UserImplied,
    /// The user address of the buffer's mapping, which `GET_BO_INFO` returns (newer kernels).
    User,
    /// An address of the IOMMU that has nothing to do with the user's (without shared addresses).
    Dma,
}

/// The machine, the kernel and what goes wrong.
#[derive(Clone, Debug)]
pub struct Config {
    /// How SHARE buffers are addressed.
    pub addressing: Addressing,
    /// Whether the process may change the device's state (`SET_STATE`).
    pub root: bool,
    /// The version that `DRM_VERSION` returns. The minor number gates features: from 1 `GET_ARRAY`, and
    /// another meaning of `GET_INFO`'s size for contexts; from 4 the resource information.
    pub version: (i32, i32, i32),
    /// The firmware's version: major, minor, patch, build.
    pub firmware: [u32; 4],
    /// When a command that never completes is given up by the kernel (60 s there).
    pub hang_limit: Duration,
    /// The time that each command takes besides the arithmetic of the model.
    pub dispatch_time: Duration,
    /// Whether `PRIME_FD_TO_HANDLE` takes memory of other devices (any file that can be mapped).
    pub foreign_import: bool,
    /// What goes wrong.
    pub faults: Faults,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            addressing: Addressing::User,
            root: false,
            version: (0, 6, 0),
            firmware: [1, 5, 5, 391],
            hang_limit: Duration::from_secs(60),
            dispatch_time: Duration::ZERO,
            foreign_import: false,
            faults: Faults::default(),
        }
    }
}

/// Columns of the array. The first is irregular and only taken by a context of all five.
pub(crate) const COLUMNS: u32 = 5;
/// Cores of a column.
pub(crate) const CORE_ROWS: u32 = 4;
/// Contexts that the firmware keeps at once.
pub(crate) const MAX_CONTEXTS: usize = 6;
/// Commands in flight in one context; one more blocks in `EXEC_CMD`.
pub(crate) const MAX_IN_FLIGHT: u64 = 4;
/// Where the device sees its heap.
pub(crate) const HEAP_BASE: u64 = 0x400_0000;
/// The size of the heap, and the alignment of its mapping.
pub(crate) const HEAP_SIZE: u64 = 64 << 20;
/// The alignment of DEV buffers in the heap.
pub(crate) const DEV_ALIGNMENT: u64 = 32 << 10;
/// Bytes of the command list that the kernel fills for a chain.
pub(crate) const CHAIN_BYTES: usize = 4096;
