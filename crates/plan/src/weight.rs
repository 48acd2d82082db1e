//! Weights: what a model expects of a file, and how it is fetched from there.

use crate::error::DeviceError;
use pianola_formats::{Tensor, TensorSource, TensorType};
use std::borrow::Cow;

/// Shape of a weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WeightShape {
    /// `[rows, columns]`, read by a product or an embedding.
    Matrix {
        /// Output features, or vocabulary entries.
        rows: usize,
        /// Input features.
        columns: usize,
    },
    /// `[length]`, a norm's scale or a bias; always held in f32. A value counts as a row.
    Vector {
        /// Number of values.
        length: usize,
    },
}

impl WeightShape {
    /// Rows, and values in a row.
    pub fn rows(self) -> (usize, usize) {
        match self {
            WeightShape::Matrix { rows, columns } => (rows, columns),
            WeightShape::Vector { length } => (length, 1),
        }
    }
}

/// A weight: a tensor of the file, or some rows of one that holds several weights one below another
/// (Phi 3 keeps q, k and v in one tensor).
#[derive(Clone, PartialEq, Debug)]
pub struct WeightSpec {
    /// Name of the tensor in the file.
    pub name: String,
    /// Shape of the weight.
    pub shape: WeightShape,
    /// First row of the weight in the tensor of the file.
    pub first_row: usize,
    /// Rows of the tensor of the file.
    pub file_rows: usize,
    /// Type in the file, or the type it is quantised to at load.
    pub ty: TensorType,
    /// Added to every value of a vector at load: Gemma's norms are stored as `w` and used as `1 + w`.
    pub offset: f32,
}

impl WeightSpec {
    /// A whole tensor of the file.
    pub fn whole(name: String, shape: WeightShape, ty: TensorType) -> WeightSpec {
        let file_rows = shape.rows().0;
        WeightSpec { name, shape, first_row: 0, file_rows, ty, offset: 0.0 }
    }

    /// Whether both are the same values of the file.
    pub(crate) fn same_values(&self, other: &WeightSpec) -> bool {
        (&self.name, self.first_row, self.shape) == (&other.name, other.first_row, other.shape)
    }

    /// Values in the weight.
    pub fn elements(&self) -> u64 {
        let (rows, columns) = self.shape.rows();
        rows as u64 * columns as u64
    }

    /// Bytes of the weight in its type.
    pub fn bytes(&self) -> u64 {
        match self.shape {
            WeightShape::Matrix { rows, columns } => {
                rows as u64 * self.ty.row_bytes(columns).unwrap_or(0) as u64
            }
            WeightShape::Vector { length } => 4 * length as u64,
        }
    }

    /// The weight's rows as they are stored, in the type of the file. A tensor that is missing or of
    /// another shape is an error.
    pub fn fetch<'a>(&self, source: &'a dyn TensorSource) -> Result<Tensor<'a>, DeviceError> {
        let mut tensor = source
            .tensor(&self.name)
            .ok_or_else(|| DeviceError::MissingTensor(self.name.clone()))?;
        let (rows, columns) = self.shape.rows();
        let expected = |rows: usize| match self.shape {
            WeightShape::Matrix { .. } => vec![rows, columns],
            WeightShape::Vector { .. } => vec![rows],
        };
        let last_row = self.first_row.checked_add(rows);
        let inside = last_row.is_some_and(|last_row| last_row <= self.file_rows);
        if tensor.shape != expected(self.file_rows) || !inside {
            let (name, found) = (self.name.clone(), tensor.shape);
            return Err(DeviceError::Shape { name, expected: expected(self.file_rows), found });
        }
        if rows == self.file_rows {
            return Ok(tensor);
        }
        // Blocks of quantised types lie within a row, so a row is always whole bytes; only a
        // quantised vector cannot be cut anywhere.
        let row_bytes = tensor.ty.row_bytes(columns).ok_or_else(|| {
            DeviceError::Unsupported(format!(
                "tensor '{}' holds several vectors in blocks of {}; f32, f16 and bf16 are supported",
                self.name, tensor.ty
            ))
        })?;
        let range = self.first_row * row_bytes..(self.first_row + rows) * row_bytes;
        tensor.bytes = match tensor.bytes {
            Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[range]),
            Cow::Owned(bytes) => Cow::Owned(bytes[range].to_vec()),
        };
        tensor.shape = expected(rows);
        Ok(tensor)
    }

    /// The values of a vector, with the offset added.
    pub fn fetch_vector(&self, source: &dyn TensorSource) -> Result<Vec<f32>, DeviceError> {
        let mut values = self.fetch(source)?.to_f32();
        values.iter_mut().for_each(|value| *value += self.offset);
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pianola_formats::TensorInfo;

    /// One tensor.
    struct One(Tensor<'static>);

    impl TensorSource for One {
        fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
            let Tensor { ty, shape, bytes, .. } = &self.0;
            let (name, bytes) =
                (self.0.name == name).then(|| (name.to_string(), Cow::Borrowed(&**bytes)))?;
            Some(Tensor { name, ty: *ty, shape: shape.clone(), bytes })
        }

        fn info(&self, name: &str) -> Option<TensorInfo> {
            self.tensor(name).map(|tensor| tensor.info())
        }

        fn tensor_infos(&self) -> Vec<TensorInfo> {
            vec![self.0.info()]
        }
    }

    fn source(ty: TensorType, shape: &[usize], bytes: Vec<u8>) -> One {
        One(Tensor { name: "fused".to_string(), ty, shape: shape.to_vec(), bytes: bytes.into() })
    }

    fn spec(shape: WeightShape, first_row: usize, file_rows: usize) -> WeightSpec {
        let name = "fused".to_string();
        WeightSpec { name, shape, first_row, file_rows, ty: TensorType::F32, offset: 1.0 }
    }

    #[test]
    fn rows_of_a_block_type_are_cut_whole() {
        let row = TensorType::Q8_0.row_bytes(64).unwrap();
        let bytes: Vec<u8> = (0..5 * row).map(|at| (at / row) as u8).collect();
        let source = source(TensorType::Q8_0, &[5, 64], bytes);
        let part = spec(WeightShape::Matrix { rows: 2, columns: 64 }, 3, 5).fetch(&source).unwrap();
        assert_eq!(part.shape, [2, 64]);
        assert_eq!(part.bytes, [vec![3; row], vec![4; row]].concat());
    }

    #[test]
    fn vectors_are_cut_and_offset() {
        let bytes = (0..6).flat_map(|value| (value as f32).to_le_bytes()).collect();
        let source = source(TensorType::F32, &[6], bytes);
        let part = spec(WeightShape::Vector { length: 3 }, 2, 6);
        assert_eq!(part.fetch_vector(&source).unwrap(), [3.0, 4.0, 5.0]);
    }

    #[test]
    fn what_does_not_fit_is_named_with_the_shape_of_the_whole_tensor() {
        let wide = source(TensorType::F32, &[4, 2], vec![0; 32]);
        let matrix = WeightShape::Matrix { rows: 2, columns: 2 };
        for (first_row, file_rows) in [(0, 5), (3, 4), (usize::MAX, 4)] {
            let error = spec(matrix, first_row, file_rows).fetch(&wide).unwrap_err();
            let DeviceError::Shape { name, expected, found } = error else { panic!("{error}") };
            assert_eq!((name.as_str(), &found[..]), ("fused", &[4, 2][..]));
            assert_eq!(expected, [file_rows, 2]);
        }
        let blocks = source(TensorType::Q8_0, &[64], vec![0; 68]);
        let error = spec(WeightShape::Vector { length: 32 }, 32, 64).fetch(&blocks).unwrap_err();
        assert!(error.to_string().contains("'fused'"), "{error}");
        let missing = WeightSpec { name: "other".to_string(), ..spec(matrix, 0, 2) };
        assert!(matches!(missing.fetch(&wide), Err(DeviceError::MissingTensor(_))));
    }
}
