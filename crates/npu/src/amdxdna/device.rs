//! An NPU that this process has opened: what it is, and its heap.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::abi::{ArrayMetadata, BUFFER_HEAP, ContextStatus, MAX_CONTEXTS, PowerStatus, Resources};
use super::calls::{Calls, SystemCalls};
use super::error::DriverError;
use super::mapping::Mapping;
use super::node::{Failure, Node};

/// Bytes of the device heap, and the alignment of its mapping: what every generation takes.
pub const HEAP_BYTES: usize = 64 << 20;

/// Which array a device has; the names are mlir-aie's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Generation {
    /// XDNA: Phoenix, Hawk Point.
    Npu1,
    /// XDNA 2: Strix, Strix Halo, Krackan.
    Npu2,
}

impl Generation {
    /// mlir-aie's name.
    pub fn name(self) -> &'static str {
        match self {
            Generation::Npu1 => "npu1",
            Generation::Npu2 => "npu2",
        }
    }

    /// Columns that kernels can use. Phoenix has a fifth one without a link to memory.
    pub fn columns(self) -> u16 {
        match self {
            Generation::Npu1 => 4,
            Generation::Npu2 => 8,
        }
    }

    /// Columns of the whole array.
    pub fn array_columns(self) -> u16 {
        match self {
            Generation::Npu1 => 5,
            Generation::Npu2 => 8,
        }
    }

    /// Hardware contexts of all programs together.
    pub fn contexts(self) -> usize {
        match self {
            Generation::Npu1 => 6,
            Generation::Npu2 => 16,
        }
    }

    fn of(metadata: &ArrayMetadata) -> Option<Generation> {
        match (metadata.columns, metadata.core.row_count) {
            (4 | 5, 4) => Some(Generation::Npu1),
            (8, 4) => Some(Generation::Npu2),
            _ => None,
        }
    }
}

/// What a device says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The node.
    pub path: PathBuf,
    /// The driver's version, major and minor.
    pub driver: (i32, i32),
    /// The firmware's version: major, minor, patch, build.
    pub firmware: [u32; 4],
    /// The version of the array's architecture.
    pub array: (u32, u32),
    /// Which generation that is.
    pub generation: Generation,
    /// Columns by the driver's metadata, usable or not.
    pub columns: u16,
    /// Rows, shim and memory tiles included.
    pub rows: u16,
    /// Rows of cores.
    pub core_rows: u16,
}

impl Identity {
    /// Asks an open node.
    pub(crate) fn query(node: &Node) -> Result<Identity, DriverError> {
        let (name, major, minor) = node.version()?;
        // Linux calls the driver `amdxdna_accel_driver`.
        if !name.starts_with("amdxdna") {
            return Err(DriverError::ForeignDriver { path: node.path.clone(), name });
        }
        let metadata: ArrayMetadata = node.info()?;
        let [array_major, array_minor]: [u32; 2] = node.info()?;
        let firmware: [u32; 4] = node.info()?;
        let generation = Generation::of(&metadata).ok_or(DriverError::UnknownArray {
            columns: metadata.columns,
            rows: metadata.rows,
            core_rows: metadata.core.row_count,
        })?;
        Ok(Identity {
            path: node.path.clone(),
            driver: (major, minor),
            firmware,
            array: (array_major, array_minor),
            generation,
            columns: metadata.columns,
            rows: metadata.rows,
            core_rows: metadata.core.row_count,
        })
    }
}

/// A hardware context of some program, as the driver reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextUse {
    /// The process that created it.
    pub process: i64,
    /// Its first column.
    pub first_column: u32,
    /// Its columns.
    pub columns: u32,
    /// Commands submitted and completed.
    pub commands: (u64, u64),
    /// Errors so far.
    pub errors: u64,
}

/// The contexts in use by all programs.
pub(crate) fn contexts_in_use(node: &Node) -> Result<Vec<ContextUse>, Failure> {
    let entries: [ContextStatus; MAX_CONTEXTS] = node.info()?;
    let used = entries.iter().filter(|entry| entry.columns > 0);
    let report = |entry: &ContextStatus| ContextUse {
        process: entry.process,
        first_column: entry.first_column,
        columns: entry.columns,
        commands: (entry.submissions, entry.completions),
        errors: entry.errors,
    };
    Ok(used.map(report).collect())
}

/// How the NPU's clocks are bounded. All programs share it, and only root may change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerMode {
    /// As the driver sees fit.
    Default,
    /// The lowest clocks.
    PowerSaver,
    /// Between these.
    Balanced,
    /// High clocks.
    Performance,
    /// The highest, for as long as they last.
    Turbo,
}

impl PowerMode {
    /// By the kernel's numbers.
    const ALL: [PowerMode; 5] = [
        PowerMode::Default,
        PowerMode::PowerSaver,
        PowerMode::Balanced,
        PowerMode::Performance,
        PowerMode::Turbo,
    ];

    /// The name that AMD's `xrt-smi` has for it.
    pub fn name(self) -> &'static str {
        match self {
            PowerMode::Default => "default",
            PowerMode::PowerSaver => "powersaver",
            PowerMode::Balanced => "balanced",
            PowerMode::Performance => "performance",
            PowerMode::Turbo => "turbo",
        }
    }

    /// Asks an open node; none where the driver does not say, or says what is not known here.
    pub(crate) fn query(node: &Node) -> Option<PowerMode> {
        let status: PowerStatus = node.info().ok()?;
        PowerMode::ALL.get(usize::from(status.mode)).copied()
    }
}

/// An opened NPU with its heap. Buffers and contexts keep it open; a clone is the same device.
#[derive(Clone, Debug)]
pub struct Device {
    pub(crate) shared: Arc<Shared>,
}

/// What buffers and contexts keep alive.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) node: Node,
    pub(crate) identity: Identity,
    heap: Option<Mapping>,
    heap_handle: u32,
    /// The heap's address on the device, where the driver gives one.
    pub(crate) heap_address: u64,
    /// Buffers of each handle: importing what this process exported, or the same memory twice,
    /// gives a handle that is open already, and closing it once closes it for all.
    handles: Mutex<HashMap<u32, usize>>,
}

impl Shared {
    /// The heap's memory.
    pub(crate) fn heap(&self) -> &Mapping {
        self.heap.as_ref().expect("the heap is mapped for as long as the device is open")
    }
}

impl Shared {
    /// Counts a buffer of a handle.
    pub(crate) fn retain_handle(&self, handle: u32) {
        *self.handles().entry(handle).or_default() += 1;
    }

    /// Imports memory and counts a buffer of its handle.
    pub(crate) fn import_handle(&self, fd: RawFd) -> Result<u32, Failure> {
        // Under the lock, so that a handle that is open already is not closed in between.
        let mut handles = self.handles();
        let handle = self.node.import(fd)?;
        *handles.entry(handle).or_default() += 1;
        Ok(handle)
    }

    /// Closes a handle with its last buffer.
    pub(crate) fn release_handle(&self, handle: u32) {
        let mut handles = self.handles();
        if let Some(count) = handles.get_mut(&handle) {
            *count -= 1;
            if *count == 0 {
                handles.remove(&handle);
                // Under the lock: once closed, the number may be given to an import.
                self.node.close_buffer(handle);
            }
        }
    }

    fn handles(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The driver wants the heap to go after everything in it, which holds this structure, and
        // before the descriptor, which `Node` closes.
        self.heap = None;
        self.node.close_buffer(self.heap_handle);
    }
}

impl Device {
    /// Opens a node through the kernel.
    pub fn open(path: &Path) -> Result<Device, DriverError> {
        Device::open_with(Arc::new(SystemCalls), path)
    }

    /// Opens a node through other calls than the kernel's: a device model.
    pub fn open_with(calls: Arc<dyn Calls>, path: &Path) -> Result<Device, DriverError> {
        let node = Node::open(calls, path)?;
        let identity = Identity::query(&node)?;
        let bytes = HEAP_BYTES as u64;
        let heap_handle = node
            .create_buffer(BUFFER_HEAP, bytes)
            .map_err(|failure| DriverError::memory(failure, bytes))?;
        // From here on, dropping `shared` gives the handle back.
        let handles = Mutex::default();
        let mut shared =
            Shared { node, identity, heap: None, heap_handle, heap_address: 0, handles };
        let info = shared.node.buffer_info(heap_handle)?;
        let node = &shared.node;
        let mapping =
            Mapping::new(&node.calls, node.fd, info.map_offset, HEAP_BYTES, HEAP_BYTES)
                .map_err(|errno| DriverError::memory(Failure { call: "mmap", errno }, bytes))?;
        shared.heap_address = info.device_address;
        shared.heap = Some(mapping);
        Ok(Device { shared: Arc::new(shared) })
    }

    /// What the device says of itself.
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// How many hardware contexts are in use by all programs, where the driver says, and how many
    /// there are. Older drivers list contexts only, and the limit is the generation's.
    pub(crate) fn context_counts(&self) -> (Option<usize>, usize) {
        let listed = self.contexts_in_use().ok().map(|contexts| contexts.len());
        match self.shared.node.info::<Resources>() {
            Ok(resources) if resources.contexts_max > 0 => {
                (Some(resources.contexts as usize), resources.contexts_max as usize)
            }
            _ => (listed, self.identity().generation.contexts()),
        }
    }

    /// The hardware contexts in use by all programs.
    pub fn contexts_in_use(&self) -> Result<Vec<ContextUse>, DriverError> {
        Ok(contexts_in_use(&self.shared.node)?)
    }
}
