//! How [`Shader::ProjectSingle`](crate::pipeline::Shader) cuts a product among invocations.

use super::Limits;
use super::rows::{Product, RowsShape};

/// Invocations of a workgroup, one for each unit: as many registers each as a unit's subgroups can
/// have, for blocks that are under way.
pub(crate) const WORKGROUP: u32 = 512;
/// Registers of an invocation that hold blocks under way, at most.
const WORDS_UNDER_WAY: u32 = 84;
/// As many as keep memory busy.
const ENOUGH_WORDS: u32 = 64;
/// As many as leave the compiler room for the rest.
const MANY_WORDS: u32 = 72;
/// Most blocks of a weight row that an invocation has under way.
const MOST_UNROLL: u32 = 14;
/// Most slices of a row.
const MOST_SLICES: u32 = 16;

/// Bytes that the sums of slices take at most. Rows are cut only where less than a third of the subgroups
/// have a group of them: 86 rows at most, in two parts and [`MOST_SLICES`]; half as much again for
/// parts that do not divide evenly.
pub(crate) const SUMS_BYTES: u32 = 86 * 2 * MOST_SLICES * 4 * 3 / 2;

/// Whether single rows are multiplied by `ProjectSingle`: where the number of units is known, and
/// each reads so fast that it waits for little else.
pub(crate) fn applies(limits: &Limits) -> bool {
    limits.units > 0
}

/// Workgroups of a launch.
pub(crate) fn workgroups(limits: &Limits) -> u32 {
    limits.units
}

/// Weight rows that a subgroup takes side by side.
pub(crate) fn group_rows(limits: &Limits, shape: &RowsShape) -> u32 {
    limits.subgroup / shape.row_invocations * shape.height
}

/// Parts of a product that a subgroup reads at once.
fn parts_at_once(product: &Product) -> u32 {
    if product.gate { 2 } else { 1 }
}

/// How many groups of rows the workgroup with the most has, if `workgroups` have those of `rows`
/// rows.
pub(crate) fn most_groups(limits: &Limits, shape: &RowsShape, rows: u32, workgroups: u32) -> u32 {
    rows.div_ceil(group_rows(limits, shape)).div_ceil(workgroups)
}

/// Slices that rows are cut into: as few as give a third of a workgroup's subgroups something to do.
/// Sums of slices meet behind a barrier, which costs more than subgroups that idle for a while.
pub(crate) fn slices(limits: &Limits, product: &Product, shape: &RowsShape) -> u32 {
    let batches = product.blocks.div_ceil(shape.row_invocations * shape.unroll);
    let each = most_groups(limits, shape, product.rows, workgroups(limits));
    let subgroups = shape.workgroup / limits.subgroup;
    let mut even = (1..=batches.min(MOST_SLICES)).filter(|&slices| batches.is_multiple_of(slices));
    even.find(|&slices| 3 * each * slices >= subgroups).unwrap_or(batches.min(MOST_SLICES))
}

/// The part of a workgroup's subgroups that have something to do, on average, until the last is done.
fn busy(limits: &Limits, product: &Product, shape: &RowsShape, slices: u32) -> f64 {
    let each = most_groups(limits, shape, product.rows, workgroups(limits));
    let (items, subgroups) = (each * slices, shape.workgroup / limits.subgroup);
    f64::from(items) / f64::from(items.next_multiple_of(subgroups))
}

/// All shapes worth trying for a product.
pub(crate) fn candidates(limits: &Limits, product: &Product) -> Vec<RowsShape> {
    let mut shapes = Vec::new();
    for row_invocations in [4, 8, 16, 32] {
        for (height, unroll) in
            [1, 2].into_iter().flat_map(|h| (1..=MOST_UNROLL).map(move |u| (h, u)))
        {
            let shape = RowsShape { workgroup: WORKGROUP, row_invocations, height, unroll };
            let fits = row_invocations <= limits.subgroup
                && row_invocations <= product.blocks.next_power_of_two().max(4);
            let words = product.words * height * unroll * parts_at_once(product);
            let moderate = height * unroll == 1 || words <= WORDS_UNDER_WAY;
            // Less than a batch more than a row has.
            let short = row_invocations * (unroll - 1) < product.blocks;
            if fits && moderate && short {
                shapes.push(shape);
            }
        }
    }
    shapes
}

/// Candidates, the most promising first: workgroups and subgroups that have the same to do, batches
/// that end where rows do, and many loads under way.
pub(crate) fn ranked(limits: &Limits, product: &Product) -> Vec<RowsShape> {
    let score = |shape: &RowsShape| {
        let share = |part: u32, of: u32| f64::from(part) / f64::from(of);
        let slices = slices(limits, product, shape);
        let batch = shape.row_invocations * shape.unroll * slices;
        let useful = share(product.blocks, product.blocks.next_multiple_of(batch));
        let groups = product.rows.div_ceil(group_rows(limits, shape));
        let each = groups.div_ceil(workgroups(limits));
        let even = share(groups, each * workgroups(limits));
        let words = product.words * shape.height * shape.unroll * parts_at_once(product);
        let under_way = share(words, ENOUGH_WORDS).min(1.0).powf(0.1);
        let crowded = if words > MANY_WORDS { 0.95 } else { 1.0 };
        // Neighbours read what lies side by side.
        let wide = 1.0 + 0.01 * f64::from(shape.row_invocations.ilog2());
        // Two rows at once read the input row once, which pays where that is refined.
        let tall = if shape.height > 1 && product.count == 1 { 0.96 } else { 1.0 };
        let met = if slices > 1 { 0.95 } else { 1.0 };
        let busy = busy(limits, product, shape, slices).powf(0.15);
        useful.powi(2) * even * busy * under_way * crowded * wide * tall * met
    };
    let mut shapes = candidates(limits, product);
    shapes.sort_by(|a, b| score(b).total_cmp(&score(a)));
    shapes
}

/// First workgroup of each part of a product, by the bytes of each, given as any multiple of them.
pub(crate) fn first_workgroups(bytes: &[u64], workgroups: u32) -> Vec<u32> {
    let all: u64 = bytes.iter().sum();
    let mut before = 0;
    let mut first = 0;
    let mut starts = Vec::new();
    for (index, &part) in bytes.iter().enumerate() {
        starts.push(first);
        before += part;
        let rest = (bytes.len() - index - 1) as u32;
        let end = ((before * u64::from(workgroups) + all / 2) / all.max(1)) as u32;
        first = end.clamp(first + 1, workgroups.saturating_sub(rest).max(first + 1));
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(subgroup: u32, units: u32) -> Limits {
        Limits {
            subgroup,
            units,
            parallelism: 1 << 17,
            shared_memory: 48 << 10,
            matrices: 0,
            byte_depth: 0,
            fragments: None,
        }
    }

    fn product(rows: u32, blocks: u32, words: u32, gate: bool) -> Product {
        let (count, codes, tail, fused, single) = (1, false, false, true, true);
        Product { rows, blocks, count, codes, tail, fused, single, gate, words }
    }

    #[test]
    fn parts_share_workgroups_by_their_bytes_and_each_has_one() {
        assert_eq!(first_workgroups(&[4096, 2048, 2048], 132), [0, 66, 99]);
        assert_eq!(first_workgroups(&[4096, 1024, 1024], 132), [0, 88, 110]);
        assert_eq!(first_workgroups(&[1_000_000, 1, 1], 4), [0, 2, 3]);
        assert_eq!(first_workgroups(&[7], 4), [0]);
    }

    #[test]
    fn batches_of_known_models_end_near_the_end_of_rows() {
        let limits = limits(32, 132);
        let products = [
            (8192, 168, 5, false),
            (5376, 128, 5, false),
            (21_504, 168, 5, true),
            (5376, 672, 5, false),
            (6912, 36, 9, true),
            (1152, 216, 9, false),
            (10_240, 80, 5, true),
            (2560, 320, 5, false),
            (14_336, 128, 6, true),
            (4096, 448, 6, false),
            (6144, 128, 6, false),
            (8192, 168, 9, false),
            (21_504, 168, 9, true),
            (262_144, 168, 5, false),
        ];
        for (rows, blocks, words, gate) in products {
            let product = product(rows, blocks, words, gate);
            let shape = ranked(&limits, &product)[0];
            let slices = slices(&limits, &product, &shape);
            let padded = blocks.next_multiple_of(shape.row_invocations * shape.unroll * slices);
            assert!(20 * (padded - blocks) <= blocks, "{product:?}: {shape:?}, {slices} slices");
        }
    }

    #[test]
    fn every_product_has_a_shape_that_fits_the_subgroup() {
        for (subgroup, units) in [(8, 1), (8, 5), (32, 132), (64, 20)] {
            let limits = limits(subgroup, units);
            for rows in [1, 40, 1536, 43_008, 262_144] {
                for blocks in [1, 2, 3, 13, 36, 168, 672] {
                    for gate in [false, true] {
                        let product = product(rows, blocks, 9, gate);
                        let shape = ranked(&limits, &product)[0];
                        assert!(shape.row_invocations <= subgroup, "{shape:?}");
                        assert!(slices(&limits, &product, &shape) >= 1);
                    }
                }
            }
        }
    }
}
