//! Looking into a play, kernel by kernel: for checks.

use super::CpuRecording;
use crate::kv::KvPages;
use crate::policy::{BLOCK_ATTENTION_ROWS, block_attention, refined_rows, rotated_rows, rotation};
use crate::simd::rotated::rotated_columns;
use crate::variants;
use pianola_plan::{
    AttentionSpec, DeviceError, Kernel, KernelVariant, KvSlot, Numeric, Op, Probe, Rounding, Row,
    Step, TensorId,
};

impl Probe for CpuRecording {
    fn begin(&mut self, step: &Step) -> Result<(), DeviceError> {
        self.prepare(step)
    }

    fn play_op(&mut self, op: usize, step: &Step) -> Result<(), DeviceError> {
        let stages = self.stages_of(op..op + 1);
        self.play_stages(0, step, stages)?;
        Ok(())
    }

    fn read_tensor(&mut self, tensor: TensorId, rows: usize) -> Result<Vec<f32>, DeviceError> {
        let mut values = vec![0.0; rows * self.plan.graph.tensor(tensor).width];
        self.copy_out(0, tensor, &mut values);
        Ok(values)
    }

    fn write_tensor(&mut self, tensor: TensorId, rows: &[f32]) -> Result<(), DeviceError> {
        self.copy_in(0, tensor, rows);
        Ok(())
    }

    fn read_kv(&mut self, slot: KvSlot, rows: &[Row]) -> Result<[Vec<f32>; 2], DeviceError> {
        let pages = &self.kv.groups[slot.group];
        let (heads, head_dim) = (pages.group.kv_heads, pages.group.head_dim);
        let stored = |value: bool| {
            let row = move |row: &Row| {
                let (sequence, position) = (row.sequence as usize, row.position as usize);
                (0..heads * head_dim).map(move |at| {
                    pages.get(sequence, position, slot, at / head_dim, value, at % head_dim)
                })
            };
            rows.iter().flat_map(row).collect()
        };
        Ok([stored(false), stored(true)])
    }

    fn rounding(&self, op: usize, step: &Step) -> Rounding {
        let project = match &self.plan.ops[op].kernel {
            Kernel::Project(project) => project,
            Kernel::Attend(attend) => return self.attention_rounding(&attend.spec, step),
            Kernel::Single(node) => {
                return match self.plan.graph.nodes[*node].op {
                    Op::Attention(spec) => self.attention_rounding(&spec, step),
                    _ => Rounding::None,
                };
            }
        };
        let columns = self.plan.graph.tensor(project.input).width;
        match self.plan.options.numeric {
            Numeric::Exact => Rounding::None,
            Numeric::Fast => {
                let (head, kept) = (self.plan.is_head(op), self.kept.is_some());
                let rows = if head { step.logits.len() } else { step.rows.len() };
                let rotates = (!head || kept) && rows >= rotated_rows(self.level, kept);
                match rotation(&self.plan.options, self.level, columns) {
                    Some(scaled) if rotates => {
                        Rounding::Rotated { block: rotated_columns(scaled), scaled }
                    }
                    _ if head && rows <= refined_rows(&self.plan.options) => Rounding::Int8Twice,
                    _ => Rounding::Int8,
                }
            }
        }
    }

    fn variants(&self, op: usize, step: &Step) -> Result<Vec<KernelVariant>, DeviceError> {
        Ok(variants::of_op(&self.plan, op, step, self.kernels()))
    }

    fn poison_tensor(&mut self, tensor: TensorId, rows: usize) -> Result<(), DeviceError> {
        let width = self.plan.graph.tensor(tensor).width;
        self.copy_in(0, tensor, &vec![f32::NAN; rows * width]);
        Ok(())
    }

    fn poison(&mut self) -> Result<(), DeviceError> {
        for slot in &mut self.slots {
            for value in slot.arena.bytes_mut().chunks_exact_mut(4) {
                value.copy_from_slice(&f32::NAN.to_ne_bytes());
            }
        }
        Ok(())
    }

    fn poison_kv(&mut self) -> Result<(), DeviceError> {
        self.kv.groups.iter_mut().for_each(KvPages::poison);
        Ok(())
    }
}

impl CpuRecording {
    fn kernels(&self) -> variants::KernelChoice {
        variants::KernelChoice { level: self.level, kept: self.kept.is_some() }
    }

    fn attention_rounding(&self, spec: &AttentionSpec, step: &Step) -> Rounding {
        let blocks = block_attention(&self.plan.options, self.level, spec.head_dim);
        match blocks.is_some() && step.rows.len() >= BLOCK_ATTENTION_ROWS {
            true => Rounding::Bf16,
            false => Rounding::None,
        }
    }
}
