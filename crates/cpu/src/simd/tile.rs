//! Reading a tile: codes and scales of each quantised type, as lanes. The layout is described in
//! [`crate::pack`].

use super::lanes::Lanes;
use crate::pack::{LINE, SUPER};
use pianola_formats::IQ4_VALUES;

/// The codes of a block, eight groups of 16 rows by 4 columns.
///
/// # Safety
/// `block` points at the block's codes, valid for [`Codes::BYTES`].
pub(crate) unsafe trait Codes {
    /// Bytes of a block's codes.
    const BYTES: usize;
    /// Codes may exceed 127.
    const WIDE: bool = false;
    unsafe fn load<L: Lanes>(block: *const u8) -> [L::B; 8];
}

pub(crate) struct Bits4;
pub(crate) struct Bits5;
pub(crate) struct Bits6;
pub(crate) struct Bits8;
/// Four bits that are indices of the codebook that iq4_nl and iq4_xs share. Its signed values
/// become codes 128 higher, since a dot product takes unsigned ones.
pub(crate) struct Iq4Values;

#[inline(always)]
unsafe fn nibbles<L: Lanes>(block: *const u8) -> [L::B; 8] {
    // SAFETY: inside the block's codes, by the trait's promise.
    unsafe {
        let packed = [
            L::load_bytes(block),
            L::load_bytes(block.add(64)),
            L::load_bytes(block.add(128)),
            L::load_bytes(block.add(192)),
        ];
        [
            L::low_nibbles(packed[0]),
            L::low_nibbles(packed[1]),
            L::low_nibbles(packed[2]),
            L::low_nibbles(packed[3]),
            L::high_nibbles(packed[0]),
            L::high_nibbles(packed[1]),
            L::high_nibbles(packed[2]),
            L::high_nibbles(packed[3]),
        ]
    }
}

// SAFETY: reads 256 bytes.
unsafe impl Codes for Bits4 {
    const BYTES: usize = 256;
    #[inline(always)]
    unsafe fn load<L: Lanes>(block: *const u8) -> [L::B; 8] {
        // SAFETY: inside the block's codes, by the trait's promise.
        unsafe { nibbles::<L>(block) }
    }
}

// SAFETY: reads 256 + 8 * 8 bytes.
unsafe impl Codes for Bits5 {
    const BYTES: usize = 320;
    #[inline(always)]
    unsafe fn load<L: Lanes>(block: *const u8) -> [L::B; 8] {
        // SAFETY: inside the block's codes, by the trait's promise.
        unsafe {
            let mut codes = nibbles::<L>(block);
            for (group, codes) in codes.iter_mut().enumerate() {
                *codes = L::add_fifth_bit(*codes, block.add(256 + 8 * group));
            }
            codes
        }
    }
}

// SAFETY: reads 256 + 2 * 64 bytes.
unsafe impl Codes for Bits6 {
    const BYTES: usize = 384;
    #[inline(always)]
    unsafe fn load<L: Lanes>(block: *const u8) -> [L::B; 8] {
        // SAFETY: inside the block's codes, by the trait's promise.
        unsafe {
            let mut codes = nibbles::<L>(block);
            let high = [L::load_bytes(block.add(256)), L::load_bytes(block.add(320))];
            for (group, codes) in codes.iter_mut().enumerate() {
                *codes = L::add_two_bits(*codes, high[group / 4], group % 4);
            }
            codes
        }
    }
}

// SAFETY: reads 512 bytes.
unsafe impl Codes for Bits8 {
    const BYTES: usize = 512;
    const WIDE: bool = true;
    #[inline(always)]
    unsafe fn load<L: Lanes>(block: *const u8) -> [L::B; 8] {
        // SAFETY: inside the block's codes, by the trait's promise.
        unsafe {
            [
                L::load_bytes(block),
                L::load_bytes(block.add(64)),
                L::load_bytes(block.add(128)),
                L::load_bytes(block.add(192)),
                L::load_bytes(block.add(256)),
                L::load_bytes(block.add(320)),
                L::load_bytes(block.add(384)),
                L::load_bytes(block.add(448)),
            ]
        }
    }
}

impl Iq4Values {
    const UNSIGNED: [u8; 16] = {
        let mut values = [0; 16];
        let mut code = 0;
        while code < 16 {
            values[code] = IQ4_VALUES[code] as u8 ^ 0x80;
            code += 1;
        }
        values
    };
}

// SAFETY: reads 256 bytes.
unsafe impl Codes for Iq4Values {
    const BYTES: usize = 256;
    const WIDE: bool = true;
    #[inline(always)]
    unsafe fn load<L: Lanes>(block: *const u8) -> [L::B; 8] {
        // SAFETY: by this function's promise, the block lies inside the tile.
        unsafe {
            let mut codes = nibbles::<L>(block);
            for codes in &mut codes {
                *codes = L::look_up(*codes, &Self::UNSIGNED);
            }
            codes
        }
    }
}

/// The scales of a block: a weight is `scale * (code - zero) + min`.
///
/// # Safety
/// `own` points at the scales of a block in its unit's line, `shared` at those of its super-block.
pub(crate) unsafe trait Scales {
    /// Bytes of a block's own scales.
    const OWN: usize;
    /// Bytes of what the blocks of a super-block share.
    const SHARED: usize = 0;
    /// There is a minimum.
    const MINS: bool = false;
    /// The two halves of a block have scales of their own.
    const HALVES: bool = false;
    /// What the blocks of a super-block share: a factor of their scales, and one of their minima.
    #[inline(always)]
    unsafe fn shared<L: Lanes>(_shared: *const u8) -> [L::F; 2] {
        // SAFETY: works on registers.
        unsafe { [L::splat(1.0); 2] }
    }
    /// Scale of each row; `half` is 0 unless [`Scales::HALVES`].
    unsafe fn scale<L: Lanes>(own: *const u8, shared: [L::F; 2], half: usize) -> L::F;
    /// Scales of either half of a block, and what is added.
    #[inline(always)]
    unsafe fn all<L: Lanes>(own: *const u8, shared: [L::F; 2]) -> [L::F; 3] {
        // SAFETY: by the trait's promise.
        unsafe {
            let low = Self::scale::<L>(own, shared, 0);
            let high = if Self::HALVES { Self::scale::<L>(own, shared, 1) } else { low };
            [low, high, Self::min::<L>(own, shared)]
        }
    }
    /// What is added, where [`Scales::MINS`].
    #[inline(always)]
    unsafe fn min<L: Lanes>(_own: *const u8, _shared: [L::F; 2]) -> L::F {
        // SAFETY: works on registers.
        unsafe { L::splat(0.0) }
    }
}

/// A walk over the blocks of a tile in order, in bytes from its start.
#[derive(Clone, Copy)]
pub(crate) struct Walk {
    block: usize,
    /// The line of scales of the current unit.
    line: usize,
    /// The first byte that is not passed.
    next: usize,
}

/// Where the parts of a block lie in a tile.
#[derive(Clone, Copy)]
pub(crate) struct BlockPlace {
    /// What its super-block shares, given with the first block of each.
    pub shared: Option<usize>,
    /// Its own scales.
    pub own: usize,
    pub codes: usize,
}

impl Walk {
    #[inline(always)]
    pub fn new() -> Walk {
        Walk { block: 0, line: 0, next: 0 }
    }

    /// A walk that begins at a block, and where what its super-block shares lies.
    #[inline(always)]
    pub fn from<C: Codes, S: Scales>(block: usize) -> (Walk, usize) {
        let in_unit = LINE / S::OWN;
        let before = |block: usize| {
            block.div_ceil(SUPER) * S::SHARED + block.div_ceil(in_unit) * LINE + block * C::BYTES
        };
        let unit = block - block % in_unit;
        let shared = if unit.is_multiple_of(SUPER) { S::SHARED } else { 0 };
        let walk = Walk { block, line: before(unit) + shared, next: before(block) };
        (walk, before(block - block % SUPER))
    }

    /// The next block of a tile of codes `C` and scales `S`.
    #[inline(always)]
    pub fn step<C: Codes, S: Scales>(&mut self) -> BlockPlace {
        let shared = self.block.is_multiple_of(SUPER).then_some(self.next);
        if shared.is_some() {
            self.next += S::SHARED;
        }
        let index = self.block % (LINE / S::OWN);
        if index == 0 {
            self.line = self.next;
            self.next += LINE;
        }
        let place = BlockPlace { shared, own: self.line + index * S::OWN, codes: self.next };
        self.next += C::BYTES;
        self.block += 1;
        place
    }
}

/// An f16 a block.
pub(crate) struct Half;
/// An f16 scale and an f16 minimum a block.
pub(crate) struct HalfWithMin;
/// Six-bit scales and minima a block under f16 ones a super-block.
pub(crate) struct SixBit;
/// A signed byte a half-block under an f16 a super-block.
pub(crate) struct SignedHalves;
/// A signed byte a block under an f16 a super-block.
pub(crate) struct Signed;

// SAFETY: reads 32 bytes a block.
unsafe impl Scales for Half {
    const OWN: usize = 32;
    #[inline(always)]
    unsafe fn scale<L: Lanes>(own: *const u8, _: [L::F; 2], _: usize) -> L::F {
        // SAFETY: by the trait's promise.
        unsafe { L::load_f16(own.cast()) }
    }
}

// SAFETY: reads 64 bytes a block.
unsafe impl Scales for HalfWithMin {
    const OWN: usize = 64;
    const MINS: bool = true;
    #[inline(always)]
    unsafe fn scale<L: Lanes>(own: *const u8, _: [L::F; 2], _: usize) -> L::F {
        // SAFETY: by the trait's promise.
        unsafe { L::load_f16(own.cast()) }
    }
    #[inline(always)]
    unsafe fn min<L: Lanes>(own: *const u8, _: [L::F; 2]) -> L::F {
        // SAFETY: by the trait's promise.
        unsafe { L::load_f16(own.add(32).cast()) }
    }
}

// SAFETY: reads 32 bytes a block and 64 a super-block.
unsafe impl Scales for SixBit {
    const OWN: usize = 32;
    const SHARED: usize = 64;
    const MINS: bool = true;
    #[inline(always)]
    unsafe fn shared<L: Lanes>(shared: *const u8) -> [L::F; 2] {
        // SAFETY: by the trait's promise.
        unsafe {
            // The file subtracts its minima.
            let min = L::sub(L::splat(0.0), L::load_f16(shared.add(32).cast()));
            [L::load_f16(shared.cast()), min]
        }
    }
    #[inline(always)]
    unsafe fn scale<L: Lanes>(own: *const u8, shared: [L::F; 2], _: usize) -> L::F {
        // SAFETY: by the trait's promise.
        unsafe { L::mul(shared[0], L::load_u8(own)) }
    }
    #[inline(always)]
    unsafe fn min<L: Lanes>(own: *const u8, shared: [L::F; 2]) -> L::F {
        // SAFETY: by the trait's promise.
        unsafe { L::mul(shared[1], L::load_u8(own.add(16))) }
    }
}

// SAFETY: reads 32 bytes a block and 32 a super-block.
unsafe impl Scales for SignedHalves {
    const OWN: usize = 32;
    const SHARED: usize = 32;
    const HALVES: bool = true;
    #[inline(always)]
    unsafe fn shared<L: Lanes>(shared: *const u8) -> [L::F; 2] {
        // SAFETY: by the trait's promise.
        unsafe { [L::load_f16(shared.cast()); 2] }
    }
    #[inline(always)]
    unsafe fn scale<L: Lanes>(own: *const u8, shared: [L::F; 2], half: usize) -> L::F {
        // SAFETY: by the trait's promise.
        unsafe { L::mul(shared[0], L::load_i8(own.add(16 * half))) }
    }
}

// SAFETY: reads 16 bytes a block and 32 a super-block.
unsafe impl Scales for Signed {
    const OWN: usize = 16;
    const SHARED: usize = 32;
    #[inline(always)]
    unsafe fn shared<L: Lanes>(shared: *const u8) -> [L::F; 2] {
        // SAFETY: by the trait's promise.
        unsafe { [L::load_f16(shared.cast()); 2] }
    }
    #[inline(always)]
    unsafe fn scale<L: Lanes>(own: *const u8, shared: [L::F; 2], _: usize) -> L::F {
        // SAFETY: by the trait's promise.
        unsafe { L::mul(shared[0], L::load_i8(own)) }
    }
}

#[cfg(test)]
mod walk_tests {
    use super::*;

    fn check<C: Codes, S: Scales>() {
        let mut walk = Walk::new();
        let mut shared = 0;
        for block in 0..40 {
            let (mut from, at) = Walk::from::<C, S>(block);
            let (here, there) = (walk.step::<C, S>(), from.step::<C, S>());
            shared = here.shared.unwrap_or(shared);
            assert_eq!((here.own, here.codes), (there.own, there.codes), "block {block}");
            assert_eq!(at, shared, "block {block}");
        }
    }

    #[test]
    fn a_walk_may_begin_anywhere() {
        check::<Bits4, Half>();
        check::<Bits5, SixBit>();
        check::<Bits8, HalfWithMin>();
        check::<Bits6, Signed>();
    }
}
