//! The GPU's choice of tokens against the host's sampler: the same logits, the same random numbers.

#[path = "../../../tests/support/gpu.rs"]
mod gpu;

use pianola_engine::sampler::{Sampler, Sampling, uniform};
use pianola_plan::SampleRow;
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

/// A draw that nothing stops.
fn draw<'a>(sampling: &'a Sampling, history: &'a [u32], uniforms: &'a [f32]) -> SampleRow<'a> {
    SampleRow { history, ..SampleRow::new(sampling, uniforms) }
}

/// Chooses `plays` times from one row.
fn sample_one(bench: &mut SampleBench, row: &[f32], draw: SampleRow<'_>, plays: usize) -> Sampled {
    bench.sample(row, &[draw], plays).unwrap().remove(0)
}

#[test]
fn greedy_choices_equal_the_host() {
    let gpu = gpu::open();
    let greedy = Sampling::greedy();
    for vocabulary in VOCABULARIES {
        let rows = rows(vocabulary);
        let mut bench = SampleBench::new(&gpu, vocabulary, rows.len()).unwrap();
        let mut host = Sampler::new(greedy.clone(), vocabulary).unwrap();
        let logits: Vec<f32> = rows.iter().flat_map(|(_, row)| row).copied().collect();
        let draws = vec![draw(&greedy, &[], &[0.0]); rows.len()];
        let found = bench.sample(&logits, &draws, 1).unwrap();
        for ((name, row), found) in rows.into_iter().zip(found) {
            let expected = host.sample(&mut row.clone(), 0);
            assert_eq!(found.tokens, [expected], "{name}, {vocabulary} tokens");
            assert_eq!((found.row.token, found.row.position), (expected, 1));
            // Rows with NaN are told apart from those beside them.
            assert_eq!(found.broken, row.iter().any(|logit| logit.is_nan()), "{name}");
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
                let found = sample_one(&mut bench, &row, draw(&sampling, &[], &numbers), PLAYS);
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
        let found = sample_one(&mut bench, row, draw(&sampling, &history, &numbers), 6);
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
        let found = sample_one(&mut bench, row, draw(&sampling, &history, &[0.0; 64]), 64);
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
    // Each token that was chosen is banned from then on.
    let sampling = Sampling { frequency_penalty: 1e9, penalty_window: 256, ..Sampling::greedy() };
    let (tokens, _) = on_host(&sampling, row, &[], 8);
    let free = draw(&sampling, &[], &[0.0; 64]);
    let stops = [9999, tokens[5], tokens[3]];
    let draws = [
        free,
        SampleRow { stop_tokens: &stops, ..free },
        SampleRow { stop_tokens: &tokens[..1], ..free },
        // A play for which there is no random number does nothing, either.
        SampleRow { uniforms: &[0.0; 5], ..free },
    ];
    let found = bench.sample(&row.repeat(4), &draws, 8).unwrap();
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

/// Options of a lane, such that every step of the choice has some of them.
fn options_of(lane: usize) -> Sampling {
    let drawn = Sampling { seed: lane as u64, penalty_window: 256, ..Sampling::default() };
    match lane % 5 {
        0 => Sampling { temperature: 0.0, ..drawn },
        1 => Sampling { top_k: 40, temperature: 0.8, ..drawn },
        2 => Sampling { top_k: 64, top_p: 0.9, repetition_penalty: 1.2, ..drawn },
        3 => Sampling { temperature: 0.0, frequency_penalty: 0.5, penalty_window: 7, ..drawn },
        _ => Sampling {
            top_k: 1 + lane,
            min_p: 0.05,
            presence_penalty: 0.3,
            logit_bias: (0..lane as u32).map(|id| (id * 31, 4.0 - id as f32)).collect(),
            ..drawn
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
    fn draw(&self) -> SampleRow<'_> {
        SampleRow {
            stop_tokens: &self.stops,
            ..draw(&self.sampling, &self.history, &self.uniforms)
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
    let Sampled { tokens, halted, broken, row, logits } = found;
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
            .map(|lane| sample_one(&mut bench, &lane.logits, lane.draw(), PLAYS))
            .collect();
        // In any slot, and with room for more rows than there are.
        for (turn, room) in [(0, count), (5, count), (count - 1, count), (1, count + 3)] {
            let order: Vec<usize> = (0..count).map(|slot| (slot + turn) % count).collect();
            let mut bench = SampleBench::new(&gpu, vocabulary, room).unwrap();
            let logits: Vec<f32> =
                order.iter().flat_map(|&lane| &lanes[lane].logits).copied().collect();
            let draws: Vec<SampleRow<'_>> = order.iter().map(|&lane| lanes[lane].draw()).collect();
            let found = bench.sample(&logits, &draws, PLAYS).unwrap();
            for ((slot, &lane), found) in order.iter().enumerate().zip(&found) {
                assert!(bits(found) == bits(&alone[lane]), "lane {lane} in slot {slot} of {count}");
                assert_eq!(found.row.sequence, slot as u32);
            }
        }
    }
}

#[test]
fn lanes_choose_as_the_host_does() {
    let gpu = gpu::open();
    let (vocabulary, count) = (49_152, 48);
    let lanes = lanes(vocabulary, count, 1);
    let mut bench = SampleBench::new(&gpu, vocabulary, count).unwrap();
    let logits: Vec<f32> = lanes.iter().flat_map(|lane| &lane.logits).copied().collect();
    let draws: Vec<SampleRow<'_>> = lanes.iter().map(Lane::draw).collect();
    let found = bench.sample(&logits, &draws, 1).unwrap();
    let mut others = 0;
    for (index, (lane, found)) in lanes.iter().zip(&found).enumerate() {
        let (tokens, shaped) = on_host(&lane.sampling, &lane.logits, &lane.history, 1);
        assert_shaped(found, &shaped);
        if found.tokens != tokens {
            let number = uniform(lane.sampling.seed, 0);
            let distance = distance_to_boundary(&lane.sampling, &shaped, number);
            assert!(distance < 1e-4, "lane {index}: {:?} for {tokens:?}", found.tokens);
            others += 1;
        }
        assert_eq!(found.halted, lane.stops.contains(&found.tokens[0]), "lane {index}");
        assert_eq!(found.broken, lane.logits.iter().any(|logit| logit.is_nan()), "lane {index}");
    }
    assert!(others <= 2, "{others} of {count} fell to another token");
}

/// Not a test of speed, a way to see it: `cargo test --test gpu_sampling -- --ignored --nocapture`.
#[test]
#[ignore = "prints times, checks nothing"]
fn time_of_a_choice() {
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
        ] {
            let draws = vec![draw(&sampling, &history, &[]); lanes];
            let seconds = bench.time(&logits, &draws).unwrap();
            println!("{lanes} x {vocabulary} tokens, {name}: {:.1} µs", 1e6 * seconds);
        }
    }
}
