//! A plan on two devices: the first layers on the processor, the rest and the head on a GPU.
//!
//! The two share one plan and one layout of the arena, each with memory of its own. What passes
//! from one to the other is in the plan's segments, and is copied to the same place. While the GPU
//! works on a prompt's chunk that wants no logits, the processor is at the next one.

use pianola_cpu::{CpuOptions, CpuRecording};
use pianola_formats::TensorSource;
use pianola_plan::{
    DeviceError, DeviceKind, KernelTime, KvSlot, Plan, PlayStatistics, Probe, Recording, Row,
    RowSet, Step, TensorId,
};
use pianola_vulkan::{VulkanOptions, VulkanRecording};
use std::time::Instant;

/// A plan recorded on the processor and a GPU.
pub struct HybridRecording {
    cpu: CpuRecording,
    gpu: VulkanRecording,
    plays: u64,
    seconds: f64,
}

impl HybridRecording {
    /// Loads and records each device's part of `plan`; `progress` hears of bytes of weights done
    /// and in all.
    pub fn new(
        plan: Plan,
        source: &dyn TensorSource,
        cpu: CpuOptions,
        gpu: VulkanOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<HybridRecording, DeviceError> {
        let on_gpu = plan.weight_bytes_on(DeviceKind::Vulkan);
        let all = on_gpu + plan.weight_bytes_on(DeviceKind::Cpu);
        // The GPU first: where both have the same memory, the processor then knows what is left.
        let gpu =
            VulkanRecording::new(plan.clone(), source, gpu, &mut |done, _| progress(done, all))?;
        let cpu =
            CpuRecording::new(plan, source, cpu, &mut |done, _| progress(on_gpu + done, all))?;
        Ok(HybridRecording { cpu, gpu, plays: 0, seconds: 0.0 })
    }

    /// The GPU's part.
    pub fn gpu(&self) -> &VulkanRecording {
        &self.gpu
    }

    /// The same, for tests.
    #[doc(hidden)]
    pub fn gpu_mut(&mut self) -> &mut VulkanRecording {
        &mut self.gpu
    }

    fn of(&mut self, device: DeviceKind) -> &mut dyn Probe {
        match device {
            DeviceKind::Cpu => &mut self.cpu,
            DeviceKind::Vulkan => &mut self.gpu,
        }
    }

    /// Copies what the segment that starts at kernel `op` reads of the processor's results.
    fn hand_over(&mut self, op: usize, step: &Step) -> Result<(), DeviceError> {
        let plan = self.gpu.plan();
        let segment = plan.segments.iter().find(|segment| segment.ops.start == op);
        let Some(segment) = segment.filter(|segment| !segment.receives.is_empty()) else {
            return Ok(());
        };
        let rows = |buffer: usize| match plan.buffers[buffer].rows {
            RowSet::All => step.rows.len(),
            RowSet::Logits => step.logits.len(),
        };
        let received: Vec<(usize, usize)> =
            segment.receives.iter().map(|&buffer| (buffer, rows(buffer))).collect();
        let cpu = &self.cpu;
        let pieces: Vec<(usize, &[u8])> =
            received.into_iter().map(|(buffer, rows)| (buffer, cpu.buffer(buffer, rows))).collect();
        self.gpu.receive(&pieces)
    }
}

impl Recording for HybridRecording {
    fn plan(&self) -> &Plan {
        self.gpu.plan()
    }

    fn play(&mut self, step: &Step) -> Result<(), DeviceError> {
        let start = Instant::now();
        self.cpu.play(step)?;
        let first = self.plan().segments.last().map_or(0, |segment| segment.ops.start);
        self.hand_over(first, step)?;
        self.gpu.play(step)?;
        self.plays += 1;
        self.seconds += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn record_ahead(&mut self) -> Result<(), DeviceError> {
        self.gpu.record_ahead()
    }

    fn logits(&mut self, index: usize) -> &mut [f32] {
        self.gpu.logits(index)
    }

    fn map_page(&mut self, group: usize, sequence: usize, index: usize, page: u32) {
        self.cpu.map_page(group, sequence, index, page);
        self.gpu.map_page(group, sequence, index, page);
    }

    fn unmap_page(&mut self, group: usize, sequence: usize, index: usize) {
        self.cpu.unmap_page(group, sequence, index);
        self.gpu.unmap_page(group, sequence, index);
    }

    fn measure_busy(&mut self, on: bool) {
        self.cpu.measure_busy(on);
        self.gpu.measure_busy(on);
    }

    /// Times the GPU's kernels; the processor keeps no times of single ones.
    fn start_profile(&mut self) -> bool {
        self.gpu.start_profile()
    }

    fn take_profile(&mut self) -> Vec<KernelTime> {
        self.gpu.take_profile()
    }

    fn statistics(&self) -> PlayStatistics {
        let (cpu, gpu) = (self.cpu.statistics(), self.gpu.statistics());
        PlayStatistics {
            plays: self.plays,
            seconds: self.seconds,
            busy_seconds: cpu.busy_seconds + gpu.busy_seconds,
            ..gpu
        }
    }
}

impl Probe for HybridRecording {
    fn begin(&mut self, step: &Step) -> Result<(), DeviceError> {
        self.cpu.begin(step)?;
        self.gpu.begin(step)
    }

    fn play_op(&mut self, op: usize, step: &Step) -> Result<(), DeviceError> {
        self.hand_over(op, step)?;
        let device = self.plan().ops[op].device;
        self.of(device).play_op(op, step)
    }

    fn read_tensor(&mut self, tensor: TensorId, rows: usize) -> Result<Vec<f32>, DeviceError> {
        let device = self.plan().tensor_device(tensor);
        self.of(device).read_tensor(tensor, rows)
    }

    fn read_kv(&mut self, slot: KvSlot, rows: &[Row]) -> Result<[Vec<f32>; 2], DeviceError> {
        let device = self.plan().kv_device(slot);
        self.of(device).read_kv(slot, rows)
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn std::any::Any {
        self
    }

    fn poison(&mut self) -> Result<(), DeviceError> {
        self.cpu.poison()?;
        self.gpu.poison()
    }
}
