//! `EXEC_CMD`: a command enters the queue.

use std::sync::Arc;
use std::time::Duration;

use crate::buffer::Buffer;
use crate::bytes::{get_u32, put_u64, u32_at, u64_at};
use crate::config::MAX_IN_FLIGHT;
use crate::context::Status;
use crate::errno::Errno;
use crate::fault::Effect;
use crate::handle;
use crate::packet::CommandState;
use crate::state::{Shared, State};
use crate::syncobj::Timeline;
use crate::user;

/// A command in flight.
pub(crate) struct Job {
    pub(crate) fd: i32,
    pub(crate) context: u32,
    pub(crate) command: Arc<Buffer>,
    /// Buffers that the kernel keeps in place for the device; it faults on all others.
    pub(crate) arguments: Vec<Arc<Buffer>>,
    pub(crate) effects: Vec<Effect>,
    timeline: Arc<Timeline>,
}

impl Job {
    /// Writes the state into the packet, and ends the command.
    pub(crate) fn end(self, state: CommandState) {
        let header = self.command.memory.read_host(0, 4);
        let header = get_u32(&header, 0).unwrap_or(0) & !0xF | state as u32;
        self.command.memory.write_host(0, &header.to_le_bytes());
        self.timeline.end();
    }

    /// Ends the command with the state as it is: the kernel could not pass it on.
    pub(crate) fn drop_silently(self) {
        self.timeline.end();
    }
}

const MAX_ARGUMENTS: u32 = 4095;

/// `EXEC_CMD`: ext @0, ext_flags @8, hwctx @16, type @20, cmd_handles @24, args @32, cmd_count @40,
/// arg_count @44, seq @48 (out). Blocks while four commands are in flight.
pub(crate) fn submit(shared: &Shared, fd: i32, argument: &mut [u8]) -> Result<(), Errno> {
    if u64_at(argument, 0) != 0 || u64_at(argument, 8) != 0 || u32_at(argument, 20) != 0 {
        return Err(Errno::EINVAL);
    }
    let count = u32_at(argument, 44);
    if count > MAX_ARGUMENTS || u32_at(argument, 40) != 1 {
        return Err(Errno::EINVAL);
    }
    let handles = user::read(u64_at(argument, 32), 4 * count as usize)?;
    let id = u32_at(argument, 16);
    let mut state = shared.lock();
    let client = state.client(fd)?;
    // The kernel takes the lower half of the handle.
    let command = client.command(u64_at(argument, 24) as u32).ok_or(Errno::EINVAL)?.clone();
    let mut arguments = Vec::new();
    for handle in handles.chunks_exact(4) {
        arguments.push(handle::lookup(client, get_u32(handle, 0).unwrap_or(0))?.clone());
    }
    let context = client.contexts.get(&id).ok_or(Errno::EINVAL)?;
    if context.status == Status::Created {
        return Err(Errno::EINVAL);
    }
    let timeline = context.timeline.clone();
    while timeline.submitted() - timeline.ended() >= MAX_IN_FLIGHT {
        state = shared.sleep(state, Duration::from_secs(1));
        if !state.client(fd)?.contexts.contains_key(&id) {
            return Err(Errno::EINVAL);
        }
    }
    let effects = state.plan.command();
    state.change_power();
    put_u64(argument, 48, timeline.submit());
    set_new(&command);
    state.queue.push_back(Job { fd, context: id, command, arguments, effects, timeline });
    drop(state);
    shared.wake();
    Ok(())
}

/// The kernel sets the state to NEW when it takes a command up.
fn set_new(command: &Buffer) {
    let header = command.memory.read_host(0, 4);
    let header = get_u32(&header, 0).unwrap_or(0) & !0xF | CommandState::New as u32;
    command.memory.write_host(0, &header.to_le_bytes());
}

impl State {
    /// Takes the power mode that is planned for now.
    pub(crate) fn change_power(&mut self) {
        self.power_mode = self.plan.power().unwrap_or(self.power_mode);
    }

    /// The first command whose context does not hang.
    pub(crate) fn next_job(&mut self) -> Option<Job> {
        let hung: Vec<(i32, u32)> =
            self.hung.iter().map(|it| (it.job.fd, it.job.context)).collect();
        let ready = self.queue.iter().position(|job| !hung.contains(&(job.fd, job.context)))?;
        self.queue.remove(ready)
    }
}
