//! Safetensors files: a JSON header with dtype, shape and byte range of each tensor, then bytes.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error as _, SeqAccess, Visitor};

use crate::error::{Error, ErrorKind, quoted};
use crate::json::{self, Entries};
use crate::map::Map;
use crate::sniff;
use crate::tensor::{Tensor, TensorInfo, TensorSource, missing_tensor, stored_bytes};
use crate::types::TensorType;

/// Limit on the header, the same as the reference implementation's.
const LARGEST_HEADER: u64 = 100_000_000;
/// Dimensions beyond this are in no model; bounds what one entry of the header can allocate.
const MOST_DIMENSIONS: usize = 8;

/// An open safetensors file.
///
/// Tensors of dtypes that are no weights here (integers, booleans, 8-bit floats) are checked and
/// kept, but only [`TensorSource::try_tensor`] mentions them: its error names the dtype.
#[derive(Debug)]
pub struct Safetensors {
    path: PathBuf,
    map: Map,
    tensors: Vec<Entry>,
    names: HashMap<String, usize>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    dtype: String,
    /// `None` for a dtype that is not decoded.
    ty: Option<TensorType>,
    shape: Vec<usize>,
    range: Range<usize>,
}

/// An entry as the header spells it.
#[derive(serde::Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Shape,
    data_offsets: (u64, u64),
}

/// A shape that stops reading after a sane number of dimensions.
struct Shape(Vec<usize>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Shape, D::Error> {
        struct ShapeVisitor;
        impl<'de> Visitor<'de> for ShapeVisitor {
            type Value = Shape;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "a shape of at most {MOST_DIMENSIONS} dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Shape, A::Error> {
                let mut shape = Vec::with_capacity(4);
                while let Some(extent) = sequence.next_element()? {
                    if shape.len() == MOST_DIMENSIONS {
                        return Err(A::Error::invalid_length(MOST_DIMENSIONS + 1, &self));
                    }
                    shape.push(extent);
                }
                Ok(Shape(shape))
            }
        }
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

fn weight_type(dtype: &str) -> Option<TensorType> {
    match dtype {
        "F32" => Some(TensorType::F32),
        "F16" => Some(TensorType::F16),
        "BF16" => Some(TensorType::BF16),
        _ => None,
    }
}

/// Bytes of an element of the dtypes that are listed but not decoded; `None` if unknown.
fn other_width(dtype: &str) -> Option<usize> {
    match dtype {
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => Some(1),
        "U16" | "I16" => Some(2),
        "U32" | "I32" => Some(4),
        "U64" | "I64" | "F64" | "C64" => Some(8),
        _ => None,
    }
}

impl Safetensors {
    /// Opens and checks a file.
    pub fn open(path: &Path) -> Result<Safetensors, Error> {
        Safetensors::from_map(path, Map::open(path)?)
    }

    /// Checks a file that is in memory already; `path` is for messages.
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Safetensors, Error> {
        Safetensors::from_map(path, Map::Owned(bytes))
    }

    fn from_map(path: &Path, map: Map) -> Result<Safetensors, Error> {
        let tensors = read_header(path, map.bytes());
        map.check(path)?;
        let tensors = tensors?;
        check_overlaps(path, &tensors)?;
        let names = tensors.iter().enumerate().map(|(index, entry)| (entry.name.clone(), index));
        let names = names.collect();
        Ok(Safetensors { path: path.to_path_buf(), map, tensors, names })
    }

    /// Names and dtypes of the tensors that are not decoded.
    pub fn unsupported(&self) -> impl Iterator<Item = (&str, &str)> {
        let others = self.tensors.iter().filter(|entry| entry.ty.is_none());
        others.map(|entry| (entry.name.as_str(), entry.dtype.as_str()))
    }

    /// Names of all tensors in file order, decoded or not.
    pub(crate) fn all_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|entry| entry.name.as_str())
    }

    /// Whether the file lists a tensor, decoded or not.
    pub fn contains(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.names.get(name).map(|&index| &self.tensors[index])
    }
}

fn read_header(path: &Path, bytes: &[u8]) -> Result<Vec<Entry>, Error> {
    let foreign = || {
        let message = format!("is no safetensors file: it {}", sniff::describe(bytes));
        Error::new(ErrorKind::Foreign, path, message)
    };
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else { return Err(foreign()) };
    let length = u64::from_le_bytes(*length);
    if length > LARGEST_HEADER || rest.first().is_some_and(|&byte| byte != b'{') {
        return Err(foreign());
    }
    let Some((header, data)) = rest.split_at_checked(length as usize) else {
        let message = format!(
            "truncated: the header needs {length} bytes, the file has {}; download it again",
            bytes.len()
        );
        return Err(Error::new(ErrorKind::Truncated, path, message));
    };
    let entries: Entries<RawEntry> = serde_json::from_slice(header)
        .map_err(|error| json::invalid(path, "safetensors header", &error))?;
    let start = 8 + header.len();
    let checked =
        entries.0.into_iter().map(|(name, raw)| check(path, name, raw, start, data.len()));
    checked.collect()
}

/// Checks one entry against the size of the data, and places it in the file.
fn check(
    path: &Path,
    name: String,
    raw: RawEntry,
    start: usize,
    data_bytes: usize,
) -> Result<Entry, Error> {
    let RawEntry { dtype, shape: Shape(shape), data_offsets: (begin, end) } = raw;
    let what = format!("tensor {}", quoted(&name));
    let malformed = |message: String| Error::new(ErrorKind::Malformed, path, message);
    if begin > end {
        return Err(malformed(format!("{what} ends at {end}, before it begins at {begin}")));
    }
    if end > data_bytes as u64 {
        let message = format!(
            "truncated: {what} needs bytes {begin}..{end} of the data, the file has {data_bytes}; \
             download it again"
        );
        return Err(Error::new(ErrorKind::Truncated, path, message));
    }
    let ty = weight_type(&dtype);
    let elements = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
    let expected = match (ty, other_width(&dtype)) {
        (Some(ty), _) => Some(stored_bytes(ty, &shape).ok()),
        (None, Some(width)) => Some(elements.and_then(|count| count.checked_mul(width))),
        // A dtype newer than this crate: its size is not known, only its range.
        (None, None) => None,
    };
    if expected.is_some_and(|bytes| bytes.map(|bytes| bytes as u64) != Some(end - begin)) {
        let dtype = quoted(&dtype);
        return Err(malformed(format!(
            "{what} of dtype {dtype} and shape {shape:?} does not take the {} bytes it is given",
            end - begin
        )));
    }
    let range = start + begin as usize..start + end as usize;
    Ok(Entry { name, dtype, ty, shape, range })
}

/// Tensors that share bytes would let a small file claim to be a model of any size.
fn check_overlaps(path: &Path, tensors: &[Entry]) -> Result<(), Error> {
    let mut order: Vec<_> = tensors.iter().filter(|entry| !entry.range.is_empty()).collect();
    order.sort_by_key(|entry| entry.range.start);
    for pair in order.windows(2) {
        if pair[0].range.end > pair[1].range.start {
            let (first, second) = (quoted(&pair[0].name), quoted(&pair[1].name));
            let message = format!("tensors {first} and {second} overlap");
            return Err(Error::new(ErrorKind::Malformed, path, message));
        }
    }
    Ok(())
}

impl Entry {
    fn info(&self) -> Option<TensorInfo> {
        Some(TensorInfo {
            name: self.name.clone(),
            ty: self.ty?,
            shape: self.shape.clone(),
            bytes: self.range.len() as u64,
        })
    }
}

impl TensorSource for Safetensors {
    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let entry = self.entry(name)?;
        Some(Tensor {
            name: entry.name.clone(),
            ty: entry.ty?,
            shape: entry.shape.clone(),
            bytes: Cow::Borrowed(&self.map.bytes()[entry.range.clone()]),
        })
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.entry(name)?.info()
    }

    fn tensor_infos(&self) -> Vec<TensorInfo> {
        self.tensors.iter().filter_map(Entry::info).collect()
    }

    fn release(&self, bytes: &[u8]) {
        self.map.release(bytes);
    }

    fn check_read(&self) -> Result<(), Error> {
        self.map.check(&self.path)
    }

    fn try_tensor(&self, name: &str) -> Result<Tensor<'_>, Error> {
        if let Some(tensor) = self.tensor(name) {
            return Ok(tensor);
        }
        let Some(entry) = self.entry(name) else { return Err(missing_tensor(&self.path, name)) };
        let message = format!(
            "tensor {} has dtype {}, which is not supported; supported: F32, F16, BF16",
            quoted(name),
            quoted(&entry.dtype)
        );
        Err(Error::new(ErrorKind::Unsupported, &self.path, message))
    }
}
