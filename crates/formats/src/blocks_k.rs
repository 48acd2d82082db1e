//! Super-blocks of 256 weights whose sub-blocks have scales of their own: q4_k, q5_k, q6_k.
//!
//! ```text
//! q4_k   d:f16  m:f16  scales:12            nibbles:128        w = (d * s) * q - (m * t)
//! q5_k   d:f16  m:f16  scales:12  fifths:32 nibbles:128        w = (d * s) * q - (m * t)
//! q6_k   nibbles:128  upper pairs:64  scales:16 × i8  d:f16    w = d * s * (q - 32)
//! ```
//!
//! q4_k and q5_k: 8 sub-blocks of 32 weights, each with a 6-bit scale `s` and minimum `t`. Every
//! 32 bytes of nibbles hold two sub-blocks, the even one low, the odd one high. Bit `j` of byte
//! `i` of the fifths is bit 4 of weight `i` of sub-block `j`.
//!
//! q6_k: 16 sub-blocks of 16 weights. Each half of 128 weights is four quarters of 32; byte `i`
//! of the half's 64 nibble bytes holds weight `i` of quarter 0 (i < 32) or 1 low, and of quarter
//! 2 or 3 high; byte `i` of its 32 upper bytes holds bits 4 and 5 of weight `i` of the quarters,
//! quarter 0 in the lowest pair.

use half::f16;

use crate::fit;
use crate::quantization::{Block, Format, Minimum, Quantization, put_half};

pub(crate) struct Q4K;

impl Format for Q4K {
    const QUANTIZATION: Quantization = Quantization {
        block_len: 256,
        block_bytes: 2 + 2 + 12 + 128,
        code_bits: 4,
        zero: 0,
        codebook: None,
        sub_block: 32,
        scale_bits: 6,
        minimum: Minimum::Subtracted,
        scale_at: 0,
        minimum_at: 2,
        decode: decode_q4_k,
        encode: encode_q4_k,
    };
}

pub(crate) struct Q5K;

impl Format for Q5K {
    const QUANTIZATION: Quantization = Quantization {
        block_len: 256,
        block_bytes: 2 + 2 + 12 + 32 + 128,
        code_bits: 5,
        zero: 0,
        codebook: None,
        sub_block: 32,
        scale_bits: 6,
        minimum: Minimum::Subtracted,
        scale_at: 0,
        minimum_at: 2,
        decode: decode_q5_k,
        encode: encode_q5_k,
    };
}

pub(crate) struct Q6K;

impl Format for Q6K {
    const QUANTIZATION: Quantization = Quantization {
        block_len: 256,
        block_bytes: 128 + 64 + 16 + 2,
        code_bits: 6,
        zero: 32,
        codebook: None,
        sub_block: 16,
        scale_bits: 8,
        minimum: Minimum::None,
        scale_at: 208,
        minimum_at: 0,
        decode: decode_q6_k,
        encode: encode_q6_k,
    };
}

/// The 6-bit scales and minimums of the 8 sub-blocks of a q4_k or q5_k block.
///
/// The first four of each fill the low six bits of bytes 0..4 and 4..8; the last four have their
/// low nibbles in bytes 8..12 and their upper two bits on top of the first four.
fn unpack_k_scales(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut minimums) = ([0; 8], [0; 8]);
    for j in 0..4 {
        scales[j] = packed[j] & 63;
        minimums[j] = packed[j + 4] & 63;
        scales[j + 4] = packed[j + 8] & 15 | packed[j] >> 6 << 4;
        minimums[j + 4] = packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4;
    }
    (scales, minimums)
}

fn pack_k_scales(scales: &[u8; 8], minimums: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        packed[j] = scales[j] | scales[j + 4] >> 4 << 6;
        packed[j + 4] = minimums[j] | minimums[j + 4] >> 4 << 6;
        packed[j + 8] = scales[j + 4] & 15 | (minimums[j + 4] & 15) << 4;
    }
    packed
}

/// The header and the nibbles, which q4_k and q5_k have in common.
fn decode_with_minimums(block: &[u8], nibbles: &[u8], out: &mut Block) {
    let packed = block[4..16].try_into().expect("twelve bytes");
    let (scales, minimums) = unpack_k_scales(packed);
    for j in 0..8 {
        out.scales[j] = scales[j] as i8;
        out.minimums[j] = minimums[j] as i8;
    }
    for (codes, nibbles) in out.codes.chunks_exact_mut(64).zip(nibbles[..128].chunks_exact(32)) {
        let (even, odd) = codes.split_at_mut(32);
        for ((even, odd), byte) in even.iter_mut().zip(odd).zip(nibbles) {
            *even = byte & 15;
            *odd = byte >> 4;
        }
    }
}

fn decode_q4_k(block: &[u8], out: &mut Block) {
    decode_with_minimums(block, &block[16..], out);
}

fn decode_q5_k(block: &[u8], out: &mut Block) {
    decode_with_minimums(block, &block[48..], out);
    for (j, codes) in out.codes.chunks_exact_mut(32).enumerate() {
        for (code, bits) in codes.iter_mut().zip(&block[16..48]) {
            *code |= (bits >> j & 1) << 4;
        }
    }
}

fn decode_q6_k(block: &[u8], out: &mut Block) {
    for (scale, byte) in out.scales.iter_mut().zip(&block[192..208]) {
        *scale = *byte as i8;
    }
    for (index, codes) in out.codes.chunks_exact_mut(32).enumerate() {
        let (half, quarter) = (index / 4, index % 4);
        let nibbles = &block[half * 64 + quarter % 2 * 32..][..32];
        let upper = &block[128 + half * 32..][..32];
        for ((code, low), high) in codes.iter_mut().zip(nibbles).zip(upper) {
            *code = low >> (quarter / 2 * 4) & 15 | (high >> (quarter * 2) & 3) << 4;
        }
    }
}

/// The header of a q4_k or q5_k block, fitted to the ranges of the sub-blocks.
struct SubBlockFit {
    scale: f16,
    minimum: f16,
    scales: [u8; 8],
    minimums: [u8; 8],
}

impl SubBlockFit {
    /// Ranges always include 0 from below, because a stored minimum cannot be positive.
    fn new(values: &[f32], levels: f32) -> SubBlockFit {
        let (mut steps, mut offsets) = ([0.0f32; 8], [0.0f32; 8]);
        for (j, values) in values.chunks_exact(32).enumerate() {
            let (low, high) = fit::range(values);
            let low = low.min(0.0);
            steps[j] = (high - low) / levels;
            offsets[j] = -low;
        }
        let scale = fit::saturating_half(fit::extreme(&steps) / 63.0);
        let minimum = fit::saturating_half(fit::extreme(&offsets) / 63.0);
        let sixth = |values: [f32; 8], unit: f16| {
            let inverse = fit::inverse(unit.to_f32());
            values.map(|value| fit::nearest(value, inverse, 0.0, 63.0) as u8)
        };
        SubBlockFit {
            scale,
            minimum,
            scales: sixth(steps, scale),
            minimums: sixth(offsets, minimum),
        }
    }

    fn put_header(&self, block: &mut [u8]) {
        put_half(block, 0, self.scale);
        put_half(block, 2, self.minimum);
        block[4..16].copy_from_slice(&pack_k_scales(&self.scales, &self.minimums));
    }

    /// The integers of sub-block `j`.
    fn integers(&self, j: usize, values: &[f32], levels: f32) -> [u8; 32] {
        let inverse = fit::inverse(self.scale.to_f32() * f32::from(self.scales[j]));
        let offset = self.minimum.to_f32() * f32::from(self.minimums[j]);
        std::array::from_fn(|i| {
            fit::nearest(values[j * 32 + i] + offset, inverse, 0.0, levels) as u8
        })
    }
}

fn encode_q4_k(values: &[f32], block: &mut [u8]) {
    let fit = SubBlockFit::new(values, 15.0);
    fit.put_header(block);
    for pair in 0..4 {
        let low = fit.integers(pair * 2, values, 15.0);
        let high = fit.integers(pair * 2 + 1, values, 15.0);
        for i in 0..32 {
            block[16 + pair * 32 + i] = low[i] | high[i] << 4;
        }
    }
}

fn encode_q5_k(values: &[f32], block: &mut [u8]) {
    let fit = SubBlockFit::new(values, 31.0);
    fit.put_header(block);
    block[16..48].fill(0);
    for pair in 0..4 {
        let low = fit.integers(pair * 2, values, 31.0);
        let high = fit.integers(pair * 2 + 1, values, 31.0);
        for i in 0..32 {
            block[48 + pair * 32 + i] = low[i] & 15 | high[i] << 4;
            block[16 + i] |= (low[i] >> 4 | high[i] >> 4 << 1) << (pair * 2);
        }
    }
}

fn encode_q6_k(values: &[f32], block: &mut [u8]) {
    // Signed like q4_0: the extreme weight of a sub-block goes to -32.
    let mut steps = [0.0f32; 16];
    for (step, values) in steps.iter_mut().zip(values.chunks_exact(16)) {
        *step = fit::extreme(values) / -32.0;
    }
    let scale = fit::saturating_half(fit::extreme(&steps).abs() / 127.0);
    let inverse = fit::inverse(scale.to_f32());
    let scales = steps.map(|step| fit::nearest(step, inverse, -127.0, 127.0) as i8);

    block.fill(0);
    put_half(block, 208, scale);
    for (byte, scale) in block[192..208].iter_mut().zip(scales) {
        *byte = scale as u8;
    }
    for (index, &value) in values.iter().enumerate() {
        let inverse = fit::inverse(scale.to_f32() * f32::from(scales[index / 16]));
        let q = (fit::nearest(value, inverse, -32.0, 31.0) + 32.0) as u8;
        let (half, quarter, i) = (index / 128, index / 32 % 4, index % 32);
        block[half * 64 + quarter % 2 * 32 + i] |= (q & 15) << (quarter / 2 * 4);
        block[128 + half * 32 + i] |= (q >> 4) << (quarter * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TensorType, dequantize_row, quantize_row};

    fn decode(ty: TensorType, bytes: &[u8]) -> Vec<f32> {
        let mut out = vec![f32::NAN; 256];
        dequantize_row(ty, bytes, &mut out);
        out
    }

    /// Scales 1, 2, 3, 4 | 17, 34, 51, 63 and minimums 5, 6, 7, 8 | 20, 33, 50, 62, by hand:
    /// 17 = 0b01_0001, 34 = 0b10_0010, 51 = 0b11_0011, 63 = 0b11_1111,
    /// 20 = 0b01_0100, 33 = 0b10_0001, 50 = 0b11_0010, 62 = 0b11_1110.
    const PACKED: [u8; 12] =
        [0x41, 0x82, 0xc3, 0xc4, 0x45, 0x86, 0xc7, 0xc8, 0x41, 0x12, 0x23, 0xef];
    const SCALES: [u8; 8] = [1, 2, 3, 4, 17, 34, 51, 63];
    const MINIMUMS: [u8; 8] = [5, 6, 7, 8, 20, 33, 50, 62];

    #[test]
    fn six_bit_scales_by_hand() {
        assert_eq!(unpack_k_scales(&PACKED), (SCALES, MINIMUMS));
        assert_eq!(pack_k_scales(&SCALES, &MINIMUMS), PACKED);
    }

    /// d = 0.5 (0x3800), m = 2 (0x4000); byte `b` of the nibbles is `b % 16` low and 3 high.
    fn header() -> Vec<u8> {
        let mut block = vec![0x00, 0x38, 0x00, 0x40];
        block.extend(PACKED);
        block
    }

    #[test]
    fn q4_k_by_hand() {
        let mut block = header();
        block.extend((0..128u8).map(|b| (b % 16) | 0x30));
        for (index, value) in decode(TensorType::Q4K, &block).iter().enumerate() {
            let (j, i) = (index / 32, index % 32);
            let q = if j % 2 == 0 { (i % 16) as f32 } else { 3.0 };
            let expected = 0.5 * f32::from(SCALES[j]) * q - 2.0 * f32::from(MINIMUMS[j]);
            assert_eq!(*value, expected, "weight {index}");
        }
    }

    #[test]
    fn q5_k_by_hand() {
        let mut block = header();
        // Weight i of sub-block j has its fifth bit where i % 8 == j.
        block.extend((0..32).map(|i| 1u8 << (i % 8)));
        block.extend((0..128u8).map(|b| (b % 16) | 0x30));
        for (index, value) in decode(TensorType::Q5K, &block).iter().enumerate() {
            let (j, i) = (index / 32, index % 32);
            let low = if j % 2 == 0 { (i % 16) as f32 } else { 3.0 };
            let q = low + if i % 8 == j { 16.0 } else { 0.0 };
            let expected = 0.5 * f32::from(SCALES[j]) * q - 2.0 * f32::from(MINIMUMS[j]);
            assert_eq!(*value, expected, "weight {index}");
        }
    }

    #[test]
    fn q6_k_by_hand() {
        // Quarters 0 to 3 of both halves: low nibbles 1, 2, 3, 4; upper pairs 0, 1, 2, 3.
        let mut block = Vec::new();
        for _half in 0..2 {
            block.extend([0x31; 32]);
            block.extend([0x42; 32]);
        }
        block.extend([0b11_10_01_00; 64]);
        block.extend((0..16).map(|s| (s as i8 * 3 - 20) as u8));
        block.extend([0x00, 0x38]);
        for (index, value) in decode(TensorType::Q6K, &block).iter().enumerate() {
            let quarter = index / 32 % 4;
            let q = [1.0, 2.0 + 16.0, 3.0 + 32.0, 4.0 + 48.0][quarter] - 32.0;
            let sub_scale = (index / 16) as f32 * 3.0 - 20.0;
            assert_eq!(*value, 0.5 * sub_scale * q, "weight {index}");
        }
    }

    /// Blocks whose sub-block scales and minimums are representable come back exactly.
    #[test]
    fn representable_blocks_round_trip() {
        for (ty, levels) in [(TensorType::Q4K, 15usize), (TensorType::Q5K, 31)] {
            let values: Vec<f32> = (0..256)
                .map(|index| {
                    let (j, i) = (index / 32, index % 32);
                    // Every level from 0 to the top occurs, so the range is the whole range.
                    let q = (i % (levels + 1)) as f32;
                    0.25 * (56 + j) as f32 * q - 0.5 * (63 - j) as f32
                })
                .collect();
            let mut bytes = vec![0xff; ty.block_bytes()];
            quantize_row(ty, &values, &mut bytes);
            assert_eq!(decode(ty, &bytes), values, "{ty}");
        }
        let values: Vec<f32> = (0..256)
            .map(|index| {
                // The first weight of each sub-block is its extreme, the rest spread below it.
                let q = if index % 16 == 0 { -32.0 } else { ((index * 7) % 63) as f32 - 31.0 };
                0.25 * (127 - index / 16) as f32 * q
            })
            .collect();
        let mut bytes = vec![0xff; 210];
        quantize_row(TensorType::Q6K, &values, &mut bytes);
        assert_eq!(decode(TensorType::Q6K, &bytes), values);
    }
}
