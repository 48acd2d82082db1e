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
}
