//! The layout `Tiles16`: 16 rows of a weight interleaved, so that one vector register meets the
//! same columns of all of them.
//!
//! A tile of a quantised weight is two runs of bytes, codes then scales, block by block (32
//! columns). The codes of a block are eight groups; a group is 64 bytes, four columns of each
//! row in turn: `row * 4 + column`.
//!
//! | codes | bytes a block | |
//! |---|---|---|
//! | 4 bits | 256 | groups 0 to 3 in low nibbles, 4 to 7 in high ones |
//! | 5 bits | 256 + 64 | then 64 bits a group: bit 4 of each code |
//! | 6 bits | 256 + 128 | then bits 4 and 5: groups 0 to 3 two bits each in 64 bytes, 4 to 7 in 64 more |
//! | 8 bits | 512 | offset by 128 to be unsigned |
//!
//! Scales keep the precision they have in the file: an f16 a row and block, or for K types one
//! f16 a row and 256 columns with small integers a block. A tile of an unquantised weight is
//! `[columns][16]` in its own type.

use crate::memory::Memory;
use half::f16;
use pianola_formats::TensorType;
use std::sync::Arc;

/// Rows in a tile.
pub(crate) const TILE: usize = 16;
/// Columns in a block of a quantised weight.
pub(crate) const BLOCK: usize = 32;
/// Blocks that share a K type's f16 scales.
pub(crate) const SUPER: usize = 8;

/// A matrix in tiles.
pub(crate) struct PackedMatrix {
    pub ty: TensorType,
    pub rows: usize,
    pub columns: usize,
    pub tile_bytes: usize,
    memory: Arc<Memory>,
    offset: usize,
}

/// Bytes of a block's codes in a tile.
fn code_bytes(ty: TensorType) -> usize {
    match ty {
        TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q4K => 256,
        TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5K => 256 + 64,
        TensorType::Q6K => 256 + 128,
        TensorType::Q8_0 => 512,
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => 0,
    }
}

/// Bytes of a tile of `columns`.
pub(crate) fn tile_bytes(ty: TensorType, columns: usize) -> usize {
    let blocks = columns / BLOCK;
    let scales = match ty {
        TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => 32 * blocks,
        TensorType::Q4_1 | TensorType::Q5_1 => 64 * blocks,
        TensorType::Q4K | TensorType::Q5K => 32 * blocks + 64 * (blocks / SUPER),
        TensorType::Q6K => 32 * blocks + 32 * (blocks / SUPER),
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => {
            return TILE * columns * ty.block_bytes();
        }
    };
    blocks * code_bytes(ty) + scales
}

impl PackedMatrix {
    /// Bytes that a matrix takes.
    pub fn bytes(ty: TensorType, rows: usize, columns: usize) -> usize {
        rows.div_ceil(TILE) * tile_bytes(ty, columns)
    }

    /// A matrix at `offset` of a zeroed block; tiles are filled by [`pack_tile`].
    ///
    /// # Safety
    /// The matrix's bytes lie inside the block and belong to no other.
    pub unsafe fn at(
        memory: &Arc<Memory>,
        offset: usize,
        ty: TensorType,
        rows: usize,
        columns: usize,
    ) -> PackedMatrix {
        let tile_bytes = tile_bytes(ty, columns);
        assert!(offset + rows.div_ceil(TILE) * tile_bytes <= memory.len());
        PackedMatrix { ty, rows, columns, tile_bytes, memory: memory.clone(), offset }
    }

    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    /// The tiles' bytes, to be filled.
    pub fn tiles_mut(&mut self) -> std::slice::ChunksExactMut<'_, u8> {
        let bytes = self.tiles() * self.tile_bytes;
        // SAFETY: the bytes are this matrix's alone (see `at`), and it is borrowed exclusively.
        let all =
            unsafe { std::slice::from_raw_parts_mut(self.memory.start().add(self.offset), bytes) };
        all.chunks_exact_mut(self.tile_bytes)
    }

    pub fn tile(&self, index: usize) -> &[u8] {
        assert!(index < self.tiles());
        // SAFETY: the tile lies inside the block and is this matrix's alone; nobody fills it
        // while it is borrowed.
        unsafe {
            let start = self.memory.start().add(self.offset + index * self.tile_bytes);
            std::slice::from_raw_parts(start, self.tile_bytes)
        }
    }

    /// Dequantises one row: an embedding, or the reference's view of a weight.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.columns);
        let (tile, lane) = (self.tile(row / TILE), row % TILE);
        match self.ty {
            TensorType::F32 | TensorType::F16 | TensorType::BF16 => {
                let size = self.ty.block_bytes();
                for (column, value) in out.iter_mut().enumerate() {
                    let bytes = &tile[(column * TILE + lane) * size..][..size];
                    pianola_formats::dequantize_row(self.ty, bytes, std::slice::from_mut(value));
                }
            }
            _ => {
                for (block, values) in out.chunks_exact_mut(BLOCK).enumerate() {
                    let codes = take_codes(self.ty, &tile[block * code_bytes(self.ty)..], lane);
                    let blocks = self.columns / BLOCK;
                    let scales = &tile[blocks * code_bytes(self.ty)..];
                    scale_row(self.ty, scales, blocks, block, lane, &codes, values);
                }
            }
        }
    }
}

/// Packs up to 16 rows (as they lie in the file) into one zeroed tile.
pub(crate) fn pack_tile(ty: TensorType, columns: usize, rows: &[&[u8]], tile: &mut [u8]) {
    for (lane, row) in rows.iter().enumerate() {
        if !ty.is_quantized() {
            let size = ty.block_bytes();
            for (column, value) in row.chunks_exact(size).enumerate() {
                tile[(column * TILE + lane) * size..][..size].copy_from_slice(value);
            }
            continue;
        }
        let blocks = columns / BLOCK;
        let (codes, scales) = tile.split_at_mut(blocks * code_bytes(ty));
        let bytes = code_bytes(ty);
        let per_file_block = ty.block_len() / BLOCK;
        for (index, file_block) in row.chunks_exact(ty.block_bytes()).enumerate() {
            for part in 0..per_file_block {
                let block = index * per_file_block + part;
                let values = file_codes(ty, file_block, part);
                put_codes(ty, &mut codes[block * bytes..][..bytes], lane, &values);
            }
            put_scales(ty, scales, blocks, index, lane, file_block);
        }
    }
}

/// Codes `32 * part ..` of a block in the file.
fn file_codes(ty: TensorType, block: &[u8], part: usize) -> [u8; 32] {
    let mut codes = [0; 32];
    let nibbles = |codes: &mut [u8; 32], packed: &[u8]| {
        for (index, byte) in packed[..16].iter().enumerate() {
            codes[index] = byte & 15;
            codes[index + 16] = byte >> 4;
        }
    };
    let fifth_bits = |codes: &mut [u8; 32], bits: &[u8]| {
        let bits = u32::from_le_bytes([bits[0], bits[1], bits[2], bits[3]]);
        for (index, code) in codes.iter_mut().enumerate() {
            *code |= (((bits >> index) & 1) << 4) as u8;
        }
    };
    match ty {
        TensorType::Q4_0 => nibbles(&mut codes, &block[2..]),
        TensorType::Q4_1 => nibbles(&mut codes, &block[4..]),
        TensorType::Q5_0 => {
            nibbles(&mut codes, &block[6..]);
            fifth_bits(&mut codes, &block[2..]);
        }
        TensorType::Q5_1 => {
            nibbles(&mut codes, &block[8..]);
            fifth_bits(&mut codes, &block[4..]);
        }
        TensorType::Q8_0 => {
            for (code, byte) in codes.iter_mut().zip(&block[2..]) {
                *code = byte ^ 0x80;
            }
        }
        TensorType::Q4K | TensorType::Q5K => {
            let five = ty == TensorType::Q5K;
            let (high, low) =
                if five { (&block[16..48], &block[48..]) } else { (&[][..], &block[16..]) };
            let low = &low[32 * (part / 2)..][..32];
            for (index, code) in codes.iter_mut().enumerate() {
                *code = (low[index] >> (4 * (part % 2))) & 15;
                if five {
                    *code |= ((high[index] >> part) & 1) << 4;
                }
            }
        }
        TensorType::Q6K => {
            let low = &block[64 * (part / 4) + 32 * (part % 2)..][..32];
            let high = &block[128 + 32 * (part / 4)..][..32];
            for (index, code) in codes.iter_mut().enumerate() {
                let nibble = (low[index] >> (4 * (part % 4 / 2))) & 15;
                *code = nibble | (((high[index] >> (2 * (part % 4))) & 3) << 4);
            }
        }
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => unreachable!("quantised types"),
    }
    codes
}

/// Four codes at a time as one word.
fn groups(codes: &[u8; 32]) -> [u32; 8] {
    std::array::from_fn(|group| {
        u32::from_le_bytes([
            codes[4 * group],
            codes[4 * group + 1],
            codes[4 * group + 2],
            codes[4 * group + 3],
        ])
    })
}

fn put_codes(ty: TensorType, block: &mut [u8], lane: usize, codes: &[u8; 32]) {
    let groups = groups(codes);
    let mut put = |at: usize, word: u32| {
        let bytes = &mut block[at..at + 4];
        let old = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        bytes.copy_from_slice(&(old | word).to_le_bytes());
    };
    if ty == TensorType::Q8_0 {
        for (group, word) in groups.into_iter().enumerate() {
            put(64 * group + 4 * lane, word);
        }
        return;
    }
    const NIBBLES: u32 = 0x0f0f_0f0f;
    for group in 0..4 {
        let word = (groups[group] & NIBBLES) | ((groups[group + 4] & NIBBLES) << 4);
        put(64 * group + 4 * lane, word);
    }
    match ty {
        TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5K => {
            for (group, word) in groups.into_iter().enumerate() {
                let bits = (0..4).fold(0, |bits, k| bits | ((word >> (8 * k + 4)) & 1) << k) as u8;
                block[256 + 8 * group + lane / 2] |= bits << (4 * (lane % 2));
            }
        }
        TensorType::Q6K => {
            for (group, word) in groups.into_iter().enumerate() {
                let pair = (word >> 4) & 0x0303_0303;
                put(256 + 64 * (group / 4) + 4 * lane, pair << (2 * (group % 4)));
            }
        }
        _ => {}
    }
}

/// The inverse of [`put_codes`].
fn take_codes(ty: TensorType, block: &[u8], lane: usize) -> [u8; 32] {
    std::array::from_fn(|column| {
        let (group, k) = (column / 4, column % 4);
        if ty == TensorType::Q8_0 {
            return block[64 * group + 4 * lane + k];
        }
        let nibble = (block[64 * (group % 4) + 4 * lane + k] >> (4 * (group / 4))) & 15;
        match ty {
            TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5K => {
                let bits = block[256 + 8 * group + lane / 2] >> (4 * (lane % 2));
                nibble | (((bits >> k) & 1) << 4)
            }
            TensorType::Q6K => {
                let pairs = block[256 + 64 * (group / 4) + 4 * lane + k];
                nibble | (((pairs >> (2 * (group % 4))) & 3) << 4)
            }
            _ => nibble,
        }
    })
}

/// Scale and minimum, six bits each, of sub-block `part` of a Q4_K or Q5_K block.
fn six_bit_scales(packed: &[u8], part: usize) -> (u8, u8) {
    if part < 4 {
        (packed[part] & 63, packed[part + 4] & 63)
    } else {
        (
            (packed[part + 4] & 15) | ((packed[part - 4] >> 6) << 4),
            (packed[part + 4] >> 4) | ((packed[part] >> 6) << 4),
        )
    }
}

/// Copies the scales of file block `index` of one row.
fn put_scales(
    ty: TensorType,
    scales: &mut [u8],
    blocks: usize,
    index: usize,
    lane: usize,
    block: &[u8],
) {
    let mut half =
        |at: usize, from: &[u8]| scales[at + 2 * lane..][..2].copy_from_slice(&from[..2]);
    match ty {
        TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => half(32 * index, block),
        TensorType::Q4_1 | TensorType::Q5_1 => {
            half(64 * index, block);
            half(64 * index + 32, &block[2..]);
        }
        TensorType::Q4K | TensorType::Q5K => {
            half(32 * blocks + 64 * index, block);
            half(32 * blocks + 64 * index + 32, &block[2..]);
            for part in 0..SUPER {
                let (scale, min) = six_bit_scales(&block[4..16], part);
                scales[32 * (SUPER * index + part) + lane] = scale;
                scales[32 * (SUPER * index + part) + 16 + lane] = min;
            }
        }
        TensorType::Q6K => {
            half(32 * blocks + 32 * index, &block[208..]);
            for part in 0..SUPER {
                let at = 32 * (SUPER * index + part) + lane;
                scales[at] = block[192 + 2 * part];
                scales[at + 16] = block[192 + 2 * part + 1];
            }
        }
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => {}
    }
}

fn scale_row(
    ty: TensorType,
    scales: &[u8],
    blocks: usize,
    block: usize,
    lane: usize,
    codes: &[u8; 32],
    out: &mut [f32],
) {
    let half =
        |at: usize| f16::from_le_bytes([scales[at + 2 * lane], scales[at + 2 * lane + 1]]).to_f32();
    let codes = codes.iter().map(|&code| f32::from(code)).zip(out.iter_mut());
    match ty {
        TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => {
            let zero = match ty {
                TensorType::Q4_0 => 8.0,
                TensorType::Q5_0 => 16.0,
                _ => 128.0,
            };
            let scale = half(32 * block);
            codes.for_each(|(code, out)| *out = scale * (code - zero));
        }
        TensorType::Q4_1 | TensorType::Q5_1 => {
            let (scale, min) = (half(64 * block), half(64 * block + 32));
            codes.for_each(|(code, out)| *out = scale * code + min);
        }
        TensorType::Q4K | TensorType::Q5K => {
            let at = 32 * blocks + 64 * (block / SUPER);
            let scale = half(at) * f32::from(scales[32 * block + lane]);
            let min = half(at + 32) * f32::from(scales[32 * block + 16 + lane]);
            codes.for_each(|(code, out)| *out = scale * code - min);
        }
        TensorType::Q6K => {
            let scale = half(32 * blocks + 32 * (block / SUPER));
            let part =
                |which: usize| scale * f32::from(scales[32 * block + 16 * which + lane] as i8);
            let parts = [part(0), part(1)];
            for (column, (code, out)) in codes.enumerate() {
                *out = parts[column / 16] * (code - 32.0);
            }
        }
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => unreachable!("quantised types"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// Any bytes are valid codes, so random bytes exercise every bit of every layout.
        #[test]
        fn packing_loses_nothing(seed: u64, rows in 1usize..40, wide in 1usize..3) {
            for &ty in TensorType::ALL {
                let columns = 256 * wide;
                let bytes = ty.row_bytes(columns).unwrap();
                let mut state = seed;
                let mut file: Vec<u8> = (0..rows * bytes).map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (state >> 56) as u8
                }).collect();
                // Scales must be finite to compare: clear the exponent's top bit wherever it may lie.
                file.iter_mut().for_each(|byte| *byte &= 0xbf);
                let memory = Memory::zeroed(PackedMatrix::bytes(ty, rows, columns)).unwrap();
                // SAFETY: the block is the matrix's alone.
                let mut packed = unsafe { PackedMatrix::at(&Arc::new(memory), 0, ty, rows, columns) };
                let lines: Vec<&[u8]> = file.chunks_exact(bytes).collect();
                for (tile, rows) in packed.tiles_mut().zip(lines.chunks(TILE)) {
                    pack_tile(ty, columns, rows, tile);
                }
                let (mut expected, mut found) = (vec![0.0; columns], vec![f32::NAN; columns]);
                for (row, line) in lines.iter().enumerate() {
                    pianola_formats::dequantize_row(ty, line, &mut expected);
                    packed.row(row, &mut found);
                    prop_assert_eq!(&expected, &found, "{} row {}", ty, row);
                }
            }
        }
    }
}
