//! Weights: read from their source, checked, packed, uploaded, and where they lie then.

use crate::gpu::Gpu;
use crate::layout::{BLOCK, PLANES, matrix_bytes, pack_row, row_planes};
use crate::memory::{Memory, Region};
use crate::program::Allocate;
use crate::upload::{STAGE, Uploader};
use pianola_formats::{Tensor, TensorSource, TensorType, convert_row};
use pianola_plan::{
    Allocation, AllocationKind, DeviceError, DeviceId, Plan, WeightId, WeightShape, WeightSpec,
};
use std::borrow::Cow;

/// Rows of a matrix that lie in one region: all of them, unless they exceed a binding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    pub region: Region,
    pub first_row: usize,
    pub rows: usize,
    /// The same rows in the form for prompts, where that is kept.
    pub prompt_form: Option<Region>,
}

#[derive(Debug)]
pub(crate) struct Matrix {
    pub ty: TensorType,
    pub columns: usize,
    pub slices: Vec<Slice>,
}

pub(crate) enum Weight {
    Matrix(Matrix),
    /// Offset in [`Weights::vectors`], in floats; a multiple of four.
    Vector(u32),
    /// Only kernels of another device read it.
    Elsewhere,
}

/// All weights of a plan.
pub(crate) struct Weights {
    pub(crate) list: Vec<Weight>,
    /// Norms, biases and rotary frequencies.
    pub vectors: Region,
    /// Offsets of the rotary frequencies in `vectors`.
    pub frequencies: Vec<u32>,
}

impl Weights {
    /// # Panics
    /// If it is a vector: plans name matrices where matrices are read. Or if it was not loaded.
    pub fn matrix(&self, id: WeightId) -> &Matrix {
        match &self.list[id.0] {
            Weight::Matrix(matrix) => matrix,
            Weight::Vector(_) => panic!("a vector where the plan has a matrix"),
            Weight::Elsewhere => panic!("a weight that the plan has on another device"),
        }
    }

    /// # Panics
    /// If it is a matrix, or was not loaded.
    pub fn vector(&self, id: WeightId) -> u32 {
        match &self.list[id.0] {
            Weight::Vector(offset) => *offset,
            Weight::Matrix(_) => panic!("a matrix where the plan has a vector"),
            Weight::Elsewhere => panic!("a weight that the plan has on another device"),
        }
    }

    /// The weights that device `device` of `plan` reads, each with its place in memory but without
    /// a value; slices hold at most `limit` bytes.
    pub fn new(
        plan: &Plan,
        device: DeviceId,
        limit: u64,
        allocate: &mut Allocate<'_>,
    ) -> Result<Weights, DeviceError> {
        let mut floats = 0;
        let mut place = |length: usize| {
            let offset = floats as u32;
            floats += length.next_multiple_of(4);
            offset
        };
        let mut list = Vec::with_capacity(plan.graph.weights.len());
        for (index, spec) in plan.graph.weights.iter().enumerate() {
            if !plan.reads(device, index) {
                list.push(Weight::Elsewhere);
                continue;
            }
            list.push(match spec.shape {
                WeightShape::Vector { length } => Weight::Vector(place(length)),
                WeightShape::Matrix { rows, columns } => {
                    let layer = plan.weight_layer(index);
                    let slice = |(first_row, rows)| {
                        let bytes = matrix_bytes(spec.ty, rows, columns) as u64;
                        let (kind, what) = (AllocationKind::Weights, spec.name.clone());
                        let region = allocate(&Allocation { kind, what, bytes, layer })?;
                        Ok(Slice { region, first_row, rows, prompt_form: None })
                    };
                    let slices = slices_of(spec, rows, columns, limit)?.map(slice);
                    let slices = slices.collect::<Result<Vec<Slice>, DeviceError>>()?;
                    Weight::Matrix(Matrix { ty: spec.ty, columns, slices })
                }
            });
        }
        let frequencies =
            plan.graph.ropes.iter().map(|rope| place(rope.frequencies.len())).collect();
        let vectors = allocate(&Allocation {
            kind: AllocationKind::Weights,
            what: "norms and biases".to_string(),
            bytes: 4 * floats as u64,
            layer: None,
        })?;
        Ok(Weights { list, vectors, frequencies })
    }

    /// Reads the weights from `source`, checks, packs and uploads them; `progress` is called with
    /// the bytes done and the bytes in all.
    pub fn load(
        &self,
        memory: &Memory,
        uploader: &mut Uploader,
        plan: &Plan,
        source: &dyn TensorSource,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), DeviceError> {
        let mine = || {
            self.list
                .iter()
                .zip(&plan.graph.weights)
                .filter(|(weight, _)| !matches!(weight, Weight::Elsewhere))
        };
        let total = mine().map(|(_, spec)| spec.bytes()).sum();
        let mut done = 0;
        let mut vectors = vec![0.0; self.vectors.size as usize / 4];
        let mut place = |offset: u32, values: &[f32]| {
            vectors[offset as usize..][..values.len()].copy_from_slice(values);
        };
        for (weight, spec) in mine() {
            match weight {
                Weight::Vector(offset) => place(*offset, &spec.fetch_vector(source)?),
                Weight::Matrix(matrix) => {
                    let tensor = spec.fetch(source)?;
                    for &slice in &matrix.slices {
                        upload(uploader, memory, spec, &tensor, matrix.columns, slice)?;
                        let row_bytes = tensor.bytes.len() / spec.shape.rows().0.max(1);
                        let first = slice.first_row * row_bytes;
                        source.release(&tensor.bytes[first..first + slice.rows * row_bytes]);
                    }
                }
                Weight::Elsewhere => {}
            }
            done += spec.bytes();
            progress(done, total);
        }
        source.check_read()?;
        for (offset, rope) in self.frequencies.iter().zip(&plan.graph.ropes) {
            place(*offset, &rope.frequencies);
        }
        uploader.copy(memory, self.vectors, bytemuck::cast_slice(&vectors))
    }
}

/// Most bytes of a slice.
pub(crate) fn slice_limit(gpu: &Gpu) -> u64 {
    gpu.description().slice_limit()
}

/// First row and rows of each slice of a matrix.
fn slices_of(
    spec: &WeightSpec,
    rows: usize,
    columns: usize,
    limit: u64,
) -> Result<impl Iterator<Item = (usize, usize)> + use<>, DeviceError> {
    if !columns.is_multiple_of(BLOCK) {
        return Err(DeviceError::Unsupported(format!(
            "tensor '{}' has rows of {columns} values; the Vulkan kernels need a multiple of {BLOCK}: use another device",
            spec.name
        )));
    }
    let each = slice_rows(spec.ty, rows, columns, limit);
    Ok((0..rows).step_by(each).map(move |first_row| (first_row, each.min(rows - first_row))))
}

/// Rows of a matrix that a region of at most `limit` bytes holds, cut into even parts.
fn slice_rows(ty: TensorType, rows: usize, columns: usize, limit: u64) -> usize {
    let row = matrix_bytes(ty, 1, columns).max(1) as u64;
    let most = ((limit / row) as usize).max(1);
    let parts = rows.div_ceil(most);
    // Whole tiles of 64 rows, so that only the last part has a ragged end.
    rows.div_ceil(parts).next_multiple_of(64).min(most.max(1)).min(rows)
}

/// Packs and uploads one slice, some rows at a time, on all cores.
fn upload(
    uploader: &mut Uploader,
    memory: &Memory,
    spec: &WeightSpec,
    tensor: &Tensor<'_>,
    columns: usize,
    slice: Slice,
) -> Result<(), DeviceError> {
    let planes = row_planes(spec.ty, columns);
    let row_bytes = tensor.ty.row_bytes(columns).expect("a whole number of blocks");
    let packed_row: usize = planes.iter().sum();
    // Room for the rounding of each piece.
    let batch = ((STAGE as usize - 64) / packed_row).clamp(1, slice.rows);
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    for first in (0..slice.rows).step_by(batch) {
        let rows = batch.min(slice.rows - first);
        let mut start = 0;
        let pieces: Vec<(u64, u64)> = planes
            .iter()
            .map(|&bytes| {
                let piece = ((start + first * bytes) as u64, (rows * bytes) as u64);
                start += slice.rows * bytes;
                piece
            })
            .collect();
        uploader.write(memory, slice.region, &pieces, |slices| {
            let mut rest: [&mut [u8]; PLANES] = slices.try_into().expect("a slice for each plane");
            let share = rows.div_ceil(threads);
            std::thread::scope(|scope| {
                for part in (0..rows).step_by(share) {
                    let count = share.min(rows - part);
                    let mut mine = Vec::with_capacity(PLANES);
                    for (rest, bytes) in rest.iter_mut().zip(planes) {
                        let (head, tail) = std::mem::take(rest).split_at_mut(count * bytes);
                        mine.push(head);
                        *rest = tail;
                    }
                    let first_row = slice.first_row + first + part;
                    scope.spawn(move || {
                        for index in 0..count {
                            let row = first_row + index;
                            let stored = &tensor.bytes[row * row_bytes..(row + 1) * row_bytes];
                            let stored = match spec.ty == tensor.ty {
                                true => Cow::Borrowed(stored),
                                false => {
                                    Cow::Owned(convert_row(tensor.ty, stored, spec.ty, columns))
                                }
                            };
                            let mut planes = planes.iter().zip(&mut mine).map(|(&bytes, plane)| {
                                &mut plane[index * bytes..(index + 1) * bytes]
                            });
                            let planes = std::array::from_fn(|_| planes.next().expect("a plane"));
                            pack_row(spec.ty, columns, &stored, planes);
                        }
                    });
                }
            });
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_matrices_are_cut_into_even_parts() {
        let limit = 128 << 20;
        assert_eq!(slice_rows(TensorType::Q4_0, 1000, 4096, limit), 1000);
        let (rows, columns) = (262_144, 640);
        let each = slice_rows(TensorType::Q8_0, rows, columns, limit);
        assert_eq!(each, 131_072);
        for ty in [TensorType::Q8_0, TensorType::F32, TensorType::Q6K] {
            let each = slice_rows(ty, rows, columns, limit);
            assert!(matrix_bytes(ty, each, columns) as u64 <= limit, "{ty}");
        }
        assert_eq!(slice_rows(TensorType::F32, 3, 1 << 26, limit), 1);
    }
}
