//! Sampling on the GPU against the host's sampler: the same logits, the same random numbers. Rows for
//! which the best few tokens are enough; the others are in `gpu_sampling_whole.rs`.

use crate::support::gpu;
use crate::support::logits::{
    BAN, assert_shaped, is_at_boundary, on_host, rows, sample_one, sample_row, uniforms,
};
use pianola_engine::sampler::{Sampler, Sampling, uniform};
use pianola_plan::SampleRow;
use pianola_vulkan::{SampleBench, Sampled};

/// Ragged and whole slices, one slice and many; the last has more logits a lane than the others.
const VOCABULARIES: [usize; 5] = [7, 1000, 49_152, 262_144, 262_208];

#[test]
fn greedy_samples_equal_the_host() {
    let gpu = gpu::open();
    let greedy = Sampling::greedy();
    for vocabulary in VOCABULARIES {
        let rows = rows(vocabulary);
        let mut bench = SampleBench::new(&gpu, vocabulary, rows.len()).unwrap();
        let mut host = Sampler::new(greedy.clone(), vocabulary).unwrap();
        let logits: Vec<f32> = rows.iter().flat_map(|(_, row)| row).copied().collect();
        let samples = vec![sample_row(&greedy, &[], &[0.0]); rows.len()];
        let found = bench.sample(&logits, &samples, 1).unwrap();
        for ((name, row), found) in rows.into_iter().zip(found) {
            let expected = host.sample(&mut row.clone(), 0);
            assert_eq!(found.tokens, [expected], "{name}, {vocabulary} tokens");
            assert_eq!((found.row.token, found.row.position), (expected, 1));
            // Rows with NaN are told apart from those beside them.
            assert_eq!(found.broken, row.iter().any(|logit| logit.is_nan()), "{name}");
        }
    }
}

#[test]
fn samples_equal_the_host_but_at_boundaries() {
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
    let (mut sampled, mut others) = (0, 0);
    for vocabulary in VOCABULARIES {
        let mut bench = SampleBench::new(&gpu, vocabulary, 1).unwrap();
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
                let found =
                    sample_one(&mut bench, &row, sample_row(&sampling, &[], &numbers), PLAYS);
                let mut host = Sampler::new(sampling, vocabulary).unwrap();
                for (position, &token) in found.tokens.iter().enumerate() {
                    let expected = host.sample(&mut row.clone(), position as u64);
                    sampled += 1;
                    if token != expected {
                        let number = uniform(seed, position as u64);
                        let fair = is_at_boundary(host.sampling(), &row, number, token);
                        let what = format!("{name}, {vocabulary} tokens, {:?}", host.sampling());
                        assert!(fair, "{token} for {expected}: {what}");
                        others += 1;
                    }
                }
                assert_eq!(found.tokens.len(), PLAYS);
            }
        }
    }
    println!("{others} of {sampled} fell to another token");
    // A number is that close to a boundary about once in four thousand: 64 boundaries, 4e-6 each.
    assert!(others * 100 <= sampled);
}

#[test]
fn biases_and_penalties_equal_the_host() {
    let gpu = gpu::open();
    let vocabulary = 5000;
    let mut bench = SampleBench::new(&gpu, vocabulary, 1).unwrap();
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
        let found = sample_one(&mut bench, row, sample_row(&sampling, &history, &numbers), 6);
        assert_eq!(found.tokens, tokens, "{sampling:?}");
        assert_shaped(&found, &logits);
    }
}

#[test]
fn the_history_is_a_ring() {
    let gpu = gpu::open();
    let vocabulary = 300;
    let mut bench = SampleBench::new(&gpu, vocabulary, 1).unwrap();
    let row = &rows(vocabulary)[0].1;
    // Tokens leave the window while tokens are sampled, so that what was penalised comes back.
    for (window, before) in [(1, 0), (3, 2), (20, 300), (256, 250), (256, 300), (255, 256)] {
        let history: Vec<u32> = (0..before).map(|n| (n * 7) % 300).collect();
        let sampling = Sampling {
            frequency_penalty: 0.37,
            repetition_penalty: 1.2,
            penalty_window: window,
            ..Sampling::greedy()
        };
        let (tokens, logits) = on_host(&sampling, row, &history, 64);
        let found = sample_one(&mut bench, row, sample_row(&sampling, &history, &[0.0; 64]), 64);
        assert_eq!(found.tokens, tokens, "window {window}, {before} tokens before");
        assert_shaped(&found, &logits);
        assert_eq!((found.row.token, found.row.position), (tokens[63], 64));
    }
}

#[test]
fn a_stop_token_halts_its_row_alone() {
    let gpu = gpu::open();
    let mut bench = SampleBench::new(&gpu, 1000, 4).unwrap();
    let row = &rows(1000)[0].1;
    // Each token that was sampled is banned from then on.
    let sampling = Sampling { frequency_penalty: 1e9, penalty_window: 256, ..Sampling::greedy() };
    let (tokens, _) = on_host(&sampling, row, &[], 8);
    let free = sample_row(&sampling, &[], &[0.0; 64]);
    let stops = [9999, tokens[5], tokens[3]];
    let samples = [
        free,
        SampleRow { stop_tokens: &stops, ..free },
        SampleRow { stop_tokens: &tokens[..1], ..free },
        // A play for which there is no random number does nothing, either.
        SampleRow { uniforms: &[0.0; 5], ..free },
    ];
    let found = bench.sample(&row.repeat(4), &samples, 8).unwrap();
    for (found, (count, halted)) in found.iter().zip([(8, false), (4, true), (1, true), (5, false)])
    {
        // A stop token is the last of them.
        assert_eq!((&found.tokens[..], found.halted), (&tokens[..count], halted));
        // The row is then still the one whose logits gave it.
        let fed = count - usize::from(halted);
        let token = if fed == 0 { 0 } else { tokens[fed - 1] };
        assert_eq!((found.row.token, found.row.position), (token, fed as u32));
        assert_eq!(&found.logits == row, count < 8, "a play after the end does nothing");
    }
}

/// Options of a lane, such that every step of sampling has some of them.
fn options_of(lane: usize) -> Sampling {
    let random = Sampling { seed: lane as u64, penalty_window: 256, ..Sampling::default() };
    match lane % 5 {
        0 => Sampling { temperature: 0.0, ..random },
        1 => Sampling { top_k: 40, temperature: 0.8, ..random },
        2 => Sampling { top_k: 64, top_p: 0.9, repetition_penalty: 1.2, ..random },
        3 => Sampling { temperature: 0.0, frequency_penalty: 0.5, penalty_window: 7, ..random },
        _ => Sampling {
            top_k: 1 + lane,
            min_p: 0.05,
            presence_penalty: 0.3,
            logit_bias: (0..lane as u32).map(|id| (id * 31, 4.0 - id as f32)).collect(),
            ..random
        },
    }
}

/// Logits, options, history and random numbers of one lane of many.
struct Lane {
    logits: Vec<f32>,
    sampling: Sampling,
    history: Vec<u32>,
    uniforms: Vec<f32>,
    stops: Vec<u32>,
}

impl Lane {
    fn row(&self) -> SampleRow<'_> {
        SampleRow {
            stop_tokens: &self.stops,
            ..sample_row(&self.sampling, &self.history, &self.uniforms)
        }
    }
}

fn lanes(vocabulary: usize, count: usize, plays: usize) -> Vec<Lane> {
    let kinds = rows(vocabulary);
    let lane = |lane: usize| {
        let (_, row) = &kinds[lane % kinds.len()];
        // Turned by another number for each.
        let logits = (0..vocabulary).map(|id| row[(id + 977 * lane) % vocabulary]).collect();
        let sampling = options_of(lane);
        let history = (0..13 * lane as u32).map(|n| n * n * 7 % vocabulary as u32).collect();
        let uniforms = uniforms(sampling.seed, plays);
        let stops = (0..lane as u32).map(|n| (n * 97 + lane as u32) % vocabulary as u32).collect();
        Lane { logits, sampling, history, uniforms, stops }
    };
    (0..count).map(lane).collect()
}

/// Each bit of what a lane comes to, its sequence aside.
fn bits(found: &Sampled) -> (Vec<u32>, bool, bool, u32, u32, Vec<u32>) {
    let Sampled { tokens, halted, broken, row, logits, .. } = found;
    let logits = logits.iter().map(|logit| logit.to_bits()).collect();
    (tokens.clone(), *halted, *broken, row.token, row.position, logits)
}

#[test]
fn lanes_do_not_influence_one_another() {
    const PLAYS: usize = 3;
    let gpu = gpu::open();
    for (vocabulary, count) in [(1000, 64), (5000, 32)] {
        let lanes = lanes(vocabulary, count, PLAYS);
        let mut bench = SampleBench::new(&gpu, vocabulary, 1).unwrap();
        let alone: Vec<Sampled> = lanes
            .iter()
            .map(|lane| sample_one(&mut bench, &lane.logits, lane.row(), PLAYS))
            .collect();
        // In any slot, and with room for more rows than there are.
        for (turn, room) in [(0, count), (5, count), (count - 1, count), (1, count + 3)] {
            let order: Vec<usize> = (0..count).map(|slot| (slot + turn) % count).collect();
            let mut bench = SampleBench::new(&gpu, vocabulary, room).unwrap();
            let logits: Vec<f32> =
                order.iter().flat_map(|&lane| &lanes[lane].logits).copied().collect();
            let samples: Vec<SampleRow<'_>> = order.iter().map(|&lane| lanes[lane].row()).collect();
            let found = bench.sample(&logits, &samples, PLAYS).unwrap();
            for ((slot, &lane), found) in order.iter().enumerate().zip(&found) {
                assert!(bits(found) == bits(&alone[lane]), "lane {lane} in slot {slot} of {count}");
                assert_eq!(found.row.sequence, slot as u32);
            }
        }
    }
}

#[test]
fn lanes_sample_as_the_host_does() {
    let gpu = gpu::open();
    let (vocabulary, count) = (49_152, 48);
    let lanes = lanes(vocabulary, count, 1);
    let mut bench = SampleBench::new(&gpu, vocabulary, count).unwrap();
    let logits: Vec<f32> = lanes.iter().flat_map(|lane| &lane.logits).copied().collect();
    let samples: Vec<SampleRow<'_>> = lanes.iter().map(Lane::row).collect();
    let found = bench.sample(&logits, &samples, 1).unwrap();
    let mut others = 0;
    for (index, (lane, found)) in lanes.iter().zip(&found).enumerate() {
        let (tokens, shaped) = on_host(&lane.sampling, &lane.logits, &lane.history, 1);
        assert_shaped(found, &shaped);
        if found.tokens != tokens {
            let number = uniform(lane.sampling.seed, 0);
            let fair = is_at_boundary(&lane.sampling, &shaped, number, found.tokens[0]);
            assert!(fair, "lane {index}: {:?} for {tokens:?}", found.tokens);
            others += 1;
        }
        assert_eq!(found.halted, lane.stops.contains(&found.tokens[0]), "lane {index}");
        assert_eq!(found.broken, lane.logits.iter().any(|logit| logit.is_nan()), "lane {index}");
    }
    assert!(others <= 2, "{others} of {count} fell to another token");
}

/// Not a test of speed, a way to see it: `cargo test --release --test all gpu_sampling:: -- --ignored --nocapture`.
#[test]
#[ignore = "prints times, checks nothing"]
fn time_of_a_sample() {
    let gpu = gpu::open();
    let greedy = Sampling { penalty_window: 256, ..Sampling::greedy() };
    let history: Vec<u32> = (0..256).map(|n| (n * n * 7) % 5000).collect();
    for (vocabulary, lanes) in
        [(49_152, 1), (151_936, 1), (262_144, 1), (262_144, 8), (262_144, 32), (262_144, 64)]
    {
        let mut bench = SampleBench::new(&gpu, vocabulary, lanes).unwrap();
        let logits = rows(vocabulary)[0].1.repeat(lanes);
        for (name, sampling) in [
            ("greedy", greedy.clone()),
            ("greedy with penalties", Sampling { repetition_penalty: 1.1, ..greedy.clone() }),
            ("top-k 40", Sampling { temperature: 1.0, top_k: 40, ..greedy.clone() }),
            (
                "top-k 64, top-p",
                Sampling { temperature: 1.0, top_k: 64, top_p: 0.95, ..greedy.clone() },
            ),
            ("temperature", Sampling::default()),
            ("top-p", Sampling { top_p: 0.95, ..Sampling::default() }),
            ("top-k 200, top-p", Sampling { top_k: 200, top_p: 0.95, ..Sampling::default() }),
        ] {
            let samples = vec![sample_row(&sampling, &history, &[]); lanes];
            let seconds = bench.time(&logits, &samples).unwrap();
            println!("{lanes} x {vocabulary} tokens, {name}: {:.1} µs", 1e6 * seconds);
        }
    }
}
