//! The CPU as a device: loads weights, records a plan, plays steps.

use crate::kv::KvMemory;
use crate::memory::Memory;
use crate::pool::Pool;
use crate::record::{Recorded, Recorder, activation_bytes, widest_input};
use crate::reference::Reference;
use crate::simd::Level;
use crate::stage::{Play, Stage, WorkerScratch};
use crate::weights::{self, Weight};
use pianola_formats::TensorSource;
use pianola_plan::{
    DeviceError, DeviceKind, KvSlot, Plan, PlayStatistics, Probe, Recording, Row, Step, TensorId,
};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// How to use the processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuOptions {
    /// Instruction set.
    pub level: Level,
    /// Workers, at least one.
    pub threads: usize,
}

impl Default for CpuOptions {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        CpuOptions { level: Level::best(), threads }
    }
}

/// A plan recorded for the CPU.
pub struct CpuRecording {
    pub(crate) plan: Plan,
    pub(crate) weights: Vec<Weight>,
    pub(crate) kv: KvMemory,
    pub(crate) arena: Memory,
    // Stages point into it.
    _activations: Memory,
    level: Level,
    stages: Vec<Recorded>,
    /// Progress of each stage in the play.
    progress: Vec<Progress>,
    scratch: Vec<Mutex<WorkerScratch>>,
    runs: Vec<std::ops::Range<usize>>,
    pool: Pool,
    statistics: PlayStatistics,
    busy_nanoseconds: AtomicU64,
    measure_busy: bool,
}

// SAFETY: stages hold pointers into memory that the recording owns and never moves (mappings and
// boxed slices), so sending the whole to another thread keeps them valid.
unsafe impl Send for CpuRecording {}

impl CpuRecording {
    /// Loads the weights that the plan's kernels for this device read from `source` and records
    /// those kernels; `progress` hears of bytes of weights done and in all.
    pub fn new(
        plan: Plan,
        source: &dyn TensorSource,
        options: CpuOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<CpuRecording, DeviceError> {
        if !options.level.available() {
            return Err(DeviceError::Unsupported(format!(
                "this processor has no {}; leave --simd out to use {}",
                options.level,
                Level::best()
            )));
        }
        // Memory is granted before it is there; a model too large would be killed half-way.
        let needed = plan.weight_bytes_on(DeviceKind::Cpu);
        if let Some((_, available)) = crate::measure::describe().memory
            && needed > available
        {
            return Err(out_of_memory(
                &format!("the weights ({available} bytes are available)"),
                needed,
            ));
        }
        let memory = |what: &str, bytes: usize| {
            Memory::zeroed(bytes).ok_or_else(|| out_of_memory(what, bytes as u64))
        };
        let pool = Pool::new(options.threads.max(1))
            .map_err(|error| DeviceError::Unsupported(format!("no worker threads: {error}")))?;
        let kv = KvMemory::new(&plan).map_err(|bytes| {
            out_of_memory("the KV pages; a smaller --context needs less", bytes)
        })?;
        let arena = memory("the arena", plan.arena.bytes)?;
        let activations = memory("activations", activation_bytes(&plan))?;
        let mine = |weight: usize| plan.reads(DeviceKind::Cpu, weight);
        let weights = weights::load(&plan, &mine, source, &pool, progress)?;
        let kernels = options.level.kernels();
        let recorder = Recorder {
            plan: &plan,
            weights: &weights,
            arena: &arena,
            activations: &activations,
            kernels,
        };
        let stages = recorder.record().map_err(|op| {
            DeviceError::Unsupported(format!("the CPU has no kernel for a lone '{op}'"))
        })?;
        let head_dim = plan.graph.kv_groups.iter().map(|group| group.head_dim).max().unwrap_or(16);
        let scratch =
            || Mutex::new(WorkerScratch::new(widest_input(&plan).max(head_dim), head_dim));
        Ok(CpuRecording {
            progress: stages.iter().map(|_| Progress::default()).collect(),
            scratch: (0..pool.workers()).map(|_| scratch()).collect(),
            runs: Vec::with_capacity(plan.options.max_rows),
            stages,
            level: options.level,
            plan,
            weights,
            kv,
            arena,
            _activations: activations,
            pool,
            statistics: PlayStatistics::default(),
            busy_nanoseconds: AtomicU64::new(0),
            measure_busy: false,
        })
    }

    /// Makes one product stage drop the last of its input columns, for tests of the checks.
    #[doc(hidden)]
    pub fn break_kernel(&mut self) {
        let product = self.stages.iter_mut().find_map(|recorded| match &mut recorded.stage {
            Stage::Product(product) => Some(product),
            _ => None,
        });
        product.expect("a plan with a product").columns -= crate::pack::BLOCK;
    }

    /// What the first `rows` rows of one of the plan's buffers hold, while nothing plays.
    pub fn buffer(&self, buffer: usize, rows: usize) -> &[u8] {
        let start = self.plan.arena.offsets[buffer];
        let end = start + 4 * rows * self.plan.buffers[buffer].width;
        &self.arena.bytes()[start..end]
    }

    /// Runs stages `range` of a step whose runs are set.
    pub(crate) fn play_stages(&mut self, step: &Step, range: std::ops::Range<usize>) {
        for progress in &mut self.progress[range.clone()] {
            *progress = Progress::default();
        }
        let play = Play {
            rows: &step.rows,
            logits: &step.logits,
            runs: &self.runs,
            kv: &self.kv,
            kernels: self.level.kernels(),
            workers: self.pool.workers(),
        };
        let work = Work {
            play,
            stages: &self.stages[range.clone()],
            progress: &self.progress[range],
            scratch: &self.scratch,
            busy: self.measure_busy.then_some(&self.busy_nanoseconds),
            failed: AtomicBool::new(false),
        };
        self.pool.run(&|worker| work.run(worker));
    }

    /// Stages of one kernel of the plan.
    pub(crate) fn stages_of(&self, op: usize) -> std::ops::Range<usize> {
        let first = self.stages.partition_point(|recorded| recorded.op < op);
        let last = self.stages.partition_point(|recorded| recorded.op <= op);
        first..last
    }

    pub(crate) fn prepare(&mut self, step: &Step) -> Result<(), DeviceError> {
        let mapped = |group: usize, sequence: usize, index: usize| {
            self.kv.groups[group].is_mapped(sequence, index)
        };
        step.check(&self.plan, &mapped)?;
        self.runs.clear();
        self.runs.extend(step.runs());
        Ok(())
    }
}

fn out_of_memory(what: &str, bytes: u64) -> DeviceError {
    DeviceError::OutOfMemory { device: DeviceKind::Cpu, what: what.to_string(), bytes }
}

/// How far a stage has come. A cache line of its own, because workers write it at once.
#[repr(align(64))]
#[derive(Default)]
struct Progress {
    /// Jobs that a worker has taken.
    claimed: AtomicUsize,
    /// Jobs that are done.
    done: AtomicUsize,
}

/// What the workers of one play share.
struct Work<'a> {
    play: Play<'a>,
    stages: &'a [Recorded],
    progress: &'a [Progress],
    scratch: &'a [Mutex<WorkerScratch>],
    busy: Option<&'a AtomicU64>,
    /// A worker panicked: its job will never be done, and nobody may wait for it.
    failed: AtomicBool,
}

/// Tells the other workers if this one unwinds.
struct Alarm<'a>(&'a AtomicBool);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::SeqCst);
        }
    }
}

// SAFETY: the stages' raw pointers lead to memory that the workers divide by jobs: a job is
// claimed once, jobs of a stage write disjoint bytes, and barriers stand where stages conflict.
unsafe impl Sync for Work<'_> {}

impl Work<'_> {
    fn run(&self, worker: usize) {
        let mut scratch =
            self.scratch[worker].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let _alarm = Alarm(&self.failed);
        let mut busy = 0;
        // First stage that is not known to be done.
        let mut open = 0;
        for (index, recorded) in self.stages.iter().enumerate() {
            if recorded.barrier {
                while open < index {
                    self.wait(open);
                    open += 1;
                }
            }
            let start = self.busy.map(|_| Instant::now());
            let jobs = recorded.stage.jobs(&self.play);
            let progress = &self.progress[index];
            loop {
                let job = progress.claimed.fetch_add(1, Ordering::Relaxed);
                if job >= jobs {
                    break;
                }
                // SAFETY: claimed by this worker alone; waits order the stages.
                unsafe { recorded.stage.run(&self.play, job, &mut scratch) };
                progress.done.fetch_add(1, Ordering::AcqRel);
            }
            busy += start.map_or(0, |start| start.elapsed().as_nanos() as u64);
        }
        if let Some(total) = self.busy {
            total.fetch_add(busy, Ordering::Relaxed);
        }
    }

    /// Waits until every job of a stage is done. Jobs are counted, not workers: one that the
    /// system has put aside holds up nobody unless it has a job in hand.
    fn wait(&self, stage: usize) {
        // Longer than an even finish takes, shorter than anyone else would mind.
        const SPINS: usize = 2_000;
        let jobs = self.stages[stage].stage.jobs(&self.play);
        let mut spins = 0;
        while self.progress[stage].done.load(Ordering::Acquire) < jobs {
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                assert!(!self.failed.load(Ordering::SeqCst), "another worker panicked");
                std::thread::yield_now();
            }
        }
    }
}

impl Recording for CpuRecording {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn play(&mut self, step: &Step) -> Result<(), DeviceError> {
        let start = Instant::now();
        self.prepare(step)?;
        if self.level == Level::Reference {
            Reference::new(self).play(step);
        } else {
            self.play_stages(step, 0..self.stages.len());
        }
        let workers = self.pool.workers() as f64;
        self.statistics.plays += 1;
        self.statistics.seconds += start.elapsed().as_secs_f64();
        self.statistics.busy_seconds =
            self.busy_nanoseconds.load(Ordering::Relaxed) as f64 * 1e-9 / workers;
        Ok(())
    }

    fn logits(&mut self, index: usize) -> &mut [f32] {
        let vocabulary = self.plan.graph.vocabulary;
        let logits = self.plan.graph.logits.expect("checked by the planner");
        let view = self.plan.view(logits);
        let row = self.plan.arena.offsets[view.buffer] / 4
            + index * self.plan.buffers[view.buffer].width
            + view.column;
        assert!(index < self.plan.options.max_logit_rows);
        // SAFETY: the row lies in the logits' buffer, f32 values at an aligned offset; nobody
        // plays while this borrow lasts.
        unsafe {
            let start = self.arena.start().cast::<f32>().add(row);
            std::slice::from_raw_parts_mut(start, vocabulary)
        }
    }

    fn map_page(&mut self, group: usize, sequence: usize, index: usize, page: u32) {
        self.kv.groups[group].map(sequence, index, page);
    }

    fn unmap_page(&mut self, group: usize, sequence: usize, index: usize) {
        self.kv.groups[group].unmap(sequence, index);
    }

    /// Costs two clock reads a stage.
    fn measure_busy(&mut self, on: bool) {
        self.measure_busy = on;
    }

    fn statistics(&self) -> PlayStatistics {
        self.statistics
    }
}

impl Probe for CpuRecording {
    fn begin(&mut self, step: &Step) -> Result<(), DeviceError> {
        self.prepare(step)
    }

    fn play_op(&mut self, op: usize, step: &Step) -> Result<(), DeviceError> {
        let stages = self.stages_of(op);
        self.play_stages(step, stages);
        Ok(())
    }

    fn read_tensor(&mut self, tensor: TensorId, rows: usize) -> Result<Vec<f32>, DeviceError> {
        let view = self.plan.view(tensor);
        let width = self.plan.graph.tensor(tensor).width;
        let stride = self.plan.buffers[view.buffer].width;
        let start = self.plan.arena.offsets[view.buffer] / 4 + view.column;
        let at = |row: usize, column: usize| start + row * stride + column;
        // SAFETY: inside the buffer; nothing plays meanwhile.
        let value = |index: usize| unsafe { *self.arena.start().cast::<f32>().add(index) };
        let places = (0..rows).flat_map(|row| (0..width).map(move |column| at(row, column)));
        Ok(places.map(value).collect())
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

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn std::any::Any {
        self
    }

    fn poison(&mut self) -> Result<(), DeviceError> {
        for value in self.arena.bytes_mut().chunks_exact_mut(4) {
            value.copy_from_slice(&f32::NAN.to_ne_bytes());
        }
        Ok(())
    }
}
