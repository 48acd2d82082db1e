//! Rows of weights to and from single floats, for every tensor type.
//!
//! This file holds the entry points and the plain float types; the bits of quantised blocks are in
//! `blocks_32`, `blocks_k` and `blocks_codebook`. Decoding is the reference that kernels are
//! tested against.

use half::{bf16, f16};

use crate::quantization::{Block, Format, FormatVisitor, Quantization};
use crate::types::TensorType;
use crate::{blocks_32, blocks_codebook, blocks_k};

impl TensorType {
    /// Does what `visitor` does, compiled for this type; none for plain floats.
    pub fn visit<V: FormatVisitor>(self, visitor: V) -> Option<V::Output> {
        Some(match self {
            TensorType::F32 | TensorType::F16 | TensorType::BF16 => return None,
            TensorType::Q4_0 => visitor.visit::<blocks_32::Q4_0>(),
            TensorType::Q4_1 => visitor.visit::<blocks_32::Q4_1>(),
            TensorType::Q5_0 => visitor.visit::<blocks_32::Q5_0>(),
            TensorType::Q5_1 => visitor.visit::<blocks_32::Q5_1>(),
            TensorType::Q8_0 => visitor.visit::<blocks_32::Q8_0>(),
            TensorType::Q4K => visitor.visit::<blocks_k::Q4K>(),
            TensorType::Q5K => visitor.visit::<blocks_k::Q5K>(),
            TensorType::Q6K => visitor.visit::<blocks_k::Q6K>(),
            TensorType::IQ4NL => visitor.visit::<blocks_codebook::IQ4NL>(),
            TensorType::IQ4XS => visitor.visit::<blocks_codebook::IQ4XS>(),
        })
    }

    /// What the type's blocks are made of; none for plain floats.
    pub fn quantization(self) -> Option<&'static Quantization> {
        struct Describe;
        impl FormatVisitor for Describe {
            type Output = &'static Quantization;
            fn visit<F: Format>(self) -> &'static Quantization {
                &F::QUANTIZATION
            }
        }
        self.visit(Describe)
    }
}

/// Decodes blocks to weights, both end to end.
struct Dequantize<'a> {
    bytes: &'a [u8],
    out: &'a mut [f32],
}

impl FormatVisitor for Dequantize<'_> {
    type Output = ();
    fn visit<F: Format>(self) {
        let mut block = Block::zeroed();
        let blocks = self.bytes.chunks_exact(F::QUANTIZATION.block_bytes);
        for (bytes, out) in blocks.zip(self.out.chunks_exact_mut(F::QUANTIZATION.block_len)) {
            F::QUANTIZATION.decode(bytes, &mut block);
            F::QUANTIZATION.dequantize(&block, out);
        }
    }
}

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
    match ty {
        TensorType::F32 => {
            for (value, raw) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*raw);
            }
        }
        TensorType::F16 => {
            for (value, raw) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = f16::from_le_bytes(*raw).to_f32();
            }
        }
        TensorType::BF16 => {
            for (value, raw) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *value = bf16::from_le_bytes(*raw).to_f32();
            }
        }
        _ => {
            ty.visit(Dequantize { bytes, out }).expect("not a float");
        }
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
    match ty {
        TensorType::F32 => {
            for (value, raw) in values.iter().zip(out.as_chunks_mut::<4>().0) {
                *raw = value.to_le_bytes();
            }
        }
        TensorType::F16 => {
            for (value, raw) in values.iter().zip(out.as_chunks_mut::<2>().0) {
                *raw = f16::from_f32(*value).to_le_bytes();
            }
        }
        TensorType::BF16 => {
            for (value, raw) in values.iter().zip(out.as_chunks_mut::<2>().0) {
                *raw = bf16::from_f32(*value).to_le_bytes();
            }
        }
        _ => {
            let quantization = ty.quantization().expect("not a float");
            let blocks = out.chunks_exact_mut(ty.block_bytes());
            for (values, block) in values.chunks_exact(ty.block_len()).zip(blocks) {
                (quantization.encode)(values, block);
            }
        }
    }
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

    /// FNV-1a sums of the weights of random blocks, every bit of which counts. Those of q4_0,
    /// iq4_nl and iq4_xs are also what a second implementation, in Python, decodes.
    #[test]
    fn random_blocks_decode_to_known_bits() {
        let expected = [
            (TensorType::Q4_0, 0xbb3d_ab02_56cb_af84),
            (TensorType::Q4_1, 0xbecd_81f9_5831_e903),
            (TensorType::Q5_0, 0x8083_3f71_b57f_5f67),
            (TensorType::Q5_1, 0x4f03_274a_1f1d_a094),
            (TensorType::Q8_0, 0xbaab_cdbc_c059_f050),
            (TensorType::Q4K, 0xec7f_e818_f465_98e3),
            (TensorType::Q5K, 0xc133_823d_1f32_eeed),
            (TensorType::Q6K, 0x105a_570d_19a7_c8ec),
            (TensorType::IQ4NL, 0xb833_189e_4f9e_3912),
            (TensorType::IQ4XS, 0xe6ad_8a78_9470_7255),
        ];
        for (ty, expected) in expected {
            let mut state = 11u64;
            let next = |_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                // Without the exponent's top bit no scale is infinite, wherever it lies.
                (state >> 56) as u8 & 0xbf
            };
            let row: Vec<u8> = (0..ty.row_bytes(1024).unwrap()).map(next).collect();
            let mut out = vec![0.0; 1024];
            dequantize_row(ty, &row, &mut out);
            let bytes = out.iter().flat_map(|weight| weight.to_le_bytes());
            let sum = bytes.fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
                (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
            assert_eq!(sum, expected, "{ty}");
        }
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
