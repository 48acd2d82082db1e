//! The layout `Tiles16`: 16 rows of a weight interleaved, so that one vector register meets the
//! same columns of all of them.
//!
//! A tile of a quantised weight is a sequence of units. A unit is a cache line of scales and, behind
//! it, the codes of the blocks (32 columns) that these scales are of: one, two or four, as many as
//! have scales in the line. So a kernel reads a tile strictly from its first byte to its last, which
//! is what a processor's prefetcher follows; scales that lay elsewhere would be a second stream.
//!
//! The codes of a block are eight groups; a group is 64 bytes, four columns of each row in turn:
//! `row * 4 + column`.
//!
//! | codes | bytes a block | |
//! |---|---|---|
//! | 4 bits | 256 | groups 0 to 3 in low nibbles, 4 to 7 in high ones |
//! | 5 bits | 256 + 64 | then 64 bits a group: bit 4 of each code |
//! | 6 bits | 256 + 128 | then bits 4 and 5: groups 0 to 3 two bits each in 64 bytes, 4 to 7 in 64 more |
//! | 8 bits | 512 | offset by 128 to be unsigned |
//!
//! Scales keep the precision they have in the file. Each is an array of 16, a value a row:
//!
//! | scales | of a block, in the unit's line | of eight blocks, before the first of their units |
//! |---|---|---|
//! | f16 | scale, minimum | |
//! | integers | scale (of each half, where they differ), minimum: bytes | scale, minimum: f16 |
//!
//! A tile of an unquantised weight is `[columns][16]` in its own type. Which of these a type has
//! follows from its [`Quantization`]; nothing here knows a type by name.

mod codes;

use crate::memory::Memory;
use codes::{put_codes, take_codes};
use half::f16;
use pianola_formats::{
    Block, Format, FormatVisitor, Minimum, Quantization, TensorType, dequantize_row,
};
use std::sync::Arc;

/// Rows in a tile.
pub(crate) const TILE: usize = 16;
/// Columns in a block of a quantised weight.
pub(crate) const BLOCK: usize = 32;
/// Blocks that share the f16 scales that their integer scales stand under.
pub(crate) const SUPER: usize = 8;
/// Bytes of the scales of a unit.
pub(crate) const LINE: usize = 64;

/// A matrix in tiles.
pub(crate) struct PackedMatrix {
    pub ty: TensorType,
    pub rows: usize,
    pub columns: usize,
    pub tile_bytes: usize,
    /// Bytes from the start of a tile to that of the next.
    pub tile_stride: usize,
    memory: Arc<Memory>,
    offset: usize,
}

/// Where a matrix lies in a block of memory.
#[derive(Clone, Copy)]
pub(crate) struct MatrixPlace {
    pub offset: usize,
    /// Bytes of another matrix between two tiles of this one.
    pub between: usize,
}

/// Where the parts of a tile of a quantised type lie.
#[derive(Clone, Copy)]
struct Layout {
    quantization: &'static Quantization,
    /// Blocks in a row.
    blocks: usize,
}

// Inlined, so that a caller that knows the type knows the results.
impl Layout {
    /// `None` for plain floats.
    fn of(ty: TensorType, columns: usize) -> Option<Layout> {
        Some(Layout { quantization: ty.quantization()?, blocks: columns / BLOCK })
    }

    /// Bytes of a block's codes.
    #[inline(always)]
    fn code_bytes(&self) -> usize {
        TILE * BLOCK * self.quantization.code_bits / 8
    }

    /// Bytes of all f16s of a file's block, of 16 rows.
    #[inline(always)]
    fn half_bytes(&self) -> usize {
        2 * TILE * self.quantization.halves()
    }

    /// Integer scales of a block and row; 0 where scales are f16.
    #[inline(always)]
    fn block_scales(&self) -> usize {
        if self.quantization.scale_bits > 0 { BLOCK / self.quantization.sub_block } else { 0 }
    }

    /// Bytes of a block's integer scales and minimums.
    #[inline(always)]
    fn integer_bytes(&self) -> usize {
        match self.block_scales() {
            0 => 0,
            scales => TILE * (scales + usize::from(self.quantization.has_minimum())),
        }
    }

    /// Bytes of a block's own scales, and of those it shares with the others of its super-block.
    #[inline(always)]
    fn scale_bytes(&self) -> (usize, usize) {
        match self.integer_bytes() {
            0 => (self.half_bytes(), 0),
            own => (own, self.half_bytes()),
        }
    }

    #[inline(always)]
    fn place(&self, block: usize) -> Place {
        let (own, shared) = self.scale_bytes();
        let in_unit = LINE / own;
        let unit_bytes = LINE + in_unit * self.code_bytes();
        let start = block / SUPER * (shared + SUPER / in_unit * unit_bytes);
        let unit = start + shared + block % SUPER / in_unit * unit_bytes;
        let index = block % in_unit;
        Place {
            halves: if shared > 0 { start } else { unit + index * own },
            integers: unit + index * own,
            codes: unit + LINE + index * self.code_bytes(),
        }
    }

    fn tile_bytes(&self) -> usize {
        self.blocks.checked_sub(1).map_or(0, |last| self.place(last).codes + self.code_bytes())
    }
}

/// Where the parts of a block lie in a tile.
struct Place {
    /// The f16s.
    halves: usize,
    /// The integer scales and minimums, where there are any.
    integers: usize,
    codes: usize,
}

/// Bytes of a tile of `columns`.
pub(crate) fn tile_bytes(ty: TensorType, columns: usize) -> usize {
    match Layout::of(ty, columns) {
        Some(layout) => layout.tile_bytes(),
        None => TILE * columns * ty.block_bytes(),
    }
}

impl PackedMatrix {
    /// Bytes that a matrix takes.
    pub fn bytes(ty: TensorType, rows: usize, columns: usize) -> usize {
        rows.div_ceil(TILE) * tile_bytes(ty, columns)
    }

    /// A matrix of a zeroed block; tiles are filled by [`pack_tile`].
    ///
    /// # Safety
    /// The matrix's tiles belong to no other.
    pub unsafe fn at(
        memory: &Arc<Memory>,
        place: MatrixPlace,
        ty: TensorType,
        rows: usize,
        columns: usize,
    ) -> PackedMatrix {
        let tile_bytes = tile_bytes(ty, columns);
        let (offset, tile_stride) = (place.offset, tile_bytes + place.between);
        assert!(offset + rows.div_ceil(TILE) * tile_stride <= memory.len() + place.between);
        PackedMatrix { ty, rows, columns, tile_bytes, tile_stride, memory: memory.clone(), offset }
    }

    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    /// The tiles' bytes, to be filled.
    pub fn tiles_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let (offset, bytes, stride) = (self.offset, self.tile_bytes, self.tile_stride);
        let memory = &self.memory;
        (0..self.rows.div_ceil(TILE)).map(move |tile| {
            // SAFETY: the tile lies inside the block and is this matrix's alone (see `at`), which is
            // borrowed exclusively; each is given once.
            unsafe {
                let start = memory.start().add(offset + tile * stride);
                std::slice::from_raw_parts_mut(start, bytes)
            }
        })
    }

    pub fn tile(&self, index: usize) -> &[u8] {
        assert!(index < self.tiles());
        // SAFETY: the tile lies inside the block and is this matrix's alone; nobody fills it
        // while it is borrowed.
        unsafe {
            let start = self.memory.start().add(self.offset + index * self.tile_stride);
            std::slice::from_raw_parts(start, self.tile_bytes)
        }
    }

    /// All bytes from a tile on to the last, those of other matrices between them included.
    pub fn bytes_from(&self, index: usize) -> &[u8] {
        let last = self.tile(self.tiles() - 1).as_ptr_range().end;
        let first = self.tile(index).as_ptr();
        // SAFETY: inside the block; nobody fills tiles while this is borrowed.
        unsafe { std::slice::from_raw_parts(first, last.offset_from_unsigned(first)) }
    }

    /// The block that holds this matrix and all others that were loaded with it.
    pub fn all_weights(&self) -> &[u8] {
        self.memory.bytes()
    }

    /// Dequantises one row: an embedding, or the reference's view of a weight.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.columns);
        let (tile, lane) = (self.tile(row / TILE), row % TILE);
        let Some(layout) = Layout::of(self.ty, self.columns) else {
            let size = self.ty.block_bytes();
            for (column, value) in out.iter_mut().enumerate() {
                let bytes = &tile[(column * TILE + lane) * size..][..size];
                dequantize_row(self.ty, bytes, std::slice::from_mut(value));
            }
            return;
        };
        for (block, values) in out.chunks_exact_mut(BLOCK).enumerate() {
            let codes = &tile[layout.place(block).codes..][..layout.code_bytes()];
            let codes = take_codes(layout.quantization.code_bits, codes, lane);
            layout.scale_row(tile, block, lane, &codes, values);
        }
    }
}

/// Packs up to 16 rows (as they lie in the file) into one zeroed tile.
pub(crate) fn pack_tile(ty: TensorType, columns: usize, rows: &[&[u8]], tile: &mut [u8]) {
    if ty.is_quantized() {
        ty.visit(PackTile { columns, rows, tile });
        return;
    }
    match ty.block_bytes() {
        2 => pack_floats::<2>(rows, tile),
        _ => pack_floats::<4>(rows, tile),
    }
}

/// Packs rows of plain floats of `SIZE` bytes.
fn pack_floats<const SIZE: usize>(rows: &[&[u8]], tile: &mut [u8]) {
    /// Columns that stay in the first-level cache while all rows are put there.
    const COLUMNS: usize = 256;
    let places = tile.as_chunks_mut::<SIZE>().0.chunks_mut(TILE * COLUMNS);
    for (part, places) in places.enumerate() {
        for (lane, row) in rows.iter().enumerate() {
            let values = row.as_chunks::<SIZE>().0[part * COLUMNS..].iter();
            for (place, value) in places.chunks_exact_mut(TILE).zip(values) {
                place[lane] = *value;
            }
        }
    }
}

struct PackTile<'a> {
    columns: usize,
    rows: &'a [&'a [u8]],
    tile: &'a mut [u8],
}

impl FormatVisitor for PackTile<'_> {
    type Output = ();
    fn visit<F: Format>(self) {
        let quantization = &F::QUANTIZATION;
        let layout = Layout { quantization, blocks: self.columns / BLOCK };
        let per_file_block = quantization.block_len / BLOCK;
        let mut block = Block::zeroed();
        for (lane, row) in self.rows.iter().enumerate() {
            for (index, file_block) in row.chunks_exact(quantization.block_bytes).enumerate() {
                quantization.decode(file_block, &mut block);
                let first = index * per_file_block;
                let codes = block.codes.as_chunks::<BLOCK>().0.iter().take(per_file_block);
                for (part, codes) in codes.enumerate() {
                    let at = layout.place(first + part).codes;
                    let place = &mut self.tile[at..][..layout.code_bytes()];
                    put_codes(quantization.code_bits, place, lane, codes);
                }
                layout.put_scales(self.tile, first, lane, &block);
            }
        }
    }
}

impl Layout {
    /// Puts the scales of a file's block, which begins with block `first` of its row.
    #[inline(always)]
    fn put_scales(&self, tile: &mut [u8], first: usize, lane: usize, block: &Block) {
        let halves = &mut tile[self.place(first).halves..][..self.half_bytes()];
        halves[2 * lane..][..2].copy_from_slice(&block.scale.to_le_bytes());
        if self.quantization.has_minimum() {
            halves[2 * (TILE + lane)..][..2].copy_from_slice(&block.minimum.to_le_bytes());
        }
        let count = self.block_scales();
        if count == 0 {
            return;
        }
        for part in 0..SUPER {
            let integers = &mut tile[self.place(first + part).integers..][..self.integer_bytes()];
            for k in 0..count {
                integers[TILE * k + lane] = block.scales[count * part + k] as u8;
            }
            if self.quantization.has_minimum() {
                integers[TILE * count + lane] = block.minimums[part] as u8;
            }
        }
    }

    /// The weights of one row of a block.
    fn scale_row(&self, tile: &[u8], block: usize, lane: usize, codes: &[u8; 32], out: &mut [f32]) {
        let place = self.place(block);
        let halves = &tile[place.halves..][..self.half_bytes()];
        let half = |at: usize| f16::from_le_bytes([halves[at], halves[at + 1]]).to_f32();
        let integers = &tile[place.integers..][..self.integer_bytes()];
        let integer = |at: usize| f32::from(integers[TILE * at + lane] as i8);
        let (scale, count) = (half(2 * lane), self.block_scales());
        let minimum = match self.quantization.minimum {
            Minimum::None => None,
            Minimum::Added => Some(half(2 * (TILE + lane))),
            Minimum::Subtracted => Some(-(half(2 * (TILE + lane)) * integer(count))),
        };
        let parts = codes.chunks_exact(self.quantization.sub_block);
        for (part, (codes, out)) in
            parts.zip(out.chunks_exact_mut(self.quantization.sub_block)).enumerate()
        {
            let step = if count > 0 { scale * integer(part) } else { scale };
            for (code, out) in codes.iter().zip(out) {
                let value = step * f32::from(self.quantization.value(*code));
                *out = minimum.map_or(value, |minimum| value + minimum);
            }
        }
    }
}

/// A matrix of its own, packed from rows as they lie in a file.
#[cfg(test)]
pub(crate) fn packed(ty: TensorType, columns: usize, file: &[u8]) -> PackedMatrix {
    let lines: Vec<&[u8]> = file.chunks_exact(ty.row_bytes(columns).unwrap()).collect();
    let memory = Memory::zeroed(PackedMatrix::bytes(ty, lines.len(), columns)).unwrap();
    let place = MatrixPlace { offset: 0, between: 0 };
    // SAFETY: the block is the matrix's alone.
    let mut packed =
        unsafe { PackedMatrix::at(&Arc::new(memory), place, ty, lines.len(), columns) };
    for (tile, rows) in packed.tiles_mut().zip(lines.chunks(TILE)) {
        pack_tile(ty, columns, rows, tile);
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes of a fixed sequence, for any seed.
    fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
        let mut state = seed;
        let next = |_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        (0..count).map(next).collect()
    }

    /// FNV-1a sums of a packed tile of random blocks, so that a change of the layout is a decision.
    #[test]
    fn tiles_keep_their_layout() {
        let expected = [
            (TensorType::F32, 32768, 0x3b4e_868d_0e22_0bc8),
            (TensorType::F16, 16384, 0xc40f_566a_a14b_ad43),
            (TensorType::BF16, 16384, 0xc40f_566a_a14b_ad43),
            (TensorType::Q4_0, 4608, 0xc9fd_c990_1464_11e5),
            (TensorType::Q4_1, 5120, 0x904a_b812_f3b0_5b28),
            (TensorType::Q5_0, 5632, 0x574a_ea31_ea1d_7c92),
            (TensorType::Q5_1, 6144, 0xfe3c_9af0_0806_94a4),
            (TensorType::Q8_0, 8704, 0x8f60_1477_ac14_8e24),
            (TensorType::Q4K, 4736, 0x67b2_3187_4f68_c2e7),
            (TensorType::Q5K, 5760, 0x7494_bb9e_4059_0a65),
            (TensorType::Q6K, 6720, 0xff0c_f3ef_6b51_7187),
        ];
        let found = expected.map(|(ty, _, _)| {
            let bytes = ty.row_bytes(512).unwrap();
            let file = random_bytes(11, 13 * bytes);
            let lines: Vec<&[u8]> = file.chunks_exact(bytes).collect();
            let mut tile = vec![0; tile_bytes(ty, 512)];
            pack_tile(ty, 512, &lines, &mut tile);
            let sum = tile.iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, &byte| {
                (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
            (ty, tile.len(), sum)
        });
        assert_eq!(found, expected);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// Any bytes are valid codes, so random bytes exercise every bit of every layout.
        #[test]
        fn packing_loses_nothing(seed: u64, rows in 1usize..40, wide in 1usize..3) {
            for &ty in TensorType::ALL {
                let columns = 256 * wide;
                let bytes = ty.row_bytes(columns).unwrap();
                let mut file = random_bytes(seed, rows * bytes);
                // Scales must be finite to compare: clear the exponent's top bit wherever it may lie.
                file.iter_mut().for_each(|byte| *byte &= 0xbf);
                let packed = packed(ty, columns, &file);
                let lines = file.chunks_exact(bytes);
                let (mut expected, mut found) = (vec![0.0; columns], vec![f32::NAN; columns]);
                for (row, line) in lines.enumerate() {
                    dequantize_row(ty, line, &mut expected);
                    packed.row(row, &mut found);
                    prop_assert_eq!(&expected, &found, "{} row {}", ty, row);
                }
            }
        }
    }
}
