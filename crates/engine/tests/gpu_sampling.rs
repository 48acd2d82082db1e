//! The GPU's choice of tokens against the host's sampler: the same logits, the same random numbers.

#[path = "../../../tests/support/gpu.rs"]
mod gpu;

use pianola_engine::sampler::{Sampler, Sampling, uniform};
use pianola_vulkan::{SampleBench, Sampled};

const BAN: f32 = f32::NEG_INFINITY;
/// Ragged and whole slices, one slice and many; the last has more logits a lane than the others.
const VOCABULARIES: [usize; 5] = [7, 1000, 49_152, 262_144, 262_208];

/// Random numbers of the positions 0 to `plays` - 1, as the host's sampler draws them.
fn uniforms(seed: u64, plays: usize) -> Vec<f32> {
    (0..plays as u64).map(|position| uniform(seed, position) as f32).collect()
}

/// Rows with what can go wrong in them, by name.
fn rows(vocabulary: usize) -> Vec<(&'static str, Vec<f32>)> {
    let random = |seed: u64| {
        move |id: usize| {
            // A sum of uniforms, near enough to the bell of real logits.
            let sum: f64 = (0..4).map(|k| uniform(seed, 4 * id as u64 + k)).sum();
            (6.0 * (sum - 2.0)) as f32
        }
    };
    let row = |value: &dyn Fn(usize) -> f32| (0..vocabulary).map(value).collect::<Vec<f32>>();
    let plain = random(vocabulary as u64);
    let far = vocabulary * 5 / 7;
    vec![
        ("random", row(&plain)),
        ("coarse, so that many are equal", row(&|id| plain(id).round())),
        ("all equal", row(&|_| -1.5)),
        ("all below zero", row(&|id| plain(id) - 50.0)),
        ("zeros of both signs", row(&|id| if id % 3 == 0 { -0.0 } else { 0.0 } - (id % 2) as f32)),
        (
            "with -inf and NaN",
            row(&|id| match id % 5 {
                0 => BAN,
                1 => f32::NAN,
                2 => -f32::NAN,
                _ => plain(id),
            }),
        ),
        ("few finite", row(&|id| if id == 3 || id == far { 1.0 + id as f32 * 1e-6 } else { BAN })),
        ("all NaN", row(&|_| f32::NAN)),
        ("all -inf", row(&|_| BAN)),
        ("twice +inf", row(&|id| if id == far || id == 2 { f32::INFINITY } else { plain(id) })),
        ("extremes", row(&|id| if id % 2 == 0 { f32::MAX } else { f32::MIN })),
        ("falling", row(&|id| -(id as f32) * 1e-3)),
        ("rising", row(&|id| id as f32 * 1e-3)),
    ]
}

#[test]
fn greedy_choices_equal_the_host() {
    let gpu = gpu::open();
    for vocabulary in VOCABULARIES {
        let mut bench = SampleBench::new(&gpu, vocabulary).unwrap();
        for (name, row) in rows(vocabulary) {
            let mut host = Sampler::new(Sampling::greedy(), vocabulary).unwrap();
            let expected = host.sample(&mut row.clone(), 0);
            let sampling = host.sampling().on_gpu(&[]);
            let found = bench.sample(&row, &sampling, &[], &[0.0], 1).unwrap();
            assert_eq!(found.tokens, [expected], "{name}, {vocabulary} tokens");
            assert_eq!((found.row.token, found.row.position), (expected, 1));
        }
    }
}

/// How far a uniform number lies from the nearest one at which the choice changes. Worked out by
/// sorting, in f64, from the logits after bias and penalties.
fn distance_to_boundary(sampling: &Sampling, logits: &[f32], number: f64) -> f64 {
    let usable = |&id: &usize| logits[id] > BAN;
    let mut order: Vec<usize> = (0..logits.len()).filter(usable).collect();
    // Zeros of both signs are equal, and the sort is stable: ties go to low ids.
    order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap());
    order.truncate(sampling.top_k);
    let best = f64::from(logits[order[0]]);
    let weight =
        |id: usize| ((f64::from(logits[id]) - best) / f64::from(sampling.temperature)).exp();
    let sum = |ids: &[usize]| ids.iter().map(|&id| weight(id)).sum::<f64>();
    let mut nearest = 1f64;
    if sampling.top_p < 1.0 {
        let (mut kept, mut mass) = (0, 0.0);
        let total = sum(&order);
        while kept == 0 || (kept < order.len() && mass / total < f64::from(sampling.top_p)) {
            mass += weight(order[kept]);
            kept += 1;
            nearest = nearest.min((mass / total - f64::from(sampling.top_p)).abs());
        }
        order.truncate(kept);
    }
    if sampling.min_p > 0.0 {
        order.retain(|&id| {
            nearest = nearest.min((weight(id) - f64::from(sampling.min_p)).abs());
            weight(id) >= f64::from(sampling.min_p)
        });
    }
    order.sort_unstable();
    let total = sum(&order);
    let mut running = 0.0;
    for &id in &order {
        running += weight(id);
        nearest = nearest.min((running / total - number).abs());
    }
    nearest
}

#[test]
fn drawn_choices_equal_the_host_but_at_boundaries() {
    const PLAYS: usize = 8;
    let cuts = [
        // (temperature, top-k, top-p, min-p)
        (1.0, 40, 1.0, 0.0),
        (0.7, 64, 0.9, 0.0),
        (1.5, 2, 1.0, 0.3),
        (3.0, 64, 0.95, 0.05),
        (1.0, 5, 0.0, 0.0),
        (0.8, 1, 0.5, 1.0),
        (1e-40, 33, 1.0, 0.0),
    ];
    let gpu = gpu::open();
    let (mut drawn, mut others) = (0, 0);
    for vocabulary in VOCABULARIES {
        let mut bench = SampleBench::new(&gpu, vocabulary).unwrap();
        for (index, (name, row)) in rows(vocabulary).into_iter().enumerate() {
            for (turn, (temperature, top_k, top_p, min_p)) in cuts.into_iter().enumerate() {
                // Each row of a large vocabulary meets two of them.
                if vocabulary > 1000 && (turn + index) % 4 != 0 {
                    continue;
                }
                let seed = (vocabulary + 31 * index + turn) as u64;
                let sampling =
                    Sampling { temperature, top_k, top_p, min_p, seed, ..Sampling::default() };
                let numbers = uniforms(seed, PLAYS);
                let gpu_sampling = sampling.on_gpu(&[]);
                let found = bench.sample(&row, &gpu_sampling, &[], &numbers, PLAYS).unwrap();
                let mut host = Sampler::new(sampling, vocabulary).unwrap();
                for (position, &token) in found.tokens.iter().enumerate() {
                    let expected = host.sample(&mut row.clone(), position as u64);
                    drawn += 1;
                    if token != expected {
                        let number = uniform(seed, position as u64);
                        let distance = distance_to_boundary(host.sampling(), &row, number);
                        let what = format!("{name}, {vocabulary} tokens, {:?}", host.sampling());
                        assert!(distance < 1e-4, "{token} for {expected} ({distance}): {what}");
                        others += 1;
                    }
                }
                assert_eq!(found.tokens.len(), PLAYS);
            }
        }
    }
    println!("{others} of {drawn} draws fell to another token");
    // A draw is that close to a boundary about once in a hundred: 64 boundaries, 2e-4 each.
    assert!(others * 100 <= drawn);
}

/// The host's tokens, each accepted before the next is chosen, and the logits of the last.
fn on_host(
    sampling: &Sampling,
    row: &[f32],
    history: &[u32],
    plays: usize,
) -> (Vec<u32>, Vec<f32>) {
    let mut host = Sampler::new(sampling.clone(), row.len()).unwrap();
    history.iter().for_each(|&token| host.accept(token));
    let mut logits = Vec::new();
    let tokens = (0..plays as u64).map(|position| {
        logits = row.to_vec();
        let token = host.sample(&mut logits, position);
        host.accept(token);
        token
    });
    (tokens.collect(), logits)
}

fn assert_shaped(found: &Sampled, expected: &[f32]) {
    for (id, (&found, &expected)) in found.logits.iter().zip(expected).enumerate() {
        // A GPU may divide with an error of 2.5 units in the last place of the quotient, from which
        // penalties of up to about one are then subtracted.
        let near = (found - expected).abs() <= 4e-7 * (1.0 + expected.abs()) || found == expected;
        assert!(near || (found.is_nan() && expected.is_nan()), "{id}: {found} for {expected}");
    }
}

#[test]
fn biases_and_penalties_equal_the_host() {
    let gpu = gpu::open();
    let vocabulary = 5000;
    let mut bench = SampleBench::new(&gpu, vocabulary).unwrap();
    let row = &rows(vocabulary)[0].1;
    let biases: Vec<(u32, f32)> = (0..64)
        .map(|n| ((n * n * 13) % 5000, if n % 9 == 0 { BAN } else { 0.3 * n as f32 - 7.0 }))
        .chain([(17, 1.5), (17, 2.25), (4999, 30.0)])
        .skip(3)
        .collect();
    let history: Vec<u32> = (0..90).map(|n| (n * n * 7) % 5000).chain([9000, 3, 3, 3]).collect();
    let greedy = Sampling { penalty_window: 256, ..Sampling::greedy() };
    let cases = [
        Sampling { logit_bias: biases.clone(), ..greedy.clone() },
        Sampling { repetition_penalty: 1.3, ..greedy.clone() },
        Sampling { presence_penalty: 0.7, penalty_window: 50, ..greedy.clone() },
        Sampling { frequency_penalty: 0.4, presence_penalty: -0.1, ..greedy.clone() },
        Sampling {
            logit_bias: biases,
            repetition_penalty: 1.1,
            presence_penalty: 0.2,
            frequency_penalty: 0.3,
            temperature: 0.9,
            top_k: 40,
            seed: 3,
            ..greedy
        },
    ];
    for sampling in cases {
        let (tokens, logits) = on_host(&sampling, row, &history, 6);
        let numbers = uniforms(sampling.seed, 6);
        let found = bench.sample(row, &sampling.on_gpu(&[]), &history, &numbers, 6).unwrap();
        assert_eq!(found.tokens, tokens, "{sampling:?}");
        assert_shaped(&found, &logits);
    }
}

#[test]
fn the_history_is_a_ring() {
    let gpu = gpu::open();
    let vocabulary = 300;
    let mut bench = SampleBench::new(&gpu, vocabulary).unwrap();
    let row = &rows(vocabulary)[0].1;
    // Tokens leave the window while tokens are chosen, so that what was penalised comes back.
    for (window, before) in [(1, 0), (3, 2), (20, 300), (256, 250), (256, 300), (255, 256)] {
        let history: Vec<u32> = (0..before).map(|n| (n * 7) % 300).collect();
        let sampling = Sampling {
            frequency_penalty: 0.37,
            repetition_penalty: 1.2,
            penalty_window: window,
            ..Sampling::greedy()
        };
        let (tokens, logits) = on_host(&sampling, row, &history, 64);
        let found = bench.sample(row, &sampling.on_gpu(&[]), &history, &[0.0; 64], 64).unwrap();
        assert_eq!(found.tokens, tokens, "window {window}, {before} tokens before");
        assert_shaped(&found, &logits);
        assert_eq!((found.row.token, found.row.position), (tokens[63], 64));
    }
}

#[test]
fn a_stop_token_halts() {
    let gpu = gpu::open();
    let mut bench = SampleBench::new(&gpu, 1000).unwrap();
    let row = &rows(1000)[0].1;
    // Each token that was chosen is banned from then on.
    let sampling = Sampling { frequency_penalty: 1e9, penalty_window: 256, ..Sampling::greedy() };
    let (tokens, _) = on_host(&sampling, row, &[], 8);
    let stops = [9999, tokens[5], tokens[3]];

    let found = bench.sample(row, &sampling.on_gpu(&stops), &[], &[0.0; 64], 8).unwrap();
    assert_eq!(found.tokens, tokens[..4], "the stop token is the last");
    assert!(found.halted);
    // The row is still the one whose logits gave the stop token.
    assert_eq!((found.row.token, found.row.position), (tokens[2], 3));
    assert_eq!(&found.logits, row, "a play after it does nothing");

    // Nor does one for which there is no random number.
    let found = bench.sample(row, &sampling.on_gpu(&[]), &[], &[0.0; 5], 8).unwrap();
    assert_eq!((&found.tokens[..], found.halted), (&tokens[..5], false));
    assert_eq!((found.row.token, found.row.position), (tokens[4], 5));
}

/// Not a test of speed, a way to see it: `cargo test --test gpu_sampling -- --ignored --nocapture`.
#[test]
#[ignore = "prints times, checks nothing"]
fn time_of_a_choice() {
    let gpu = gpu::open();
    let greedy = Sampling { penalty_window: 256, ..Sampling::greedy() };
    let history: Vec<u32> = (0..256).map(|n| (n * n * 7) % 5000).collect();
    for vocabulary in [49_152, 151_936, 262_144] {
        let mut bench = SampleBench::new(&gpu, vocabulary).unwrap();
        let row = &rows(vocabulary)[0].1;
        for (name, sampling) in [
            ("greedy", greedy.clone()),
            ("greedy with penalties", Sampling { repetition_penalty: 1.1, ..greedy.clone() }),
            ("top-k 40", Sampling { temperature: 1.0, top_k: 40, ..greedy.clone() }),
            (
                "top-k 64, top-p",
                Sampling { temperature: 1.0, top_k: 64, top_p: 0.95, ..greedy.clone() },
            ),
        ] {
            let seconds = bench.time(row, &sampling.on_gpu(&[]), &history).unwrap();
            println!("{vocabulary} tokens, {name}: {:.1} µs", 1e6 * seconds);
        }
    }
}
