//! SIMD kernels. Each is written once, generic over [`lanes::Lanes`], and compiled for every
//! instruction set; [`kernels`] holds one table of them per set.
//!
//! Kernels work on raw pointers into memory that workers divide among themselves. Every function
//! here runs under two promises. The processor has the instructions of its `Lanes`, which
//! [`Level::available`] checks before a table of kernels is chosen. Pointers are valid for what the
//! function's `Safety` section, or else its doc, says it reads and writes; `stage` keeps that.

// Where undocumented blocks are allowed, each is one vector operation under the promises above.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
pub(crate) mod attend;
#[cfg(target_arch = "x86_64")]
#[allow(clippy::undocumented_unsafe_blocks)]
mod attend_bf16;
#[cfg(target_arch = "x86_64")]
#[allow(clippy::undocumented_unsafe_blocks)]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[allow(clippy::undocumented_unsafe_blocks)]
mod avx512;
pub(crate) mod direct;
#[cfg(any(test, feature = "test-hooks"))]
mod emulated_unit;
pub(crate) mod kernels;
mod lanes;
pub(crate) mod limit;
#[allow(clippy::undocumented_unsafe_blocks)]
mod math;
#[cfg_attr(
    not(all(target_arch = "x86_64", target_os = "linux")),
    allow(dead_code, unused_imports, unused_macros, reason = "no unit is known there")
)]
pub(crate) mod matrix_unit;
#[allow(clippy::undocumented_unsafe_blocks)]
mod portable;
pub(crate) mod product;
pub(crate) mod rotated;
pub(crate) mod rows;
mod softmax;
pub(crate) mod store;
mod tile;

use kernels::{Attend, Kernels};
use limit::Limit;
use matrix_unit::UnitKernels;

/// An instruction set to compute with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// Plain code on one thread, operation by operation: slow; the others are checked against it.
    Reference,
    /// Plain Rust, vectorised by the compiler.
    Portable,
    /// AVX2 with FMA.
    Avx2,
    /// AVX2 with FMA and the dot products of AVX-VNNI.
    AvxVnni,
    /// AVX-512 with VNNI.
    Avx512,
    /// AVX-512 with VNNI, and AMX for products of many rows.
    Amx,
    /// Plain Rust with an emulated matrix unit for products of many rows, for tests where there is none.
    #[cfg(any(test, feature = "test-hooks"))]
    EmulatedUnit,
}

impl Level {
    /// All levels, best first.
    pub const ALL: [Level; 6] =
        [Level::Amx, Level::Avx512, Level::AvxVnni, Level::Avx2, Level::Portable, Level::Reference];

    /// Name as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Level::Reference => "reference",
            Level::Portable => "portable",
            Level::Avx2 => "avx2",
            Level::AvxVnni => "avx-vnni",
            Level::Avx512 => "avx512",
            Level::Amx => "amx",
            #[cfg(any(test, feature = "test-hooks"))]
            Level::EmulatedUnit => "emulated-unit",
        }
    }

    /// Whether this processor has it, and `PIANOLA_SIMD` does not exclude it.
    pub fn available(self) -> bool {
        match self {
            Level::Reference | Level::Portable => true,
            #[cfg(any(test, feature = "test-hooks"))]
            Level::EmulatedUnit => true,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                limit::allows(Limit::Avx2)
                    && is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => {
                limit::allows(Limit::AvxVnni)
                    && Level::Avx2.available()
                    && is_x86_feature_detected!("avxvnni")
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                limit::allows(Limit::Avx512)
                    && Level::Avx2.available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Level::Amx => {
                limit::allows(Limit::Amx) && Level::Avx512.available() && amx::available()
            }
            #[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
            Level::Amx => false,
            #[cfg(not(target_arch = "x86_64"))]
            Level::Avx2 | Level::AvxVnni | Level::Avx512 | Level::Amx => false,
        }
    }

    /// The best level of this processor.
    pub fn best() -> Level {
        Level::ALL.into_iter().find(|level| level.available()).unwrap_or(Level::Portable)
    }

    pub(crate) fn kernels(self) -> &'static Kernels {
        match self {
            Level::Reference | Level::Portable => &kernels::portable::KERNELS,
            #[cfg(any(test, feature = "test-hooks"))]
            Level::EmulatedUnit => &kernels::portable::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => &kernels::avx2::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => &kernels::avx_vnni::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Amx => &kernels::avx512::KERNELS,
            #[cfg(not(target_arch = "x86_64"))]
            Level::Avx2 | Level::AvxVnni | Level::Avx512 | Level::Amx => {
                &kernels::portable::KERNELS
            }
        }
    }

    /// Whether products of many rows are faster in rotated form, so that weights may be kept in it. AVX2 has no dot product of bytes above
    /// 127, and computes one in two halves.
    pub fn rotates(self) -> bool {
        match self {
            Level::AvxVnni | Level::Avx512 | Level::Amx => true,
            #[cfg(any(test, feature = "test-hooks"))]
            Level::EmulatedUnit => true,
            Level::Reference | Level::Portable | Level::Avx2 => false,
        }
    }

    /// Attention of many rows on dot products of bf16, where there are any.
    pub(crate) fn block_attention(self) -> Option<Attend> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Amx => attend_bf16::available().then_some(attend_bf16::attend),
            _ => None,
        }
    }

    /// Kernels for products of many rows, where there is a matrix unit.
    pub(crate) fn unit_kernels(self) -> Option<&'static UnitKernels> {
        match self {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Level::Amx => Some(&amx::KERNELS),
            #[cfg(any(test, feature = "test-hooks"))]
            Level::EmulatedUnit => Some(&emulated_unit::KERNELS),
            _ => None,
        }
    }
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
