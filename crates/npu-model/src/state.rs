//! The whole device behind one lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::buffer::Buffer;
use crate::client::Client;
use crate::config::Config;
use crate::context::{Partition, Status};
use crate::errno::Errno;
use crate::execute::Job;
use crate::fault::FaultPlan;
use crate::packet::CommandState;
use crate::registry::Registry;

/// What callers and the worker share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    state: Mutex<State>,
    /// Something ended, came or was lost.
    changed: Condvar,
}

/// A command that never completes.
pub(crate) struct Hung {
    pub(crate) job: Job,
    /// When the kernel gives it up.
    pub(crate) until: Instant,
}

/// Everything that changes.
pub(crate) struct State {
    /// By file descriptor.
    pub(crate) clients: BTreeMap<i32, Client>,
    /// Files that were open when the device suspended.
    lost: BTreeSet<i32>,
    /// Commands that wait for the worker.
    pub(crate) queue: VecDeque<Job>,
    pub(crate) hung: Vec<Hung>,
    /// The file and context whose command the worker computes.
    pub(crate) running: Option<(i32, u32)>,
    pub(crate) partitions: Vec<Partition>,
    pub(crate) plan: FaultPlan,
    pub(crate) kernels: Registry,
    pub(crate) power_mode: u8,
    pub(crate) stopping: bool,
    complaints: Vec<String>,
    /// Exported buffers; the descriptor that left keeps the memory, so the model does as well.
    exports: Vec<Arc<Buffer>>,
    map_offset: u64,
}

/// Reasons that are kept for [`crate::Model::complaints`].
const MAX_COMPLAINTS: usize = 1000;
/// Where DRM's offsets for `mmap` start.
const FIRST_MAP_OFFSET: u64 = 1 << 32;

impl Shared {
    pub(crate) fn new(config: Config) -> Shared {
        let plan = FaultPlan::new(config.faults.clone());
        let state = State {
            clients: BTreeMap::new(),
            lost: BTreeSet::new(),
            queue: VecDeque::new(),
            hung: Vec::new(),
            running: None,
            partitions: Vec::new(),
            kernels: Registry::default(),
            power_mode: plan.power().unwrap_or_default(),
            plan,
            stopping: false,
            complaints: Vec::new(),
            exports: Vec::new(),
            map_offset: FIRST_MAP_OFFSET,
        };
        Shared { config, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something changes, or for `limit`.
    pub(crate) fn sleep<'a>(
        &self,
        guard: MutexGuard<'a, State>,
        limit: Duration,
    ) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }
}

impl State {
    /// An open file. `ENODEV` after a suspension, until it is opened again.
    pub(crate) fn client(&mut self, fd: i32) -> Result<&mut Client, Errno> {
        if self.lost.contains(&fd) {
            return Err(Errno::ENODEV);
        }
        self.clients.get_mut(&fd).ok_or(Errno::EBADF)
    }

    pub(crate) fn open(&mut self, fd: i32) {
        self.clients.insert(fd, Client::default());
    }

    /// Closes a file and all that belongs to it.
    pub(crate) fn close(&mut self, fd: i32) -> Result<(), Errno> {
        self.lost.remove(&fd);
        let contexts: Vec<u32> =
            self.clients.get(&fd).ok_or(Errno::EBADF)?.contexts.keys().copied().collect();
        for context in contexts {
            self.remove_context(fd, context);
        }
        self.clients.remove(&fd);
        Ok(())
    }

    /// Aborts a context's commands and frees its columns.
    pub(crate) fn remove_context(&mut self, fd: i32, id: u32) -> Option<()> {
        self.abort_context(fd, id);
        let context = self.clients.get_mut(&fd)?.contexts.remove(&id)?;
        self.release_columns(context.start_column, context.columns);
        Some(())
    }

    /// Ends all commands of a context that the worker has not begun.
    pub(crate) fn abort_context(&mut self, fd: i32, id: u32) {
        let of_context = |job: &Job| job.fd == fd && job.context == id;
        let hung = std::mem::take(&mut self.hung);
        let (aborted, kept): (Vec<_>, Vec<_>) =
            hung.into_iter().partition(|it| of_context(&it.job));
        self.hung = kept;
        aborted.into_iter().for_each(|it| it.job.end(CommandState::Abort));
        let queue = std::mem::take(&mut self.queue);
        let (aborted, kept): (Vec<_>, Vec<_>) = queue.into_iter().partition(of_context);
        self.queue = kept.into();
        aborted.into_iter().for_each(|job| job.end(CommandState::Abort));
    }

    /// The device suspends: all contexts are gone, all files useless.
    pub(crate) fn suspend(&mut self) {
        let files: Vec<i32> = self.clients.keys().copied().collect();
        for fd in files {
            let contexts: Vec<u32> = self.clients[&fd].contexts.keys().copied().collect();
            for context in contexts {
                self.remove_context(fd, context);
            }
            self.lost.insert(fd);
        }
    }

    /// A context that the firmware lost.
    pub(crate) fn lose_context(&mut self, fd: i32, id: u32) {
        self.abort_context(fd, id);
        if let Some(context) =
            self.clients.get_mut(&fd).and_then(|client| client.contexts.get_mut(&id))
        {
            context.status = Status::Lost;
        }
    }

    /// Contexts of all processes.
    pub(crate) fn context_count(&self) -> usize {
        let ours: usize = self.clients.values().map(|client| client.contexts.len()).sum();
        ours + self.plan.held()
    }

    /// An offset for `mmap` that no other buffer has.
    pub(crate) fn next_map_offset(&mut self, size: u64) -> u64 {
        let offset = self.map_offset;
        self.map_offset += size.min(1 << 40).next_multiple_of(1 << 16) + (1 << 16);
        offset
    }

    pub(crate) fn refuse_allocation(&mut self) -> bool {
        self.plan.allocation()
    }

    pub(crate) fn exported(&mut self, buffer: &Arc<Buffer>) {
        if !self.exports.iter().any(|known| Arc::ptr_eq(known, buffer)) {
            self.exports.push(buffer.clone());
        }
    }

    /// The exported buffer that a descriptor stands for.
    pub(crate) fn find_export(&self, file: i32) -> Option<Arc<Buffer>> {
        self.exports.iter().find(|buffer| buffer.memory.is(file)).cloned()
    }

    /// Notes why something failed, for the developer; a real device would not say.
    pub(crate) fn complain(&mut self, reason: String) {
        if self.complaints.len() < MAX_COMPLAINTS {
            self.complaints.push(reason);
        }
    }

    pub(crate) fn take_complaints(&mut self) -> Vec<String> {
        std::mem::take(&mut self.complaints)
    }

    /// Forgets mappings in a range that was unmapped.
    pub(crate) fn unmapped(&mut self, address: u64, length: u64) {
        for client in self.clients.values() {
            let heap = client.heap.iter().map(|(buffer, _)| buffer);
            client.buffers.values().chain(heap).for_each(|buffer| buffer.unmapped(address, length));
        }
    }
}
