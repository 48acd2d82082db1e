//! What each type may cost at most, derived from its step size, and what it costs on average.

use crate::common::Uniform;
use pianola_formats::{Distortion, TensorType, dequantize_row, quantize_row};
use proptest::prelude::*;

/// Half a unit in the last place of an f16, relative: how far a stored scale is from the ideal.
const HALF: f64 = 1.0 / 2048.0;
/// The same, absolute, for scales too small to have a full mantissa: half of 2^-24.
const TINY: f64 = 1.0 / (1 << 25) as f64;

fn round_trip(ty: TensorType, values: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0xaa; ty.row_bytes(values.len()).unwrap()];
    quantize_row(ty, values, &mut bytes);
    let mut out = vec![f32::NAN; values.len()];
    dequantize_row(ty, &bytes, &mut out);
    out
}

fn largest(values: &[f32]) -> f64 {
    values.iter().fold(0.0, |largest, v| f64::from(v.abs()).max(largest))
}

/// Smallest and largest weight.
fn range(values: &[f32]) -> (f64, f64) {
    let start = (f64::INFINITY, f64::NEG_INFINITY);
    values.iter().fold(start, |(low, high), &v| (low.min(v.into()), high.max(v.into())))
}

/// A bound on the error of one block, either of each weight or of the root mean square.
enum Bound {
    EachWeight(f64),
    /// The types whose scale is searched for minimise the sum of squares, which is no worse than
    /// that of the plain scale, whose error is bounded for each weight.
    RootMeanSquare(f64),
}

/// The bound of sub-block `part` of a block (for types without sub-blocks, the block itself).
fn bound(ty: TensorType, block: &[f32], part: &[f32]) -> Bound {
    let all = largest(block);
    match ty {
        TensorType::F32 => Bound::EachWeight(0.0),
        // 10 and 7 stored fraction bits: half a unit is 2^-11 and 2^-8 of the weight.
        TensorType::F16 => Bound::EachWeight(all * HALF + TINY),
        TensorType::BF16 => Bound::EachWeight(all / 256.0),
        // Half a step, and what the rounded scale misses at the end of the range.
        TensorType::Q8_0 => {
            Bound::EachWeight(all / 127.0 * 0.5 * (1.0 + HALF) + all * HALF + 127.0 * TINY)
        }
        // A whole step: the side opposite to the extreme weight ends one integer earlier.
        TensorType::Q4_0 => Bound::RootMeanSquare(all / 8.0 + all * HALF + 8.0 * TINY),
        TensorType::Q5_0 => Bound::RootMeanSquare(all / 16.0 + all * HALF + 16.0 * TINY),
        TensorType::Q4_1 | TensorType::Q5_1 => {
            let levels = if ty == TensorType::Q4_1 { 15.0 } else { 31.0 };
            let (low, high) = range(part);
            let step = (high - low) / levels;
            let rounding = (low.abs() + high - low) * HALF + (levels + 1.0) * TINY;
            Bound::RootMeanSquare(step * 0.5 * (1.0 + HALF) + rounding)
        }
        // Scale and minimum of a sub-block are off by half a unit of six bits each.
        TensorType::Q4K | TensorType::Q5K => {
            let levels = if ty == TensorType::Q4K { 15.0 } else { 31.0 };
            let step_and_offset = |part: &[f32]| {
                let (low, high) = range(part);
                ((high - low.min(0.0)) / levels, -low.min(0.0))
            };
            let parts = block.chunks_exact(32).map(step_and_offset);
            let (step, offset) =
                parts.fold((0.0f64, 0.0f64), |most, (s, o)| (most.0.max(s), most.1.max(o)));
            let unit = step / 63.0 * (1.0 + HALF) + TINY;
            let offset_unit = offset / 63.0 * (1.0 + HALF) + TINY;
            let half_step = (step_and_offset(part).0 + unit / 2.0) / 2.0;
            // 63 units of a scale rounded down do not reach the largest step.
            let missed = 63.0 * (levels + 1.0) * TINY;
            Bound::EachWeight(half_step + offset_unit / 2.0 + levels * unit / 2.0 + missed)
        }
        // A whole step as in q4_0, and 32 times half a unit of the eight-bit scale.
        TensorType::Q6K => {
            let unit = all / 32.0 / 127.0 * (1.0 + HALF) + TINY;
            Bound::EachWeight(largest(part) / 32.0 + 16.0 * unit + 127.0 * 32.0 * TINY)
        }
        // The widest gap between values is 24, but opposite to the extreme, which goes to -127,
        // they end at 113.
        TensorType::IQ4NL => Bound::RootMeanSquare(all * 14.0 / 127.0 + all * HALF + 127.0 * TINY),
        // The scale is off by up to a unit, since its integers end at -32 and at 31: then values
        // end 113 units earlier.
        TensorType::IQ4XS => {
            let unit = all / 127.0 / 32.0 * (1.0 + HALF) + TINY;
            Bound::RootMeanSquare(largest(part) * 14.0 / 127.0 + 127.0 * unit)
        }
    }
}

/// Weights that share a scale.
fn part_len(ty: TensorType) -> usize {
    match ty {
        TensorType::Q4K | TensorType::Q5K | TensorType::IQ4XS => 32,
        TensorType::Q6K => 16,
        _ => ty.block_len(),
    }
}

/// Checks every block of a round trip against its bound.
fn check(ty: TensorType, values: &[f32]) -> Result<(), String> {
    let decoded = round_trip(ty, values);
    for (index, block) in values.chunks_exact(ty.block_len()).enumerate() {
        let decoded = &decoded[index * ty.block_len()..][..ty.block_len()];
        // Single-precision arithmetic on values of this size, in a few operations.
        let slack = largest(block) * 2f64.powi(-20);
        let parts = block.chunks_exact(part_len(ty));
        for (part, decoded) in parts.zip(decoded.chunks_exact(part_len(ty))) {
            let distortion = Distortion::measure(part, decoded);
            let (found, bound) = match bound(ty, block, part) {
                Bound::EachWeight(bound) => (distortion.max_error, bound),
                Bound::RootMeanSquare(bound) => (distortion.rmse, bound),
            };
            let exact = ty == TensorType::F32;
            let within = found <= bound + if exact { 0.0 } else { slack };
            if !within {
                return Err(format!("{ty} block {index}: error {found}, bound {bound}: {part:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn every_type_stays_within_its_bound() {
    let mut random = Uniform(7);
    let uniform = random.vector(4096);
    // The sum of 12 uniform numbers is close to a normal distribution.
    let normal: Vec<f32> = (0..4096).map(|_| random.vector(12).iter().sum::<f32>() / 2.0).collect();
    let outliers: Vec<f32> =
        normal.iter().enumerate().map(|(i, v)| if i % 97 == 0 { v * 40.0 } else { *v }).collect();
    let shifted: Vec<f32> = normal.iter().map(|v| v * 0.1 + 5.0).collect();
    let negative: Vec<f32> = shifted.iter().map(|v| -v).collect();
    let small: Vec<f32> = normal.iter().map(|v| v * 1e-4).collect();
    let uneven: Vec<f32> =
        normal.iter().enumerate().map(|(i, v)| v * 10f32.powi(-((i / 16 % 5) as i32))).collect();
    for values in [uniform, normal, outliers, shifted, negative, small, uneven, vec![0.0; 256]] {
        for &ty in TensorType::ALL {
            check(ty, &values).unwrap();
        }
    }
}

/// On uniform weights of range A the rounding error of a step d is d²/12 on average. The types
/// without a minimum also clip: a weight of the sign opposite to the extreme lies beyond their
/// last half step with probability 1/(4n) for n negative integers, at a mean square of 7/12 d².
#[test]
fn uniform_weights_cost_what_rounding_theory_says() {
    let values = Uniform(3).vector(1 << 16);
    let signal = 1.0 / 3.0f64; // Mean square of the uniform distribution on [-1, 1].
    let affine = |levels: f64| (2.0 / levels).powi(2) / 12.0;
    let symmetric = |count: f64| (1.0 + 7.0 / (4.0 * count)) / 12.0 / (count * count);
    let cases = [
        (TensorType::Q4_0, symmetric(8.0)),
        (TensorType::Q4_1, affine(15.0)),
        (TensorType::Q5_0, symmetric(16.0)),
        (TensorType::Q5_1, affine(31.0)),
        (TensorType::Q8_0, affine(254.0)),
        (TensorType::Q4K, affine(15.0)),
        (TensorType::Q5K, affine(31.0)),
        (TensorType::Q6K, symmetric(32.0)),
    ];
    for (ty, noise) in cases {
        let expected = (noise / signal).sqrt();
        let distortion = Distortion::measure(&values, &round_trip(ty, &values));
        let found = distortion.relative_rmse;
        // Below, because a block rarely reaches the ends of the range; a little above for the
        // six-bit scales of the K types, which are off by up to 1/126.
        assert!(found < expected * 1.05, "{ty}: {distortion}, expected {expected}");
        assert!(found > expected * 0.75, "{ty}: {distortion}, expected {expected}");
    }
}

/// The bound can be missed: a decoder that swaps the nibbles of one byte is caught.
#[test]
fn a_wrong_decoder_misses_the_bound() {
    let values = Uniform(9).vector(32);
    let mut bytes = vec![0; 18];
    quantize_row(TensorType::Q4_0, &values, &mut bytes);
    for byte in &mut bytes[2..] {
        *byte = byte.rotate_left(4);
    }
    let mut out = vec![0.0; 32];
    dequantize_row(TensorType::Q4_0, &bytes, &mut out);
    let Bound::RootMeanSquare(bound) = bound(TensorType::Q4_0, &values, &values) else { panic!() };
    assert!(Distortion::measure(&values, &out).rmse > bound);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn random_blocks_stay_within_their_bound(
        values in prop::collection::vec(-1.0f32..1.0, 256),
        scale in -12i32..12,
        offset in -4.0f32..4.0,
    ) {
        let values: Vec<f32> = values.iter().map(|v| (v + offset) * 2f32.powi(scale)).collect();
        for &ty in TensorType::ALL {
            if let Err(message) = check(ty, &values) {
                prop_assert!(false, "{}", message);
            }
        }
    }

    /// Every bit pattern decodes without a panic, also ones no quantiser makes.
    #[test]
    fn any_bytes_decode(bytes in prop::collection::vec(any::<u8>(), 256 * 4)) {
        for &ty in TensorType::ALL {
            let columns = 256;
            let mut out = vec![0.0; columns];
            dequantize_row(ty, &bytes[..ty.row_bytes(columns).unwrap()], &mut out);
        }
    }
}
