//! A matrix unit in plain Rust: what tests have where there is none.

use super::matrix_unit::{MatrixUnit, UnitLanes, unit_kernels};
use super::portable::Portable;

/// Computes what the unit's instructions would.
#[derive(Clone, Copy)]
pub(crate) struct EmulatedUnit;

/// Products of `columns` columns of a strip's block with as many of a panel's.
///
/// # Safety
/// As of [`MatrixUnit::multiply`].
unsafe fn multiply(strip: *const i8, panel: *const i8, columns: usize, products: *mut i32) {
    for (row, output) in (0..16).flat_map(|row| (0..16).map(move |output| (row, output))) {
        let term = |column: usize| {
            // SAFETY: by this function's promise.
            unsafe {
                let left = *strip.add(32 * row + column);
                let right = *panel.add(64 * (column / 4) + 4 * output + column % 4);
                i32::from(left) * i32::from(right)
            }
        };
        // SAFETY: as above.
        unsafe { *products.add(16 * row + output) = (0..columns).map(term).sum() };
    }
}

// SAFETY: plain code, which needs no configuration.
unsafe impl MatrixUnit for EmulatedUnit {
    unsafe fn configure<const HALVES: bool>() {}
    unsafe fn release() {}

    unsafe fn multiply<const HALVES: bool, const SET: usize>(
        strip: *const i8,
        panel: *const i8,
        products: *mut i32,
    ) {
        // SAFETY: by the trait's promise.
        unsafe {
            if HALVES {
                multiply(strip, panel, 16, products);
                multiply(strip.add(16), panel.add(256), 16, products.add(256));
            } else {
                multiply(strip, panel, 32, products);
            }
        }
    }
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
