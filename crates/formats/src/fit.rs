//! Scales for a block of weights: searches the few that leave the least squared error.
//!
//! Candidates are tried side by side, each weight with all of them in turn: sums that do not wait for one
//! another, which the compiler computes in vectors.

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
#[inline(always)]
pub(crate) fn nearest(value: f32, inverse: f32, low: f32, high: f32) -> f32 {
    // From 1.5 * 2^23 on, singles are whole numbers: adding it rounds, and unlike `round`, which
    // is a library call on the baseline instruction set, it vectorises.
    const WHOLE: f32 = 12_582_912.0;
    let scaled = value * inverse;
    // Single instructions, where `max` and `min` would look after NaN on either side.
    let above = if scaled > low { scaled } else { low };
    let inside = if above < high { above } else { high };
    (inside + WHOLE) - WHOLE
}

/// `1 / scale`, or 0 for a scale of 0, which sends every weight to 0.
pub(crate) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// A scale `d` such that `d * q`, with integers `q` in `-LEVELS..LEVELS`, approximates the weights.
///
/// The plain choice sends the extreme weight to `-LEVELS`, the integer of the largest magnitude.
/// Shrinking or stretching it a little, or sending the extreme to the other end, often rounds the rest better. Of these candidates the one whose integers are nearest to the weights, with the
/// scale that fits them best, is rounded to f16 as it will be stored. It is taken if it then leaves less
/// squared error than the plain choice.
pub(crate) fn scale<const LEVELS: i8>(values: &[f32]) -> f16 {
    const CANDIDATES: usize = 20;
    let low = -f32::from(LEVELS);
    let extreme = extreme(values);
    if extreme == 0.0 {
        return f16::ZERO;
    }
    let inverses: [f32; CANDIDATES] = std::array::from_fn(|candidate| {
        let step = (candidate / 2) as f32 - 4.0;
        let inverse = (low - 0.2 * step) / extreme;
        if candidate % 2 == 0 { inverse } else { -inverse }
    });
    let (mut products, mut squares) = ([0.0f32; CANDIDATES], [0.0f32; CANDIDATES]);
    for &value in values {
        for candidate in 0..CANDIDATES {
            let q = nearest(value, inverses[candidate], low, -low - 1.0);
            products[candidate] += value * q;
            squares[candidate] += q * q;
        }
    }
    // Integers q with the scale product / square leave an error of |values|^2 - product^2 / square.
    let mut best = (0.0, 0.0);
    for (product, square) in products.into_iter().zip(squares) {
        let gain = product * product / square;
        if gain > best.0 {
            best = (gain, product / square);
        }
    }
    let (plain, refitted) = (saturating_half(extreme / low), saturating_half(best.1));
    let [refitted_error, plain_error] = scale_errors::<LEVELS, 2>(values, [refitted, plain]);
    if refitted_error < plain_error { refitted } else { plain }
}

/// Squared errors of rounding the weights to multiples of some scales.
fn scale_errors<const LEVELS: i8, const N: usize>(values: &[f32], scales: [f16; N]) -> [f32; N] {
    let low = -f32::from(LEVELS);
    let scales = scales.map(f16::to_f32);
    let inverses = scales.map(inverse);
    let mut errors = [0.0f32; N];
    for &value in values {
        for n in 0..N {
            let error = value - scales[n] * nearest(value, inverses[n], low, -low - 1.0);
            errors[n] += error * error;
        }
    }
    errors
}

/// A scale and a minimum: `scale * q + minimum` with `q` in `0..=LEVELS`.
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
}

/// Scales and minimums that are tried side by side.
struct Affines<const N: usize> {
    scales: [f32; N],
    minimums: [f32; N],
}

impl<const N: usize> Affines<N> {
    fn new(candidates: [Affine; N]) -> Affines<N> {
        Affines {
            scales: candidates.map(|candidate| candidate.scale.to_f32()),
            minimums: candidates.map(|candidate| candidate.minimum.to_f32()),
        }
    }

    /// Squared errors over the weights.
    fn errors<const LEVELS: u8>(&self, values: &[f32]) -> [f32; N] {
        let inverses = self.scales.map(inverse);
        let mut errors = [0.0f32; N];
        for &value in values {
            for n in 0..N {
                let q = nearest(value - self.minimums[n], inverses[n], 0.0, f32::from(LEVELS));
                let error = value - (self.scales[n] * q + self.minimums[n]);
                errors[n] += error * error;
            }
        }
        errors
    }

    /// The least-squares scale and minimum for the integers that each assigns.
    fn refitted<const LEVELS: u8>(&self, values: &[f32]) -> [Affine; N] {
        let inverses = self.scales.map(inverse);
        let (mut sums_q, mut sums_qq, mut sums_qv) = ([0.0f32; N], [0.0f32; N], [0.0f32; N]);
        for &value in values {
            for n in 0..N {
                let q = nearest(value - self.minimums[n], inverses[n], 0.0, f32::from(LEVELS));
                sums_q[n] += q;
                sums_qq[n] += q * q;
                sums_qv[n] += q * value;
            }
        }
        let (count, sum_v) = (values.len() as f32, values.iter().sum::<f32>());
        std::array::from_fn(|n| {
            let determinant = count * sums_qq[n] - sums_q[n] * sums_q[n];
            let (mut scale, mut minimum) = (self.scales[n], self.minimums[n]);
            if determinant > 0.0 {
                scale = (count * sums_qv[n] - sums_q[n] * sum_v) / determinant;
                minimum = (sum_v - scale * sums_q[n]) / count;
            }
            Affine { scale: saturating_half(scale), minimum: saturating_half(minimum) }
        })
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
pub(crate) fn affine<const LEVELS: u8>(values: &[f32]) -> Affine {
    const CANDIDATES: usize = 8;
    let (low, high) = range(values);
    let span = |from: f32, to: f32| Affine {
        scale: saturating_half((to - from) / f32::from(LEVELS)),
        minimum: saturating_half(from),
    };
    let plain = span(low, high);
    let mut best = (Affines::new([plain]).errors::<LEVELS>(values)[0], plain);
    let narrower: [Affine; CANDIDATES] = std::array::from_fn(|step| {
        let cut = (high - low) * 0.015 * step as f32;
        span(low + cut, high - cut)
    });
    let refitted = Affines::new(narrower).refitted::<LEVELS>(values);
    let errors = Affines::new(refitted).errors::<LEVELS>(values);
    for (candidate, error) in refitted.into_iter().zip(errors) {
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
            let plain = |levels: f32| saturating_half(-extreme(&values) / levels);
            let [found, least] = scale_errors::<8, 2>(&values, [scale::<8>(&values), plain(8.0)]);
            assert!(found <= least);
            let [found, least] =
                scale_errors::<16, 2>(&values, [scale::<16>(&values), plain(16.0)]);
            assert!(found <= least);
        }
    }

    #[test]
    fn exact_multiples_are_found_exactly() {
        let values: Vec<f32> = (0..32).map(|i| (i % 16 - 8) as f32 * 0.25).collect();
        assert_eq!(scale_errors::<8, 1>(&values, [scale::<8>(&values)]), [0.0]);
        let values: Vec<f32> = (0..32).map(|i| (i % 16) as f32 * 0.25 + 3.0).collect();
        let fit = affine::<15>(&values);
        assert_eq!((fit.scale.to_f32(), fit.minimum.to_f32()), (0.25, 3.0));
    }

    #[test]
    fn constant_blocks_are_kept() {
        let fit = affine::<15>(&[1.5; 32]);
        assert_eq!(Affines::new([fit]).errors::<15>(&[1.5; 32]), [0.0]);
        assert_eq!(scale::<8>(&[0.0; 32]), f16::ZERO);
    }
}
