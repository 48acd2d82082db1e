//! AMX: Intel's matrix unit, eight registers of 16 rows by 64 bytes.
//!
//! The compiler's intrinsics for it are not stable, so its instructions are written out. No other code
//! uses its registers, and what a thread configured is its own.

use super::avx512::Avx512;
use super::matrix_unit::{MatrixUnit, UnitLanes, WHOLE_COLUMNS, unit_kernels};
use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Needs amx-tile, amx-int8 and the system's permission.
pub(crate) struct Amx;

/// Whether the processor has the unit and the system lets this process use it. Asks for the permission.
pub(crate) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_instructions() && crate::system::request_amx())
}

fn has_instructions() -> bool {
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).edx & (TILE | INT8) == TILE | INT8
}

/// What `ldtilecfg` reads: bytes of a row and rows of each register.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Configuration {
    /// Registers 0 to 3 hold products, 4 and 5 a block of a strip, 6 and 7 of a panel, `columns` wide.
    const fn of(columns: u16) -> Configuration {
        let (strip, panel) = (columns, columns as u8 / 4);
        Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [64, 64, 64, 64, strip, strip, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
            rows: [16, 16, 16, 16, 16, 16, panel, panel, 0, 0, 0, 0, 0, 0, 0, 0],
        }
    }

    /// # Safety
    /// The processor has the unit, and the system permits it.
    unsafe fn load(&'static self) {
        // SAFETY: by this function's promise.
        unsafe {
            asm!("ldtilecfg [{0}]", in(reg) self, options(nostack, readonly, preserves_flags));
        }
    }
}

static BLOCKS: Configuration = Configuration::of(32);
/// Registers filled whole.
static WHOLE: Configuration = Configuration::of(WHOLE_COLUMNS as u16);

/// Begins the products of a strip's block and a panel's, by three registers.
macro_rules! start {
    ($products:tt, $left:tt, $right:tt, $strip:expr, $panel:expr) => {
        asm!(
            concat!("tileloadd ", $left, ", [{strip} + {row}]"),
            concat!("tileloadd ", $right, ", [{panel} + {line}]"),
            concat!("tilezero ", $products),
            concat!("tdpbssd ", $products, ", ", $left, ", ", $right),
            strip = in(reg) $strip,
            panel = in(reg) $panel,
            row = in(reg) 32usize,
            line = in(reg) 64usize,
            out($products) _,
            out($left) _,
            out($right) _,
            options(nostack, readonly, preserves_flags),
        )
    };
}

/// Loads 16 rows of 64 bytes, `$stride` bytes apart.
macro_rules! load_whole {
    ($register:tt, $from:expr, $stride:expr) => {
        asm!(
            concat!("tileloadd ", $register, ", [{from} + {stride}]"),
            from = in(reg) $from,
            stride = in(reg) $stride,
            out($register) _,
            options(nostack, readonly, preserves_flags),
        )
    };
}

macro_rules! clear {
    ($products:tt) => {
        asm!(concat!("tilezero ", $products), out($products) _, options(nostack, nomem, preserves_flags))
    };
}

/// Adds the products of two registers to a third.
macro_rules! multiply {
    ($products:tt, $strip:literal, $panel:literal) => {
        asm!(
            concat!("tdpbssd ", $products, ", ", $strip, ", ", $panel),
            out($products) _,
            options(nostack, nomem, preserves_flags),
        )
    };
}

macro_rules! store {
    ($register:literal, $products:expr) => {
        asm!(
            concat!("tilestored [{products} + {line}], ", $register),
            products = in(reg) $products,
            line = in(reg) 64usize,
            options(nostack, preserves_flags),
        )
    };
}

// SAFETY: the instructions do what the methods say. Nothing else uses the registers, so that products stay
// in them from one method to the next.
unsafe impl MatrixUnit for Amx {
    #[inline(always)]
    unsafe fn configure() -> Amx {
        // SAFETY: by the trait's promise.
        unsafe { BLOCKS.load() };
        Amx
    }

    #[inline(always)]
    unsafe fn configure_whole() -> Amx {
        // SAFETY: by the trait's promise.
        unsafe { WHOLE.load() };
        Amx
    }

    #[inline(always)]
    unsafe fn load_strip<const INDEX: usize>(&mut self, strip: *const i8, stride: usize) {
        // SAFETY: by the trait's promise.
        unsafe {
            match INDEX {
                0 => load_whole!("tmm4", strip, stride),
                _ => load_whole!("tmm5", strip, stride),
            }
        }
    }

    #[inline(always)]
    unsafe fn load_panel<const INDEX: usize>(&mut self, panel: *const i8) {
        // SAFETY: by the trait's promise.
        unsafe {
            match INDEX {
                0 => load_whole!("tmm6", panel, 64usize),
                _ => load_whole!("tmm7", panel, 64usize),
            }
        }
    }

    #[inline(always)]
    unsafe fn clear<const STRIP: usize, const PANEL: usize>(&mut self) {
        // SAFETY: by the trait's promise.
        unsafe {
            match (STRIP, PANEL) {
                (0, 0) => clear!("tmm0"),
                (0, _) => clear!("tmm1"),
                (_, 0) => clear!("tmm2"),
                _ => clear!("tmm3"),
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply<const STRIP: usize, const PANEL: usize>(&mut self) {
        // SAFETY: by the trait's promise.
        unsafe {
            match (STRIP, PANEL) {
                (0, 0) => multiply!("tmm0", "tmm4", "tmm6"),
                (0, _) => multiply!("tmm1", "tmm4", "tmm7"),
                (_, 0) => multiply!("tmm2", "tmm5", "tmm6"),
                _ => multiply!("tmm3", "tmm5", "tmm7"),
            }
        }
    }

    #[inline(always)]
    unsafe fn start<const SLOT: usize>(&mut self, strip: *const i8, panel: *const i8) {
        // SAFETY: by the trait's promise.
        unsafe {
            match SLOT {
                0 => start!("tmm0", "tmm4", "tmm6", strip, panel),
                1 => start!("tmm1", "tmm5", "tmm7", strip, panel),
                2 => start!("tmm2", "tmm4", "tmm6", strip, panel),
                _ => start!("tmm3", "tmm5", "tmm7", strip, panel),
            }
        }
    }

    #[inline(always)]
    unsafe fn store<const SLOT: usize>(&mut self, products: *mut i32) {
        // SAFETY: by the trait's promise.
        unsafe {
            match SLOT {
                0 => store!("tmm0", products),
                1 => store!("tmm1", products),
                2 => store!("tmm2", products),
                _ => store!("tmm3", products),
            }
        }
    }

    #[inline(always)]
    fn release(self) {
        // SAFETY: there is an `Amx`, so the processor has the instruction; it only clears the registers.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }
}

// SAFETY: each method is the intrinsics its name says; callers promise the instruction set.
unsafe impl UnitLanes for Avx512 {
    #[inline(always)]
    unsafe fn load_i32(from: *const i32) -> __m512 {
        // SAFETY: by the trait's promise.
        unsafe { _mm512_cvtepi32_ps(_mm512_loadu_si512(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store_signed(to: *mut i8, codes: __m512i, zero: u8) {
        // SAFETY: by the trait's promise.
        unsafe {
            let signed = _mm512_sub_epi8(codes, _mm512_set1_epi8(zero as i8));
            _mm512_storeu_si512(to.cast(), signed);
        }
    }
}

/// See [`super::matrix_unit::UnitKernels::probe`].
///
/// # Safety
/// The processor has the unit, and the system permits it.
pub(crate) unsafe fn probe(count: usize) {
    // SAFETY: works on registers of this thread, which are zero after their configuration.
    unsafe {
        WHOLE.load();
        for _ in 0..count.div_ceil(4) {
            asm!(
                "tdpbssd tmm0, tmm4, tmm6",
                "tdpbssd tmm1, tmm5, tmm7",
                "tdpbssd tmm2, tmm4, tmm6",
                "tdpbssd tmm3, tmm5, tmm7",
                out("tmm0") _,
                out("tmm1") _,
                out("tmm2") _,
                out("tmm3") _,
                options(nostack, nomem, preserves_flags),
            );
        }
        Amx.release();
    }
}

unit_kernels!(table, crate::simd::avx512::Avx512, crate::simd::amx::Amx, crate::simd::amx::probe,
    [#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]]);
