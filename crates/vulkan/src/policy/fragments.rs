//! How [`Shader::ProjectFragments`](crate::pipeline::Shader) cuts a product, and what it needs to
//! know of matrices in registers.

use super::Limits;
use crate::constants::matrix as id;
use crate::describe::GpuDescription;

/// Fewest rows of the operand that it is faster with than `ProjectRows`.
pub(crate) const LEAST_ROWS: u32 = 3;
/// Most rows of the operand that it is used for.
pub(crate) const MOST_ROWS: u32 = 64;

/// Most rows of the operand that a gate leaves for the next product as fragments. A launch less, which forms them, is
/// a gain of 4 % with 8 rows. With 32 the next product waits for them longer than that launch took: they were
/// written early, and the gate's weights have driven them out of the cache.
pub(crate) const MOST_GATE_ROWS: u32 = 16;

/// Where the elements of matrices lie in the registers of a subgroup: neighbouring invocations
/// share a row, so that an invocation holds the same columns of every so many rows. Which columns
/// does not matter, as long as they are the same in both operands of a product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fragments {
    /// Invocations that share a row.
    pub sharers: u32,
    /// Of the first factor, a pair of columns of all rows comes before the next pair.
    pub first_rows_first: bool,
    /// Of the second, whose columns are meant by rows.
    pub second_rows_first: bool,
    /// Rows of the operand in a matrix: those of the second factor.
    pub token_side: u32,
}

/// What a device answered: the place, side * row + column, of each invocation's elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places<'a> {
    pub subgroup: u32,
    pub side: u32,
    pub token_side: u32,
    /// Of the first factor of a product.
    pub first: &'a [u32],
    /// Of the second, rows and columns swapped.
    pub second: &'a [u32],
}

impl Fragments {
    /// From a device's answer, if it is an order that the kernel knows.
    pub fn of(places: &Places<'_>) -> Option<Fragments> {
        let &Places { subgroup, side, token_side, first, second } = places;
        // An invocation holds part of a vector of eight columns.
        let candidates = (0..=side.ilog2()).map(|power| 1 << power).filter(|sharers| {
            side / sharers <= 8 && sharers * token_side >= subgroup && *sharers <= subgroup
        });
        for sharers in candidates {
            let order = Order { subgroup, side, sharers };
            if let (Some(first), Some(second)) =
                (order.find(first, side), order.find(second, token_side))
                && first.1 == second.1
            {
                let (first_rows_first, second_rows_first) = (first.0, second.0);
                return Some(Fragments {
                    sharers,
                    first_rows_first,
                    second_rows_first,
                    token_side,
                });
            }
        }
        None
    }
}

/// An order that places may have.
struct Order {
    subgroup: u32,
    side: u32,
    sharers: u32,
}

impl Order {
    /// Whether places of a matrix of `all_rows` rows have this order, with rows first or not; and the columns of each
    /// invocation of a neighbourhood, one after another.
    fn find(&self, places: &[u32], all_rows: u32) -> Option<(bool, Vec<u32>)> {
        let &Order { subgroup, side, sharers } = self;
        let groups = subgroup / sharers;
        let (rows, columns) = (all_rows / groups, side / sharers);
        if places.len() != (all_rows * side) as usize {
            return None;
        }
        let at = |rows_first: bool, invocation: u32, row: u32, column: u32| {
            let element = match rows_first {
                true => (column / 2 * rows + row) * 2 + column % 2,
                false => row * columns + column,
            };
            places[(invocation * rows * columns + element) as usize]
        };
        // A single column has no pairs.
        let orders = [false, true].into_iter().filter(|rows_first| !rows_first || columns > 1);
        orders.into_iter().find_map(|rows_first| {
            let held: Vec<u32> = (0..sharers)
                .flat_map(|sharer| (0..columns).map(move |column| (sharer, column)))
                .map(|(sharer, column)| at(rows_first, sharer, 0, column))
                .collect();
            let mut all = held.clone();
            all.sort_unstable();
            let whole = all.into_iter().eq(0..side);
            let regular = (0..subgroup).all(|invocation| {
                (0..rows * columns).all(|index| {
                    let (row, column) = (index / columns, index % columns);
                    let expected = held[(invocation % sharers * columns + column) as usize];
                    at(rows_first, invocation, row, column)
                        == side * (invocation / sharers + groups * row) + expected
                })
            });
            (whole && regular).then_some((rows_first, held))
        })
    }
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
    pub fn constants(self, limits: &Limits) -> [(u32, u32); 6] {
        [
            (id::SIDE, limits.matrices),
            (id::ROWS_EACH, self.rows_each),
            (id::TOKENS_EACH, self.tokens_each),
            (id::ACROSS, 1),
            (id::ALONG, 1),
            (id::SPLIT, self.split),
        ]
    }
}

/// Rows of the operand in matrices whose side is `side`: eight of 16 where the device has such matrices, so that up to eight
/// rows take half of the products. Of other sides that would be fewer rows than a tile has to hold.
pub(crate) fn token_side(description: &GpuDescription, side: u32) -> u32 {
    let has_narrow = description
        .matrices
        .iter()
        .any(|shape| shape.size == [16, 8, 16] && shape.types == ["f16", "f32"]);
    if side == 16 && has_narrow { 8 } else { side }
}

/// Subgroups of the kernel for up to eight rows that are on a unit at once, as NVIDIA's cards have registers for.
const RESIDENT_SUBGROUPS: u32 = 24;

/// What a product multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Product {
    /// Weight rows, of both parts of a gate.
    pub rows: u32,
    /// Blocks of 32 columns.
    pub blocks: u32,
    /// Rows of the operand.
    pub count: u32,
    pub gate: bool,
}

/// The tile for a product. Eight subgroups share a piece, so that even products of few weight rows keep the device reading; four to
/// seven where there are many rows, as few as possible of them idle at the end; twelve for eight rows of the operand and many columns.
pub(crate) fn choose(limits: &Limits, product: &Product) -> FragmentsShape {
    let &Product { rows, blocks, count, gate } = product;
    let side = limits.matrices;
    let order = limits.fragments.expect("the kernel was chosen by it");
    let tokens_each = match count {
        0..=8 if order.token_side < side => 8,
        0..=16 => 16,
        17..=32 => 32,
        _ => 64,
    };
    let stages = blocks.div_ceil(order.sharers);
    let few_tokens = tokens_each <= 16;
    let filled = rows.div_ceil(32) * 4 * limits.subgroup >= limits.parallelism;
    // A gate's parts alternate within a piece; one of a single matrix has half a matrix of each.
    let single_matrix = gate && few_tokens && filled && limits.subgroup / order.sharers <= side / 2;
    let split = match tokens_each {
        _ if single_matrix => even_split(stages),
        8 if filled && limits.units > 0 => balanced_split(rows.div_ceil(32), stages, limits.units),
        8 | 16 if filled => 4,
        // Many columns: twelve subgroups read more at once.
        8 if stages >= 96 && stages.is_multiple_of(12) => 12,
        // Sums of 64 rows of the operand fill the registers: workgroups of half the size.
        64 => 4,
        _ => 8,
    };
    let invocations = rows.div_ceil(32) * split * limits.subgroup;
    // Fewer rows of the operand are read anew by more workgroups at less cost.
    let few = if few_tokens { limits.parallelism } else { limits.parallelism / 2 };
    let narrow = single_matrix || (!gate && tokens_each < 64 && invocations < few);
    // As many matrices of another side.
    let scaled = |each: u32| each * side / 16;
    FragmentsShape {
        rows_each: scaled(if narrow { 16 } else { 32 }),
        tokens_each: scaled(tokens_each),
        split,
        // More weight rows under way at once do without, and so do a gate's pieces of a single matrix.
        early: few_tokens && narrow && !gate,
    }
}

/// Subgroups that share a piece, of `workgroups` in all and with `stages` to divide among them, so that they end together: the
/// fewest places of all waves on the units stay empty, and the fewest turns of all subgroups over the stages.
fn balanced_split(workgroups: u32, stages: u32, units: u32) -> u32 {
    let used = |split: u32| {
        let places = units * (RESIDENT_SUBGROUPS / split);
        let waves = f64::from(workgroups.div_ceil(places) * places);
        let turns = f64::from(stages.div_ceil(split) * split);
        f64::from(workgroups) / waves * f64::from(stages) / turns
    };
    let best = [4, 5, 6, 7].into_iter().max_by(|&a, &b| used(a).total_cmp(&used(b)));
    best.expect("there are some")
}

/// Subgroups that share a piece of a gate that is a single matrix high: those with the fewest empty turns over the stages.
fn even_split(stages: u32) -> u32 {
    let turns = |split: &u32| stages.div_ceil(*split) * split;
    [6, 5, 7, 4].into_iter().min_by_key(turns).expect("there are some")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(token_side: u32) -> Limits {
        let (first_rows_first, second_rows_first) = (false, false);
        Limits {
            subgroup: 32,
            parallelism: 1 << 17,
            units: 132,
            shared_memory: 48 << 10,
            matrices: 16,
            byte_depth: 0,
            fragments: Some(Fragments {
                sharers: 4,
                first_rows_first,
                second_rows_first,
                token_side,
            }),
        }
    }

    #[test]
    fn tiles_suit_the_rows_and_the_device() {
        for (token_side, count) in
            [8, 16].into_iter().flat_map(|side| (2..=MOST_ROWS).map(move |count| (side, count)))
        {
            let limits = limits(token_side);
            for (rows, blocks, gate) in
                [(5376, 672, false), (43_008, 168, true), (256, 20, true), (262_144, 168, false)]
            {
                let shape = choose(&limits, &Product { rows, blocks, count, gate });
                assert!(shape.tokens_each >= count && shape.tokens_each.is_multiple_of(token_side));
                assert!(shape.rows_each.is_multiple_of(if gate && count > 16 { 32 } else { 16 }));
                // Sums pass through shared memory.
                let sums = 16 * shape.split * 16 * (shape.rows_each / 4 + 1);
                assert!(sums <= limits.shared_memory);
            }
        }
        // Few weight rows make small tiles.
        let rows_each = |rows: u32, count: u32| {
            choose(&limits(8), &Product { rows, blocks: 168, count, gate: false }).rows_each
        };
        assert_eq!(rows_each(5376, 8), 16);
        assert_eq!(rows_each(8192, 8), 16);
        assert_eq!(rows_each(8192, 32), 32);
    }

    /// Measured: Gemma 3 27B on an H200.
    #[test]
    fn subgroups_of_a_piece_end_together() {
        let split = |rows: u32, blocks: u32, gate: bool| {
            choose(&limits(8), &Product { rows, blocks, count: 8, gate }).split
        };
        assert_eq!(split(43_008, 168, true), 6);
        assert_eq!(split(65_536, 168, false), 6);
        assert_eq!(split(5376, 672, false), 12);
        assert_eq!(split(5376, 128, false), 8);
    }

    /// Places of matrices of 16 by 16 in 32 invocations, as NVIDIA's cards have them.
    fn pairs(rows_first: bool) -> Vec<u32> {
        let mut places = Vec::new();
        for invocation in 0..32 {
            for (outer, inner) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let (row, column) = if rows_first { (inner, outer) } else { (outer, inner) };
                let first = 16 * (invocation / 4 + 8 * row) + 2 * (invocation % 4) + 8 * column;
                places.extend([first, first + 1]);
            }
        }
        places
    }

    fn found(subgroup: u32, side: u32, first: &[u32], second: &[u32]) -> Option<Fragments> {
        let token_side = second.len() as u32 / side;
        Fragments::of(&Places { subgroup, side, token_side, first, second })
    }

    #[test]
    fn places_are_told_apart() {
        let expected = Fragments {
            sharers: 4,
            first_rows_first: true,
            second_rows_first: false,
            token_side: 16,
        };
        assert_eq!(found(32, 16, &pairs(true), &pairs(false)), Some(expected));
        // Matrices of eight rows of the operand: a row an invocation.
        let narrow: Vec<u32> = (0..32)
            .flat_map(|invocation| [0, 1, 8, 9].map(|column| (invocation, column)))
            .map(|(invocation, column)| 16 * (invocation / 4) + 2 * (invocation % 4) + column)
            .collect();
        assert_eq!(
            found(32, 16, &pairs(true), &narrow),
            Some(Fragments { token_side: 8, ..expected })
        );
        // A column for each of eight invocations, as Mesa's software driver has them.
        let columns: Vec<u32> = (0..64).map(|at| at % 8 * 8 + at / 8).collect();
        let expected = Fragments {
            sharers: 8,
            first_rows_first: false,
            second_rows_first: false,
            token_side: 8,
        };
        assert_eq!(found(8, 8, &columns, &columns), Some(expected));
    }

    #[test]
    fn other_places_are_refused() {
        let mut other = pairs(true);
        other.swap(0, 1);
        // Both operands' columns would have to change places.
        assert_eq!(found(32, 16, &other, &pairs(false)), None);
        let mut swapped = pairs(true);
        swapped.swap(0, 8);
        assert_eq!(found(32, 16, &swapped, &swapped), None);
        assert_eq!(found(32, 16, &[0; 256], &[0; 256]), None);
        assert_eq!(found(32, 16, &[], &[]), None);
        // Rows for each of 16 invocations and again for the other 16, as RDNA 3 has them.
        let copies: Vec<u32> = (0..256).map(|at| at / 8 % 16 * 16 + at % 8).collect();
        assert_eq!(found(32, 16, &copies, &copies), None);
    }
}
