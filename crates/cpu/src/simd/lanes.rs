//! Sixteen lanes: the vocabulary every SIMD kernel is written in, once.
//!
//! A kernel is generic over [`Lanes`] and `#[inline(always)]`; each instruction set wraps it in a
//! function with `#[target_feature]`, so that the calls below become single instructions there.

/// Sixteen f32, sixteen i32 or 64 bytes at a time.
///
/// # Safety
/// Every method may only be called from code compiled for the instruction set that the
/// implementation names, on a processor that has it. Pointers must be valid for the 16 lanes (or
/// 64 bytes, where bytes are meant) read or written; no alignment is required.
pub(crate) unsafe trait Lanes: Copy + 'static {
    /// Whether there are registers for the sums of two tiles with eight rows.
    const TWO_TILES: bool = false;

    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32.
    type I: Copy;
    /// 64 bytes: 16 rows by 4 columns of weight codes.
    type B: Copy;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(from: *const f32) -> Self::F;
    unsafe fn store(to: *mut f32, x: Self::F);
    unsafe fn load_f16(from: *const u16) -> Self::F;
    unsafe fn load_bf16(from: *const u16) -> Self::F;
    unsafe fn store_f16(to: *mut u16, x: Self::F);
    unsafe fn load_u8(from: *const u8) -> Self::F;
    unsafe fn load_i8(from: *const u8) -> Self::F;
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, fused where the instruction set can.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn abs(a: Self::F) -> Self::F;
    unsafe fn sum(a: Self::F) -> f32;
    unsafe fn largest(a: Self::F) -> f32;
    /// To the nearest integer, ties to even.
    unsafe fn round(a: Self::F) -> Self::F;
    /// `2^n` for integral `-126 <= n <= 127`.
    unsafe fn power_of_two(n: Self::F) -> Self::F;
    /// Rounds to nearest and stores 16 signed bytes; values must fit them.
    unsafe fn store_i8(to: *mut i8, x: Self::F);

    /// Sums and differences of lanes that are `distance` (1, 2, 4 or 8) apart: `a + b` in place of the
    /// first, `a - b` in place of the second.
    unsafe fn butterfly(x: Self::F, distance: usize) -> Self::F;
    /// The lowest byte of each lane's bits, those of four vectors side by side in each group of four.
    unsafe fn low_bytes(x: [Self::F; 4]) -> Self::B;

    unsafe fn splat_i32(x: i32) -> Self::I;
    unsafe fn add_i32(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn sub_i32(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn to_f32(x: Self::I) -> Self::F;

    /// Asks for the cache line at `from`, which need not be valid, to be brought to the second-level cache.
    unsafe fn prefetch(from: *const u8);
    /// The same for the first-level cache.
    unsafe fn prefetch_near(from: *const u8);
    /// The same for a line that is read once, which the caches behind the first need not keep.
    unsafe fn prefetch_once(from: *const u8);
    unsafe fn load_bytes(from: *const u8) -> Self::B;
    unsafe fn store_bytes(to: *mut u8, x: Self::B);
    /// `byte & 15`
    unsafe fn low_nibbles(x: Self::B) -> Self::B;
    /// `byte >> 4`
    unsafe fn high_nibbles(x: Self::B) -> Self::B;
    /// Adds 16 to the bytes whose bit is set in the 64 bits at `bits`.
    unsafe fn add_fifth_bit(x: Self::B, bits: *const u8) -> Self::B;
    /// Adds `((high >> 2 * pair) & 3) * 16` to each byte, `pair` in 0..4.
    unsafe fn add_two_bits(x: Self::B, high: Self::B, pair: usize) -> Self::B;
    /// `table[byte]`; bytes are below 16.
    unsafe fn look_up(x: Self::B, table: &[u8; 16]) -> Self::B;
    /// Byte `column` of each group of four, widened.
    unsafe fn column(x: Self::B, column: usize) -> Self::I;
    /// [`Lanes::column`] less `zero`.
    #[inline(always)]
    unsafe fn centred(x: Self::B, column: usize, zero: f32) -> Self::F {
        // SAFETY: works on registers.
        unsafe { Self::sub(Self::to_f32(Self::column(x, column)), Self::splat(zero)) }
    }
    /// Adds to each lane the dot product of its four codes with the four signed bytes of
    /// `activations`; codes are at most 127, unless activations are at most 1.
    unsafe fn dot(sum: Self::I, codes: Self::B, activations: i32) -> Self::I;
    /// [`Lanes::dot`] for codes up to 255.
    unsafe fn dot_wide(sum: Self::I, codes: Self::B, activations: i32) -> Self::I;
}
