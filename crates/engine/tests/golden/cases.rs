//! Golden cases: tiny models whose logits and greedy tokens Hugging Face transformers computed in
//! float32. Those in `tests/golden` come with the project (`make.py` there makes them);
//! `PIANOLA_TEST_GOLDEN` may name a folder with more.

use crate::support::golden::{CASES, check, folder, load, logits, options};
use crate::support::skip;
use pianola_cpu::Level;
use pianola_engine::LoadOptions;
use pianola_formats::npy;
use pianola_plan::KvType;
use std::path::PathBuf;

/// A case of the folder that `PIANOLA_TEST_GOLDEN` names, if it names one.
#[track_caller]
fn more(case: &str) -> Option<PathBuf> {
    let root = std::env::var_os("PIANOLA_TEST_GOLDEN");
    if root.is_none() {
        skip::skip("PIANOLA_TEST_GOLDEN names no folder");
    }
    Some(PathBuf::from(root?).join(case))
}

#[test]
fn every_case_on_every_level() {
    for case in CASES {
        for level in Level::ALL {
            check(&folder(case), &folder(case), level, &[512, 7, 1]);
        }
    }
}

/// A kernel for every node: the logits of fused kernels, and those of the case.
#[test]
fn without_fusion_logits_are_the_same() {
    for case in CASES {
        let golden = folder(case);
        let tokens = npy::read_tokens(golden.join("tokens.npy")).unwrap();
        let (_, expected) = npy::read_f32(golden.join("logits.npy")).unwrap();
        let options = options(&golden, Level::best());
        let mut fused = load(&golden, options.clone());
        let mut plain = load(&golden, LoadOptions { fusion: false, ..options });
        assert_eq!(plain.plan().ops.len(), plain.plan().graph.nodes.len());
        assert!(fused.plan().ops.len() < plain.plan().ops.len() / 2);
        for chunk in [512, 1] {
            let found = logits(&mut plain, &tokens, chunk);
            for (what, other) in
                [("case", &expected), ("fused", &logits(&mut fused, &tokens, chunk))]
            {
                let largest = other.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                let worst = found.iter().zip(other).map(|(a, b)| (a - b).abs());
                let worst = worst.fold(0.0f32, |most, x| if x <= most { most } else { x });
                assert!(worst <= 2e-4 * largest, "{case}, {what}, chunk {chunk}: {worst}");
            }
        }
    }
}

/// Keys and values in halves and in bytes: each level within what their rounding may do, and the
/// same bits however the prompt is cut.
#[test]
fn smaller_keys_and_values_stay_close() {
    for case in CASES {
        let tokens = npy::read_tokens(folder(case).join("tokens.npy")).unwrap();
        let (_, expected) = npy::read_f32(folder(case).join("logits.npy")).unwrap();
        let norm = expected.iter().map(|x| x * x).sum::<f32>().sqrt();
        // A half is off by up to 2^-11 of itself. The largest of a head's values is near 2.5
        // deviations, so a byte is off by up to half of 2.5 / 127 of one. Both are evenly spread;
        // keys and values of up to three layers add up as square roots, and scores pass the
        // softmax, which may double them.
        let bound = |most: f32| 2.0 * 6f32.sqrt() * most / 3f32.sqrt();
        let types = [(KvType::F16, 2f32.powi(-11)), (KvType::Q8, 0.5 * 2.5 / 127.0)];
        for (ty, bound) in types.map(|(ty, most)| (ty, bound(most))) {
            for level in Level::ALL.into_iter().filter(|level| skip::has(level, level.available()))
            {
                let kv_type = Some(ty);
                let options = LoadOptions { kv_type, ..options(&folder(case), level) };
                let mut engine = load(&folder(case), options);
                let found = logits(&mut engine, &tokens, 512);
                let squares = expected.iter().zip(&found).map(|(a, b)| (a - b) * (a - b));
                let error = squares.sum::<f32>().sqrt() / norm;
                println!("{case} {level} {ty}: relative error {error:.5}");
                assert!(error > 1e-5 && error < bound, "{case} {level} {ty}: {error}");
                for chunk in [7, 1] {
                    assert_eq!(logits(&mut engine, &tokens, chunk), found, "{case} {level} {ty}");
                }
            }
        }
    }
}

#[test]
fn more_cases() {
    for path in ["gemma3-a", "llama-a", "qwen3-a", "gemma2-a"].into_iter().filter_map(more) {
        check(&path, &path, Level::best(), &[512, 7, 1]);
    }
    // 1,100 tokens: across pages, chunks and the window.
    if let Some(path) = more("gemma3-d") {
        check(&path, &path, Level::best(), &[512, 64, 100, 1]);
    }
}

/// Whether Phi 3's long divisors are used depends on the context that is planned, not on the length of
/// a sequence.
#[test]
fn the_planned_context_decides_between_divisors() {
    let path = folder("phi3-short");
    let tokens = npy::read_tokens(path.join("tokens.npy")).unwrap();
    let (_, expected) = npy::read_f32(path.join("logits.npy")).unwrap();
    let difference = |context: Option<usize>| {
        let options = LoadOptions { context, ..options(&path, Level::best()) };
        let found = logits(&mut load(&path, options), &tokens, 512);
        expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    // The training context is 128, the model's 256.
    assert!(difference(Some(128)) < 2e-3);
    let long = difference(Some(129));
    assert!(long > 0.1, "{long}");
    assert_eq!(difference(None), long);
}

/// Quantised at load, a folder still says nearly the same.
#[test]
fn quantising_at_load_stays_close() {
    let tokens = npy::read_tokens(folder("llama-bias").join("tokens.npy")).unwrap();
    let (_, expected) = npy::read_f32(folder("llama-bias").join("logits.npy")).unwrap();
    let norm = expected.iter().map(|x| x * x).sum::<f32>().sqrt();
    // The largest of 32 normal values is near 2.1 deviations, so a step is 2.1 / 127 (or 2.1 / 8)
    // of one and its rounding 1 / sqrt(12) of that. Activations are rounded to int8 as well; 15
    // products add up as square roots; as much again for attention, which is not linear.
    let rounding = |levels: f32| 2.1 / levels / 12f32.sqrt();
    let bound = |levels: f32| {
        let product = (rounding(levels).powi(2) + rounding(127.0).powi(2)).sqrt();
        2.0 * 15f32.sqrt() * product
    };
    for (ty, bound) in [("q8_0", bound(127.0)), ("q4_0", bound(8.0))] {
        let options = LoadOptions {
            quantize: Some(ty.parse().unwrap()),
            max_logit_rows: 64,
            ..LoadOptions::default()
        };
        let mut engine = load(&folder("llama-bias"), options);
        let found = logits(&mut engine, &tokens, 512);
        let error = expected.iter().zip(&found).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt();
        println!("{ty}: relative error {:.4}", error / norm);
        assert!(error > 0.0 && error <= bound * norm);
    }
}
