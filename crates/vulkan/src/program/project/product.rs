//! What all kernels of products share: weight bindings, parts, bias, gate and cap.

use super::super::{Programmer, type_code};
use super::Group;
use crate::memory::Region;
use bytemuck::{Pod, Zeroable};
use pianola_formats::TensorType;
use pianola_plan::{Activation, Project, TensorId};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable, Default)]
pub(super) struct ProductConstants {
    part_rows: [u32; 3],
    pub part_group: [u32; 3],
    part_column: [u32; 3],
    part_bias: [u32; 3],
    pub flags: u32,
    output_stride: u32,
    cap: f32,
}

const NO_BIAS: u32 = u32::MAX;

impl Programmer<'_> {
    /// Weight bindings, constants and types that both products share; `tile` is the number of
    /// weight rows of a workgroup. Also returns the number of workgroups.
    pub(super) fn product(
        &self,
        project: &Project,
        group: &Group<'_>,
        tile: u32,
    ) -> (Vec<Region>, ProductConstants, [u32; 2], u32) {
        let mut types: Vec<TensorType> = group.parts.iter().map(|part| part.1.ty).collect();
        let first_type = types[0];
        types.retain(|&ty| ty != first_type);
        let second_type = types.first().copied().unwrap_or(first_type);
        let epilogue = epilogue(project);
        let (_, output_stride, _) = self.tensor(epilogue.unwrap_or(project.parts[0].output));
        let mut constants = ProductConstants {
            part_group: [u32::MAX; 3],
            part_bias: [NO_BIAS; 3],
            output_stride,
            cap: project.soft_cap.map_or(0.0, |cap| cap.0),
            ..ProductConstants::default()
        };
        let mut regions = [group.parts[0].2.region; 3];
        let mut workgroups = 0;
        for (index, &(part, matrix, slice)) in group.parts.iter().enumerate() {
            let planned = &project.parts[part];
            let column = self.tensor(epilogue.unwrap_or(planned.output)).2;
            regions[index] = slice.region;
            constants.part_rows[index] = slice.rows as u32;
            constants.part_column[index] = column + slice.first_row as u32;
            if let Some(bias) = planned.bias {
                constants.part_bias[index] = self.weights.vector(bias) + slice.first_row as u32;
            }
            if matrix.ty != first_type {
                constants.flags |= 1 << index;
            }
            if project.gate.is_some() {
                constants.part_group[index] = 0;
                workgroups = (slice.rows as u32).div_ceil(tile);
            } else {
                constants.part_group[index] = workgroups;
                workgroups += (slice.rows as u32).div_ceil(tile);
            }
        }
        let bindings = regions.iter().chain(&regions).chain(&regions).copied().collect();
        (bindings, constants, [type_code(first_type), type_code(second_type)], workgroups)
    }

    pub(super) fn output(&self, project: &Project) -> Region {
        self.tensor(epilogue(project).unwrap_or(project.parts[0].output)).0
    }
}

/// The tensor that gate or cap leave instead of the parts'.
fn epilogue(project: &Project) -> Option<TensorId> {
    project.gate.map(|gate| gate.1).or(project.soft_cap.map(|cap| cap.1))
}

pub(super) fn gate_code(project: &Project) -> u32 {
    match project.gate {
        None => 0,
        Some((Activation::Silu, _)) => 1,
        Some((Activation::GeluTanh, _)) => 2,
    }
}
