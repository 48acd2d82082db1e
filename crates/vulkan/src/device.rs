//! A plan recorded for a GPU: weights resident, command buffers made once, a play one submission.

mod play;

use crate::ablate::{Ablated, Ablation};
use crate::commands::Recorder;
use crate::gpu::Gpu;
use crate::measure::rough_rate;
use crate::memory::{Memory, Placement, Purpose, Region};
use crate::pipeline::Pipelines;
use crate::place;
use crate::policy::Limits;
use crate::profile::Profiler;
use crate::program::{Body, Programmer, Resources, Scratch};
use crate::receive::Import;
use crate::sampler::Sampler;
use crate::step::{STEP_BYTES, write_step};
use crate::tuning::Tuning;
use crate::upload::Uploader;
use crate::weights::{self, Weights};
use ash::vk;
use pianola_formats::TensorSource;
use pianola_plan::{
    DeviceError, DeviceKind, DeviceSampler, KernelTime, KvSlot, PAGE_TOKENS, Plan, PlayStatistics,
    Recording, Step,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// How to use a GPU.
#[derive(Clone)]
pub struct VulkanOptions {
    /// The device.
    pub gpu: Arc<Gpu>,
    /// Most bytes of weights, pages and activations.
    pub memory: Option<u64>,
    /// Measured choices.
    pub tuning: Tuning,
    /// Lanes that keep the device busy; none leaves it to a guess from the device's kind.
    pub parallelism: Option<u32>,
}

/// An entry of the page tables that points nowhere.
const UNMAPPED: u32 = u32::MAX;

/// A program in replayable form: one command buffer, or several where it takes long.
pub(crate) struct Recorded {
    pub commands: Vec<vk::CommandBuffer>,
    pub dispatches: u32,
}

/// One of two sets of recordings: while one plays, the next step is written for the other.
pub(crate) struct Take {
    pub step: Region,
    pub start: *mut u8,
    pub set: vk::DescriptorSet,
    fence: vk::Fence,
    in_flight: bool,
    pub bodies: BTreeMap<Body, Recorded>,
    pub heads: BTreeMap<u32, Recorded>,
    pub copies: BTreeMap<u32, vk::CommandBuffer>,
}

/// A plan recorded for a GPU.
pub struct VulkanRecording {
    pub(crate) plan: Plan,
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) takes: Vec<Take>,
    next: usize,
    pub(crate) recorder: Recorder,
    pub(crate) pipelines: Pipelines,
    weights: Weights,
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
    /// Logits as the host reads them.
    logits: Region,
    logits_start: *mut f32,
    pub(crate) statistics: PlayStatistics,
    pub(crate) profiler: Option<Profiler>,
    pub(crate) ablation: Option<Ablated>,
    pub(crate) sampler: Sampler,
    pub(crate) import: Option<Import>,
    // Last: everything above points into it.
    pub(crate) memory: Memory,
}

// SAFETY: pointers lead to mapped memory that the recording owns, whatever thread it is on; Vulkan
// objects are used by one thread at a time because playing takes `&mut self`.
unsafe impl Send for VulkanRecording {}

impl Drop for VulkanRecording {
    fn drop(&mut self) {
        self.take_profile();
        for take in &self.takes {
            if take.in_flight {
                // There is nobody left to tell.
                let _ = self.gpu.wait(take.fence, "the last play");
            }
        }
        if self.gpu.is_hung() {
            return;
        }
        for take in &self.takes {
            // SAFETY: waited for, or the device is lost and will not come back to it.
            unsafe { self.gpu.raw.destroy_fence(take.fence, None) };
        }
    }
}

impl VulkanRecording {
    /// Uploads the weights that the plan's kernels for this device read from `source`, and makes
    /// ready to record those kernels; `progress` hears of bytes of weights done and in all.
    pub fn new(
        plan: Plan,
        source: &dyn TensorSource,
        options: VulkanOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<VulkanRecording, DeviceError> {
        let gpu = options.gpu;
        check_heads(&plan)?;
        check_bindings(&plan, gpu.description().largest_binding)?;
        let mut memory = Memory::new(gpu.clone(), options.memory);
        let pipelines = Pipelines::new(&gpu)?;
        let mut recorder = Recorder::new(&gpu)?;
        let mut limits = Limits::of(&gpu);
        limits.parallelism = options.parallelism.unwrap_or(limits.parallelism);
        // What plays need comes first: a model that leaves no room for it is of no use.
        let scratch = Scratch::of(&plan, &limits);
        let mut resident = |bytes: u64, what: &str| memory.allocate(Purpose::Resident, bytes, what);
        let arena = resident(plan.arena.bytes as u64, "activations")?;
        let operand = resident(scratch.operand, "activations")?;
        let metas = resident(scratch.metas, "activations")?;
        let partials = resident(scratch.partials, "attention")?;
        let arrivals = resident(scratch.arrivals, "attention")?;
        let mut hand = || {
            let (codes, metas) = scratch.handed;
            Ok::<_, DeviceError>((resident(codes, "activations")?, resident(metas, "activations")?))
        };
        let handed = [hand()?, hand()?];
        let finished = resident(4, "activations")?;
        let entries = plan.options.context.div_ceil(PAGE_TOKENS);
        let mut pages = Vec::new();
        let mut tables = Vec::new();
        for (index, group) in plan.graph.kv_groups.iter().enumerate() {
            let bytes = place::page_bytes(&plan, index);
            let layers = (0..group.layers)
                .map(|layer| match plan.kv_device(KvSlot { group: index, layer }) {
                    DeviceKind::Vulkan => {
                        resident(bytes, "the KV pages; a smaller --context needs less")
                    }
                    DeviceKind::Cpu => Ok(Region::dry_run(0)),
                })
                .collect::<Result<Vec<Region>, DeviceError>>()?;
            pages.push(layers);
            tables.push((index * plan.options.sequences * entries) as u32);
        }
        let weights = weights::load(&gpu, &mut memory, &plan, source, progress)?;
        let count = plan.graph.kv_groups.len() * plan.options.sequences * entries;
        let table = memory.allocate(Purpose::Step, 4 * count as u64, "page tables")?;
        let table_start = memory.mapped(table).expect("steps are visible to the host").cast();
        let mut uploader = Uploader::new(&gpu)?;
        uploader.copy(&memory, arrivals, &vec![0; scratch.arrivals as usize])?;
        uploader.copy(&memory, finished, &[0; 4])?;
        uploader.finish()?;
        let rows = plan.options.max_logit_rows as u64;
        let vocabulary = plan.graph.vocabulary as u64;
        let logits = memory.allocate(Purpose::Readback, 4 * rows * vocabulary, "logits")?;
        let logits_start = memory.mapped(logits).expect("visible to the host").cast();
        let sampler = Sampler::new(&plan, &mut memory, gpu.description().largest_binding)?;
        let mut takes = Vec::new();
        for _ in 0..2 {
            let step = memory.allocate(Purpose::Step, STEP_BYTES, "steps")?;
            let start = memory.mapped(step).expect("steps are visible to the host");
            let set = recorder.set(pipelines.step_set, &[1, 1], &[step, table])?;
            // SAFETY: a live device.
            let fence = unsafe { gpu.raw.create_fence(&vk::FenceCreateInfo::default(), None) }
                .map_err(|error| gpu.failure("making a fence", error))?;
            takes.push(Take {
                step: step.slice(0, STEP_BYTES),
                start,
                set,
                fence,
                in_flight: false,
                bodies: BTreeMap::new(),
                heads: BTreeMap::new(),
                copies: BTreeMap::new(),
            });
        }
        let rate = rough_rate(&gpu, plan.options.numeric)?;
        let import = Import::new(&plan, arena, &mut memory, &mut recorder)?;
        Ok(VulkanRecording {
            mapped: vec![UNMAPPED; count],
            retired: vec![0; count],
            finished: 0,
            plan,
            gpu,
            takes,
            next: 0,
            recorder,
            pipelines,
            weights,
            resources: Resources {
                arena,
                operand,
                metas,
                handed,
                finished,
                partials,
                arrivals,
                pages,
                tables,
                entries: entries as u32,
            },
            limits,
            tuning: options.tuning,
            rate,
            tables: table_start,
            logits,
            logits_start,
            statistics: PlayStatistics::default(),
            profiler: None,
            ablation: None,
            sampler,
            import,
            memory,
        })
    }

    /// The plan that this plays.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The device.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Where weights, pages and activations lie.
    pub fn placement(&self) -> Placement {
        self.memory.placement()
    }

    pub(crate) fn programmer<'a>(&'a self, tuning: &'a Tuning) -> Programmer<'a> {
        Programmer {
            plan: &self.plan,
            weights: &self.weights,
            resources: &self.resources,
            limits: self.limits,
            tuning,
        }
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

/// Refuses heads that vectors of 16 bytes do not divide, or that are wider than a workgroup sums.
pub(crate) fn check_heads(plan: &Plan) -> Result<(), DeviceError> {
    for group in &plan.graph.kv_groups {
        let length = 16 / group.ty.bytes();
        let vectors = group.head_dim / length;
        if !group.head_dim.is_multiple_of(length) || !(1..=128).contains(&vectors) {
            return Err(DeviceError::Unsupported(format!(
                "the Vulkan kernels need heads of a multiple of {length} values and at most {}, not {}, \
                 to keep them in {}: use another --kv-type or --device cpu",
                128 * length,
                group.head_dim,
                group.ty
            )));
        }
    }
    Ok(())
}

/// Refuses what kernels bind whole and the device cannot.
fn check_bindings(plan: &Plan, limit: u64) -> Result<(), DeviceError> {
    let pages = (0..plan.graph.kv_groups.len()).map(|group| place::page_bytes(plan, group));
    let buffers = plan.buffers.iter();
    let buffers = buffers.map(|buffer| (4 * plan.max_rows(buffer.rows) * buffer.width) as u64);
    for (bytes, what, cure) in pages
        .map(|bytes| {
            (bytes, "the KV pages of a layer", "use a smaller --context or --kv-type q8_0")
        })
        .chain(buffers.map(|bytes| (bytes, "an activation", "use --device cpu")))
    {
        if bytes > limit {
            return Err(DeviceError::Unsupported(format!(
                "{what} takes {bytes} bytes, and this device binds at most {limit}: {cure}"
            )));
        }
    }
    Ok(())
}

/// Rows of logits that a head is recorded for: a power of two, or all there is room for.
pub(crate) fn logit_bucket(logits: usize, plan: &Plan) -> u32 {
    logits.next_power_of_two().min(plan.options.max_logit_rows) as u32
}

impl Recording for VulkanRecording {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn play(&mut self, step: &Step) -> Result<(), DeviceError> {
        let start = Instant::now();
        self.check(step)?;
        if self.profiler.is_some() {
            return self.play_timed(step);
        }
        if self.ablation.as_ref().is_some_and(|ablated| ablated.kind != Ablation::Nothing) {
            return self.play_ablated(step);
        }
        let take = self.turn(step)?;
        // SAFETY: the take's step is mapped, and nothing plays it.
        unsafe { write_step(self.takes[take].start, step) };
        self.launch(take, Body::of(step), step.logits.len())?;
        let submitted = start.elapsed().as_secs_f64();
        // Without logits there is nothing to wait for: the next step is prepared meanwhile.
        if !step.logits.is_empty() {
            self.finish(take)?;
        }
        let whole = start.elapsed().as_secs_f64();
        self.statistics.plays += 1;
        self.statistics.seconds += whole;
        self.statistics.busy_seconds += whole - submitted;
        Ok(())
    }

    fn record_ahead(&mut self) -> Result<(), DeviceError> {
        self.prepare_all()
    }

    fn logits(&mut self, index: usize) -> &mut [f32] {
        assert!(index < self.plan.options.max_logit_rows);
        let vocabulary = self.plan.graph.vocabulary;
        // SAFETY: inside the readback region; the play that wrote it was waited for.
        unsafe {
            let start = self.logits_start.add(index * vocabulary);
            std::slice::from_raw_parts_mut(start, vocabulary)
        }
    }

    fn sampler(&self) -> Option<&dyn DeviceSampler> {
        Some(self)
    }

    fn sampler_mut(&mut self) -> Option<&mut dyn DeviceSampler> {
        Some(self)
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

    fn start_profile(&mut self) -> bool {
        self.profiler = Profiler::new(&self.gpu);
        self.profiler.is_some()
    }

    fn take_profile(&mut self) -> Vec<KernelTime> {
        self.profiler.take().map(|profiler| profiler.finish(&self.gpu)).unwrap_or_default()
    }

    fn statistics(&self) -> PlayStatistics {
        self.statistics
    }
}
