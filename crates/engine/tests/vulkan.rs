//! Models on a Vulkan device, by default Mesa's software driver: the golden cases in exact mode,
//! real models in fast mode beside the processor, and a generation under the validation layer.

#[path = "../../../tests/support/gpu.rs"]
mod gpu;
#[path = "../../../tests/support/validation.rs"]
mod validation;

use pianola_engine::{Engine, LoadOptions, Request, Wanted, sampler::Sampling};
use pianola_formats::npy;
use pianola_plan::Numeric;
use pianola_text::SpecialTokens;
use pianola_vulkan::{Gpu, Tuning, VulkanOptions};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn on(gpu: &Arc<Gpu>) -> Option<VulkanOptions> {
    Some(VulkanOptions { gpu: gpu.clone(), memory: None, tuning: Tuning::default() })
}

fn argmax(row: &[f32]) -> u32 {
    let best = |best: usize, index: usize| if row[index] > row[best] { index } else { best };
    (0..row.len()).fold(0, best) as u32
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    // Written so that NaN is the largest.
    let worse = |worst: f32, (a, b): (&f32, &f32)| {
        let difference = (a - b).abs();
        if difference <= worst { worst } else { difference }
    };
    a.iter().zip(b).fold(0.0, worse)
}

/// Greedy tokens after `prompt`, played in chunks of `chunk` rows.
fn greedy(engine: &mut Engine, prompt: &[u32], chunk: usize, count: usize) -> Vec<u32> {
    engine.reset();
    let (mut next, mut found) = (0, Vec::new());
    engine.feed(prompt, chunk, Wanted::Last, &mut |_, row| next = argmax(row)).unwrap();
    while found.len() < count {
        found.push(next);
        engine.feed(&[next], 1, Wanted::Last, &mut |_, row| next = argmax(row)).unwrap();
    }
    found
}

/// A golden case in exact mode: logits within the processor's tolerance however the prompt is cut,
/// greedy tokens equal.
fn check_golden(gpu: &Arc<Gpu>, folder: &Path, chunks: &[usize]) {
    let options = LoadOptions {
        gpu: on(gpu),
        numeric: Some(Numeric::Exact),
        max_logit_rows: 64,
        ..LoadOptions::default()
    };
    let mut engine = Engine::load(folder, options, &mut |_, _| ()).unwrap();
    let tokens = npy::read_tokens(folder.join("tokens.npy")).unwrap();
    let (shape, expected) = npy::read_f32(folder.join("logits.npy")).unwrap();
    assert_eq!(shape[0], tokens.len());
    let range = expected.iter().copied().fold(f32::NEG_INFINITY, f32::max)
        - expected.iter().copied().fold(f32::INFINITY, f32::min);
    for &chunk in chunks {
        engine.reset();
        let mut found = Vec::new();
        engine
            .feed(&tokens, chunk, Wanted::From(0), &mut |_, row| found.extend_from_slice(row))
            .unwrap();
        assert_eq!(found.len(), expected.len());
        let error = largest_difference(&expected, &found);
        println!("{} chunk {chunk}: {:.1e} of the range", folder.display(), error / range);
        assert!(error <= 2e-4 * range, "{} chunk {chunk}: {error}", folder.display());
    }
    let expected = npy::read_tokens(folder.join("greedy.npy")).unwrap();
    let found = greedy(&mut engine, &tokens, 512, expected.len());
    assert_eq!(found, expected, "{} greedy", folder.display());
}

fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case)
}

#[test]
fn golden_cases() {
    let gpu = gpu::open();
    for case in ["gemma3", "llama3-rope", "llama-bias", "qwen2-window", "qwen2-yarn"] {
        check_golden(&gpu, &golden(case), &[512, 7, 1]);
    }
}

#[test]
fn more_golden_cases() {
    let Some(root) = std::env::var_os("PIANOLA_TEST_GOLDEN").map(PathBuf::from) else {
        println!("skipped, PIANOLA_TEST_GOLDEN is not set");
        return;
    };
    let gpu = gpu::open();
    for case in ["gemma3-a", "llama-a"] {
        check_golden(&gpu, &root.join(case), &[512, 7]);
    }
    // 1,100 tokens: across pages, chunks and the window.
    check_golden(&gpu, &root.join("gemma3-d"), &[512, 100]);
}

fn load(name: &str, gpu: Option<VulkanOptions>, numeric: Numeric) -> Engine {
    let folder = std::env::var_os("PIANOLA_TEST_MODELS")
        .expect("PIANOLA_TEST_MODELS is not set: run scripts/test, which fetches the models");
    let numeric = Some(numeric);
    let options = LoadOptions { gpu, numeric, context: Some(128), ..LoadOptions::default() };
    Engine::load(&PathBuf::from(folder).join(name), options, &mut |_, _| ()).unwrap()
}

/// Logits behind the prompt and behind each of `answer`, which follow it one at a time.
fn forced(engine: &mut Engine, prompt: &[u32], answer: &[u32]) -> Vec<Vec<f32>> {
    engine.reset();
    let mut all = Vec::new();
    engine.feed(prompt, 512, Wanted::Last, &mut |_, row| all.push(row.to_vec())).unwrap();
    for &token in answer {
        engine.feed(&[token], 1, Wanted::Last, &mut |_, row| all.push(row.to_vec())).unwrap();
    }
    all
}

const PROMPT: &str =
    "The capital of France is Paris, a city on the river Seine. It is best known for";
const ANSWER: usize = 24;

fn fast_mode_is_as_close_as_on_the_processor(name: &str) {
    let gpu = gpu::open();
    let mut exact = load(name, None, Numeric::Exact);
    let prompt = exact.text().unwrap().tokenizer.encode(PROMPT, SpecialTokens::Plain);
    let answer = greedy(&mut exact, &prompt, 512, ANSWER);
    let reference = forced(&mut exact, &prompt, &answer);
    drop(exact);
    let worst = |found: &[Vec<f32>]| {
        let pairs = reference.iter().zip(found);
        pairs.map(|(a, b)| largest_difference(a, b)).collect::<Vec<f32>>()
    };
    let processor = worst(&forced(&mut load(name, None, Numeric::Fast), &prompt, &answer));
    let mut engine = load(name, on(&gpu), Numeric::Fast);
    let start = std::time::Instant::now();
    let found = forced(&mut engine, &prompt, &answer);
    println!("{name} forced {:?}", start.elapsed());
    let vulkan = worst(&found);
    println!("prompt {} tokens", prompt.len());
    let cpu_fast = forced(&mut load(name, None, Numeric::Fast), &prompt, &answer);
    for (i, (c, v)) in processor.iter().zip(&vulkan).enumerate() {
        let r = &reference[i];
        let range = r.iter().copied().fold(f32::NEG_INFINITY, f32::max) - r.iter().copied().fold(f32::INFINITY, f32::min);
        let mean = r.iter().sum::<f32>() / r.len() as f32;
        let sd = (r.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / r.len() as f32).sqrt();
        let rms = |f: &[f32]| (f.iter().zip(r).map(|(a, b)| (a - b).powi(2)).sum::<f32>() / r.len() as f32).sqrt();
        println!("{i}: cpu {c:.3} vulkan {v:.3} between {:.3} range {range:.1} sd {sd:.2} rms cpu {:.3} vulkan {:.3}", largest_difference(&cpu_fast[i], &found[i]), rms(&cpu_fast[i]), rms(&found[i]));
    }
}

#[test]
fn smollm2_in_fast_mode() {
    fast_mode_is_as_close_as_on_the_processor("smollm2.gguf");
}

#[test]
fn gemma3_in_fast_mode() {
    fast_mode_is_as_close_as_on_the_processor("gemma3.gguf");
}

#[test]
fn nothing_is_reported_of_a_generation() {
    let reports = validation::reports("generate");
    assert!(reports.is_empty(), "{} reports:\n{}", reports.len(), reports.join("\n"));
}

#[test]
#[ignore = "nothing_is_reported_of_a_generation runs it under the layer"]
fn generate() {
    let options = LoadOptions { gpu: on(&gpu::open()), max_rows: 16, ..LoadOptions::default() };
    let mut engine = Engine::load(&golden("gemma3"), options, &mut |_, _| ()).unwrap();
    let prompt = npy::read_tokens(golden("gemma3").join("tokens.npy")).unwrap();
    let sampling = Sampling::greedy();
    let request =
        Request { prompt, sampling, max_tokens: Some(8), stop: vec![], ignore_end: true };
    let answer = engine.generate(&request, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(answer.tokens.len(), 8);
}
