//! `CREATE_BO`, `GET_BO_INFO`, `SYNC_BO`, `GEM_CLOSE`.

use std::sync::Arc;

use crate::buffer::{Buffer, Kind, NO_ADDRESS};
use crate::bytes::{put_u32, put_u64, u32_at, u64_at};
use crate::client::Client;
use crate::config::{Addressing, HEAP_SIZE};
use crate::errno::Errno;
use crate::heap::Heap;
use crate::memory::Memory;
use crate::state::State;

const PAGE: u64 = 4096;
/// The kernel maps a command itself, and refuses one that is larger.
const MAX_COMMAND: u64 = 32 << 10;

/// `CREATE_BO`: flags @0, vaddr @8, size @16, type @24, handle @28 (out).
pub(crate) fn create(state: &mut State, fd: i32, argument: &mut [u8]) -> Result<(), Errno> {
    let (flags, address, size) = (u64_at(argument, 0), u64_at(argument, 8), u64_at(argument, 16));
    // `vaddr` takes memory of the caller's in newest kernels only; older ones want zero.
    if flags != 0 || address != 0 {
        return Err(Errno::EINVAL);
    }
    let kind = match u32_at(argument, 24) {
        1 => Kind::Share,
        2 => Kind::Heap,
        3 => Kind::Dev,
        4 => Kind::Command,
        _ => return Err(Errno::EINVAL),
    };
    if size == 0 || size > u64::MAX - PAGE {
        return Err(Errno::EINVAL);
    }
    if state.refuse_allocation() {
        return Err(Errno::ENOMEM);
    }
    let map_offset = state.next_map_offset(size);
    let client = state.client(fd)?;
    let buffer = match kind {
        Kind::Share => pages(kind, size.next_multiple_of(PAGE), map_offset)?,
        Kind::Command if size > MAX_COMMAND => return Err(Errno::EINVAL),
        Kind::Command => pages(kind, size.next_multiple_of(PAGE), map_offset)?,
        Kind::Dev if size > HEAP_SIZE => return Err(Errno::EINVAL),
        Kind::Dev => Arc::new(client.new_dev(size.next_multiple_of(PAGE))?),
        Kind::Heap => new_heap(client, size, map_offset)?,
    };
    let handle = client.add_buffer(buffer);
    put_u32(argument, 28, handle);
    Ok(())
}

fn pages(kind: Kind, size: u64, map_offset: u64) -> Result<Arc<Buffer>, Errno> {
    let size = usize::try_from(size).map_err(|_| Errno::ENOMEM)?;
    // More than any machine with this NPU has.
    if size > 1 << 37 {
        return Err(Errno::ENOMEM);
    }
    Ok(Arc::new(Buffer::new(kind, Memory::new(size)?, map_offset)))
}

fn new_heap(client: &mut Client, size: u64, map_offset: u64) -> Result<Arc<Buffer>, Errno> {
    if !size.is_multiple_of(HEAP_SIZE) {
        return Err(Errno::EINVAL);
    }
    if client.heap.is_some() || size > HEAP_SIZE {
        return Err(Errno::ENOSPC);
    }
    let buffer = pages(Kind::Heap, size, map_offset)?;
    client.heap = Some((buffer.clone(), Arc::new(Heap::default())));
    Ok(buffer)
}

/// `GET_BO_INFO`: ext @0, ext_flags @8, handle @16, pad @20; out: map_offset @24, vaddr @32,
/// xdna_addr @40.
pub(crate) fn info(
    state: &mut State,
    fd: i32,
    addressing: Addressing,
    argument: &mut [u8],
) -> Result<(), Errno> {
    if u64_at(argument, 0) != 0 || u64_at(argument, 8) != 0 || u32_at(argument, 20) != 0 {
        return Err(Errno::EINVAL);
    }
    let buffer = lookup(state.client(fd)?, u32_at(argument, 16))?;
    let map_offset = if buffer.kind == Kind::Dev { NO_ADDRESS } else { buffer.map_offset };
    put_u64(argument, 24, map_offset);
    put_u64(argument, 32, buffer.user_address());
    put_u64(argument, 40, buffer.reported_address(addressing));
    Ok(())
}

/// `SYNC_BO`: handle @0, direction @4, offset @8, size @16.
pub(crate) fn sync(state: &mut State, fd: i32, argument: &[u8]) -> Result<(), Errno> {
    let buffer = lookup(state.client(fd)?, u32_at(argument, 0))?.clone();
    let (offset, size) = (u64_at(argument, 8), u64_at(argument, 16));
    let end = offset.checked_add(size).ok_or(Errno::EINVAL)?;
    if offset >= buffer.size as u64 {
        return Err(Errno::EINVAL);
    }
    let length = end.min(buffer.size as u64) - offset;
    let (start, length) = (buffer.offset + offset as usize, length as usize);
    match u32_at(argument, 4) {
        0 => buffer.memory.flush(start, length),
        1 => {
            let dirty = buffer.memory.invalidate(start, length);
            if dirty > 0 {
                state.complain(format!(
                    "SYNC_BO from the device found {dirty} cache lines that the host had written and not flushed"
                ));
            }
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(())
}

/// `GEM_CLOSE`: handle @0, pad @4.
pub(crate) fn close(state: &mut State, fd: i32, argument: &[u8]) -> Result<(), Errno> {
    if u32_at(argument, 4) != 0 {
        return Err(Errno::EINVAL);
    }
    let handle = u32_at(argument, 0);
    state.client(fd)?.buffers.remove(&handle).map(drop).ok_or(Errno::EINVAL)
}

/// A handle that names a buffer, or `ENOENT`.
pub(crate) fn lookup(client: &Client, handle: u32) -> Result<&Arc<Buffer>, Errno> {
    client.buffers.get(&handle).ok_or(Errno::ENOENT)
}
