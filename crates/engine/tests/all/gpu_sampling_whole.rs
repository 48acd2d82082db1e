//! Sampling on the GPU against the host's sampler, from the whole vocabulary: no top-k or a large
//! one, long histories, many biases, masks, log probabilities.

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
fn samples_equal_the_host_but_at_boundaries() {
    const PLAYS: usize = 6;
    let cuts = [
        // (temperature, top-k, top-p, min-p)
        (1.0, 0, 1.0, 0.0),
        (0.7, 0, 0.9, 0.0),
        (1.0, 0, 1.0, 0.05),
        (1.5, 100, 1.0, 0.0),
        (0.8, 1000, 0.95, 0.01),
        (1.0, 0, 0.0, 0.0),
        (1.0, 0, 0.999, 1.0),
        (1e-40, 0, 0.9, 0.0),
        // All weights are nearly equal.
        (1e6, 0, 0.5, 0.0),
        (1e9, 700, 0.5, 0.0),
        (3.0, 65, 0.3, 0.2),
    ];
    let gpu = gpu::open();
    let (mut sampled, mut others) = (0, 0);
    for vocabulary in VOCABULARIES {
        let mut bench = SampleBench::new(&gpu, vocabulary, 1).unwrap();
        for (index, (name, row)) in rows(vocabulary).into_iter().enumerate() {
            for (turn, (temperature, top_k, top_p, min_p)) in cuts.into_iter().enumerate() {
                // Each row of a large vocabulary meets two of them.
                if vocabulary > 1000 && (turn + index) % 6 != 0 {
                    continue;
                }
                let seed = (vocabulary + 31 * index + turn) as u64;
                let sampling =
                    Sampling { temperature, top_k, top_p, min_p, seed, ..Sampling::default() };
                let numbers = uniforms(seed, PLAYS);
                let asked = sample_row(&sampling, &[], &numbers);
                let found = sample_one(&mut bench, &row, asked, PLAYS);
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
                assert_eq!(found.broken, row.iter().any(|logit| logit.is_nan()), "{name}");
            }
        }
    }
    println!("{others} of {sampled} fell to another token");
    // Of a flat row of 262,144 tokens, rounding the uniform number to f32 alone moves one in a
    // hundred to a neighbour; most rows are not flat.
    assert!(others * 100 <= sampled, "{others} of {sampled}");
}

/// Biases with repeated and banned tokens.
fn biases(count: u32, vocabulary: u32) -> Vec<(u32, f32)> {
    let bias = |n: u32| if n.is_multiple_of(9) { BAN } else { 0.03 * n as f32 - 7.0 };
    (0..count).map(|n| (n * n * 13 % vocabulary, bias(n))).collect()
}

fn history(count: u32, vocabulary: u32) -> Vec<u32> {
    (0..count).map(|n| n.wrapping_mul(n).wrapping_mul(7) % (vocabulary + 50)).collect()
}

#[test]
fn biases_and_penalties_equal_the_host() {
    let gpu = gpu::open();
    let vocabulary = 5000;
    let mut bench = SampleBench::new(&gpu, vocabulary, 1).unwrap();
    let row = &rows(vocabulary)[0].1;
    let greedy = Sampling::greedy();
    let all = Sampling {
        logit_bias: biases(900, 5000),
        repetition_penalty: 1.1,
        presence_penalty: 0.2,
        frequency_penalty: 0.3,
        temperature: 0.9,
        seed: 3,
        ..greedy.clone()
    };
    let cases = [
        Sampling { logit_bias: biases(65, 5000), ..greedy.clone() },
        Sampling { logit_bias: biases(1024, 5000), ..greedy.clone() },
        Sampling { repetition_penalty: 1.3, ..greedy.clone() },
        Sampling { presence_penalty: 0.7, penalty_window: 5000, ..greedy.clone() },
        Sampling { frequency_penalty: 0.4, presence_penalty: -0.1, ..greedy.clone() },
        all.clone(),
        Sampling { top_p: 0.9, ..all.clone() },
        Sampling { top_k: 300, min_p: 0.02, penalty_window: 700, ..all },
    ];
    for sampling in cases {
        for length in [0, 300, 9000] {
            let history = history(length, 5000);
            let (tokens, shaped) = on_host(&sampling, row, &history, 6);
            let numbers = uniforms(sampling.seed, 6);
            let asked = sample_row(&sampling, &history, &numbers);
            let found = sample_one(&mut bench, row, asked, 6);
            assert_eq!(found.tokens, tokens, "{length} tokens before, {sampling:?}");
            assert_shaped(&found, &shaped);
        }
    }
}

#[test]
fn tokens_leave_long_windows() {
    let gpu = gpu::open();
    let vocabulary = 300;
    let mut bench = SampleBench::new(&gpu, vocabulary, 1).unwrap();
    let row = &rows(vocabulary)[0].1;
    for (window, before) in [(257, 250), (257, 300), (1000, 990), (1000, 3000), (usize::MAX, 4000)]
    {
        let history: Vec<u32> = (0..before).map(|n| (n * 7) % 300).collect();
        let sampling = Sampling {
            frequency_penalty: 0.37,
            repetition_penalty: 1.2,
            penalty_window: window,
            ..Sampling::greedy()
        };
        let (tokens, shaped) = on_host(&sampling, row, &history, 64);
        let found = sample_one(&mut bench, row, sample_row(&sampling, &history, &[0.0; 64]), 64);
        assert_eq!(found.tokens, tokens, "window {window}, {before} tokens before");
        assert_shaped(&found, &shaped);
        assert_eq!((found.row.token, found.row.position), (tokens[63], 64));
    }
}

/// The device has what was written before, and what it sampled since.
#[test]
fn histories_go_on_shrink_and_change() {
    let gpu = gpu::open();
    let vocabulary = 300;
    let mut bench = SampleBench::new(&gpu, vocabulary, 2).unwrap();
    let row = &rows(vocabulary)[0].1;
    let sampling = Sampling { frequency_penalty: 0.5, temperature: 0.8, ..Sampling::default() };
    let mut tokens = [history(600, 300), history(900, 250)];
    for round in 0..8 {
        match round {
            // Sequences change places, one is cut short, one begins anew.
            3 => tokens.swap(0, 1),
            5 => tokens[0].truncate(400),
            6 => tokens[1] = history(700, 200),
            _ => (),
        }
        let numbers = uniforms(sampling.seed, 3);
        let asked = tokens.each_ref().map(|tokens| sample_row(&sampling, tokens, &numbers));
        let found = bench.sample(&row.repeat(2), &asked, 3).unwrap();
        for (tokens, found) in tokens.iter_mut().zip(found) {
            let (expected, _) = on_host(&sampling, row, tokens, 3);
            assert_eq!(found.tokens, expected, "round {round}");
            tokens.extend(expected);
        }
    }
}

fn assert_near(found: f32, expected: f32, what: &str) {
    let near = (found - expected).abs() <= 4e-6 * (1.0 + expected.abs());
    assert!(near || found == expected, "{found} for {expected}: {what}");
}

#[test]
fn log_probabilities_equal_the_host() {
    let gpu = gpu::open();
    for vocabulary in VOCABULARIES {
        let rows = rows(vocabulary);
        let mut bench = SampleBench::new(&gpu, vocabulary, rows.len()).unwrap();
        let logits: Vec<f32> = rows.iter().flat_map(|(_, row)| row).copied().collect();
        for (turn, top) in [20, 0, 1, 7].into_iter().enumerate() {
            // Of the model's own logits, whatever is sampled from.
            let sampling = match turn {
                0 => Sampling { logit_bias: vec![(3, 5.0)], top_k: 5, ..Sampling::default() },
                1 => Sampling { repetition_penalty: 1.5, ..Sampling::greedy() },
                _ => Sampling::default(),
            };
            let numbers = uniforms(1, 2);
            let asked = SampleRow {
                top_logprobs: Some(top),
                ..sample_row(&sampling, &[1, 2, 3], &numbers)
            };
            let found = bench.sample(&logits, &vec![asked; rows.len()], 2).unwrap();
            let mut host = Sampler::new(sampling.clone(), vocabulary).unwrap();
            for ((name, row), found) in rows.iter().zip(found) {
                assert_eq!(found.logprobs.len(), 2);
                for (&token, (sampled, best)) in found.tokens.iter().zip(&found.logprobs) {
                    let what = format!("{name}, {vocabulary} tokens, top {top}");
                    let mut ranked = Vec::new();
                    let expected = host.logprobs(row, token, top, &mut ranked);
                    assert_near(*sampled, expected, &what);
                    let ids =
                        |list: &[(u32, f32)]| list.iter().map(|&(id, _)| id).collect::<Vec<_>>();
                    assert_eq!(ids(best), ids(&ranked), "{what}");
                    for (found, expected) in best.iter().zip(&ranked) {
                        assert_near(found.1, expected.1, &what);
                    }
                }
            }
        }
    }
}

fn mask_of(vocabulary: usize, allowed: impl Fn(usize) -> bool) -> Vec<u32> {
    let mut mask = vec![0; vocabulary.div_ceil(32)];
    (0..vocabulary).filter(|&id| allowed(id)).for_each(|id| mask[id / 32] |= 1 << (id % 32));
    mask
}

#[test]
fn only_tokens_of_the_mask_are_sampled() {
    let gpu = gpu::open();
    for vocabulary in [7, 1000, 49_152, 262_208] {
        let row = &rows(vocabulary)[0].1;
        let mut bench = SampleBench::new(&gpu, vocabulary, 1).unwrap();
        let (nucleus, random) = (
            Sampling { top_p: 0.9, ..Sampling::default() },
            Sampling { top_k: 9, ..Sampling::default() },
        );
        for (turn, sampling) in
            [Sampling::greedy(), Sampling::default(), nucleus, random].iter().enumerate()
        {
            let masks: [&dyn Fn(usize) -> bool; 4] =
                [&|id| id % 3 == 1, &|id| id == vocabulary - 1, &|id| id < 5, &|_| true];
            for (index, allowed) in masks.into_iter().enumerate() {
                let mask = mask_of(vocabulary, allowed);
                let numbers = uniforms(turn as u64, 1);
                let asked = SampleRow {
                    mask: Some(&mask),
                    top_logprobs: Some(3),
                    ..sample_row(sampling, &[], &numbers)
                };
                let found = sample_one(&mut bench, row, asked, 1);
                let masked: Vec<f32> = row
                    .iter()
                    .enumerate()
                    .map(|(id, &l)| if allowed(id) { l } else { BAN })
                    .collect();
                let sampling = Sampling { seed: turn as u64, ..sampling.clone() };
                let (tokens, _) = on_host(&sampling, &masked, &[], 1);
                let what = format!("mask {index}, {vocabulary} tokens, {sampling:?}");
                let number = uniform(turn as u64, 0);
                let same = found.tokens == tokens
                    || is_at_boundary(&sampling, &masked, number, found.tokens[0]);
                assert!(same && allowed(found.tokens[0] as usize) && !found.broken, "{what}");
                assert_eq!(found.logits, masked);
                // Log probabilities are those of all tokens.
                let mut host = Sampler::new(sampling, vocabulary).unwrap();
                let mut ranked = Vec::new();
                let expected = host.logprobs(row, found.tokens[0], 3, &mut ranked);
                assert_near(found.logprobs[0].0, expected, &what);
                assert_eq!(found.logprobs[0].1[0].0, ranked[0].0, "{what}");
            }
            let nothing = vec![0; vocabulary.div_ceil(32)];
            let asked = SampleRow { mask: Some(&nothing), ..sample_row(sampling, &[], &[0.5]) };
            assert!(sample_one(&mut bench, row, asked, 1).broken, "nothing is allowed");
        }
    }
}

/// Options of a row of a batch: both kinds of rows, and every stage.
fn options_of(index: usize) -> Sampling {
    let random = Sampling { seed: index as u64, ..Sampling::default() };
    match index % 6 {
        0 => Sampling { temperature: 0.0, ..random },
        1 => random,
        2 => Sampling { top_k: 40, temperature: 0.8, ..random },
        3 => Sampling { top_p: 0.9, frequency_penalty: 0.3, ..random },
        4 => Sampling { top_k: 200, top_p: 0.8, logit_bias: biases(100, 1000), ..random },
        _ => Sampling { temperature: 0.0, repetition_penalty: 1.3, ..random },
    }
}

#[test]
fn rows_do_not_influence_one_another() {
    const PLAYS: usize = 3;
    const COUNT: usize = 24;
    let gpu = gpu::open();
    let vocabulary = 5000;
    let kinds = rows(vocabulary);
    let row = |index: usize| &kinds[index % kinds.len()].1;
    let samplings: Vec<Sampling> = (0..COUNT).map(options_of).collect();
    let histories: Vec<Vec<u32>> = (0..COUNT as u32).map(|n| history(40 * n, 5000)).collect();
    let numbers: Vec<Vec<f32>> =
        samplings.iter().map(|sampling| uniforms(sampling.seed, PLAYS)).collect();
    let asked = |index: usize| {
        let asked = sample_row(&samplings[index], &histories[index], &numbers[index]);
        SampleRow { top_logprobs: (index % 4 == 3).then_some(5), ..asked }
    };
    let bits = |found: &Sampled| {
        let logits: Vec<u32> = found.logits.iter().map(|logit| logit.to_bits()).collect();
        let logprobs = format!("{:?}", found.logprobs);
        (found.tokens.clone(), found.broken, found.row.token, logits, logprobs)
    };
    let mut bench = SampleBench::new(&gpu, vocabulary, 1).unwrap();
    let alone: Vec<Sampled> =
        (0..COUNT).map(|index| sample_one(&mut bench, row(index), asked(index), PLAYS)).collect();
    let mut bench = SampleBench::new(&gpu, vocabulary, COUNT + 3).unwrap();
    for turn in [0, 5, COUNT - 1] {
        let order: Vec<usize> = (0..COUNT).map(|slot| (slot + turn) % COUNT).collect();
        let logits: Vec<f32> = order.iter().flat_map(|&index| row(index)).copied().collect();
        let samples: Vec<SampleRow<'_>> = order.iter().map(|&index| asked(index)).collect();
        let found = bench.sample(&logits, &samples, PLAYS).unwrap();
        for ((slot, &index), found) in order.iter().enumerate().zip(&found) {
            assert!(bits(found) == bits(&alone[index]), "row {index} in slot {slot}");
        }
    }
}
