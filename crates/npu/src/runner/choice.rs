//! Which of several shapes computes a product with the least work.

use crate::package::{MatmulSpec, Shape};

/// Multiplications that the array does in the time that a command in a chain costs besides: 37 µs, at
/// 10^12 multiplications a second. Both are others' measurements on npu1.
const COMMAND: u64 = 37_000_000;

/// What the device was asked to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Commands.
    pub commands: u64,
    /// Multiplications of them, those of padding included.
    pub multiplications: u64,
}

impl Work {
    /// A product by commands of one shape.
    pub(super) fn of(product: Shape, command: Shape) -> Work {
        let tiles = |all: usize, each: usize| all.div_ceil(each) as u64;
        let commands = tiles(product.m, command.m)
            .saturating_mul(tiles(product.k, command.k))
            .saturating_mul(tiles(product.n, command.n));
        let each = command.m as u64 * command.k as u64 * command.n as u64;
        Work { commands, multiplications: commands.saturating_mul(each) }
    }

    fn cost(self) -> u64 {
        self.multiplications.saturating_add(self.commands.saturating_mul(COMMAND))
    }
}

/// The place of the shape that computes a product most cheaply, the first of equal ones.
///
/// # Panics
/// If there is none.
pub(crate) fn cheapest<'a>(
    specs: impl IntoIterator<Item = &'a MatmulSpec>,
    product: Shape,
) -> usize {
    let costs = specs.into_iter().map(|spec| Work::of(product, spec.shape).cost());
    costs.enumerate().min_by_key(|(_, cost)| *cost).expect("there is a shape").0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::{Activation, IronName};

    fn chosen(shapes: &[(usize, usize)], m: usize, n: usize) -> usize {
        let spec = |&(m, n): &(usize, usize)| {
            let name = IronName { shape: Shape { m, k: 512, n }, n_tile: 64 };
            MatmulSpec::iron(name, Activation::None).unwrap()
        };
        let specs: Vec<MatmulSpec> = shapes.iter().map(spec).collect();
        cheapest(&specs, Shape { m, k: 2048, n })
    }

    #[test]
    fn few_rows_take_the_small_shape_and_many_the_large_one() {
        let shapes = [(1024, 1024), (512, 1024), (256, 1024)];
        assert_eq!(chosen(&shapes, 32, 1024), 2);
        assert_eq!(chosen(&shapes, 256, 4096), 2);
        assert_eq!(chosen(&shapes, 257, 1024), 1);
        assert_eq!(chosen(&shapes, 512, 1024), 1, "one command of 512 rows instead of two of 256");
        assert_eq!(chosen(&shapes, 1024, 1024), 0);
        // A few columns do not take the widest.
        assert_eq!(chosen(&[(256, 2048), (256, 512)], 200, 400), 1);
        assert_eq!(chosen(&[(256, 2048), (256, 512)], 200, 2048), 0);
    }
}
