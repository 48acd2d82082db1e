//! Models on a Vulkan device, by default Mesa's software driver: the golden cases in exact mode,
//! real models in fast mode beside the processor, and a generation under the validation layer.

use crate::support::gpu;
use crate::support::skip;
use crate::support::validation;
use pianola_cpu::CpuOptions;
use pianola_engine::{Engine, LoadOptions, LogitRows, Request, sampler::Sampling};
use pianola_formats::{TensorType, npy};
use pianola_plan::{Device, KvType, Numeric, Recording, Step};
use pianola_text::SpecialTokens;
use pianola_vulkan::{Gpu, VulkanOptions, VulkanRecording};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn argmax(row: &[f32]) -> u32 {
    let best = |best: usize, index: usize| if row[index] > row[best] { index } else { best };
    (0..row.len()).fold(0, best) as u32
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    // NaN is the largest.
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |worst, one| if one > worst || one.is_nan() { one } else { worst })
}

/// `count` greedy tokens behind what the engine has, whose last logits are `row`'s.
fn greedy(engine: &mut Engine, row: &[f32], count: usize) -> Vec<u32> {
    let mut found = vec![argmax(row)];
    while found.len() < count {
        let last = [found[found.len() - 1]];
        engine.feed(&last, 1, LogitRows::Last, &mut |_, row| found.push(argmax(row))).unwrap();
    }
    found
}

/// A golden case in exact mode, however the prompt is cut: logits from position `first` on within
/// the processor's tolerance, greedy tokens equal.
fn check_golden(gpu: &Arc<Gpu>, folder: &Path, chunks: &[usize], first: usize) {
    check_golden_with(gpu, folder, chunks, first, &|options| options);
}

/// The same with other options.
fn check_golden_with(
    gpu: &Arc<Gpu>,
    folder: &Path,
    chunks: &[usize],
    first: usize,
    change: &dyn Fn(LoadOptions) -> LoadOptions,
) {
    let tokens = npy::read_tokens(folder.join("tokens.npy")).unwrap();
    let expected_greedy = npy::read_tokens(folder.join("greedy.npy")).unwrap();
    let options = LoadOptions {
        devices: on(Some(gpu::options(gpu))),
        numeric: Some(Numeric::Exact),
        // It decides which of Phi 3's rotary divisors are used.
        context: Some(tokens.len() + expected_greedy.len()),
        max_logit_rows: 64,
        ..LoadOptions::default()
    };
    let mut engine = Engine::load(folder, change(options), &mut |_, _| ()).unwrap();
    let (shape, expected) = npy::read_f32(folder.join("logits.npy")).unwrap();
    assert_eq!(shape[0], tokens.len());
    let expected = &expected[first * shape[1]..];
    let range = expected.iter().copied().fold(f32::NEG_INFINITY, f32::max)
        - expected.iter().copied().fold(f32::INFINITY, f32::min);
    for &chunk in chunks {
        engine.reset();
        let mut found = Vec::new();
        let mut visit = |_: usize, row: &mut [f32]| found.extend_from_slice(row);
        engine.feed(&tokens, chunk, LogitRows::From(first), &mut visit).unwrap();
        assert_eq!(found.len(), expected.len());
        let error = largest_difference(expected, &found);
        println!("{} chunk {chunk}: {:.1e} of the range", folder.display(), error / range);
        assert!(error <= 2e-4 * range, "{} chunk {chunk}: {error}", folder.display());
        let last = &found[found.len() - shape[1]..];
        let found = greedy(&mut engine, last, expected_greedy.len());
        assert_eq!(found, expected_greedy, "{} chunk {chunk}, greedy", folder.display());
    }
}

/// A lost device is an error that says so, and the model can be loaded again on a new one.
#[test]
fn a_lost_device_is_noticed_and_can_be_opened_again() {
    let load = |gpu: &Arc<Gpu>| {
        let options =
            LoadOptions { devices: on(Some(gpu::options(gpu))), ..LoadOptions::default() };
        Engine::load(&golden("gemma3"), options, &mut |_, _| ()).unwrap()
    };
    let gpu = gpu::open();
    let mut engine = load(&gpu);
    engine.feed(&[3, 4], 2, LogitRows::Last, &mut |_, _| ()).unwrap();
    assert!(!engine.is_lost());
    gpu.lose();
    let error = engine.feed(&[5], 1, LogitRows::Last, &mut |_, _| ()).unwrap_err().to_string();
    assert!(error.contains("was lost during a play"), "{error}");
    assert!(engine.is_lost());
    drop(engine);
    let mut again = load(&gpu::open());
    again.feed(&[3, 4, 5], 3, LogitRows::Last, &mut |_, _| ()).unwrap();
}

/// A GPU, if there is one, and the processor.
fn on(gpu: Option<VulkanOptions>) -> Vec<Arc<dyn Device>> {
    let cpu = CpuOptions { memory: Some(16 << 30), ..CpuOptions::default() };
    LoadOptions::devices(gpu.into_iter().collect(), cpu)
}

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case)
}

#[test]
fn golden_cases() {
    let gpu = gpu::open();
    for case in ["gemma3", "llama3-rope", "llama-bias", "qwen2-window", "qwen2-yarn"] {
        // Chunks of 7 have kernels of their own, which take longer to compile than to check.
        let odd = if case == "gemma3" { 7 } else { 9 };
        check_golden(&gpu, &golden(case), &[512, odd, 1], 0);
    }
    for case in ["qwen3", "gemma2", "mistral", "phi3-short", "phi3-long"] {
        check_golden(&gpu, &golden(case), &[512, 1], 0);
    }
}

/// A kernel for every node of the graph.
#[test]
fn golden_cases_without_fusion() {
    let gpu = gpu::open();
    for case in ["gemma3", "gemma2", "phi3-long"] {
        let plain = |options| LoadOptions { fusion: false, ..options };
        check_golden_with(&gpu, &golden(case), &[512, 1], 0, &plain);
    }
}

/// The last layer and the head on the GPU, the layers before it on the processor.
#[test]
fn golden_cases_split_between_devices() {
    let gpu = gpu::open();
    let split = |options| LoadOptions { layers_on_first: Some(1), ..options };
    for case in ["gemma3", "llama3-rope", "llama-bias", "qwen3", "gemma2", "mistral", "phi3-short"]
    {
        check_golden_with(&gpu, &golden(case), &[512, 1], 0, &split);
    }
    let Some(root) = std::env::var_os("PIANOLA_TEST_GOLDEN").map(PathBuf::from) else {
        skip::skip("PIANOLA_TEST_GOLDEN names no folder");
        return;
    };
    for case in ["gemma3-a", "gemma2-a", "llama-a", "qwen3-a"] {
        check_golden_with(&gpu, &root.join(case), &[512], 0, &split);
    }
    check_golden_with(&gpu, &root.join("gemma3-d"), &[512], 1024, &split);
}

/// Keys and values in bytes: the processor's result, but for values that rounding takes to another
/// byte on one of them.
#[test]
fn bytes_of_keys_and_values_mean_the_same_on_both() {
    let folder = golden("gemma3");
    let tokens = npy::read_tokens(folder.join("tokens.npy")).unwrap();
    let logits = |gpu: Option<VulkanOptions>, kv_type: KvType, chunk: usize| {
        let (numeric, kv_type) = (Some(Numeric::Exact), Some(kv_type));
        let devices = on(gpu);
        let max_logit_rows = 64;
        let options =
            LoadOptions { devices, numeric, kv_type, max_logit_rows, ..LoadOptions::default() };
        let mut engine = Engine::load(&folder, options, &mut |_, _| ()).unwrap();
        let mut found = Vec::new();
        let mut visit = |_: usize, row: &mut [f32]| found.extend_from_slice(row);
        engine.feed(&tokens, chunk, LogitRows::From(0), &mut visit).unwrap();
        found
    };
    let expected = logits(None, KvType::Q8, 512);
    // What bytes do to these logits at all.
    let rounding = largest_difference(&logits(None, KvType::F32, 512), &expected);
    let gpu = gpu::open();
    for chunk in [512, 1] {
        let found = logits(Some(gpu::options(&gpu)), KvType::Q8, chunk);
        let difference = largest_difference(&expected, &found);
        println!("chunk {chunk}: {difference:.1e} apart, {rounding:.1e} from f32");
        assert!(rounding > 0.0 && difference < 0.25 * rounding, "{difference} of {rounding}");
    }
}

#[test]
fn more_golden_cases() {
    let Some(root) = std::env::var_os("PIANOLA_TEST_GOLDEN").map(PathBuf::from) else {
        skip::skip("PIANOLA_TEST_GOLDEN names no folder");
        return;
    };
    let gpu = gpu::open();
    check_golden(&gpu, &root.join("gemma3-a"), &[512], 0);
    check_golden(&gpu, &root.join("llama-a"), &[512, 7], 0);
    check_golden(&gpu, &root.join("qwen3-a"), &[512, 1], 0);
    check_golden(&gpu, &root.join("gemma2-a"), &[512, 1], 0);
    // 1,100 tokens: across pages, chunks and the window. Where logits are wanted plays are small,
    // so those of the first 1,024 are not.
    check_golden(&gpu, &root.join("gemma3-d"), &[512], 1024);
}

fn load(name: &str, gpu: Option<VulkanOptions>, numeric: Numeric) -> Engine {
    let folder = std::env::var_os("PIANOLA_TEST_MODELS")
        .expect("PIANOLA_TEST_MODELS is not set: run scripts/test, which fetches the models");
    let numeric = Some(numeric);
    let options =
        LoadOptions { devices: on(gpu), numeric, context: Some(128), ..LoadOptions::default() };
    Engine::load(&PathBuf::from(folder).join(name), options, &mut |_, _| ()).unwrap()
}

/// Logits behind the prompt and behind each of `answer`, which follow it one at a time.
fn forced(engine: &mut Engine, prompt: &[u32], answer: &[u32]) -> Vec<Vec<f32>> {
    engine.reset();
    let mut all = Vec::new();
    engine.feed(prompt, 512, LogitRows::Last, &mut |_, row| all.push(row.to_vec())).unwrap();
    for &token in answer {
        engine.feed(&[token], 1, LogitRows::Last, &mut |_, row| all.push(row.to_vec())).unwrap();
    }
    all
}

const PROMPT: &str =
    "The capital of France is Paris, a city on the river Seine. It is best known for";
const ANSWER: usize = 24;
/// Tokens of the answer that is not forced.
const FREE: usize = 12;

/// Root of the mean of squares.
fn rms(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, n), value| (sum + value * value, n + 1));
    (sum / count as f64).sqrt()
}

/// How far the logits of a row are from their mean.
fn spread(row: &[f32]) -> f64 {
    let mean = row.iter().map(|&logit| f64::from(logit)).sum::<f64>() / row.len() as f64;
    rms(row.iter().map(|&logit| f64::from(logit) - mean))
}

/// How far two rows of logits are apart, as a share of the first's spread.
fn distance(reference: &[f32], found: &[f32]) -> f64 {
    assert_eq!(reference.len(), found.len());
    rms(reference.iter().zip(found).map(|(a, b)| f64::from(a - b))) / spread(reference)
}

/// What fast mode's rounding does to the input of a product at most, as a share of its norm:
/// activations become multiples of a 127th of the largest of 32, so that the RMS of their errors is
/// that step over √12, and the largest of 32 values is at most √32 of their RMS.
fn rounding() -> f64 {
    32f64.sqrt() / 127.0 / 12f64.sqrt()
}

/// How far that takes the logits of a model: four inputs a layer and the head's are rounded, each
/// error independent of the others and no larger a share of the stream than of its own input.
/// Derived from the model's shape alone, so that no device is measured by another. It bounds the
/// RMS over the rows of an answer; a single row, whose logits may lie closer together, may be
/// twice as far off. (Another row's logits are some ten times as far.)
fn noise(layers: usize) -> f64 {
    rounding() * (4.0 * layers as f64 + 1.0).sqrt()
}

/// Exact mode's answer to the prompt, and its logits along it.
struct Taught {
    prompt: Vec<u32>,
    answer: Vec<u32>,
    reference: Vec<Vec<f32>>,
    /// How far fast mode may be from them.
    bound: f64,
}

impl Taught {
    fn by(name: &str) -> Taught {
        let mut exact = load(name, None, Numeric::Exact);
        let prompt = exact.text().unwrap().tokenizer.encode(PROMPT, SpecialTokens::Plain).unwrap();
        let behind_prompt = forced(&mut exact, &prompt, &[]);
        let answer = greedy(&mut exact, &behind_prompt[0], ANSWER);
        let reference = forced(&mut exact, &prompt, &answer);
        let bound = noise(exact.config().layers);
        Taught { prompt, answer, reference, bound }
    }

    /// Rows of logits, each at its place of the answer: near exact mode's, and with its best token,
    /// unless rounding may choose between the two. Returns the RMS of the distances.
    fn check(&self, rows: impl Iterator<Item = (usize, Vec<f32>)>, what: &str) -> f64 {
        let all = rms(rows.map(|(place, row)| self.check_row(place, &row, what)));
        println!("{what}: {all:.4} of {:.4}", self.bound);
        assert!(all <= self.bound, "{what}: {all:.4} of {:.4}", self.bound);
        all
    }

    fn check_row(&self, place: usize, found: &[f32], what: &str) -> f64 {
        let reference = &self.reference[place];
        let (distance, bound) = (distance(reference, found), 2.0 * self.bound);
        assert!(distance <= bound, "{what} at {place}: {distance:.4} of {bound:.4}");
        let (best, chosen) = (argmax(reference) as usize, argmax(found) as usize);
        // Each of the two may be off by three deviations.
        let most = 6.0 * distance * spread(reference);
        let margin = f64::from(reference[best] - reference[chosen]);
        assert!(margin <= most, "{what} at {place}: {margin} behind the best, of {most}");
        distance
    }
}

fn fast_mode_is_as_close_as_its_rounding(name: &str) {
    let gpu = gpu::open();
    let taught = Taught::by(name);
    let Taught { prompt, answer, reference, bound } = &taught;
    let mut processor = load(name, None, Numeric::Fast);
    let mut engine = load(name, Some(gpu::options(&gpu)), Numeric::Fast);
    for (engine, what) in [(&mut processor, "the processor"), (&mut engine, "the GPU")] {
        let found = forced(engine, prompt, answer);
        assert_eq!(found.len(), reference.len());
        let all = taught.check(found.into_iter().enumerate(), &format!("{name} on {what}"));
        // A bound that nothing comes near would show nothing.
        assert!(all > bound / 4.0, "{name} on {what}: {all:.4} of {bound:.4}");
    }

    // Left to itself it says the same, unless two tokens were so near that rounding may choose.
    let request =
        Request { max_tokens: Some(FREE), ignore_end: true, ..Request::new(prompt.clone()) };
    let free = engine.generate(&request, &mut |_| ControlFlow::Continue(())).unwrap().tokens;
    assert_eq!(free.len(), FREE);
    if let Some(at) = (0..FREE).find(|&at| free[at] != answer[at]) {
        let row = &reference[at];
        let most = 6.0 * bound * spread(row);
        let margin = f64::from(row[answer[at] as usize] - row[free[at] as usize]);
        println!("{name}: another token at {at}, {margin:.3} behind the best");
        assert!(margin <= most, "{name} token {at}: {margin} behind the best, of {most}");
    }
}

#[test]
fn smollm2_in_fast_mode() {
    fast_mode_is_as_close_as_its_rounding("smollm2.gguf");
}

#[test]
#[ignore = "takes a software driver most of a minute: scripts/acceptance runs it"]
fn gemma3_in_fast_mode() {
    fast_mode_is_as_close_as_its_rounding("gemma3.gguf");
}

/// Sequences that generate side by side are as close to exact mode as one alone: each of 32 lanes
/// stands at another token of the same answer, and they are played together, or eight of them. Each
/// lane is held to the bound by all of its logits, and to its own best token.
#[test]
#[ignore = "takes minutes: scripts/acceptance runs it"]
fn lanes_are_as_close_as_a_sequence_alone() {
    const LANES: usize = 32;
    let name = "smollm2.gguf";
    let taught = Taught::by(name);
    let Taught { prompt, answer, .. } = &taught;
    let gpu = gpu::options(&gpu::open());
    let folder = PathBuf::from(std::env::var_os("PIANOLA_TEST_MODELS").unwrap());
    let options = LoadOptions {
        devices: on(Some(gpu)),
        lanes: LANES,
        context: Some(64),
        ..LoadOptions::default()
    };
    let mut engine = Engine::load(&folder.join(name), options, &mut |_, _| ()).unwrap();
    let recording = engine.recording_mut::<VulkanRecording>().unwrap();
    (0..LANES).for_each(|lane| recording.map_page(0, lane, 0, lane as u32));
    let length = |lane: usize| prompt.len() + lane % (ANSWER + 1);
    let token = |at: usize| prompt.get(at).copied().unwrap_or_else(|| answer[at - prompt.len()]);
    let lanes: Vec<usize> = (0..LANES).collect();
    for lanes in lanes.chunks(2) {
        let mut step = Step::default();
        for &lane in lanes {
            (0..length(lane) - 1)
                .for_each(|at| step.push(token(at), lane as u32, at as u32, false));
        }
        recording.play(&step).unwrap();
    }
    for together in [LANES, 8] {
        let mut step = Step::default();
        for lane in 0..together {
            let last = length(lane) - 1;
            step.push(token(last), lane as u32, last as u32, true);
        }
        recording.play(&step).unwrap();
        let rows =
            (0..together).map(|lane| (lane % (ANSWER + 1), recording.logits(0, lane).to_vec()));
        taught.check(rows, &format!("{together} lanes"));
    }
}

#[test]
fn nothing_is_reported_of_a_generation() {
    let reports = validation::reports("vulkan::generate");
    assert!(reports.is_empty(), "{} reports:\n{}", reports.len(), reports.join("\n"));
}

#[test]
#[ignore = "nothing_is_reported_of_a_generation runs it under the layer"]
fn generate() {
    let gpu = gpu::open();
    let prompt = npy::read_tokens(golden("gemma3").join("tokens.npy")).unwrap();
    // Tokens are chosen on the device: one in a submission, or several behind one another.
    let settings = [
        (None, None, 1),
        (None, Some(KvType::Q8), 1),
        (Some(TensorType::Q8_0), None, 4),
        (Some(TensorType::Q8_0), Some(KvType::Q8), 4),
    ];
    for (quantize, kv_type, tokens_per_submit) in settings {
        let options = LoadOptions {
            devices: on(Some(gpu::options(&gpu))),
            quantize,
            kv_type,
            max_rows: 16,
            tokens_per_submit: Some(tokens_per_submit),
            ..LoadOptions::default()
        };
        let mut engine = Engine::load(&golden("gemma3"), options, &mut |_, _| ()).unwrap();
        let request = Request {
            sampling: Sampling { temperature: 1.0, ..Sampling::default() },
            max_tokens: Some(8),
            ignore_end: true,
            ..Request::new(prompt.clone())
        };
        let answer = engine.generate(&request, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(answer.tokens.len(), 8);
    }
}
