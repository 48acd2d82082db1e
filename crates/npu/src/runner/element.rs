//! Types of inputs, and the sums that their products are added up in.

use half::bf16;
use half::slice::HalfFloatSliceExt;

use crate::package::ElementType;

/// A type of inputs.
pub(super) trait Element: Copy + Default {
    /// The sums.
    type Sum: Copy + Default;
    /// The type's name in manifests.
    const TYPE: ElementType;

    /// The values as they lie in memory.
    fn bytes(values: &[Self]) -> &[u8];

    /// Adds an output of the device, of type `output`, to sums.
    fn add(bytes: &[u8], output: ElementType, sums: &mut [Self::Sum]);

    /// Whether every element of an output is a result: neither what [`poison`] left nor a number that
    /// is not finite.
    fn are_results(bytes: &[u8], output: ElementType) -> bool;

    /// Whether all of these are finite, so that a result that is not shows a fault.
    fn all_finite(values: &[Self]) -> bool;
}

/// What an output is filled with before a kernel runs, so that an element that it never writes cannot
/// pass for a result: NaN, and of integers the smallest. A sum of products of bytes comes to at most
/// 2^14 K in magnitude, which for every K that a package may have (2^16) is half of that.
pub(super) fn poison(output: ElementType) -> [u8; 4] {
    match output {
        ElementType::I32 => i32::MIN.to_le_bytes(),
        ElementType::I8 | ElementType::Bf16 | ElementType::F32 => [0xFF; 4],
    }
}

impl Element for i8 {
    type Sum = i32;
    const TYPE: ElementType = ElementType::I8;

    fn bytes(values: &[i8]) -> &[u8] {
        bytemuck::cast_slice(values)
    }

    /// The rules of packages leave i32 as the only output of bytes.
    fn add(bytes: &[u8], _output: ElementType, sums: &mut [i32]) {
        for (sum, bytes) in sums.iter_mut().zip(bytes.as_chunks().0) {
            *sum = sum.wrapping_add(i32::from_le_bytes(*bytes));
        }
    }

    fn are_results(bytes: &[u8], _output: ElementType) -> bool {
        // Without an early end, for the compiler to fill vectors with.
        let sound = |sound: bool, bytes: &[u8; 4]| sound & (i32::from_le_bytes(*bytes) != i32::MIN);
        bytes.as_chunks().0.iter().fold(true, sound)
    }

    fn all_finite(_values: &[i8]) -> bool {
        true
    }
}

impl Element for bf16 {
    type Sum = f32;
    const TYPE: ElementType = ElementType::Bf16;

    fn bytes(values: &[bf16]) -> &[u8] {
        let words: &[u16] = values.reinterpret_cast();
        bytemuck::cast_slice(words)
    }

    fn add(bytes: &[u8], output: ElementType, sums: &mut [f32]) {
        if output == ElementType::F32 {
            for (sum, bytes) in sums.iter_mut().zip(bytes.as_chunks().0) {
                *sum += f32::from_le_bytes(*bytes);
            }
        } else {
            for (sum, bytes) in sums.iter_mut().zip(bytes.as_chunks().0) {
                *sum += bf16::from_le_bytes(*bytes).to_f32();
            }
        }
    }

    fn are_results(bytes: &[u8], output: ElementType) -> bool {
        if output == ElementType::F32 {
            let finite = |all: bool, bytes: &[u8; 4]| all & f32::from_le_bytes(*bytes).is_finite();
            return bytes.as_chunks().0.iter().fold(true, finite);
        }
        let finite = |all: bool, bytes: &[u8; 2]| all & bf16::from_le_bytes(*bytes).is_finite();
        bytes.as_chunks().0.iter().fold(true, finite)
    }

    fn all_finite(values: &[bf16]) -> bool {
        values.iter().all(|value| value.is_finite())
    }
}
