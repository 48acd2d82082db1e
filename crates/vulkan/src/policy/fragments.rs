//! How [`Shader::ProjectFragments`](crate::pipeline::Shader) cuts a product, and what it needs to
//! know of matrices in registers.

use super::Limits;
use crate::constants::matrix as id;

/// Side of the matrices that the kernel knows.
pub(crate) const SIDE: u32 = 16;
/// Fewest rows of the operand that it is faster with than `ProjectRows`.
pub(crate) const LEAST_ROWS: u32 = 3;
/// Most rows of the operand that the kernel takes.
pub(crate) const MOST_ROWS: u32 = 64;

/// Where the elements of matrices of 16 by 16 half floats lie: invocation i holds of rows
/// i / 4 and i / 4 + 8 the columns 2 (i % 4), the next one, and those 8 further on. These are four
/// pairs; their order is given here for each operand of a product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fragments {
    /// Of the first operand, both rows' pairs come before the next columns'.
    pub operand_rows_first: bool,
    /// Of the second, where weight rows are its columns.
    pub weights_rows_first: bool,
}

impl Fragments {
    /// From the place, 16 row + column, of each invocation's eight elements.
    pub fn of(operand: &[u32], weights: &[u32]) -> Option<Fragments> {
        Some(Fragments {
            operand_rows_first: rows_first(operand)?,
            weights_rows_first: rows_first(weights)?,
        })
    }
}

fn rows_first(places: &[u32]) -> Option<bool> {
    let place = |rows_first: bool, at: u32| {
        let (invocation, pair, second) = (at / 8, at % 8 / 2, at % 2);
        let (outer, inner) = (pair / 2, pair % 2);
        let (row, column) = if rows_first { (inner, outer) } else { (outer, inner) };
        SIDE * (invocation / 4 + 8 * row) + 2 * (invocation % 4) + 8 * column + second
    };
    [true, false].into_iter().find(|&rows_first| {
        places.len() == 256
            && (0..256).zip(places).all(|(at, &found)| found == place(rows_first, at))
    })
}

/// What a workgroup computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct FragmentsShape {
    /// Weight rows.
    pub rows_each: u32,
    /// Rows of the operand.
    pub tokens_each: u32,
    /// Subgroups that share the piece, each with columns of its own.
    pub split: u32,
    /// Weights of the next stage are on their way while one is multiplied: more registers.
    pub early: bool,
}

impl FragmentsShape {
    /// Invocations of a workgroup.
    pub fn workgroup(self, limits: &Limits) -> u32 {
        self.split * limits.subgroup
    }

    /// Constants of the tile, which is a single piece.
    pub fn constants(self) -> [(u32, u32); 6] {
        [
            (id::SIDE, SIDE),
            (id::ROWS_EACH, self.rows_each),
            (id::TOKENS_EACH, self.tokens_each),
            (id::ACROSS, 1),
            (id::ALONG, 1),
            (id::SPLIT, self.split),
        ]
    }
}

/// The tile for a product of `rows` weight rows (of both parts of a gate) with `count` rows. Eight
/// subgroups share a piece, so that even products of few weight rows keep the device reading; half
/// of them are enough where there are many.
pub(crate) fn choose(limits: &Limits, rows: u32, count: u32, gate: bool) -> FragmentsShape {
    let tokens_each = match count {
        0..=16 => 16,
        17..=32 => 32,
        _ => 64,
    };
    let filled = rows.div_ceil(32) * 4 * limits.subgroup >= limits.parallelism;
    let split = match tokens_each {
        16 if filled => 4,
        // Sums of 64 rows of the operand fill the registers: workgroups of half the size.
        64 => 4,
        _ => 8,
    };
    let invocations = rows.div_ceil(32) * split * limits.subgroup;
    // Fewer rows of the operand are read anew by more workgroups at less cost.
    let few = if tokens_each == 16 { limits.parallelism } else { limits.parallelism / 2 };
    // A gate's parts alternate within a piece.
    let narrow = !gate && tokens_each < 64 && invocations < few;
    FragmentsShape {
        rows_each: if narrow { SIDE } else { 2 * SIDE },
        tokens_each,
        split,
        early: tokens_each == 16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_suit_the_rows_and_the_device() {
        let limits = Limits {
            subgroup: 32,
            parallelism: 1 << 17,
            shared_memory: 48 << 10,
            matrices: 16,
            fragments: None,
        };
        for count in 2..=MOST_ROWS {
            for (rows, gate) in [(5376, false), (43_008, true), (256, true), (262_144, false)] {
                let shape = choose(&limits, rows, count, gate);
                assert!(shape.tokens_each >= count && shape.tokens_each.is_multiple_of(SIDE));
                assert!(shape.rows_each.is_multiple_of(if gate { 2 * SIDE } else { SIDE }));
                // Sums pass through shared memory.
                let sums = 16 * shape.split * SIDE * (shape.rows_each / 4 + 1);
                assert!(sums <= limits.shared_memory);
            }
        }
        // Few weight rows make small tiles.
        assert_eq!(choose(&limits, 5376, 8, false).rows_each, 16);
        assert_eq!(choose(&limits, 8192, 8, false).rows_each, 16);
        assert_eq!(choose(&limits, 8192, 32, false).rows_each, 32);
    }

    #[test]
    fn places_are_told_apart() {
        // As NVIDIA's cards have them: operands rows first, weights columns first.
        let place = |rows_first: bool| -> Vec<u32> {
            let mut places = Vec::new();
            for invocation in 0..32 {
                for (outer, inner) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    let (row, column) = if rows_first { (inner, outer) } else { (outer, inner) };
                    let first = 16 * (invocation / 4 + 8 * row) + 2 * (invocation % 4) + 8 * column;
                    places.extend([first, first + 1]);
                }
            }
            places
        };
        let found = Fragments::of(&place(true), &place(false));
        let expected = Fragments { operand_rows_first: true, weights_rows_first: false };
        assert_eq!(found, Some(expected));
        let mut other = place(true);
        other.swap(0, 1);
        assert_eq!(Fragments::of(&other, &place(false)), None);
        assert_eq!(Fragments::of(&[0; 256], &[0; 256]), None);
    }
}
