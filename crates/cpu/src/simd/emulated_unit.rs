//! A matrix unit in plain Rust: what tests have where there is none.

use super::matrix_unit::{MatrixUnit, SLOTS, UnitLanes, unit_kernels, whole_bf16};
use super::portable::Portable;

/// Computes what the unit's instructions would; holds the products of each slot.
pub(crate) struct EmulatedUnit([[f32; 256]; SLOTS]);

/// Products of a strip's block with a panel's, summed pair by pair.
///
/// # Safety
/// As of [`MatrixUnit::start`].
unsafe fn multiply(strip: *const u16, panel: *const u16) -> [f32; 256] {
    let value = |bits: u16| f32::from_bits(u32::from(bits) << 16);
    std::array::from_fn(|at| {
        let (row, output) = (at / 16, at % 16);
        let term = |column: usize| {
            // SAFETY: by this function's promise.
            unsafe {
                let left = *strip.add(32 * row + column);
                let right = *panel.add(32 * (column / 2) + 2 * output + column % 2);
                value(left) * value(right)
            }
        };
        (0..32).map(term).sum()
    })
}

// SAFETY: plain code.
unsafe impl MatrixUnit for EmulatedUnit {
    unsafe fn configure() -> EmulatedUnit {
        EmulatedUnit([[0.0; 256]; SLOTS])
    }

    unsafe fn start<const SLOT: usize>(&mut self, strip: *const u16, panel: *const u16) {
        // SAFETY: by the trait's promise.
        self.0[SLOT] = unsafe { multiply(strip, panel) };
    }

    unsafe fn store<const SLOT: usize>(&mut self, products: *mut f32) {
        let held = &self.0[SLOT];
        // SAFETY: by the trait's promise.
        unsafe { products.copy_from_nonoverlapping(held.as_ptr(), held.len()) };
    }

    fn release(self) {}
}

// SAFETY: plain code.
unsafe impl UnitLanes for Portable {
    #[inline(always)]
    unsafe fn store_pairs<const ZERO: i32, const WIDE: bool>(to: *mut u16, codes: [u8; 64]) {
        for (at, code) in codes.into_iter().enumerate() {
            let (output, column) = (at / 4, at % 4);
            let place = 32 * (column % 2) + 2 * output + column / 2;
            // SAFETY: by the trait's promise.
            unsafe { *to.add(place) = whole_bf16(i32::from(code) - ZERO) };
        }
    }
}

/// There is no ceiling to measure.
unsafe fn probe(_: usize) {}

unit_kernels!(
    table,
    crate::simd::portable::Portable,
    crate::simd::emulated_unit::EmulatedUnit,
    crate::simd::emulated_unit::probe,
    []
);
