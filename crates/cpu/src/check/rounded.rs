//! Values as kernels round them before a product.

use super::noise::int8_error;
use super::rotation::{RotatedRounding, int8_step};
use crate::pack::BLOCK;
use crate::reference::hadamard::hadamard;
use pianola_plan::Rounding;

/// Rows of `width` values, rounded as the inputs of products with quantised weights are.
pub fn rounded(rounding: Rounding, values: &[f32], width: usize) -> Vec<f32> {
    match rounding {
        Rounding::None => {
            // A sum of `width` terms in f32 is off by about the root of their number: in bits, half
            // the logarithm.
            let bits = 24 - width.ilog2() / 2;
            values.iter().map(|&value| to_bits(value, bits)).collect()
        }
        // Inputs have 11 bits and so have weights: one less stands for both.
        Rounding::Halves => values.iter().map(|&value| to_bits(value, 10)).collect(),
        Rounding::FixedHalves => {
            let step = rounding.half_step().expect("they are half floats") as f32;
            let nearest = |value: f32| (value / step).round_ties_even() * step;
            values.iter().map(|&value| to_bits(nearest(value), 10)).collect()
        }
        // Likewise: queries, keys, weights and values have eight.
        Rounding::Bf16 => values.iter().map(|&value| to_bits(value, 7)).collect(),
        Rounding::Int8 => values.chunks(BLOCK).flat_map(to_int8).collect(),
        Rounding::Int8Twice => {
            let twice = |block: &[f32]| {
                let first = to_int8(block);
                let rest: Vec<f32> = block.iter().zip(&first).map(|(x, first)| x - first).collect();
                let second = to_int8(&rest);
                first.iter().zip(second).map(|(first, second)| first + second).collect::<Vec<_>>()
            };
            values.chunks(BLOCK).flat_map(twice).collect()
        }
        Rounding::Rotated { block, scaled } => {
            let rounding = RotatedRounding { block, scaled };
            values.chunks_exact(width).flat_map(|row| to_rotated_int8(row, rounding)).collect()
        }
    }
}

/// The nearest steps of a rotated row, turned back. Weights are rounded in the same way: steps that are
/// larger by the root of two stand for both.
fn to_rotated_int8(row: &[f32], rounding: RotatedRounding) -> Vec<f32> {
    let mut values: Vec<f64> = row.iter().map(|&value| f64::from(value)).collect();
    hadamard(&mut values, rounding.block);
    for values in values.chunks_exact_mut(rounding.scaled) {
        let step = int8_step(values) * std::f64::consts::SQRT_2;
        values.iter_mut().for_each(|value| *value -= int8_error(*value, step));
    }
    hadamard(&mut values, rounding.block);
    values.into_iter().map(|value| value as f32).collect()
}

/// The nearest value with `bits` significant bits.
pub(super) fn to_bits(value: f32, bits: u32) -> f32 {
    let dropped = 24 - bits;
    let half = (1u32 << dropped) >> 1;
    // What is not a number may have all bits set.
    f32::from_bits(value.to_bits().wrapping_add(half) & !((1 << dropped) - 1))
}

/// The nearest of 127 steps up to the largest of a block.
fn to_int8(block: &[f32]) -> Vec<f32> {
    let largest = block.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    let step = f64::from(largest) / 127.0;
    block
        .iter()
        .map(|&value| {
            let value = f64::from(value);
            (value - int8_error(value, step)) as f32
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roundings_are_off_by_half_a_step_at_most() {
        let values: Vec<f32> = (0..64).map(|n| ((n * 37 % 64) as f32 - 31.3) * 0.173).collect();
        let largest = values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let off = |rounding| {
            let rounded = rounded(rounding, &values, 64);
            values.iter().zip(&rounded).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest
        };
        let range = |rounding, least: f32, most: f32| {
            let off = off(rounding);
            assert!(off > least && off <= most, "{rounding:?}: {off:e}");
        };
        range(Rounding::Int8, 0.3 / 127.0, 0.501 / 127.0);
        range(Rounding::Int8Twice, 0.0, 0.501 / 127.0 / 254.0);
        range(Rounding::Halves, 0.1 / 1024.0, 1.0 / 1024.0);
        // Sums of 64 terms: three bits of 24 are dropped.
        range(Rounding::None, 0.1 * f32::EPSILON, 4.0 * f32::EPSILON);
        assert_eq!(rounded(Rounding::Int8, &[0.0; 32], 32), [0.0; 32]);
        // Errors of 32 rotated values meet in one.
        for scaled in [64, 32] {
            let rotated = Rounding::Rotated { block: 32, scaled };
            range(rotated, 0.3 / 127.0, 3.0 / 127.0);
            assert_eq!(rounded(rotated, &[0.0; 64], 64), [0.0; 64]);
        }
    }
}
