//! Kinds of descriptors, and why one cannot be used.

use ash::vk;
use pianola_plan::DeviceError;
use std::fmt;

/// What the descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandleType {
    /// The kernel's own kind, which drivers of different devices share.
    DmaBuf,
    /// One that only the same Vulkan driver understands.
    Opaque,
}

impl HandleType {
    /// Both, what other devices understand first.
    pub const ALL: [HandleType; 2] = [HandleType::DmaBuf, HandleType::Opaque];

    pub(super) fn flag(self) -> vk::ExternalMemoryHandleTypeFlags {
        match self {
            HandleType::DmaBuf => vk::ExternalMemoryHandleTypeFlags::DMA_BUF_EXT,
            HandleType::Opaque => vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD,
        }
    }
}

impl fmt::Display for HandleType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HandleType::DmaBuf => "a dma-buf",
            HandleType::Opaque => "an opaque descriptor",
        })
    }
}

/// Which way a descriptor goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Into the GPU's driver.
    Import,
    /// Out of it.
    Export,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Import => "import",
            Way::Export => "export",
        })
    }
}

/// Why memory cannot be shared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedMemoryError {
    /// The driver lacks an extension.
    #[error("{device} ({driver}) lacks {extension}: it cannot share memory as {handle}")]
    Missing {
        /// The GPU.
        device: String,
        /// Its driver.
        driver: String,
        /// The extension.
        extension: &'static str,
        /// What was asked for.
        handle: HandleType,
    },
    /// The driver has the extensions and shares no storage buffers by them.
    #[error("{device} does not {way} storage buffers as {handle}")]
    Unsupported {
        /// The GPU.
        device: String,
        /// What was asked for.
        way: Way,
        /// As what.
        handle: HandleType,
    },
    /// The descriptor has fewer bytes than the buffer.
    #[error("the descriptor has {found} bytes, the buffer would have {needed}")]
    TooSmall {
        /// Bytes of the buffer, with what the driver adds to it.
        needed: u64,
        /// Bytes of the descriptor.
        found: u64,
    },
    /// A buffer of no bytes, or of a part of a word.
    #[error(
        "a shared buffer has whole words of four bytes and at least one: {0} bytes were asked for"
    )]
    Size(u64),
    /// The descriptor has no length.
    #[error("the descriptor cannot be used: {0}")]
    Descriptor(std::io::Error),
    /// No memory of the GPU can hold the buffer.
    #[error("{device} has no memory type that can {way} {handle} for a storage buffer")]
    NoMemoryType {
        /// The GPU.
        device: String,
        /// What was asked for.
        way: Way,
        /// As what.
        handle: HandleType,
    },
    /// A call of Vulkan's failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
