//! Reading a tile: codes and scales of each quantised type, as lanes. The layout is described in
//! [`crate::pack`].

use super::lanes::Lanes;
use crate::pack::SUPER;
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

/// The scales of a tile: a weight is `scale * (code - zero) + min`.
///
/// # Safety
/// `scales` points behind the codes of a tile of `blocks` blocks, `block < blocks`.
pub(crate) unsafe trait Scales {
    /// Bytes of a block's scales, what it shares with others included.
    const BYTES: usize;
    /// There is a minimum.
    const MINS: bool = false;
    /// The two halves of a block have scales of their own.
    const HALVES: bool = false;
    /// What the blocks of a super-block share: a factor of their scales, and one of their minima.
    #[inline(always)]
    unsafe fn shared<L: Lanes>(_scales: *const u8, _blocks: usize, _block: usize) -> [L::F; 2] {
        // SAFETY: works on registers.
        unsafe { [L::splat(1.0); 2] }
    }
    /// Scale of each row; `half` is 0 unless [`Scales::HALVES`].
    unsafe fn scale<L: Lanes>(
        scales: *const u8,
        shared: [L::F; 2],
        block: usize,
        half: usize,
    ) -> L::F;
    /// Scales of either half of a block, and what is added.
    #[inline(always)]
    unsafe fn all<L: Lanes>(scales: *const u8, blocks: usize, block: usize) -> [L::F; 3] {
        // SAFETY: by the trait's promise.
        unsafe {
            let shared = Self::shared::<L>(scales, blocks, block);
            let low = Self::scale::<L>(scales, shared, block, 0);
            let high = if Self::HALVES { Self::scale::<L>(scales, shared, block, 1) } else { low };
            [low, high, Self::min::<L>(scales, shared, block)]
        }
    }
    /// What is added, where [`Scales::MINS`].
    #[inline(always)]
    unsafe fn min<L: Lanes>(_scales: *const u8, _shared: [L::F; 2], _block: usize) -> L::F {
        // SAFETY: works on registers.
        unsafe { L::splat(0.0) }
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
    const BYTES: usize = 32;
    #[inline(always)]
    unsafe fn scale<L: Lanes>(scales: *const u8, _: [L::F; 2], block: usize, _: usize) -> L::F {
        // SAFETY: inside the tile's scales, by the trait's promise.
        unsafe { L::load_f16(scales.add(32 * block).cast()) }
    }
}

// SAFETY: reads 64 bytes a block.
unsafe impl Scales for HalfWithMin {
    const BYTES: usize = 64;
    const MINS: bool = true;
    #[inline(always)]
    unsafe fn scale<L: Lanes>(scales: *const u8, _: [L::F; 2], block: usize, _: usize) -> L::F {
        // SAFETY: inside the tile's scales, by the trait's promise.
        unsafe { L::load_f16(scales.add(64 * block).cast()) }
    }
    #[inline(always)]
    unsafe fn min<L: Lanes>(scales: *const u8, _: [L::F; 2], block: usize) -> L::F {
        // SAFETY: inside the tile's scales, by the trait's promise.
        unsafe { L::load_f16(scales.add(64 * block + 32).cast()) }
    }
}

// SAFETY: reads 32 bytes a block and 64 a super-block behind them.
unsafe impl Scales for SixBit {
    const BYTES: usize = 40;
    const MINS: bool = true;
    #[inline(always)]
    unsafe fn shared<L: Lanes>(scales: *const u8, blocks: usize, block: usize) -> [L::F; 2] {
        // SAFETY: inside the tile's scales, by the trait's promise.
        unsafe {
            let halves = scales.add(32 * blocks + 64 * (block / SUPER));
            // The file subtracts its minima.
            let min = L::sub(L::splat(0.0), L::load_f16(halves.add(32).cast()));
            [L::load_f16(halves.cast()), min]
        }
    }
    #[inline(always)]
    unsafe fn scale<L: Lanes>(
        scales: *const u8,
        shared: [L::F; 2],
        block: usize,
        _: usize,
    ) -> L::F {
        // SAFETY: inside the tile's scales, by the trait's promise.
        unsafe { L::mul(shared[0], L::load_u8(scales.add(32 * block))) }
    }
    #[inline(always)]
    unsafe fn min<L: Lanes>(scales: *const u8, shared: [L::F; 2], block: usize) -> L::F {
        // SAFETY: inside the tile's scales, by the trait's promise.
        unsafe { L::mul(shared[1], L::load_u8(scales.add(32 * block + 16))) }
    }
}

// SAFETY: reads 32 bytes a block and 32 a super-block behind them.
unsafe impl Scales for SignedHalves {
    const BYTES: usize = 36;
    const HALVES: bool = true;
    #[inline(always)]
    unsafe fn shared<L: Lanes>(scales: *const u8, blocks: usize, block: usize) -> [L::F; 2] {
        // SAFETY: inside the tile's scales, by the trait's promise.
        unsafe { [L::load_f16(scales.add(32 * blocks + 32 * (block / SUPER)).cast()); 2] }
    }
    #[inline(always)]
    unsafe fn scale<L: Lanes>(
        scales: *const u8,
        shared: [L::F; 2],
        block: usize,
        half: usize,
    ) -> L::F {
        // SAFETY: inside the tile's scales, by the trait's promise.
        unsafe { L::mul(shared[0], L::load_i8(scales.add(32 * block + 16 * half))) }
    }
}

// SAFETY: reads 16 bytes a block and 32 a super-block behind them.
unsafe impl Scales for Signed {
    const BYTES: usize = 20;
    #[inline(always)]
    unsafe fn shared<L: Lanes>(scales: *const u8, blocks: usize, block: usize) -> [L::F; 2] {
        // SAFETY: by this function's promise, the block lies inside the tile.
        unsafe { [L::load_f16(scales.add(16 * blocks + 32 * (block / SUPER)).cast()); 2] }
    }
    #[inline(always)]
    unsafe fn scale<L: Lanes>(
        scales: *const u8,
        shared: [L::F; 2],
        block: usize,
        _: usize,
    ) -> L::F {
        // SAFETY: by this function's promise, the block lies inside the tile.
        unsafe { L::mul(shared[0], L::load_i8(scales.add(16 * block))) }
    }
}
