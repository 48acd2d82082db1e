//! An executor of devices that only keep time: a virtual clock shows what overlaps.

use super::*;
use crate::options::LoadOptions;
use pianola_formats::TensorType;
use pianola_plan::{
    DeviceSpec, Graph, GraphBuilder, KernelVariant, KvSlot, Numeric, Placement, PlanOp,
    PlanOptions, Probe, Rounding, Row, TensorId, WeightShape, WeightSpec,
};
use std::sync::Mutex;
use std::time::Duration;

/// Layers of the toy model.
const LAYERS: usize = 6;

fn spec(name: &str) -> DeviceSpec {
    DeviceSpec {
        name: name.to_string(),
        layout: "rows",
        fuses: true,
        rounds_rows: false,
        asynchronous: true,
        lacks: Vec::new(),
    }
}

/// A stack of products on `card`, with a segmentation in which `helper` computes every second one.
pub(super) fn tandem_plan() -> Plan {
    let mut plan = plan(|graph| Placement::single(graph, spec("card")));
    let second = |_: usize, op: &PlanOp| op.layer.is_some_and(|layer| layer % 2 == 1);
    assert!(plan.add_segmentation("half on helper".to_string(), &spec("helper"), &second));
    plan
}

/// A stack of products.
fn plan(placement: impl Fn(&Graph) -> Placement) -> Plan {
    let mut builder = GraphBuilder::new("toy", 64, 128);
    let weight = |builder: &mut GraphBuilder, name: String| {
        let shape = WeightShape::Matrix { rows: 128, columns: 128 };
        builder.weight(WeightSpec::whole(name, shape, TensorType::F32))
    };
    let table = weight(&mut builder, "table".to_string());
    let mut x = builder.embed(table, 1.0);
    for layer in 0..LAYERS {
        builder.set_layer(Some(layer));
        let matrix = weight(&mut builder, format!("matrix.{layer}"));
        x = builder.matmul("product", x, matrix, None);
    }
    let graph = builder.finish(x);
    let options = PlanOptions {
        numeric: Numeric::Exact,
        kv_type: None,
        max_rows: 64,
        max_logit_rows: 64,
        context: 64,
        sequences: 1,
        kv_bytes: None,
        fusion: true,
        reproducible: false,
    };
    let placement = placement(&graph);
    Plan::new(graph, options, placement).unwrap()
}

/// Both devices do a product of a row in about a microsecond.
pub(super) fn ceilings() -> Vec<Ceilings> {
    vec![Ceilings { bytes_per_second: 1e15, operations_per_second: 3.2e10 }; 2]
}

/// What devices and host share: their clocks in seconds, and a log.
#[derive(Default)]
struct Clock {
    host: f64,
    free: [f64; 2],
    /// When each slot of each device is done.
    done: [[f64; SLOTS]; 2],
    /// Device, segment and slot of each submission.
    log: Vec<(usize, usize, usize)>,
    /// Submissions to the second device that still have to fail.
    failing: usize,
    /// Whether they fail because somebody gave the play up.
    given_up: bool,
    /// Rows that passed into each device.
    imported: [usize; 2],
    /// Real time that the second device takes for a segment.
    delay: Option<Duration>,
}

struct Timed {
    device: usize,
    plan: Arc<Plan>,
    clock: Arc<Mutex<Clock>>,
    failed: [bool; SLOTS],
    logits: Vec<f32>,
}

impl Recording for Timed {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn submit(
        &mut self,
        segment: usize,
        slot: usize,
        step: &Step,
        _logits: LogitsTo,
    ) -> Result<(), DeviceError> {
        let mut clock = self.clock.lock().unwrap();
        clock.log.push((self.device, segment, slot));
        let seconds = (step.rows.len() * self.plan.segments[segment].ops.len()) as f64;
        let end = clock.host.max(clock.free[self.device]) + seconds;
        clock.free[self.device] = end;
        clock.done[self.device][slot] = end;
        if self.device == 1 && clock.failing > 0 {
            clock.failing -= 1;
            self.failed[slot] = true;
        }
        Ok(())
    }

    fn wait(&mut self, slot: usize, _limit: Duration) -> Result<(), DeviceError> {
        let mut clock = self.clock.lock().unwrap();
        if self.device == 1 && clock.done[1][slot] > clock.host {
            clock.delay.into_iter().for_each(std::thread::sleep);
        }
        clock.host = clock.host.max(clock.done[self.device][slot]);
        match std::mem::take(&mut self.failed[slot]) {
            false => Ok(()),
            true if clock.given_up => Err(DeviceError::Interrupted),
            true => Err(DeviceError::Failed {
                device: "helper".to_string(),
                what: "a product".to_string(),
                reason: "the test wants it".to_string(),
            }),
        }
    }

    fn export(&mut self, _: usize, _: TensorId, rows: &mut [f32]) -> Result<(), DeviceError> {
        rows.fill(1.0);
        Ok(())
    }

    fn import(&mut self, _: usize, _: TensorId, rows: &[f32]) -> Result<(), DeviceError> {
        self.clock.lock().unwrap().imported[self.device] += rows.len() / 128;
        Ok(())
    }

    fn logits(&mut self, _slot: usize, _index: usize) -> &mut [f32] {
        &mut self.logits
    }

    fn map_page(&mut self, _: usize, _: usize, _: usize, _: u32) {}

    fn unmap_page(&mut self, _: usize, _: usize, _: usize) {}

    fn set_interrupt(&mut self, _: Arc<AtomicBool>) {}

    fn statistics(&self) -> PlayStatistics {
        PlayStatistics::default()
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn std::any::Any {
        self
    }
}

impl Probe for Timed {
    fn begin(&mut self, _: &Step) -> Result<(), DeviceError> {
        unreachable!("these devices compute nothing")
    }
    fn play_op(&mut self, _: usize, _: &Step) -> Result<(), DeviceError> {
        unreachable!("these devices compute nothing")
    }
    fn read_tensor(&mut self, _: TensorId, _: usize) -> Result<Vec<f32>, DeviceError> {
        unreachable!("these devices compute nothing")
    }
    fn write_tensor(&mut self, _: TensorId, _: &[f32]) -> Result<(), DeviceError> {
        unreachable!("these devices compute nothing")
    }
    fn read_kv(&mut self, _: KvSlot, _: &[Row]) -> Result<[Vec<f32>; 2], DeviceError> {
        unreachable!("these devices compute nothing")
    }
    fn rounding(&self, _: usize, _: &Step) -> Rounding {
        Rounding::None
    }
    fn variants(&self, _: usize, _: &Step) -> Result<Vec<KernelVariant>, DeviceError> {
        Ok(Vec::new())
    }
    fn poison_tensor(&mut self, _: TensorId, _: usize) -> Result<(), DeviceError> {
        unreachable!("these devices compute nothing")
    }
    fn poison(&mut self) -> Result<(), DeviceError> {
        unreachable!("these devices compute nothing")
    }
    fn poison_kv(&mut self) -> Result<(), DeviceError> {
        unreachable!("these devices compute nothing")
    }
}

/// What somebody was told.
type Lines = Arc<Mutex<Vec<String>>>;

/// An executor of the toy model that plays steps of 8 rows and more as `choice`.
fn executor(choice: Choice) -> (Executor, Arc<Mutex<Clock>>, Lines) {
    let (mut executor, clock, told) = executor_of(tandem_plan());
    executor.balance = Some(Balance { least_rows: 8, shares: Shares::Fixed(choice) });
    (executor, clock, told)
}

fn executor_of(plan: Plan) -> (Executor, Arc<Mutex<Clock>>, Lines) {
    let plan = Arc::new(plan);
    let clock = Arc::new(Mutex::new(Clock::default()));
    let told = Arc::new(Mutex::new(Vec::new()));
    let timed = |device: usize| -> Box<dyn Recording> {
        Box::new(Timed {
            device,
            plan: plan.clone(),
            clock: clock.clone(),
            failed: [false; SLOTS],
            logits: vec![0.0; 128],
        })
    };
    let lines = told.clone();
    let warn: Warn = Arc::new(move |line: &str| lines.lock().unwrap().push(line.to_string()));
    let options = LoadOptions { warn: Some(warn), ..LoadOptions::default() };
    let executor = Executor::with(plan.clone(), vec![timed(0), timed(1)], &options);
    (executor, clock, told)
}

fn step(rows: u32) -> Step {
    let mut step = Step::default();
    (0..rows).for_each(|at| step.push(0, 0, at, at + 1 == rows));
    step
}

/// Two halves keep both devices busy: 16 rows of 7 products, of which 3 are the helper's, take as long
/// as the card's part and a half of one of the helper's.
#[test]
fn halves_overlap_on_a_virtual_clock() {
    let (mut whole, clock, _) = executor(Choice { segmentation: 1, halves: false });
    whole.play(&step(16)).unwrap();
    let alone = clock.lock().unwrap().host;
    assert_eq!(alone, 16.0 * (LAYERS + 1) as f64);
    let (mut halves, clock, _) = executor(Choice { segmentation: 1, halves: true });
    halves.play(&step(16)).unwrap();
    let plan = halves.plan.clone();
    let ops = |turn: Turn| plan.segments[turn.segment].ops.len() as f64;
    let predicted = plan.finish_time(&plan.turns(1, 2), &|turn| 8.0 * ops(turn));
    let clock = clock.lock().unwrap();
    assert_eq!(clock.host, predicted, "the executor does what was predicted");
    assert!(clock.host <= 0.65 * alone, "{} of {alone}", clock.host);
    // On each device the first half's segment comes before the second's.
    for device in 0..2 {
        let mine = |slot: usize| {
            let log = clock.log.iter().enumerate();
            log.filter(move |(_, entry)| entry.0 == device && entry.2 == slot)
                .map(|(at, entry)| (entry.1, at))
                .collect::<Vec<_>>()
        };
        let (first, second) = (mine(0), mine(1));
        assert_eq!(first.len(), second.len());
        for (a, b) in first.iter().zip(&second) {
            assert!(a.0 == b.0 && a.1 < b.1, "{first:?} {second:?}");
        }
    }
}

/// A prompt whose layers are on two devices is cut in halves where that is predicted to pay: half of either
/// device's work goes on beside the other's. A chunk without logits is not: the next chunk overlaps with it.
#[test]
fn a_prompt_on_two_devices_overlaps_with_itself() {
    let layers = [(spec("first"), LAYERS / 2), (spec("second"), LAYERS - LAYERS / 2)];
    let played = |ceilings: Option<Vec<Ceilings>>, logits: bool| {
        let (mut executor, clock, _) =
            executor_of(plan(|graph| Placement::by_layers(graph, &layers)));
        executor.ceilings = ceilings;
        let mut step = step(16);
        if !logits {
            step.logits.clear();
        }
        executor.play(&step).unwrap();
        executor.wait().unwrap();
        let clock = clock.lock().unwrap();
        (clock.host, clock.log.len())
    };
    let whole = 16.0 * (LAYERS + 1) as f64;
    assert_eq!(played(None, true), (whole, 2));
    let (halves, submissions) = played(Some(ceilings()), true);
    assert!(submissions == 4 && halves <= 0.8 * whole, "{halves} of {whole}");
    assert_eq!(played(Some(ceilings()), false), (whole, 2));
    // Where memory takes the time, halves would read everything twice.
    let memory = Ceilings { bytes_per_second: 1e6, operations_per_second: 1e18 };
    assert_eq!(played(Some(vec![memory; 2]), true), (whole, 2));
}

#[test]
fn few_rows_stay_where_they_were_placed() {
    let (mut executor, clock, _) = executor(Choice { segmentation: 1, halves: true });
    executor.play(&step(7)).unwrap();
    assert!(clock.lock().unwrap().log.iter().all(|entry| entry.0 == 0));
    executor.use_first_slot();
    executor.play(&step(16)).unwrap();
    assert!(clock.lock().unwrap().log.iter().all(|entry| entry.0 == 0), "kept whole");
    executor.play(&step(16)).unwrap();
    assert!(clock.lock().unwrap().log.iter().any(|entry| entry.0 == 1));
}

/// A device that fails is left out, the step is played without it, one warning is given, and it is
/// tried again.
#[test]
fn a_step_is_played_again_without_the_device_that_failed() {
    let (mut executor, clock, told) = executor(Choice { segmentation: 1, halves: true });
    clock.lock().unwrap().failing = 3;
    executor.play(&step(16)).unwrap();
    let segments = executor.plan.segmentations[0].segments.clone();
    let last = clock.lock().unwrap().log.last().copied().unwrap();
    assert!(last.0 == 0 && segments.contains(&last.1), "played by the first segmentation");
    let told = || told.lock().unwrap().clone();
    assert!(told().len() == 1 && told()[0].contains("without helper"), "{:?}", told());
    let helper = |executor: &Executor| executor.device_use().nth(1).unwrap();
    assert_eq!((helper(&executor).failures, helper(&executor).left_out), (1, true));
    clock.lock().unwrap().failing = 0;
    executor.play(&step(16)).unwrap();
    assert_eq!(told().len(), 1, "left out without another word");
    executor.outages.forget_time(1);
    clock.lock().unwrap().log.clear();
    executor.play(&step(16)).unwrap();
    assert!(clock.lock().unwrap().log.iter().any(|entry| entry.0 == 1), "tried again");
    assert!(told().len() == 2 && told()[1].contains("works again"), "{:?}", told());
    assert_eq!((helper(&executor).failures, helper(&executor).left_out), (1, false));
}

/// A play that is given up is no failure of a device, and leaves nothing behind for the next.
#[test]
fn an_interrupted_play_leaves_nothing_behind() {
    let (mut executor, clock, told) = executor(Choice { segmentation: 1, halves: true });
    (clock.lock().unwrap().failing, clock.lock().unwrap().given_up) = (usize::MAX, true);
    let error = executor.play(&step(16)).unwrap_err();
    assert!(matches!(error, DeviceError::Interrupted), "{error}");
    clock.lock().unwrap().failing = 0;
    for _ in 0..SLOTS {
        executor.play(&step(16)).unwrap();
    }
    assert!(told.lock().unwrap().is_empty());
    assert_eq!(executor.device_use().map(|device| device.failures).sum::<u64>(), 0);
    assert!(!outage::can_replay(&DeviceError::BadStep(String::new())));
}

/// Measured times reach the balance, those of a device that works by itself as well: where all that the
/// helper does takes a while, its products stay where they were placed.
#[test]
fn measured_times_decide() {
    let (mut executor, clock, _) = executor(Choice::PLACED);
    let shares = Shares::Measured(Balancer::new(executor.plan.clone(), ceilings(), true));
    executor.balance = Some(Balance { least_rows: 8, shares });
    clock.lock().unwrap().delay = Some(Duration::from_millis(2));
    (0..12).for_each(|_| executor.play(&step(16)).unwrap());
    clock.lock().unwrap().log.clear();
    (0..4).for_each(|_| executor.play(&step(16)).unwrap());
    let log = &clock.lock().unwrap().log;
    assert!(log.iter().all(|entry| entry.0 == 0), "the helper is slow: {log:?}");
    let Some(Balance { shares: Shares::Measured(balancer), .. }) = &executor.balance else {
        unreachable!("it was set above")
    };
    assert!(balancer.has_measured(0) && balancer.has_measured(1), "both devices were timed");
}
