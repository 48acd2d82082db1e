//! Plays a plan kernel by kernel over its devices, for checks.

use super::Executor;
use pianola_plan::{DeviceError, KernelVariant, KvSlot, Probe, Rounding, Row, Step, TensorId};

impl Probe for Executor {
    fn begin(&mut self, step: &Step) -> Result<(), DeviceError> {
        self.recordings.iter_mut().try_for_each(|recording| recording.begin(step))
    }

    fn play_op(&mut self, op: usize, step: &Step) -> Result<(), DeviceError> {
        let plan = self.plan.clone();
        let device = plan.ops[op].device;
        if let Some(segment) = plan.placed_segments().find(|segment| segment.ops.start == op) {
            for transfer in &segment.receives {
                let from = plan.segments[transfer.from].device;
                let rows = plan.rows(transfer.tensor, step);
                let values = self.recordings[from.0].read_tensor(transfer.tensor, rows)?;
                self.recordings[device.0].write_tensor(transfer.tensor, &values)?;
            }
        }
        self.recordings[device.0].play_op(op, step)
    }

    fn read_tensor(&mut self, tensor: TensorId, rows: usize) -> Result<Vec<f32>, DeviceError> {
        let device = self.plan.tensor_device(tensor);
        self.recordings[device.0].read_tensor(tensor, rows)
    }

    fn write_tensor(&mut self, tensor: TensorId, rows: &[f32]) -> Result<(), DeviceError> {
        let mut recordings = self.recordings.iter_mut();
        recordings.try_for_each(|recording| recording.write_tensor(tensor, rows))
    }

    fn read_kv(&mut self, slot: KvSlot, rows: &[Row]) -> Result<[Vec<f32>; 2], DeviceError> {
        let device = self.plan.kv_device(slot);
        self.recordings[device.0].read_kv(slot, rows)
    }

    fn rounding(&self, op: usize, step: &Step) -> Rounding {
        self.recordings[self.plan.ops[op].device.0].rounding(op, step)
    }

    fn variants(&self, op: usize, step: &Step) -> Result<Vec<KernelVariant>, DeviceError> {
        self.recordings[self.plan.ops[op].device.0].variants(op, step)
    }

    fn poison_tensor(&mut self, tensor: TensorId, rows: usize) -> Result<(), DeviceError> {
        let device = self.plan.tensor_device(tensor);
        self.recordings[device.0].poison_tensor(tensor, rows)
    }

    fn poison(&mut self) -> Result<(), DeviceError> {
        self.recordings.iter_mut().try_for_each(|recording| recording.poison())
    }

    fn poison_kv(&mut self) -> Result<(), DeviceError> {
        self.recordings.iter_mut().try_for_each(|recording| recording.poison_kv())
    }
}
