//! Tensor types: how many weights a block holds, how many bytes it takes, what ggml calls it.

use std::fmt;
use std::str::FromStr;

/// How the weights of a tensor are stored.
///
/// Quantised types store blocks of 32 or 256 weights; a row is a whole number of blocks.
#[allow(non_camel_case_types)] // The underscore separates digits: `Q40` would read as forty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TensorType {
    /// IEEE single precision, 4 bytes a weight.
    F32,
    /// IEEE half precision, 2 bytes a weight.
    F16,
    /// The upper half of a single, 2 bytes a weight.
    BF16,
    /// 32 weights of 4 bits and a scale: 4.5 bits a weight.
    Q4_0,
    /// 32 weights of 4 bits, a scale and a minimum: 5 bits a weight.
    Q4_1,
    /// 32 weights of 5 bits and a scale: 5.5 bits a weight.
    Q5_0,
    /// 32 weights of 5 bits, a scale and a minimum: 6 bits a weight.
    Q5_1,
    /// 32 weights of 8 bits and a scale: 8.5 bits a weight.
    Q8_0,
    /// 256 weights of 4 bits; 8 sub-blocks with 6-bit scales and minimums: 4.5 bits a weight.
    Q4K,
    /// 256 weights of 5 bits; 8 sub-blocks with 6-bit scales and minimums: 5.5 bits a weight.
    Q5K,
    /// 256 weights of 6 bits; 16 sub-blocks with 8-bit scales: 6.5625 bits a weight.
    Q6K,
    /// 32 weights of 4 bits that index 16 values, and a scale: 4.5 bits a weight.
    IQ4NL,
    /// 256 weights of 4 bits that index 16 values; 8 sub-blocks with 6-bit scales: 4.25 bits a
    /// weight.
    IQ4XS,
}

impl TensorType {
    /// Every supported type: plain floats, blocks of 32, blocks of 256, blocks with a codebook.
    pub const ALL: &[TensorType] = &[
        TensorType::F32,
        TensorType::F16,
        TensorType::BF16,
        TensorType::Q4_0,
        TensorType::Q4_1,
        TensorType::Q5_0,
        TensorType::Q5_1,
        TensorType::Q8_0,
        TensorType::Q4K,
        TensorType::Q5K,
        TensorType::Q6K,
        TensorType::IQ4NL,
        TensorType::IQ4XS,
    ];

    /// The lower-case name used in messages, on the command line and by ggml.
    pub fn name(self) -> &'static str {
        match self {
            TensorType::F32 => "f32",
            TensorType::F16 => "f16",
            TensorType::BF16 => "bf16",
            TensorType::Q4_0 => "q4_0",
            TensorType::Q4_1 => "q4_1",
            TensorType::Q5_0 => "q5_0",
            TensorType::Q5_1 => "q5_1",
            TensorType::Q8_0 => "q8_0",
            TensorType::Q4K => "q4_k",
            TensorType::Q5K => "q5_k",
            TensorType::Q6K => "q6_k",
            TensorType::IQ4NL => "iq4_nl",
            TensorType::IQ4XS => "iq4_xs",
        }
    }

    /// Weights in a block: 1, 32 or 256.
    pub fn block_len(self) -> usize {
        self.quantization().map_or(1, |quantization| quantization.block_len)
    }

    /// Bytes of a block, scales included.
    pub fn block_bytes(self) -> usize {
        match self {
            TensorType::F32 => 4,
            TensorType::F16 | TensorType::BF16 => 2,
            _ => self.quantization().expect("not a float").block_bytes,
        }
    }

    /// Bytes of a row of `columns` weights; `None` where the row is no whole number of blocks, or
    /// the size overflows.
    pub fn row_bytes(self, columns: usize) -> Option<usize> {
        if !columns.is_multiple_of(self.block_len()) {
            return None;
        }
        (columns / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The type behind a GGUF type code, if supported.
    pub(crate) fn from_ggml(code: u32) -> Option<TensorType> {
        TensorType::ALL.iter().copied().find(|ty| ty.ggml_code() == code)
    }

    /// The code of this type in a GGUF file.
    pub(crate) fn ggml_code(self) -> u32 {
        match self {
            TensorType::F32 => 0,
            TensorType::F16 => 1,
            TensorType::Q4_0 => 2,
            TensorType::Q4_1 => 3,
            TensorType::Q5_0 => 6,
            TensorType::Q5_1 => 7,
            TensorType::Q8_0 => 8,
            TensorType::Q4K => 12,
            TensorType::Q5K => 13,
            TensorType::Q6K => 14,
            TensorType::IQ4NL => 20,
            TensorType::IQ4XS => 23,
            TensorType::BF16 => 30,
        }
    }

    /// Whether weights share a scale, so that a single weight cannot be addressed by its bytes.
    pub fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// All names, comma-separated, for messages that list what would have worked.
    pub(crate) fn list() -> String {
        TensorType::ALL.iter().map(|ty| ty.name()).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A word that names no supported tensor type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a tensor type; known: {known}", known = TensorType::list())]
pub struct UnknownTensorType(String);

impl FromStr for TensorType {
    type Err = UnknownTensorType;

    /// Accepts [`TensorType::name`] in any case.
    fn from_str(text: &str) -> Result<TensorType, UnknownTensorType> {
        TensorType::ALL
            .iter()
            .copied()
            .find(|ty| ty.name().eq_ignore_ascii_case(text))
            .ok_or_else(|| UnknownTensorType(text.to_string()))
    }
}

/// The name of a GGUF type code, supported or not, for error messages.
pub(crate) fn ggml_type_name(code: u32) -> String {
    if let Some(ty) = TensorType::from_ggml(code) {
        return ty.name().to_string();
    }
    let name = match code {
        4 => "q4_2",
        5 => "q4_3",
        9 => "q8_1",
        10 => "q2_k",
        11 => "q3_k",
        15 => "q8_k",
        16 => "iq2_xxs",
        17 => "iq2_xs",
        18 => "iq3_xxs",
        19 => "iq1_s",
        21 => "iq3_s",
        22 => "iq2_s",
        24 => "i8",
        25 => "i16",
        26 => "i32",
        27 => "i64",
        28 => "f64",
        29 => "iq1_m",
        31 => "q4_0_4_4",
        32 => "q4_0_4_8",
        33 => "q4_0_8_8",
        34 => "tq1_0",
        35 => "tq2_0",
        36 => "iq4_nl_4_4",
        37 => "iq4_nl_4_8",
        38 => "iq4_nl_8_8",
        39 => "mxfp4",
        40 => "nvfp4",
        _ => return format!("unknown type {code}"),
    };
    name.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_round_trip() {
        for &ty in TensorType::ALL {
            assert_eq!(ty.name().parse(), Ok(ty));
            assert_eq!(ty.name().to_uppercase().parse(), Ok(ty));
            assert_eq!(TensorType::from_ggml(ty.ggml_code()), Some(ty));
            assert_eq!(ggml_type_name(ty.ggml_code()), ty.name());
        }
        assert!("q3_k".parse::<TensorType>().unwrap_err().to_string().contains("q4_k"));
        assert_eq!(ggml_type_name(16), "iq2_xxs");
        assert_eq!(ggml_type_name(99), "unknown type 99");
        assert_eq!(TensorType::from_ggml(16), None);
    }

    #[test]
    fn row_bytes_wants_whole_blocks_and_no_overflow() {
        assert_eq!(TensorType::Q4_0.row_bytes(64), Some(36));
        assert_eq!(TensorType::Q4_0.row_bytes(33), None);
        assert_eq!(TensorType::Q6K.row_bytes(512), Some(420));
        assert_eq!(TensorType::Q6K.row_bytes(32), None);
        assert_eq!(TensorType::IQ4NL.row_bytes(96), Some(54));
        assert_eq!(TensorType::IQ4XS.row_bytes(96), None);
        assert_eq!(TensorType::IQ4XS.row_bytes(512), Some(272));
        assert_eq!(TensorType::F32.row_bytes(usize::MAX), None);
        assert_eq!(TensorType::F32.row_bytes(0), Some(0));
    }

    /// Bits a weight as published for each format.
    #[test]
    fn bits_per_weight() {
        let bits = |ty: TensorType| (ty.block_bytes() * 8) as f64 / ty.block_len() as f64;
        let expected = [32.0, 16.0, 16.0, 4.5, 5.0, 5.5, 6.0, 8.5, 4.5, 5.5, 6.5625, 4.5, 4.25];
        for (&ty, expected) in TensorType::ALL.iter().zip(expected) {
            assert_eq!(bits(ty), expected, "{ty}");
        }
    }
}
