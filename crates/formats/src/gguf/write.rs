//! Writes GGUF version 3 files.

use std::collections::HashSet;
use std::path::Path;

use super::value::{Array, Value, code};
use crate::error::{Error, ErrorKind, quoted};
use crate::replace::Replacement;
use crate::tensor::{Tensor, TensorInfo, stored_bytes};

/// Alignment of tensors where `general.alignment` does not say otherwise.
const DEFAULT_ALIGNMENT: usize = 32;

/// A small model in memory, to be written as a GGUF file. For models that should not be held in
/// memory there is [`GgufStream`].
#[derive(Clone, Default, Debug)]
pub struct GgufWriter<'a> {
    metadata: Vec<(String, Value)>,
    tensors: Vec<Tensor<'a>>,
}

impl<'a> GgufWriter<'a> {
    /// A model with no metadata and no tensors.
    pub fn new() -> GgufWriter<'a> {
        GgufWriter::default()
    }

    /// Sets a key; a key set before is replaced in place.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) -> &mut Self {
        let (key, value) = (key.into(), value.into());
        match self.metadata.iter_mut().find(|(known, _)| *known == key) {
            Some(pair) => pair.1 = value,
            None => self.metadata.push((key, value)),
        }
        self
    }

    /// Appends a tensor.
    pub fn add(&mut self, tensor: Tensor<'a>) -> &mut Self {
        self.tensors.push(tensor);
        self
    }

    /// Writes the file; it appears under its name only when whole.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let mut stream = GgufStream::create(path, &self.metadata, self.infos())?;
        for tensor in &self.tensors {
            stream.push(&tensor.bytes)?;
        }
        stream.finish()
    }

    /// The file's bytes.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let path = Path::new("");
        let infos = self.infos();
        let alignment = check(path, &self.metadata, &infos)?;
        let mut bytes = header(&self.metadata, &infos, alignment);
        for tensor in &self.tensors {
            check_size(path, &tensor.info(), tensor.bytes.len())?;
            bytes.extend_from_slice(&tensor.bytes);
            bytes.resize(bytes.len().next_multiple_of(alignment), 0);
        }
        Ok(bytes)
    }

    fn infos(&self) -> Vec<TensorInfo> {
        self.tensors.iter().map(Tensor::info).collect()
    }
}

/// A GGUF file being written tensor by tensor, in the order declared.
#[derive(Debug)]
pub struct GgufStream {
    file: Replacement,
    tensors: Vec<TensorInfo>,
    pushed: usize,
    alignment: usize,
}

impl GgufStream {
    /// Writes the header. `bytes` of each declaration must be what its type and shape imply.
    pub fn create(
        path: &Path,
        metadata: &[(String, Value)],
        tensors: Vec<TensorInfo>,
    ) -> Result<GgufStream, Error> {
        let alignment = check(path, metadata, &tensors)?;
        let mut file = Replacement::create(path)?;
        file.write(&header(metadata, &tensors, alignment))?;
        Ok(GgufStream { file, tensors, pushed: 0, alignment })
    }

    /// Writes the next tensor's bytes.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(info) = self.tensors.get(self.pushed) else {
            let message = format!("all {} declared tensors are written already", self.pushed);
            return Err(Error::new(ErrorKind::Argument, self.file.target(), message));
        };
        check_size(self.file.target(), info, bytes.len())?;
        self.file.write(bytes)?;
        let padding = bytes.len().next_multiple_of(self.alignment) - bytes.len();
        self.file.write(&vec![0; padding])?;
        self.pushed += 1;
        Ok(())
    }

    /// Gives the file its name, once every declared tensor is written.
    pub fn finish(self) -> Result<(), Error> {
        if let Some(info) = self.tensors.get(self.pushed) {
            let message = format!("tensor {} was declared but not written", quoted(&info.name));
            return Err(Error::new(ErrorKind::Argument, self.file.target(), message));
        }
        self.file.finish()
    }
}

/// Checks what the reader would refuse, and returns the alignment.
fn check(
    path: &Path,
    metadata: &[(String, Value)],
    tensors: &[TensorInfo],
) -> Result<usize, Error> {
    let argument = |message: String| Error::new(ErrorKind::Argument, path, message);
    let mut alignment = DEFAULT_ALIGNMENT;
    let mut seen = HashSet::new();
    for (key, value) in metadata {
        if key.is_empty() || !seen.insert(key) {
            return Err(argument(format!("key {} is empty or given twice", quoted(key))));
        }
        if key == "general.alignment" {
            let given = value.as_integer().and_then(|value| u32::try_from(value).ok());
            let given = given.filter(|alignment| alignment.is_power_of_two());
            let given = given
                .ok_or_else(|| argument("general.alignment must be a power of two".to_string()))?;
            alignment = given as usize;
        }
    }
    seen.clear();
    for info in tensors {
        let name = quoted(&info.name);
        if info.name.is_empty() || !seen.insert(&info.name) {
            return Err(argument(format!("tensor {name} has no name or is given twice")));
        }
        if info.shape.len() > 4 || info.shape.contains(&0) {
            let message = format!("tensor {name} has shape {:?}", info.shape);
            return Err(argument(format!("{message}; GGUF holds 1 to 4 dimensions, none empty")));
        }
        let expected = stored_bytes(info.ty, &info.shape)
            .map_err(|reason| argument(format!("tensor {name} of type {}: {reason}", info.ty)))?;
        check_size(path, info, expected)?;
    }
    Ok(alignment)
}

fn check_size(path: &Path, info: &TensorInfo, found: usize) -> Result<(), Error> {
    if found as u64 == info.bytes {
        return Ok(());
    }
    let message = format!(
        "tensor {} of type {} and shape {:?}: {} bytes declared, {found} found",
        quoted(&info.name),
        info.ty,
        info.shape,
        info.bytes
    );
    Err(Error::new(ErrorKind::Argument, path, message))
}

/// Everything before the first tensor's bytes, padded to the alignment.
fn header(metadata: &[(String, Value)], tensors: &[TensorInfo], alignment: usize) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        put_text(&mut out, key);
        put_value(&mut out, value);
    }
    let mut offset = 0u64;
    for info in tensors {
        put_text(&mut out, &info.name);
        out.extend((info.shape.len() as u32).to_le_bytes());
        for &extent in info.shape.iter().rev() {
            out.extend((extent as u64).to_le_bytes());
        }
        out.extend(info.ty.ggml_code().to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += info.bytes.next_multiple_of(alignment as u64);
    }
    out.resize(out.len().next_multiple_of(alignment), 0);
    out
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let mut put = |code: u32, bytes: &[u8]| {
        out.extend(code.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U8(v) => put(code::U8, &v.to_le_bytes()),
        Value::I8(v) => put(code::I8, &v.to_le_bytes()),
        Value::U16(v) => put(code::U16, &v.to_le_bytes()),
        Value::I16(v) => put(code::I16, &v.to_le_bytes()),
        Value::U32(v) => put(code::U32, &v.to_le_bytes()),
        Value::I32(v) => put(code::I32, &v.to_le_bytes()),
        Value::U64(v) => put(code::U64, &v.to_le_bytes()),
        Value::I64(v) => put(code::I64, &v.to_le_bytes()),
        Value::F32(v) => put(code::F32, &v.to_le_bytes()),
        Value::F64(v) => put(code::F64, &v.to_le_bytes()),
        Value::Bool(v) => put(code::BOOL, &[u8::from(*v)]),
        Value::String(v) => {
            put(code::STRING, &[]);
            put_text(out, v);
        }
        Value::Array(array) => {
            put(code::ARRAY, &[]);
            put_array(out, array);
        }
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    let count = (array.len() as u64).to_le_bytes();
    let mut put = |code: u32, bytes: &mut dyn Iterator<Item = u8>| {
        out.extend(code.to_le_bytes());
        out.extend(count);
        out.extend(bytes);
    };
    match array {
        Array::U8(v) => put(code::U8, &mut v.iter().copied()),
        Array::I8(v) => put(code::I8, &mut v.iter().flat_map(|v| v.to_le_bytes())),
        Array::U16(v) => put(code::U16, &mut v.iter().flat_map(|v| v.to_le_bytes())),
        Array::I16(v) => put(code::I16, &mut v.iter().flat_map(|v| v.to_le_bytes())),
        Array::U32(v) => put(code::U32, &mut v.iter().flat_map(|v| v.to_le_bytes())),
        Array::I32(v) => put(code::I32, &mut v.iter().flat_map(|v| v.to_le_bytes())),
        Array::U64(v) => put(code::U64, &mut v.iter().flat_map(|v| v.to_le_bytes())),
        Array::I64(v) => put(code::I64, &mut v.iter().flat_map(|v| v.to_le_bytes())),
        Array::F32(v) => put(code::F32, &mut v.iter().flat_map(|v| v.to_le_bytes())),
        Array::F64(v) => put(code::F64, &mut v.iter().flat_map(|v| v.to_le_bytes())),
        Array::Bool(v) => put(code::BOOL, &mut v.iter().map(|&v| u8::from(v))),
        Array::String(v) => {
            put(code::STRING, &mut std::iter::empty());
            for text in v {
                put_text(out, text);
            }
        }
    }
}
