//! Rows of weights to and from single floats, for every tensor type.
//!
//! This file holds the entry points and the plain float types; the blocks of 32 are in
//! `blocks_32`, the blocks of 256 in `blocks_k`. Decoding is the reference that kernels are
//! tested against: one multiplication and at most one addition a weight, in the order the
//! comments give, all in single precision.

use half::{bf16, f16};

use crate::types::TensorType;
use crate::{blocks_32, blocks_k};

/// Decodes a row (or several whole rows, end to end) of stored weights.
///
/// Every bit pattern decodes to something; a hostile scale can yield infinities or NaN.
///
/// # Panics
/// If `bytes.len()` is not `ty.row_bytes(out.len())`.
pub fn dequantize_row(ty: TensorType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        Some(bytes.len()),
        ty.row_bytes(out.len()),
        "{} bytes are no row of {} weights of type {ty}",
        bytes.len(),
        out.len()
    );
    let decode: fn(&[u8], &mut [f32]) = match ty {
        TensorType::F32 => {
            for (value, raw) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*raw);
            }
            return;
        }
        TensorType::F16 => {
            for (value, raw) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = f16::from_le_bytes(*raw).to_f32();
            }
            return;
        }
        TensorType::BF16 => {
            for (value, raw) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = bf16::from_le_bytes(*raw).to_f32();
            }
            return;
        }
        TensorType::Q4_0 => blocks_32::decode_q4_0,
        TensorType::Q4_1 => blocks_32::decode_q4_1,
        TensorType::Q5_0 => blocks_32::decode_q5_0,
        TensorType::Q5_1 => blocks_32::decode_q5_1,
        TensorType::Q8_0 => blocks_32::decode_q8_0,
        TensorType::Q4K => blocks_k::decode_q4_k,
        TensorType::Q5K => blocks_k::decode_q5_k,
        TensorType::Q6K => blocks_k::decode_q6_k,
    };
    let blocks = bytes.chunks_exact(ty.block_bytes());
    for (block, values) in blocks.zip(out.chunks_exact_mut(ty.block_len())) {
        decode(block, values);
    }
}

/// Encodes a row (or several whole rows, end to end) of weights.
///
/// Scales are stored as f16, so weights beyond 65504 times the format's largest integer saturate,
/// and NaN becomes some finite weight (in the float types it stays NaN).
///
/// # Panics
/// If `out.len()` is not `ty.row_bytes(values.len())`.
pub fn quantize_row(ty: TensorType, values: &[f32], out: &mut [u8]) {
    assert_eq!(
        Some(out.len()),
        ty.row_bytes(values.len()),
        "{} bytes cannot hold a row of {} weights of type {ty}",
        out.len(),
        values.len()
    );
    let encode: fn(&[f32], &mut [u8]) = match ty {
        TensorType::F32 => {
            for (value, raw) in values.iter().zip(out.as_chunks_mut::<4>().0) {
                *raw = value.to_le_bytes();
            }
            return;
        }
        TensorType::F16 => {
            for (value, raw) in values.iter().zip(out.as_chunks_mut::<2>().0) {
                *raw = f16::from_f32(*value).to_le_bytes();
            }
            return;
        }
        TensorType::BF16 => {
            for (value, raw) in values.iter().zip(out.as_chunks_mut::<2>().0) {
                *raw = bf16::from_f32(*value).to_le_bytes();
            }
            return;
        }
        TensorType::Q4_0 => blocks_32::encode_q4_0,
        TensorType::Q4_1 => blocks_32::encode_q4_1,
        TensorType::Q5_0 => blocks_32::encode_q5_0,
        TensorType::Q5_1 => blocks_32::encode_q5_1,
        TensorType::Q8_0 => blocks_32::encode_q8_0,
        TensorType::Q4K => blocks_k::encode_q4_k,
        TensorType::Q5K => blocks_k::encode_q5_k,
        TensorType::Q6K => blocks_k::encode_q6_k,
    };
    let blocks = out.chunks_exact_mut(ty.block_bytes());
    for (values, block) in values.chunks_exact(ty.block_len()).zip(blocks) {
        encode(values, block);
    }
}

/// The half float at byte `at` of a block.
pub(crate) fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Stores a half float at byte `at` of a block.
pub(crate) fn put_half(block: &mut [u8], at: usize, value: f16) {
    block[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// A row in another type.
///
/// # Panics
/// If the row does not fit either type.
pub fn convert_row(from: TensorType, row: &[u8], to: TensorType, columns: usize) -> Vec<u8> {
    let mut values = vec![0.0; columns];
    dequantize_row(from, row, &mut values);
    let mut out = vec![0; to.row_bytes(columns).expect("a whole number of blocks")];
    quantize_row(to, &values, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn float_types_decode_their_bits() {
        let mut out = [0.0f32; 2];
        dequantize_row(TensorType::F32, &[0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0], &mut out);
        assert_eq!(out, [1.0, -2.0]);
        // f16: 0x3c00 is 1, 0xc100 is -2.5. bf16: 0x3f80 is 1, 0xc020 is -2.5.
        dequantize_row(TensorType::F16, &[0x00, 0x3c, 0x00, 0xc1], &mut out);
        assert_eq!(out, [1.0, -2.5]);
        dequantize_row(TensorType::BF16, &[0x80, 0x3f, 0x20, 0xc0], &mut out);
        assert_eq!(out, [1.0, -2.5]);
    }

    /// Ties go to the even mantissa, as IEEE says.
    #[test]
    fn float_types_round_to_nearest_even() {
        let mut out = [0u8; 4];
        // bf16 keeps 7 fraction bits: 1 + 2^-8 and 1 + 3 * 2^-8 are ties.
        let ties = [1.0 + 2f32.powi(-8), 1.0 + 3.0 * 2f32.powi(-8)];
        quantize_row(TensorType::BF16, &ties, &mut out);
        assert_eq!(out, [0x80, 0x3f, 0x82, 0x3f]);
        // f16 keeps 10.
        let ties = [1.0 + 2f32.powi(-11), 1.0 + 3.0 * 2f32.powi(-11)];
        quantize_row(TensorType::F16, &ties, &mut out);
        assert_eq!(out, [0x00, 0x3c, 0x02, 0x3c]);
    }

    #[test]
    #[should_panic(expected = "no row of 32 weights of type q4_0")]
    fn wrong_length_panics() {
        dequantize_row(TensorType::Q4_0, &[0; 17], &mut [0.0; 32]);
    }

    #[test]
    fn strange_inputs_encode_without_panic() {
        let strange = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e-45, -0.0];
        for &ty in TensorType::ALL {
            for &value in &strange {
                for other in [0.0, 1.0, -1e30] {
                    let mut values = vec![other; 256];
                    values[17] = value;
                    let mut bytes = vec![0xff; ty.row_bytes(256).unwrap()];
                    quantize_row(ty, &values, &mut bytes);
                    let mut out = vec![0.0; 256];
                    dequantize_row(ty, &bytes, &mut out);
                    if ty.is_quantized() {
                        assert!(out.iter().all(|v| v.is_finite()), "{ty} of {value}: {out:?}");
                    }
                }
            }
        }
    }
}
