//! Models whose products an emulated NPU computes, through the engine: beside the processor and beside a
//! GPU, with faults and without.

use crate::support::gpu;
use crate::support::npu::Packages;
use pianola_cpu::{CpuDevice, CpuOptions, Level};
use pianola_engine::sampler::Sampling;
use pianola_engine::{Engine, LoadOptions, LogitRows, Request, Warn};
use pianola_formats::npy;
use pianola_npu::emulated::Emulated;
use pianola_npu::placed::{Fallback, NpuDevice, NpuOptions, Precision};
use pianola_plan::{Device, KvType, ModelPart, Numeric};
use pianola_vulkan::VulkanDevice;
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const CPU: CpuOptions = CpuOptions::bare(Level::Portable, 1);

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case)
}

fn tokens(case: &str) -> Vec<u32> {
    npy::read_tokens(golden(case).join("tokens.npy")).unwrap()
}

fn processor() -> Arc<dyn Device> {
    Arc::new(CpuDevice { options: CPU })
}

/// A device with weights and keys and values of f32, which fast mode leaves as they are. (In exact mode
/// nothing is offered to an NPU.)
fn on(device: Arc<dyn Device>) -> LoadOptions {
    LoadOptions {
        devices: vec![device],
        numeric: Some(Numeric::Fast),
        kv_type: Some(KvType::F32),
        max_logit_rows: 64,
        ..LoadOptions::default()
    }
}

fn load(case: &str, options: LoadOptions) -> Engine {
    Engine::load(&golden(case), options, &mut |_, _| ()).unwrap()
}

/// All logits of a golden case.
fn logits(engine: &mut Engine, case: &str) -> Vec<f32> {
    engine.reset();
    let mut all = Vec::new();
    let mut keep = |_: usize, row: &mut [f32]| all.extend_from_slice(row);
    engine.feed(&tokens(case), 512, LogitRows::From(0), &mut keep).unwrap();
    all
}

/// The largest difference, as a part of the range of the expected values.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().all(|logit| logit.is_finite()));
    let most = expected.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let least = expected.iter().copied().fold(f32::INFINITY, f32::min);
    let error = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    error / (most - least)
}

/// How far logits may be off, as a part of their range. A product whose inputs and weights are rounded by
/// chance is off by a relative error: in bf16 by 2^-8 / sqrt(3) for each of both (uniform within a unit),
/// in int8 by s / sqrt(12) with the largest of a piece at three deviations. Errors of a layer's four products
/// add up by chance; twice their sum is allowed, for each of the largest of all logits. Kernels are
/// held to bounds of their own in the tests of the device.
fn bound(precision: Precision, layers: usize) -> f32 {
    let each = match precision {
        Precision::Bf16 => 1.0 / 256.0 / 3f32.sqrt(),
        Precision::Int8Pieces => 3.0 / 127.0 / 12f32.sqrt(),
    };
    2.0 * (layers as f32 * 4.0 * 2.0).sqrt() * each
}

fn emulated(machine: &Arc<Emulated>, options: NpuOptions) -> Arc<dyn Device> {
    Arc::new(NpuDevice::emulated_by(options, machine.clone()).unwrap())
}

/// Golden cases with all products of a prompt on the NPU, beside the processor and beside a GPU.
#[test]
fn golden_cases_are_within_the_bounds_of_their_types() {
    let packages = Packages::new();
    let gpu = gpu::open();
    let vulkan: Arc<dyn Device> = Arc::new(VulkanDevice::new(gpu::options(&gpu)));
    let cases = crate::support::golden::CASES.map(|case| (case, processor()));
    for (case, main) in cases.into_iter().chain([("gemma3", vulkan.clone()), ("qwen3", vulkan)]) {
        let expected = logits(&mut load(case, on(processor())), case);
        for precision in [Precision::Bf16, Precision::Int8Pieces] {
            let name = main.spec().name;
            let options = NpuOptions { precision: Some(precision), ..packages.options() };
            let accelerators = vec![emulated(&packages.machine(), options)];
            let mut engine = load(case, LoadOptions { accelerators, ..on(main.clone()) });
            let found = logits(&mut engine, case);
            let (off, most) =
                (difference(&found, &expected), bound(precision, engine.plan().layers()));
            println!("{case}, npu+{name}, {precision}: {off:.5} of the range, bound {most:.5}");
            assert!(off > 0.0 && off < most, "{case}, npu+{name}, {precision}: {off} of {most}");
            let used: Vec<_> = engine.device_use().collect();
            assert!(used[1].busy_seconds > 0.0 && used[1].failures == 0, "{used:?}");
            assert_eq!(engine.emulated_device(), Some("npu (emulated)"));
        }
    }
}

/// Attention with its keys and values on the NPU, by name.
#[test]
fn attention_is_placed_by_name() {
    let packages = Packages::new();
    let expected = logits(&mut load("gemma3", on(processor())), "gemma3");
    let options = NpuOptions { fallback: Fallback::Twin, ..packages.options() };
    let options = LoadOptions {
        accelerators: vec![emulated(&packages.machine(), options)],
        place: vec![(ModelPart::Attention, "npu".to_string())],
        ..on(processor())
    };
    let mut engine = load("gemma3", options);
    let text = engine.plan().placement_text();
    assert!(text.contains("npu (emulated)"), "{text}");
    let found = logits(&mut engine, "gemma3");
    let off = difference(&found, &expected);
    assert!(off < bound(Precision::Bf16, engine.plan().layers()), "{off}");
}

/// A greedy answer of a few tokens.
fn answer(engine: &mut Engine, prompt: &[u32]) -> Vec<u32> {
    engine.reset();
    let request = Request {
        max_tokens: Some(5),
        ignore_end: true,
        sampling: Sampling::greedy(),
        ..Request::new(prompt.to_vec())
    };
    let answer = engine.generate(&request, &mut |_| std::ops::ControlFlow::Continue(()));
    answer.unwrap().tokens
}

/// What a step that failed leaves is computed again without the NPU: every token comes, none twice, and
/// one warning.
#[test]
fn faults_in_the_middle_lose_no_token() {
    let all =
        ["timeout@3+", "error@2", "abort@4", "lose@3", "suspend@3", "nan@5", "nomem@1+", "busy@1+"];
    faults_lose_no_token(&processor(), &all);
}

/// The same beside a GPU.
#[test]
fn faults_beside_a_gpu_lose_no_token() {
    let vulkan: Arc<dyn Device> = Arc::new(VulkanDevice::new(gpu::options(&gpu::open())));
    faults_lose_no_token(&vulkan, &["timeout@3+", "error@2", "lose@3", "nan@5"]);
}

fn faults_lose_no_token(main: &Arc<dyn Device>, faults: &[&str]) {
    let packages = Packages::new();
    let prompt = tokens("gemma3");
    let expected = answer(&mut load("gemma3", on(main.clone())), &prompt);
    for fault in faults {
        let machine = packages.machine();
        let told = Arc::new(Mutex::new(Vec::new()));
        let lines = told.clone();
        let warn: Warn = Arc::new(move |line: &str| lines.lock().unwrap().push(line.to_string()));
        let options = NpuOptions { precision: Some(Precision::Bf16), ..packages.options() };
        let accelerators = vec![emulated(&machine, options)];
        let options = LoadOptions { accelerators, warn: Some(warn), ..on(main.clone()) };
        let mut engine = load("gemma3", options);
        // From here on: loading took its commands without a fault.
        machine.model().set_faults(fault.parse().unwrap());
        let found = answer(&mut engine, &prompt);
        assert_eq!(found.len(), 5, "{fault}");
        assert_eq!(found, expected, "{fault}");
        let told = told.lock().unwrap();
        let failures: u64 = engine.device_use().map(|device| device.failures).sum();
        // Memory and contexts are taken at load, so that these have nothing left to fail.
        let late = fault.starts_with("nomem") || fault.starts_with("busy");
        assert_eq!((told.len(), failures), if late { (0, 0) } else { (1, 1) }, "{fault}: {told:?}");
    }
}

/// One engine, whose NPU has every product, with the processor's twin for what fails.
struct Twin {
    engine: Engine,
    machine: Arc<Emulated>,
    _packages: Packages,
}

impl Twin {
    fn new() -> Twin {
        let packages = Packages::new();
        let machine = packages.machine();
        let precision = Some(Precision::Int8Pieces);
        let options = NpuOptions { fallback: Fallback::Twin, precision, ..packages.options() };
        let place = [ModelPart::Projections, ModelPart::Ffn].map(|part| (part, "npu".to_string()));
        let accelerators = vec![emulated(&machine, options)];
        let options = LoadOptions { accelerators, place: place.to_vec(), ..on(processor()) };
        Twin { engine: load("gemma3", options), machine, _packages: packages }
    }
}

/// A random schedule of faults in commands, allocations and contexts.
fn schedule() -> impl Strategy<Value = String> {
    let command =
        prop::sample::select(vec!["error", "abort", "lose", "suspend", "nan", "slow=1ms"]);
    let rule = prop_oneof![
        4 => (command.clone(), 1u32..40).prop_map(|(what, at)| format!("{what}@{at}")),
        2 => (command, 1u32..30).prop_map(|(what, percent)| format!("{what}%{percent}")),
        1 => (1u32..40).prop_map(|at| format!("timeout@{at}")),
        1 => (1u32..12).prop_map(|at| format!("nomem@{at}")),
        1 => (prop::sample::select(vec!["busy", "again"]), 1u32..4)
            .prop_map(|(what, at)| format!("{what}@{at}")),
    ];
    (prop::collection::vec(rule, 1..4), any::<u32>())
        .prop_map(|(rules, seed)| format!("{},seed={seed}", rules.join(",")))
}

fn texts_are_those_of_a_faultless_run(cases: u32) {
    let mut twin = Twin::new();
    let prompt = &tokens("gemma3")[..20];
    let expected = answer(&mut twin.engine, prompt);
    let twin = Mutex::new(twin);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    runner
        .run(&schedule(), |faults| {
            let mut twin = twin.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            twin.machine.model().set_faults(faults.parse().unwrap());
            let found = answer(&mut twin.engine, prompt);
            prop_assert_eq!(&found, &expected, "{}", faults);
            Ok(())
        })
        .unwrap();
    let twin = twin.into_inner().unwrap();
    let failures: u64 = twin.engine.device_use().map(|device| device.failures).sum();
    println!("{cases} schedules, {failures} failures");
    assert!(failures >= u64::from(cases) / 2, "only {failures} failures in {cases} schedules");
}

#[test]
fn texts_do_not_depend_on_faults() {
    texts_are_those_of_a_faultless_run(60);
}

#[test]
#[ignore = "takes minutes: scripts/acceptance runs it"]
fn texts_do_not_depend_on_a_thousand_schedules_of_faults() {
    texts_are_those_of_a_faultless_run(1000);
}
