//! A device of a kind that no crate knows: it works by itself, on a thread of its own, in memory
//! that the processor cannot address, and tensors reach it as messages.

#![allow(dead_code, reason = "each test uses a part")]

use pianola_cpu::{CpuDevice, CpuOptions, CpuRecording, Level};
use pianola_formats::TensorSource;
use pianola_plan::{
    Allocation, Ceilings, Device, DeviceError, DeviceId, DeviceSpec, HeapShare, KernelVariant,
    KvSlot, LogitsTo, Numeric, Plan, PlayStatistics, Probe, Recording, Rounding, Row, SLOTS, Step,
    Takeover, TensorId, WAIT_LIMIT,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The device before a plan is recorded on it.
#[derive(Clone, Default)]
pub struct RemoteDevice {
    /// Whether its ceilings say that arithmetic, not memory, takes the time.
    pub arithmetic_bound: bool,
    /// Whether it takes products over, without a speed of its own.
    pub takes_over: bool,
    /// The submission that will fail, counted from the next, which is 1; 0 for none.
    pub failing: Arc<AtomicU64>,
}

impl RemoteDevice {
    /// Another such device in the same plan.
    pub fn beside(name: &'static str) -> Named {
        Named { name, device: RemoteDevice { arithmetic_bound: true, ..RemoteDevice::default() } }
    }
}

fn spec(name: &str) -> DeviceSpec {
    DeviceSpec {
        name: name.to_string(),
        layout: "letters",
        fuses: true,
        rounds_rows: false,
        asynchronous: true,
        lacks: Vec::new(),
    }
}

impl Device for RemoteDevice {
    fn spec(&self) -> DeviceSpec {
        spec("remote")
    }

    fn description(&self) -> String {
        "remote (a thread)".to_string()
    }

    fn memory(&self) -> Option<u64> {
        None
    }

    fn allocations(&self, plan: &Plan, id: DeviceId) -> Result<Vec<Allocation>, DeviceError> {
        CpuDevice::default().allocations(plan, id)
    }

    fn heaps(&self, _allocations: &[Allocation]) -> Option<Vec<HeapShare>> {
        Some(Vec::new())
    }

    fn record(
        &self,
        plan: &Arc<Plan>,
        id: DeviceId,
        source: &dyn TensorSource,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Box<dyn Recording>, DeviceError> {
        let options = CpuOptions::bare(Level::Portable, 1);
        let inner = CpuRecording::new(plan.clone(), id, source, options, progress)?;
        Ok(Box::new(RemoteRecording::new(plan.clone(), inner, self.failing.clone())))
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn variants(&self, plan: &Plan, id: DeviceId) -> Result<Vec<KernelVariant>, DeviceError> {
        CpuDevice::default().variants(plan, id)
    }

    fn takeover(&self) -> Option<Takeover> {
        let takeover = Takeover {
            least_rows: 4,
            seconds_each: 0.0,
            exact: true,
            shares_memory: false,
            always: false,
        };
        self.takes_over.then_some(takeover)
    }

    fn is_emulated(&self) -> bool {
        self.takes_over
    }

    fn measure(&self, _numeric: Numeric) -> Option<Ceilings> {
        if self.takes_over {
            return None;
        }
        let (bytes, operations) = if self.arithmetic_bound { (1e15, 1e6) } else { (1e6, 1e15) };
        Some(Ceilings { bytes_per_second: bytes, operations_per_second: operations })
    }
}

/// A remote device by another name.
pub struct Named {
    name: &'static str,
    device: RemoteDevice,
}

/// A device that holds so many layers and no more.
pub struct Holding {
    pub device: Arc<dyn Device>,
    pub layers: usize,
}

macro_rules! delegate {
    ($kind:ty, $spec:expr, $holds:expr, $measure:expr) => {
        impl Device for $kind {
            fn spec(&self) -> DeviceSpec {
                $spec(self)
            }
            fn description(&self) -> String {
                self.device.description()
            }
            fn memory(&self) -> Option<u64> {
                self.device.memory()
            }
            fn allocations(
                &self,
                plan: &Plan,
                id: DeviceId,
            ) -> Result<Vec<Allocation>, DeviceError> {
                self.device.allocations(plan, id)
            }
            fn heaps(&self, allocations: &[Allocation]) -> Option<Vec<HeapShare>> {
                $holds(self, allocations).then(Vec::new)
            }
            fn record(
                &self,
                plan: &Arc<Plan>,
                id: DeviceId,
                source: &dyn TensorSource,
                progress: &mut dyn FnMut(u64, u64),
            ) -> Result<Box<dyn Recording>, DeviceError> {
                self.device.record(plan, id, source, progress)
            }
            fn variants(
                &self,
                plan: &Plan,
                id: DeviceId,
            ) -> Result<Vec<KernelVariant>, DeviceError> {
                self.device.variants(plan, id)
            }
            fn as_any(&self) -> &dyn std::any::Any {
                self
            }
            fn measure(&self, _numeric: Numeric) -> Option<Ceilings> {
                $measure(self)
            }
        }
    };
}

delegate!(
    Named,
    |named: &Named| spec(named.name),
    |_: &Named, _: &[Allocation]| true,
    |named: &Named| named.device.measure(Numeric::Exact)
);
delegate!(
    ArithmeticBound,
    |bound: &ArithmeticBound| bound.device.spec(),
    |bound: &ArithmeticBound, allocations: &[Allocation]| bound.device.holds(allocations),
    |_: &ArithmeticBound| RemoteDevice { arithmetic_bound: true, ..RemoteDevice::default() }
        .measure(Numeric::Exact)
);
delegate!(
    Holding,
    |holding: &Holding| holding.device.spec(),
    |holding: &Holding, allocations: &[Allocation]| {
        let mut layers: Vec<usize> = allocations.iter().filter_map(|item| item.layer).collect();
        layers.sort_unstable();
        layers.dedup();
        layers.len() <= holding.layers
    },
    |holding: &Holding| holding.device.measure(Numeric::Exact)
);

/// A device whose ceilings say that arithmetic takes the time, so that halves pay.
pub struct ArithmeticBound {
    pub device: Arc<dyn Device>,
}

type Task = Box<dyn FnOnce(&mut CpuRecording) + Send>;

/// The host's side of a recording: all it can do is send tasks and wait for what they send back.
struct RemoteRecording {
    plan: Arc<Plan>,
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
    /// What was submitted for a slot and not waited for.
    pending: [Vec<Receiver<Result<(), DeviceError>>>; SLOTS],
    /// Copies of rows of logits, for whoever reads them here.
    logits: Vec<f32>,
    statistics: PlayStatistics,
    failing: Arc<AtomicU64>,
}

impl RemoteRecording {
    fn new(plan: Arc<Plan>, mut inner: CpuRecording, failing: Arc<AtomicU64>) -> RemoteRecording {
        let (tasks, inbox) = channel::<Task>();
        let work = move || inbox.into_iter().for_each(|task| task(&mut inner));
        RemoteRecording {
            plan,
            tasks: Some(tasks),
            thread: Some(std::thread::spawn(work)),
            pending: Default::default(),
            logits: Vec::new(),
            statistics: PlayStatistics::default(),
            failing,
        }
    }

    fn send<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut CpuRecording) -> T + Send + 'static,
    ) -> Receiver<T> {
        let (reply, answer) = channel();
        let task: Task = Box::new(move |inner| drop(reply.send(task(inner))));
        self.tasks.as_ref().unwrap().send(task).unwrap();
        answer
    }

    fn ask<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut CpuRecording) -> T + Send + 'static,
    ) -> T {
        self.send(task).recv().unwrap()
    }
}

impl Drop for RemoteRecording {
    fn drop(&mut self) {
        self.tasks = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Recording for RemoteRecording {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn submit(
        &mut self,
        segment: usize,
        slot: usize,
        step: &Step,
        logits: LogitsTo,
    ) -> Result<(), DeviceError> {
        let step = step.clone();
        let less = |left: u64| left.checked_sub(1);
        let fails = self.failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) == Ok(1);
        let done = self.send(move |inner| {
            if fails {
                let (what, reason) = ("a segment".to_string(), "the test wants it".to_string());
                return Err(DeviceError::Failed { device: "remote".to_string(), what, reason });
            }
            // Long enough that whoever does not wait would read what is not there yet.
            std::thread::sleep(Duration::from_millis(1));
            inner.submit(segment, slot, &step, logits)
        });
        self.pending[slot].push(done);
        self.statistics.submits += 1;
        Ok(())
    }

    fn set_interrupt(&mut self, flag: Arc<AtomicBool>) {
        self.ask(move |inner| inner.set_interrupt(flag));
    }

    fn wait(&mut self, slot: usize, limit: Duration) -> Result<(), DeviceError> {
        let done = self.pending[slot].drain(..);
        let results: Vec<_> =
            done.map(|done| done.recv_timeout(limit).expect("the thread lives")).collect();
        results.into_iter().collect()
    }

    fn export(
        &mut self,
        slot: usize,
        tensor: TensorId,
        rows: &mut [f32],
    ) -> Result<(), DeviceError> {
        assert!(self.pending[slot].is_empty(), "exported before it was waited for");
        let mut values = vec![f32::NAN; rows.len()];
        let values = self.ask(move |inner| {
            inner.export(slot, tensor, &mut values)?;
            Ok::<_, DeviceError>(values)
        })?;
        rows.copy_from_slice(&values);
        Ok(())
    }

    fn import(&mut self, slot: usize, tensor: TensorId, rows: &[f32]) -> Result<(), DeviceError> {
        assert!(self.pending[slot].is_empty(), "imported while the slot plays");
        let rows = rows.to_vec();
        self.ask(move |inner| inner.import(slot, tensor, &rows))
    }

    fn logits(&mut self, slot: usize, index: usize) -> &mut [f32] {
        assert!(self.pending[slot].is_empty(), "read before it was waited for");
        self.logits = self.ask(move |inner| inner.logits(slot, index).to_vec());
        &mut self.logits
    }

    fn map_page(&mut self, group: usize, sequence: usize, index: usize, page: u32) {
        self.ask(move |inner| inner.map_page(group, sequence, index, page));
    }

    fn unmap_page(&mut self, group: usize, sequence: usize, index: usize) {
        self.ask(move |inner| inner.unmap_page(group, sequence, index));
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

impl Probe for RemoteRecording {
    fn begin(&mut self, step: &Step) -> Result<(), DeviceError> {
        (0..SLOTS).try_for_each(|slot| self.wait(slot, WAIT_LIMIT))?;
        let step = step.clone();
        self.ask(move |inner| inner.begin(&step))
    }

    fn play_op(&mut self, op: usize, step: &Step) -> Result<(), DeviceError> {
        let step = step.clone();
        self.ask(move |inner| inner.play_op(op, &step))
    }

    fn read_tensor(&mut self, tensor: TensorId, rows: usize) -> Result<Vec<f32>, DeviceError> {
        self.ask(move |inner| inner.read_tensor(tensor, rows))
    }

    fn write_tensor(&mut self, tensor: TensorId, rows: &[f32]) -> Result<(), DeviceError> {
        let rows = rows.to_vec();
        self.ask(move |inner| inner.write_tensor(tensor, &rows))
    }

    fn read_kv(&mut self, slot: KvSlot, rows: &[Row]) -> Result<[Vec<f32>; 2], DeviceError> {
        let rows = rows.to_vec();
        self.ask(move |inner| inner.read_kv(slot, &rows))
    }

    fn rounding(&self, op: usize, step: &Step) -> Rounding {
        let step = step.clone();
        self.ask(move |inner| inner.rounding(op, &step))
    }

    fn variants(&self, op: usize, step: &Step) -> Result<Vec<KernelVariant>, DeviceError> {
        let step = step.clone();
        self.ask(move |inner| inner.variants(op, &step))
    }

    fn poison_tensor(&mut self, tensor: TensorId, rows: usize) -> Result<(), DeviceError> {
        self.ask(move |inner| inner.poison_tensor(tensor, rows))
    }

    fn poison(&mut self) -> Result<(), DeviceError> {
        self.ask(Probe::poison)
    }

    fn poison_kv(&mut self) -> Result<(), DeviceError> {
        self.ask(Probe::poison_kv)
    }
}
