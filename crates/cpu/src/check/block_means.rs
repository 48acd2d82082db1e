//! How far the roundings of a row are independent, where the weights of a block have a mean.
//!
//! An output's error is the sum of its weights times the inputs' roundings. Weights that lie around zero
//! mix the roundings anew for every output. A mean that all weights of a block have passes the sum of the
//! block's roundings on to every output alike, so that the errors of a row rise and fall together, and
//! their squares scatter as those of a few numbers.

use super::error::effective_count;
use crate::pack::{BLOCK, PackedMatrix};
use pianola_formats::Minimum;

/// Outputs that stand for all.
const SAMPLES: usize = 64;

/// Mean weights of a matrix's blocks.
pub(super) struct BlockMeans {
    /// `[block][block]`: mean over the outputs of the product of two blocks' means, squared.
    products: Vec<f64>,
    /// Mean square over the outputs of each block's mean, and of its weights.
    means: Vec<f64>,
    weights: Vec<f64>,
}

impl BlockMeans {
    /// Of a type whose blocks have a minimum; codes of others lie around zero.
    pub fn of(matrix: &PackedMatrix) -> Option<BlockMeans> {
        let quantization = matrix.ty.quantization()?;
        if quantization.minimum == Minimum::None {
            return None;
        }
        let blocks = matrix.columns / BLOCK;
        let mut sums = vec![0.0; blocks * blocks];
        let mut weights = vec![0.0; blocks];
        let mut values = vec![0.0; matrix.columns];
        let outputs: Vec<usize> = (0..matrix.rows).step_by(matrix.rows.div_ceil(SAMPLES)).collect();
        let count = outputs.len() as f64;
        for output in outputs {
            matrix.row(output, &mut values);
            let mean = |of: &dyn Fn(f64) -> f64, block: &[f32]| {
                block.iter().map(|&weight| of(f64::from(weight))).sum::<f64>() / BLOCK as f64
            };
            let means: Vec<f64> =
                values.chunks_exact(BLOCK).map(|block| mean(&|weight| weight, block)).collect();
            for (sum, block) in weights.iter_mut().zip(values.chunks_exact(BLOCK)) {
                *sum += mean(&|weight| weight * weight, block) / count;
            }
            for (sums, &a) in sums.chunks_exact_mut(blocks).zip(&means) {
                sums.iter_mut().zip(&means).for_each(|(sum, b)| *sum += a * b / count);
            }
        }
        let means: Vec<f64> = (0..blocks).map(|block| sums[block * (blocks + 1)]).collect();
        let products = (0..sums.len())
            .map(|at| {
                let (a, b) = (at / blocks, at % blocks);
                // Strangers' products have a mean of zero, but not that of some outputs: its square is
                // on average what is taken off here.
                let chance = if a == b { 0.0 } else { means[a] * means[b] / count };
                (sums[at].powi(2) - chance).max(0.0)
            })
            .collect();
        Some(BlockMeans { products, means, weights })
    }

    /// Independent roundings that the errors of a row of outputs come to, where those of the inputs have
    /// these variances.
    pub fn freedom(&self, variances: &[f64]) -> f64 {
        let blocks = self.means.len();
        let sums: Vec<f64> =
            variances.chunks_exact(BLOCK).map(|block| block.iter().sum()).collect();
        let of = |sizes: &[f64]| sums.iter().zip(sizes).map(|(sum, size)| sum * size).sum::<f64>();
        let (all, shared) = (of(&self.weights), of(&self.means));
        let apart = effective_count(variances.iter().copied());
        if all <= 0.0 {
            return apart;
        }
        let scatter: f64 = (self.products.chunks_exact(blocks).zip(&sums))
            .map(|(products, sum)| sum * of(products))
            .sum();
        1.0 / (scatter / all.powi(2) + (1.0 - shared / all).powi(2) / apart)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: usize = 16;

    fn means(of_block: impl Fn(usize, usize) -> f64) -> BlockMeans {
        let products = (0..BLOCKS * BLOCKS).map(|at| of_block(at / BLOCKS, at % BLOCKS).powi(2));
        BlockMeans {
            products: products.collect(),
            means: (0..BLOCKS).map(|block| of_block(block, block)).collect(),
            weights: vec![1.0; BLOCKS],
        }
    }

    #[test]
    fn means_that_blocks_share_leave_fewer_independent_roundings() {
        let variances = vec![2.0; BLOCKS * BLOCK];
        let none = means(|_, _| 0.0).freedom(&variances);
        assert!((none - (BLOCKS * BLOCK) as f64).abs() < 1e-6, "{none}");
        // All of a weight is its block's mean: a block's roundings are one, of all blocks apart.
        let own = means(|a, b| if a == b { 1.0 } else { 0.0 }).freedom(&variances);
        assert!((own - BLOCKS as f64).abs() < 1e-6, "{own}");
        // All weights are alike.
        let alike = means(|_, _| 1.0).freedom(&variances);
        assert!((alike - 1.0).abs() < 1e-6, "{alike}");
        // One block has nearly all of the roundings.
        let mut few = variances;
        few[..BLOCK].fill(1e6);
        let few = means(|a, b| if a == b { 1.0 } else { 0.0 }).freedom(&few);
        assert!((1.0..1.01).contains(&few), "{few}");
    }
}
