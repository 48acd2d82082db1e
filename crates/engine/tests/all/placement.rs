//! A model on several devices: the processor, Vulkan devices (by default Mesa's software driver), and
//! a third kind that works by itself in memory that nobody else can address.

use crate::support::gpu;
use crate::support::remote;
use crate::support::remote::RemoteDevice;
use pianola_cpu::{CpuDevice, CpuOptions, Level};
use pianola_engine::sampler::Sampling;
use pianola_engine::{Engine, EngineError, Event, LoadOptions, LogitRows, Request};
use pianola_formats::{TensorType, npy};
use pianola_model::shape;
use pianola_plan::{Device, DeviceId, Numeric, PlanText, Step};
use pianola_vulkan::{Gpu, VulkanDevice, VulkanOptions, VulkanRecording};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const CPU: CpuOptions = CpuOptions::bare(Level::Portable, 2);

fn cpu(level: Level) -> CpuOptions {
    CpuOptions { level, ..CPU }
}

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case)
}

fn on(gpu: &Arc<Gpu>, memory: Option<u64>) -> VulkanOptions {
    VulkanOptions { memory, ..gpu::options(gpu) }
}

/// Exact mode on a GPU, if there is one, and the processor.
fn exact(gpu: Option<VulkanOptions>) -> LoadOptions {
    LoadOptions {
        devices: LoadOptions::devices(gpu.into_iter().collect(), cpu(Level::best())),
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

/// A golden case's logits by several devices equal those by one, in decode and in chunks.
#[track_caller]
fn assert_same_as_alone(case: &str, both: &mut Engine, what: &str) {
    let path = golden(case);
    let tokens = npy::read_tokens(path.join("tokens.npy")).unwrap();
    let mut alone = load(&path, exact(None)).unwrap();
    for chunk in [512, 7, 1] {
        let expected = logits(&mut alone, &tokens, chunk);
        let what = format!("{case}, {what}, chunks of {chunk}");
        assert_close(&logits(both, &tokens, chunk), &expected, &what);
        let expected = last_logits(&mut alone, &tokens, chunk);
        assert_close(&last_logits(both, &tokens, chunk), &expected, &what);
    }
}

/// However many layers are on the GPU, a golden case has its logits.
#[test]
fn two_devices_compute_what_one_does() {
    let gpu = gpu::open();
    for (case, on_gpu, level) in [
        ("gemma3", 2, Level::best()),
        ("gemma3", 1, Level::Reference),
        ("qwen2-window", 1, Level::best()),
        ("phi3-long", 1, Level::best()),
    ] {
        let devices = LoadOptions::devices(vec![on(&gpu, None)], cpu(level));
        let options = LoadOptions { devices, layers_on_first: Some(on_gpu), ..exact(None) };
        let mut both = load(&golden(case), options).unwrap();
        let placement = both.placement();
        let [first, last] = &placement.parts[..] else { panic!("{placement}") };
        assert_eq!((first.device.as_str(), last.device.as_str()), ("cpu", "vulkan"));
        assert_eq!((first.head, last.head, last.layers.len()), (false, true, on_gpu));
        assert!(first.weight_bytes > 0 && last.heaps.is_some(), "{placement}");
        assert_same_as_alone(case, &mut both, &format!("{on_gpu} layers on the GPU"));
        // As on a device whose memory the processor does not see.
        both.recording_mut::<VulkanRecording>().unwrap().stage_transfers().unwrap();
        assert_same_as_alone(case, &mut both, "through staging memory");
        let statistics = both.play_statistics();
        assert!(statistics.plays > 0 && statistics.dispatches > 0 && statistics.submits > 0);
    }
}

/// Two logical devices of one driver share a model, and the processor has the rest.
#[test]
#[ignore = "takes a software driver most of a minute: scripts/acceptance runs it"]
fn two_gpus_and_the_processor_share_a_model() {
    let gpus = vec![on(&gpu::open(), None), on(&gpu::open(), None)];
    let devices = LoadOptions::devices(gpus, cpu(Level::best()));
    let names: Vec<String> = devices.iter().map(|device| device.spec().name).collect();
    // Both are of one physical device.
    assert!(names[0].starts_with("vulkan:") && names[1] == format!("{}.1", names[0]), "{names:?}");
    assert_eq!(names[2], "cpu");
    let share = |counts: &[usize]| {
        let devices = devices.iter().zip(counts).map(|(device, &layers)| {
            Arc::new(remote::Holding { device: device.clone(), layers }) as Arc<dyn Device>
        });
        load(&golden("gemma3"), LoadOptions { devices: devices.collect(), ..exact(None) }).unwrap()
    };
    let mut two = share(&[2, 1, 0]);
    assert_eq!(two.plan().segments.len(), 2);
    assert_eq!(two.plan().placement_text().matches("vulkan:").count(), 2);
    assert_same_as_alone("gemma3", &mut two, "on two Vulkan devices");
    let mut three = share(&[1, 1, 1]);
    assert_eq!(three.plan().segments.len(), 3);
    assert_same_as_alone("gemma3", &mut three, "on two Vulkan devices and the processor");
}

/// A device of a kind that this crate has never heard of plays segments, beside others and alone.
#[test]
fn a_third_kind_of_device_plays_segments() {
    let gpu = gpu::open();
    let remote: Arc<dyn Device> = Arc::new(RemoteDevice::default());
    let vulkan: Arc<dyn Device> = Arc::new(VulkanDevice::new(on(&gpu, None)));
    let processor: Arc<dyn Device> = Arc::new(CpuDevice { options: cpu(Level::best()) });
    for (devices, layers) in [
        (vec![remote.clone()], None),
        (vec![remote.clone(), processor.clone()], Some(2)),
        (vec![processor, remote.clone()], Some(1)),
        (vec![remote.clone(), vulkan], Some(1)),
    ] {
        let options = LoadOptions { devices, layers_on_first: layers, ..exact(None) };
        let mut engine = load(&golden("gemma3"), options).unwrap();
        let what = engine.plan().placement_text();
        assert!(what.contains("on remote"), "{what}");
        let ceilings = engine.measure().unwrap();
        let (plan, rows) = (engine.plan(), 1);
        let text = PlanText { plan, ceilings: &ceilings, lanes: 2, rows, context: 1, full: true }
            .to_string();
        assert!(text.contains("remote"), "{text}");
        assert_same_as_alone("gemma3", &mut engine, &what);
    }
}

/// The tokens of six requests at once on some devices, and the submissions that they took.
fn answers(
    devices: Vec<Arc<dyn Device>>,
    layers_on_first: Option<usize>,
    overlap: bool,
    sampling: &Sampling,
) -> (Vec<Vec<u32>>, u64) {
    let options = LoadOptions { devices, layers_on_first, overlap, lanes: 6, ..exact(None) };
    let mut engine = load(&golden("gemma3"), options).unwrap();
    let texts = Arc::new(Mutex::new(vec![Vec::new(); 6]));
    for lane in 0..6usize {
        let prompt = (0..5 + lane as u32).map(|at| (at * 31 + lane as u32) % 200).collect();
        let request = Request {
            max_tokens: Some(12),
            ignore_end: true,
            seed: Some(lane as u64),
            sampling: sampling.clone(),
            ..Request::new(prompt)
        };
        let texts = texts.clone();
        let sink = Box::new(move |event: Event<'_>| {
            if let Event::Finished(answer) = event {
                texts.lock().unwrap()[lane] = answer.tokens;
            }
            ControlFlow::Continue(())
        });
        engine.submit_to(request, sink).unwrap();
    }
    while engine.is_busy() {
        engine.step().unwrap();
    }
    let texts = texts.lock().unwrap().clone();
    (texts, engine.play_statistics().submits)
}

/// Halves of a step that overlap compute what a whole step does.
#[test]
fn lanes_in_halves_compute_what_they_do_together() {
    let first: Arc<dyn Device> =
        Arc::new(RemoteDevice { arithmetic_bound: true, ..RemoteDevice::default() });
    let second: Arc<dyn Device> = Arc::new(RemoteDevice::beside("other"));
    let greedy = Sampling::greedy();
    let (expected, _) = answers(vec![Arc::new(CpuDevice::default())], None, true, &greedy);
    let split = || vec![first.clone(), second.clone()];
    let (halves, submits) = answers(split(), Some(2), true, &greedy);
    let (whole, fewer) = answers(split(), Some(2), false, &greedy);
    assert_eq!(halves, expected);
    assert_eq!(whole, expected);
    assert!(submits > fewer, "{submits} submissions in halves, {fewer} without");
}

/// The same where a GPU samples each half in its slot.
#[test]
fn halves_are_sampled_on_a_gpu() {
    let gpu = gpu::open();
    let sampling = Sampling { temperature: 0.7, top_p: 0.9, ..Sampling::default() };
    let on_gpu = || -> Arc<dyn Device> { Arc::new(VulkanDevice::new(on(&gpu, None))) };
    let bound = Arc::new(remote::ArithmeticBound { device: on_gpu() });
    let second: Arc<dyn Device> = Arc::new(RemoteDevice::beside("other"));
    let (expected, _) = answers(vec![on_gpu()], None, true, &sampling);
    let (halves, submits) = answers(vec![bound.clone(), second.clone()], Some(2), true, &sampling);
    let (whole, fewer) = answers(vec![bound, second], Some(2), false, &sampling);
    assert_eq!(halves, expected);
    assert_eq!(whole, expected);
    assert!(submits > fewer, "{submits} submissions in halves, {fewer} without");
}

/// Where the head is on the GPU the GPU samples, also for a model that it shares, and says the same.
#[test]
fn a_shared_model_is_sampled_where_its_head_is() {
    let gpu = gpu::open();
    let answer = |layers| {
        let options = LoadOptions { layers_on_first: layers, ..exact(Some(on(&gpu, None))) };
        let mut engine = load(&golden("gemma3"), options).unwrap();
        let request = Request {
            max_tokens: Some(12),
            ignore_end: true,
            seed: Some(3),
            logprobs: Some(2),
            sampling: Sampling { temperature: 0.8, top_p: 0.9, ..Sampling::default() },
            ..Request::new(vec![5, 9, 14])
        };
        assert_eq!(engine.sampling_unsupported(&request), None);
        engine.generate(&request, &mut |_| ControlFlow::Continue(())).unwrap().tokens
    };
    assert_eq!(answer(Some(1)), answer(None));
}

/// Every kernel on either device beside the reference, quantised, for a prompt and for a token.
#[test]
fn kernels_on_both_sides_are_right() {
    let gpu = gpu::open();
    let options = LoadOptions {
        devices: LoadOptions::devices(vec![on(&gpu, None)], CPU),
        layers_on_first: Some(1),
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
        engine.probe_mut().poison().unwrap();
        let report = reference_model.check_step(engine.probe_mut(), &step).unwrap().unwrap();
        println!("{} kernels, worst error {:.0} %", report.kernels, 100.0 * report.worst_share);
        assert_eq!(report.kernels, engine.plan().ops.len());
    }
}

/// Bytes that a recording of a plan allocates on its GPU.
fn needed(gpu: &Arc<Gpu>, plan: &pianola_plan::Plan) -> u64 {
    let id = plan.devices.iter().position(|device| device.name == "vulkan").unwrap();
    let device = VulkanDevice::new(on(gpu, None));
    device.allocations(plan, DeviceId(id)).unwrap().iter().map(|allocation| allocation.bytes).sum()
}

/// A budget too small for all moves layers, then refuses; what was predicted is what is taken.
#[test]
fn a_small_budget_moves_layers_to_the_processor() {
    let gpu = gpu::open();
    let path = golden("gemma3");
    let options =
        |memory| LoadOptions { max_rows: 8, max_logit_rows: 8, ..exact(Some(on(&gpu, memory))) };
    let taken = |engine: &Engine| {
        let heaps = engine.placement().head().unwrap().heaps.unwrap();
        heaps.device_local + heaps.host
    };
    let whole = load(&path, options(None)).unwrap();
    assert_eq!(whole.placement().layers_apart(), 0);
    let all = needed(&gpu, whole.plan());
    // Below the size of a whole block each region gets one of its own: what is needed is taken.
    let exactly = load(&path, options(Some(all))).unwrap();
    assert_eq!(exactly.placement().layers_apart(), 0, "{}", exactly.placement());
    assert_eq!(taken(&exactly), all);

    let mut moved = load(&path, options(Some(all - 1))).unwrap();
    let placement = moved.placement();
    assert!((1..=3).contains(&placement.layers_apart()), "{placement}");
    assert!(taken(&moved) < all, "{placement}");
    assert_eq!(taken(&moved), needed(&gpu, moved.plan()));
    assert!(placement.to_string().contains(" on cpu "), "{placement}");
    assert!(placement.to_string().contains("the head on vulkan"), "{placement}");
    let tokens = npy::read_tokens(path.join("tokens.npy")).unwrap();
    let expected = logits(&mut load(&path, exact(None)).unwrap(), &tokens, 5);
    assert_close(&logits(&mut moved, &tokens, 5), &expected, "within a budget");

    let refused = load(&path, options(Some(10_000))).err().expect("no room for the head");
    let message = refused.to_string();
    assert!(matches!(refused, EngineError::NoRoom { .. }), "{message}");
    for part in ["even the head", "MB", "vulkan"] {
        assert!(message.contains(part), "{message}");
    }
}

/// Pages of a long context give way before layers do, and come back where nobody asked for them.
#[test]
fn a_long_context_gives_way_before_layers_do() {
    let gpu = gpu::open();
    let options = |memory, context| LoadOptions {
        devices: LoadOptions::devices(vec![on(&gpu, memory)], CPU),
        context,
        max_rows: 8,
        ..LoadOptions::default()
    };
    let small = shape("smollm2:135m").unwrap().reduced(4, 512);
    let plan = |options: &LoadOptions| Engine::plan_of_random(&small, TensorType::Q4_0, options);
    let longest = plan(&options(None, None)).unwrap();
    assert_eq!((longest.devices.len(), longest.options.context), (1, longest.graph.context));
    let shorter = plan(&options(None, Some(6000))).unwrap();
    let memory = Some(needed(&gpu, &shorter));
    let fitted = plan(&options(memory, None)).unwrap();
    assert_eq!((fitted.devices.len(), fitted.options.context), (1, 5120));
    let asked = plan(&options(memory, Some(8192))).unwrap();
    assert_eq!((asked.devices.len(), asked.options.context), (2, 8192));
}

#[test]
fn impossible_numbers_of_layers_are_refused() {
    let gpu = gpu::open();
    let path = golden("gemma3");
    let refusal = |gpu: Option<VulkanOptions>, count| {
        let options = LoadOptions { layers_on_first: Some(count), ..exact(gpu) };
        load(&path, options).err().expect("an impossible number")
    };
    let error = refusal(Some(on(&gpu, None)), 0);
    assert!(matches!(error, EngineError::NoLayersOnFirst), "{error}");
    // More than there are are all.
    let all = LoadOptions { layers_on_first: Some(99), ..exact(Some(on(&gpu, None))) };
    assert_eq!(load(&path, all).unwrap().plan().devices.len(), 1);
    assert!(matches!(refusal(None, 1), EngineError::OneDevice));
    let nowhere = LoadOptions { devices: Vec::new(), ..exact(None) };
    assert!(matches!(load(&path, nowhere), Err(EngineError::NoDevice)));
    let message = refusal(Some(on(&gpu, Some(100_000))), 2).to_string();
    assert!(message.contains("layers 1 to 2 and the head"), "{message}");
}

/// What somebody was told.
type Lines = Arc<Mutex<Vec<String>>>;

/// A device that takes products over from one that has everything.
fn accelerated(main: Vec<Arc<dyn Device>>) -> (LoadOptions, RemoteDevice, Lines) {
    let remote = RemoteDevice { takes_over: true, ..RemoteDevice::default() };
    let told = Arc::new(Mutex::new(Vec::new()));
    let lines = told.clone();
    let options = LoadOptions {
        devices: main,
        accelerators: vec![Arc::new(remote.clone())],
        warn: Some(Arc::new(move |line: &str| lines.lock().unwrap().push(line.to_string()))),
        ..exact(None)
    };
    (options, remote, told)
}

/// Products of prompts on a further device, in halves: the logits stay what they are, and few rows stay
/// where they were placed.
#[test]
fn a_further_device_takes_products_over() {
    let gpu = gpu::open();
    let processor: Arc<dyn Device> = Arc::new(CpuDevice { options: cpu(Level::best()) });
    let vulkan: Arc<dyn Device> = Arc::new(VulkanDevice::new(on(&gpu, None)));
    for main in [processor, vulkan] {
        let name = main.spec().name;
        let (options, _, told) = accelerated(vec![main]);
        let mut engine = load(&golden("gemma3"), options).unwrap();
        let plan = engine.plan();
        assert_eq!(plan.segmentations.len(), 4, "{:?}", plan.segmentations);
        assert!(
            plan.remarks.iter().any(|remark| remark.contains("no speed")),
            "{:?}",
            plan.remarks
        );
        assert!(plan.placement_text().contains("products of prompts on remote"));
        assert_same_as_alone("gemma3", &mut engine, &format!("{name} and products on remote"));
        let used: Vec<_> = engine.device_use().collect();
        assert!(used[1].busy_seconds > 0.0 && used[1].failures == 0, "{used:?}");
        assert!(told.lock().unwrap().is_empty());
        // A single row is not offered.
        engine.start_timeline();
        last_logits(&mut engine, &[1, 2, 3], 1);
        assert!(engine.take_timeline().iter().all(|span| span.device == 0));
        engine.start_timeline();
        last_logits(&mut engine, &[5; 16], 16);
        let spans = engine.take_timeline();
        let both = |slot| spans.iter().any(|span| span.device == 1 && span.slot == slot);
        assert!(both(0) && both(1), "both halves pass through the remote: {spans:?}");
    }
}

/// Wherever a device fails in a step, the step is computed without it.
#[test]
fn a_device_that_fails_is_done_without() {
    let processor: Arc<dyn Device> = Arc::new(CpuDevice { options: cpu(Level::best()) });
    let path = golden("gemma3");
    let tokens = npy::read_tokens(path.join("tokens.npy")).unwrap();
    let mut alone = load(&path, exact(None)).unwrap();
    let expected = logits(&mut alone, &tokens, 8);
    for failing in [1, 2, 3, 5, 8] {
        let (options, remote, told) = accelerated(vec![processor.clone()]);
        let mut engine = load(&path, options).unwrap();
        remote.failing.store(failing, std::sync::atomic::Ordering::SeqCst);
        let what = format!("with a failure in submission {failing}");
        assert_close(&logits(&mut engine, &tokens, 8), &expected, &what);
        let used: Vec<_> = engine.device_use().collect();
        assert!(used[1].failures == 1 && used[0].failures == 0, "{used:?}");
        let told = told.lock().unwrap();
        assert!(told.len() == 1 && told[0].contains("computed without remote"), "{told:?}");
    }
}

/// Parts of the model by name: feed-forward on the processor, the rest on the GPU, and the other way
/// round.
#[test]
fn parts_are_placed_by_name() {
    use pianola_plan::ModelPart;
    let gpu = gpu::open();
    for place in [
        vec![(ModelPart::Ffn, "cpu".to_string())],
        vec![(ModelPart::Attention, "cpu".to_string()), (ModelPart::Head, "cpu".to_string())],
    ] {
        let options = LoadOptions { place: place.clone(), ..exact(Some(on(&gpu, None))) };
        let mut engine = load(&golden("gemma3"), options).unwrap();
        let layers = engine.plan().layers();
        assert!(engine.plan().segments.len() > layers, "{}", engine.plan().segments.len());
        assert_same_as_alone("gemma3", &mut engine, &format!("{place:?}"));
    }
    let place = vec![(ModelPart::Ffn, "npu".to_string())];
    let error = load(&golden("gemma3"), LoadOptions { place, ..exact(None) }).err().unwrap();
    assert!(error.to_string().contains("'npu'"), "{error}");
}
