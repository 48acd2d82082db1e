//! Rotary frequencies from their configuration.

use crate::config::{RopeConfig, RopeScaling};
use pianola_plan::{RopePairing, RopeSpec};
use std::f64::consts::TAU;

/// Radians a position for each pair of a head, and the magnitude.
pub(crate) fn rope_spec(config: &RopeConfig, head_dim: usize, pairing: RopePairing) -> RopeSpec {
    let pairs = head_dim / 2;
    let plain = |pair: usize| config.base.powf(-2.0 * pair as f64 / head_dim as f64);
    let mut magnitude = 1.0;
    let frequencies: Vec<f32> = (0..pairs)
        .map(|pair| {
            let frequency = plain(pair);
            match &config.scaling {
                RopeScaling::None => frequency,
                RopeScaling::Linear { factor } => frequency / factor,
                RopeScaling::Factors(factors) => {
                    frequency / f64::from(factors.get(pair).copied().unwrap_or(1.0))
                }
                RopeScaling::Llama3 { factor, low, high, original } => {
                    let turns = original * frequency / TAU;
                    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    kept * frequency + (1.0 - kept) * frequency / factor
                }
                RopeScaling::Yarn { factor, fast, slow, original, magnitude: of_file } => {
                    magnitude = *of_file;
                    let at = |turns: f64| {
                        head_dim as f64 * (original / (turns * TAU)).ln() / (2.0 * config.base.ln())
                    };
                    let start = at(*fast).floor().max(0.0);
                    let end = at(*slow).ceil().min(head_dim as f64 - 1.0);
                    let width = if end == start { 0.001 } else { end - start };
                    let divided = ((pair as f64 - start) / width).clamp(0.0, 1.0);
                    divided * frequency / factor + (1.0 - divided) * frequency
                }
            }
        })
        .map(|frequency| frequency as f32)
        .collect();
    RopeSpec { frequencies, magnitude: magnitude as f32, pairing }
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

    #[test]
    fn linear_divides_all() {
        let plain = spec(RopeScaling::None);
        let scaled = spec(RopeScaling::Linear { factor: 8.0 });
        assert!(plain.iter().zip(&scaled).all(|(p, s)| (p / 8.0 - s).abs() <= f32::EPSILON * p));
    }
}
