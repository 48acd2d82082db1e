//! A plan recorded for a GPU: weights resident, command buffers made once, a play one submission.

use crate::commands::Recorder;
use crate::gpu::Gpu;
use crate::memory::{Memory, Placement, Purpose, Region};
use crate::pipeline::Pipelines;
use crate::policy::Limits;
use crate::profile::Profiler;
use crate::program::{Dispatch, Programmer, Resources, Scratch};
use crate::step::{STEP_BYTES, write_step};
use crate::tuning::Tuning;
use crate::upload::Uploader;
use crate::weights::{self, Weights};
use ash::vk;
use pianola_formats::TensorSource;
use pianola_plan::{
    DeviceError, KernelTime, KvSlot, PAGE_TOKENS, Plan, PlayStatistics, Recording, Row, Step, TensorId, bucket,
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
}

/// An entry of the page tables that points nowhere.
const UNMAPPED: u32 = u32::MAX;

/// A program in replayable form.
struct Recorded {
    commands: vk::CommandBuffer,
    dispatches: u32,
}

/// One of two sets of recordings: while one plays, the next step is written for the other.
struct Take {
    step: Region,
    start: *mut u8,
    set: vk::DescriptorSet,
    fence: vk::Fence,
    in_flight: bool,
    bodies: BTreeMap<u32, Recorded>,
    heads: BTreeMap<u32, Recorded>,
    copies: BTreeMap<u32, vk::CommandBuffer>,
}

/// A plan recorded for a GPU.
pub struct VulkanRecording {
    plan: Plan,
    gpu: Arc<Gpu>,
    takes: Vec<Take>,
    next: usize,
    recorder: Recorder,
    pipelines: Pipelines,
    weights: Weights,
    resources: Resources,
    limits: Limits,
    tuning: Tuning,
    /// The page tables, in device memory and as the host knows them.
    tables: *mut u32,
    mapped: Vec<u32>,
    /// Logits as the host reads them.
    logits: Region,
    logits_start: *mut f32,
    statistics: PlayStatistics,
    profiler: Option<Profiler>,
    // Last: everything above points into it.
    memory: Memory,
}

// SAFETY: pointers lead to mapped memory that the recording owns, whatever thread it is on; Vulkan
// objects are used by one thread at a time because playing takes `&mut self`.
unsafe impl Send for VulkanRecording {}

impl Drop for VulkanRecording {
    fn drop(&mut self) {
        self.take_profile();
        for take in &self.takes {
            if take.in_flight {
                // A lost device answers at once; there is nobody left to tell.
                let _ = self.gpu.wait(take.fence, "the last play");
            }
            // SAFETY: waited for.
            unsafe { self.gpu.raw.destroy_fence(take.fence, None) };
        }
    }
}

impl VulkanRecording {
    /// Uploads the plan's weights from `source` and makes ready to record; `progress` hears of
    /// bytes of weights done and in all.
    pub fn new(
        plan: Plan,
        source: &dyn TensorSource,
        options: VulkanOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<VulkanRecording, DeviceError> {
        let gpu = options.gpu;
        let mut memory = Memory::new(gpu.clone(), options.memory);
        let pipelines = Pipelines::new(&gpu)?;
        let mut recorder = Recorder::new(&gpu)?;
        // What plays need comes first: a model that leaves no room for it is of no use.
        let scratch = Scratch::of(&plan);
        let mut resident = |bytes: u64, what: &str| {
            memory.allocate(Purpose::Resident, bytes, what)
        };
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
            let head = 2 * PAGE_TOKENS * group.head_dim * group.ty.bytes();
            let bytes = (plan.kv_pages(index) * group.kv_heads * head) as u64;
            let layers = (0..group.layers)
                .map(|_| resident(bytes, "the KV pages; a smaller --context needs less"))
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
        let mut takes = Vec::new();
        for _ in 0..2 {
            let step = memory.allocate(Purpose::Step, STEP_BYTES, "steps")?;
            let start = memory.mapped(step).expect("steps are visible to the host");
            let set = recorder.set(pipelines.step_set, &[1, 1], &[step, table])?;
            // SAFETY: a live device.
            let fence = unsafe { gpu.raw.create_fence(&vk::FenceCreateInfo::default(), None) }
                .map_err(|error| gpu.failure("making a fence", error))?;
            takes.push(Take {
                step,
                start,
                set,
                fence,
                in_flight: false,
                bodies: BTreeMap::new(),
                heads: BTreeMap::new(),
                copies: BTreeMap::new(),
            });
        }
        let limits = Limits::of(gpu.description(), gpu.subgroup());
        Ok(VulkanRecording {
            mapped: vec![UNMAPPED; count],
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
            tables: table_start,
            logits,
            logits_start,
            statistics: PlayStatistics::default(),
            profiler: None,
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

    /// Dispatches and barriers of a play of `rows` rows with `logits` rows of logits.
    pub fn counts(&self, rows: usize, logits: usize) -> Result<(usize, usize), DeviceError> {
        let mut program = self.programmer(&self.tuning).body(bucket(rows).unwrap_or(rows) as u32)?;
        if logits > 0 {
            program.extend(self.programmer(&self.tuning).head(logit_bucket(logits, &self.plan))?);
        }
        Ok((program.len(), program.iter().filter(|dispatch| dispatch.barrier).count()))
    }

    fn record(&mut self, take: usize, program: &[Dispatch]) -> Result<Recorded, DeviceError> {
        let commands = self.recorder.allocate()?;
        let set = self.takes[take].set;
        let pipelines = &mut self.pipelines;
        self.recorder.write(commands, |recorder| {
            recorder.dispatches(commands, set, pipelines, program, |_, _| ())
        })?;
        Ok(Recorded { commands, dispatches: program.len() as u32 })
    }

    /// Plays a step with a timestamp behind every dispatch.
    fn play_timed(&mut self, step: &Step) -> Result<(), DeviceError> {
        let mut program = self.programmer(&self.tuning).body(bucket(step.rows.len()).expect("checked") as u32)?;
        if !step.logits.is_empty() {
            let wanted = logit_bucket(step.logits.len(), &self.plan);
            program.extend(self.programmer(&self.tuning).head(wanted)?);
        }
        self.idle()?;
        // SAFETY: mapped, and nothing plays.
        unsafe { write_step(self.takes[0].start, step) };
        let commands = self.recorder.allocate()?;
        let set = self.takes[0].set;
        let mut profiler = self.profiler.take().expect("timed plays have a profiler");
        let queries = profiler.queries(&self.gpu, program.len() as u32 + 1)?;
        let rows = step.logits.len();
        let copy = (rows > 0).then(|| self.logits_of(rows));
        let (pipelines, gpu) = (&mut self.pipelines, self.gpu.clone());
        self.recorder.write(commands, |recorder| {
            let stage = vk::PipelineStageFlags2::ALL_COMMANDS;
            let stamp = |commands: vk::CommandBuffer, index: u32| {
                // SAFETY: being recorded; the pool has a query for each dispatch and one more.
                unsafe { gpu.raw.cmd_write_timestamp2(commands, stage, queries, index) };
            };
            // SAFETY: as above.
            unsafe {
                gpu.raw.cmd_reset_query_pool(commands, queries, 0, program.len() as u32 + 1);
            }
            recorder.barrier(commands);
            stamp(commands, 0);
            recorder.dispatches(commands, set, pipelines, &program, |commands, index| {
                stamp(commands, index as u32 + 1);
            })?;
            if let Some((from, to)) = copy {
                recorder.copy(commands, from, to);
            }
            Ok(())
        })?;
        self.submit(0, &[commands])?;
        self.finish(0)?;
        profiler.collect(&self.gpu, &program, step)?;
        self.recorder.free(commands);
        self.profiler = Some(profiler);
        Ok(())
    }

    /// Command buffers of a play, recorded at first use.
    fn commands(
        &mut self,
        take: usize,
        rows: usize,
        logits: usize,
    ) -> Result<([vk::CommandBuffer; 3], usize), DeviceError> {
        let rows = bucket(rows).expect("a checked step") as u32;
        if !self.takes[take].bodies.contains_key(&rows) {
            let program = self.programmer(&self.tuning).body(rows)?;
            let recorded = self.record(take, &program)?;
            self.takes[take].bodies.insert(rows, recorded);
        }
        let body = &self.takes[take].bodies[&rows];
        let mut list = [body.commands; 3];
        self.statistics.dispatches += u64::from(body.dispatches);
        if logits == 0 {
            return Ok((list, 1));
        }
        let wanted = logit_bucket(logits, &self.plan);
        if !self.takes[take].heads.contains_key(&wanted) {
            let program = self.programmer(&self.tuning).head(wanted)?;
            let recorded = self.record(take, &program)?;
            self.takes[take].heads.insert(wanted, recorded);
        }
        let head = &self.takes[take].heads[&wanted];
        self.statistics.dispatches += u64::from(head.dispatches);
        list[1] = head.commands;
        if !self.takes[take].copies.contains_key(&wanted) {
            let commands = self.recorder.allocate()?;
            let (from, to) = self.logits_of(wanted as usize);
            self.recorder.write(commands, |recorder| {
                recorder.copy(commands, from, to);
                Ok(())
            })?;
            self.takes[take].copies.insert(wanted, commands);
        }
        list[2] = self.takes[take].copies[&wanted];
        Ok((list, 3))
    }

    /// Regions of the first `rows` rows of logits, on the device and for the host.
    fn logits_of(&self, rows: usize) -> (Region, Region) {
        let tensor = self.plan.graph.logits.expect("checked by the planner");
        let view = self.plan.view(tensor);
        let offset = self.plan.arena.offsets[view.buffer] as u64;
        let bytes = (4 * rows * self.plan.graph.vocabulary) as u64;
        (self.resources.arena.slice(offset, bytes), self.logits.slice(0, bytes))
    }

    fn submit(&mut self, take: usize, list: &[vk::CommandBuffer]) -> Result<(), DeviceError> {
        let infos: [vk::CommandBufferSubmitInfo<'_>; 3] = std::array::from_fn(|index| {
            vk::CommandBufferSubmitInfo::default()
                .command_buffer(list.get(index).copied().unwrap_or(list[0]))
        });
        let submit =
            [vk::SubmitInfo2::default().command_buffer_infos(&infos[..list.len().min(3)])];
        let take = &mut self.takes[take];
        // SAFETY: recorded command buffers of this device; the fence is not in flight.
        unsafe { self.gpu.raw.queue_submit2(self.gpu.queue, &submit, take.fence) }
            .map_err(|error| self.gpu.failure("a submission", error))?;
        take.in_flight = true;
        self.statistics.submits += 1;
        Ok(())
    }

    /// Waits until a take is done, and makes its fence usable again.
    fn finish(&mut self, take: usize) -> Result<(), DeviceError> {
        let take = &mut self.takes[take];
        if !take.in_flight {
            return Ok(());
        }
        self.gpu.wait(take.fence, "a play")?;
        take.in_flight = false;
        // SAFETY: signalled, and in no submission.
        unsafe { self.gpu.raw.reset_fences(&[take.fence]) }
            .map_err(|error| self.gpu.failure("resetting a fence", error))
    }

    /// Waits until nothing plays.
    pub fn idle(&mut self) -> Result<(), DeviceError> {
        (0..self.takes.len()).try_for_each(|take| self.finish(take))
    }

    fn check(&self, step: &Step) -> Result<(), DeviceError> {
        let entries = self.resources.entries as usize;
        let mapped = |group: usize, sequence: usize, index: usize| {
            let at = self.resources.tables[group] as usize + sequence * entries + index;
            index < entries && self.mapped[at] != UNMAPPED
        };
        step.check(&self.plan, &mapped)
    }

    fn entry(&self, group: usize, sequence: usize, index: usize) -> usize {
        let entries = self.resources.entries as usize;
        assert!(index < entries && sequence < self.plan.options.sequences);
        self.resources.tables[group] as usize + sequence * entries + index
    }

    /// Plays what `program` has of kernel `op`, alone.
    fn play_program(&mut self, program: &[Dispatch]) -> Result<(), DeviceError> {
        let Recorded { commands, .. } = self.record(0, program)?;
        self.submit(0, &[commands])?;
        self.finish(0)
    }

    /// Bytes of device memory.
    fn read(&mut self, region: Region) -> Result<Vec<u8>, DeviceError> {
        let mut memory = Memory::new(self.gpu.clone(), None);
        let to = memory.allocate(Purpose::Readback, region.size, "a copy")?;
        let commands = self.recorder.allocate()?;
        self.recorder.write(commands, |recorder| {
            recorder.copy(commands, region, to);
            Ok(())
        })?;
        self.submit(0, &[commands])?;
        self.finish(0)?;
        let start = memory.mapped(to).expect("visible to the host");
        // SAFETY: the copy is done; the region is mapped.
        Ok(unsafe { std::slice::from_raw_parts(start, region.size as usize) }.to_vec())
    }
}

/// Rows of logits that a head is recorded for: one for generation, four, or all there is room for.
pub(crate) fn logit_bucket(logits: usize, plan: &Plan) -> u32 {
    let most = plan.options.max_logit_rows;
    [1, 4].into_iter().find(|&bucket| logits <= bucket && bucket <= most).unwrap_or(most) as u32
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
        let take = self.next;
        self.next = (self.next + 1) % self.takes.len();
        self.finish(take)?;
        let (list, count) = self.commands(take, step.rows.len(), step.logits.len())?;
        // SAFETY: the take's step is mapped, and nothing plays it.
        unsafe { write_step(self.takes[take].start, step) };
        self.submit(take, &list[..count])?;
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

    fn logits(&mut self, index: usize) -> &mut [f32] {
        assert!(index < self.plan.options.max_logit_rows);
        let vocabulary = self.plan.graph.vocabulary;
        // SAFETY: inside the readback region; the play that wrote it was waited for.
        unsafe {
            let start = self.logits_start.add(index * vocabulary);
            std::slice::from_raw_parts_mut(start, vocabulary)
        }
    }

    fn map_page(&mut self, group: usize, sequence: usize, index: usize, page: u32) {
        let at = self.entry(group, sequence, index);
        assert!((page as usize) < self.plan.kv_pages(group), "page {page}");
        // A play in flight may still look at the entry. If it never ends, the next play says so.
        if self.mapped[at] == UNMAPPED {
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

impl pianola_plan::Probe for VulkanRecording {
    fn begin(&mut self, step: &Step) -> Result<(), DeviceError> {
        self.check(step)?;
        self.idle()?;
        // SAFETY: mapped, and nothing plays.
        unsafe { write_step(self.takes[0].start, step) };
        Ok(())
    }

    fn play_op(&mut self, op: usize, step: &Step) -> Result<(), DeviceError> {
        let programmer = self.programmer(&self.tuning);
        let program = if programmer.in_head(op) {
            programmer.head(logit_bucket(step.logits.len(), &self.plan))?
        } else {
            programmer.body(bucket(step.rows.len()).expect("a checked step") as u32)?
        };
        let mine: Vec<Dispatch> = program.into_iter().filter(|d| d.op == op).collect();
        self.play_program(&mine)
    }

    fn read_tensor(&mut self, tensor: TensorId, rows: usize) -> Result<Vec<f32>, DeviceError> {
        let view = self.plan.view(tensor);
        let width = self.plan.graph.tensor(tensor).width;
        let stride = self.plan.buffers[view.buffer].width;
        let offset = self.plan.arena.offsets[view.buffer] as u64;
        if rows == 0 {
            return Ok(Vec::new());
        }
        let bytes = self.read(self.resources.arena.slice(offset, (4 * rows * stride) as u64))?;
        let values: Vec<f32> = bytes
            .chunks_exact(4)
            .map(|value| f32::from_le_bytes([value[0], value[1], value[2], value[3]]))
            .collect();
        let row = |row: usize| &values[row * stride + view.column..][..width];
        Ok((0..rows).flat_map(|index| row(index).to_vec()).collect())
    }

    fn read_kv(&mut self, slot: KvSlot, rows: &[Row]) -> Result<[Vec<f32>; 2], DeviceError> {
        let group = self.plan.graph.kv_groups[slot.group].clone();
        let bytes = self.read(self.resources.pages[slot.group][slot.layer])?;
        let size = group.ty.bytes();
        // Values in a vector of 16 bytes, and values of one head of a page.
        let length = 16 / size;
        let head_values = 2 * PAGE_TOKENS * group.head_dim;
        let value = |at: usize| match size {
            4 => f32::from_le_bytes(bytes[4 * at..4 * at + 4].try_into().expect("four bytes")),
            _ => half::f16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f32(),
        };
        let mut found = [Vec::new(), Vec::new()];
        for row in rows {
            let position = row.position as usize;
            let entry = self.entry(slot.group, row.sequence as usize, position / PAGE_TOKENS);
            let page = self.mapped[entry] as usize;
            let token = position % PAGE_TOKENS;
            for head in 0..group.kv_heads {
                let base = (page * group.kv_heads + head) * head_values;
                for d in 0..group.head_dim {
                    let key = (d / length * PAGE_TOKENS + token) * length + d % length;
                    found[0].push(value(base + key));
                    let at = PAGE_TOKENS * group.head_dim + token * group.head_dim + d;
                    found[1].push(value(base + at));
                }
            }
        }
        Ok(found)
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn poison(&mut self) -> Result<(), DeviceError> {
        self.idle()?;
        let bytes = vec![0xff; self.resources.arena.size as usize];
        let mut uploader = Uploader::new(&self.gpu)?;
        uploader.copy(&self.memory, self.resources.arena, &bytes)?;
        uploader.finish()
    }
}
