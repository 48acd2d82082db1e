//! Rotary frequencies from their configuration.

use crate::config::{RopeConfig, RopeScaling};
use pianola_plan::{LongFrequencies, RopePairing, RopeSpec};
use std::f64::consts::TAU;

/// Radians a position for each pair of a head, and the magnitude.
pub(crate) fn rope_spec(config: &RopeConfig, head_dim: usize, pairing: RopePairing) -> RopeSpec {
    let plain: Vec<f64> = (0..head_dim / 2)
        .map(|pair| config.base.powf(-2.0 * pair as f64 / head_dim as f64))
        .collect();
    let divided = |divisors: &[f32]| -> Vec<f64> {
        plain.iter().zip(divisors).map(|(plain, &divisor)| plain / f64::from(divisor)).collect()
    };
    let (mut magnitude, mut long) = (1.0, None);
    let frequencies: Vec<f64> = match &config.scaling {
        RopeScaling::None => plain,
        RopeScaling::Linear { factor } => plain.iter().map(|plain| plain / factor).collect(),
        RopeScaling::Factors(factors) => divided(factors),
        RopeScaling::Long { short, long: divisors, original, magnitude: of_file } => {
            magnitude = *of_file;
            let frequencies = rounded(&divided(divisors));
            long = Some(LongFrequencies { beyond: *original, frequencies });
            divided(short)
        }
        RopeScaling::Llama3 { factor, low, high, original } => {
            let ramp = |&frequency: &f64| {
                let turns = original * frequency / TAU;
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                kept * frequency + (1.0 - kept) * frequency / factor
            };
            plain.iter().map(ramp).collect()
        }
        RopeScaling::Yarn { factor, fast, slow, original, magnitude: of_file } => {
            magnitude = *of_file;
            let at = |turns: f64| {
                head_dim as f64 * (original / (turns * TAU)).ln() / (2.0 * config.base.ln())
            };
            let start = at(*fast).floor().max(0.0);
            let end = at(*slow).ceil().min(head_dim as f64 - 1.0);
            let width = if end == start { 0.001 } else { end - start };
            let ramp = |(pair, frequency): (usize, &f64)| {
                let divided = ((pair as f64 - start) / width).clamp(0.0, 1.0);
                divided * frequency / factor + (1.0 - divided) * frequency
            };
            plain.iter().enumerate().map(ramp).collect()
        }
    };
    RopeSpec { frequencies: rounded(&frequencies), magnitude: magnitude as f32, pairing, long }
}

fn rounded(frequencies: &[f64]) -> Vec<f32> {
    frequencies.iter().map(|&frequency| frequency as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(scaling: RopeScaling) -> Vec<f32> {
        let config = RopeConfig { base: 500_000.0, scaling };
        rope_spec(&config, 128, RopePairing::Halves).frequencies
    }

    #[test]
    fn llama3_keeps_high_frequencies_and_divides_low_ones() {
        let plain = spec(RopeScaling::None);
        let scaled =
            spec(RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 });
        assert_eq!(plain[0], 1.0);
        assert_eq!(scaled[0], plain[0]);
        assert!((scaled[63] - plain[63] / 8.0).abs() < 1e-12);
        assert!(scaled.windows(2).all(|pair| pair[1] < pair[0]));
        // Half-way: a wavelength of 8192 / 2.5 turns is kept to one half.
        let between = scaled.iter().zip(&plain).filter(|(s, p)| *s < *p && **s > **p / 8.0 * 1.01);
        assert!(between.count() > 5);
    }

    /// Qwen 2.5 stretched to four times its 32,768 tokens. Pairs that turn more than 32 times in these are
    /// kept, those that turn less than once are divided by 4; the borders, 23.60 and 39.65, are rounded
    /// outwards. The values are those of the formula, from a computation of its own.
    #[test]
    fn yarn_divides_by_turns_in_the_training_context() {
        let (factor, original, magnitude) = (4.0, 32_768.0, 1.138_629_4);
        let spec = |fast, slow| {
            let scaling = RopeScaling::Yarn { factor, fast, slow, original, magnitude };
            rope_spec(&RopeConfig { base: 1e6, scaling }, 128, RopePairing::Halves)
        };
        let ramp = spec(32.0, 1.0);
        assert_eq!(ramp.magnitude, 1.138_629_4);
        for (pair, expected) in [
            (0, 1.0),
            (23, 6.978_306e-3),
            (24, 5.375_321_5e-3),
            (31, 8.029_597e-4),
            (32, 6.029_412e-4),
            (39, 6.490_394e-5),
            (40, 4.445_698_5e-5),
            (63, 3.102_344_4e-7),
        ] {
            let found = ramp.frequencies[pair];
            assert!((found / expected - 1.0).abs() < 1e-6, "pair {pair}: {found} for {expected}");
        }
        // From 16 turns on the ramp begins at pair 26, from 26.81.
        let found = spec(16.0, 1.0).frequencies;
        assert_eq!(found[24], 5.623_413_3e-3);
        assert!((found[31] / 9.085_437e-4 - 1.0f32).abs() < 1e-6, "{}", found[31]);
    }

    #[test]
    fn linear_divides_all() {
        let plain = spec(RopeScaling::None);
        let scaled = spec(RopeScaling::Linear { factor: 8.0 });
        assert!(plain.iter().zip(&scaled).all(|(p, s)| (p / 8.0 - s).abs() <= f32::EPSILON * p));
    }
}
