//! How [`Shader::ProjectRotated`](crate::pipeline::Shader) cuts a product into tiles, and which
//! products it can compute.

use super::{Limits, fragments};
use crate::constants::project_rotated as id;

/// Fewest rows of the operand that it is used for.
pub(crate) const LEAST_ROWS: u32 = fragments::MOST_ROWS + 1;
/// Fewest weights of a model's layers that a card keeps in this form by itself. What it rounds shows more the smaller a model
/// is, whose prompts take little time anyway: on an H200 the perplexity of Gemma 3 270M rose by 0.54 %, that of Qwen2.5-Coder 1.5B
/// fell by 0.16 % (`bench/runs/2026-11-18-h200-quality`).
pub(crate) const LEAST_WEIGHTS: u64 = 500_000_000;

/// Columns of a row that lie side by side in both sides of a product.
pub(crate) const CHUNK: u32 = 128;
/// Most columns whose products of int8 can be summed in an int32.
const MOST_COLUMNS: usize = (i32::MAX / (127 * 127)) as usize;

/// Columns of the blocks that a row of `columns` is rotated in; none where that would be too few to
/// spread large values, or where a sum might overflow.
pub(crate) fn rotation(columns: usize) -> Option<u32> {
    let block = 1 << columns.trailing_zeros().min(CHUNK.ilog2());
    (block >= 64 && columns <= MOST_COLUMNS).then_some(block)
}

/// Rows that the operand of a play of `rows` rows has room for: whole tiles.
pub(crate) fn operand_rows(rows: u32) -> u32 {
    rows.next_multiple_of(128)
}

/// A tile, which subgroups along the weight rows and along the operand's rows divide. Of a gate, the
/// first half along the weight rows has one part, the second the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct RotatedShape {
    /// Weight rows of a subgroup's piece.
    pub rows_each: u32,
    /// Rows of the operand of a subgroup's piece.
    pub tokens_each: u32,
    /// Subgroups along the weight rows.
    pub across: u32,
    /// Subgroups along the operand's rows.
    pub along: u32,
}

impl RotatedShape {
    /// Weight rows of a workgroup.
    pub fn rows(self) -> u32 {
        self.across * self.rows_each
    }

    /// Rows of the operand of a workgroup.
    pub fn tokens(self) -> u32 {
        self.along * self.tokens_each
    }

    /// Subgroups of a workgroup.
    fn pieces(self) -> u32 {
        self.across * self.along
    }

    /// Invocations of a workgroup.
    pub fn workgroup(self, limits: &Limits) -> u32 {
        self.pieces() * limits.subgroup
    }

    /// Bytes that a workgroup shares: a chunk, and later the sums of a row of matrices.
    pub fn shared_memory(self, limits: &Limits) -> u32 {
        let tiles = (self.rows() + self.tokens()) * (CHUNK + 16);
        let sums = self.pieces() * limits.matrices * 4 * (self.rows_each + 4);
        tiles.max(sums)
    }

    /// Constants of the tile.
    pub fn constants(self, limits: &Limits) -> [(u32, u32); 7] {
        [
            (id::WORKGROUP, self.workgroup(limits)),
            (id::SIDE, limits.matrices),
            (id::DEPTH, limits.byte_depth),
            (id::ROWS_EACH, self.rows_each),
            (id::TOKENS_EACH, self.tokens_each),
            (id::ACROSS, self.across),
            (id::ALONG, self.along),
        ]
    }
}

/// Tiles of matrices of 16 by 16, and microseconds that a wave of them takes on a large card for a row
/// of 5,376 columns.
const TILES: [(RotatedShape, u32); 4] = [
    (quartered(64, 64), 74),
    (quartered(48, 64), 57),
    (quartered(32, 64), 47),
    (quartered(32, 32), 30),
];

/// A tile of two by two pieces.
const fn quartered(rows_each: u32, tokens_each: u32) -> RotatedShape {
    RotatedShape { rows_each, tokens_each, across: 2, along: 2 }
}

/// The tiles that fit a device, with what each costs.
fn fitting(limits: &Limits) -> impl Iterator<Item = (RotatedShape, u32)> {
    let of_side = |each: u32| each * limits.matrices / 16;
    let scaled = move |(shape, cost): (RotatedShape, u32)| {
        let rows_each = of_side(shape.rows_each);
        (RotatedShape { rows_each, tokens_each: of_side(shape.tokens_each), ..shape }, cost)
    };
    let fits = |tile: &(RotatedShape, u32)| tile.0.shared_memory(limits) <= limits.shared_memory;
    TILES.into_iter().map(scaled).filter(fits)
}

/// Whether a workgroup has room for a tile.
pub(crate) fn has_room(limits: &Limits) -> bool {
    fitting(limits).next().is_some()
}

/// The tile for a product of `rows` weight rows (of both parts of a gate) with `count` rows: the one
/// whose waves take the least time.
///
/// # Panics
/// Unless the device [`has_room`].
pub(crate) fn choose(limits: &Limits, rows: u32, count: u32) -> RotatedShape {
    let tiles = fitting(limits);
    let cost = |&(shape, cost): &(RotatedShape, u32)| {
        let tiles = rows.div_ceil(shape.rows()) * count.div_ceil(shape.tokens());
        // Two workgroups of four subgroups are a quarter of the invocations that a unit holds.
        let at_once = (limits.parallelism / 4 / shape.workgroup(limits)).max(1);
        tiles.div_ceil(at_once) * cost
    };
    tiles.min_by_key(cost).expect("devices without room keep no such weights").0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(subgroup: u32, parallelism: u32, shared_memory: u32, matrices: u32) -> Limits {
        let byte_depth = if matrices == 8 { 8 } else { 32 };
        Limits {
            subgroup,
            parallelism,
            units: 0,
            shared_memory,
            matrices,
            byte_depth,
            fragments: None,
        }
    }

    #[test]
    fn rows_are_rotated_in_blocks_of_128_or_64() {
        assert_eq!(rotation(5376), Some(128));
        assert_eq!(rotation(4096), Some(128));
        assert_eq!(rotation(576), Some(64));
        assert_eq!(rotation(96), None);
        // Products of 127 by 127, all of one sign, stay below the largest int32.
        let longest = (1..2000).map(|chunks| 128 * chunks).filter(|&n| rotation(n).is_some()).max();
        let longest = longest.expect("rows that can be rotated") as u64;
        assert!(127 * 127 * longest < 1 << 31 && 127 * 127 * (longest + 128) >= 1 << 31);
    }

    #[test]
    fn tiles_fit_and_divide_the_operand() {
        for limits in [
            limits(32, 1 << 17, 48 << 10, 16),
            limits(64, 1 << 14, 32 << 10, 16),
            limits(8, 1 << 8, 32 << 10, 8),
        ] {
            for (rows, count) in [(64, 128), (5376, 512), (43_008, 256), (1152, 512), (5376, 64)] {
                let shape = choose(&limits, rows, count);
                assert!(shape.shared_memory(&limits) <= limits.shared_memory, "{shape:?}");
                assert!(shape.rows_each.is_multiple_of(limits.matrices), "{shape:?}");
                assert!(shape.tokens_each.is_multiple_of(limits.matrices), "{shape:?}");
                assert!(operand_rows(count).is_multiple_of(shape.tokens()), "{shape:?}");
            }
        }
    }

    #[test]
    fn devices_with_the_least_shared_memory_have_no_tile() {
        assert!(!has_room(&limits(32, 1 << 14, 16 << 10, 16)));
        assert!(has_room(&limits(32, 1 << 14, 32 << 10, 16)));
    }

    #[test]
    fn tiles_fill_the_waves_of_a_large_card() {
        let card = limits(32, 1 << 17, 48 << 10, 16);
        let rows_each = |rows, count| choose(&card, rows, count).rows_each;
        // 7 waves of 57 µs instead of 6 of 74.
        assert_eq!(rows_each(43_008, 512), 48);
        // One wave of either: 168 tiles, or 224 that are smaller.
        assert_eq!(rows_each(5376, 512), 48);
        // Exactly a wave, instead of two.
        assert_eq!(rows_each(8192, 512), 64);
        // Few tiles are better small.
        assert_eq!(choose(&card, 1152, 128).tokens(), 64);
    }
}
