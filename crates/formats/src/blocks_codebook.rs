//! Blocks whose codes of 4 bits are indices of 16 fixed values: iq4_nl, iq4_xs.
//!
//! ```text
//! iq4_nl   32 weights   d:f16                                nibbles:16     w = d * value[q]
//! iq4_xs  256 weights   d:f16  upper pairs:u16  nibbles:4    nibbles:128    w = (d * s) * value[q]
//! ```
//!
//! Every 16 bytes of nibbles hold 32 weights: byte `i` holds weight `i` low and weight `i + 16`
//! high. The scale `s` of sub-block `j` of iq4_xs is an integer of 6 bits, less 32: its low nibble
//! is nibble `j` of the four bytes, its upper two bits are pair `j` of the u16.

use crate::fit;
use crate::quantization::{Block, Format, Minimum, Quantization, half_at, put_half};

/// What the codes of iq4_nl and iq4_xs stand for: closer around 0, where most weights are.
pub const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

pub(crate) struct IQ4NL;

impl Format for IQ4NL {
    const QUANTIZATION: Quantization = Quantization {
        block_len: 32,
        block_bytes: 2 + 16,
        code_bits: 4,
        zero: 0,
        codebook: Some(&IQ4_VALUES),
        sub_block: 32,
        scale_bits: 0,
        minimum: Minimum::None,
        scale_at: 0,
        minimum_at: 0,
        decode: |block, out| nibbles(&block[2..18], &mut out.codes),
        encode: encode_iq4_nl,
    };
}

pub(crate) struct IQ4XS;

impl Format for IQ4XS {
    const QUANTIZATION: Quantization = Quantization {
        block_len: 256,
        block_bytes: 2 + 2 + 4 + 128,
        code_bits: 4,
        zero: 0,
        codebook: Some(&IQ4_VALUES),
        sub_block: 32,
        scale_bits: 6,
        minimum: Minimum::None,
        scale_at: 0,
        minimum_at: 0,
        decode: decode_iq4_xs,
        encode: encode_iq4_xs,
    };
}

fn nibbles(bytes: &[u8], codes: &mut [u8]) {
    for (bytes, codes) in bytes.chunks_exact(16).zip(codes.chunks_exact_mut(32)) {
        let (low, high) = codes.split_at_mut(16);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
            *low = byte & 15;
            *high = byte >> 4;
        }
    }
}

fn decode_iq4_xs(block: &[u8], out: &mut Block) {
    let pairs = u16::from_le_bytes([block[2], block[3]]);
    for j in 0..8 {
        let low = block[4 + j / 2] >> (j % 2 * 4) & 15;
        let high = (pairs >> (2 * j) & 3) as u8;
        out.scales[j] = (low | high << 4) as i8 - 32;
    }
    nibbles(&block[8..136], &mut out.codes);
}

/// The codes nearest to the weights at a scale, and the squared error that they leave.
fn nearest_codes(values: &[f32], scale: f32) -> ([u8; 32], f32) {
    let inverse = fit::inverse(scale);
    let mut error = 0.0;
    let codes = std::array::from_fn(|i| {
        let target = values[i] * inverse;
        // Values ascend: the nearest is behind all midpoints that are passed.
        let passed = |pair: &&[i8]| target > (f32::from(pair[0]) + f32::from(pair[1])) / 2.0;
        let code = IQ4_VALUES.windows(2).filter(passed).count();
        let left = values[i] - scale * f32::from(IQ4_VALUES[code]);
        error += left * left;
        code as u8
    });
    (codes, error)
}

fn put_nibbles(codes: &[u8; 32], bytes: &mut [u8]) {
    for i in 0..16 {
        bytes[i] = codes[i] | codes[i + 16] << 4;
    }
}

/// The plain scale sends the extreme weight to -127, the value of the largest magnitude. Others
/// near it, or with the extreme at 113, may leave less; none is taken that leaves more.
fn encode_iq4_nl(values: &[f32], block: &mut [u8]) {
    let extreme = fit::extreme(values);
    let plain = fit::saturating_half(extreme / -127.0);
    let mut best = (plain, nearest_codes(values, plain.to_f32()));
    for end in [-127.0f32, 113.0] {
        for step in -4i8..=4 {
            let scale = fit::saturating_half(extreme / (end * (1.0 + 0.03 * f32::from(step))));
            let found = nearest_codes(values, scale.to_f32());
            if found.1 < best.1.1 {
                best = (scale, found);
            }
        }
    }
    put_half(block, 0, best.0);
    put_nibbles(&best.1.0, &mut block[2..]);
}

/// As iq4_nl, with the scales that a sub-block can have near the plain one.
fn encode_iq4_xs(values: &[f32], block: &mut [u8]) {
    let mut plain = [0.0f32; 8];
    for (plain, values) in plain.iter_mut().zip(values.chunks_exact(32)) {
        *plain = fit::extreme(values) / -127.0;
    }
    let unit = fit::saturating_half(fit::extreme(&plain) / -32.0);
    block.fill(0);
    put_half(block, 0, unit);
    let (unit, mut pairs) = (half_at(block, 0).to_f32(), 0u16);
    let inverse = fit::inverse(unit);
    for (j, values) in values.chunks_exact(32).enumerate() {
        let middle = fit::nearest(plain[j], inverse, -32.0, 31.0) as i8;
        let mut best = (middle, nearest_codes(values, unit * f32::from(middle)));
        for scale in (middle - 4).max(-32)..=(middle + 4).min(31) {
            let found = nearest_codes(values, unit * f32::from(scale));
            if found.1 < best.1.1 {
                best = (scale, found);
            }
        }
        let stored = (best.0 + 32) as u8;
        block[4 + j / 2] |= (stored & 15) << (j % 2 * 4);
        pairs |= u16::from(stored >> 4) << (2 * j);
        put_nibbles(&best.1.0, &mut block[8 + 16 * j..]);
    }
    block[2..4].copy_from_slice(&pairs.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TensorType, dequantize_row, quantize_row};

    fn decode(ty: TensorType, bytes: &[u8]) -> Vec<f32> {
        let mut out = vec![f32::NAN; ty.block_len()];
        dequantize_row(ty, bytes, &mut out);
        out
    }

    #[test]
    fn iq4_nl_by_hand() {
        // d = 0.5 (0x3800); low nibbles 0 to 15, high ones 15 to 0.
        let mut block = vec![0x00, 0x38];
        block.extend((0..16).map(|i| i | (15 - i) << 4));
        let ascending = [
            -63.5, -52.0, -41.5, -32.5, -24.5, -17.5, -11.0, -5.0, 0.5, 6.5, 12.5, 19.0, 26.5,
            34.5, 44.5, 56.5,
        ];
        let out = decode(TensorType::IQ4NL, &block);
        assert_eq!(out[..16], ascending);
        assert!(out[16..].iter().eq(ascending.iter().rev()));
    }

    #[test]
    fn iq4_xs_by_hand() {
        // Scales -32, -31, -16, -1, 0, 1, 15, 31, stored 32 higher: 0, 1, 16, 31, 32, 33, 47, 63.
        // Nibbles 0 1 | 0 15 | 0 1 | 15 15, the first of two low; pairs 0 0 1 1 2 2 2 3.
        let mut block = vec![0x00, 0x38, 0b01_01_00_00, 0b11_10_10_10, 0x10, 0xf0, 0x10, 0xff];
        // Sub-block j: byte i is code i low and code j high.
        for j in 0..8u8 {
            block.extend((0..16).map(|i| i | j << 4));
        }
        let scales = [-32.0, -31.0, -16.0, -1.0, 0.0, 1.0, 15.0, 31.0];
        let values = [
            -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0,
            69.0, 89.0, 113.0,
        ];
        for (index, value) in decode(TensorType::IQ4XS, &block).iter().enumerate() {
            let (j, i) = (index / 32, index % 32);
            let code = if i < 16 { i } else { j };
            assert_eq!(*value, 0.5 * scales[j] * values[code], "weight {index}");
        }
    }

    /// Weights that the format can represent come back exactly.
    #[test]
    fn representable_blocks_round_trip() {
        let code = |index: usize| f32::from(IQ4_VALUES[index * 7 % 16]);
        let values: Vec<f32> = (0..32).map(|index| 0.125 * code(index)).collect();
        let mut bytes = vec![0xff; 18];
        quantize_row(TensorType::IQ4NL, &values, &mut bytes);
        assert_eq!(decode(TensorType::IQ4NL, &bytes), values);
        // Scales from -32 on, so that the unit is the one meant here.
        let scale = |index: usize| (index / 32) as f32 * 9.0 - 32.0;
        let values: Vec<f32> = (0..256).map(|index| 0.25 * scale(index) * code(index)).collect();
        let mut bytes = vec![0xff; 136];
        quantize_row(TensorType::IQ4XS, &values, &mut bytes);
        assert_eq!(decode(TensorType::IQ4XS, &bytes), values);
    }
}
