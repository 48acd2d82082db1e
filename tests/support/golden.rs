//! Golden cases on the processor: where they are, and the check of a model against one.

#![allow(dead_code, reason = "each test uses a part")]

use super::skip;
use pianola_cpu::{CpuOptions, Level};
use pianola_engine::{Engine, LoadOptions, LogitRows};
use pianola_formats::npy;
use pianola_plan::Numeric;
use std::path::{Path, PathBuf};

pub const CASES: [&str; 10] = [
    "gemma3",
    "llama3-rope",
    "llama-bias",
    "qwen2-window",
    "qwen2-yarn",
    "qwen3",
    "gemma2",
    "mistral",
    "phi3-short",
    "phi3-long",
];

pub fn folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case)
}

/// How cases are loaded. The context is that of a case, all of its tokens: it decides which of Phi 3's
/// rotary divisors are used.
pub fn options(golden: &Path, level: Level) -> LoadOptions {
    let tokens = |name: &str| npy::read_tokens(golden.join(name)).unwrap().len();
    LoadOptions {
        devices: LoadOptions::devices(vec![], CpuOptions::bare(level, 2)),
        numeric: Some(Numeric::Exact),
        context: Some(tokens("tokens.npy") + tokens("greedy.npy")),
        max_logit_rows: 64,
        ..LoadOptions::default()
    }
}

pub fn load(path: &Path, options: LoadOptions) -> Engine {
    Engine::load(path, options, &mut |_, _| ()).unwrap()
}

/// All logits, fed `chunk` rows at a time.
pub fn logits(engine: &mut Engine, tokens: &[u32], chunk: usize) -> Vec<f32> {
    engine.reset();
    let mut all = Vec::new();
    engine
        .feed(tokens, chunk, LogitRows::From(0), &mut |_, row| all.extend_from_slice(row))
        .unwrap();
    all
}

/// Compares a model at `path` with what is written down in `golden`.
pub fn check(golden: &Path, path: &Path, level: Level, chunks: &[usize]) {
    if !skip::has(level, level.available()) {
        return;
    }
    let tokens = npy::read_tokens(golden.join("tokens.npy")).unwrap();
    let (shape, expected) = npy::read_f32(golden.join("logits.npy")).unwrap();
    assert_eq!(shape[0], tokens.len());
    let range = expected.iter().copied().fold(f32::NEG_INFINITY, f32::max)
        - expected.iter().copied().fold(f32::INFINITY, f32::min);
    let mut engine = load(path, options(golden, level));
    let mut first: Option<Vec<f32>> = None;
    for &chunk in chunks {
        let found = logits(&mut engine, &tokens, chunk);
        assert_eq!(found.len(), expected.len());
        let error = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{} {level} chunk {chunk}: {:.1e} of the range", golden.display(), error / range);
        // Written so that NaN fails.
        assert!(error <= 2e-4 * range && found.iter().all(|logit| logit.is_finite()));
        // Each row is summed in an order of its own, whatever stands beside it.
        assert_eq!(first.get_or_insert_with(|| found.clone()), &found, "chunks of {chunk} differ");
    }
    let greedy = npy::read_tokens(golden.join("greedy.npy")).unwrap();
    engine.reset();
    let (mut next, mut found) = (0, Vec::new());
    engine.feed(&tokens, 512, LogitRows::Last, &mut |_, row| next = argmax(row)).unwrap();
    while found.len() < greedy.len() {
        found.push(next);
        engine.feed(&[next], 1, LogitRows::Last, &mut |_, row| next = argmax(row)).unwrap();
    }
    assert_eq!(found, greedy, "{} greedy", golden.display());
}

fn argmax(row: &[f32]) -> u32 {
    let best = |best: usize, index: usize| if row[index] > row[best] { index } else { best };
    (0..row.len()).fold(0, best) as u32
}
