//! GGUF files: metadata and tensors in one mapped file, versions 2 and 3, little-endian.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::map::Map;
use crate::tensor::{Tensor, TensorInfo, TensorSource, missing_tensor};

mod parse;
pub(crate) mod survey;
pub mod value;
pub mod write;

use value::{Array, Value};

/// An open GGUF file. Metadata is decoded; weights stay in the mapped file until asked for.
///
/// Opening checks everything but the weights themselves: a file with a tensor of a type this
/// crate cannot decode does not open, and the error names the tensor and the type.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    map: Map,
    version: u32,
    metadata: Vec<(String, Value)>,
    keys: HashMap<String, usize>,
    tensors: Vec<(TensorInfo, Range<usize>)>,
    names: HashMap<String, usize>,
}

/// Whether the file starts like a GGUF file; says nothing about the rest.
pub fn is_gguf(path: impl AsRef<Path>) -> bool {
    let path = path.as_ref();
    let mut magic = [0; 4];
    // Only regular files are opened: a named pipe would block.
    path.is_file()
        && File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok()
        && magic == *b"GGUF"
}

impl Gguf {
    /// Opens and checks a file.
    pub fn open(path: &Path) -> Result<Gguf, Error> {
        Gguf::from_map(path, Map::open(path)?)
    }

    /// Checks a file that is in memory already; `path` is for messages.
    pub fn from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Gguf, Error> {
        Gguf::from_map(path, Map::Owned(bytes))
    }

    fn from_map(path: &Path, map: Map) -> Result<Gguf, Error> {
        let header = parse::header(path, map.bytes());
        map.check(path)?;
        let parse::Header { version, metadata, keys, tensors, names } = header?;
        Ok(Gguf { path: path.to_path_buf(), map, version, metadata, keys, tensors, names })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// All metadata in file order.
    pub fn metadata(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).map(|&index| &self.metadata[index].1)
    }

    /// The text of a key; `None` if absent or no text.
    pub fn string(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }

    /// The non-negative integer of a key, stored in any integer type.
    pub fn unsigned(&self, key: &str) -> Option<u64> {
        u64::try_from(self.get(key)?.as_integer()?).ok()
    }

    /// The number of a key, stored in any float or integer type.
    pub fn float(&self, key: &str) -> Option<f64> {
        self.get(key)?.as_float()
    }

    /// The boolean of a key.
    pub fn boolean(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// The array of a key, of whatever element type.
    pub fn array(&self, key: &str) -> Option<&Array> {
        match self.get(key)? {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }

    /// The array of text of a key. Invalid UTF-8 was replaced by U+FFFD.
    pub fn strings(&self, key: &str) -> Option<&[String]> {
        match self.array(key)? {
            Array::String(strings) => Some(strings),
            _ => None,
        }
    }

    /// The array of numbers of a key, stored in any float or integer type.
    pub fn floats(&self, key: &str) -> Option<Vec<f32>> {
        self.array(key)?.to_floats()
    }

    /// The array of integers of a key, stored in any integer type.
    pub fn integers(&self, key: &str) -> Option<Vec<i64>> {
        self.array(key)?.to_integers()
    }
}

impl TensorSource for Gguf {
    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let (info, range) = &self.tensors[*self.names.get(name)?];
        Some(Tensor {
            name: info.name.clone(),
            ty: info.ty,
            shape: info.shape.clone(),
            bytes: Cow::Borrowed(&self.map.bytes()[range.clone()]),
        })
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        Some(self.tensors[*self.names.get(name)?].0.clone())
    }

    fn tensor_infos(&self) -> Vec<TensorInfo> {
        self.tensors.iter().map(|(info, _)| info.clone()).collect()
    }

    fn release(&self, bytes: &[u8]) {
        self.map.release(bytes);
    }

    fn check_read(&self) -> Result<(), Error> {
        self.map.check(&self.path)
    }

    fn try_tensor(&self, name: &str) -> Result<Tensor<'_>, Error> {
        self.tensor(name).ok_or_else(|| missing_tensor(&self.path, name))
    }
}
