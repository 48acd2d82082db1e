//! A tensor as it lies in a file, and the trait of everything that holds named tensors.

use std::borrow::Cow;
use std::path::Path;

use crate::blocks::dequantize_row;
use crate::error::{Error, ErrorKind, quoted};
use crate::types::TensorType;

/// A named tensor: its type, its shape, and its bytes as stored (little-endian, row after row).
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor<'a> {
    /// Name in the file.
    pub name: String,
    /// How the weights are stored.
    pub ty: TensorType,
    /// Outermost dimension first: a matrix is `[rows, columns]`, and columns are contiguous.
    pub shape: Vec<usize>,
    /// The stored bytes, usually borrowed from the mapped file; any alignment.
    pub bytes: Cow<'a, [u8]>,
}

impl Tensor<'_> {
    /// Number of weights: the product of the shape (1 for a scalar).
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// All weights as single floats, in storage order.
    ///
    /// # Panics
    /// If `bytes` does not match `ty` and `shape`; tensors from this crate's readers always do.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.elements()];
        // Rows are whole blocks, so consecutive rows decode like one long row.
        dequantize_row(self.ty, &self.bytes, &mut values);
        values
    }

    /// The tensor's description without its bytes.
    pub fn info(&self) -> TensorInfo {
        TensorInfo {
            name: self.name.clone(),
            ty: self.ty,
            shape: self.shape.clone(),
            bytes: self.bytes.len() as u64,
        }
    }
}

/// What is known of a tensor without touching its weights.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// How the weights are stored.
    pub ty: TensorType,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Size of the stored weights in bytes.
    pub bytes: u64,
}

/// Anything that holds named tensors: a GGUF file, a folder of safetensors, a test's table.
pub trait TensorSource: Send + Sync {
    /// The tensor of this name; `None` if there is none of a supported type.
    fn tensor(&self, name: &str) -> Option<Tensor<'_>>;

    /// The description of the tensor of this name.
    fn info(&self, name: &str) -> Option<TensorInfo>;

    /// Descriptions of all tensors of supported types, in file order.
    fn tensor_infos(&self) -> Vec<TensorInfo>;

    /// Says that `bytes`, some or all of a tensor's, will not be read soon: a source that maps a file
    /// lets their memory go. They stay valid and are read from the file again if they are needed.
    fn release(&self, _bytes: &[u8]) {}

    /// An error if bytes that were handed out may not be those of the file: it was cut short, or the disk
    /// did not give them. To be asked once tensors were read, before anything is done with them.
    fn check_read(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The tensor of this name, or an error that says why it is not available.
    fn try_tensor(&self, name: &str) -> Result<Tensor<'_>, Error> {
        self.tensor(name).ok_or_else(|| missing_tensor(Path::new(""), name))
    }
}

/// The error for a tensor that a file does not list.
pub(crate) fn missing_tensor(path: &Path, name: &str) -> Error {
    let message = format!(
        "tensor {} is not in the model; the file is incomplete or of another architecture",
        quoted(name)
    );
    Error::new(ErrorKind::Missing, path, message)
}

/// Bytes of a tensor of this type and shape: `Err` says in words why there is no such tensor.
pub(crate) fn stored_bytes(ty: TensorType, shape: &[usize]) -> Result<usize, String> {
    let overflow = || format!("shape {shape:?} has more elements than this machine can address");
    let elements = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
    let elements = elements.ok_or_else(overflow)?;
    let columns = shape.last().copied().unwrap_or(1);
    if !columns.is_multiple_of(ty.block_len()) {
        return Err(format!(
            "shape {shape:?} has rows of {columns} weights, but {ty} needs a multiple of {}",
            ty.block_len()
        ));
    }
    ty.row_bytes(elements).ok_or_else(overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_bytes_checks_rows_and_overflow() {
        assert_eq!(stored_bytes(TensorType::Q8_0, &[3, 64]), Ok(3 * 68));
        assert_eq!(stored_bytes(TensorType::F16, &[]), Ok(2));
        // 64 elements are two blocks, but no row is a whole number of them.
        assert!(stored_bytes(TensorType::Q8_0, &[4, 16]).unwrap_err().contains("multiple of 32"));
        assert!(stored_bytes(TensorType::F32, &[usize::MAX, 2]).is_err());
        assert!(stored_bytes(TensorType::F32, &[usize::MAX / 2]).is_err());
    }

    #[test]
    fn several_rows_decode_in_order() {
        let bytes: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let tensor = Tensor {
            name: "x".into(),
            ty: TensorType::F32,
            shape: vec![2, 2],
            bytes: Cow::Owned(bytes),
        };
        assert_eq!(tensor.elements(), 4);
        assert_eq!(tensor.to_f32(), [1.0, 2.0, 3.0, 4.0]);
    }
}
