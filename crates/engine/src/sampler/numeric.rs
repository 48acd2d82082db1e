//! The arithmetic of sampling: scans the compiler turns into vector code, and random numbers.

/// Floats a scan handles side by side; wide enough for two AVX-512 registers.
const LANES: usize = 32;

/// exp(-x) is zero or subnormal in f32 for x above this.
pub const EXPONENT_RANGE: f32 = 87.0;

/// The largest logit, NaN counting as -inf; -inf for an empty row.
pub fn maximum(logits: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, logit);
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger)
}

/// The lowest id whose logit equals `wanted`; 0 if there is none.
pub fn first_equal(logits: &[f32], wanted: f32) -> u32 {
    let (chunks, _) = logits.as_chunks::<LANES>();
    // No early exit inside a chunk: a loop that may stop anywhere is not vectorised.
    let holds = |chunk: &[f32; LANES]| chunk.iter().fold(false, |hit, &l| hit | (l == wanted));
    let start = chunks.iter().position(holds).unwrap_or(chunks.len()) * LANES;
    let within = logits[start..].iter().position(|&logit| logit == wanted);
    within.map_or(0, |offset| (start + offset) as u32)
}

/// Whether any logit of the block lies above `threshold`.
pub fn any_above(block: &[f32], threshold: f32) -> bool {
    block.iter().fold(false, |hit, &logit| hit | (logit > threshold))
}

/// The sum in f64, over lanes so that it vectorises; the order of additions is fixed.
pub fn mass(weights: &[f32]) -> f64 {
    let mut lanes = [0f64; 8];
    let (chunks, rest) = weights.as_chunks::<8>();
    for chunk in chunks {
        for (lane, &weight) in lanes.iter_mut().zip(chunk) {
            *lane += weight as f64;
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|&weight| weight as f64).sum::<f64>()
}

/// Σ exp(logit - best) for a finite `best`; NaN counts as -inf.
pub fn sum_of_exponentials(logits: &[f32], best: f32) -> f64 {
    let mut block = [0f32; 1024];
    let mut sum = 0.0;
    for logits in logits.chunks(block.len()) {
        for (weight, &logit) in block.iter_mut().zip(logits) {
            *weight = exponential(logit - best);
        }
        sum += mass(&block[..logits.len()]);
    }
    sum
}

/// exp(x) for x ≤ 0, to a few units in the last place; 0 below -87 and for NaN.
///
/// The library's `exp` is a call per element, which would dominate sampling from a vocabulary of
/// 262,144. This is branch-free, so loops over it vectorise: x = n ln 2 + r with |r| ≤ ln 2 / 2,
/// then exp(x) = 2ⁿ exp(r), with the Taylor series to r⁷ (the rest is below 5e-9).
pub fn exponential(x: f32) -> f32 {
    // Adding 1.5 · 2²³ rounds to an integer and leaves it in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts; the first has few bits, so that n times it is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;

    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut series = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = series * r + coefficient;
    }
    // The exponent field of 2ⁿ is n + 127; the higher bits of `shifted` leave by the shift.
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if x >= -EXPONENT_RANGE { series * power } else { 0.0 }
}

/// A number in [0, 1), a pure function of the seed and the position.
///
/// SplitMix64 used as a counter-based generator: the hashed seed picks a place in its sequence,
/// the position counts on from there.
pub fn uniform(seed: u64, position: u64) -> f64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let state = scramble(seed.wrapping_add(GOLDEN)).wrapping_add(position.wrapping_mul(GOLDEN));
    // 53 bits: what the mantissa holds, so that 1 is never reached by rounding.
    (scramble(state) >> 11) as f64 / (1u64 << 53) as f64
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
/// Generators, 2014).
fn scramble(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_close() {
        for step in 0..200_000 {
            let x = -87.0 * step as f32 / 200_000.0;
            let right = f64::from(x).exp();
            // Rounding of r: |x| enters with one unit in the last place of n ln 2, the series with a few.
            let tolerance = right * 4.0 * f64::from(f32::EPSILON);
            assert!((f64::from(exponential(x)) - right).abs() <= tolerance, "exp({x})");
        }
        assert_eq!(exponential(0.0), 1.0);
        assert_eq!(exponential(f32::NEG_INFINITY), 0.0);
        assert_eq!(exponential(f32::NAN), 0.0);
    }
}
