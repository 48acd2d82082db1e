//! A slot's activations in host memory, at the plan's offsets.

use std::sync::Arc;

use pianola_plan::{Plan, TensorId};

/// Where a tensor's rows lie, in values.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: usize,
    stride: usize,
    width: usize,
}

/// An arena.
pub(super) struct Arena {
    values: Vec<f32>,
    places: Arc<[Option<Place>]>,
}

impl Arena {
    /// The arenas that a plan's recordings have.
    pub fn of_plan(plan: &Plan) -> Vec<Arena> {
        let place = |tensor: usize| {
            let view = plan.views[tensor]?;
            Some(Place {
                start: plan.arena.offsets[view.buffer] / size_of::<f32>() + view.column,
                stride: plan.buffers[view.buffer].width,
                width: plan.graph.tensors[tensor].width,
            })
        };
        let places: Arc<[Option<Place>]> = (0..plan.graph.tensors.len()).map(place).collect();
        let arena = |_| Arena {
            values: vec![0.0; plan.arena.bytes.div_ceil(size_of::<f32>())],
            places: places.clone(),
        };
        (0..plan.arenas()).map(arena).collect()
    }

    fn place(&self, tensor: TensorId) -> Place {
        self.places[tensor.0].expect("a kernel's tensors have places")
    }

    /// A row of a tensor.
    pub fn row(&self, tensor: TensorId, row: usize) -> &[f32] {
        let Place { start, stride, width } = self.place(tensor);
        &self.values[start + row * stride..][..width]
    }

    /// The same, to be written.
    pub fn row_mut(&mut self, tensor: TensorId, row: usize) -> &mut [f32] {
        let Place { start, stride, width } = self.place(tensor);
        &mut self.values[start + row * stride..][..width]
    }

    /// Some rows of a tensor without gaps.
    pub fn gather(&self, tensor: TensorId, rows: impl Iterator<Item = usize>) -> Vec<f32> {
        let mut values = Vec::with_capacity(rows.size_hint().0 * self.place(tensor).width);
        rows.for_each(|row| values.extend_from_slice(self.row(tensor, row)));
        values
    }

    /// Writes the first rows of a tensor.
    pub fn scatter(&mut self, tensor: TensorId, values: &[f32]) {
        let width = self.place(tensor).width;
        for (row, values) in values.chunks_exact(width).enumerate() {
            self.row_mut(tensor, row).copy_from_slice(values);
        }
    }

    /// Reads the first rows of a tensor.
    pub fn read(&self, tensor: TensorId, values: &mut [f32]) {
        let width = self.place(tensor).width;
        for (row, values) in values.chunks_exact_mut(width).enumerate() {
            values.copy_from_slice(self.row(tensor, row));
        }
    }

    /// Values in a row of a tensor.
    pub fn width(&self, tensor: TensorId) -> usize {
        self.place(tensor).width
    }

    /// Overwrites everything with NaN.
    pub fn poison(&mut self) {
        self.values.fill(f32::NAN);
    }
}
