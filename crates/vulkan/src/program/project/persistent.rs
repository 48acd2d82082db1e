//! A product of all layers as `persistent` computes it: one cut for all, weights layer by layer.

use super::super::Programmer;
pub(in crate::program) use super::product::NO_BIAS;
use super::single::block_words;
use crate::memory::Region;
use crate::policy::rows::RowsShape;
use crate::policy::single;
use crate::program::type_code;
use pianola_formats::TensorType;
use pianola_plan::Project;

/// How a product is cut, in every layer alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::program) struct ProductCut {
    /// First and second type; of a gate, those of its parts.
    pub types: [u32; 2],
    pub shape: RowsShape,
    pub slices: u32,
    /// Groups of rows that a workgroup has at most, where they are cut into slices.
    pub most_groups: u32,
    /// Groups of rows in all.
    pub groups: u32,
    /// Bytes that the sums of slices take.
    pub sums_bytes: u32,
}

/// A layer's weights of a product.
pub(in crate::program) struct ProductWeights {
    pub regions: Vec<Region>,
    pub biases: Vec<u32>,
    /// Bit p: part p has the second type.
    pub second: u32,
}

impl Programmer<'_> {
    /// The cut that a product has in all layers, and each layer's weights; or why there is none. `words`: registers
    /// of an invocation that hold weights under way, at most.
    pub(in crate::program) fn persistent_product(
        &self,
        projects: &[&Project],
        words: Option<u32>,
    ) -> Result<(ProductCut, Vec<ProductWeights>), String> {
        let mut types: Vec<Vec<TensorType>> = Vec::new();
        let mut weights = Vec::new();
        let mut cuts = Vec::new();
        for project in projects {
            let groups = self.groups(project).map_err(|error| error.to_string())?;
            let [group] = &groups[..] else {
                return Err("a product takes several launches".to_string());
            };
            if !group.integer {
                return Err("weights are not quantised, or the mode is exact".to_string());
            }
            if group.parts.iter().any(|part| part.1.slices.len() != 1) {
                return Err("a matrix exceeds a binding of this device".to_string());
            }
            let bias = |part: &pianola_plan::Part| {
                part.bias.map_or(NO_BIAS, |bias| self.weights.vector(bias))
            };
            types.push(group.parts.iter().map(|part| part.1.ty).collect());
            weights.push(ProductWeights {
                regions: group.parts.iter().map(|part| part.2.region).collect(),
                biases: project.parts.iter().map(bias).collect(),
                second: 0,
            });
            cuts.push(self.single_cut_of(project, group));
        }
        let (key, mut cut) = cuts[0];
        let same = |other: &crate::policy::rows::Product| {
            (other.rows, other.blocks, other.gate) == (cut.rows, cut.blocks, cut.gate)
        };
        if !cuts.iter().all(|other| same(&other.1)) {
            return Err("layers differ in their widths".to_string());
        }
        let (first, second) = two_types(&types, cut.gate)?;
        for (weights, types) in weights.iter_mut().zip(&types) {
            let bits = types.iter().enumerate().map(|(part, &ty)| u32::from(ty != first) << part);
            weights.second = bits.sum();
        }
        cut.words = block_words(first).max(block_words(second));
        let shape = match words {
            None => self.shape(&key, &cut),
            Some(words) => {
                let parts = if cut.gate { 2 } else { 1 };
                let fits =
                    |shape: &RowsShape| cut.words * shape.height * shape.unroll * parts <= words;
                let ranked = single::ranked(&self.limits, &cut);
                ranked.iter().copied().find(fits).unwrap_or_else(|| self.shape(&key, &cut))
            }
        };
        let slices = single::slices(&self.limits, &cut, &shape);
        let group_rows = single::group_rows(&self.limits, &shape);
        let part_rows = |project: &Project| {
            let parts = if cut.gate { &project.parts[..1] } else { &project.parts[..] };
            parts.iter().map(|part| self.plan.graph.tensor(part.output).width as u32).collect()
        };
        let rows: Vec<u32> = part_rows(projects[0]);
        let groups = rows.iter().map(|rows| rows.div_ceil(group_rows)).sum::<u32>();
        let most_groups = match slices {
            1 => 1,
            _ => groups.div_ceil(single::workgroups(&self.limits)),
        };
        let parts_at_once = if cut.gate { 2 } else { 1 };
        let sums_bytes = match slices {
            1 => 4,
            _ => 4 * most_groups * group_rows * parts_at_once * slices,
        };
        let types = [type_code(first), type_code(second)];
        Ok((ProductCut { types, shape, slices, most_groups, groups, sums_bytes }, weights))
    }
}

/// The two types that occur, layer by layer and part by part; a gate's parts have one each.
fn two_types(types: &[Vec<TensorType>], gate: bool) -> Result<(TensorType, TensorType), String> {
    let first = types[0][0];
    let second = match gate {
        true => types[0][1],
        false => types.iter().flatten().copied().find(|&ty| ty != first).unwrap_or(first),
    };
    let known = |list: &Vec<TensorType>| match gate {
        true => list[..] == [first, second],
        false => list.iter().all(|&ty| ty == first || ty == second),
    };
    match types.iter().all(known) {
        true => Ok((first, second)),
        false => Err("a product has weights of too many types".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TensorType::{Q4K, Q5K, Q6K};

    #[test]
    fn a_product_has_two_types_in_all_layers_and_a_gate_one_for_each_part() {
        let mixed = [vec![Q4K, Q4K, Q6K], vec![Q4K, Q4K, Q4K]];
        assert_eq!(two_types(&mixed, false), Ok((Q4K, Q6K)));
        assert!(two_types(&[vec![Q4K], vec![Q6K], vec![Q5K]], false).is_err());
        assert_eq!(two_types(&[vec![Q4K, Q6K], vec![Q4K, Q6K]], true), Ok((Q4K, Q6K)));
        assert!(two_types(&[vec![Q4K, Q6K], vec![Q4K, Q4K]], true).is_err());
    }
}
