//! Looking into a recording, kernel by kernel, for checks.

use crate::memory::{Memory, Purpose, Region};
use crate::program::{Body, Dispatch};
use crate::recording::{VulkanRecording, logit_bucket};
use crate::statistics::named;
use crate::step::write_step;
use crate::upload::Uploader;
use pianola_plan::{
    DeviceError, KernelVariant, KvSlot, KvType, PAGE_TOKENS, Probe, Rounding, Row, Step, TensorId,
};

impl VulkanRecording {
    /// Plays a program once, alone.
    pub(crate) fn play_program(&mut self, program: &[Dispatch]) -> Result<(), DeviceError> {
        let commands = self.record(0, program)?;
        self.submit_one(Some(0), commands)?;
        self.finish(0)?;
        self.recorder.free(commands);
        Ok(())
    }

    /// The segment that kernel `op` belongs to.
    fn segment_of(&self, op: usize) -> usize {
        let mut segments = self.plan.segments.iter();
        segments.position(|segment| segment.ops.contains(&op)).expect("a kernel of this device")
    }

    /// What kernel `op` of the plan launches for a step: nothing where it is of the head and no row
    /// wants logits.
    fn program_of(&self, op: usize, step: &Step) -> Result<Vec<Dispatch>, DeviceError> {
        let programmer = self.programmer(0, &self.tuning);
        let segment = self.segment_of(op);
        let program = match self.plan.is_head(op) {
            true if step.logits.is_empty() => Vec::new(),
            true => programmer.head(segment, logit_bucket(step.logits.len(), &self.plan))?,
            false => programmer.body(Body::of(segment, step))?,
        };
        Ok(program.into_iter().filter(|dispatch| dispatch.op == op).collect())
    }

    /// Fills device memory with NaN.
    fn fill_with_nan(&mut self, regions: &[Region]) -> Result<(), DeviceError> {
        self.idle()?;
        let commands = self.recorder.allocate()?;
        self.recorder.write(commands, |recorder| recorder.fill_with_nan(commands, regions))?;
        self.submit_one(Some(0), commands)?;
        self.finish(0)?;
        self.recorder.free(commands);
        Ok(())
    }

    /// Bytes of device memory.
    pub(crate) fn read(&mut self, region: Region) -> Result<Vec<u8>, DeviceError> {
        // The fence may belong to a play that was not waited for.
        self.idle()?;
        let mut memory = Memory::new(self.gpu.clone(), None);
        let to = memory.allocate(Purpose::Readback, region.size, "a copy")?;
        let commands = self.recorder.allocate()?;
        self.recorder.write(commands, |recorder| recorder.copy(commands, region, to))?;
        self.submit_one(Some(0), commands)?;
        self.finish(0)?;
        self.recorder.free(commands);
        let start = memory.mapped(to).expect("visible to the host");
        // SAFETY: the copy is done; the region is mapped.
        Ok(unsafe { std::slice::from_raw_parts(start, region.size as usize) }.to_vec())
    }
}

impl Probe for VulkanRecording {
    fn begin(&mut self, step: &Step) -> Result<(), DeviceError> {
        self.check(step)?;
        self.idle()?;
        // SAFETY: mapped, and nothing plays.
        unsafe { write_step(self.slots[0].start, step) };
        Ok(())
    }

    fn play_op(&mut self, op: usize, step: &Step) -> Result<(), DeviceError> {
        let mine = self.program_of(op, step)?;
        match mine.is_empty() {
            true => Ok(()),
            false => self.play_program(&mine),
        }
    }

    fn read_tensor(&mut self, tensor: TensorId, rows: usize) -> Result<Vec<f32>, DeviceError> {
        let view = self.plan.view(tensor);
        let width = self.plan.graph.tensor(tensor).width;
        let stride = self.plan.buffers[view.buffer].width;
        let offset = self.plan.arena.offsets[view.buffer] as u64;
        if rows == 0 {
            return Ok(Vec::new());
        }
        let bytes = self.read(self.arena(0).slice(offset, (4 * rows * stride) as u64))?;
        let values: Vec<f32> = bytes
            .chunks_exact(4)
            .map(|value| f32::from_le_bytes([value[0], value[1], value[2], value[3]]))
            .collect();
        let row = |row: usize| &values[row * stride + view.column..][..width];
        Ok((0..rows).flat_map(|index| row(index).to_vec()).collect())
    }

    fn write_tensor(&mut self, tensor: TensorId, rows: &[f32]) -> Result<(), DeviceError> {
        self.idle()?;
        let view = self.plan.view(tensor);
        let width = self.plan.graph.tensor(tensor).width;
        let stride = self.plan.buffers[view.buffer].width;
        let mut uploader = Uploader::new(&self.gpu)?;
        for (index, row) in rows.chunks_exact(width).enumerate() {
            let column = index * stride + view.column;
            let offset = self.plan.arena.offsets[view.buffer] + 4 * column;
            let place = self.arena(0).slice(offset as u64, 4 * width as u64);
            uploader.copy(&self.memory, place, bytemuck::cast_slice(row))?;
        }
        uploader.finish()
    }

    fn read_kv(&mut self, slot: KvSlot, rows: &[Row]) -> Result<[Vec<f32>; 2], DeviceError> {
        let group = self.plan.graph.kv_groups[slot.group].clone();
        let bytes = self.read(self.resources.pages[slot.group][slot.layer])?;
        // Values in a vector of 16 bytes, and bytes of one head of a page.
        let length = 16 / group.ty.bytes();
        let head_bytes = PAGE_TOKENS * group.token_bytes() / group.kv_heads;
        let float = |bytes: &[u8], at: usize| {
            f32::from_le_bytes(bytes[4 * at..4 * at + 4].try_into().expect("four bytes"))
        };
        let mut found = [Vec::new(), Vec::new()];
        for row in rows {
            let position = row.position as usize;
            let entry = self.entry(slot.group, row.sequence as usize, position / PAGE_TOKENS);
            let page = self.mapped[entry] as usize;
            let token = position % PAGE_TOKENS;
            for head in 0..group.kv_heads {
                let bytes = &bytes[(page * group.kv_heads + head) * head_bytes..][..head_bytes];
                let values_at = PAGE_TOKENS * group.head_dim;
                let value = |which: usize, at: usize| match group.ty {
                    KvType::F32 => float(bytes, at),
                    KvType::F16 => {
                        half::f16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f32()
                    }
                    KvType::Q8 => {
                        let scales = &bytes[2 * values_at..];
                        f32::from(bytes[at] as i8) * float(scales, which * PAGE_TOKENS + token)
                    }
                };
                for d in 0..group.head_dim {
                    let key = (d / length * PAGE_TOKENS + token) * length + d % length;
                    found[0].push(value(0, key));
                    found[1].push(value(1, values_at + token * group.head_dim + d));
                }
            }
        }
        Ok(found)
    }

    fn rounding(&self, op: usize, step: &Step) -> Rounding {
        let body = Body::of(self.segment_of(op), step);
        let rows = match self.plan.is_head(op) {
            true => logit_bucket(step.logits.len(), &self.plan),
            false => body.rows,
        };
        self.programmer(0, &self.tuning).rounding(op, Body { rows, ..body })
    }

    fn variants(&self, op: usize, step: &Step) -> Result<Vec<KernelVariant>, DeviceError> {
        let program = self.program_of(op, step)?;
        Ok(program.iter().map(|dispatch| named(&dispatch.variant)).collect())
    }

    fn poison_tensor(&mut self, tensor: TensorId, rows: usize) -> Result<(), DeviceError> {
        let view = self.plan.view(tensor);
        let width = self.plan.graph.tensor(tensor).width;
        let stride = self.plan.buffers[view.buffer].width;
        let offset = self.plan.arena.offsets[view.buffer];
        let arena = self.arena(0);
        let place = |row: usize, rows: usize| {
            let start = offset + 4 * (row * stride + view.column);
            arena.slice(start as u64, (4 * rows * width) as u64)
        };
        let regions: Vec<Region> = match stride == width {
            true => vec![place(0, rows)],
            false => (0..rows).map(|row| place(row, 1)).collect(),
        };
        self.fill_with_nan(&regions)
    }

    fn poison(&mut self) -> Result<(), DeviceError> {
        self.fill_with_nan(&self.resources.arenas.clone())
    }

    fn poison_kv(&mut self) -> Result<(), DeviceError> {
        let pages: Vec<Region> = self.resources.pages.iter().flatten().copied().collect();
        self.fill_with_nan(&pages)
    }
}
