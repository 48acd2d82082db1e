//! The kernel's structures and request numbers (`drm/amdxdna_accel.h`, `drm/drm.h`), as they lie in
//! memory. `layout_test.rs` holds every size, offset and number to the published figures and, where
//! a C compiler and the kernel's header are at hand, to the header itself.

/// An ioctl: the structure that it takes, and its number.
///
/// # Safety
/// `Self` must be the `repr(C)` structure that the kernel expects for `NUMBER`, with a size equal
/// to the one encoded in the number.
#[allow(unsafe_code)]
pub(crate) unsafe trait Request {
    /// The request number.
    const NUMBER: u64;
    /// The kernel's name of the request, for messages.
    const NAME: &'static str;
}

/// Declares a structure of 32- and 64-bit fields and the request that takes it.
macro_rules! request {
    ($(#[$doc:meta])* $structure:ident, $number:literal, $name:literal { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct $structure {
            $(pub(crate) $field: $type,)*
        }

        #[allow(unsafe_code)]
        // SAFETY: the structure is `repr(C)`; `layout_test.rs` compares its size and offsets with
        // the kernel's, and the size in the number with the size of the structure.
        unsafe impl Request for $structure {
            const NUMBER: u64 = $number;
            const NAME: &'static str = $name;
        }
    };
}

request! {
    /// A hardware context: a share of the array's columns with a command queue of its own.
    CreateContext, 0xC038_6440, "CREATE_HWCTX" {
        ext: u64,
        ext_flags: u64,
        qos: u64,
        queue_buffer: u32,
        log_buffer: u32,
        operations_per_cycle: u32,
        tiles: u32,
        memory_size: u32,
        doorbell: u32,
        handle: u32,
        syncobj: u32,
    }
}

request! {
    /// Gives a context back.
    DestroyContext, 0xC008_6441, "DESTROY_HWCTX" {
        handle: u32,
        pad: u32,
    }
}

request! {
    /// Sets what a context runs: `CONFIG_CU` is the only parameter used here.
    ConfigContext, 0xC018_6442, "CONFIG_HWCTX" {
        handle: u32,
        parameter: u32,
        value: u64,
        size: u32,
        pad: u32,
    }
}

request! {
    /// A new buffer object.
    CreateBuffer, 0xC020_6443, "CREATE_BO" {
        flags: u64,
        address: u64,
        size: u64,
        kind: u32,
        handle: u32,
    }
}

request! {
    /// Where a buffer is: for `mmap`, in this process, and for the device.
    BufferInfo, 0xC030_6444, "GET_BO_INFO" {
        ext: u64,
        ext_flags: u64,
        handle: u32,
        pad: u32,
        map_offset: u64,
        user_address: u64,
        device_address: u64,
    }
}

request! {
    /// Flushes or invalidates the processor's caches over a part of a buffer.
    SyncBuffer, 0xC018_6445, "SYNC_BO" {
        handle: u32,
        direction: u32,
        offset: u64,
        size: u64,
    }
}

request! {
    /// Submits one command.
    Execute, 0xC038_6446, "EXEC_CMD" {
        ext: u64,
        ext_flags: u64,
        context: u32,
        kind: u32,
        commands: u64,
        arguments: u64,
        command_count: u32,
        argument_count: u32,
        sequence: u64,
    }
}

request! {
    /// A question about the device; the answer goes into a buffer of the caller's.
    GetInfo, 0xC010_6447, "GET_INFO" {
        parameter: u32,
        size: u32,
        buffer: u64,
    }
}

request! {
    /// DRM: the driver's name and version.
    Version, 0xC040_6400, "DRM_VERSION" {
        major: i32,
        minor: i32,
        patch: i32,
        pad: u32,
        name_length: u64,
        name: u64,
        date_length: u64,
        date: u64,
        description_length: u64,
        description: u64,
    }
}

request! {
    /// DRM: closes a buffer's handle.
    CloseBuffer, 0x4008_6409, "GEM_CLOSE" {
        handle: u32,
        pad: u32,
    }
}

request! {
    /// DRM: a buffer as a file descriptor that other drivers take.
    HandleToFd, 0xC00C_642D, "PRIME_HANDLE_TO_FD" {
        handle: u32,
        flags: u32,
        fd: i32,
    }
}

request! {
    /// DRM: a buffer of another driver, by its file descriptor.
    FdToHandle, 0xC00C_642E, "PRIME_FD_TO_HANDLE" {
        handle: u32,
        flags: u32,
        fd: i32,
    }
}

request! {
    /// DRM: closes a synchronisation object.
    DestroySyncobj, 0xC008_64C0, "SYNCOBJ_DESTROY" {
        handle: u32,
        pad: u32,
    }
}

request! {
    /// DRM: waits until points of timelines are reached. The time limit is absolute, of the
    /// monotonic clock.
    TimelineWait, 0xC030_64CA, "SYNCOBJ_TIMELINE_WAIT" {
        handles: u64,
        points: u64,
        timeout_ns: i64,
        count: u32,
        flags: u32,
        first_signaled: u32,
        pad: u32,
        deadline_ns: u64,
    }
}

/// What a context asks of the driver's scheduler; zero is "no demand".
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QualityOfService {
    pub(crate) gops: u32,
    pub(crate) fps: u32,
    pub(crate) dma_bandwidth: u32,
    pub(crate) latency: u32,
    pub(crate) frame_time: u32,
    pub(crate) priority: u32,
}

/// One compute unit of `CONFIG_CU`, after its 8-byte head.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ComputeUnitConfig {
    pub(crate) buffer: u32,
    pub(crate) function: u8,
    pub(crate) pad: [u8; 3],
}

/// `CONFIG_CU` with the largest number of units; what is sent ends behind the last one used.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ContextUnits {
    pub(crate) count: u16,
    pub(crate) pad: [u16; 3],
    pub(crate) units: [ComputeUnitConfig; MAX_UNITS],
}

/// One kind of tile in [`ArrayMetadata`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TileMetadata {
    pub(crate) row_count: u16,
    pub(crate) row_start: u16,
    pub(crate) dma_channels: u16,
    pub(crate) locks: u16,
    pub(crate) events: u16,
    pub(crate) pad: [u16; 3],
}

/// The answer to `AIE_METADATA`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ArrayMetadata {
    pub(crate) column_bytes: u32,
    pub(crate) columns: u16,
    pub(crate) rows: u16,
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) core: TileMetadata,
    pub(crate) memory: TileMetadata,
    pub(crate) shim: TileMetadata,
}

/// One entry of the answer to `HW_CONTEXTS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ContextStatus {
    pub(crate) id: u32,
    pub(crate) first_column: u32,
    pub(crate) columns: u32,
    pub(crate) pad: u32,
    pub(crate) process: i64,
    pub(crate) submissions: u64,
    pub(crate) completions: u64,
    pub(crate) migrations: u64,
    pub(crate) preemptions: u64,
    pub(crate) errors: u64,
}

/// The answer to `POWER_MODE`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PowerStatus {
    pub(crate) mode: u8,
    pub(crate) pad: [u8; 7],
}

/// The answer to `RESOURCE_INFO`, which newer drivers give.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Resources {
    pub(crate) clock_max: u64,
    pub(crate) tops_max: u64,
    pub(crate) contexts_max: u64,
    pub(crate) tops: u64,
    pub(crate) contexts: u64,
}

/// A structure that the kernel fills in as the answer to `GET_INFO`.
///
/// # Safety
/// `Self` must be `repr(C)` and valid for every pattern of bits.
#[allow(unsafe_code)]
pub(crate) unsafe trait Answer: Copy + Default {
    /// The parameter that asks for it.
    const PARAMETER: u32;
}

macro_rules! answer {
    ($type:ty, $parameter:literal) => {
        #[allow(unsafe_code)]
        // SAFETY: `repr(C)` (or an array of integers), made of integers only.
        unsafe impl Answer for $type {
            const PARAMETER: u32 = $parameter;
        }
    };
}

/// The most contexts that `HW_CONTEXTS` is asked for: twice what any device has.
pub(crate) const MAX_CONTEXTS: usize = 32;

answer!(ArrayMetadata, 1);
answer!([u32; 2], 2);
answer!([ContextStatus; MAX_CONTEXTS], 5);
answer!([u32; 4], 8);
answer!(PowerStatus, 9);
answer!(Resources, 12);

/// `type` of `CREATE_BO`: pages of the system's.
pub(crate) const BUFFER_SHARE: u32 = 1;
/// `type` of `CREATE_BO`: the device heap.
pub(crate) const BUFFER_HEAP: u32 = 2;
/// `type` of `CREATE_BO`: a part of the device heap.
pub(crate) const BUFFER_DEVICE: u32 = 3;
/// `type` of `CREATE_BO`: a command.
pub(crate) const BUFFER_COMMAND: u32 = 4;
/// `direction` of `SYNC_BO`: before the device reads.
pub(crate) const SYNC_TO_DEVICE: u32 = 0;
/// `direction` of `SYNC_BO`: after the device wrote.
pub(crate) const SYNC_FROM_DEVICE: u32 = 1;
/// The kernel takes at most this many compute units a context.
pub(crate) const MAX_UNITS: usize = 32;
/// The kernel takes at most this many buffers a command.
pub(crate) const MAX_ARGUMENTS: usize = 4095;
/// `param_type` of `CONFIG_HWCTX`: compute units.
pub(crate) const CONFIG_CU: u32 = 0;
/// `type` of `EXEC_CMD`: run a command buffer.
pub(crate) const EXECUTE_BUFFER: u32 = 0;
/// An address that is none.
pub(crate) const NO_ADDRESS: u64 = u64::MAX;
/// The scheduler's normal priority.
pub(crate) const NORMAL_PRIORITY: u32 = 0x200;
/// `SYNCOBJ_TIMELINE_WAIT`: all points (bit 0), even of commands not yet queued (bit 1).
pub(crate) const WAIT_ALL_FOR_SUBMIT: u32 = 3;
