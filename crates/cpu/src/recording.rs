//! A plan's part recorded for the CPU: weights packed, stages with every pointer resolved.

mod probe;

use crate::device::{CpuOptions, out_of_memory};
use crate::kept::{self, KeptPanels};
use crate::kv::KvMemory;
use crate::measure::{LEAST_BLOCK, measure_with};
use crate::memory::Memory;
use crate::policy::{StreamFetch, rotated_rows, rotation, rows_by_worker, stream_fetch};
use crate::pool::Pool;
use crate::profile::Profiler;
use crate::record::{Recorded, Recorder, activation_bytes, widest_input};
use crate::reference::Reference;
use crate::simd::Level;
use crate::simd::rotated::CHUNK;
use crate::stage::{Play, ScratchFor, Stage, WorkerScratch};
use crate::weights::{self, Weight};
use crate::work::{Progress, Work};
use pianola_formats::TensorSource;
use pianola_plan::{
    Ceilings, DeviceError, DeviceId, KernelTime, LogitsTo, Plan, PlayStatistics, Recording, Step,
    TensorId, size_text,
};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a slot has to itself: its arena, and stages that point into it.
pub(crate) struct SlotState {
    pub arena: Memory,
    stages: Vec<Recorded>,
}

/// A device's part of a plan, recorded for the CPU. Submitting plays at once, on the calling thread
/// and its workers.
pub struct CpuRecording {
    pub(crate) plan: Arc<Plan>,
    pub(crate) weights: Vec<Weight>,
    /// The weights of layers and head once more, in rotated form.
    kept: Option<KeptPanels>,
    pub(crate) kv: KvMemory,
    /// One for each arena of the plan.
    pub(crate) slots: Vec<SlotState>,
    // Stages point into it.
    _activations: Memory,
    level: Level,
    fetch: StreamFetch,
    /// Weights of the largest product of a layer.
    largest_product: usize,
    /// Progress of each stage in the play.
    progress: Vec<Progress>,
    scratch: Vec<Mutex<WorkerScratch>>,
    runs: Vec<Range<usize>>,
    pool: Pool,
    statistics: PlayStatistics,
    profiler: Option<Profiler>,
    busy_nanoseconds: AtomicU64,
    measure_busy: bool,
    interrupt: Option<Arc<AtomicBool>>,
    #[cfg(any(test, feature = "test-hooks"))]
    fault: Option<pianola_plan::Fault>,
}

// SAFETY: stages hold pointers into memory that the recording owns and never moves (mappings and
// boxed slices), so sending the whole to another thread keeps them valid.
unsafe impl Send for CpuRecording {}

impl CpuRecording {
    /// Loads the weights that device `device` of `plan` reads from `source` and records its
    /// kernels; `progress` is called with the bytes of weights done and the bytes in all.
    pub fn new(
        plan: Arc<Plan>,
        device: DeviceId,
        source: &dyn TensorSource,
        options: CpuOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<CpuRecording, DeviceError> {
        if !options.level.available() {
            return Err(DeviceError::Unsupported(format!(
                "this processor has no {}; its best is {}",
                options.level,
                Level::best()
            )));
        }
        // Memory is granted before it is there; a model too large would be killed half-way.
        let forms = kept::allocations(&plan, device, options)?;
        let form: u64 = forms.iter().map(|allocation| allocation.bytes).sum();
        let needed = plan.weight_bytes_on(device) + form;
        if let Some(available) = options.available()
            && needed > available
        {
            let second = match form {
                0 => String::new(),
                _ => format!(
                    " and their int8 copy of {}, which --prompt-weights off leaves out",
                    size_text(form)
                ),
            };
            return Err(out_of_memory(
                &format!("the weights{second}, with {} free", size_text(available)),
                needed,
            ));
        }
        let memory = |what: &str, bytes: usize| {
            Memory::zeroed(bytes).ok_or_else(|| out_of_memory(what, bytes as u64))
        };
        let pool = Pool::new(options.threads.max(1))
            .map_err(|error| DeviceError::Unsupported(format!("no worker threads: {error}")))?;
        let kv = KvMemory::new(&plan, device)
            .map_err(|bytes| out_of_memory("the KV pages; a smaller context needs less", bytes))?;
        let arenas = (0..plan.arenas())
            .map(|_| memory("the arena", plan.arena.bytes))
            .collect::<Result<Vec<Memory>, DeviceError>>()?;
        let activations = memory("activations", activation_bytes(&plan))?;
        let mine = |weight: usize| plan.reads(device, weight);
        let weights = weights::load(&plan, &mine, source, &pool, progress)?;
        let kept = match form {
            0 => None,
            _ => Some(KeptPanels::new(&plan, device, (&weights, options.level), &pool)?),
        };
        let slot = |arena: Memory| {
            let recorder = Recorder {
                plan: &plan,
                device,
                weights: &weights,
                kept: kept.as_ref(),
                arena: &arena,
                activations: &activations,
                level: options.level,
            };
            let stages = recorder.record().map_err(|op| {
                DeviceError::Unsupported(format!("the CPU has no kernel for a lone '{op}'"))
            })?;
            Ok(SlotState { arena, stages })
        };
        let slots = arenas.into_iter().map(slot).collect::<Result<Vec<_>, DeviceError>>()?;
        let head_dim = plan.graph.kv_groups.iter().map(|group| group.head_dim).max().unwrap_or(16);
        let widest = widest_input(&plan).max(head_dim);
        let products = ScratchFor {
            unit: options.level.unit_kernels().is_some(),
            rotated: rotation(&plan.options, options.level, CHUNK).is_some()
                && plan.options.max_rows >= rotated_rows(options.level, kept.is_some()),
        };
        let layer_weights = |recorded: &Recorded| match &recorded.stage {
            Stage::Product(product) => product.layer_weights(),
            _ => 0,
        };
        let largest_product = slots[0].stages.iter().map(layer_weights).max().unwrap_or(0);
        let scratch = || Mutex::new(WorkerScratch::new(widest, head_dim, products));
        Ok(CpuRecording {
            progress: slots[0].stages.iter().map(|_| Progress::new(pool.workers())).collect(),
            scratch: (0..pool.workers()).map(|_| scratch()).collect(),
            runs: Vec::with_capacity(plan.options.max_rows),
            slots,
            largest_product,
            level: options.level,
            fetch: stream_fetch(crate::topology::Processor::this()),
            plan,
            weights,
            kept,
            kv,
            _activations: activations,
            pool,
            statistics: PlayStatistics::default(),
            profiler: None,
            busy_nanoseconds: AtomicU64::new(0),
            measure_busy: false,
            interrupt: None,
            #[cfg(any(test, feature = "test-hooks"))]
            fault: pianola_plan::Fault::from_environment()?,
        })
    }

    /// Plants a fault in the kernels, or none, for tests of the checks.
    #[cfg(any(test, feature = "test-hooks"))]
    pub fn set_fault(&mut self, fault: Option<pianola_plan::Fault>) {
        self.fault = fault;
    }

    /// The state that serves a slot: where there is one arena, all slots share it.
    fn slot(&self, slot: usize) -> usize {
        slot % self.slots.len()
    }

    /// Runs stages `range` of a step whose runs are set.
    fn play_stages(
        &mut self,
        slot: usize,
        step: &Step,
        range: Range<usize>,
    ) -> Result<(), DeviceError> {
        self.progress[range.clone()].iter_mut().for_each(Progress::reset);
        let play = Play {
            rows: &step.rows,
            logits: &step.logits,
            runs: &self.runs,
            kv: &self.kv,
            kernels: self.level.kernels(),
            workers: self.pool.workers(),
            fetch: self.fetch,
            rows_by_worker: self.kept.is_some()
                && rows_by_worker(step.rows.len(), self.pool.workers(), self.largest_product),
            #[cfg(any(test, feature = "test-hooks"))]
            fault: self.fault,
        };
        let work = Work {
            play,
            stages: &self.slots[slot].stages[range.clone()],
            progress: &self.progress[range],
            scratch: &self.scratch,
            busy: self.measure_busy.then_some(&self.busy_nanoseconds),
            failed: AtomicBool::new(false),
            interrupt: self.interrupt.as_deref(),
            interrupted: AtomicBool::new(false),
        };
        self.pool.run(&|worker| work.run(worker));
        match work.interrupted.load(Ordering::Relaxed) {
            true => Err(DeviceError::Interrupted),
            false => Ok(()),
        }
    }

    /// Stages of some kernels of the plan.
    fn stages_of(&self, ops: Range<usize>) -> Range<usize> {
        let stages = &self.slots[0].stages;
        let first = stages.partition_point(|recorded| recorded.op < ops.start);
        let last = stages.partition_point(|recorded| recorded.op < ops.end);
        first..last
    }

    fn prepare(&mut self, step: &Step) -> Result<(), DeviceError> {
        let mapped = |group: usize, sequence: usize, index: usize| {
            self.kv.groups[group].is_mapped(sequence, index)
        };
        step.check(&self.plan, &mapped)?;
        self.runs.clear();
        self.runs.extend(step.runs());
        Ok(())
    }

    /// Plays kernels one by one and keeps their times.
    fn play_timed(
        &mut self,
        slot: usize,
        step: &Step,
        ops: Range<usize>,
    ) -> Result<(), DeviceError> {
        for op in ops {
            let stages = self.stages_of(op..op + 1);
            let start = Instant::now();
            self.play_stages(slot, step, stages)?;
            if let Some(profiler) = &mut self.profiler {
                profiler.add(&self.plan, op, step, start);
            }
        }
        Ok(())
    }

    /// First value of a tensor in a slot's arena, and the distance between its rows.
    pub(crate) fn place(&self, tensor: TensorId) -> (usize, usize) {
        let view = self.plan.view(tensor);
        let stride = self.plan.buffers[view.buffer].width;
        (self.plan.arena.offsets[view.buffer] / 4 + view.column, stride)
    }

    /// Rows of a tensor, `rows` values in all.
    fn copy_out(&self, slot: usize, tensor: TensorId, rows: &mut [f32]) {
        let width = self.plan.graph.tensor(tensor).width;
        let (start, stride) = self.place(tensor);
        let arena = self.slots[slot].arena.start().cast::<f32>();
        for (index, row) in rows.chunks_exact_mut(width).enumerate() {
            let at = start + index * stride;
            assert!(4 * (at + width) <= self.slots[slot].arena.len());
            // SAFETY: inside the arena; nothing plays meanwhile.
            unsafe { arena.add(at).copy_to_nonoverlapping(row.as_mut_ptr(), width) };
        }
    }

    fn copy_in(&mut self, slot: usize, tensor: TensorId, rows: &[f32]) {
        let width = self.plan.graph.tensor(tensor).width;
        let (start, stride) = self.place(tensor);
        let arena = self.slots[slot].arena.start().cast::<f32>();
        for (index, row) in rows.chunks_exact(width).enumerate() {
            let at = start + index * stride;
            assert!(4 * (at + width) <= self.slots[slot].arena.len());
            // SAFETY: inside the arena; nothing plays meanwhile.
            unsafe { arena.add(at).copy_from_nonoverlapping(row.as_ptr(), width) };
        }
    }
}

impl Recording for CpuRecording {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn keeps_prompt_weights(&self) -> bool {
        self.kept.is_some()
    }

    fn submit(
        &mut self,
        segment: usize,
        slot: usize,
        step: &Step,
        _logits: LogitsTo,
    ) -> Result<(), DeviceError> {
        let start = Instant::now();
        let slot = self.slot(slot);
        self.prepare(step)?;
        let prepared = start.elapsed().as_secs_f64();
        let ops = self.plan.segments[segment].ops.clone();
        if self.level == Level::Reference {
            Reference::new(self, slot).play(segment, step);
        } else if self.profiler.is_some() {
            self.play_timed(slot, step, ops)?;
        } else {
            let stages = self.stages_of(ops);
            self.play_stages(slot, step, stages)?;
        }
        let workers = self.pool.workers() as f64;
        self.statistics.plays += 1;
        let seconds = start.elapsed().as_secs_f64();
        self.statistics.seconds += seconds;
        self.statistics.waited_seconds += seconds - prepared;
        self.statistics.busy_seconds =
            self.busy_nanoseconds.load(Ordering::Relaxed) as f64 * 1e-9 / workers;
        Ok(())
    }

    /// Whatever was submitted is done.
    fn wait(&mut self, _slot: usize, _limit: Duration) -> Result<(), DeviceError> {
        Ok(())
    }

    fn export(
        &mut self,
        slot: usize,
        tensor: TensorId,
        rows: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.copy_out(self.slot(slot), tensor, rows);
        Ok(())
    }

    fn import(&mut self, slot: usize, tensor: TensorId, rows: &[f32]) -> Result<(), DeviceError> {
        self.copy_in(self.slot(slot), tensor, rows);
        Ok(())
    }

    fn logits(&mut self, slot: usize, index: usize) -> &mut [f32] {
        let vocabulary = self.plan.graph.vocabulary;
        let logits = self.plan.graph.logits.expect("checked by the planner");
        let (start, stride) = self.place(logits);
        assert!(index < self.plan.options.max_logit_rows);
        let arena = &self.slots[self.slot(slot)].arena;
        // SAFETY: the row lies in the logits' buffer, f32 values at an aligned offset; no
        // play can start while this borrow lasts.
        unsafe {
            let row = arena.start().cast::<f32>().add(start + index * stride);
            std::slice::from_raw_parts_mut(row, vocabulary)
        }
    }

    fn map_page(&mut self, group: usize, sequence: usize, index: usize, page: u32) {
        self.kv.groups[group].map(sequence, index, page);
    }

    fn unmap_page(&mut self, group: usize, sequence: usize, index: usize) {
        self.kv.groups[group].unmap(sequence, index);
    }

    /// Workers look at the flag before each job. The reference level does not.
    fn set_interrupt(&mut self, flag: Arc<AtomicBool>) {
        self.interrupt = Some(flag);
    }

    /// Costs two clock reads a stage.
    fn measure_busy(&mut self, on: bool) -> bool {
        self.measure_busy = on && self.level != Level::Reference;
        self.measure_busy
    }

    /// The reference level has no kernels to time.
    fn start_profile(&mut self) -> bool {
        self.profiler = (self.level != Level::Reference).then(Profiler::default);
        self.profiler.is_some()
    }

    fn take_profile(&mut self) -> Vec<KernelTime> {
        self.profiler.take().map(Profiler::finish).unwrap_or_default()
    }

    fn measure(&self) -> Option<Ceilings> {
        let matrix = self.weights.iter().find_map(|weight| match weight {
            Weight::Matrix(matrix) => Some(matrix),
            _ => None,
        });
        let block = matrix?.all_weights();
        let numeric = self.plan.options.numeric;
        (block.len() >= LEAST_BLOCK).then(|| measure_with(&self.pool, self.level, block, numeric))
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
