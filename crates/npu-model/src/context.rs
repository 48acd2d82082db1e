//! Hardware contexts: columns of the array, compute units, a timeline.

use std::sync::Arc;

use crate::buffer::{Buffer, Kind, NO_ADDRESS};
use crate::bytes::{get_u16, get_u32, put_u32, u32_at, u64_at};
use crate::config::{COLUMNS, CORE_ROWS, HEAP_SIZE, MAX_CONTEXTS, MAX_IN_FLIGHT};
use crate::errno::Errno;
use crate::fault::Refusal;
use crate::state::{Shared, State};
use crate::syncobj::Timeline;
use crate::user;

/// A hardware context.
pub(crate) struct Context {
    pub(crate) status: Status,
    pub(crate) start_column: u32,
    pub(crate) columns: u32,
    /// What the device saw in the PDI buffer of each compute unit when they were configured.
    pub(crate) units: Vec<Vec<u8>>,
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) errors: u64,
    /// gops, fps, DMA bandwidth, latency, frame time, priority.
    pub(crate) quality: [u32; 6],
    /// The kernel's command lists, which take room in the heap.
    _command_lists: Vec<Buffer>,
}

/// How far a context has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Without compute units.
    Created,
    Ready,
    /// The firmware has forgotten it.
    Lost,
}

/// Columns that contexts share.
pub(crate) struct Partition {
    start: u32,
    columns: u32,
    contexts: u32,
}

/// The first column that is used while not all are wanted.
const FIRST_COLUMN: u32 = 1;
const MAX_UNITS: u16 = 32;
const PAGE: u32 = 4096;

/// `CREATE_HWCTX`: ext @0, ext_flags @8, qos_p @16, umq_bo @24, log_buf_bo @28, max_opc @32,
/// num_tiles @36, mem_size @40; out: umq_doorbell @44, handle @48, syncobj @52.
pub(crate) fn create(state: &mut State, fd: i32, argument: &mut [u8]) -> Result<(), Errno> {
    if u64_at(argument, 0) != 0 || u64_at(argument, 8) != 0 {
        return Err(Errno::EINVAL);
    }
    let quality = user::read(u64_at(argument, 16), 24)?;
    let client = state.client(fd)?;
    let (heap, _) = client.heap.as_ref().ok_or(Errno::ENOENT)?;
    let heap_address = heap.user_address();
    if heap_address == NO_ADDRESS {
        return Err(Errno::EAGAIN);
    }
    let command_lists: Vec<Buffer> =
        (0..MAX_IN_FLIGHT).map(|_| client.new_dev(u64::from(PAGE))).collect::<Result<_, _>>()?;
    let tiles = u32_at(argument, 36);
    let columns = tiles / CORE_ROWS;
    if tiles == 0 || columns == 0 || columns > COLUMNS {
        return Err(Errno::EINVAL);
    }
    // The firmware maps the heap by its user address, and wants it aligned to its size.
    if heap_address % HEAP_SIZE != 0 {
        state.complain(format!(
            "the heap is mapped at {heap_address:#x}, which is not a multiple of 64 MiB"
        ));
        return Err(Errno::EINVAL);
    }
    match state.plan.context() {
        Some(Refusal::Busy) => return Err(Errno::EBUSY),
        Some(Refusal::Again) => return Err(Errno::EAGAIN),
        None => {}
    }
    if state.context_count() >= MAX_CONTEXTS {
        return Err(Errno::EBUSY);
    }
    let start_column = state.take_columns(columns).ok_or(Errno::ENODEV)?;
    let timeline = Arc::new(Timeline::default());
    let context = Context {
        status: Status::Created,
        start_column,
        columns,
        units: Vec::new(),
        timeline: timeline.clone(),
        errors: 0,
        quality: std::array::from_fn(|index| get_u32(&quality, 4 * index).unwrap_or(0)),
        _command_lists: command_lists,
    };
    let client = state.client(fd)?;
    put_u32(argument, 44, 0);
    put_u32(argument, 48, client.add_context(context));
    put_u32(argument, 52, client.add_timeline(timeline));
    Ok(())
}

/// `DESTROY_HWCTX`: handle @0, pad @4. Waits for the command that the device works on.
pub(crate) fn destroy(shared: &Shared, fd: i32, argument: &[u8]) -> Result<(), Errno> {
    if u32_at(argument, 4) != 0 {
        return Err(Errno::EINVAL);
    }
    let id = u32_at(argument, 0);
    let mut state = shared.lock();
    if !state.client(fd)?.contexts.contains_key(&id) {
        return Err(Errno::EINVAL);
    }
    while state.running == Some((fd, id)) {
        state = shared.sleep(state, std::time::Duration::from_secs(1));
    }
    state.remove_context(fd, id);
    drop(state);
    shared.wake();
    Ok(())
}

/// `CONFIG_HWCTX`: handle @0, param_type @4, param_val @8, size @16, pad @20.
pub(crate) fn configure(state: &mut State, fd: i32, argument: &[u8]) -> Result<(), Errno> {
    if u32_at(argument, 20) != 0 {
        return Err(Errno::EINVAL);
    }
    let size = u32_at(argument, 16);
    let buffer = match u32_at(argument, 4) {
        0 if size > PAGE => return Err(Errno::E2BIG),
        0 => user::read(u64_at(argument, 8), size as usize)?,
        1 | 2 => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    };
    let client = state.client(fd)?;
    let context = client.contexts.get_mut(&u32_at(argument, 0)).ok_or(Errno::EINVAL)?;
    let mut units = Vec::new();
    for (handle, _function) in compute_units(&buffer)? {
        let pdi = client.buffers.get(&handle).ok_or(Errno::EINVAL)?;
        if pdi.kind != Kind::Dev {
            return Err(Errno::EINVAL);
        }
        units.push(pdi.memory.read_device(pdi.offset, pdi.size));
    }
    if context.status != Status::Created {
        return Err(Errno::EINVAL);
    }
    context.units = units;
    context.status = Status::Ready;
    Ok(())
}

/// u16 count, u16 pad[3], then (u32 PDI buffer, u8 function, u8 pad[3]) each.
fn compute_units(buffer: &[u8]) -> Result<Vec<(u32, u8)>, Errno> {
    let count = get_u16(buffer, 0).ok_or(Errno::EINVAL)?;
    let padding = buffer.get(2..8).ok_or(Errno::EINVAL)?;
    if padding.iter().any(|byte| *byte != 0) || count == 0 || count > MAX_UNITS {
        return Err(Errno::EINVAL);
    }
    let entries = buffer.get(8..8 + 8 * usize::from(count)).ok_or(Errno::EINVAL)?;
    let unit = |entry: &[u8]| match entry {
        [.., function, 0, 0, 0] => Ok((get_u32(entry, 0).unwrap_or(0), *function)),
        _ => Err(Errno::EINVAL),
    };
    entries.chunks_exact(8).map(unit).collect()
}

impl State {
    /// Columns for a context: free ones, else those of contexts of the same width.
    fn take_columns(&mut self, columns: u32) -> Option<u32> {
        let first = if columns == COLUMNS { 0 } else { FIRST_COLUMN };
        let overlaps = |start: u32| {
            let ends = |it: &Partition| it.start < start + columns && start < it.start + it.columns;
            self.partitions.iter().any(ends)
        };
        let free = (first..=COLUMNS - columns).find(|start| !overlaps(*start));
        if let Some(start) = free {
            self.partitions.push(Partition { start, columns, contexts: 1 });
            return Some(start);
        }
        let same = self.partitions.iter_mut().filter(|it| it.columns == columns);
        let shared = same.min_by_key(|it| it.contexts)?;
        shared.contexts += 1;
        Some(shared.start)
    }

    pub(crate) fn release_columns(&mut self, start: u32, columns: u32) {
        let found =
            self.partitions.iter_mut().find(|it| (it.start, it.columns) == (start, columns));
        if let Some(partition) = found {
            partition.contexts -= 1;
        }
        self.partitions.retain(|it| it.contexts > 0);
    }
}
