//! Plain Rust lanes for any processor; the compiler vectorises what it can.

use super::lanes::Lanes;
use half::f16;

/// Needs nothing.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

type Floats = [f32; 16];
type Integers = [i32; 16];
type Bytes = [u8; 64];

/// Sums in halves, the order in which vector registers reduce.
#[inline(always)]
pub(super) fn tree_sum(mut lanes: [f32; 16]) -> f32 {
    for width in [8, 4, 2, 1] {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
    }
    lanes[0]
}

#[inline(always)]
fn lanes<T>(f: impl FnMut(usize) -> T) -> [T; 16] {
    std::array::from_fn(f)
}

// SAFETY: no instruction set is needed; pointers are read and written for 16 lanes or 64 bytes.
unsafe impl Lanes for Portable {
    type F = Floats;
    type I = Integers;
    type B = Bytes;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Floats {
        [x; 16]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Floats {
        unsafe { from.cast::<Floats>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: Floats) {
        unsafe { to.cast::<Floats>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Floats {
        let halves = unsafe { from.cast::<[u16; 16]>().read_unaligned() };
        halves.map(|half| f16::from_bits(half).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Floats {
        let halves = unsafe { from.cast::<[u16; 16]>().read_unaligned() };
        halves.map(|half| f32::from_bits(u32::from(half) << 16))
    }
    #[inline(always)]
    unsafe fn store_f16(to: *mut u16, x: Floats) {
        unsafe { to.cast::<[u16; 16]>().write_unaligned(x.map(|x| f16::from_f32(x).to_bits())) }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Floats {
        unsafe { from.cast::<[u8; 16]>().read_unaligned() }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Floats {
        unsafe { from.cast::<[i8; 16]>().read_unaligned() }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn add(a: Floats, b: Floats) -> Floats {
        lanes(|lane| a[lane] + b[lane])
    }
    #[inline(always)]
    unsafe fn sub(a: Floats, b: Floats) -> Floats {
        lanes(|lane| a[lane] - b[lane])
    }
    #[inline(always)]
    unsafe fn mul(a: Floats, b: Floats) -> Floats {
        lanes(|lane| a[lane] * b[lane])
    }
    #[inline(always)]
    unsafe fn div(a: Floats, b: Floats) -> Floats {
        lanes(|lane| a[lane] / b[lane])
    }
    #[inline(always)]
    unsafe fn fma(a: Floats, b: Floats, c: Floats) -> Floats {
        // `mul_add` would be a library call where the processor has no such instruction.
        lanes(|lane| a[lane] * b[lane] + c[lane])
    }
    #[inline(always)]
    unsafe fn max(a: Floats, b: Floats) -> Floats {
        lanes(|lane| if a[lane] > b[lane] { a[lane] } else { b[lane] })
    }
    #[inline(always)]
    unsafe fn min(a: Floats, b: Floats) -> Floats {
        lanes(|lane| if a[lane] < b[lane] { a[lane] } else { b[lane] })
    }
    #[inline(always)]
    unsafe fn abs(a: Floats) -> Floats {
        a.map(f32::abs)
    }
    #[inline(always)]
    unsafe fn sum(a: Floats) -> f32 {
        tree_sum(a)
    }
    #[inline(always)]
    unsafe fn largest(a: Floats) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    unsafe fn round(a: Floats) -> Floats {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    unsafe fn power_of_two(n: Floats) -> Floats {
        n.map(|n| f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn store_i8(to: *mut i8, x: Floats) {
        unsafe { to.cast::<[i8; 16]>().write_unaligned(x.map(|x| x.round_ties_even() as i8)) }
    }

    #[inline(always)]
    unsafe fn butterfly(x: Floats, distance: usize) -> Floats {
        lanes(|lane| match lane & distance {
            0 => x[lane] + x[lane ^ distance],
            _ => x[lane ^ distance] - x[lane],
        })
    }
    #[inline(always)]
    unsafe fn low_bytes(x: [Floats; 4]) -> Bytes {
        std::array::from_fn(|byte| x[byte % 4][byte / 4].to_bits() as u8)
    }

    #[inline(always)]
    unsafe fn splat_i32(x: i32) -> Integers {
        [x; 16]
    }
    #[inline(always)]
    unsafe fn add_i32(a: Integers, b: Integers) -> Integers {
        lanes(|lane| a[lane] + b[lane])
    }
    #[inline(always)]
    unsafe fn sub_i32(a: Integers, b: Integers) -> Integers {
        lanes(|lane| a[lane] - b[lane])
    }
    #[inline(always)]
    unsafe fn to_f32(x: Integers) -> Floats {
        x.map(|x| x as f32)
    }

    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}
    #[inline(always)]
    unsafe fn prefetch_near(_: *const u8) {}
    #[inline(always)]
    unsafe fn prefetch_once(_: *const u8) {}
    #[inline(always)]
    unsafe fn load_bytes(from: *const u8) -> Bytes {
        unsafe { from.cast::<Bytes>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_bytes(to: *mut u8, x: Bytes) {
        unsafe { to.cast::<Bytes>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn low_nibbles(x: Bytes) -> Bytes {
        x.map(|x| x & 15)
    }
    #[inline(always)]
    unsafe fn high_nibbles(x: Bytes) -> Bytes {
        x.map(|x| x >> 4)
    }
    #[inline(always)]
    unsafe fn add_fifth_bit(x: Bytes, bits: *const u8) -> Bytes {
        let bits = unsafe { bits.cast::<u64>().read_unaligned() }.to_le();
        std::array::from_fn(|byte| x[byte] + 16 * ((bits >> byte) & 1) as u8)
    }
    #[inline(always)]
    unsafe fn add_two_bits(x: Bytes, high: Bytes, pair: usize) -> Bytes {
        std::array::from_fn(|byte| x[byte] + 16 * ((high[byte] >> (2 * pair)) & 3))
    }
    #[inline(always)]
    unsafe fn look_up(x: Bytes, table: &[u8; 16]) -> Bytes {
        x.map(|x| table[usize::from(x & 15)])
    }
    #[inline(always)]
    unsafe fn column(x: Bytes, column: usize) -> Integers {
        lanes(|lane| i32::from(x[4 * lane + column]))
    }
    #[inline(always)]
    unsafe fn dot(sum: Integers, codes: Bytes, activations: i32) -> Integers {
        let activations = activations.to_le_bytes().map(|byte| i32::from(byte as i8));
        lanes(|lane| {
            let products = (0..4).map(|k| i32::from(codes[4 * lane + k]) * activations[k]);
            sum[lane] + products.sum::<i32>()
        })
    }
    #[inline(always)]
    unsafe fn dot_wide(sum: Integers, codes: Bytes, activations: i32) -> Integers {
        unsafe { Self::dot(sum, codes, activations) }
    }
}
