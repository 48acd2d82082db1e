//! A plan recorded for a GPU: weights resident, command buffers made once, a play one submission.

mod chain;
mod check;
mod play;
mod settle;
mod slot;

pub(crate) use check::check_heads;
pub(crate) use play::info;
pub(crate) use settle::PlayedBy;
pub(crate) use slot::{FrameSlot, Recorded};

use crate::ablate::{Ablated, Ablation};
use crate::budget::Budget;
use crate::busy::BusyClock;
use crate::commands::Recorder;
use crate::device::VulkanOptions;
use crate::dry_run::OpLaunch;
use crate::gpu::Gpu;
use crate::measure::rough_rate;
use crate::memory::{HeapUse, Memory, Purpose, Region};
use crate::pipeline::Pipelines;
use crate::policy::Limits;
use crate::profile::Profiler;
use crate::program::{Programmer, Resources};
use crate::sampler::Sampler;
use crate::step::{STEP_BYTES, write_step};
use crate::transfer::Transfers;
use crate::tuning::Tuning;
use crate::upload::Uploader;
use crate::weights::{Weights, slice_limit};
use ash::vk;
use chain::Chain;
use check::check_bindings;
use pianola_formats::TensorSource;
use pianola_plan::{
    Allocation, DeviceError, DeviceId, DeviceSampler, KernelTime, LogitsTo, Plan, PlayStatistics,
    Recording, SLOTS, Step, TensorId,
};
use slot::{HostLogits, host_logits};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// An entry of the page tables that points nowhere.
const UNMAPPED: u32 = u32::MAX;

/// A device's part of a plan, recorded for a GPU.
pub struct VulkanRecording {
    pub(crate) plan: Arc<Plan>,
    pub(crate) device: DeviceId,
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) slots: Vec<FrameSlot>,
    pub(crate) recorder: Recorder,
    pub(crate) pipelines: Pipelines,
    pub(crate) weights: Weights,
    pub(crate) resources: Resources,
    limits: Limits,
    pub(crate) tuning: Tuning,
    /// Operations a second, for predictions.
    rate: f64,
    /// The page tables, in device memory and as the host knows them.
    tables: *mut u32,
    pub(crate) mapped: Vec<u32>,
    /// For each entry the play after which it was last taken away, and the play that was last
    /// waited for: an entry in between may still be read by a play in flight.
    retired: Vec<u64>,
    finished: u64,
    /// One for each arena.
    logits: Vec<HostLogits>,
    pub(crate) statistics: PlayStatistics,
    pub(crate) profiler: Option<Profiler>,
    pub(crate) ablation: Option<Ablated>,
    pub(crate) busy: Option<BusyClock>,
    pub(crate) interrupt: Option<Arc<AtomicBool>>,
    /// One for each arena, where this device computes the logits.
    pub(crate) samplers: Vec<Sampler>,
    /// Single rows by chained kernels, where these play them.
    chain: Option<Chain>,
    /// What the user is to be told, once.
    notice: Option<String>,
    /// Command buffers of one submission, kept so that none is allocated again.
    pub(crate) list: Vec<vk::CommandBufferSubmitInfo<'static>>,
    // Last: everything above points into it.
    pub(crate) memory: Memory,
}

// SAFETY: pointers lead to mapped memory that the recording owns, whatever thread it is on; Vulkan
// objects are used by one thread at a time because playing takes `&mut self`.
unsafe impl Send for VulkanRecording {}

impl Drop for VulkanRecording {
    fn drop(&mut self) {
        self.take_profile();
        // Also forward passes that were not sampled. A failure has no caller to be reported to.
        let _ = self.idle();
        if self.gpu.is_hung() {
            return;
        }
        if let Some(clock) = self.busy.take() {
            clock.free(&self.gpu, &mut self.recorder);
        }
        for slot in &self.slots {
            // SAFETY: waited for, or the device is lost and no longer uses it.
            unsafe { self.gpu.raw.destroy_fence(slot.fence, None) };
        }
    }
}

impl VulkanRecording {
    /// Uploads the weights that device `device` of `plan` reads from `source`, and makes ready to
    /// record its kernels; `progress` is called with the bytes of weights done and in all.
    pub fn new(
        plan: Arc<Plan>,
        device: DeviceId,
        source: &dyn TensorSource,
        options: VulkanOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<VulkanRecording, DeviceError> {
        let gpu = options.gpu.clone();
        check_heads(&plan)?;
        check_bindings(&plan, gpu.description().largest_binding)?;
        // Asked before anything is allocated, as the plan was.
        let prompt_weights = Budget::of(&options).keeps_prompt_weights(&plan, device)?;
        let mut memory =
            Memory::new(gpu.clone(), options.memory).reaching_host(options.host_memory);
        let pipelines = Pipelines::kept_at(&gpu, options.pipeline_file.clone())?;
        let mut recorder = Recorder::new(&gpu)?;
        let limits = Limits::of_options(&options);
        let mut resident = |allocation: &Allocation| {
            memory.allocate(Purpose::Resident, allocation.bytes, &allocation.what)
        };
        // What plays need comes first: a model that leaves no room for it is of no use.
        let resources = Resources::new(&plan, device, &limits, &mut resident)?;
        let mut weights = Weights::new(&plan, device, slice_limit(&gpu), &mut resident)?;
        if prompt_weights {
            weights.add_prompt_form(&plan, device, slice_limit(&gpu), &mut resident)?;
        }
        let mut uploader = Uploader::new(&gpu)?;
        weights.load(&memory, &mut uploader, &plan, source, progress)?;
        for counters in [resources.arrivals, resources.finished] {
            uploader.copy(&memory, counters, &vec![0; counters.size as usize])?;
        }
        uploader.finish()?;
        let entries = resources.entries as usize;
        let count = plan.graph.kv_groups.len() * plan.options.sequences * entries;
        let table = memory.allocate(Purpose::Step, 4 * count as u64, "page tables")?;
        let tables = memory.mapped(table).expect("steps are visible to the host").cast();
        let logits = host_logits(&plan, device, &mut memory)?;
        let binding = gpu.description().largest_binding;
        let samplers = (0..logits.len()).map(|_| Sampler::new(&plan, &mut memory, binding));
        let samplers = samplers.collect::<Result<Vec<Sampler>, DeviceError>>()?;
        let mut slots = Vec::new();
        for slot in 0..SLOTS {
            let step = memory.allocate(Purpose::Step, STEP_BYTES, "steps")?;
            let start = memory.mapped(step).expect("steps are visible to the host");
            let set = recorder.set(pipelines.step_set, &[1, 1], &[step, table])?;
            let arena = resources.arenas[slot % resources.arenas.len()];
            let transfers = Transfers::new(&plan, device, arena, &mut memory, false)?;
            slots.push(FrameSlot::new(&gpu, step, start, set, transfers)?);
        }
        let mut recording = VulkanRecording {
            rate: rough_rate(&gpu, plan.options.numeric)?,
            mapped: vec![UNMAPPED; count],
            retired: vec![0; count],
            finished: 0,
            plan,
            device,
            gpu,
            slots,
            recorder,
            pipelines,
            weights,
            resources,
            limits,
            tuning: options.tuning,
            tables,
            logits,
            statistics: PlayStatistics::default(),
            profiler: None,
            ablation: None,
            busy: None,
            interrupt: None,
            samplers,
            chain: None,
            notice: None,
            list: Vec::with_capacity(16),
            memory,
        };
        recording.make_prompt_form()?;
        recording.choose_decode(options.decode, options.chain)?;
        Ok(recording)
    }

    /// The plan that this plays.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The device.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Which heaps weights, pages and activations lie in.
    pub fn heap_use(&self) -> HeapUse {
        self.memory.heap_use()
    }

    /// The arena of a slot.
    pub(crate) fn arena(&self, slot: usize) -> Region {
        self.resources.arenas[slot % self.resources.arenas.len()]
    }

    pub(crate) fn programmer<'a>(&'a self, slot: usize, tuning: &'a Tuning) -> Programmer<'a> {
        Programmer {
            plan: &self.plan,
            device: self.device,
            weights: &self.weights,
            resources: &self.resources,
            arena: self.arena(slot),
            limits: self.limits,
            within: 0..0,
            tuning,
        }
    }

    /// What a play of `rows` rows with `logits` rows of logits launches, in order.
    pub fn launches(&self, rows: usize, logits: usize) -> Result<Vec<OpLaunch>, DeviceError> {
        self.programmer(0, &self.tuning).launches(rows, logits)
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Cuts what is recorded from now on as for a device of this many operations a second: for
    /// tests of long work.
    #[doc(hidden)]
    pub fn assume_rate(&mut self, operations_per_second: f64) {
        self.rate = operations_per_second;
    }

    pub(crate) fn check(&self, step: &Step) -> Result<(), DeviceError> {
        step.check(&self.plan, &|group, sequence, index| self.is_mapped(group, sequence, index))
    }

    /// Whether an entry of the page tables points at a page.
    pub(crate) fn is_mapped(&self, group: usize, sequence: usize, index: usize) -> bool {
        let entries = self.resources.entries as usize;
        let at = self.resources.tables[group] as usize + sequence * entries + index;
        index < entries && self.mapped[at] != UNMAPPED
    }

    pub(crate) fn entry(&self, group: usize, sequence: usize, index: usize) -> usize {
        let entries = self.resources.entries as usize;
        assert!(index < entries && sequence < self.plan.options.sequences);
        self.resources.tables[group] as usize + sequence * entries + index
    }
}

/// Rows of logits that a head is recorded for: a power of two, or all there is room for; none where
/// no row wants logits.
pub(crate) fn logit_bucket(logits: usize, plan: &Plan) -> u32 {
    match logits {
        0 => 0,
        _ => logits.next_power_of_two().min(plan.options.max_logit_rows) as u32,
    }
}

impl Recording for VulkanRecording {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn keeps_prompt_weights(&self) -> bool {
        self.weights.has_prompt_form()
    }

    fn submit(
        &mut self,
        segment: usize,
        slot: usize,
        step: &Step,
        logits: LogitsTo,
    ) -> Result<(), DeviceError> {
        let start = Instant::now();
        self.check(step)?;
        self.settle_all()?;
        self.statistics.plays += 1;
        if self.profiler.is_some() {
            return self.play_timed(segment, slot, step);
        }
        if self.ablation.as_ref().is_some_and(|ablated| ablated.kind != Ablation::Nothing) {
            return self.play_ablated(segment, slot, step);
        }
        self.ready(segment, slot, step)?;
        // SAFETY: the slot's step is mapped, and nothing plays it.
        unsafe { write_step(self.slots[slot].start, step) };
        self.launch(segment, slot, step, logits)?;
        self.statistics.seconds += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn wait(&mut self, slot: usize, limit: Duration) -> Result<(), DeviceError> {
        let start = Instant::now();
        self.await_interruptibly(slot)?;
        self.finish_within(slot, limit)?;
        self.statistics.seconds += start.elapsed().as_secs_f64();
        Ok(())
    }

    fn export(
        &mut self,
        slot: usize,
        tensor: TensorId,
        rows: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.export_rows(slot, tensor, rows)
    }

    fn import(&mut self, slot: usize, tensor: TensorId, rows: &[f32]) -> Result<(), DeviceError> {
        self.import_rows(slot, tensor, rows)
    }

    fn record_ahead(&mut self) -> Result<(), DeviceError> {
        self.prepare_all()
    }

    fn logits(&mut self, slot: usize, index: usize) -> &mut [f32] {
        assert!(index < self.plan.options.max_logit_rows);
        let vocabulary = self.plan.graph.vocabulary;
        let HostLogits { start, .. } = self.logits[slot % self.logits.len()];
        // SAFETY: inside the readback region; the play that wrote it was waited for.
        unsafe { std::slice::from_raw_parts_mut(start.add(index * vocabulary), vocabulary) }
    }

    fn sampler(&self) -> Option<&dyn DeviceSampler> {
        if self.samples() { Some(self) } else { None }
    }

    fn sampler_mut(&mut self) -> Option<&mut dyn DeviceSampler> {
        if self.samples() { Some(self) } else { None }
    }

    fn map_page(&mut self, group: usize, sequence: usize, index: usize, page: u32) {
        let at = self.entry(group, sequence, index);
        assert!((page as usize) < self.plan.kv_pages[group], "page {page}");
        // A play in flight may still look at what the entry was. If it never ends, the next play
        // says so.
        if self.mapped[at] != UNMAPPED || self.retired[at] > self.finished {
            let _ = self.idle();
        }
        self.mapped[at] = page;
        // SAFETY: inside the mapped tables.
        unsafe { self.tables.add(at).write(page) };
    }

    fn unmap_page(&mut self, group: usize, sequence: usize, index: usize) {
        // Only the host forgets it: rows in flight may see the page until they are done.
        let at = self.entry(group, sequence, index);
        self.mapped[at] = UNMAPPED;
        self.retired[at] = self.statistics.plays;
    }

    /// Waits look at the flag; what was submitted goes on by itself.
    fn set_interrupt(&mut self, flag: Arc<AtomicBool>) {
        self.interrupt = Some(flag);
    }

    /// Timestamps around every submission, of which each costs two small command buffers. A failure
    /// is reported by the next play.
    fn measure_busy(&mut self, on: bool) -> bool {
        self.set_busy_clock(on).unwrap_or(false)
    }

    fn start_profile(&mut self) -> bool {
        self.profiler = Profiler::new(&self.gpu);
        self.profiler.is_some()
    }

    fn take_profile(&mut self) -> Vec<KernelTime> {
        self.profiler.take().map(|profiler| profiler.finish(&self.gpu)).unwrap_or_default()
    }

    fn take_notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    fn statistics(&self) -> PlayStatistics {
        self.statistics
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn std::any::Any {
        self
    }
}
