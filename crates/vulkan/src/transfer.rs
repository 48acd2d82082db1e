//! Tensors that pass between this device and others.
//!
//! Where the arena is visible to the host they are written and read in place. Elsewhere they pass
//! through staging memory, and copies recorded beside the segment's kernels move them: a segment
//! stays one submission.

use crate::commands::{Recorder, Rows};
use crate::memory::{Memory, Purpose, Region};
use crate::recording::VulkanRecording;
use ash::vk;
use pianola_plan::{DeviceError, DeviceId, Plan, RowSet, TensorId};

/// Staging memory of one slot.
pub(crate) struct Staging {
    /// Tensors that pass through, each with its first byte.
    places: Vec<(TensorId, u64)>,
    region: Region,
    start: *mut u8,
}

impl Staging {
    /// Room for some tensors; none where there are none.
    fn new(
        plan: &Plan,
        tensors: Vec<TensorId>,
        purpose: Purpose,
        memory: &mut Memory,
    ) -> Result<Option<Staging>, DeviceError> {
        let mut bytes = 0;
        let mut places = Vec::new();
        for tensor in tensors {
            let spec = plan.graph.tensor(tensor);
            places.push((tensor, bytes));
            bytes += (4 * plan.max_rows(spec.rows) * spec.width) as u64;
        }
        if bytes == 0 {
            return Ok(None);
        }
        let region = memory.allocate(purpose, bytes, "a staging buffer")?;
        let start = memory.mapped(region).expect("staging memory is visible to the host");
        Ok(Some(Staging { places, region, start }))
    }

    fn place(&self, tensor: TensorId) -> Option<u64> {
        self.places.iter().find(|place| place.0 == tensor).map(|place| place.1)
    }
}

/// Where the tensors of one slot pass through.
#[derive(Default)]
pub(crate) struct Transfers {
    imports: Option<Staging>,
    exports: Option<Staging>,
}

impl Transfers {
    /// Staging memory for what a device receives and sends; none of either where nothing does, or
    /// where the arena is visible to the host and `always` is not set.
    pub fn new(
        plan: &Plan,
        device: DeviceId,
        arena: Region,
        memory: &mut Memory,
        always: bool,
    ) -> Result<Transfers, DeviceError> {
        if memory.mapped(arena).is_some() && !always {
            return Ok(Transfers::default());
        }
        let mine = |segment: usize| plan.segments[segment].device == device;
        let segments = || (0..plan.segments.len()).filter(|&segment| mine(segment));
        let received = segments().flat_map(|segment| &plan.segments[segment].receives);
        let mut received: Vec<TensorId> = received.map(|transfer| transfer.tensor).collect();
        received.sort_unstable();
        received.dedup();
        let mut sent: Vec<TensorId> = segments().flat_map(|segment| plan.sends(segment)).collect();
        sent.sort_unstable();
        sent.dedup();
        Ok(Transfers {
            imports: Staging::new(plan, received, Purpose::Staging, memory)?,
            exports: Staging::new(plan, sent, Purpose::Readback, memory)?,
        })
    }
}

impl VulkanRecording {
    /// Passes tensors through staging memory even where the arena is visible to the host, as
    /// devices with memory of their own do.
    #[doc(hidden)]
    pub fn stage_transfers(&mut self) -> Result<(), DeviceError> {
        for slot in 0..self.slots.len() {
            let arena = self.arena(slot);
            let (plan, device) = (&self.plan, self.device);
            let transfers = Transfers::new(plan, device, arena, &mut self.memory, true)?;
            self.slots[slot].transfers = transfers;
            self.slots[slot].moves.clear();
        }
        Ok(())
    }

    /// Rows of a tensor where they lie in a slot's arena.
    fn arena_rows(&self, slot: usize, tensor: TensorId) -> Rows {
        let view = self.plan.view(tensor);
        let buffer = &self.plan.buffers[view.buffer];
        let offset = (self.plan.arena.offsets[view.buffer] + 4 * view.column) as u64;
        let arena = self.arena(slot);
        let region = arena.slice(offset, arena.size - offset);
        Rows { region, stride: 4 * buffer.width as u64 }
    }

    /// Rows of a tensor in staging memory.
    fn staged_rows(&self, staging: &Staging, tensor: TensorId) -> Option<Rows> {
        let place = staging.place(tensor)?;
        let region = staging.region.slice(place, staging.region.size - place);
        Some(Rows { region, stride: 4 * self.plan.graph.tensor(tensor).width as u64 })
    }

    /// Commands that move what a segment receives into the arena, or what it sends out of it, in a
    /// play of at most `rows` rows and `logits` rows with logits; none where nothing has to move.
    pub(crate) fn record_transfers(
        &mut self,
        slot: usize,
        segment: usize,
        direction: Direction,
        [rows, logits]: [usize; 2],
    ) -> Result<Option<vk::CommandBuffer>, DeviceError> {
        let transfers = &self.slots[slot].transfers;
        let (staging, tensors): (_, Vec<TensorId>) = match direction {
            Direction::Import => {
                let received = self.plan.segments[segment].receives.iter();
                (&transfers.imports, received.map(|transfer| transfer.tensor).collect())
            }
            Direction::Export => (&transfers.exports, self.plan.sends(segment).collect()),
        };
        let Some(staging) = staging else {
            return self.record_in_place(direction, tensors.is_empty());
        };
        let mut copies = Vec::new();
        for tensor in tensors {
            let spec = self.plan.graph.tensor(tensor);
            let count = match spec.rows {
                RowSet::All => rows,
                RowSet::Logits => logits,
            };
            let count = count.min(self.plan.max_rows(spec.rows));
            let Some(staged) = self.staged_rows(staging, tensor) else { continue };
            let here = self.arena_rows(slot, tensor);
            let (from, to) = match direction {
                Direction::Import => (staged, here),
                Direction::Export => (here, staged),
            };
            copies.push((from, to, count, 4 * spec.width as u64));
        }
        if copies.is_empty() {
            return Ok(None);
        }
        let commands = self.recorder.allocate()?;
        self.recorder.write(commands, |recorder: &Recorder| {
            for &(from, to, count, bytes) in &copies {
                recorder.copy_rows(commands, from, to, count, bytes);
            }
        })?;
        Ok(Some(commands))
    }

    /// What is sent in place has to become visible to the host; what is received already is.
    fn record_in_place(
        &mut self,
        direction: Direction,
        nothing: bool,
    ) -> Result<Option<vk::CommandBuffer>, DeviceError> {
        if nothing || direction == Direction::Import {
            return Ok(None);
        }
        let commands = self.recorder.allocate()?;
        self.recorder.write(commands, |recorder: &Recorder| recorder.to_host(commands))?;
        Ok(Some(commands))
    }

    /// Rows of a tensor as the host sees them: their start, and the bytes between two of them.
    fn host_rows(&self, slot: usize, tensor: TensorId, direction: Direction) -> (*mut u8, u64) {
        let transfers = &self.slots[slot].transfers;
        let staging = match direction {
            Direction::Import => &transfers.imports,
            Direction::Export => &transfers.exports,
        };
        if let Some(staging) = staging
            && let Some(place) = staging.place(tensor)
        {
            let stride = 4 * self.plan.graph.tensor(tensor).width as u64;
            // SAFETY: the place lies inside the mapped staging memory.
            return (unsafe { staging.start.add(place as usize) }, stride);
        }
        let Rows { region, stride } = self.arena_rows(slot, tensor);
        let start = self.memory.mapped(self.arena(slot)).expect("without staging it is mapped");
        // SAFETY: the region begins inside the mapped arena.
        (unsafe { start.add((region.offset - self.arena(slot).offset) as usize) }, stride)
    }

    /// See [`pianola_plan::Recording::import`].
    pub(crate) fn import_rows(
        &mut self,
        slot: usize,
        tensor: TensorId,
        rows: &[f32],
    ) -> Result<(), DeviceError> {
        // What this slot played before may still read what is there.
        self.finish(slot)?;
        let spec = self.plan.graph.tensor(tensor);
        assert!(rows.len() <= self.plan.max_rows(spec.rows) * spec.width);
        let (start, stride) = self.host_rows(slot, tensor, Direction::Import);
        for (index, row) in rows.chunks_exact(spec.width).enumerate() {
            // SAFETY: the row lies inside the tensor, as asserted; nothing plays in this slot.
            unsafe {
                let to = start.add(index * stride as usize).cast::<f32>();
                to.copy_from_nonoverlapping(row.as_ptr(), row.len());
            }
        }
        Ok(())
    }

    /// See [`pianola_plan::Recording::export`].
    pub(crate) fn export_rows(
        &mut self,
        slot: usize,
        tensor: TensorId,
        rows: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.finish(slot)?;
        let spec = self.plan.graph.tensor(tensor);
        assert!(rows.len() <= self.plan.max_rows(spec.rows) * spec.width);
        let (start, stride) = self.host_rows(slot, tensor, Direction::Export);
        for (index, row) in rows.chunks_exact_mut(spec.width).enumerate() {
            // SAFETY: as above.
            unsafe {
                let from = start.add(index * stride as usize).cast::<f32>();
                from.copy_to_nonoverlapping(row.as_mut_ptr(), row.len());
            }
        }
        Ok(())
    }
}

/// Which way a tensor passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Import,
    Export,
}
