//! AVX2: two registers hold the sixteen lanes. With AVX-VNNI only the dot products differ.

use super::lanes::Lanes;
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// Needs avx2, fma and f16c, and what the dot products `D` need.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<D>(PhantomData<D>);

/// Dot products of a register: those of [`Lanes`].
///
/// # Safety
/// As of [`Lanes`].
pub(crate) unsafe trait Dots: Copy + 'static {
    unsafe fn dot(sum: __m256i, codes: __m256i, activations: __m256i) -> __m256i;
    unsafe fn dot_wide(sum: __m256i, codes: __m256i, activations: __m256i) -> __m256i;
}

/// By multiplications of bytes to pairs of 16 bits.
#[derive(Clone, Copy)]
pub(crate) struct Pairs;

// SAFETY: as of `Avx2`.
unsafe impl Dots for Pairs {
    #[inline(always)]
    unsafe fn dot(sum: __m256i, codes: __m256i, activations: __m256i) -> __m256i {
        unsafe {
            // Two products of at most 127 * 127 fit 16 bits.
            let pairs = _mm256_maddubs_epi16(codes, activations);
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
    #[inline(always)]
    unsafe fn dot_wide(sum: __m256i, codes: __m256i, activations: __m256i) -> __m256i {
        unsafe {
            // Codes up to 255 would saturate the 16-bit pairs: take their nibbles apart.
            let nibble = _mm256_set1_epi8(15);
            let low = Self::dot(sum, _mm256_and_si256(codes, nibble), activations);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), nibble);
            let pairs = _mm256_maddubs_epi16(high, activations);
            _mm256_add_epi32(low, _mm256_madd_epi16(pairs, _mm256_set1_epi16(16)))
        }
    }
}

/// By AVX-VNNI. Needs avxvnni.
#[derive(Clone, Copy)]
pub(crate) struct Vnni;

// SAFETY: as of `Avx2`.
unsafe impl Dots for Vnni {
    #[inline(always)]
    unsafe fn dot(sum: __m256i, codes: __m256i, activations: __m256i) -> __m256i {
        unsafe { _mm256_dpbusd_avx_epi32(sum, codes, activations) }
    }
    #[inline(always)]
    unsafe fn dot_wide(sum: __m256i, codes: __m256i, activations: __m256i) -> __m256i {
        unsafe { Self::dot(sum, codes, activations) }
    }
}

type Floats = (__m256, __m256);
type Integers = (__m256i, __m256i);

#[inline(always)]
fn each<T: Copy, U>(x: (T, T), f: impl Fn(T) -> U) -> (U, U) {
    (f(x.0), f(x.1))
}

#[inline(always)]
fn zip<A: Copy, B: Copy, U>(a: (A, A), b: (B, B), f: impl Fn(A, B) -> U) -> (U, U) {
    (f(a.0, b.0), f(a.1, b.1))
}

// SAFETY: each method is built of the intrinsics its name says; callers promise the
// instruction set.
unsafe impl<D: Dots> Lanes for Avx2<D> {
    type F = Floats;
    type I = Integers;
    type B = Integers;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Floats {
        unsafe { (_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Floats {
        unsafe { (_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: Floats) {
        unsafe {
            _mm256_storeu_ps(to, x.0);
            _mm256_storeu_ps(to.add(8), x.1);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Floats {
        unsafe { each((from, from.add(8)), |half| _mm256_cvtph_ps(_mm_loadu_si128(half.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Floats {
        unsafe {
            each((from, from.add(8)), |half| {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(half.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
            })
        }
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u16, x: Floats) {
        unsafe {
            let halves = each(x, |half| _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(half));
            _mm_storeu_si128(to.cast(), halves.0);
            _mm_storeu_si128(to.add(8).cast(), halves.1);
        }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Floats {
        unsafe {
            each((from, from.add(8)), |half| {
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(half.cast())))
            })
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Floats {
        unsafe {
            each((from, from.add(8)), |half| {
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(half.cast())))
            })
        }
    }
    #[inline(always)]
    unsafe fn add(a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| unsafe { _mm256_add_ps(a, b) })
    }
    #[inline(always)]
    unsafe fn sub(a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| unsafe { _mm256_sub_ps(a, b) })
    }
    #[inline(always)]
    unsafe fn mul(a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| unsafe { _mm256_mul_ps(a, b) })
    }
    #[inline(always)]
    unsafe fn div(a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| unsafe { _mm256_div_ps(a, b) })
    }
    #[inline(always)]
    unsafe fn fma(a: Floats, b: Floats, c: Floats) -> Floats {
        unsafe { (_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }
    #[inline(always)]
    unsafe fn max(a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| unsafe { _mm256_max_ps(a, b) })
    }
    #[inline(always)]
    unsafe fn min(a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| unsafe { _mm256_min_ps(a, b) })
    }
    #[inline(always)]
    unsafe fn abs(a: Floats) -> Floats {
        each(a, |a| unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) })
    }
    #[inline(always)]
    unsafe fn sum(a: Floats) -> f32 {
        let mut lanes = [0.0; 16];
        unsafe { Self::store(lanes.as_mut_ptr(), a) };
        super::portable::tree_sum(lanes)
    }
    #[inline(always)]
    unsafe fn largest(a: Floats) -> f32 {
        let mut lanes = [0.0; 16];
        unsafe { Self::store(lanes.as_mut_ptr(), a) };
        lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    unsafe fn round(a: Floats) -> Floats {
        each(a, |a| unsafe {
            _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a)
        })
    }
    #[inline(always)]
    unsafe fn power_of_two(n: Floats) -> Floats {
        each(n, |n| unsafe {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        })
    }
    #[inline(always)]
    unsafe fn store_i8(to: *mut i8, x: Floats) {
        unsafe {
            let mut lanes = [0.0; 16];
            Self::store(lanes.as_mut_ptr(), Self::round(x));
            for (index, lane) in lanes.into_iter().enumerate() {
                *to.add(index) = lane as i8;
            }
        }
    }

    #[inline(always)]
    unsafe fn butterfly(x: Floats, distance: usize) -> Floats {
        unsafe {
            if distance == 8 {
                return (_mm256_add_ps(x.0, x.1), _mm256_sub_ps(x.0, x.1));
            }
            let index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let bit = _mm256_set1_epi32(distance as i32);
            let second = _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(index, bit), bit));
            each(x, |x| {
                let swapped = _mm256_permutevar8x32_ps(x, _mm256_xor_si256(index, bit));
                let (sum, difference) = (_mm256_add_ps(x, swapped), _mm256_sub_ps(swapped, x));
                _mm256_blendv_ps(sum, difference, second)
            })
        }
    }
    #[inline(always)]
    unsafe fn low_bytes(x: [Floats; 4]) -> Integers {
        let half = |x: [__m256; 4]| unsafe {
            let byte = _mm256_set1_epi32(255);
            let [a, b, c, d] = x.map(|x| _mm256_and_si256(_mm256_castps_si256(x), byte));
            let low = _mm256_or_si256(a, _mm256_slli_epi32::<8>(b));
            let high = _mm256_or_si256(_mm256_slli_epi32::<16>(c), _mm256_slli_epi32::<24>(d));
            _mm256_or_si256(low, high)
        };
        (half(x.map(|x| x.0)), half(x.map(|x| x.1)))
    }

    #[inline(always)]
    unsafe fn splat_i32(x: i32) -> Integers {
        unsafe { (_mm256_set1_epi32(x), _mm256_set1_epi32(x)) }
    }
    #[inline(always)]
    unsafe fn add_i32(a: Integers, b: Integers) -> Integers {
        zip(a, b, |a, b| unsafe { _mm256_add_epi32(a, b) })
    }
    #[inline(always)]
    unsafe fn sub_i32(a: Integers, b: Integers) -> Integers {
        zip(a, b, |a, b| unsafe { _mm256_sub_epi32(a, b) })
    }
    #[inline(always)]
    unsafe fn to_f32(x: Integers) -> Floats {
        each(x, |x| unsafe { _mm256_cvtepi32_ps(x) })
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
    unsafe fn load_bytes(from: *const u8) -> Integers {
        unsafe { each((from, from.add(32)), |half| _mm256_loadu_si256(half.cast())) }
    }
    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, x: Integers) {
        unsafe {
            _mm256_storeu_si256(to.cast(), x.0);
            _mm256_storeu_si256(to.add(32).cast(), x.1);
        }
    }
    #[inline(always)]
    unsafe fn low_nibbles(x: Integers) -> Integers {
        each(x, |x| unsafe { _mm256_and_si256(x, _mm256_set1_epi8(15)) })
    }
    #[inline(always)]
    unsafe fn high_nibbles(x: Integers) -> Integers {
        each(x, |x| unsafe { _mm256_and_si256(_mm256_srli_epi16::<4>(x), _mm256_set1_epi8(15)) })
    }
    #[inline(always)]
    unsafe fn add_fifth_bit(x: Integers, bits: *const u8) -> Integers {
        unsafe {
            let bits = bits.cast::<[i32; 2]>().read_unaligned();
            zip(x, (bits[0], bits[1]), |x, bits| {
                // Byte i gets the byte of `bits` that holds its bit, then its bit alone.
                let spread = _mm256_shuffle_epi8(
                    _mm256_set1_epi32(bits),
                    _mm256_setr_epi64x(
                        0,
                        0x0101_0101_0101_0101,
                        0x0202_0202_0202_0202,
                        0x0303_0303_0303_0303,
                    ),
                );
                let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
                let set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
                _mm256_or_si256(x, _mm256_and_si256(set, _mm256_set1_epi8(16)))
            })
        }
    }
    #[inline(always)]
    unsafe fn add_two_bits(x: Integers, high: Integers, pair: usize) -> Integers {
        zip(x, high, |x, high| unsafe {
            let moved = match pair {
                0 => _mm256_slli_epi16::<4>(high),
                1 => _mm256_slli_epi16::<2>(high),
                2 => high,
                _ => _mm256_srli_epi16::<2>(high),
            };
            _mm256_or_si256(x, _mm256_and_si256(moved, _mm256_set1_epi8(0x30)))
        })
    }
    #[inline(always)]
    unsafe fn look_up(x: Integers, table: &[u8; 16]) -> Integers {
        each(x, |x| unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            _mm256_shuffle_epi8(table, x)
        })
    }
    #[inline(always)]
    unsafe fn column(x: Integers, column: usize) -> Integers {
        each(x, |x| unsafe {
            let byte = _mm256_set1_epi32(255);
            match column {
                0 => _mm256_and_si256(x, byte),
                1 => _mm256_and_si256(_mm256_srli_epi32::<8>(x), byte),
                2 => _mm256_and_si256(_mm256_srli_epi32::<16>(x), byte),
                _ => _mm256_srli_epi32::<24>(x),
            }
        })
    }
    #[inline(always)]
    unsafe fn dot(sum: Integers, codes: Integers, activations: i32) -> Integers {
        zip(sum, codes, |sum, codes| unsafe { D::dot(sum, codes, _mm256_set1_epi32(activations)) })
    }
    #[inline(always)]
    unsafe fn dot_wide(sum: Integers, codes: Integers, activations: i32) -> Integers {
        zip(sum, codes, |sum, codes| unsafe {
            D::dot_wide(sum, codes, _mm256_set1_epi32(activations))
        })
    }
}
