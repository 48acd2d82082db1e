//! What one open file of the device holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::buffer::{Buffer, Kind};
use crate::context::Context;
use crate::errno::Errno;
use crate::heap::Heap;
use crate::syncobj::Timeline;

/// One open file.
#[derive(Default)]
pub(crate) struct Client {
    /// GEM handles.
    pub(crate) buffers: BTreeMap<u32, Arc<Buffer>>,
    /// Hardware contexts.
    pub(crate) contexts: BTreeMap<u32, Context>,
    /// Syncobj handles; one stays after its context until it is destroyed.
    pub(crate) timelines: BTreeMap<u32, Arc<Timeline>>,
    /// The device heap. It stays when its handle is closed.
    pub(crate) heap: Option<(Arc<Buffer>, Arc<Heap>)>,
    next_context: u32,
}

impl Client {
    /// The lowest handle that is free; handles start at one.
    pub(crate) fn add_buffer(&mut self, buffer: Arc<Buffer>) -> u32 {
        let handle = lowest_free(&self.buffers);
        self.buffers.insert(handle, buffer);
        handle
    }

    pub(crate) fn add_timeline(&mut self, timeline: Arc<Timeline>) -> u32 {
        let handle = lowest_free(&self.timelines);
        self.timelines.insert(handle, timeline);
        handle
    }

    /// Context numbers are not used again at once, as in the kernel.
    pub(crate) fn add_context(&mut self, context: Context) -> u32 {
        loop {
            self.next_context = self.next_context % 255 + 1;
            if !self.contexts.contains_key(&self.next_context) {
                self.contexts.insert(self.next_context, context);
                return self.next_context;
            }
        }
    }

    /// A DEV buffer, which needs the heap and the heap's mapping.
    pub(crate) fn new_dev(&self, size: u64) -> Result<Buffer, Errno> {
        let (heap, ranges) = self.heap.as_ref().ok_or(Errno::EAGAIN)?;
        let range = ranges.take(size)?;
        if heap.user_address() == crate::buffer::NO_ADDRESS {
            return Err(Errno::EAGAIN);
        }
        Ok(Buffer::in_heap(heap.clone(), range, size as usize))
    }

    /// A command buffer.
    pub(crate) fn command(&self, handle: u32) -> Option<&Arc<Buffer>> {
        self.buffers.get(&handle).filter(|buffer| buffer.kind == Kind::Command)
    }
}

fn lowest_free<T>(handles: &BTreeMap<u32, T>) -> u32 {
    let mut free = 1;
    for handle in handles.keys() {
        if *handle != free {
            break;
        }
        free += 1;
    }
    free
}
