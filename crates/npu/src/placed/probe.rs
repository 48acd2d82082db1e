//! A recording looked into, kernel by kernel and tensor by tensor.

use pianola_plan::{
    DeviceError, KernelVariant, KvSlot, Probe, Recording, Rounding, Row, SLOTS, Step, TensorId,
    WAIT_LIMIT,
};

use super::recording::NpuRecording;
use super::variants;
use super::worker::lock;

impl Probe for NpuRecording {
    fn begin(&mut self, step: &Step) -> Result<(), DeviceError> {
        (0..SLOTS).try_for_each(|slot| self.wait(slot, WAIT_LIMIT))?;
        self.check(step)
    }

    fn play_op(&mut self, op: usize, step: &Step) -> Result<(), DeviceError> {
        let step = step.clone();
        self.ask(move |worker| worker.play_op(op, &step))?
    }

    fn read_tensor(&mut self, tensor: TensorId, rows: usize) -> Result<Vec<f32>, DeviceError> {
        self.check_rows(tensor, rows)?;
        Ok(lock(&self.arenas, 0).gather(tensor, 0..rows))
    }

    fn write_tensor(&mut self, tensor: TensorId, rows: &[f32]) -> Result<(), DeviceError> {
        self.check_values(tensor, rows.len())?;
        lock(&self.arenas, 0).scatter(tensor, rows);
        Ok(())
    }

    fn read_kv(&mut self, slot: KvSlot, rows: &[Row]) -> Result<[Vec<f32>; 2], DeviceError> {
        let rows = rows.to_vec();
        self.ask(move |worker| worker.read_kv(slot, &rows))?
    }

    fn rounding(&self, op: usize, step: &Step) -> Rounding {
        variants::rounding(&self.kernels, &self.plan, op, step)
    }

    fn variants(&self, op: usize, step: &Step) -> Result<Vec<KernelVariant>, DeviceError> {
        Ok(variants::of_step(&self.kernels, &self.plan, op, step))
    }

    fn poison_tensor(&mut self, tensor: TensorId, rows: usize) -> Result<(), DeviceError> {
        self.check_rows(tensor, rows)?;
        let mut arena = lock(&self.arenas, 0);
        (0..rows).for_each(|row| arena.row_mut(tensor, row).fill(f32::NAN));
        Ok(())
    }

    fn poison(&mut self) -> Result<(), DeviceError> {
        lock(&self.arenas, 0).poison();
        Ok(())
    }

    fn poison_kv(&mut self) -> Result<(), DeviceError> {
        self.ask(|worker| worker.kv.poison())
    }
}
