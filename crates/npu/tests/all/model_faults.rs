//! What goes wrong on the modelled device becomes a typed error, and a caller that computes again on
//! the processor gets the same bits as one whose device never failed.

use std::sync::LazyLock;
use std::time::Duration;

use crate::common::model::Machine;
use pianola_npu::amdxdna::{Buffer, BufferKind, CommandState, Device, DriverError};
use pianola_npu::emulated::Emulated;
use pianola_npu::package::Shape;
use pianola_npu::runner::{
    Factor, Order, RunError, RunOptions, TiledMatmul, TiledOptions, reference_matmul_i8,
};
use pianola_npu_model::Config;
use proptest::prelude::*;

fn machine(faults: &str, hang_limit: Duration) -> Machine {
    Machine::small(Config { faults: faults.parse().unwrap(), hang_limit, ..Config::default() })
}

const LONG: Duration = Duration::from_secs(60);
/// For commands that hang. A busy machine takes longer for those that do not.
const SHORT: RunOptions = RunOptions { timeout: Duration::from_millis(100) };
const PATIENT: RunOptions = RunOptions { timeout: Duration::from_secs(100) };

#[test]
fn commands_that_fail_are_typed_errors() {
    use DriverError::{CommandFailed, ContextLost, DeviceLost, Timeout};
    type Expected = fn(&RunError) -> bool;
    // Whether the same runner works afterwards, and whether it says so.
    let cases: [(&str, Expected, bool); 7] = [
        ("timeout@1", |error| matches!(error, RunError::Driver(Timeout { .. })), true),
        (
            "error@1",
            |error| {
                matches!(error, RunError::Driver(CommandFailed { state: CommandState::Error, .. }))
            },
            false,
        ),
        (
            "abort@1",
            |error| matches!(error, RunError::Driver(ContextLost { state: CommandState::Abort })),
            true,
        ),
        ("lose@1", |error| matches!(error, RunError::Driver(ContextLost { .. })), true),
        ("suspend@1", |error| matches!(error, RunError::Driver(DeviceLost { .. })), true),
        ("nan@1", |error| matches!(error, RunError::SelfTest { .. }), false),
        ("wrong@1", |error| matches!(error, RunError::SelfTest { .. }), false),
    ];
    for (faults, expected, lost) in cases {
        let machine = machine(faults, LONG);
        let mut runner = machine.load(if faults == "timeout@1" { SHORT } else { PATIENT }).unwrap();
        let error = runner.self_test(1).unwrap_err();
        assert!(expected(&error), "{faults}: {error:?}");
        assert_eq!(runner.is_lost(), lost, "{faults}");
        assert_eq!(runner.self_test(1).is_err(), lost, "{faults}");
        // Opened and loaded again, it works.
        machine.load(PATIENT).unwrap().self_test(1).unwrap();
    }
}

#[test]
fn a_command_that_the_kernel_gives_up_ends_its_context() {
    let machine = machine("timeout@1", Duration::from_millis(20));
    let mut runner = machine.load(RunOptions::default()).unwrap();
    let error = runner.self_test(1).unwrap_err();
    let RunError::Driver(DriverError::ContextLost { state }) = error else { panic!("{error}") };
    assert_eq!(state, CommandState::Timeout);
    assert!(runner.is_lost());
}

#[test]
fn a_slow_command_is_no_fault() {
    machine("slow=20ms@1", LONG).load(PATIENT).unwrap().self_test(1).unwrap();
}

#[test]
fn a_failed_command_of_a_chain_is_numbered() {
    let machine = machine("error@2", LONG);
    let options = TiledOptions { chain: 5, ..TiledOptions::default() };
    let mut tiled = machine.load(PATIENT).unwrap().into_tiled(options).unwrap();
    let shape = Shape { m: 1, k: 16 * 12, n: 1 };
    let values = vec![1; shape.k];
    let factor = Factor { values: &values, order: Order::RowMajor };
    let mut out = [0];
    let error = tiled.matmul_i8(shape, &values, factor, &mut out).unwrap_err();
    let RunError::Driver(DriverError::CommandFailed { index, .. }) = error else {
        panic!("{error}")
    };
    assert_eq!(index, Some(0), "the model fails a chain's first command");
    tiled.matmul_i8(shape, &values, factor, &mut out).unwrap();
    assert_eq!(out, [16 * 12]);
}

/// A sum of -1 is a result; what a kernel leaves as it was, or ruins, is none.
#[test]
fn an_element_without_a_result_is_an_error() {
    let machine = machine("nan@3", LONG);
    let mut tiled = machine.load(PATIENT).unwrap().into_tiled(TiledOptions::default()).unwrap();
    let shape = Shape { m: 3, k: 1, n: 70 };
    let (a, b) = ([-1; 3], vec![1; shape.n]);
    let factor = Factor { values: &b, order: Order::RowMajor };
    let mut out = vec![0; shape.m * shape.n];
    for _ in 0..2 {
        tiled.matmul_i8(shape, &a, factor, &mut out).unwrap();
        assert!(out.iter().all(|&sum| sum == -1));
    }
    let error = tiled.matmul_i8(shape, &a, factor, &mut out).unwrap_err();
    assert!(matches!(error, RunError::NoResult { .. }), "{error}");
    tiled.matmul_i8(shape, &a, factor, &mut out).unwrap();
}

#[test]
fn what_the_device_refuses_is_named() {
    for (faults, in_use) in [("held=6", 6), ("busy@1", 0), ("again@1", 0)] {
        let error = machine(faults, LONG).load(PATIENT).unwrap_err();
        let RunError::Driver(DriverError::NoFreeContext { in_use: found, limit: 6 }) = error else {
            panic!("{faults}: {error}")
        };
        assert_eq!(found, Some(in_use), "{faults}");
    }
    // The heap, the PDI in it, a tensor.
    let kept = machine("nomem@1", LONG);
    let error = Device::open_with(kept.calls.clone(), Emulated::path()).unwrap_err();
    assert!(is_memory(&error), "{error}");
    let error = machine("nomem@2", LONG).load(PATIENT).unwrap_err();
    assert!(matches!(error, RunError::Driver(DriverError::HeapFull { .. })), "{error}");
    let device = machine("nomem@2", LONG).open();
    let error = Buffer::new(&device, BufferKind::Share, 1 << 30).unwrap_err();
    assert!(is_memory(&error), "{error}");
}

/// Which of the two it is depends on this process's limit of locked memory.
fn is_memory(error: &DriverError) -> bool {
    matches!(error, DriverError::OutOfMemory { .. } | DriverError::LockedMemory { .. })
}

/// What a caller does: products on the device, and on the processor whenever that fails.
struct Caller<'a> {
    machine: &'a Machine,
    options: RunOptions,
    loaded: Option<TiledMatmul>,
    on_processor: usize,
}

impl Caller<'_> {
    fn load(&self) -> Result<TiledMatmul, RunError> {
        let mut runner = self.machine.load(self.options)?;
        runner.self_test(7)?;
        // Waves of three commands, so that chains begin and end in the middle.
        let options = TiledOptions { chain: 3, ..TiledOptions::default() };
        runner.into_tiled(options)
    }

    fn on_device(
        &mut self,
        shape: Shape,
        a: &[i8],
        b: Factor<'_, i8>,
        out: &mut [i32],
    ) -> Result<(), RunError> {
        let tiled = match self.loaded.take() {
            Some(tiled) => self.loaded.insert(tiled),
            None => {
                let tiled = self.load()?;
                self.loaded.insert(tiled)
            }
        };
        tiled.matmul_i8(shape, a, b, out)
    }

    fn product(&mut self, shape: Shape, a: &[i8], b: Factor<'_, i8>) -> Vec<i32> {
        let mut out = vec![0; shape.m * shape.n];
        if self.on_device(shape, a, b, &mut out).is_err() {
            self.loaded = None;
            self.on_processor += 1;
            reference_matmul_i8(shape, a, b, &mut out).unwrap();
        }
        out
    }
}

/// A fault that the device reports. What it computes wrongly in silence only the self-test notices,
/// whose command is the first. Without faults there are 9 submissions, one context and 33 buffers.
fn fault() -> impl Strategy<Value = String> {
    let command =
        prop::sample::select(vec!["timeout", "error", "abort", "lose", "suspend", "slow=1ms"]);
    let context = prop::sample::select(vec!["busy", "again"]);
    prop_oneof![
        6 => (command.clone(), 1_u32..12).prop_map(|(what, when)| format!("{what}@{when}")),
        2 => (command, 1_u32..30, 1_u32..100).prop_map(|(what, percent, seed)| {
            format!("{what}%{percent},seed={seed}")
        }),
        2 => (1_u32..50).prop_map(|when| format!("nomem@{when}")),
        1 => (context, 1_u32..4).prop_map(|(what, when)| format!("{what}@{when}")),
        1 => Just("nan@1".to_string()),
        1 => Just("wrong@1".to_string()),
        1 => (5_u32..7).prop_map(|contexts| format!("held={contexts}")),
    ]
}

/// Shapes that need several commands.
const SHAPES: [(usize, usize, usize); 4] = [(5, 40, 70), (130, 16, 65), (1, 100, 1), (128, 16, 64)];

fn products(caller: &mut Caller<'_>, seed: u64) -> Vec<Vec<i32>> {
    let mut state = seed;
    let mut byte = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as i8
    };
    let mut product = |(m, k, n)| {
        let a: Vec<i8> = (0..m * k).map(|_| byte()).collect();
        let b: Vec<i8> = (0..k * n).map(|_| byte()).collect();
        let factor = Factor { values: &b, order: Order::ColumnMajor };
        caller.product(Shape { m, k, n }, &a, factor)
    };
    SHAPES.map(&mut product).to_vec()
}

fn caller(machine: &Machine, timeout: Duration) -> Caller<'_> {
    let options = RunOptions { timeout };
    Caller { machine, options, loaded: None, on_processor: 0 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn whatever_fails_the_results_are_those_of_a_device_that_does_not(
        faults in prop::collection::vec(fault(), 0..4),
        // Whether the kernel or the driver gives a hanging command up first.
        kernel_first in any::<bool>(),
        seed in any::<u64>(),
    ) {
        static SOUND: LazyLock<Machine> = LazyLock::new(|| Machine::small(Config::default()));
        let mut expected = caller(&SOUND, PATIENT.timeout);
        let right = products(&mut expected, seed);
        prop_assert_eq!(expected.on_processor, 0);

        let (hang, timeout) = if kernel_first { (2, 100_000) } else { (10_000, 40) };
        let hang_limit = Duration::from_millis(hang);
        let text = faults.join(",");
        let config =
            Config { faults: text.parse().unwrap(), hang_limit, ..Config::default() };
        let faulty = SOUND.another(config);
        let mut caller = caller(&faulty, Duration::from_millis(timeout));
        prop_assert!(products(&mut caller, seed) == right, "{}", text);
        if faults.is_empty() && kernel_first {
            prop_assert_eq!(caller.on_processor, 0);
        }
        if text.ends_with("held=6") {
            prop_assert_eq!(caller.on_processor, SHAPES.len());
        }
    }
}

#[test]
fn a_caller_goes_back_to_the_device() {
    // The self-test is submission 1, the first product has 2 and 3.
    let faulty = machine("lose@3", LONG);
    let mut caller = caller(&faulty, PATIENT.timeout);
    products(&mut caller, 1);
    assert_eq!(caller.on_processor, 1);
    assert!(caller.loaded.is_some());
}
