//! What can go wrong between this process and the device, with the cause and the fix.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::calls::Errno;
use super::node::{Failure, locked_memory_limit};
use super::packet::CommandState;

/// Why the NPU cannot be used, or did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// No device node and no such device on the PCI bus.
    #[error(
        "no NPU: there is no /dev/accel/accel*. An AMD Ryzen AI processor needs Linux 6.14 or later \
         with the amdxdna driver (`sudo modprobe amdxdna`), and the NPU enabled in the firmware setup"
    )]
    NoDevice,

    /// The device is on the bus, but no driver made a node for it.
    #[error(
        "the NPU (PCI 1022:{device:04x}) has no driver: load it with `sudo modprobe amdxdna` (Linux \
         6.14 or later); if it stays without, `sudo dmesg | grep amdxdna` says why"
    )]
    NotBound {
        /// The PCI device.
        device: u16,
    },

    /// The device is on the bus, and its firmware is not on the disk.
    #[error(
        "the NPU's firmware {} is not installed, so that amdxdna cannot start it: install a current \
         linux-firmware, then `sudo modprobe -r amdxdna && sudo modprobe amdxdna`", .file.display()
    )]
    FirmwareMissing {
        /// The folder or file that the driver looks for.
        file: PathBuf,
    },

    /// The user may not open the node.
    #[error(
        "no permission to open {}: add yourself to the group `render` (`sudo usermod -aG render \
         $USER`), then log in again", .path.display()
    )]
    Permission {
        /// The node.
        path: PathBuf,
    },

    /// The node cannot be opened for another reason.
    #[error("cannot open {}: {}", .path.display(), io::Error::from_raw_os_error(*.errno))]
    Open {
        /// The node.
        path: PathBuf,
        /// The system's error.
        errno: Errno,
    },

    /// An accelerator of another make.
    #[error("{} belongs to the driver `{name}`, not to amdxdna; name another node", .path.display())]
    ForeignDriver {
        /// The node.
        path: PathBuf,
        /// Its driver's name.
        name: String,
    },

    /// An array that this driver has no facts about.
    #[error(
        "an unknown array: {columns} columns, {rows} rows, {core_rows} of them cores. Known are \
         Phoenix and Hawk Point (npu1: 5 columns) and Strix, Strix Halo and Krackan (npu2: 8)"
    )]
    UnknownArray {
        /// Columns by the driver's metadata.
        columns: u16,
        /// Rows, shim and memory tiles included.
        rows: u16,
        /// Rows of cores.
        core_rows: u16,
    },

    /// Memory for the device could not be locked.
    #[error(
        "{needed} bytes cannot be locked: the limit is {limit} (`ulimit -l` shows it in KiB). Raise \
         it with `* - memlock unlimited` in /etc/security/limits.conf and log in again, or \
         LimitMEMLOCK=infinity in a systemd unit"
    )]
    LockedMemory {
        /// Bytes of the buffer.
        needed: u64,
        /// Bytes that may be locked.
        limit: u64,
    },

    /// The system has no memory for a buffer.
    #[error("no memory for an NPU buffer of {needed} bytes; close programs or use smaller staging")]
    OutOfMemory {
        /// Bytes of the buffer.
        needed: u64,
    },

    /// The device heap has no room.
    #[error(
        "the device heap of {heap} bytes has no room for {needed} more: fewer or smaller kernel \
         packages must be loaded at once"
    )]
    HeapFull {
        /// Bytes of the buffer.
        needed: u64,
        /// Bytes of the heap.
        heap: u64,
    },

    /// All hardware contexts are taken.
    #[error(
        "no free hardware context: the device has {limit}{}; end another program that uses the NPU",
        in_use_text(*.in_use)
    )]
    NoFreeContext {
        /// Contexts in use by all programs, where the driver says.
        in_use: Option<usize>,
        /// Contexts that the device has.
        limit: usize,
    },

    /// A kernel needs more columns than there are.
    #[error("the kernel needs {wanted} columns and the device has {available}: build it for fewer")]
    TooWide {
        /// Columns of the kernel.
        wanted: u16,
        /// Columns of the device.
        available: u16,
    },

    /// More commands are in flight than a context takes.
    #[error("{limit} commands are in flight already: wait for one before submitting another")]
    QueueFull {
        /// Commands that a context takes.
        limit: usize,
    },

    /// A command did not end in time. The context is given up.
    #[error(
        "the NPU did not finish within {after:?}. Load the kernel again; if it happens again, \
         `sudo modprobe -r amdxdna && sudo modprobe amdxdna` resets the device"
    )]
    Timeout {
        /// The limit that passed.
        after: Duration,
    },

    /// The device reported that a command failed.
    #[error(
        "the NPU ended a command in the state {state:?}{}; `sudo dmesg | grep amdxdna` may say why",
        index_text(*.index)
    )]
    CommandFailed {
        /// The final state in the command's header.
        state: CommandState,
        /// Which command of a chain.
        index: Option<u32>,
    },

    /// The context was reset or given up; no command will run in it any more.
    #[error("the hardware context is lost (state {state:?}): load the kernel again")]
    ContextLost {
        /// What ended it.
        state: CommandState,
    },

    /// The device went away: unplugged, reset or suspended for good.
    #[error("the NPU is gone ({call} found no device): open it again")]
    DeviceLost {
        /// The request that found out.
        call: &'static str,
    },

    /// The kernel's driver cannot share buffers.
    #[error(
        "amdxdna {}.{} of this kernel does not share buffers with other drivers; Linux 6.15 or later \
         does", .version.0, .version.1
    )]
    PrimeUnsupported {
        /// The driver's version.
        version: (i32, i32),
    },

    /// Only SHARE buffers can be given to other drivers.
    #[error("a buffer inside the device heap or of a command cannot be shared with other drivers")]
    NotShareable,

    /// More is asked of one call than the kernel takes.
    #[error("{what}: {count}, of which the kernel takes at most {limit}")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// How many were asked for.
        count: usize,
        /// How many the kernel takes.
        limit: usize,
    },

    /// The driver gave an address that cannot be.
    #[error("the driver placed a buffer outside of the device heap (address {address:#x})")]
    BadAddress {
        /// The address.
        address: u64,
    },

    /// Another failure of a request.
    #[error("{call} failed: {}{}", io::Error::from_raw_os_error(*.errno), hint(*.errno))]
    Call {
        /// The kernel's name of the request.
        call: &'static str,
        /// The system's error.
        errno: Errno,
    },
}

fn in_use_text(in_use: Option<usize>) -> String {
    in_use.map_or(String::new(), |count| format!(", {count} in use"))
}

fn index_text(index: Option<u32>) -> String {
    index.map_or(String::new(), |index| format!(" (number {index} of its chain)"))
}

/// What an error number means when this driver's kernel side returns it.
fn hint(errno: Errno) -> &'static str {
    match errno {
        libc::ENOTTY | libc::EOPNOTSUPP => {
            "; this kernel's amdxdna does not know the request: use a newer kernel"
        }
        libc::EINVAL => "; `sudo dmesg | grep amdxdna` names the argument that was refused",
        _ => "",
    }
}

impl DriverError {
    /// Why a node did not open.
    pub(crate) fn open(path: &Path, errno: Errno) -> DriverError {
        let path = path.to_path_buf();
        match errno {
            libc::EACCES | libc::EPERM => DriverError::Permission { path },
            errno => DriverError::Open { path, errno },
        }
    }

    /// Why memory for a buffer of `needed` bytes could not be had or mapped. The kernel answers
    /// `EAGAIN`, `EPERM` or `ENOMEM` where the limit of locked memory is too low, depending on its
    /// version; the limit itself tells these apart from a lack of memory.
    pub(crate) fn memory(failure: Failure, needed: u64) -> DriverError {
        match (failure.errno, locked_memory_limit()) {
            (libc::EAGAIN | libc::EPERM | libc::ENOMEM, Some(limit)) if limit < needed => {
                DriverError::LockedMemory { needed, limit }
            }
            (libc::ENOMEM, _) => DriverError::OutOfMemory { needed },
            _ => failure.into(),
        }
    }

    /// Why a buffer could not be exported or imported.
    pub(crate) fn prime(failure: Failure, version: (i32, i32)) -> DriverError {
        match failure.errno {
            libc::ENOSYS | libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL => {
                DriverError::PrimeUnsupported { version }
            }
            _ => failure.into(),
        }
    }
}

impl From<Failure> for DriverError {
    fn from(Failure { call, errno }: Failure) -> DriverError {
        match errno {
            libc::ENODEV | libc::ENXIO => DriverError::DeviceLost { call },
            errno => DriverError::Call { call, errno },
        }
    }
}
