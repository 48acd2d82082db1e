//! AMX: Intel's matrix unit, eight registers of 16 rows by 64 bytes.
//!
//! The compiler's intrinsics for it are not stable, so its instructions are written out. No other code
//! uses its registers, and what a thread configured is its own.

use super::avx512::Avx512;
use super::matrix_unit::{MatrixUnit, UnitLanes, unit_kernels};
use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Needs amx-tile, amx-int8 and the system's permission.
#[derive(Clone, Copy)]
pub(crate) struct Amx;

/// Whether the processor has the unit and the system lets this process use it. Asks for the permission.
pub(crate) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_instructions() && request_permission())
}

fn has_instructions() -> bool {
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).edx & (TILE | INT8) == TILE | INT8
}

/// Registers this large are saved at a context switch only for processes that asked for them.
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const SYS_ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    let result: isize;
    // SAFETY: the call takes two numbers and touches no memory of this process.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYS_ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
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
    /// Registers 0, 1, 6 and 7 hold products, 2 and 3 rows of a strip of `columns`, 4 and 5 those columns
    /// of a panel, four to a row.
    const fn of(columns: u16) -> Configuration {
        let mut configuration = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        let mut register = 0;
        while register < 8 {
            let (row_bytes, rows) = match register {
                2 | 3 => (columns, 16),
                4 | 5 => (64, columns as u8 / 4),
                _ => (64, 16),
            };
            configuration.row_bytes[register] = row_bytes;
            configuration.rows[register] = rows;
            register += 1;
        }
        configuration
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
static HALF_BLOCKS: Configuration = Configuration::of(16);
static WHOLE: Configuration = Configuration::of(64);

/// Products of a strip at `$strip` and a panel at `$panel`, by three registers.
macro_rules! multiply {
    ($sums:tt, $left:tt, $right:tt, $strip:expr, $panel:expr, $products:expr) => {
        asm!(
            concat!("tilezero ", $sums),
            concat!("tileloadd ", $left, ", [{strip} + {row}]"),
            concat!("tileloadd ", $right, ", [{panel} + {line}]"),
            concat!("tdpbssd ", $sums, ", ", $left, ", ", $right),
            concat!("tilestored [{products} + {line}], ", $sums),
            strip = in(reg) $strip,
            panel = in(reg) $panel,
            products = in(reg) $products,
            row = in(reg) 32usize,
            line = in(reg) 64usize,
            out($sums) _,
            out($left) _,
            out($right) _,
            options(nostack, preserves_flags),
        )
    };
}

// SAFETY: each method is the instructions its name says; callers promise that the processor has them.
unsafe impl MatrixUnit for Amx {
    #[inline(always)]
    unsafe fn configure<const HALVES: bool>() {
        // SAFETY: by the trait's promise.
        unsafe { if HALVES { HALF_BLOCKS.load() } else { BLOCKS.load() } }
    }

    #[inline(always)]
    unsafe fn release() {
        // SAFETY: by the trait's promise.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
    }

    #[inline(always)]
    unsafe fn multiply<const HALVES: bool, const SET: usize>(
        strip: *const i8,
        panel: *const i8,
        products: *mut i32,
    ) {
        // SAFETY: by the trait's promise: a block of 16 rows of 32 bytes, a panel's of 8 rows of 64, and room
        // for 16 rows of 64 bytes, twice with `HALVES`.
        unsafe {
            if SET == 0 {
                multiply!("tmm0", "tmm2", "tmm4", strip, panel, products);
            } else {
                multiply!("tmm1", "tmm3", "tmm5", strip, panel, products);
            }
            if HALVES {
                let (strip, panel) = (strip.add(16), panel.add(256));
                let products = products.add(256);
                if SET == 0 {
                    multiply!("tmm6", "tmm2", "tmm4", strip, panel, products);
                } else {
                    multiply!("tmm7", "tmm3", "tmm5", strip, panel, products);
                }
            }
        }
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
                "tdpbssd tmm0, tmm2, tmm4",
                "tdpbssd tmm1, tmm3, tmm5",
                "tdpbssd tmm6, tmm2, tmm4",
                "tdpbssd tmm7, tmm3, tmm5",
                out("tmm0") _,
                out("tmm1") _,
                out("tmm6") _,
                out("tmm7") _,
                options(nostack, nomem, preserves_flags),
            );
        }
        Amx::release();
    }
}

unit_kernels!(table, crate::simd::avx512::Avx512, crate::simd::amx::Amx, crate::simd::amx::probe,
    [#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]]);
