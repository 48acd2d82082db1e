//! Buffers that leave and enter as file descriptors.

use std::sync::Arc;

use crate::buffer::{Buffer, Kind};
use crate::bytes::{put_u32, u32_at};
use crate::errno::Errno;
use crate::handle;
use crate::memory::Memory;
use crate::state::State;

/// `PRIME_HANDLE_TO_FD`: handle @0, flags @4, fd @8 (out).
pub(crate) fn export(state: &mut State, fd: i32, argument: &mut [u8]) -> Result<(), Errno> {
    let flags = u32_at(argument, 4);
    let (close_on_exec, read_write) = (libc::O_CLOEXEC as u32, libc::O_RDWR as u32);
    if flags & !(close_on_exec | read_write) != 0 {
        return Err(Errno::EINVAL);
    }
    let buffer = handle::lookup(state.client(fd)?, u32_at(argument, 0))?.clone();
    if buffer.kind == Kind::Dev {
        return Err(Errno::EOPNOTSUPP);
    }
    let exported = buffer.memory.duplicate(flags & close_on_exec != 0)?;
    put_u32(argument, 8, exported as u32);
    state.exported(&buffer);
    Ok(())
}

/// `PRIME_FD_TO_HANDLE`: handle @0 (out), flags @4, fd @8. The same memory gets the same handle.
pub(crate) fn import(
    state: &mut State,
    fd: i32,
    foreign: bool,
    argument: &mut [u8],
) -> Result<(), Errno> {
    if u32_at(argument, 4) != 0 {
        return Err(Errno::EINVAL);
    }
    let file = u32_at(argument, 8) as i32;
    let known = state.find_export(file);
    let client = state.client(fd)?;
    if let Some((handle, _)) =
        client.buffers.iter().find(|(_, buffer)| buffer.kind != Kind::Dev && buffer.memory.is(file))
    {
        put_u32(argument, 0, *handle);
        return Ok(());
    }
    let buffer = match known {
        Some(buffer) => buffer,
        None if foreign => {
            let memory = Memory::import(file)?;
            let map_offset = state.next_map_offset(memory.size() as u64);
            Arc::new(Buffer::new(Kind::Share, memory, map_offset))
        }
        None => return Err(not_a_buffer(file)),
    };
    put_u32(argument, 0, state.client(fd)?.add_buffer(buffer));
    Ok(())
}

fn not_a_buffer(file: i32) -> Errno {
    match crate::user::is_open(file) {
        true => Errno::EINVAL,
        false => Errno::EBADF,
    }
}
