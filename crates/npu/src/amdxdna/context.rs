//! Hardware contexts: columns of the array, configured, with a queue of commands.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::abi::{MAX_ARGUMENTS, MAX_UNITS};
use super::buffer::{Buffer, BufferKind};
use super::device::Device;
use super::error::DriverError;
use super::node::Failure;
use super::packet::{CHAIN_ERROR_WORD, COMMAND_BYTES, CommandState, Packet};

/// Commands that may be in flight in one context. A further one would block inside the kernel,
/// where no time limit of ours applies.
pub const MAX_IN_FLIGHT: usize = 4;

/// A compute unit: the configuration of the array that it runs with.
#[derive(Debug)]
pub struct ComputeUnit {
    /// The PDI, in a [`BufferKind::Device`] buffer, flushed.
    pub pdi: Buffer,
    /// The unit's function by its xclbin: 0 is a DPU.
    pub function: u8,
}

/// The share of the array that a context asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// Columns.
    pub count: u16,
    /// Operations a cycle, as the xclbin says; a figure for the driver's scheduler.
    pub operations_per_cycle: u32,
}

/// A hardware context, given back when dropped. It keeps its device and its PDIs.
#[derive(Debug)]
pub struct Context {
    device: Device,
    handle: u32,
    syncobj: u32,
    queue: Mutex<Queue>,
    /// The firmware reads the PDIs again whenever it moves or restarts the context.
    _units: Vec<ComputeUnit>,
}

#[derive(Debug, Default)]
struct Queue {
    in_flight: VecDeque<u64>,
    lost: Option<CommandState>,
}

/// A command on its way: its point on the context's timeline.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the buffers of a command are the device's until it has been waited for"]
pub struct Submission {
    point: u64,
    command: u32,
}

impl Context {
    /// Creates and configures a context.
    pub fn new(
        device: &Device,
        columns: Columns,
        units: Vec<ComputeUnit>,
    ) -> Result<Context, DriverError> {
        let identity = device.identity();
        let available = identity.generation.columns();
        if columns.count == 0 || columns.count > available {
            return Err(DriverError::TooWide { wanted: columns.count, available });
        }
        if units.is_empty() || units.len() > MAX_UNITS {
            let what = "compute units of a context";
            return Err(DriverError::TooMany { what, count: units.len(), limit: MAX_UNITS });
        }
        let tiles = u32::from(columns.count) * u32::from(identity.core_rows);
        let node = &device.shared.node;
        let (handle, syncobj) = node
            .create_context(tiles, columns.operations_per_cycle)
            .map_err(|failure| no_context(device, failure))?;
        let configs: Vec<(u32, u8)> =
            units.iter().map(|unit| (unit.pdi.handle(), unit.function)).collect();
        // From here on, dropping `context` gives the handles back.
        let queue = Mutex::default();
        let context = Context { device: device.clone(), handle, syncobj, queue, _units: units };
        context.device.shared.node.configure(handle, &configs)?;
        Ok(context)
    }

    /// Submits a command and names the buffers it uses, so that the kernel keeps them.
    pub fn submit(
        &self,
        command: &Command,
        arguments: &[&Buffer],
    ) -> Result<Submission, DriverError> {
        let mut queue = self.queue();
        if let Some(state) = queue.lost {
            return Err(DriverError::ContextLost { state });
        }
        if queue.in_flight.len() >= MAX_IN_FLIGHT {
            return Err(DriverError::QueueFull { limit: MAX_IN_FLIGHT });
        }
        // The kernel locks each buffer once; one named twice would be refused.
        let mut handles: Vec<u32> = arguments.iter().map(|buffer| buffer.handle()).collect();
        handles.sort_unstable();
        handles.dedup();
        if handles.len() > MAX_ARGUMENTS {
            let what = "buffers of a command";
            let count = handles.len();
            return Err(DriverError::TooMany { what, count, limit: MAX_ARGUMENTS });
        }
        let node = &self.device.shared.node;
        let point = node.execute(self.handle, command.buffer.handle(), &handles)?;
        queue.in_flight.push_back(point);
        Ok(Submission { point, command: command.handle() })
    }

    /// Waits until a command has ended and returns its outcome. After a timeout the context is
    /// lost: what the command still does to its buffers is unknown.
    ///
    /// # Panics
    /// If the submission is of another command.
    pub fn wait(
        &self,
        submission: Submission,
        command: &Command,
        limit: Duration,
    ) -> Result<(), DriverError> {
        assert_eq!(submission.command, command.handle(), "the submission is of another command");
        let node = &self.device.shared.node;
        match node.wait(self.syncobj, submission.point, limit) {
            Ok(()) => {}
            Err(Failure { errno: libc::ETIME | libc::ETIMEDOUT, .. }) => {
                self.queue().lost = Some(CommandState::Timeout);
                return Err(DriverError::Timeout { after: limit });
            }
            Err(failure) => {
                self.queue().lost = Some(CommandState::NoResponse);
                return Err(failure.into());
            }
        }
        // A timeline passes its points in order: what was submitted before has ended, too.
        self.queue().in_flight.retain(|&point| point > submission.point);
        match command.state() {
            CommandState::Completed => Ok(()),
            state if state.ends_context() => {
                self.queue().lost = Some(state);
                Err(DriverError::ContextLost { state })
            }
            state => Err(DriverError::CommandFailed { state, index: command.failed_index() }),
        }
    }

    /// Commands submitted and not yet waited for.
    pub fn in_flight(&self) -> usize {
        self.queue().in_flight.len()
    }

    /// Whether no further command will run.
    pub fn is_lost(&self) -> bool {
        self.queue().lost.is_some()
    }

    fn queue(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let node = &self.device.shared.node;
        node.destroy_context(self.handle);
        node.destroy_syncobj(self.syncobj);
    }
}

/// Why a context was refused. The kernel's answer depends on its version and on what ran out, so
/// the contexts in use decide; the heap, whose lack has the same number, is always there.
fn no_context(device: &Device, failure: Failure) -> DriverError {
    let (in_use, limit) = device.context_counts();
    let full = in_use.is_some_and(|count| count >= limit);
    match failure.errno {
        libc::ENOENT | libc::EBUSY | libc::ENOSPC | libc::EAGAIN => {
            DriverError::NoFreeContext { in_use, limit }
        }
        _ if full => DriverError::NoFreeContext { in_use, limit },
        _ => failure.into(),
    }
}

/// A command packet in memory that the kernel reads.
#[derive(Debug)]
pub struct Command {
    buffer: Buffer,
    is_chain: bool,
}

impl Command {
    /// A command buffer without a packet.
    pub fn new(device: &Device) -> Result<Command, DriverError> {
        let buffer = Buffer::new(device, BufferKind::Command, COMMAND_BYTES)?;
        Ok(Command { buffer, is_chain: false })
    }

    /// Writes a packet; its state is new, as every submission needs it.
    pub fn set(&mut self, packet: &Packet) {
        self.is_chain = packet.is_chain();
        self.buffer.write(0, bytemuck::cast_slice(packet.words()));
    }

    /// The handle by which a chain names it.
    pub fn handle(&self) -> u32 {
        self.buffer.handle()
    }

    /// The state in the header.
    pub fn state(&self) -> CommandState {
        CommandState::of_header(self.word(0))
    }

    fn failed_index(&self) -> Option<u32> {
        self.is_chain.then(|| self.word(CHAIN_ERROR_WORD))
    }

    fn word(&self, index: usize) -> u32 {
        let mut bytes = [0; 4];
        self.buffer.read(index * 4, &mut bytes);
        u32::from_le_bytes(bytes)
    }
}
