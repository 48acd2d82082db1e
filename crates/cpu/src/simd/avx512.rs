//! AVX-512 with VNNI: one register holds the sixteen lanes.

use super::lanes::Lanes;
use std::arch::x86_64::*;

/// Needs avx512f, avx512bw, avx512vl, avx512dq, avx512vnni, f16c and fma.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

// SAFETY: each method is the intrinsic its name says; callers promise the instruction set.
unsafe impl Lanes for Avx512 {
    const TWO_TILES: bool = true;

    type F = __m512;
    type I = __m512i;
    type B = __m512i;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m512) {
        unsafe { _mm512_storeu_ps(to, x) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> __m512 {
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u16, x: __m512) {
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x)) }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn abs(a: __m512) -> __m512 {
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    unsafe fn sum(a: __m512) -> f32 {
        unsafe { _mm512_reduce_add_ps(a) }
    }
    #[inline(always)]
    unsafe fn largest(a: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(a) }
    }
    #[inline(always)]
    unsafe fn round(a: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    unsafe fn power_of_two(n: __m512) -> __m512 {
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    unsafe fn store_i8(to: *mut i8, x: __m512) {
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x))) }
    }

    #[inline(always)]
    unsafe fn butterfly(x: __m512, distance: usize) -> __m512 {
        unsafe {
            let index = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
            let other = _mm512_xor_si512(index, _mm512_set1_epi32(distance as i32));
            let swapped = _mm512_permutexvar_ps(other, x);
            let second = _mm512_test_epi32_mask(index, _mm512_set1_epi32(distance as i32));
            let signs = _mm512_mask_blend_ps(second, _mm512_set1_ps(1.0), _mm512_set1_ps(-1.0));
            _mm512_fmadd_ps(x, signs, swapped)
        }
    }
    #[inline(always)]
    unsafe fn low_bytes(x: [__m512; 4]) -> __m512i {
        unsafe {
            let [a, b, c, d] = x.map(|x| _mm512_castps_si512(x));
            let byte = |at: i32| _mm512_set1_epi32(255 << at);
            // rest | (bits & byte)
            let d = _mm512_slli_epi32::<24>(d);
            let cd = _mm512_ternarylogic_epi32::<0xf8>(d, _mm512_slli_epi32::<16>(c), byte(16));
            let bcd = _mm512_ternarylogic_epi32::<0xf8>(cd, _mm512_slli_epi32::<8>(b), byte(8));
            _mm512_ternarylogic_epi32::<0xf8>(bcd, a, byte(0))
        }
    }

    #[inline(always)]
    unsafe fn splat_i32(x: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn add_i32(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn sub_i32(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_sub_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn to_f32(x: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(x) }
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
    }
    #[inline(always)]
    unsafe fn prefetch_near(from: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
    #[inline(always)]
    unsafe fn prefetch_once(from: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_NTA>(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, x: __m512i) {
        unsafe { _mm512_storeu_si512(to.cast(), x) }
    }
    #[inline(always)]
    unsafe fn low_nibbles(x: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(x, _mm512_set1_epi8(15)) }
    }
    #[inline(always)]
    unsafe fn high_nibbles(x: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(_mm512_srli_epi16::<4>(x), _mm512_set1_epi8(15)) }
    }
    #[inline(always)]
    unsafe fn add_fifth_bit(x: __m512i, bits: *const u8) -> __m512i {
        unsafe {
            let mask = bits.cast::<u64>().read_unaligned();
            _mm512_mask_add_epi8(x, mask, x, _mm512_set1_epi8(16))
        }
    }
    #[inline(always)]
    unsafe fn add_two_bits(x: __m512i, high: __m512i, pair: usize) -> __m512i {
        unsafe {
            // Bits that a 16-bit shift drags over from the neighbouring byte fall to the mask.
            let moved = match pair {
                0 => _mm512_slli_epi16::<4>(high),
                1 => _mm512_slli_epi16::<2>(high),
                2 => high,
                _ => _mm512_srli_epi16::<2>(high),
            };
            // x | (moved & 0x30)
            _mm512_ternarylogic_epi32::<0xf8>(x, moved, _mm512_set1_epi8(0x30))
        }
    }
    #[inline(always)]
    unsafe fn look_up(x: __m512i, table: &[u8; 16]) -> __m512i {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, x)
        }
    }
    #[inline(always)]
    unsafe fn column(x: __m512i, column: usize) -> __m512i {
        unsafe {
            let byte = _mm512_set1_epi32(255);
            match column {
                0 => _mm512_and_si512(x, byte),
                1 => _mm512_and_si512(_mm512_srli_epi32::<8>(x), byte),
                2 => _mm512_and_si512(_mm512_srli_epi32::<16>(x), byte),
                _ => _mm512_srli_epi32::<24>(x),
            }
        }
    }
    #[inline(always)]
    unsafe fn centred(x: __m512i, column: usize, zero: f32) -> __m512 {
        unsafe {
            let moved = match column {
                0 => x,
                1 => _mm512_srli_epi32::<8>(x),
                2 => _mm512_srli_epi32::<16>(x),
                _ => _mm512_srli_epi32::<24>(x),
            };
            // From 2^23 on, the lowest bits of an f32 are those of a whole number: with a byte there
            // it is 2^23 more than the byte, and one subtraction makes it the difference, exactly.
            const WHOLE: f32 = 8_388_608.0;
            let bits = _mm512_set1_epi32(WHOLE.to_bits() as i32);
            // bits | (moved & 255)
            let shifted = _mm512_ternarylogic_epi32::<0xf8>(bits, moved, _mm512_set1_epi32(255));
            _mm512_sub_ps(_mm512_castsi512_ps(shifted), _mm512_set1_ps(WHOLE + zero))
        }
    }
    #[inline(always)]
    unsafe fn dot(sum: __m512i, codes: __m512i, activations: i32) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(activations)) }
    }
    #[inline(always)]
    unsafe fn dot_wide(sum: __m512i, codes: __m512i, activations: i32) -> __m512i {
        unsafe { Self::dot(sum, codes, activations) }
    }
}
