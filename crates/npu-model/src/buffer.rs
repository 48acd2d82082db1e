//! Buffer objects.

use std::sync::{Arc, Mutex, PoisonError};

use crate::config::{Addressing, HEAP_BASE};
use crate::heap::HeapRange;
use crate::memory::Memory;

/// The types of `CREATE_BO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Tensors; host memory that the device reads through the IOMMU.
    Share,
    /// The memory of all DEV buffers of a client.
    Heap,
    /// Instructions and PDIs, a range of the heap.
    Dev,
    /// A command packet, which only the kernel reads.
    Command,
}

/// A buffer object; handles refer to it.
pub(crate) struct Buffer {
    pub(crate) kind: Kind,
    pub(crate) memory: Arc<Memory>,
    /// Where it starts in `memory`: other than zero for DEV buffers only.
    pub(crate) offset: usize,
    pub(crate) size: usize,
    /// The offset for `mmap`, unique in the device.
    pub(crate) map_offset: u64,
    /// The heap's buffer, whose mapping a DEV buffer shares.
    heap: Option<(Arc<Buffer>, HeapRange)>,
    /// Mappings of the caller, oldest first: address and length.
    mappings: Mutex<Vec<(u64, u64)>>,
}

/// `GET_BO_INFO`'s word for "there is none".
pub(crate) const NO_ADDRESS: u64 = u64::MAX;

impl Buffer {
    /// A buffer with pages of its own.
    pub(crate) fn new(kind: Kind, memory: Arc<Memory>, map_offset: u64) -> Buffer {
        let size = memory.size();
        Buffer { kind, memory, offset: 0, size, map_offset, heap: None, mappings: Mutex::default() }
    }

    /// A DEV buffer.
    pub(crate) fn in_heap(heap: Arc<Buffer>, range: HeapRange, size: usize) -> Buffer {
        Buffer {
            kind: Kind::Dev,
            memory: heap.memory.clone(),
            offset: range.start as usize,
            size,
            map_offset: NO_ADDRESS,
            heap: Some((heap, range)),
            mappings: Mutex::default(),
        }
    }

    /// Records a mapping of the caller.
    pub(crate) fn mapped(&self, address: u64, length: u64) {
        self.mappings().push((address, length));
    }

    /// Forgets the mappings that lie in a range which was unmapped.
    pub(crate) fn unmapped(&self, address: u64, length: u64) {
        let end = address.saturating_add(length);
        self.mappings().retain(|&(start, size)| start < address || start + size > end);
    }

    /// The user address, or `NO_ADDRESS`.
    pub(crate) fn user_address(&self) -> u64 {
        match &self.heap {
            Some((heap, range)) => match heap.user_address() {
                NO_ADDRESS => NO_ADDRESS,
                address => address + range.start,
            },
            None => self.mappings().first().map_or(NO_ADDRESS, |(address, _)| *address),
        }
    }

    /// What `GET_BO_INFO` calls `xdna_addr`.
    pub(crate) fn reported_address(&self, addressing: Addressing) -> u64 {
        match (self.kind, addressing) {
            (Kind::Heap | Kind::Dev, _) => HEAP_BASE + self.offset as u64,
            (_, Addressing::UserImplied) => NO_ADDRESS,
            (_, Addressing::User) => self.user_address(),
            (_, Addressing::Dma) => self.dma_address(),
        }
    }

    /// The offset in this buffer of what the device calls `address`, if it lies in it.
    pub(crate) fn find(&self, address: u64, addressing: Addressing) -> Option<usize> {
        let inside = |base: u64, size: u64| {
            address.checked_sub(base).filter(|offset| *offset < size).map(|offset| offset as usize)
        };
        match (self.kind, addressing) {
            (Kind::Heap | Kind::Dev, _) => inside(HEAP_BASE + self.offset as u64, self.size as u64),
            (_, Addressing::Dma) => inside(self.dma_address(), self.size as u64),
            _ => self.mappings().iter().find_map(|&(base, size)| inside(base, size)),
        }
    }

    /// An address that no process has: above the user's half.
    fn dma_address(&self) -> u64 {
        0x8000_0000_0000 + self.map_offset
    }

    fn mappings(&self) -> std::sync::MutexGuard<'_, Vec<(u64, u64)>> {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
