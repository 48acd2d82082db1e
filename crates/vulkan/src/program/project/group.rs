//! Which weights of a product one dispatch reads.

use super::super::Programmer;
use crate::weights::{Matrix, Slice};
use pianola_formats::TensorType;
use pianola_plan::{DeviceError, Numeric, Project};

/// Weights of one dispatch of a product: the same rows of up to three parts.
pub(in crate::program) struct Group<'a> {
    pub parts: Vec<(usize, &'a Matrix, Slice)>,
    pub integer: bool,
}

impl Group<'_> {
    /// Weight rows of all parts.
    pub fn rows(&self) -> u32 {
        self.parts.iter().map(|part| part.2.rows as u32).sum()
    }

    /// Whether all of them are floats.
    pub fn is_float(&self) -> bool {
        self.parts.iter().all(|part| !part.1.ty.is_quantized())
    }

    /// Whether all of them are kept in the form for prompts, too.
    pub fn has_prompt_form(&self) -> bool {
        self.parts.iter().all(|part| part.2.prompt_form.is_some())
    }
}

impl Programmer<'_> {
    /// Parts of a product that go into one dispatch: all multiplied in integers or none, of at
    /// most two types; a gate's parts always together.
    pub(in crate::program) fn groups(
        &self,
        project: &Project,
    ) -> Result<Vec<Group<'_>>, DeviceError> {
        let fast = self.plan.options.numeric == Numeric::Fast;
        let integer = |matrix: &Matrix| fast && matrix.ty.is_quantized();
        let matrices: Vec<&Matrix> =
            project.parts.iter().map(|part| self.weights.matrix(part.weight)).collect();
        if project.gate.is_some() {
            let [gate, up] = matrices[..] else { unreachable!("a gate has two parts") };
            let same = gate.slices.len() == up.slices.len()
                && gate.slices.iter().zip(&up.slices).all(|(a, b)| a.rows == b.rows);
            if !same {
                return Err(DeviceError::Unsupported(
                    "gate and up have different types and exceed a binding of this device: use another device"
                        .to_string(),
                ));
            }
            let integer = integer(gate) && integer(up);
            let pairs = gate.slices.iter().zip(&up.slices);
            return Ok(pairs
                .map(|(&a, &b)| Group { parts: vec![(0, gate, a), (1, up, b)], integer })
                .collect());
        }
        let mut groups: Vec<Group<'_>> = Vec::new();
        for (part, &matrix) in matrices.iter().enumerate() {
            for &slice in &matrix.slices {
                let integer = integer(matrix);
                let fits = |group: &Group<'_>| {
                    let mut types: Vec<TensorType> = group.parts.iter().map(|p| p.1.ty).collect();
                    types.push(matrix.ty);
                    types.sort_unstable();
                    types.dedup();
                    group.integer == integer && group.parts.len() < 3 && types.len() <= 2
                };
                match groups.iter_mut().find(|group| fits(group)) {
                    Some(group) => group.parts.push((part, matrix, slice)),
                    None => groups.push(Group { parts: vec![(part, matrix, slice)], integer }),
                }
            }
        }
        Ok(groups)
    }
}
