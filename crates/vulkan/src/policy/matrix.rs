//! How [`Shader::ProjectMatrix`](crate::pipeline::Shader) cuts a product into tiles.

use super::Limits;
use crate::constants::{matrix as id, project_matrix};

/// A tile and how the subgroups of a workgroup divide it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct MatrixShape {
    /// Weight rows of a subgroup's piece.
    pub rows_each: u32,
    /// Rows of the operand of a subgroup's piece.
    pub tokens_each: u32,
    /// Pieces side by side along the weight rows.
    pub across: u32,
    /// Pieces side by side along the operand's rows.
    pub along: u32,
    /// Subgroups that share a piece, each with columns of its own.
    pub split: u32,
    /// Blocks of 32 columns that are in shared memory at once.
    pub step: u32,
}

impl MatrixShape {
    /// Weight rows of a workgroup.
    pub fn rows(self) -> u32 {
        self.rows_each * self.across
    }

    /// Rows of the operand of a workgroup.
    pub fn tokens(self) -> u32 {
        self.tokens_each * self.along
    }

    /// Invocations of a workgroup.
    pub fn workgroup(self, limits: &Limits) -> u32 {
        self.across * self.along * self.split * limits.subgroup
    }

    /// Bytes that a workgroup shares: a step's tiles, and later the sums of a row of matrices.
    pub fn shared_memory(self, limits: &Limits) -> u32 {
        let tiles = (self.rows() + self.tokens()) * (4 * self.step + 1);
        let subgroups = self.across * self.along * self.split;
        let sums = subgroups * limits.matrices * (self.rows_each / 4 + 1);
        16 * tiles.max(sums)
    }

    /// The same for weights of f32, which take eight times the registers of four bits on their way: half as much at a time
    /// where invocations would have several blocks of them.
    pub fn with_wide_weights(self, limits: &Limits) -> MatrixShape {
        let several = self.rows() * self.step > self.workgroup(limits);
        let step = if several && self.split == 1 { (self.step / 2).max(1) } else { self.step };
        MatrixShape { step, ..self }
    }

    /// The same with as many matrices of another side than 16.
    fn of_side(self, side: u32) -> MatrixShape {
        let scaled = |each: u32| each * side / 16;
        MatrixShape {
            rows_each: scaled(self.rows_each),
            tokens_each: scaled(self.tokens_each),
            step: scaled(self.step).max(1),
            ..self
        }
    }

    /// Constants of the tile.
    pub fn constants(self, limits: &Limits) -> [(u32, u32); 7] {
        [
            (id::SIDE, limits.matrices),
            (id::ROWS_EACH, self.rows_each),
            (id::TOKENS_EACH, self.tokens_each),
            (id::ACROSS, self.across),
            (id::ALONG, self.along),
            (id::SPLIT, self.split),
            (project_matrix::STEP, self.step),
        ]
    }
}

/// A tile of `pieces` of `each`, rows first, whose subgroups see all columns. Here and below pieces
/// are of matrices of 16 by 16, and their sums are registers: 16 matrices, the most, are 128 of them.
const fn tile(each: [u32; 2], pieces: [u32; 2], step: u32) -> MatrixShape {
    MatrixShape {
        rows_each: each[0],
        tokens_each: each[1],
        across: pieces[0],
        along: pieces[1],
        split: 1,
        step,
    }
}

/// The same with `split` subgroups for a piece. Few rows of the operand make small tiles, whose
/// workgroups would otherwise have few loads in flight.
const fn split(each: [u32; 2], pieces: [u32; 2], split: u32, step: u32) -> MatrixShape {
    MatrixShape { split, ..tile(each, pieces, step) }
}

/// The tile for many outputs, on a large card.
const LARGE: MatrixShape = tile([64, 64], [2, 2], 2);
/// The same with fewer rows: more tiles, where those would leave most of the device idle in the end.
/// Not for a gate, whose parts alternate within a piece.
const NARROW: MatrixShape = tile([48, 64], [2, 2], 2);

/// Tiles for a number of operand rows, largest first: the more outputs a piece has, the less of
/// its time goes into reading shared memory, and the more a tile has, into dequantising.
fn candidates(count: u32) -> &'static [MatrixShape] {
    const TOKENS_16: [MatrixShape; 2] =
        [split([32, 16], [2, 1], 4, 4), split([32, 16], [1, 1], 8, 8)];
    const TOKENS_32: [MatrixShape; 2] =
        [split([32, 32], [2, 1], 4, 4), split([32, 32], [1, 1], 4, 4)];
    const TOKENS_64: [MatrixShape; 2] = [tile([32, 32], [4, 2], 2), tile([32, 32], [2, 2], 2)];
    const TOKENS_128: [MatrixShape; 2] = [tile([64, 32], [2, 4], 2), tile([64, 32], [1, 4], 2)];
    match count {
        0..=16 => &TOKENS_16,
        17..=32 => &TOKENS_32,
        33..=64 => &TOKENS_64,
        _ => &TOKENS_128,
    }
}

/// The tile for a product of `rows` weight rows (of both parts of a gate) with `count` rows: the
/// largest of which there are enough to fill half of the device's invocations, which is what the
/// registers of such kernels let it hold; failing that, the smallest.
pub(crate) fn choose(limits: &Limits, rows: u32, count: u32, gate: bool) -> MatrixShape {
    // Pieces of 64 by 64 read half as much shared memory for a product, and leave room for two
    // workgroups on a unit of a large card: it needs many outputs to be full.
    let outputs = u64::from(rows) * u64::from(count);
    let large = LARGE.of_side(limits.matrices);
    let fits = |shape: &MatrixShape| shape.shared_memory(limits) <= limits.shared_memory;
    if limits.parallelism >= 1 << 16
        && fits(&large)
        && outputs > 16 * u64::from(limits.parallelism)
        && count > 64
    {
        // What a wave of tiles costs does not depend on how many of them there are. Two workgroups of
        // four subgroups are a quarter of the invocations that a unit holds.
        let cost = |shape: &MatrixShape| {
            let tiles = rows.div_ceil(shape.rows()) * count.div_ceil(shape.tokens());
            let at_once = limits.parallelism / 4 / shape.workgroup(limits);
            tiles.div_ceil(at_once) * shape.rows()
        };
        let narrow = NARROW.of_side(limits.matrices);
        return if !gate && cost(&narrow) < cost(&large) { narrow } else { large };
    }
    let candidates = candidates(count).iter().map(|shape| shape.of_side(limits.matrices));
    let shapes: Vec<MatrixShape> = candidates.filter(fits).collect();
    let enough = |shape: &&MatrixShape| {
        let tiles = rows.div_ceil(shape.rows()) * count.div_ceil(shape.tokens());
        tiles * shape.workgroup(limits) >= limits.parallelism / 2
    };
    let found = shapes.iter().find(enough).or(shapes.last());
    found.copied().unwrap_or(tile([32, 32], [2, 1], 1).of_side(limits.matrices))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(subgroup: u32, parallelism: u32, shared_memory: u32, matrices: u32) -> Limits {
        Limits {
            subgroup,
            parallelism,
            units: 0,
            byte_depth: 0,
            shared_memory,
            matrices,
            fragments: None,
        }
    }

    fn all() -> Vec<Limits> {
        vec![
            limits(32, 1 << 17, 48 << 10, 16),
            limits(32, 1 << 14, 64 << 10, 16),
            limits(64, 1 << 14, 32 << 10, 16),
            limits(8, 1 << 8, 32 << 10, 8),
        ]
    }

    #[test]
    fn tiles_fit_shared_memory_and_pieces_are_whole_matrices() {
        for limits in all() {
            for (rows, gate) in
                [(1, false), (64, true), (5376, false), (5376, true), (43_008, true)]
            {
                for count in [9, 16, 32, 64, 128, 256, 512] {
                    let chosen = choose(&limits, rows, count, gate);
                    for shape in [chosen, chosen.with_wide_weights(&limits)] {
                        assert!(shape.shared_memory(&limits) <= limits.shared_memory, "{shape:?}");
                        assert!(shape.workgroup(&limits) <= 512, "{shape:?}");
                        assert!(shape.tokens() <= 16 || shape.tokens() < 2 * count, "{shape:?}");
                        // A gate's parts alternate within a piece.
                        let parts = if gate { 2 } else { 1 };
                        assert!(
                            shape.rows_each.is_multiple_of(parts * limits.matrices),
                            "{shape:?}"
                        );
                        assert!(shape.tokens_each.is_multiple_of(limits.matrices), "{shape:?}");
                        // Every subgroup of a piece has columns, in whole matrices.
                        assert!((32 * shape.step / shape.split).is_multiple_of(limits.matrices));
                    }
                }
            }
        }
    }

    #[test]
    fn tiles_shrink_until_the_device_is_full() {
        let card = limits(32, 1 << 17, 48 << 10, 16);
        let tile = |rows, count| {
            let shape = choose(&card, rows, count, false);
            (shape.rows(), shape.tokens())
        };
        assert_eq!(choose(&card, 43_008, 512, true), LARGE);
        // One wave of either: 168 tiles, or 224 that take three quarters of the time.
        assert_eq!(choose(&card, 5376, 512, false), NARROW);
        assert_eq!(choose(&card, 5376, 512, true), LARGE);
        // Exactly a wave.
        assert_eq!(choose(&card, 8192, 512, false), LARGE);
        assert_eq!(tile(5376, 256), (64, 128));
        assert_eq!(tile(43_008, 64), (128, 64));
        assert_eq!(tile(43_008, 16), (64, 16));
        assert_eq!(tile(5376, 16), (32, 16));
        let chip = limits(32, 1 << 14, 64 << 10, 16);
        assert_eq!(choose(&chip, 2560, 512, false).rows(), 128);
    }
}
