//! A matrix unit in plain Rust: what tests have where there is none.

use super::matrix_unit::{MatrixUnit, SLOTS, UnitLanes, WHOLE_COLUMNS, unit_kernels};
use super::portable::Portable;

/// Computes what the unit's instructions would.
pub(crate) struct EmulatedUnit {
    /// The products of each slot.
    slots: [[i32; 256]; SLOTS],
    /// `[16][64]` of two strips.
    strips: [[i8; 16 * WHOLE_COLUMNS]; 2],
    /// `[16][16][4]` of two panels.
    panels: [[i8; 16 * WHOLE_COLUMNS]; 2],
}

impl EmulatedUnit {
    /// What nobody has loaded or cleared is not zero, as what another product left is not.
    fn new() -> EmulatedUnit {
        let bytes = [[77; 16 * WHOLE_COLUMNS]; 2];
        EmulatedUnit { slots: [[7777; 256]; SLOTS], strips: bytes, panels: bytes }
    }
}

/// Products of a strip's block of `columns` with a panel's.
///
/// # Safety
/// `strip` holds `[16][columns]`, `panel` `[columns / 4][16][4]`.
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
        EmulatedUnit::new()
    }

    unsafe fn configure_whole() -> EmulatedUnit {
        EmulatedUnit::new()
    }

    unsafe fn start<const SLOT: usize>(&mut self, strip: *const i8, panel: *const i8) {
        // SAFETY: by the trait's promise.
        self.slots[SLOT] = unsafe { multiply(strip, panel, 32) };
    }

    unsafe fn load_strip<const INDEX: usize>(&mut self, strip: *const i8, stride: usize) {
        for (row, room) in self.strips[INDEX].chunks_exact_mut(WHOLE_COLUMNS).enumerate() {
            // SAFETY: by the trait's promise.
            unsafe {
                let from = strip.add(row * stride);
                from.copy_to_nonoverlapping(room.as_mut_ptr(), WHOLE_COLUMNS);
            }
        }
    }

    unsafe fn load_panel<const INDEX: usize>(&mut self, panel: *const i8) {
        let room = &mut self.panels[INDEX];
        // SAFETY: by the trait's promise.
        unsafe { panel.copy_to_nonoverlapping(room.as_mut_ptr(), room.len()) };
    }

    unsafe fn clear<const STRIP: usize, const PANEL: usize>(&mut self) {
        self.slots[2 * STRIP + PANEL] = [0; 256];
    }

    unsafe fn multiply<const STRIP: usize, const PANEL: usize>(&mut self) {
        let (strip, panel) = (&self.strips[STRIP], &self.panels[PANEL]);
        // SAFETY: both hold whole columns.
        let products = unsafe { multiply(strip.as_ptr(), panel.as_ptr(), WHOLE_COLUMNS) };
        let slot = &mut self.slots[2 * STRIP + PANEL];
        slot.iter_mut().zip(products).for_each(|(sum, product)| *sum += product);
    }

    unsafe fn store<const SLOT: usize>(&mut self, products: *mut i32) {
        let held = &self.slots[SLOT];
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
