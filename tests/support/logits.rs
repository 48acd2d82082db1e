//! Rows of logits, and what the host's sampler makes of them.

#![allow(dead_code, reason = "each test uses a part")]

pub use pianola_engine::sampler::is_at_boundary;
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
