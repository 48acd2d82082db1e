//! Rows of logits, and what the host's sampler makes of them.

#![allow(dead_code, reason = "each test uses a part")]

use pianola_engine::sampler::{Sampler, Sampling, uniform};
use pianola_plan::SampleRow;
use pianola_vulkan::{SampleBench, Sampled};

pub const BAN: f32 = f32::NEG_INFINITY;
/// Random numbers of the positions 0 to `plays` - 1, as the host's sampler uses them.
pub fn uniforms(seed: u64, plays: usize) -> Vec<f32> {
    (0..plays as u64).map(|position| uniform(seed, position) as f32).collect()
}

/// Rows with what can go wrong in them, by name.
pub fn rows(vocabulary: usize) -> Vec<(&'static str, Vec<f32>)> {
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

/// A row that nothing stops.
pub fn sample_row<'a>(
    sampling: &'a Sampling,
    history: &'a [u32],
    uniforms: &'a [f32],
) -> SampleRow<'a> {
    SampleRow { history, ..SampleRow::new(sampling, uniforms) }
}

/// Samples `plays` times from one row of logits.
pub fn sample_one(
    bench: &mut SampleBench,
    logits: &[f32],
    row: SampleRow<'_>,
    plays: usize,
) -> Sampled {
    bench.sample(logits, &[row], plays).unwrap().remove(0)
}

/// A token's share of [0, 1), from which the host samples it, and how near the cuts are to keeping
/// one token more or less. Worked out by sorting, in f64, from the logits after bias and penalties.
struct Share {
    start: f64,
    end: f64,
    nearest_cut: f64,
}

impl Share {
    fn of(sampling: &Sampling, logits: &[f32], token: u32) -> Share {
        let usable = |&id: &usize| logits[id] > BAN;
        let mut order: Vec<usize> = (0..logits.len()).filter(usable).collect();
        // Zeros of both signs are equal, and the sort is stable: ties go to low ids.
        order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap());
        if sampling.top_k > 0 {
            order.truncate(sampling.top_k);
        }
        let best = f64::from(logits[order[0]]);
        let temperature = f64::from(sampling.temperature);
        let weight = |id: usize| ((f64::from(logits[id]) - best) / temperature).exp();
        let sum = |ids: &[usize]| ids.iter().map(|&id| weight(id)).sum::<f64>();
        let mut nearest_cut = 1f64;
        if sampling.top_p < 1.0 {
            let (mut kept, mut mass) = (0, 0.0);
            let total = sum(&order);
            while kept == 0 || (kept < order.len() && mass / total < f64::from(sampling.top_p)) {
                mass += weight(order[kept]);
                kept += 1;
                nearest_cut = nearest_cut.min((mass / total - f64::from(sampling.top_p)).abs());
            }
            order.truncate(kept);
        }
        if sampling.min_p > 0.0 {
            order.retain(|&id| {
                nearest_cut = nearest_cut.min((weight(id) - f64::from(sampling.min_p)).abs());
                weight(id) >= f64::from(sampling.min_p)
            });
        }
        order.sort_unstable();
        let total = sum(&order);
        let before: Vec<usize> =
            order.iter().copied().take_while(|&id| id < token as usize).collect();
        let start = sum(&before) / total;
        let kept = order.contains(&(token as usize));
        let end = start + if kept { weight(token as usize) / total } else { 0.0 };
        Share { start, end, nearest_cut }
    }
}

/// Whether the host may as well have sampled this token: the uniform number lies in or near its
/// share, or a cut is so near that rounding decides it.
pub fn is_at_boundary(sampling: &Sampling, logits: &[f32], number: f64, token: u32) -> bool {
    // A uniform number and the sums of f32 are good to about 1e-7.
    const NEAR: f64 = 2e-6;
    let share = Share::of(sampling, logits, token);
    let near = (share.start - NEAR..share.end + NEAR).contains(&number);
    near || share.nearest_cut < NEAR
}

/// The host's tokens, each accepted before the next is sampled, and the logits of the last.
pub fn on_host(
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

pub fn assert_shaped(found: &Sampled, expected: &[f32]) {
    for (id, (&found, &expected)) in found.logits.iter().zip(expected).enumerate() {
        // A GPU may divide with an error of 2.5 units in the last place of the quotient, from which
        // penalties of up to about one are then subtracted.
        let near = (found - expected).abs() <= 4e-7 * (1.0 + expected.abs()) || found == expected;
        assert!(near || (found.is_nan() && expected.is_nan()), "{id}: {found} for {expected}");
    }
}
