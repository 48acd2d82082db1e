//! A matrix unit in plain Rust: what tests have where there is none.

use super::matrix_unit::{MatrixUnit, SLOTS, UnitLanes, unit_kernels};
use super::portable::Portable;

/// Computes what the unit's instructions would; holds the products of each slot.
pub(crate) struct EmulatedUnit([[i32; 256]; SLOTS]);

/// Products of a strip's block of `columns` with a panel's.
///
/// # Safety
/// As of [`MatrixUnit::start_whole`].
unsafe fn multiply(strip: *const i8, panel: *const i8, columns: usize) -> [i32; 256] {
    std::array::from_fn(|at| {
        let (row, output) = (at / 16, at % 16);
        let term = |column: usize| {
            // SAFETY: by this function's promise.
            unsafe {
                let left = *strip.add(columns * row + column);
                let right = *panel.add(64 * (column / 4) + 4 * output + column % 4);
                i32::from(left) * i32::from(right)
            }
        };
        (0..columns).map(term).sum()
    })
}

// SAFETY: plain code.
unsafe impl MatrixUnit for EmulatedUnit {
    unsafe fn configure() -> EmulatedUnit {
        EmulatedUnit([[0; 256]; SLOTS])
    }

    unsafe fn configure_whole() -> EmulatedUnit {
        EmulatedUnit([[0; 256]; SLOTS])
    }

    unsafe fn start<const SLOT: usize>(&mut self, strip: *const i8, panel: *const i8) {
        // SAFETY: by the trait's promise.
        self.0[SLOT] = unsafe { multiply(strip, panel, 32) };
    }

    unsafe fn start_whole<const SLOT: usize>(
        &mut self,
        strip: *const i8,
        panel: *const i8,
        columns: usize,
    ) {
        // SAFETY: by the trait's promise.
        self.0[SLOT] = unsafe { multiply(strip, panel, columns) };
    }

    unsafe fn store<const SLOT: usize>(&mut self, products: *mut i32) {
        let held = &self.0[SLOT];
        // SAFETY: by the trait's promise.
        unsafe { products.copy_from_nonoverlapping(held.as_ptr(), held.len()) };
    }

    fn release(self) {}
}

// SAFETY: plain code.
unsafe impl UnitLanes for Portable {
    #[inline(always)]
    unsafe fn load_i32(from: *const i32) -> [f32; 16] {
        // SAFETY: by the trait's promise.
        unsafe { from.cast::<[i32; 16]>().read_unaligned().map(|value| value as f32) }
    }
    #[inline(always)]
    unsafe fn store_signed(to: *mut i8, codes: [u8; 64], zero: u8) {
        let signed = codes.map(|code| code.wrapping_sub(zero) as i8);
        // SAFETY: by the trait's promise.
        unsafe { to.cast::<[i8; 64]>().write_unaligned(signed) }
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
