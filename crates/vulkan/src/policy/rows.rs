//! How [`Shader::ProjectRows`](crate::pipeline::Shader) cuts a product among lanes.

use super::Limits;

/// Lanes and rows of a workgroup.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct RowsShape {
    /// Lanes of a workgroup.
    pub workgroup: u32,
    /// Lanes that share a weight row.
    pub lanes: u32,
    /// Weight rows a lane carries at once.
    pub height: u32,
}

impl RowsShape {
    /// Weight rows of a workgroup.
    pub fn rows(self) -> u32 {
        self.workgroup / self.lanes * self.height
    }
}

/// All shapes worth trying for a product of `rows` weight rows of `blocks` blocks with `count`
/// rows of activations.
pub(crate) fn candidates(limits: &Limits, blocks: u32, count: u32) -> Vec<RowsShape> {
    let mut shapes = Vec::new();
    let heights: &[u32] = if count > 2 { &[1, 2] } else { &[1, 2, 4] };
    for workgroup in [64, 128, 256] {
        for lanes in [4, 8, 16, 32] {
            for &height in heights {
                if lanes <= limits.subgroup && workgroup >= limits.subgroup && lanes <= blocks.next_power_of_two() {
                    shapes.push(RowsShape { workgroup, lanes, height });
                }
            }
        }
    }
    shapes
}

/// The shape to use where nothing was measured: lanes seldom idle, enough workgroups to fill the
/// device, and otherwise as much for each as it can get, because each forms the input anew.
pub(crate) fn choose(limits: &Limits, rows: u32, blocks: u32, count: u32) -> RowsShape {
    let score = |shape: &RowsShape| {
        let used = f64::from(blocks) / f64::from(blocks.next_multiple_of(shape.lanes));
        let groups = rows.div_ceil(shape.rows());
        let filled = f64::from(groups * shape.workgroup) / f64::from(limits.parallelism);
        let ragged = f64::from(rows) / f64::from(groups * shape.rows());
        // Four rows at once cost registers, one leaves loads to wait for one another.
        let height = if shape.height == 2 { 1.0 } else { 0.97 };
        let wide = 1.0 + 0.01 * f64::from(shape.lanes.ilog2());
        used * filled.min(1.0).sqrt() * ragged * height * wide - 0.01 * f64::from(groups).log2()
    };
    candidates(limits, blocks, count)
        .into_iter()
        .max_by(|a, b| score(a).total_cmp(&score(b)))
        .unwrap_or(RowsShape { workgroup: limits.subgroup.max(64), lanes: 4, height: 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(subgroup: u32, parallelism: u32) -> Limits {
        Limits { subgroup, parallelism, shared_memory: 48 << 10, matrices: false }
    }

    #[test]
    fn lanes_fit_the_subgroup_and_the_row() {
        for (subgroup, parallelism) in [(8, 64), (32, 1 << 17), (64, 1 << 14)] {
            let limits = limits(subgroup, parallelism);
            for rows in [1, 64, 1536, 43_008, 262_144] {
                for blocks in [1, 2, 3, 18, 36, 168, 672] {
                    let shape = choose(&limits, rows, blocks, 1);
                    assert!(shape.lanes <= subgroup, "{shape:?}");
                    assert!(shape.workgroup.is_multiple_of(shape.lanes));
                    assert!(shape.workgroup >= subgroup);
                }
            }
        }
    }

    #[test]
    fn a_large_card_gets_enough_workgroups() {
        let limits = limits(32, 1 << 17);
        let shape = choose(&limits, 1536, 36, 1);
        assert!(1536 / shape.rows() >= 96, "{shape:?}");
        // 168 blocks are 21 for each of 8 lanes.
        let shape = choose(&limits, 43_008, 168, 1);
        assert_eq!(168 % shape.lanes, 0, "{shape:?}");
    }
}
