//! Layers on two devices: the processor and a Vulkan device, by default Mesa's software driver.

#[path = "../../../tests/support/gpu.rs"]
mod gpu;

use pianola_cpu::{CpuOptions, Level};
use pianola_engine::{Engine, EngineError, HybridRecording, LoadOptions, LogitRows};
use pianola_formats::{TensorType, npy};
use pianola_model::shape;
use pianola_plan::{DeviceKind, Numeric, Step};
use pianola_vulkan::{Budget, Gpu, Tuning, VulkanOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case)
}

fn on(gpu: &Arc<Gpu>, memory: Option<u64>) -> Option<VulkanOptions> {
    Some(VulkanOptions { gpu: gpu.clone(), memory, tuning: Tuning::default(), parallelism: None })
}

fn exact() -> LoadOptions {
    LoadOptions {
        cpu: CpuOptions { threads: 2, ..CpuOptions::default() },
        numeric: Some(Numeric::Exact),
        max_logit_rows: 64,
        ..LoadOptions::default()
    }
}

fn load(path: &Path, options: LoadOptions) -> Result<Engine, EngineError> {
    Engine::load(path, options, &mut |_, _| ())
}

/// All logits of `tokens`, fed `chunk` rows at a time.
fn logits(engine: &mut Engine, tokens: &[u32], chunk: usize) -> Vec<f32> {
    engine.reset();
    let mut all = Vec::new();
    engine
        .feed(tokens, chunk, LogitRows::From(0), &mut |_, row| all.extend_from_slice(row))
        .unwrap();
    all
}

/// The last row's logits, the chunks before it wanting none: they follow one another unwaited for.
fn last_logits(engine: &mut Engine, tokens: &[u32], chunk: usize) -> Vec<f32> {
    engine.reset();
    let mut last = Vec::new();
    engine.feed(tokens, chunk, LogitRows::Last, &mut |_, row| last = row.to_vec()).unwrap();
    last
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len());
    let range = expected.iter().copied().fold(f32::NEG_INFINITY, f32::max)
        - expected.iter().copied().fold(f32::INFINITY, f32::min);
    // Written so that NaN is the largest.
    let worse = |worst: f32, (a, b): (&f32, &f32)| {
        let difference = (a - b).abs();
        if difference <= worst { worst } else { difference }
    };
    let error = expected.iter().zip(found).fold(0.0, worse);
    println!("{what}: {:.1e} of the range", error / range);
    assert!(error <= 2e-4 * range, "{what}: {error}");
}

/// However many layers are on the GPU, a golden case has its logits, in decode and in chunks.
#[test]
fn two_devices_compute_what_one_does() {
    let gpu = gpu::open();
    for (case, on_gpu, level) in [
        ("gemma3", 2, Level::best()),
        ("gemma3", 1, Level::Reference),
        ("qwen2-window", 1, Level::best()),
    ] {
        let path = golden(case);
        let tokens = npy::read_tokens(path.join("tokens.npy")).unwrap();
        let mut alone = load(&path, exact()).unwrap();
        let options = LoadOptions { gpu: on(&gpu, None), layers_on_gpu: Some(on_gpu), ..exact() };
        let cpu = CpuOptions { level, ..options.cpu };
        let mut both = load(&path, LoadOptions { cpu, ..options }).unwrap();
        let placement = both.placement();
        assert_eq!(placement.layers - placement.cpu_layers, on_gpu);
        assert!(placement.cpu_bytes > 0 && placement.gpu.is_some(), "{placement}");
        assert!(both.recording().as_any().is::<HybridRecording>());
        for chunk in [512, 7, 1] {
            let expected = logits(&mut alone, &tokens, chunk);
            let what = format!("{case}, {on_gpu} layers on the GPU, chunks of {chunk}");
            assert_close(&logits(&mut both, &tokens, chunk), &expected, &what);
            let expected = last_logits(&mut alone, &tokens, chunk);
            assert_close(&last_logits(&mut both, &tokens, chunk), &expected, &what);
        }
        // As on a device whose memory the processor does not see.
        let hybrid = both.recording_mut().as_any_mut().downcast_mut::<HybridRecording>().unwrap();
        hybrid.gpu_mut().stage_received().unwrap();
        let expected = last_logits(&mut alone, &tokens, 7);
        assert_close(&last_logits(&mut both, &tokens, 7), &expected, "through a staging buffer");
        let statistics = both.recording().statistics();
        assert!(statistics.plays > 0 && statistics.dispatches > 0 && statistics.submits > 0);
    }
}

/// Every kernel on either device beside the reference, quantised, for a prompt and for a token.
#[test]
fn kernels_on_both_sides_are_right() {
    let gpu = gpu::open();
    let options = LoadOptions {
        gpu: on(&gpu, None),
        layers_on_gpu: Some(1),
        context: Some(64),
        ..LoadOptions::default()
    };
    let small = shape("smollm2:135m").unwrap().reduced(2, 512);
    let mut reference_model =
        Engine::random_reference_model(&small, TensorType::Q4_0, &options).unwrap();
    let mut engine = Engine::random(&small, TensorType::Q4_0, options, &mut |_, _| ()).unwrap();
    let tokens: Vec<u32> = (0..10).map(|at| at * 37 + 5).collect();
    // Played once, so that every position has its page.
    engine.feed(&tokens, 512, LogitRows::Last, &mut |_, _| ()).unwrap();
    for rows in [0..9, 9..10] {
        let mut step = Step::default();
        rows.clone().for_each(|at| step.push(tokens[at], 0, at as u32, at + 1 == rows.end));
        engine.recording_mut().poison().unwrap();
        let report = reference_model.check_step(engine.recording_mut(), &step).unwrap().unwrap();
        println!("{} kernels, worst error {:.0} %", report.kernels, 100.0 * report.worst_share);
        assert_eq!(report.kernels, engine.plan().ops.len());
    }
}

/// A budget too small for all moves layers, then refuses; what was predicted is what is taken.
#[test]
fn a_small_budget_moves_layers_to_the_processor() {
    let gpu = gpu::open();
    let path = golden("gemma3");
    let options =
        |memory| LoadOptions { gpu: on(&gpu, memory), max_rows: 8, max_logit_rows: 8, ..exact() };
    let whole = load(&path, options(None)).unwrap();
    assert_eq!(whole.placement().cpu_layers, 0);
    let budget = Budget::of(&gpu, None);
    let all = budget.needed(whole.plan()).unwrap();
    // Below the size of a whole block each region gets one of its own: what is needed is taken.
    let exactly = load(&path, options(Some(all))).unwrap();
    assert_eq!(exactly.placement().cpu_layers, 0, "{}", exactly.placement());
    let taken = exactly.placement().gpu.unwrap();
    assert_eq!(taken.device_local + taken.host, all);

    let mut moved = load(&path, options(Some(all - 1))).unwrap();
    let placement = moved.placement();
    assert!((1..=3).contains(&placement.cpu_layers), "{placement}");
    let taken = placement.gpu.unwrap();
    assert!(taken.device_local + taken.host < all, "{placement}");
    assert!(placement.to_string().starts_with("layer"), "{placement}");
    assert!(placement.to_string().contains("the head on vulkan"), "{placement}");
    let tokens = npy::read_tokens(path.join("tokens.npy")).unwrap();
    let expected = logits(&mut load(&path, exact()).unwrap(), &tokens, 5);
    assert_close(&logits(&mut moved, &tokens, 5), &expected, "within a budget");

    let head = moved.plan().weight_bytes_on(DeviceKind::Vulkan) / 4;
    let refused = load(&path, options(Some(head))).err().expect("no room for the head");
    let message = refused.to_string();
    assert!(matches!(refused, EngineError::GpuMemory(_)), "{message}");
    for part in ["even the head", "--gpu-memory", "MB", "--device cpu"] {
        assert!(message.contains(part), "{message}");
    }
}

/// Pages of a long context give way before layers do, and come back where nobody asked for them.
#[test]
fn a_long_context_gives_way_before_layers_do() {
    let gpu = gpu::open();
    let options = |memory, context| LoadOptions {
        gpu: on(&gpu, memory),
        context,
        max_rows: 8,
        ..LoadOptions::default()
    };
    let small = shape("smollm2:135m").unwrap().reduced(4, 512);
    let plan = |options: &LoadOptions| Engine::plan_of_random(&small, TensorType::Q4_0, options);
    let budget = Budget::of(&gpu, None);
    let longest = plan(&options(None, None)).unwrap();
    assert_eq!((longest.options.cpu_layers, longest.options.context), (0, longest.graph.context));
    let shorter = plan(&options(None, Some(6000))).unwrap();
    let memory = Some(budget.needed(&shorter).unwrap());
    let fitted = plan(&options(memory, None)).unwrap();
    assert_eq!((fitted.options.cpu_layers, fitted.options.context), (0, 5120));
    let asked = plan(&options(memory, Some(8192))).unwrap();
    assert_eq!(asked.options.context, 8192);
    assert!(asked.options.cpu_layers > 0);
}

#[test]
fn impossible_numbers_of_layers_are_refused() {
    let gpu = gpu::open();
    let path = golden("gemma3");
    let refusal = |gpu: Option<VulkanOptions>, count| {
        let options = LoadOptions { gpu, layers_on_gpu: Some(count), ..exact() };
        let error = load(&path, options).err().expect("an impossible number");
        assert!(matches!(error, EngineError::Option(_)), "{error}");
        error.to_string()
    };
    assert!(refusal(on(&gpu, None), 4).contains("3 layers"));
    assert!(refusal(on(&gpu, None), 0).contains("--device cpu"));
    let without = LoadOptions { layers_on_gpu: Some(1), ..exact() };
    let without = load(&path, without).err().expect("there is no GPU");
    assert!(matches!(without, EngineError::LayersWithoutGpu), "{without}");
    let options = LoadOptions { gpu: on(&gpu, Some(100_000)), layers_on_gpu: Some(2), ..exact() };
    let message = load(&path, options).err().expect("too little memory").to_string();
    assert!(message.contains("layers 1 to 2 and the head"), "{message}");
    assert!(message.contains("fewer --layers-on-gpu"), "{message}");
}
