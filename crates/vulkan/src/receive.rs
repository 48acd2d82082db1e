//! What another device computed, on its way into this one's arena.

use crate::commands::Recorder;
use crate::device::VulkanRecording;
use crate::memory::{Memory, Purpose, Region};
use ash::vk;
use pianola_plan::{DeviceError, DeviceKind, Plan};

/// A staging buffer for the rows of one step, where the arena is not visible to the host.
pub(crate) struct Import {
    region: Region,
    start: *mut u8,
    commands: vk::CommandBuffer,
}

impl Import {
    /// None where nothing is received, or it can be written to its place.
    pub fn new(
        plan: &Plan,
        arena: Region,
        memory: &mut Memory,
        recorder: &mut Recorder,
    ) -> Result<Option<Import>, DeviceError> {
        if memory.mapped(arena).is_some() {
            return Ok(None);
        }
        Import::make(plan, memory, recorder)
    }

    /// None where nothing is received.
    fn make(
        plan: &Plan,
        memory: &mut Memory,
        recorder: &mut Recorder,
    ) -> Result<Option<Import>, DeviceError> {
        let mine = plan.segments.iter().filter(|segment| segment.device == DeviceKind::Vulkan);
        let received = mine.flat_map(|segment| &segment.receives);
        let bytes = received.map(|&buffer| {
            let buffer = &plan.buffers[buffer];
            4 * (plan.max_rows(buffer.rows) * buffer.width) as u64
        });
        let bytes: u64 = bytes.sum();
        if bytes == 0 {
            return Ok(None);
        }
        let region = memory.allocate(Purpose::Staging, bytes, "a staging buffer")?;
        let start = memory.mapped(region).expect("staging memory is visible to the host");
        Ok(Some(Import { region, start, commands: recorder.allocate()? }))
    }
}

impl VulkanRecording {
    /// Receives through a staging buffer even where the arena is visible to the host, for tests of
    /// what devices with memory of their own do.
    #[doc(hidden)]
    pub fn stage_received(&mut self) -> Result<(), DeviceError> {
        self.import = Import::make(&self.plan, &mut self.memory, &mut self.recorder)?;
        Ok(())
    }

    /// Takes over the first rows of some of the plan's buffers, for the play that follows.
    pub fn receive(&mut self, pieces: &[(usize, &[u8])]) -> Result<(), DeviceError> {
        // A play in flight may still read what is there.
        self.idle()?;
        let arena = self.resources.arena;
        let place = |buffer: usize, bytes: &[u8]| {
            arena.slice(self.plan.arena.offsets[buffer] as u64, bytes.len() as u64)
        };
        let Some(import) = &self.import else {
            let start = self.memory.mapped(arena).expect("without an import it is mapped");
            for &(buffer, bytes) in pieces {
                let offset = (place(buffer, bytes).offset - arena.offset) as usize;
                // SAFETY: inside the mapped arena, as the slice made sure; nothing plays.
                unsafe {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), start.add(offset), bytes.len());
                }
            }
            return Ok(());
        };
        let mut copies = Vec::with_capacity(pieces.len());
        let mut used = 0;
        for &(buffer, bytes) in pieces {
            let from = import.region.slice(used, bytes.len() as u64);
            // SAFETY: inside the staging buffer; the plays that copied from it are done.
            unsafe {
                let to = import.start.add(used as usize);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
            copies.push((from, place(buffer, bytes)));
            used += bytes.len() as u64;
        }
        let commands = import.commands;
        self.recorder.write(commands, |recorder| {
            copies.iter().for_each(|&(from, to)| recorder.copy(commands, from, to));
        })?;
        // Nobody waits for this by itself: the play that follows does, and is waited for.
        self.submit(None, &[commands])
    }
}
