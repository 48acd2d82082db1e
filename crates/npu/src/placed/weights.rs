//! The weights that a plan's part reads: a second copy, in the array's form.

use pianola_formats::{Tensor, TensorSource, convert_row, dequantize_row};
use pianola_plan::{DeviceError, Plan, WeightId, WeightShape, WeightSpec};

use super::encode::{Encoded, Form};

/// Rows of a matrix that are decoded at a time.
const ROWS: usize = 256;

/// Weights by their ids; those of other devices are absent.
pub(super) struct Weights {
    pub form: Form,
    matrices: Vec<Option<Encoded>>,
    vectors: Vec<Option<Vec<f32>>>,
}

impl Weights {
    /// Reads `wanted` from a source; `progress` is called with the bytes done and the bytes in all.
    pub fn load(
        plan: &Plan,
        wanted: &[WeightId],
        form: Form,
        source: &dyn TensorSource,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Weights, DeviceError> {
        let count = plan.graph.weights.len();
        let mut weights = Weights {
            form,
            matrices: (0..count).map(|_| None).collect(),
            vectors: vec![None; count],
        };
        let all = wanted.iter().map(|&id| plan.graph.weight(id).bytes()).sum();
        let mut done = 0;
        for &id in wanted {
            let spec = plan.graph.weight(id);
            match spec.shape {
                WeightShape::Vector { .. } => {
                    weights.vectors[id.0] = Some(spec.fetch_vector(source)?);
                }
                WeightShape::Matrix { rows, columns } => {
                    let tensor = spec.fetch(source)?;
                    let mut matrix = Encoded::new(form, rows, columns);
                    encode(spec, &tensor, form, &mut matrix)?;
                    source.release(&tensor.bytes);
                    weights.matrices[id.0] = Some(matrix);
                }
            }
            done += spec.bytes();
            progress(done, all);
        }
        source.check_read()?;
        Ok(weights)
    }

    /// A matrix of a kernel that was recorded.
    pub fn matrix(&self, id: WeightId) -> &Encoded {
        self.matrices[id.0].as_ref().expect("a weight of a recorded kernel")
    }

    /// A vector of a kernel that was recorded.
    pub fn vector(&self, id: WeightId) -> &[f32] {
        self.vectors[id.0].as_ref().expect("a weight of a recorded kernel")
    }
}

/// Decodes a tensor some rows at a time and encodes them anew.
fn encode(
    spec: &WeightSpec,
    tensor: &Tensor<'_>,
    form: Form,
    matrix: &mut Encoded,
) -> Result<(), DeviceError> {
    let (rows, columns) = (matrix.rows, matrix.columns);
    let Some(row_bytes) = tensor.ty.row_bytes(columns).filter(|&bytes| bytes > 0) else {
        let (name, ty) = (&spec.name, tensor.ty);
        return Err(DeviceError::Unsupported(format!("{name}: rows of {columns} values in {ty}")));
    };
    let mut values = vec![0.0; ROWS.min(rows) * columns];
    for (block, bytes) in tensor.bytes.chunks(ROWS * row_bytes).enumerate() {
        let values = &mut values[..bytes.len() / row_bytes * columns];
        if tensor.ty == spec.ty {
            dequantize_row(tensor.ty, bytes, values);
        } else {
            // The plan asks for another type, whose rounding then is that of every device.
            for (row, values) in bytes.chunks_exact(row_bytes).zip(values.chunks_exact_mut(columns))
            {
                let row = convert_row(tensor.ty, row, spec.ty, columns);
                dequantize_row(spec.ty, &row, values);
            }
        }
        matrix.set(form, block * ROWS, values);
    }
    Ok(())
}
