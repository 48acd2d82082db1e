//! Weights: read from their source, checked, repacked, kept.

use crate::memory::Memory;
use crate::pack::{MatrixPlace, PackedMatrix, TILE, pack_tile, tile_bytes};
use crate::pool::Pool;
use pianola_formats::{Tensor, TensorSource, convert_row};
use pianola_plan::{DeviceError, Kernel, Plan, WeightShape, WeightSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) enum Weight {
    Matrix(PackedMatrix),
    Vector(Vec<f32>),
    /// Only kernels of another device read it.
    Elsewhere,
}

impl Weight {
    /// # Panics
    /// If it is a vector: plans name matrices where matrices are read. Or if it was not loaded.
    pub fn matrix(&self) -> &PackedMatrix {
        match self {
            Weight::Matrix(matrix) => matrix,
            Weight::Vector(_) => panic!("a vector where the plan has a matrix"),
            Weight::Elsewhere => panic!("a weight that the plan has on another device"),
        }
    }

    /// # Panics
    /// If it is a matrix, or was not loaded.
    pub fn vector(&self) -> &[f32] {
        match self {
            Weight::Vector(vector) => vector,
            Weight::Matrix(_) => panic!("a matrix where the plan has a vector"),
            Weight::Elsewhere => panic!("a weight that the plan has on another device"),
        }
    }
}

/// Loads the weights of `plan` that `wanted` names by their indices; `progress` is called with
/// the bytes done and the bytes in all.
pub(crate) fn load(
    plan: &Plan,
    wanted: &dyn Fn(usize) -> bool,
    source: &dyn TensorSource,
    pool: &Pool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Weight>, DeviceError> {
    let specs = || plan.graph.weights.iter().enumerate().filter(|(index, _)| wanted(*index));
    let total = specs().map(|(_, spec)| spec.bytes()).sum();
    let mut done = 0;
    let mut weights = Vec::with_capacity(plan.graph.weights.len());
    // One block for all matrices, so that nearly all of it lies on huge pages.
    let bytes: usize = specs().map(|(_, spec)| packed_bytes(spec)).sum();
    let memory = Memory::zeroed(bytes)
        .ok_or_else(|| crate::device::out_of_memory("the weights", bytes as u64))?;
    let memory = Arc::new(memory);
    let places = places(plan, wanted);
    for (index, spec) in plan.graph.weights.iter().enumerate() {
        if !wanted(index) {
            weights.push(Weight::Elsewhere);
            continue;
        }
        weights.push(match spec.shape {
            WeightShape::Vector { .. } => Weight::Vector(spec.fetch_vector(source)?),
            WeightShape::Matrix { rows, columns } => {
                let tensor = spec.fetch(source)?;
                // SAFETY: places do not overlap.
                let mut packed =
                    unsafe { PackedMatrix::at(&memory, places[index], spec.ty, rows, columns) };
                pack(&tensor, &mut packed, source, pool);
                Weight::Matrix(packed)
            }
        });
        done += spec.bytes();
        progress(done, total);
    }
    source.check_read()?;
    Ok(weights)
}

/// Where each matrix lies in the block: one behind another, but the two of a gate tile by tile in
/// turn, since they are read in turn and a worker's part is then one stream.
fn places(plan: &Plan, wanted: &dyn Fn(usize) -> bool) -> Vec<MatrixPlace> {
    let weights = &plan.graph.weights;
    let mut partners: Vec<Option<usize>> = vec![None; weights.len()];
    for op in &plan.ops {
        let Kernel::Project(project) = &op.kernel else { continue };
        let [gate, up] = &project.parts[..] else { continue };
        let (gate, up) = (gate.weight.0, up.weight.0);
        let alone = partners[gate].is_none() && partners[up].is_none() && gate != up;
        if project.gate.is_some() && alone && wanted(gate) && wanted(up) {
            (partners[gate], partners[up]) = (Some(up), Some(gate));
        }
    }
    let tile = |index: usize| match weights[index].shape {
        WeightShape::Matrix { columns, .. } => tile_bytes(weights[index].ty, columns),
        WeightShape::Vector { .. } => 0,
    };
    let mut next = 0;
    let mut places: Vec<Option<MatrixPlace>> = vec![None; weights.len()];
    for (index, spec) in weights.iter().enumerate().filter(|(index, _)| wanted(*index)) {
        let partner = partners[index];
        let place = match partner.and_then(|partner| Some((partner, places[partner]?))) {
            Some((partner, first)) => {
                MatrixPlace { offset: first.offset + tile(partner), between: tile(partner) }
            }
            None => {
                let place = MatrixPlace { offset: next, between: partner.map_or(0, tile) };
                next += packed_bytes(spec) + partner.map_or(0, |it| packed_bytes(&weights[it]));
                place
            }
        };
        places[index] = Some(place);
    }
    let nowhere = MatrixPlace { offset: 0, between: 0 };
    places.into_iter().map(|place| place.unwrap_or(nowhere)).collect()
}

/// Bytes of a matrix in the block, up to the next cache line.
pub(crate) fn packed_bytes(spec: &WeightSpec) -> usize {
    match spec.shape {
        WeightShape::Matrix { rows, columns } => {
            PackedMatrix::bytes(spec.ty, rows, columns).next_multiple_of(64)
        }
        WeightShape::Vector { .. } => 0,
    }
}

/// Bytes of a file that are packed before their memory is let go, so that a model is never in memory
/// twice.
const BAND: usize = 2 << 20;

/// Packs all tiles, the workers taking them in turn; quantises where the plan has another type
/// than the file.
fn pack(tensor: &Tensor<'_>, packed: &mut PackedMatrix, source: &dyn TensorSource, pool: &Pool) {
    let (ty, columns) = (packed.ty, packed.columns);
    let row_bytes =
        tensor.ty.row_bytes(columns).expect("a whole number of blocks, checked at open");
    let tile_bytes = TILE * row_bytes;
    let tiles: Vec<std::sync::Mutex<&mut [u8]>> =
        packed.tiles_mut().map(std::sync::Mutex::new).collect();
    let band = (BAND / tile_bytes.max(1)).max(1);
    for (tiles, stored) in tiles.chunks(band).zip(tensor.bytes.chunks(band * tile_bytes)) {
        let next = AtomicUsize::new(0);
        pool.run(&|_| {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(tile) = tiles.get(index) else { break };
                let mut tile = tile.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                let end = stored.len().min((index + 1) * tile_bytes);
                let lines = stored[index * tile_bytes..end].chunks_exact(row_bytes);
                if ty == tensor.ty {
                    pack_tile(ty, columns, &lines.collect::<Vec<_>>(), &mut tile);
                } else {
                    let converted: Vec<Vec<u8>> =
                        lines.map(|line| convert_row(tensor.ty, line, ty, columns)).collect();
                    let lines: Vec<&[u8]> = converted.iter().map(Vec::as_slice).collect();
                    pack_tile(ty, columns, &lines, &mut tile);
                }
            }
        });
        source.release(stored);
    }
}
