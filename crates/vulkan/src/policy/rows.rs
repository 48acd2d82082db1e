//! How [`Shader::ProjectRows`](crate::pipeline::Shader) cuts a product among invocations.

use super::Limits;

/// Invocations and rows of a workgroup.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct RowsShape {
    /// Invocations of a workgroup.
    pub workgroup: u32,
    /// Invocations that share a weight row.
    pub row_invocations: u32,
    /// Weight rows an invocation carries at once.
    pub height: u32,
    /// Blocks of each that it has in flight at once.
    pub unroll: u32,
}

impl RowsShape {
    /// Weight rows of a workgroup.
    pub fn rows(self) -> u32 {
        self.workgroup / self.row_invocations * self.height
    }
}

/// A product that is to be cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Product {
    /// Weight rows.
    pub rows: u32,
    /// Blocks of a row.
    pub blocks: u32,
    /// Rows of activations.
    pub count: u32,
    /// Outputs become codes: a workgroup must hold whole blocks of them.
    pub codes: bool,
    /// The last workgroup forms a whole row: it must be large.
    pub tail: bool,
    /// Every workgroup forms the input anew: the fewer, the better.
    pub fused: bool,
}

/// Blocks that an invocation may have in flight. A large card needs many loads in flight; a small
/// GPU on a slow bus has enough with few, and keeps its registers for more subgroups.
fn at_once(limits: &Limits) -> u32 {
    if limits.parallelism >= 1 << 16 { 8 } else { 4 }
}

/// Workgroups that every device launches at once.
const MOST_WORKGROUPS: u32 = 65_535;

/// All shapes worth trying for a product.
pub(crate) fn candidates(limits: &Limits, product: &Product) -> Vec<RowsShape> {
    let heights = [1u32, 2, 4];
    let mut shapes = Vec::new();
    for workgroup in [64, 128, 256] {
        for row_invocations in [4, 8, 16, 32] {
            for (height, unroll) in heights.iter().flat_map(|&h| [(h, 1), (h, 2), (h, 4)]) {
                let shape = RowsShape { workgroup, row_invocations, height, unroll };
                let fits = row_invocations <= limits.subgroup
                    && workgroup >= limits.subgroup
                    && row_invocations <= product.blocks.next_power_of_two().max(4);
                let whole = !product.codes || shape.rows().is_multiple_of(32);
                let launchable = product.rows.div_ceil(shape.rows()) <= MOST_WORKGROUPS;
                // More loads at once than registers bear, or than a row has.
                let moderate = (height * unroll == 1
                    || height * unroll * product.count <= at_once(limits))
                    && row_invocations * unroll <= product.blocks.max(row_invocations);
                if fits && whole && moderate && launchable && (!product.tail || workgroup == 256) {
                    shapes.push(shape);
                }
            }
        }
    }
    shapes
}

/// The shape to use where nothing was measured.
pub(crate) fn choose(limits: &Limits, product: &Product) -> RowsShape {
    let ranked = ranked(limits, product);
    let fallback = RowsShape { workgroup: 256, row_invocations: 4, height: 1, unroll: 1 };
    ranked.first().copied().unwrap_or(fallback)
}

/// Candidates, the most promising first: invocations seldom idle, enough workgroups to fill the
/// device, and otherwise as much for each as it can get, because some form the input anew.
pub(crate) fn ranked(limits: &Limits, product: &Product) -> Vec<RowsShape> {
    let Product { rows, blocks, .. } = *product;
    let score = |shape: &RowsShape| {
        // Idle invocations cost less than reads that are not side by side.
        let used = f64::from(blocks) / f64::from(blocks.next_multiple_of(shape.row_invocations));
        let groups = rows.div_ceil(shape.rows());
        let filled = f64::from(groups * shape.workgroup) / f64::from(limits.parallelism);
        let ragged = f64::from(rows) / f64::from(groups * shape.rows());
        // Loads in flight hide the latency of memory.
        let height = match shape.height * shape.unroll * product.count {
            8.. => 1.0,
            4..8 => 0.99,
            2..4 => 0.96,
            _ => 0.92,
        };
        let each = if product.fused { 0.05 } else { 0.01 };
        let wide = 1.0 + 0.03 * f64::from(shape.row_invocations.ilog2());
        used.sqrt() * filled.min(1.0).sqrt() * ragged * height * wide
            - each * f64::from(groups).log2()
    };
    let mut shapes = candidates(limits, product);
    shapes.sort_by(|a, b| score(b).total_cmp(&score(a)));
    shapes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(subgroup: u32, parallelism: u32) -> Limits {
        Limits {
            subgroup,
            parallelism,
            shared_memory: 48 << 10,
            matrices: 0,
            byte_depth: 0,
            fragments: None,
        }
    }

    fn product(rows: u32, blocks: u32) -> Product {
        Product { rows, blocks, count: 1, codes: false, tail: false, fused: false }
    }

    #[test]
    fn codes_come_in_whole_blocks_and_tails_in_large_workgroups() {
        for subgroup in [8, 32, 64] {
            let limits = limits(subgroup, 1 << 17);
            let coded = Product { codes: true, ..product(21_504, 168) };
            assert_eq!(choose(&limits, &coded).rows() % 32, 0);
            let tail = Product { tail: true, ..product(5376, 672) };
            assert_eq!(choose(&limits, &tail).workgroup, 256);
        }
    }

    #[test]
    fn lanes_fit_the_subgroup_and_the_row() {
        for (subgroup, parallelism) in [(8, 64), (32, 1 << 17), (64, 1 << 14)] {
            let limits = limits(subgroup, parallelism);
            for rows in [1, 64, 1536, 43_008, 262_144] {
                for blocks in [1, 2, 3, 18, 36, 168, 672] {
                    let shape = choose(&limits, &product(rows, blocks));
                    assert!(shape.row_invocations <= subgroup, "{shape:?}");
                    assert!(shape.workgroup.is_multiple_of(shape.row_invocations));
                    assert!(shape.workgroup >= subgroup);
                }
            }
        }
    }

    #[test]
    fn a_large_card_gets_enough_workgroups() {
        let limits = limits(32, 1 << 17);
        let shape = choose(&limits, &product(1536, 36));
        assert!(1536 / shape.rows() >= 96, "{shape:?}");
        // A large product keeps eight blocks an invocation in flight.
        let shape = choose(&limits, &product(43_008, 168));
        assert!(shape.row_invocations >= 8 && shape.height * shape.unroll == 8, "{shape:?}");
    }
}
