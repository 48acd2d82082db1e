//! An NPU that fails in the middle of a model: either the play ends with the right error, or the processor
//! computes in its place and the logits have the same bits. Later the NPU is tried again.

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::common::placed::{
    Folder, Player, Share, TestClock, matmul_bf16, matmul_i8, plan, plan_options, step,
};
use pianola_model::ModelFile;
use pianola_npu::emulated::Emulated;
use pianola_npu::placed::{Fallback, NpuDevice, NpuOptions, OpenError, Precision};
use pianola_npu::runner::RunOptions;
use pianola_npu_model::Config;
use pianola_plan::{DeviceError, Step};
use proptest::prelude::*;

/// Packages are read when a device is opened, so that their folder need not stay.
fn kernels() -> Folder {
    Folder::new(&[matmul_i8(64), matmul_bf16(64)])
}

static MODEL: LazyLock<ModelFile> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gemma3");
    ModelFile::open(&path).unwrap()
});

/// A model on an NPU whose faults and clock are the test's.
struct Machine {
    emulated: Arc<Emulated>,
    clock: Arc<TestClock>,
    player: Player,
}

#[derive(Clone, Copy, Debug)]
struct Setting {
    precision: Precision,
    share: Share,
    fallback: Fallback,
    /// Whether the kernel gives a command up that hangs, before the driver's time is over.
    kernel_first: bool,
}

const INT8: Setting = Setting {
    precision: Precision::Int8Pieces,
    share: Share::Products,
    fallback: Fallback::Twin,
    kernel_first: true,
};

impl Machine {
    fn new(setting: Setting) -> Machine {
        let (hang, timeout) = if setting.kernel_first { (2, 100_000) } else { (60_000, 500) };
        let hang_limit = Duration::from_millis(hang);
        let kernels = kernels();
        let emulated = kernels.machine(Config { hang_limit, ..Config::default() });
        let clock = Arc::new(TestClock::default());
        let options = NpuOptions {
            precision: Some(setting.precision),
            fallback: setting.fallback,
            run: RunOptions { timeout: Duration::from_millis(timeout) },
            clock: clock.clone(),
            ..kernels.options()
        };
        let npu = Arc::new(NpuDevice::emulated_by(options, emulated.clone()).unwrap());
        let graph = pianola_model::graph(&MODEL.config().unwrap(), MODEL.source(), None).unwrap();
        let plan = plan(graph, setting.share, &npu, plan_options());
        let player = Player::with_npu(plan, npu, MODEL.source()).unwrap();
        Machine { emulated, clock, player }
    }

    /// From now on; commands are counted from one.
    fn set_faults(&self, faults: &str) {
        self.emulated.model().set_faults(faults.parse().unwrap());
    }
}

/// A prompt, its continuation, a token.
fn steps() -> [Step; 3] {
    let tokens: Vec<u32> = (0..24).map(|at| (at * 29 + 3) % 200).collect();
    [step(&tokens[..11], 0, 0, 1), step(&tokens[11..23], 0, 11, 2), step(&tokens[23..], 0, 23, 1)]
}

fn play(player: &mut Player) -> Vec<Vec<f32>> {
    steps().iter().map(|step| player.play(step).unwrap()).collect()
}

/// Faults that the device reports, or that show in a result.
const FAULTS: [&str; 7] = ["timeout", "error", "abort", "lose", "suspend", "nan", "slow=1ms"];

#[test]
fn the_processor_computes_the_same_bits_in_the_devices_place() {
    let bf16 = Setting { precision: Precision::Bf16, share: Share::Layers, ..INT8 };
    for setting in [INT8, Setting { share: Share::Layers, ..INT8 }, bf16] {
        let mut sound = Machine::new(setting);
        let expected = play(&mut sound.player);
        let all = sound.player.counters();
        assert_eq!((all.on_host, all.failures), (0, 0));
        for fault in FAULTS {
            let mut machine = Machine::new(setting);
            machine.set_faults(&format!("{fault}@4"));
            let mut found = Vec::new();
            for step in steps() {
                found.push(machine.player.play(&step).unwrap());
                machine.clock.advance(Duration::from_secs(1));
            }
            assert!(found == expected, "{fault}, {setting:?}");
            let counters = machine.player.counters();
            assert_eq!(counters.on_device + counters.on_host, all.on_device, "{fault}");
            let failures = u64::from(!fault.starts_with("slow"));
            assert_eq!((counters.failures, counters.reopened), (failures, failures), "{fault}");
            assert_eq!(counters.on_host > 0, failures > 0, "{fault}");
            assert!(counters.on_device > 0 && counters.last_failure.is_some() == (failures > 0));
        }
    }
}

#[test]
fn a_device_that_stays_broken_is_tried_less_and_less() {
    let mut machine = Machine::new(INT8);
    let expected = play(&mut Machine::new(INT8).player);
    machine.set_faults("wrong@1+");
    let mut failures = 0;
    for seconds in [1, 2, 4, 8, 16, 32, 64, 64] {
        // The self-test notices what is wrong; in the first play nothing has been tested again.
        if failures == 0 {
            machine.set_faults("error@1, wrong@2+");
        }
        failures += 1;
        assert!(play(&mut machine.player) == expected);
        assert_eq!(machine.player.counters().failures, failures, "one attempt after each wait");
        machine.clock.advance(Duration::from_secs(seconds) - Duration::from_nanos(1));
        assert!(play(&mut machine.player) == expected);
        assert_eq!(machine.player.counters().failures, failures, "none before {seconds} s");
        machine.clock.advance(Duration::from_nanos(1));
    }
    let counters = machine.player.counters();
    assert!(counters.last_failure.unwrap().contains("computes wrongly"));
    assert_eq!(counters.reopened, 0);
    machine.set_faults("");
    machine.clock.advance(Duration::from_secs(64));
    let before = machine.player.counters().on_host;
    assert!(play(&mut machine.player) == expected);
    let counters = machine.player.counters();
    assert_eq!((counters.reopened, counters.on_host), (1, before));
    // After a play that ended well the first wait is the shortest again.
    machine.set_faults("error@1");
    assert!(play(&mut machine.player) == expected);
    machine.clock.advance(Duration::from_secs(1));
    assert!(play(&mut machine.player) == expected);
    assert_eq!(machine.player.counters().reopened, 2);
}

#[test]
fn errors_are_reported_as_what_they_are() {
    type Expected = fn(&DeviceError) -> bool;
    let lost: Expected = |error| matches!(error, DeviceError::Lost { .. });
    let failed: Expected = |error| matches!(error, DeviceError::Failed { .. });
    let cases: [(&str, Expected); 6] = [
        ("timeout", |error| matches!(error, DeviceError::Timeout { .. })),
        ("error", failed),
        ("abort", lost),
        ("lose", lost),
        ("suspend", lost),
        ("nan", failed),
    ];
    let setting = Setting { fallback: Fallback::Report, ..INT8 };
    let expected = play(&mut Machine::new(setting).player);
    for (fault, is_right) in cases {
        // The driver's own time limit is short; a busy machine may exceed it without a fault.
        let kernel_first = fault != "timeout";
        let mut machine = Machine::new(Setting { kernel_first, ..setting });
        machine.set_faults(&format!("{fault}@2"));
        let [first, ..] = steps();
        let error = machine.player.play(&first).unwrap_err();
        assert!(is_right(&error), "{fault}: {error:?}");
        assert!(error.to_string().starts_with("npu (emulated)"), "{error}");
        // Until the wait is over, a submission is refused with the same error, and nothing is tried.
        let again = machine.player.play(&first).unwrap_err();
        assert_eq!(again.to_string(), error.to_string());
        let counters = machine.player.counters();
        assert_eq!((counters.failures, counters.on_host), (1, 0), "{fault}");
        if kernel_first {
            machine.clock.advance(Duration::from_secs(1));
            assert!(play(&mut machine.player) == expected, "{fault}");
            assert_eq!(machine.player.counters().reopened, 1, "{fault}");
        }
    }
}

/// Contexts that others hold, and memory that is not there, when packages are loaded.
#[test]
fn what_fails_at_load_is_tried_again() {
    let expected = play(&mut Machine::new(INT8).player);
    for fault in ["busy@1", "again@1", "nomem@1", "nomem@2", "nomem@9"] {
        let mut machine = Machine::new(INT8);
        machine.set_faults("error@1");
        let [first, second, third] = steps();
        let mut found = vec![machine.player.play(&first).unwrap()];
        machine.set_faults(fault);
        machine.clock.advance(Duration::from_secs(1));
        found.push(machine.player.play(&second).unwrap());
        assert_eq!(machine.player.counters().failures, 2, "{fault}");
        machine.clock.advance(Duration::from_secs(2));
        found.push(machine.player.play(&third).unwrap());
        assert_eq!(machine.player.counters().reopened, 1, "{fault}");
        assert!(found == expected, "{fault}");
    }
    let kernels = kernels();
    let held = kernels.machine(Config { faults: "held=6".parse().unwrap(), ..Config::default() });
    let Err(OpenError::NoneUsable { refused, .. }) =
        NpuDevice::emulated_by(kernels.options(), held)
    else {
        panic!("no context is free")
    };
    assert!(refused[0].reason.contains("no free hardware context"), "{}", refused[0]);
}

/// A fault and when it comes: the nth command, allocation or context, or by chance.
fn fault() -> impl Strategy<Value = String> {
    let command = prop::sample::select(FAULTS.to_vec());
    let context = prop::sample::select(vec!["busy", "again"]);
    prop_oneof![
        6 => (command.clone(), 1_u32..30).prop_map(|(what, when)| format!("{what}@{when}")),
        2 => (command, 1_u32..20, 1_u32..100).prop_map(|(what, percent, seed)| {
            format!("{what}%{percent},seed={seed}")
        }),
        1 => (1_u32..200).prop_map(|when| format!("nomem@{when}")),
        1 => (context, 1_u32..4).prop_map(|(what, when)| format!("{what}@{when}")),
        // What is wrong in silence only a self-test notices, which is the first command after a failure.
        1 => Just("error@1,wrong@2".to_string()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn whatever_fails_the_logits_have_the_same_bits(
        faults in prop::collection::vec(fault(), 0..4),
        waits in prop::collection::vec(0_u64..5, 3),
        kernel_first in prop::bool::weighted(0.9),
    ) {
        let setting = Setting { share: Share::First, kernel_first, ..INT8 };
        static SOUND: LazyLock<Vec<Vec<f32>>> = LazyLock::new(|| {
            play(&mut Machine::new(Setting { share: Share::First, ..INT8 }).player)
        });
        let mut machine = Machine::new(setting);
        machine.set_faults(&faults.join(","));
        for ((step, expected), &wait) in steps().iter().zip(&*SOUND).zip(&waits) {
            let found = machine.player.play(step).unwrap();
            prop_assert!(&found == expected, "{}", faults.join(","));
            machine.clock.advance(Duration::from_secs(wait));
        }
        let counters = machine.player.counters();
        prop_assert_eq!(counters.on_host > 0, counters.failures > 0);
        if faults.is_empty() && kernel_first {
            prop_assert_eq!(counters.failures, 0);
        }
    }
}
