//! Little-endian integers at offsets of a file that nobody vouches for.

use std::ops::Range;

/// A part of a file; every access is compared with its length.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    /// The range `offset..offset + length`, if it is inside.
    pub(crate) fn range(self, offset: u64, length: u64) -> Option<Range<usize>> {
        let end = offset.checked_add(length)?;
        let range = usize::try_from(offset).ok()?..usize::try_from(end).ok()?;
        (range.end <= self.0.len()).then_some(range)
    }

    /// A part.
    pub(crate) fn part(self, offset: u64, length: u64) -> Option<Bytes<'a>> {
        Some(Bytes(&self.0[self.range(offset, length)?]))
    }

    fn array<const N: usize>(self, offset: usize) -> Option<[u8; N]> {
        self.0.get(offset..offset.checked_add(N)?)?.try_into().ok()
    }

    /// The 16-bit integer at an offset.
    pub(crate) fn u16(self, offset: usize) -> Option<u16> {
        self.array(offset).map(u16::from_le_bytes)
    }

    /// The 32-bit integer at an offset.
    pub(crate) fn u32(self, offset: usize) -> Option<u32> {
        self.array(offset).map(u32::from_le_bytes)
    }

    /// The 64-bit integer at an offset.
    pub(crate) fn u64(self, offset: usize) -> Option<u64> {
        self.array(offset).map(u64::from_le_bytes)
    }

    /// Sixteen bytes at an offset.
    pub(crate) fn uuid(self, offset: usize) -> Option<[u8; 16]> {
        self.array(offset)
    }
}
