//! Golden cases: tiny models whose logits and greedy tokens Hugging Face transformers computed in
//! float32. `scripts/test` names their folder in `PIANOLA_TEST_GOLDEN`.

use pianola_cpu::{CpuOptions, Level};
use pianola_engine::{Engine, LoadOptions, Wanted};
use pianola_formats::npy;
use std::path::PathBuf;

fn folder(case: &str) -> PathBuf {
    let root = std::env::var_os("PIANOLA_TEST_GOLDEN")
        .expect("PIANOLA_TEST_GOLDEN is not set: run scripts/test, which sets it");
    PathBuf::from(root).join(case)
}

fn load(case: &str, level: Level, threads: usize) -> Engine {
    let options = LoadOptions {
        cpu: CpuOptions { level, threads },
        max_logit_rows: 64,
        ..LoadOptions::default()
    };
    Engine::load(&folder(case), options, &mut |_, _| ()).unwrap()
}

/// All logits, fed `chunk` rows at a time.
fn logits(engine: &mut Engine, tokens: &[u32], chunk: usize) -> Vec<f32> {
    engine.reset();
    let mut all = Vec::new();
    engine
        .feed(tokens, chunk, Wanted::From(0), &mut |_, row| {
            assert!(row.iter().all(|value| value.is_finite()));
            all.extend_from_slice(row);
        })
        .unwrap();
    all
}

fn check(case: &str, level: Level, chunks: &[usize]) {
    if !level.available() {
        println!("{case}: this processor has no {level}, skipped");
        return;
    }
    let folder = folder(case);
    let tokens = npy::read_tokens(folder.join("tokens.npy")).unwrap();
    let (shape, expected) = npy::read_f32(folder.join("logits.npy")).unwrap();
    assert_eq!(shape[0], tokens.len());
    let range = expected.iter().copied().fold(f32::NEG_INFINITY, f32::max)
        - expected.iter().copied().fold(f32::INFINITY, f32::min);
    let mut engine = load(case, level, 2);
    for &chunk in chunks {
        let found = logits(&mut engine, &tokens, chunk);
        assert_eq!(found.len(), expected.len());
        let error = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{case} {level} chunk {chunk}: error {:.2e} of the range", error / range);
        assert!(error <= 2e-4 * range, "{case}: off by {error} of a range of {range}");
    }
    let greedy = npy::read_tokens(folder.join("greedy.npy")).unwrap();
    engine.reset();
    let mut next = 0;
    let mut found = Vec::new();
    engine.feed(&tokens, 512, Wanted::Last, &mut |_, row| next = argmax(row)).unwrap();
    while found.len() < greedy.len() {
        found.push(next);
        engine.feed(&[next], 1, Wanted::Last, &mut |_, row| next = argmax(row)).unwrap();
    }
    assert_eq!(found, greedy, "{case} greedy");
}

fn argmax(row: &[f32]) -> u32 {
    let best = |best: usize, index: usize| if row[index] > row[best] { index } else { best };
    (0..row.len()).fold(0, best) as u32
}

#[test]
fn small_cases_on_every_level() {
    for case in ["gemma3-a", "llama-a"] {
        for level in Level::ALL {
            check(case, level, &[512, 7, 1]);
        }
    }
}

/// 1,100 tokens: across pages, chunks and the window.
#[test]
fn long_case() {
    check("gemma3-d", Level::best(), &[512, 64, 100, 1]);
    check("gemma3-d", Level::Portable, &[333]);
}
