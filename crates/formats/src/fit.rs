//! Scales for a block of weights: searches the few that leave the least squared error.

use half::f16;

/// Rounds to f16, saturating where `f16::from_f32` would give an infinity; NaN becomes 0.
pub(crate) fn saturating_half(value: f32) -> f16 {
    if value.is_nan() {
        return f16::ZERO;
    }
    f16::from_f32(value.clamp(-65504.0, 65504.0))
}

/// The value of greatest magnitude with its sign; 0 for a block of zeros (or NaN).
pub(crate) fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(0.0f32, |best, &v| if v.abs() > best.abs() { v } else { best })
}

/// The integer in `low..=high` (of magnitude below 2^22) nearest to `value * inverse`, ties to
/// even; NaN goes to `low`.
pub(crate) fn nearest(value: f32, inverse: f32, low: f32, high: f32) -> f32 {
    // From 1.5 * 2^23 on, singles are whole numbers: adding it rounds, and unlike `round`, which
    // is a library call on the baseline instruction set, it vectorises.
    const WHOLE: f32 = 12_582_912.0;
    ((value * inverse).max(low).min(high) + WHOLE) - WHOLE
}

/// `1 / scale`, or 0 for a scale of 0, which sends every weight to 0.
pub(crate) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// A scale `d` such that `d * q`, with integers `q` in `low..=high`, approximates the weights.
///
/// The plain choice sends the extreme weight to `low`, whose magnitude is one larger than
/// `high`'s. Shrinking or stretching it a little, or sending the extreme to `high`, often
/// rounds the rest better: each candidate is refitted by least squares, rounded to f16 as it will
/// be stored, and judged by the squared error it then leaves. So the result is never worse than
/// the plain choice.
pub(crate) fn scale(values: &[f32], low: f32, high: f32) -> f16 {
    let extreme = extreme(values);
    if extreme == 0.0 {
        return f16::ZERO;
    }
    let plain = saturating_half(extreme / low);
    let mut best = (scale_error(values, plain, low, high), plain);
    for step in -4i8..=4 {
        let divisor = low - 0.2 * f32::from(step);
        for candidate in [extreme / divisor, -extreme / divisor] {
            let inverse = inverse(candidate);
            let (mut product, mut square) = (0.0f32, 0.0f32);
            for &value in values {
                let q = nearest(value, inverse, low, high);
                product += value * q;
                square += q * q;
            }
            if square > 0.0 {
                let refitted = saturating_half(product / square);
                let error = scale_error(values, refitted, low, high);
                if error < best.0 {
                    best = (error, refitted);
                }
            }
        }
    }
    best.1
}

/// Squared error of rounding the weights to multiples of a scale.
fn scale_error(values: &[f32], scale: f16, low: f32, high: f32) -> f32 {
    let scale = scale.to_f32();
    let inverse = inverse(scale);
    values
        .iter()
        .map(|&value| {
            let error = value - scale * nearest(value, inverse, low, high);
            error * error
        })
        .sum()
}

/// A scale and a minimum: `scale * q + minimum` with `q` in `0..=levels`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Affine {
    pub(crate) scale: f16,
    pub(crate) minimum: f16,
}

impl Affine {
    /// The integer that stands for a weight.
    pub(crate) fn quantize(self, value: f32, levels: f32) -> f32 {
        nearest(value - self.minimum.to_f32(), inverse(self.scale.to_f32()), 0.0, levels)
    }

    /// Squared error over the weights.
    fn error(self, values: &[f32], levels: f32) -> f32 {
        let (scale, minimum) = (self.scale.to_f32(), self.minimum.to_f32());
        values
            .iter()
            .map(|&value| {
                let error = value - (scale * self.quantize(value, levels) + minimum);
                error * error
            })
            .sum()
    }

    /// The least-squares scale and minimum for the integers this choice assigns.
    fn refitted(self, values: &[f32], levels: f32) -> Affine {
        let count = values.len() as f32;
        let (mut sum_q, mut sum_v, mut sum_qq, mut sum_qv) = (0.0f32, 0.0f32, 0.0f32, 0.0f32);
        for &value in values {
            let q = self.quantize(value, levels);
            sum_q += q;
            sum_v += value;
            sum_qq += q * q;
            sum_qv += q * value;
        }
        let determinant = count * sum_qq - sum_q * sum_q;
        if determinant <= 0.0 {
            return self;
        }
        let scale = (count * sum_qv - sum_q * sum_v) / determinant;
        let minimum = (sum_v - scale * sum_q) / count;
        Affine { scale: saturating_half(scale), minimum: saturating_half(minimum) }
    }
}

/// The smallest and the largest weight; NaN is passed over.
pub(crate) fn range(values: &[f32]) -> (f32, f32) {
    let start = (f32::INFINITY, f32::NEG_INFINITY);
    let (low, high) = values.iter().fold(start, |(low, high), &v| (low.min(v), high.max(v)));
    if low > high { (0.0, 0.0) } else { (low, high) }
}

/// A scale and a minimum for a block: the plain range, or a slightly narrower one refitted, if
/// that leaves less squared error.
pub(crate) fn affine(values: &[f32], levels: f32) -> Affine {
    let (low, high) = range(values);
    let span = |from: f32, to: f32| Affine {
        scale: saturating_half((to - from) / levels),
        minimum: saturating_half(from),
    };
    let plain = span(low, high);
    let mut best = (plain.error(values, levels), plain);
    for step in 0u8..6 {
        let cut = (high - low) * 0.015 * f32::from(step);
        let candidate = span(low + cut, high - cut).refitted(values, levels);
        let error = candidate.error(values, levels);
        if error < best.0 {
            best = (error, candidate);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp() -> Vec<f32> {
        // Deterministic, irregular, both signs: quadratic residues of a prime.
        (0..32).map(|i| ((i * i * 37 + 11 * i) % 101) as f32 / 50.5 - 1.0).collect()
    }

    #[test]
    fn search_is_never_worse_than_the_plain_scale() {
        for shift in [-0.5f32, 0.0, 0.3] {
            let values: Vec<f32> = ramp().iter().map(|v| v + shift).collect();
            for (low, high) in [(-8.0, 7.0), (-16.0, 15.0)] {
                let plain = saturating_half(extreme(&values) / low);
                let found = scale(&values, low, high);
                let found_error = scale_error(&values, found, low, high);
                assert!(found_error <= scale_error(&values, plain, low, high));
            }
        }
    }

    #[test]
    fn exact_multiples_are_found_exactly() {
        let values: Vec<f32> = (0..32).map(|i| (i % 16 - 8) as f32 * 0.25).collect();
        assert_eq!(scale_error(&values, scale(&values, -8.0, 7.0), -8.0, 7.0), 0.0);
        let values: Vec<f32> = (0..32).map(|i| (i % 16) as f32 * 0.25 + 3.0).collect();
        let fit = affine(&values, 15.0);
        assert_eq!((fit.scale.to_f32(), fit.minimum.to_f32()), (0.25, 3.0));
    }

    #[test]
    fn constant_blocks_are_kept() {
        let fit = affine(&[1.5; 32], 15.0);
        assert_eq!(fit.error(&[1.5; 32], 15.0), 0.0);
        assert_eq!(scale(&[0.0; 32], -8.0, 7.0), f16::ZERO);
    }
}
