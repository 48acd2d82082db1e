//! Where attention runs on matrix units, and how
//! [`Shader::AttentionMatrix`](crate::pipeline::Shader) cuts it.

use super::Limits;
use crate::constants::attention_matrix as id;
use crate::step::BLOCK_ROWS;
use pianola_plan::{AttentionSpec, KvType, Numeric, PlanOptions};

/// Fewest rows of a play. Below, most of a matrix would be empty, and the kernel that cuts the pages
/// of a row into parts fills more of the device.
const LEAST_ROWS: u32 = 64;

/// How a workgroup divides a block of rows and its tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AttentionTile {
    /// Subgroups of a workgroup.
    pub subgroups: u32,
    /// Subgroups that share a matrix of rows: each has some tokens of the scores and some columns of
    /// the result.
    pub split: u32,
    /// Tokens that are in shared memory at once.
    pub tokens: u32,
    /// Whether queries stay in registers, which takes fewer bytes of shared memory.
    pub keep: bool,
}

impl AttentionTile {
    /// Rows of a workgroup.
    pub fn rows(self, limits: &Limits) -> u32 {
        self.subgroups / self.split * limits.matrices
    }

    /// Workgroups that share a block of the step.
    pub fn parts(self, limits: &Limits) -> u32 {
        BLOCK_ROWS as u32 / self.rows(limits)
    }

    /// Invocations of a workgroup.
    fn workgroup(self, limits: &Limits) -> u32 {
        self.subgroups * limits.subgroup
    }

    /// Bytes that a workgroup shares: keys or values, scores, weights and queries; later the result.
    fn shared_memory(self, limits: &Limits, head_dim: u32) -> u32 {
        let (rows, stride) = (self.rows(limits), head_dim / 8 + 1);
        let tile = self.tokens * stride;
        let softmax = rows * (self.tokens / 4 + 1 + self.tokens / 8 + 1);
        let queries = rows * stride;
        let result = rows * (head_dim / 4 + 1);
        let looped = match self.keep {
            true => (tile + softmax).max(queries),
            false => tile + softmax + queries,
        };
        16 * looped.max(result) + 4 * rows
    }

    /// Whether matrices divide it evenly and a workgroup has room for it.
    fn fits(self, limits: &Limits, head_dim: u32) -> bool {
        let matrix = limits.matrices * self.split;
        // Sums of more columns would leave a subgroup too few registers.
        head_dim / self.split <= MOST_COLUMNS
            && head_dim.is_multiple_of(matrix)
            && self.tokens.is_multiple_of(matrix)
            && self.subgroups.is_multiple_of(self.split)
            && (limits.subgroup * self.split).is_multiple_of(limits.matrices)
            && (BLOCK_ROWS as u32).is_multiple_of(self.rows(limits))
            && self.shared_memory(limits, head_dim) <= limits.shared_memory
    }

    /// Constants of the tile.
    pub fn constants(self, limits: &Limits) -> [(u32, u32); 5] {
        [
            (id::WORKGROUP, self.workgroup(limits)),
            (id::SIDE, limits.matrices),
            (id::TOKENS, self.tokens),
            (id::SPLIT, self.split),
            (id::KEEP, u32::from(self.keep)),
        ]
    }
}

/// Most columns of the result that a subgroup sums.
const MOST_COLUMNS: u32 = 128;

const fn tile(subgroups: u32, split: u32, tokens: u32) -> AttentionTile {
    AttentionTile { subgroups, split, tokens, keep: false }
}

/// The tile of a large card, which has registers for queries.
const LARGE: AttentionTile = AttentionTile { keep: true, ..tile(4, 1, 64) };

/// Tiles of any device, best first.
const TILES: [AttentionTile; 5] =
    [tile(4, 1, 32), tile(4, 2, 32), tile(2, 2, 32), tile(4, 1, 16), tile(2, 1, 16)];

/// The tile for a play of `rows` rows, or none where attention stays on scalar lanes: without matrix
/// units, with few rows, and in exact mode, because queries and weights become half floats. Keys and
/// values must be half floats already. Reproducible results need one kernel for all row counts, which
/// is that for a single row.
pub(crate) fn choose(
    limits: &Limits,
    options: &PlanOptions,
    rows: u32,
    (spec, kv_type): (&AttentionSpec, KvType),
) -> Option<AttentionTile> {
    let allowed = options.numeric == Numeric::Fast && !options.reproducible;
    if limits.matrices == 0 || !allowed || kv_type != KvType::F16 || rows < LEAST_ROWS {
        return None;
    }
    let large = (limits.parallelism >= 1 << 16).then_some(LARGE);
    let mut tiles = large.into_iter().chain(TILES);
    tiles.find(|tile| tile.fits(limits, spec.head_dim as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pianola_plan::KvSlot;

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

    fn options() -> PlanOptions {
        PlanOptions {
            numeric: Numeric::Fast,
            kv_type: None,
            max_rows: 512,
            max_logit_rows: 1,
            context: 512,
            sequences: 1,
            kv_bytes: None,
            fusion: true,
            reproducible: false,
        }
    }

    fn chosen(limits: &Limits, head_dim: usize, rows: u32) -> Option<AttentionTile> {
        let kv = KvSlot { group: 0, layer: 0 };
        let (heads, kv_heads, scale) = (4, 2, 1.0);
        let (window, soft_cap) = (None, None);
        let spec = AttentionSpec { kv, heads, kv_heads, head_dim, scale, window, soft_cap };
        choose(limits, &options(), rows, (&spec, KvType::F16))
    }

    #[test]
    fn tiles_fit_and_matrices_divide_them() {
        let devices = [
            limits(32, 1 << 17, 48 << 10, 16),
            limits(32, 1 << 14, 64 << 10, 16),
            limits(64, 1 << 14, 32 << 10, 16),
            limits(8, 1 << 8, 32 << 10, 8),
        ];
        for limits in devices {
            for head_dim in [64, 80, 96, 128, 256] {
                let tile = chosen(&limits, head_dim, 64).expect("a usual head");
                let head_dim = head_dim as u32;
                assert!(tile.shared_memory(&limits, head_dim) <= limits.shared_memory, "{tile:?}");
                assert!(tile.workgroup(&limits) <= 512, "{tile:?}");
                assert_eq!(tile.rows(&limits) * tile.parts(&limits), 64, "{tile:?}");
                // The softmax shares a row between the invocations of one subgroup.
                let lanes = tile.workgroup(&limits) / tile.rows(&limits);
                assert!(lanes.is_power_of_two() && lanes <= limits.subgroup, "{tile:?}");
            }
        }
        assert_eq!(chosen(&devices[0], 128, 512), Some(LARGE));
        assert_eq!(chosen(&devices[0], 256, 512), Some(tile(4, 2, 32)));
    }

    #[test]
    fn scalar_lanes_keep_what_matrix_units_cannot_do() {
        let card = limits(32, 1 << 17, 48 << 10, 16);
        assert_eq!(chosen(&card, 128, 32), None);
        assert_eq!(chosen(&card, 72, 512), None);
        assert_eq!(chosen(&Limits { matrices: 0, ..card }, 128, 512), None);
    }
}
