//! One table of kernels per instruction set, chosen at run time.

use super::attend::{self, Queries, Scratch};
use super::direct::{self, Tiles};
use super::lanes::Lanes;
use super::math;
use super::product::{self, Bf16, BlockMeta, FloatRows, QuantizedRows};
use super::rotated::{
    self, FillPanel, FloatChunk, MultiplyPanels, PanelSource, Panels, RotatedRows, TileSums,
};
use super::rows::{self, TileEpilogue};
use super::store::{self, HeadPrologue};
use super::tile::{
    Bits4, Bits5, Bits6, Bits8, Half, HalfWithMin, Iq4Values, Signed, SignedHalves, SixBit,
};
use pianola_formats::TensorType;
use pianola_plan::{Activation, KvType};
use std::ops::Range;

/// `(tile, activations, first row, rows, out [rows][16])`
pub(crate) type QuantizedProduct = unsafe fn(*const u8, &QuantizedRows, usize, usize, *mut f32);
/// `(tiles, activations, first row, rows, out [tiles][rows][16])`
pub(crate) type FloatProduct = unsafe fn(&Tiles, &FloatRows, usize, usize, *mut f32);
/// `(tile, columns, panel [columns][16])`
pub(crate) type Dequantize = unsafe fn(*const u8, usize, *mut f32);

/// `(queries, type of the pages, the head's part of a page, scratch)`
pub(crate) type Attend = unsafe fn(Queries<'_>, KvType, &dyn Fn(usize) -> *const u8, &mut Scratch);

/// Kernels compiled for one instruction set.
///
/// # Safety
/// They may be called on a processor that has it ([`super::Level::available`]); each
/// kernel's own conditions are those of the generic function it wraps.
pub(crate) struct Kernels {
    pub product: fn(TensorType) -> Option<QuantizedProduct>,
    pub dequantize: fn(TensorType) -> Dequantize,
    /// For at most [`crate::policy::direct_rows`] rows.
    pub direct: fn(TensorType) -> FloatProduct,
    pub float_rows: unsafe fn(*const f32, usize, &FloatRows, usize, usize, *mut f32),
    pub rms_norm: unsafe fn(*const f32, *const f32, f32, usize, *mut f32),
    pub add: unsafe fn(*const f32, *const f32, usize, *mut f32),
    pub quantize: unsafe fn(*const f32, usize, *mut i8, *mut BlockMeta),
    /// `(row, columns, rows, index)`: see [`rotated::rotate_row`].
    pub rotate_row: unsafe fn(*const f32, usize, &RotatedRows, usize),
    pub fill_panel: fn(TensorType) -> Option<FillPanel>,
    pub multiply_panels: MultiplyPanels,
    pub put_tile: unsafe fn(&TileEpilogue),
    pub gate: unsafe fn(*mut f32, *const f32, Activation),
    pub soft_cap: unsafe fn(*mut f32, f32),
    pub prepare: unsafe fn(*const f32, usize, &HeadPrologue, *mut f32),
    pub store: unsafe fn(*mut u8, KvType, usize, usize, *const f32, *const f32),
    pub attend: Attend,
    /// Repeated integer dot products on registers, for measuring the arithmetic ceiling: runs
    /// `count` rounds of [`PROBE_DOTS`] and returns something that depends on them.
    pub probe_dots: unsafe fn(usize) -> f32,
    /// The same for f32 multiply-adds.
    pub probe_fmas: unsafe fn(usize) -> f32,
    /// Asks for cache lines that come next to be brought to the second-level cache.
    pub prefetch: unsafe fn(*const u8, usize),
    /// Reads all bytes (a multiple of 512) and returns something that depends on them.
    pub probe_read: unsafe fn(*const u8, usize) -> f32,
}

/// Independent chains in a probe: enough to fill the pipelines.
pub(crate) const PROBE_DOTS: usize = 12;

#[inline(always)]
unsafe fn soft_cap<L: Lanes>(x: *mut f32, cap: f32) {
    // SAFETY: the caller has 16 values at `x`.
    unsafe { L::store(x, math::soft_cap::<L>(L::load(x), cap)) }
}

#[inline(always)]
unsafe fn prefetch<L: Lanes>(from: *const u8, lines: usize) {
    for line in 0..lines {
        // SAFETY: a prefetch reads nothing.
        unsafe { L::prefetch(from.wrapping_add(line * crate::pack::LINE)) };
    }
}

#[inline(always)]
unsafe fn probe_dots<L: Lanes>(count: usize) -> f32 {
    // SAFETY: 64 bytes are loaded from an array of 64.
    unsafe {
        let bytes = [7u8; 64];
        let codes = L::load_bytes(std::hint::black_box(bytes.as_ptr()));
        let mut sums = [L::splat_i32(0); PROBE_DOTS];
        for round in 0..count {
            for sum in &mut sums {
                *sum = L::dot(*sum, codes, round as i32);
            }
        }
        sums.into_iter().map(|sum| L::sum(L::to_f32(sum))).sum()
    }
}

#[inline(always)]
unsafe fn probe_fmas<L: Lanes>(count: usize) -> f32 {
    // SAFETY: works on registers.
    unsafe {
        let factor = L::splat(std::hint::black_box(0.999));
        let mut sums = [factor; PROBE_DOTS];
        for _ in 0..count {
            for sum in &mut sums {
                *sum = L::fma(*sum, factor, factor);
            }
        }
        sums.into_iter().map(|sum| L::sum(sum)).sum()
    }
}

#[inline(always)]
unsafe fn probe_read<L: Lanes>(from: *const u8, bytes: usize) -> f32 {
    // SAFETY: the caller has `bytes` bytes, a multiple of 512.
    unsafe {
        let mut sums = [L::splat(0.0); 8];
        for at in (0..bytes).step_by(512) {
            for (index, sum) in sums.iter_mut().enumerate() {
                *sum = L::add(*sum, L::load(from.add(at + 64 * index).cast()));
            }
        }
        sums.into_iter().map(|sum| L::sum(sum)).sum()
    }
}

/// Generates the wrappers of one instruction set. `$attributes` holds its `#[target_feature]`.
macro_rules! kernels {
    ($name:ident, $lanes:ty, $attributes:tt) => {
        pub(crate) mod $name {
            use super::*;
            type L = $lanes;

            // Codes, scales, and the code that is subtracted from all.
            kernels!(@types $attributes;
                q4_0 Q4_0: Bits4, Half, 8;
                q4_1 Q4_1: Bits4, HalfWithMin, 0;
                q5_0 Q5_0: Bits5, Half, 16;
                q5_1 Q5_1: Bits5, HalfWithMin, 0;
                q8_0 Q8_0: Bits8, Half, 128;
                q4_k Q4K: Bits4, SixBit, 0;
                q5_k Q5K: Bits5, SixBit, 0;
                q6_k Q6K: Bits6, SignedHalves, 32;
                iq4_nl IQ4NL: Iq4Values, Half, 128;
                iq4_xs IQ4XS: Iq4Values, Signed, 128;);

            kernels!(@wrap $attributes;
                widen_f32(tile: *const u8, columns: usize, panel: *mut f32) =
                    product::widen_tile::<L, f32>(tile, columns, panel);
                widen_f16(tile: *const u8, columns: usize, panel: *mut f32) =
                    product::widen_tile::<L, u16>(tile, columns, panel);
                widen_bf16(tile: *const u8, columns: usize, panel: *mut f32) =
                    product::widen_tile::<L, Bf16>(tile, columns, panel);
                direct_f32(tiles: &Tiles, rows: &FloatRows, first: usize, count: usize, out: *mut f32) =
                    direct::float_tiles::<L, f32>(tiles, rows, first, count, out);
                direct_f16(tiles: &Tiles, rows: &FloatRows, first: usize, count: usize, out: *mut f32) =
                    direct::float_tiles::<L, u16>(tiles, rows, first, count, out);
                direct_bf16(tiles: &Tiles, rows: &FloatRows, first: usize, count: usize, out: *mut f32) =
                    direct::float_tiles::<L, Bf16>(tiles, rows, first, count, out);
                float_rows(panel: *const f32, columns: usize, rows: &FloatRows, first: usize, count: usize, out: *mut f32) =
                    product::float_rows::<L>(panel, columns, rows, first, count, out);
                rms_norm(x: *const f32, weight: *const f32, epsilon: f32, width: usize, out: *mut f32) =
                    rows::rms_norm::<L>(x, weight, epsilon, width, out);
                add(base: *const f32, delta: *const f32, width: usize, out: *mut f32) =
                    rows::add(base, delta, width, out);
                quantize(x: *const f32, width: usize, codes: *mut i8, metas: *mut BlockMeta) =
                    rows::quantize::<L>(x, width, codes, metas);
                rotate_row(x: *const f32, columns: usize, rows: &RotatedRows, row: usize) =
                    rotated::rotate_row::<L>(x, columns, rows, row);
                multiply_panels(panels: &Panels, activations: &RotatedRows, rows: Range<usize>, sums: TileSums) =
                    rotated::multiply::<L>(panels, activations, rows, sums);
                put_tile(epilogue: &TileEpilogue) = rows::put_tile::<L>(epilogue);
                prefetch(from: *const u8, lines: usize) = super::prefetch::<L>(from, lines);
                gate(x: *mut f32, up: *const f32, activation: Activation) =
                    rows::gate::<L>(x, up, activation);
                soft_cap(x: *mut f32, cap: f32) = super::soft_cap::<L>(x, cap);
                prepare(head: *const f32, head_dim: usize, prologue: &HeadPrologue, out: *mut f32) =
                    store::prepare::<L>(head, head_dim, prologue, out);
                store(page: *mut u8, ty: KvType, slot: usize, head_dim: usize, key: *const f32, value: *const f32) =
                    store::store::<L>(page, ty, slot, head_dim, key, value);
                attention(queries: Queries<'_>, ty: KvType, page_of: &dyn Fn(usize) -> *const u8, scratch: &mut Scratch) =
                    attend::attend::<L>(queries, ty, page_of, scratch);
            );

            kernels!(@value $attributes;
                probe_dots(count: usize) = super::probe_dots::<L>(count);
                probe_fmas(count: usize) = super::probe_fmas::<L>(count);
                probe_read(from: *const u8, bytes: usize) = super::probe_read::<L>(from, bytes);
            );

            pub(crate) static KERNELS: Kernels = Kernels {
                product, dequantize, direct, float_rows, rms_norm, add, quantize,
                rotate_row, fill_panel, multiply_panels,
                put_tile, gate, soft_cap, prepare, store, attend: attention, prefetch, probe_dots,
                probe_fmas, probe_read,
            };
        }
    };
    (@types $attributes:tt; $($name:ident $variant:ident: $codes:ty, $scales:ty, $zero:expr;)*) => {
        fn product(ty: TensorType) -> Option<QuantizedProduct> {
            Some(match ty {
                $(TensorType::$variant => $name::product,)*
                TensorType::F32 | TensorType::F16 | TensorType::BF16 => return None,
            })
        }

        fn fill_panel(ty: TensorType) -> Option<FillPanel> {
            Some(match ty {
                $(TensorType::$variant => $name::fill_panel,)*
                TensorType::F32 | TensorType::F16 | TensorType::BF16 => return None,
            })
        }

        fn dequantize(ty: TensorType) -> Dequantize {
            match ty {
                $(TensorType::$variant => $name::dequantize,)*
                TensorType::F32 => widen_f32,
                TensorType::F16 => widen_f16,
                TensorType::BF16 => widen_bf16,
            }
        }

        fn direct(ty: TensorType) -> FloatProduct {
            match ty {
                $(TensorType::$variant => $name::direct,)*
                TensorType::F32 => direct_f32,
                TensorType::F16 => direct_f16,
                TensorType::BF16 => direct_bf16,
            }
        }

        $(mod $name {
            use super::*;
            kernels!(@wrap $attributes;
                product(tile: *const u8, rows: &QuantizedRows, first: usize, count: usize, out: *mut f32) =
                    product::quantized_rows::<L, $codes, $scales, $zero>(tile, rows, first, count, out);
                direct(tiles: &Tiles, rows: &FloatRows, first: usize, count: usize, out: *mut f32) =
                    direct::quantized_tiles::<L, $codes, $scales, $zero>(tiles, rows, first, count, out);
                fill_panel(source: &PanelSource, room: &mut FloatChunk, panel: *mut u8) =
                    rotated::fill::<L, $codes, $scales, $zero>(source, room, panel);
                dequantize(tile: *const u8, columns: usize, panel: *mut f32) =
                    product::dequantize_tile::<L, $codes, $scales, $zero>(tile, columns, panel);
            );
        })*
    };
    (@wrap $attributes:tt; $($name:ident($($argument:ident: $ty:ty),*) = $body:expr;)*) => {
        $(kernels!(@one $attributes, $name, ($($argument: $ty),*), (), $body);)*
    };
    (@value $attributes:tt; $($name:ident($($argument:ident: $ty:ty),*) = $body:expr;)*) => {
        $(kernels!(@one $attributes, $name, ($($argument: $ty),*), f32, $body);)*
    };
    (@one [$($attribute:tt)*], $name:ident, ($($argument:ident: $ty:ty),*), $result:ty, $body:expr) => {
        $($attribute)*
        pub(crate) unsafe fn $name($($argument: $ty),*) -> $result {
            // SAFETY: forwarded; see `Kernels`.
            unsafe { $body }
        }
    };
}

kernels!(portable, crate::simd::portable::Portable, []);
#[cfg(target_arch = "x86_64")]
kernels!(avx2, crate::simd::avx2::Avx2<crate::simd::avx2::Pairs>,
    [#[target_feature(enable = "avx2,fma,f16c")]]);
#[cfg(target_arch = "x86_64")]
kernels!(avx_vnni, crate::simd::avx2::Avx2<crate::simd::avx2::Vnni>,
    [#[target_feature(enable = "avx2,fma,f16c,avxvnni")]]);
#[cfg(target_arch = "x86_64")]
kernels!(avx512, crate::simd::avx512::Avx512,
    [#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]]);
