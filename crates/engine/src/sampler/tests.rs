use proptest::prelude::*;

use super::*;

const BAN: f32 = f32::NEG_INFINITY;

fn sampler(sampling: Sampling, vocabulary: usize) -> Sampler {
    Sampler::new(sampling, vocabulary).unwrap()
}

/// What [`Sampler::logprobs`] finds.
#[derive(Debug, PartialEq)]
struct LogProbs {
    sampled: f32,
    top: Vec<(u32, f32)>,
}

fn logprobs(sampler: &mut Sampler, logits: &[f32], token: u32, count: usize) -> LogProbs {
    let mut top = Vec::new();
    let sampled = sampler.logprobs(logits, token, count, &mut top);
    LogProbs { sampled, top }
}

/// The ids left after all cuts.
fn kept(sampling: Sampling, logits: &[f32]) -> Vec<u32> {
    let mut sampler = sampler(sampling, logits.len());
    let mut logits = logits.to_vec();
    sampler.shape(&mut logits);
    sampler.cut(&logits, numeric::maximum(&logits));
    sampler.candidates.iter().map(|(id, _)| id).collect()
}

/// The logits after bias and penalties, with `history` accepted before.
fn shaped(sampling: Sampling, history: &[u32], logits: &[f32]) -> Vec<f32> {
    let mut sampler = sampler(sampling, logits.len());
    history.iter().for_each(|&token| sampler.accept(token));
    let mut logits = logits.to_vec();
    sampler.shape(&mut logits);
    logits
}

/// Logits of these probabilities.
fn logs(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

#[test]
fn greedy_takes_the_largest_and_of_equals_the_lowest_id() {
    let mut greedy = sampler(Sampling::greedy(), 1000);
    let mut logits = vec![-1.0; 1000];
    for id in [999, 500, 64, 33] {
        logits[id] = 3.0;
        assert_eq!(greedy.sample(&mut logits, 0), id as u32);
    }
    logits[700] = 3.5;
    assert_eq!(greedy.sample(&mut logits, 0), 700);
}

#[test]
fn columns_beyond_the_vocabulary_are_padding() {
    let mut greedy = sampler(Sampling::greedy(), 2);
    assert_eq!(greedy.sample(&mut [1.0, 2.0, 9.0], 0), 1);
}

#[test]
fn hostile_logits_have_a_defined_answer() {
    for sampling in [Sampling::greedy(), Sampling { top_p: 0.9, ..Sampling::default() }] {
        let mut sampler = sampler(sampling, 4);
        let inf = f32::INFINITY;
        assert_eq!(sampler.sample(&mut [0.0, inf, 9.0, inf], 7), 1);
        assert_eq!(sampler.sample(&mut [f32::NAN, f32::NAN, -3.0, BAN], 7), 2);
        assert_eq!(sampler.sample(&mut [f32::NAN; 4], 7), 0);
        assert_eq!(sampler.sample(&mut [BAN; 4], 7), 0);
        assert_eq!(sampler.sample(&mut [], 7), 0);
    }
}

#[test]
fn top_k_keeps_the_best_with_ties_to_low_ids() {
    let logits = [1.0, 3.0, 2.0, 3.0, 2.0];
    let top = |top_k| kept(Sampling { top_k, ..Sampling::default() }, &logits);
    assert_eq!(top(1), [1]);
    assert_eq!(top(2), [1, 3]);
    assert_eq!(top(3), [1, 2, 3]);
    assert_eq!(top(0), [0, 1, 2, 3, 4]);
    assert_eq!(top(9), [0, 1, 2, 3, 4]);
}

#[test]
fn top_p_keeps_the_fewest_that_reach_the_mass() {
    let logits = logs(&[0.1, 0.5, 0.25, 0.15]);
    let nucleus = |top_p| kept(Sampling { top_p, ..Sampling::default() }, &logits);
    assert_eq!(nucleus(0.0), [1]);
    assert_eq!(nucleus(0.49), [1]);
    assert_eq!(nucleus(0.51), [1, 2]);
    assert_eq!(nucleus(0.76), [1, 2, 3]);
    assert_eq!(nucleus(0.91), [0, 1, 2, 3]);
}

#[test]
fn top_p_measures_among_what_top_k_left() {
    // After top-k 2 the masses are 2/3 and 1/3: 0.6 needs one token, where 0.6 of all needs two.
    let logits = logs(&[0.5, 0.25, 0.25]);
    let top_p = 0.6;
    assert_eq!(kept(Sampling { top_p, ..Sampling::default() }, &logits), [0, 1]);
    assert_eq!(kept(Sampling { top_p, top_k: 2, ..Sampling::default() }, &logits), [0]);
}

#[test]
fn min_p_compares_with_the_best() {
    let logits = logs(&[0.5, 0.3, 0.15, 0.05]);
    let from = |min_p| kept(Sampling { min_p, ..Sampling::default() }, &logits);
    // The ratios to the best are 1, 0.6, 0.3, 0.1.
    assert_eq!(from(0.61), [0]);
    assert_eq!(from(0.59), [0, 1]);
    assert_eq!(from(0.29), [0, 1, 2]);
    assert_eq!(from(0.09), [0, 1, 2, 3]);
}

#[test]
fn temperature_acts_before_the_cuts() {
    // Ratio 0.25 at temperature 1 is 0.5 at 2 and 0.0625 at 0.5.
    let logits = logs(&[0.8, 0.2]);
    let hot =
        |temperature| kept(Sampling { temperature, min_p: 0.4, ..Sampling::default() }, &logits);
    assert_eq!(hot(2.0), [0, 1]);
    assert_eq!(hot(1.0), [0]);
    assert_eq!(hot(1e-40), [0]);
}

#[test]
fn penalties_by_hand() {
    let logits = [4.0, -4.0, 4.0, 1.0];
    let history = [0, 1, 1, 9];
    let repetition = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
    assert_eq!(shaped(repetition, &history, &logits), [2.0, -8.0, 4.0, 1.0]);
    let presence = Sampling { presence_penalty: 0.5, ..Sampling::default() };
    assert_eq!(shaped(presence, &history, &logits), [3.5, -4.5, 4.0, 1.0]);
    let frequency = Sampling { frequency_penalty: 0.5, ..Sampling::default() };
    assert_eq!(shaped(frequency, &history, &logits), [3.5, -5.0, 4.0, 1.0]);
}

#[test]
fn the_window_forgets() {
    let windowed =
        |penalty_window| Sampling { frequency_penalty: 1.0, penalty_window, ..Sampling::default() };
    let history = [0, 1, 1, 0, 2];
    let logits = [0.0; 3];
    assert_eq!(shaped(windowed(usize::MAX), &history, &logits), [-2.0, -2.0, -1.0]);
    assert_eq!(shaped(windowed(3), &history, &logits), [-1.0, -1.0, -1.0]);
    assert_eq!(shaped(windowed(1), &history, &logits), [0.0, 0.0, -1.0]);
    assert_eq!(shaped(windowed(0), &history, &logits), [0.0, 0.0, 0.0]);
}

#[test]
fn bias_adds_up_and_bans() {
    let logit_bias = vec![(0, 1.0), (0, 2.0), (2, BAN)];
    let sampling = Sampling { logit_bias, ..Sampling::default() };
    assert_eq!(shaped(sampling.clone(), &[], &[1.0, 1.0, 50.0]), [4.0, 1.0, BAN]);
    assert_eq!(kept(sampling, &[1.0, 1.0, 50.0]), [0, 1]);
}

#[test]
fn a_choice_depends_on_seed_and_position_only() {
    let row: Vec<f32> = (0..500).map(|id| (id as f32 * 0.7).sin() * 3.0).collect();
    let choose = |sampler: &mut Sampler, position| sampler.sample(&mut row.clone(), position);
    let options = Sampling { seed: 42, top_p: 0.95, ..Sampling::default() };

    let mut forward = sampler(options.clone(), row.len());
    let ahead: Vec<u32> = (0..64).map(|position| choose(&mut forward, position)).collect();
    let mut backward = sampler(options.clone(), row.len());
    let mut back: Vec<u32> =
        (0..64).rev().map(|position| choose(&mut backward, position)).collect();
    back.reverse();
    assert_eq!(ahead, back);

    let mut other = sampler(Sampling { seed: 43, ..options }, row.len());
    let elsewhere: Vec<u32> = (0..64).map(|position| choose(&mut other, position)).collect();
    assert_ne!(ahead, elsewhere);
}

/// Fails when the counts are less likely than one in a million under the probabilities.
fn assert_distributed(counts: &[u64], probabilities: &[f64]) {
    let draws = counts.iter().sum::<u64>() as f64;
    let statistic: f64 = counts
        .iter()
        .zip(probabilities)
        .map(|(&count, p)| (count as f64 - draws * p).powi(2) / (draws * p))
        .sum();
    // Laurent and Massart (2000): P(χ²_d ≥ d + 2 √(d x) + 2 x) ≤ exp(-x).
    let (freedom, x) = ((counts.len() - 1) as f64, 1e6f64.ln());
    let bound = freedom + 2.0 * (freedom * x).sqrt() + 2.0 * x;
    assert!(statistic < bound, "χ² = {statistic}, bound {bound}, counts {counts:?}");
}

#[test]
fn draws_follow_the_distribution() {
    let probabilities = [0.4, 0.05, 0.3, 0.15, 0.1];
    let row: Vec<f32> = probabilities.iter().map(|p: &f64| p.ln() as f32).collect();
    const DRAWS: u64 = 100_000;

    let mut along_positions = [0; 5];
    let mut one = sampler(Sampling { seed: 1, ..Sampling::default() }, 5);
    for position in 0..DRAWS {
        along_positions[one.sample(&mut row.clone(), position) as usize] += 1;
    }
    assert_distributed(&along_positions, &probabilities);

    let mut along_seeds = [0; 5];
    for seed in 0..DRAWS {
        let mut one = sampler(Sampling { seed, ..Sampling::default() }, 5);
        along_seeds[one.sample(&mut row.clone(), 3) as usize] += 1;
    }
    assert_distributed(&along_seeds, &probabilities);
}

#[test]
fn draws_follow_the_distribution_after_cuts_and_over_many_blocks() {
    // Temperature 2 turns the weights w into √w; ids are spread over more than one block.
    let weights = [16.0, 9.0, 4.0, 1.0, 1.0];
    let mut row = vec![BAN; 2000];
    for (place, weight) in weights.iter().enumerate() {
        row[place * 450] = f32::ln(*weight);
    }
    let options = Sampling { temperature: 2.0, top_k: 4, seed: 9, ..Sampling::default() };
    let mut one = sampler(options, row.len());
    let mut counts = [0; 4];
    for position in 0..20_000 {
        counts[one.sample(&mut row.clone(), position) as usize / 450] += 1;
    }
    assert_distributed(&counts, &[0.4, 0.3, 0.2, 0.1]);

    // A flat row of many blocks: each eighth of the ids gets an eighth of the draws.
    let mut flat = sampler(Sampling::default(), 4096);
    let mut counts = [0; 8];
    for position in 0..20_000 {
        counts[flat.sample(&mut [0.5; 4096], position) as usize / 512] += 1;
    }
    assert_distributed(&counts, &[0.125; 8]);
}

#[test]
fn consecutive_random_numbers_are_independent() {
    // Pairs of neighbours in an 8 × 8 grid; neighbouring seeds too.
    let cell = |u: f64| (u * 8.0) as usize;
    let (mut positions, mut seeds) = ([0; 64], [0; 64]);
    for n in 0..100_000 {
        positions[cell(uniform(5, 2 * n)) * 8 + cell(uniform(5, 2 * n + 1))] += 1;
        seeds[cell(uniform(2 * n, 5)) * 8 + cell(uniform(2 * n + 1, 5))] += 1;
    }
    assert_distributed(&positions, &[1.0 / 64.0; 64]);
    assert_distributed(&seeds, &[1.0 / 64.0; 64]);
}

#[test]
fn log_probabilities_by_hand() {
    let mut any = sampler(Sampling::default(), 5);
    let mut row = logs(&[0.125, 0.5, 0.25, 0.125]);
    row.push(f32::NAN);
    let found = logprobs(&mut any, &row, 2, 3);
    assert!((found.sampled - 0.25f32.ln()).abs() < 1e-6);
    assert_eq!(found.top.iter().map(|&(id, _)| id).collect::<Vec<_>>(), [1, 2, 0]);
    for (&(_, found), right) in found.top.iter().zip([0.5f32, 0.25, 0.125]) {
        assert!((found - right.ln()).abs() < 1e-6);
    }
    assert_eq!(logprobs(&mut any, &row, 4, 9).sampled, BAN);
    assert_eq!(logprobs(&mut any, &row, 4, 9).top.len(), 4);
    assert_eq!(logprobs(&mut any, &row, 77, 0), LogProbs { sampled: BAN, top: vec![] });

    let inf = f32::INFINITY;
    let half = -(2f32.ln());
    let found = logprobs(&mut any, &[inf, 0.0, inf], 2, 2);
    assert_eq!(found, LogProbs { sampled: half, top: vec![(0, half), (2, half)] });
}

#[test]
fn what_is_not_allowed_is_named() {
    let default = Sampling::default;
    let cases = [
        (Sampling { temperature: -1.0, ..default() }, "temperature is -1"),
        (Sampling { temperature: f32::NAN, ..default() }, "temperature is NaN"),
        (Sampling { temperature: f32::INFINITY, ..default() }, "temperature is inf"),
        (Sampling { top_p: 1.5, ..default() }, "top_p is 1.5, allowed is 0 to 1"),
        (Sampling { min_p: -0.1, ..default() }, "min_p is -0.1"),
        (Sampling { repetition_penalty: 0.0, ..default() }, "repetition_penalty is 0"),
        (Sampling { presence_penalty: f32::NAN, ..default() }, "presence_penalty is NaN"),
        (Sampling { frequency_penalty: BAN, ..default() }, "frequency_penalty is -inf"),
        (Sampling { logit_bias: vec![(1, f32::NAN)], ..default() }, "logit_bias is NaN"),
        (Sampling { logit_bias: vec![(5, 1.0)], ..default() }, "token 5, allowed are 0 to 4"),
    ];
    for (sampling, words) in cases {
        let error = Sampler::new(sampling, 5).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(Sampler::new(default(), 0).unwrap_err(), SamplingError::Vocabulary(0));
}

fn any_logit() -> impl Strategy<Value = f32> {
    let special = [f32::NAN, f32::INFINITY, BAN, f32::MAX, f32::MIN, 0.0, -0.0, f32::MIN_POSITIVE];
    prop_oneof![4 => -20f32..20.0, 1 => any::<u32>().prop_map(f32::from_bits), 1 => prop::sample::select(special.to_vec())]
}

prop_compose! {
    fn any_sampling()(
        temperature in prop_oneof![Just(0.0), 0f32..3.0, Just(f32::MIN_POSITIVE), Just(f32::MAX)],
        top_k in 0usize..40,
        top_p in prop_oneof![Just(1.0), Just(0.0), 0f32..1.0],
        min_p in prop_oneof![Just(0.0), Just(1.0), 0f32..1.0],
        repetition_penalty in 0.1f32..3.0,
        presence_penalty in -2f32..2.0,
        frequency_penalty in -2f32..2.0,
        penalty_window in prop_oneof![0usize..9, Just(usize::MAX)],
        logit_bias in prop::collection::vec((0u32..30, any_logit().prop_filter("NaN", |b| !b.is_nan())), 0..4),
        seed: u64,
    ) -> Sampling {
        Sampling { temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty,
            frequency_penalty, penalty_window, logit_bias, seed }
    }
}

proptest! {
    #[test]
    fn any_row_gives_a_token_that_may_be_sampled(
        sampling in any_sampling(),
        mut logits in prop::collection::vec(any_logit(), 30..1500),
        history in prop::collection::vec(0u32..2000, 0..20),
        position: u64,
    ) {
        let mut sampler = Sampler::new(sampling, logits.len()).unwrap();
        history.iter().for_each(|&token| sampler.accept(token));
        let raw = logits.clone();
        let token = sampler.sample(&mut logits, position) as usize;
        prop_assert!(token < logits.len());
        // After sampling the row holds what was sampled from.
        let best = numeric::maximum(&logits);
        prop_assert!(best == BAN || logits[token] > BAN);
        prop_assert!(best < f32::INFINITY || logits[token] == best);
        let found = logprobs(&mut sampler, &raw, token as u32, 5);
        prop_assert!(found.top.iter().all(|&(_, log)| log <= 1e-5));
    }

    /// Coarse logits make ties frequent.
    #[test]
    fn cuts_keep_a_beginning_of_the_sorted_order(
        steps in prop::collection::vec(-12i32..12, 1..3000),
        top_k in 0usize..1500,
        top_p in prop_oneof![Just(1.0), 0f32..1.0],
        min_p in prop_oneof![Just(0.0), 0f32..0.3],
    ) {
        let logits: Vec<f32> = steps.iter().map(|&step| step as f32 * 0.5).collect();
        let best = numeric::maximum(&logits);
        let weight = |id: u32| f64::from(numeric::exponential(logits[id as usize] - best));
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        order.sort_by(|&a, &b| weight(b).total_cmp(&weight(a)).then(a.cmp(&b)));
        if top_k > 0 {
            order.truncate(top_k);
        }
        let mass = |ids: &[u32]| ids.iter().map(|&id| weight(id)).sum::<f64>();
        let target = mass(&order) * f64::from(top_p);

        let found = kept(Sampling { top_k, top_p, ..Sampling::default() }, &logits);
        let mut right = order[..found.len()].to_vec();
        right.sort_unstable();
        prop_assert_eq!(&found, &right);
        // Sums in another order differ by some 1e-16 of the total a term.
        prop_assert!(mass(&found) >= target * (1.0 - 1e-9));
        prop_assert!(found.len() == 1 || mass(&order[..found.len() - 1]) <= target * (1.0 + 1e-9));

        let thinned = kept(Sampling { top_k, top_p, min_p, ..Sampling::default() }, &logits);
        let right: Vec<u32> =
            found.into_iter().filter(|&id| weight(id) >= f64::from(min_p)).collect();
        prop_assert_eq!(thinned, right);
    }
}

/// Not a test of speed, a way to see it: `cargo test --release -- --ignored --nocapture time`.
#[test]
#[ignore = "prints times, checks nothing"]
fn time_of_a_choice_from_262144_tokens() {
    let row: Vec<f32> = (0..262_144).map(|id| uniform(1, id).ln() as f32 * -2.0).collect();
    let default = Sampling::default;
    let cases = [
        ("greedy", Sampling::greedy()),
        ("temperature", default()),
        ("top-k 40", Sampling { top_k: 40, ..default() }),
        ("top-p 0.95", Sampling { top_p: 0.95, ..default() }),
        ("all", Sampling { top_k: 64, top_p: 0.95, min_p: 0.05, ..default() }),
    ];
    for (name, sampling) in cases {
        let mut sampler = sampler(sampling, row.len());
        let mut row = row.clone();
        sampler.sample(&mut row, 0);
        let start = std::time::Instant::now();
        for position in 0..50 {
            std::hint::black_box(sampler.sample(&mut row, position));
        }
        println!("{name}: {:?}", start.elapsed() / 50);
    }
}
