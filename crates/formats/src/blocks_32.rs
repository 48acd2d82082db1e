//! Blocks of 32 weights with one scale: q4_0, q4_1, q5_0, q5_1, q8_0.
//!
//! ```text
//! q4_0   d:f16                     nibbles:16    w = d * (q - 8)
//! q4_1   d:f16  m:f16              nibbles:16    w = d * q + m
//! q5_0   d:f16         fifths:u32  nibbles:16    w = d * (q - 16)
//! q5_1   d:f16  m:f16  fifths:u32  nibbles:16    w = d * q + m
//! q8_0   d:f16                     q:32 × i8     w = d * q
//! ```
//!
//! Byte `i` of the nibbles holds weight `i` low and weight `i + 16` high; bit `i` of the fifths
//! is bit 4 of weight `i`. Codes of a [`Block`] are unsigned: of q8_0, 128 higher than here.

use crate::fit;
use crate::quantization::{Block, Format, Minimum, Quantization, put_half};

const HALF: usize = 16;

/// What the types have in common; the places are q4_0's.
const PLAIN: Quantization = Quantization {
    block_len: 32,
    block_bytes: 2 + 16,
    code_bits: 4,
    zero: 0,
    codebook: None,
    sub_block: 32,
    scale_bits: 0,
    minimum: Minimum::None,
    scale_at: 0,
    minimum_at: 2,
    decode: |block, out| nibbles(&block[2..], out),
    encode: encode_q4_0,
};

pub(crate) struct Q4_0;

impl Format for Q4_0 {
    const QUANTIZATION: Quantization = Quantization { zero: 8, ..PLAIN };
}

pub(crate) struct Q4_1;

impl Format for Q4_1 {
    const QUANTIZATION: Quantization = Quantization {
        block_bytes: 2 + 2 + 16,
        minimum: Minimum::Added,
        decode: |block, out| nibbles(&block[4..], out),
        encode: encode_q4_1,
        ..PLAIN
    };
}

pub(crate) struct Q5_0;

impl Format for Q5_0 {
    const QUANTIZATION: Quantization = Quantization {
        block_bytes: 2 + 4 + 16,
        code_bits: 5,
        zero: 16,
        decode: |block, out| nibbles_and_fifths(&block[2..], out),
        encode: encode_q5_0,
        ..PLAIN
    };
}

pub(crate) struct Q5_1;

impl Format for Q5_1 {
    const QUANTIZATION: Quantization = Quantization {
        block_bytes: 2 + 2 + 4 + 16,
        code_bits: 5,
        minimum: Minimum::Added,
        decode: |block, out| nibbles_and_fifths(&block[4..], out),
        encode: encode_q5_1,
        ..PLAIN
    };
}

pub(crate) struct Q8_0;

impl Format for Q8_0 {
    const QUANTIZATION: Quantization = Quantization {
        block_bytes: 2 + 32,
        code_bits: 8,
        zero: 128,
        decode: |block, out| {
            for (code, byte) in out.codes.iter_mut().zip(&block[2..34]) {
                *code = byte ^ 0x80;
            }
        },
        encode: encode_q8_0,
        ..PLAIN
    };
}

/// The 32 integers of 4 bits.
fn nibbles(bytes: &[u8], out: &mut Block) {
    let (low, high) = out.codes.split_at_mut(HALF);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(&bytes[..HALF]) {
        *low = byte & 0x0f;
        *high = byte >> 4;
    }
}

/// The 32 integers of 5 bits: four bytes of fifth bits, then the nibbles.
fn nibbles_and_fifths(bytes: &[u8], out: &mut Block) {
    nibbles(&bytes[4..], out);
    for (codes, bits) in out.codes.as_chunks_mut::<8>().0.iter_mut().zip(&bytes[..4]) {
        // The bit of each code alone in its byte: what is not 0 then carries into bit 7.
        let everywhere = u64::from(*bits) * 0x0101_0101_0101_0101;
        let alone = everywhere & 0x8040_2010_0804_0201;
        let fifths = (alone + 0x7f7f_7f7f_7f7f_7f7f) >> 7 & 0x0101_0101_0101_0101;
        *codes = (u64::from_le_bytes(*codes) | fifths << 4).to_le_bytes();
    }
}

fn put_nibbles(q: &[u8; 32], bytes: &mut [u8]) {
    for i in 0..HALF {
        bytes[i] = q[i] & 0x0f | q[i + HALF] << 4;
    }
}

fn put_nibbles_and_fifths(q: &[u8; 32], bytes: &mut [u8]) {
    let fifths = (0..32).fold(0u32, |bits, i| bits | u32::from(q[i] >> 4 & 1) << i);
    bytes[..4].copy_from_slice(&fifths.to_le_bytes());
    put_nibbles(q, &mut bytes[4..]);
}

/// The 32 integers `round(value / scale) + bias`, for integers of `low..=-1 - low`.
fn signed_integers(values: &[f32], scale: f32, low: f32) -> [u8; 32] {
    let inverse = fit::inverse(scale);
    std::array::from_fn(|i| (fit::nearest(values[i], inverse, low, -1.0 - low) - low) as u8)
}

fn affine_integers(values: &[f32], fit: fit::Affine, levels: f32) -> [u8; 32] {
    std::array::from_fn(|i| fit.quantize(values[i], levels) as u8)
}

fn encode_q4_0(values: &[f32], block: &mut [u8]) {
    let scale = fit::scale::<8>(values);
    put_half(block, 0, scale);
    put_nibbles(&signed_integers(values, scale.to_f32(), -8.0), &mut block[2..]);
}

fn encode_q4_1(values: &[f32], block: &mut [u8]) {
    let fit = fit::affine::<15>(values);
    put_half(block, 0, fit.scale);
    put_half(block, 2, fit.minimum);
    put_nibbles(&affine_integers(values, fit, 15.0), &mut block[4..]);
}

fn encode_q5_0(values: &[f32], block: &mut [u8]) {
    let scale = fit::scale::<16>(values);
    put_half(block, 0, scale);
    put_nibbles_and_fifths(&signed_integers(values, scale.to_f32(), -16.0), &mut block[2..]);
}

fn encode_q5_1(values: &[f32], block: &mut [u8]) {
    let fit = fit::affine::<31>(values);
    put_half(block, 0, fit.scale);
    put_half(block, 2, fit.minimum);
    put_nibbles_and_fifths(&affine_integers(values, fit, 31.0), &mut block[4..]);
}

/// With 8 bits the range decides, not the rounding: the scale is the largest magnitude over 127.
fn encode_q8_0(values: &[f32], block: &mut [u8]) {
    let scale = fit::saturating_half(fit::extreme(values).abs() / 127.0);
    put_half(block, 0, scale);
    let inverse = fit::inverse(scale.to_f32());
    for (q, &value) in block[2..].iter_mut().zip(values) {
        *q = fit::nearest(value, inverse, -127.0, 127.0) as i8 as u8;
    }
}

#[cfg(test)]
mod tests {
    use crate::{TensorType, dequantize_row, quantize_row};

    fn decode(ty: TensorType, bytes: &[u8]) -> Vec<f32> {
        let mut out = vec![f32::NAN; 32];
        dequantize_row(ty, bytes, &mut out);
        out
    }

    // f16: 0x3800 is 0.5, 0xbc00 is -1, 0x4000 is 2.

    #[test]
    fn q4_0_by_hand() {
        let mut block = vec![0x00, 0x38];
        block.extend((0..16).map(|i| i | (15 - i) << 4));
        let out = decode(TensorType::Q4_0, &block);
        for i in 0..16 {
            assert_eq!(out[i], 0.5 * (i as f32 - 8.0));
            assert_eq!(out[i + 16], 0.5 * (7.0 - i as f32));
        }
    }

    #[test]
    fn q4_1_by_hand() {
        let mut block = vec![0x00, 0x38, 0x00, 0xbc];
        block.extend((0..16).map(|i| i | 0x30));
        let out = decode(TensorType::Q4_1, &block);
        for i in 0..16 {
            assert_eq!(out[i], 0.5 * i as f32 - 1.0);
            assert_eq!(out[i + 16], 0.5);
        }
    }

    #[test]
    fn q5_0_by_hand() {
        // Fifth bits of weights 0, 3 and 17; all nibbles low 1, high 2.
        let mut block = vec![0x00, 0x40];
        block.extend((1u32 | 1 << 3 | 1 << 17).to_le_bytes());
        block.extend([0x21; 16]);
        let out = decode(TensorType::Q5_0, &block);
        for (i, value) in out.iter().enumerate() {
            let low = if i < 16 { 1.0 } else { 2.0 };
            let fifth = if [0, 3, 17].contains(&i) { 16.0 } else { 0.0 };
            assert_eq!(*value, 2.0 * (low + fifth - 16.0), "weight {i}");
        }
    }

    #[test]
    fn q5_1_by_hand() {
        let mut block = vec![0x00, 0x38, 0x00, 0xbc];
        block.extend((1u32 << 31 | 1 << 15).to_le_bytes());
        block.extend([0x5f; 16]);
        let out = decode(TensorType::Q5_1, &block);
        for (i, value) in out.iter().enumerate() {
            let low = if i < 16 { 15.0 } else { 5.0 };
            let fifth = if [15, 31].contains(&i) { 16.0 } else { 0.0 };
            assert_eq!(*value, 0.5 * (low + fifth) - 1.0, "weight {i}");
        }
    }

    #[test]
    fn q8_0_by_hand() {
        let mut block = vec![0x00, 0x38];
        block.extend((0..32).map(|i| (i * 8 - 128) as i8 as u8));
        let out = decode(TensorType::Q8_0, &block);
        for (i, value) in out.iter().enumerate() {
            assert_eq!(*value, 0.5 * (i as f32 * 8.0 - 128.0));
        }
    }

    /// Weights that the format can represent come back exactly, and encode to the same bytes'
    /// values, whichever scale the search settles on.
    #[test]
    fn representable_blocks_round_trip() {
        let levels: Vec<f32> = (0..32).map(|i| ((i * 13) % 32) as f32).collect();
        let cases = [
            (TensorType::Q4_0, 16.0, -8.0),
            (TensorType::Q4_1, 16.0, 3.0),
            (TensorType::Q5_0, 32.0, -16.0),
            (TensorType::Q5_1, 32.0, 3.0),
        ];
        for (ty, count, shift) in cases {
            let values: Vec<f32> = levels.iter().map(|q| (q % count + shift) * 0.125).collect();
            let mut bytes = vec![0; ty.block_bytes()];
            quantize_row(ty, &values, &mut bytes);
            assert_eq!(decode(ty, &bytes), values, "{ty}");
        }
        let values: Vec<f32> = (0..32).map(|i| (i * 8 - 127) as f32 * 0.125).collect();
        let mut bytes = vec![0; 34];
        quantize_row(TensorType::Q8_0, &values, &mut bytes);
        assert_eq!(decode(TensorType::Q8_0, &bytes), values);
    }
}
