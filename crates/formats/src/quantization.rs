//! What a quantised type is made of, without its bit layout.
//!
//! A file's bits are known here and in `blocks_*.rs` only. Whoever stores weights in another
//! layout (a device) reads [`Block`]s, and learns from [`Quantization`] what is in them:
//!
//! ```text
//! weight i = scale * scales[j] * value(codes[i])                              no minimum
//!            scale * scales[j] * codes[i] + minimum                           Minimum::Added
//!            scale * scales[j] * codes[i] - minimum * minimums[j]             Minimum::Subtracted
//! with j = i / sub_block, and 1 for scales[j] where scale_bits is 0
//! ```

use half::f16;

/// Weights of the longest block.
pub const LONGEST_BLOCK: usize = 256;
/// Sub-blocks of a block that has the most.
pub const MOST_SUB_BLOCKS: usize = 16;

/// How the weights of a type follow from codes and scales, and how its blocks are read.
#[derive(Clone, Copy, Debug)]
pub struct Quantization {
    /// Weights in a block: 32, or 256 where it has sub-blocks.
    pub block_len: usize,
    /// Bytes of a block, scales included.
    pub block_bytes: usize,
    /// Bits of a code: 4, 5, 6 or 8.
    pub code_bits: usize,
    /// The code of a weight of 0, where codes are their own values and there is no minimum.
    pub zero: u8,
    /// The values that codes are indices of, where they are not values themselves.
    pub codebook: Option<&'static [i8; 16]>,
    /// Weights that share a scale: 16 or 32.
    pub sub_block: usize,
    /// Bits of the integer scale of each sub-block, by which the block's scale is multiplied: 0
    /// where blocks have no sub-blocks. Signed, unless there is a minimum.
    pub scale_bits: usize,
    /// What is added to the scaled codes.
    pub minimum: Minimum,
    /// Place of the block's f16 scale, in bytes.
    pub(crate) scale_at: usize,
    /// Place of the f16 minimum; without meaning where there is none.
    pub(crate) minimum_at: usize,
    /// Reads codes, scales and minimums of the sub-blocks.
    pub(crate) decode: fn(&[u8], &mut Block),
    /// Fits a block to weights.
    pub(crate) encode: fn(&[f32], &mut [u8]),
}

/// A quantised type as a Rust type: what is generic over it is compiled for each of them, with all of
/// the description known.
pub trait Format {
    /// What the type is made of.
    const QUANTIZATION: Quantization;
}

/// Work on blocks whose type is known at run time only; see `TensorType::visit`.
pub trait FormatVisitor {
    /// What comes of it.
    type Output;
    /// Does the work for one type.
    fn visit<F: Format>(self) -> Self::Output;
}

/// What is added to the scaled codes of a type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Minimum {
    /// Nothing: codes are signed, or centred on [`Quantization::zero`].
    None,
    /// The block's f16 minimum is added.
    Added,
    /// The block's f16 minimum, times an integer of each sub-block, is subtracted.
    Subtracted,
}

/// One block, taken apart.
#[derive(Clone, Debug)]
pub struct Block {
    /// Codes in the order of the weights, as many as the type has in a block.
    pub codes: [u8; LONGEST_BLOCK],
    /// Scale of the block.
    pub scale: f16,
    /// Minimum of the block, where the type has one.
    pub minimum: f16,
    /// Integer scale of each sub-block, where the type has them.
    pub scales: [i8; MOST_SUB_BLOCKS],
    /// Integer minimum of each sub-block, where the type has them; never negative.
    pub minimums: [i8; MOST_SUB_BLOCKS],
}

impl Block {
    /// A block of zeros, to be read into.
    pub fn zeroed() -> Block {
        Block {
            codes: [0; LONGEST_BLOCK],
            scale: f16::ZERO,
            minimum: f16::ZERO,
            scales: [0; MOST_SUB_BLOCKS],
            minimums: [0; MOST_SUB_BLOCKS],
        }
    }
}

impl Quantization {
    /// Reads a block of the file. Every bit pattern is a block.
    ///
    /// # Panics
    /// If `bytes` is shorter than a block of the type.
    #[inline(always)]
    pub fn decode(&self, bytes: &[u8], block: &mut Block) {
        block.scale = half_at(bytes, self.scale_at);
        if self.has_minimum() {
            block.minimum = half_at(bytes, self.minimum_at);
        }
        (self.decode)(bytes, block);
    }

    /// Overwrites scale and minimum of a block of the file, for blocks of random codes.
    ///
    /// # Panics
    /// If `bytes` is shorter than a block of the type.
    pub fn set_scale(&self, bytes: &mut [u8], scale: f16, minimum: f16) {
        put_half(bytes, self.scale_at, scale);
        if self.has_minimum() {
            put_half(bytes, self.minimum_at, minimum);
        }
    }

    /// Whether there is a minimum.
    #[inline(always)]
    pub fn has_minimum(&self) -> bool {
        self.minimum != Minimum::None
    }

    /// Number of f16s that a block has: a scale, or a scale and a minimum.
    #[inline(always)]
    pub fn halves(&self) -> usize {
        1 + usize::from(self.has_minimum())
    }

    /// What a code stands for, before it is scaled.
    #[inline(always)]
    pub fn value(&self, code: u8) -> i16 {
        match self.codebook {
            Some(values) => i16::from(values[usize::from(code & 15)]),
            None => i16::from(code) - i16::from(self.zero),
        }
    }

    /// The weights of a block: one multiplication for the scale of a sub-block, one multiplication
    /// and at most one addition a weight, in single precision.
    #[inline(always)]
    pub(crate) fn dequantize(&self, block: &Block, out: &mut [f32]) {
        let (scale, minimum) = (block.scale.to_f32(), block.minimum.to_f32());
        let codes = block.codes.chunks_exact(self.sub_block);
        for (j, (out, codes)) in out.chunks_exact_mut(self.sub_block).zip(codes).enumerate() {
            let integer = |integers: &[i8; MOST_SUB_BLOCKS]| f32::from(integers[j]);
            let step = if self.scale_bits > 0 { scale * integer(&block.scales) } else { scale };
            let weights = out.iter_mut().zip(codes);
            match self.minimum {
                Minimum::None => weights.for_each(|(w, &q)| *w = step * f32::from(self.value(q))),
                Minimum::Added => weights.for_each(|(w, &q)| *w = step * f32::from(q) + minimum),
                Minimum::Subtracted => {
                    let offset = minimum * integer(&block.minimums);
                    weights.for_each(|(w, &q)| *w = step * f32::from(q) - offset);
                }
            }
        }
    }
}

/// The half float at byte `at` of a block.
#[inline(always)]
pub(crate) fn half_at(block: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([block[at], block[at + 1]])
}

/// Stores a half float at byte `at` of a block.
pub(crate) fn put_half(block: &mut [u8], at: usize, value: f16) {
    block[at..at + 2].copy_from_slice(&value.to_le_bytes());
}
