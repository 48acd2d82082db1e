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

    /// Adds an output of the device, of type `output`, to sums. Returns whether every element is a
    /// result: neither what [`poison`] left nor a number that is not finite.
    #[must_use]
    fn add(bytes: &[u8], output: ElementType, sums: &mut [Self::Sum]) -> bool;

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
    fn add(bytes: &[u8], _output: ElementType, sums: &mut [i32]) -> bool {
        let mut sound = true;
        for (sum, bytes) in sums.iter_mut().zip(bytes.as_chunks().0) {
            let value = i32::from_le_bytes(*bytes);
            sound &= value != i32::MIN;
            *sum = sum.wrapping_add(value);
        }
        sound
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

    fn add(bytes: &[u8], output: ElementType, sums: &mut [f32]) -> bool {
        let mut sound = true;
        let mut add = |sum: &mut f32, value: f32| {
            sound &= value.is_finite();
            *sum += value;
        };
        if output == ElementType::F32 {
            for (sum, bytes) in sums.iter_mut().zip(bytes.as_chunks().0) {
                add(sum, f32::from_le_bytes(*bytes));
            }
        } else {
            for (sum, bytes) in sums.iter_mut().zip(bytes.as_chunks().0) {
                add(sum, bf16::from_le_bytes(*bytes).to_f32());
            }
        }
        sound
    }

    fn all_finite(values: &[bf16]) -> bool {
        values.iter().all(|value| value.is_finite())
    }
}
