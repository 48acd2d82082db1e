//! Reads the header, the metadata and the tensor list of a GGUF file, trusting none of it.
//!
//! ```text
//! "GGUF"  version:u32  tensors:u64  pairs:u64
//! pairs   × { key:string  type:u32  value }          string = length:u64 bytes
//! tensors × { name:string  dims:u32  extents:dims × u64  type:u32  offset:u64 }
//! padding to general.alignment (32 unless told), then the tensors' bytes at their offsets
//! ```

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use super::value::{Array, Value, code};
use crate::error::{Error, ErrorKind, quoted};
use crate::sniff;
use crate::tensor::{TensorInfo, stored_bytes};
use crate::types::{TensorType, ggml_type_name};

/// Dimensions beyond this are in no model and in no version of the format.
const MOST_DIMENSIONS: u32 = 4;
/// A pair takes at least its key's length, one byte of key, its type and one byte of value.
const LEAST_PAIR_BYTES: u64 = 8 + 1 + 4 + 1;
/// A tensor takes at least its name's length, its dimension count, its type and its offset.
const LEAST_TENSOR_BYTES: u64 = 8 + 1 + 4 + 4 + 8;

/// The header of a GGUF file, wholly checked against the file's size.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) metadata: Vec<(String, Value)>,
    pub(super) keys: HashMap<String, usize>,
    pub(super) tensors: Vec<(TensorInfo, Range<usize>)>,
    pub(super) names: HashMap<String, usize>,
}

/// Reads the header of the file that `bytes` is; `path` is for messages.
pub(super) fn header(path: &Path, bytes: &[u8]) -> Result<Header, Error> {
    if !bytes.starts_with(b"GGUF") {
        let message = format!("is not a GGUF file: it {}", sniff::describe(bytes));
        return Err(Error::new(ErrorKind::Foreign, path, message));
    }
    let mut reader = Reader::begin(path, bytes);
    let version = reader.u32("the version")?;
    check_version(&reader, version)?;
    let tensor_count = reader.u64("the number of tensors")?;
    let pair_count = reader.u64("the number of metadata pairs")?;
    reader.justify(pair_count, LEAST_PAIR_BYTES, "metadata pairs")?;
    reader.justify(tensor_count, LEAST_TENSOR_BYTES, "tensors")?;

    let mut metadata = Vec::new();
    let mut keys = HashMap::new();
    for index in 0..pair_count {
        let key = reader.name(|| format!("metadata key {index}"))?;
        let value = reader.value(&key)?;
        if keys.insert(key.clone(), metadata.len()).is_some() {
            return Err(reader.malformed(format!("key {} occurs twice", quoted(&key))));
        }
        metadata.push((key, value));
    }
    let lookup = |key: &str| keys.get(key).map(|&index| &metadata[index].1);
    check_single_file(&reader, lookup("split.count"))?;
    let alignment = alignment(&reader, lookup("general.alignment"))?;
    let (listed, names) = tensor_list(&mut reader, tensor_count, alignment)?;
    let tensors = place(&reader, listed, alignment)?;
    check_overlaps(&reader, &tensors)?;
    Ok(Header { version, metadata, keys, tensors, names })
}

fn check_version(reader: &Reader<'_>, version: u32) -> Result<(), Error> {
    let message = match version {
        2 | 3 => return Ok(()),
        1 => "is GGUF version 1, which is no longer read; convert the original model again".into(),
        // A small number read in the wrong byte order has only its top byte set.
        _ if version != 0 && version & 0x00ff_ffff == 0 => {
            "is a big-endian GGUF file; only little-endian files are read".into()
        }
        _ => format!("is GGUF version {version}; versions 2 and 3 are read"),
    };
    Err(Error::new(ErrorKind::Unsupported, reader.path, message))
}

fn check_single_file(reader: &Reader<'_>, count: Option<&Value>) -> Result<(), Error> {
    match count.and_then(Value::as_integer) {
        Some(count) if count > 1 => Err(Error::new(
            ErrorKind::Unsupported,
            reader.path,
            format!(
                "is one of {count} parts of a split model (split.count); \
                 join them first, with 'llama-gguf-split --merge'"
            ),
        )),
        _ => Ok(()),
    }
}

fn alignment(reader: &Reader<'_>, value: Option<&Value>) -> Result<usize, Error> {
    let Some(value) = value else { return Ok(32) };
    value
        .as_integer()
        .and_then(|alignment| usize::try_from(alignment).ok())
        .filter(|alignment| alignment.is_power_of_two())
        .ok_or_else(|| {
            let found = match value.as_integer() {
                Some(number) => number.to_string(),
                None => format!("a value of type {}", value.type_name()),
            };
            reader.malformed(format!("general.alignment must be a power of two, found {found}"))
        })
}

/// The tensor list: descriptions with their offsets from the start of the data, and their names.
#[allow(clippy::type_complexity)] // A list and its index, used once.
fn tensor_list(
    reader: &mut Reader<'_>,
    count: u64,
    alignment: usize,
) -> Result<(Vec<(TensorInfo, u64)>, HashMap<String, usize>), Error> {
    let mut listed = Vec::new();
    let mut names = HashMap::new();
    for index in 0..count {
        let (info, offset) = tensor(reader, index, alignment)?;
        if names.insert(info.name.clone(), listed.len()).is_some() {
            return Err(reader.malformed(format!("tensor {} occurs twice", quoted(&info.name))));
        }
        listed.push((info, offset));
    }
    Ok((listed, names))
}

/// The byte range of each tensor in the file. The data starts where the list ended, aligned.
fn place(
    reader: &Reader<'_>,
    listed: Vec<(TensorInfo, u64)>,
    alignment: usize,
) -> Result<Vec<(TensorInfo, Range<usize>)>, Error> {
    let start = reader.position.checked_next_multiple_of(alignment);
    let mut placed = Vec::with_capacity(listed.len());
    for (info, offset) in listed {
        let range = start.and_then(|start| {
            let begin = start.checked_add(usize::try_from(offset).ok()?)?;
            Some(begin..begin.checked_add(info.bytes as usize)?)
        });
        let range = range.ok_or_else(|| {
            let name = quoted(&info.name);
            reader.malformed(format!("tensor {name} has offset {offset}, beyond any file"))
        })?;
        if range.end > reader.bytes.len() {
            return Err(Error::new(
                ErrorKind::Truncated,
                reader.path,
                format!(
                    "truncated: tensor {} needs bytes {}..{}, the file has {}; download it again",
                    quoted(&info.name),
                    range.start,
                    range.end,
                    reader.bytes.len()
                ),
            ));
        }
        placed.push((info, range));
    }
    Ok(placed)
}

/// Tensors that share bytes would let a small file claim to be a model of any size.
fn check_overlaps(reader: &Reader<'_>, placed: &[(TensorInfo, Range<usize>)]) -> Result<(), Error> {
    let mut order: Vec<_> = placed.iter().collect();
    order.sort_by_key(|(_, range)| range.start);
    for pair in order.windows(2) {
        let ((first, range), (second, next)) = (pair[0], pair[1]);
        if range.end > next.start {
            let (first, second) = (quoted(&first.name), quoted(&second.name));
            return Err(reader.malformed(format!("tensors {first} and {second} overlap")));
        }
    }
    Ok(())
}

/// One entry of the tensor list and its offset from the start of the data.
fn tensor(
    reader: &mut Reader<'_>,
    index: u64,
    alignment: usize,
) -> Result<(TensorInfo, u64), Error> {
    let name = reader.name(|| format!("the name of tensor {index}"))?;
    let what = format!("tensor {}", quoted(&name));
    let dimensions = reader.u32(&what)?;
    if dimensions > MOST_DIMENSIONS {
        let message =
            format!("{what} has {dimensions} dimensions; at most {MOST_DIMENSIONS} are allowed");
        return Err(reader.malformed(message));
    }
    let mut shape = Vec::with_capacity(dimensions as usize);
    for _ in 0..dimensions {
        let extent = reader.u64(&what)?;
        let extent = usize::try_from(extent).ok().filter(|&extent| extent > 0);
        shape.push(extent.ok_or_else(|| reader.malformed(format!("{what} has an empty shape")))?);
    }
    // The file lists the contiguous dimension first.
    shape.reverse();
    let type_code = reader.u32(&what)?;
    let offset = reader.u64(&what)?;
    let Some(ty) = TensorType::from_ggml(type_code) else {
        let message = format!(
            "{what} has type {}, which is not supported; supported: {}",
            ggml_type_name(type_code),
            TensorType::list()
        );
        return Err(Error::new(ErrorKind::Unsupported, reader.path, message));
    };
    let bytes = stored_bytes(ty, &shape)
        .map_err(|reason| reader.malformed(format!("{what} of type {ty}: {reason}")))?;
    if !offset.is_multiple_of(alignment as u64) {
        let message = format!("{what} has offset {offset}, no multiple of {alignment}");
        return Err(reader.malformed(message));
    }
    Ok((TensorInfo { name, ty, shape, bytes: bytes as u64 }, offset))
}

/// A position in the file that never passes its end.
pub(super) struct Reader<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    /// Behind the magic word.
    pub(super) fn begin(path: &'a Path, bytes: &'a [u8]) -> Reader<'a> {
        Reader { path, bytes, position: bytes.len().min(4) }
    }

    pub(super) fn malformed(&self, message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Malformed, self.path, message)
    }

    fn truncated(&self, what: &str, needed: u64) -> Error {
        let message = format!(
            "truncated: {what} needs {needed} bytes at {}, the file has {}; download it again",
            self.position,
            self.bytes.len()
        );
        Error::new(ErrorKind::Truncated, self.path, message)
    }

    fn remaining(&self) -> u64 {
        (self.bytes.len() - self.position) as u64
    }

    /// Fails unless the rest of the file could hold `count` things of at least `least` bytes.
    fn justify(&self, count: u64, least: u64, what: &str) -> Result<(), Error> {
        match count.checked_mul(least) {
            Some(bytes) if bytes <= self.remaining() => Ok(()),
            _ => {
                let message = format!(
                    "claims {count} {what} at byte {}, more than its {} bytes can hold; \
                     download it again",
                    self.position,
                    self.bytes.len()
                );
                Err(Error::new(ErrorKind::Truncated, self.path, message))
            }
        }
    }

    fn take(&mut self, count: u64, what: &str) -> Result<&'a [u8], Error> {
        if count > self.remaining() {
            return Err(self.truncated(what, count));
        }
        let start = self.position;
        self.position += count as usize;
        Ok(&self.bytes[start..self.position])
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Error> {
        let bytes = self.take(N as u64, what)?;
        Ok(bytes.try_into().expect("N bytes were taken"))
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, Error> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, Error> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A key or a tensor name: not empty, and UTF-8, since lookups depend on it.
    pub(super) fn name(&mut self, what: impl Fn() -> String) -> Result<String, Error> {
        let length = self.u64(&what())?;
        let bytes = self.take(length, &what())?;
        match std::str::from_utf8(bytes) {
            Ok("") => Err(self.malformed(format!("{} is empty", what()))),
            Ok(name) => Ok(name.to_string()),
            Err(_) => Err(self.malformed(format!(
                "{} is no UTF-8 text: {}",
                what(),
                quoted(&String::from_utf8_lossy(bytes))
            ))),
        }
    }

    /// A string value. Vocabularies in the wild hold byte sequences that are no UTF-8.
    fn text(&mut self, what: &str) -> Result<String, Error> {
        let length = self.u64(what)?;
        Ok(String::from_utf8_lossy(self.take(length, what)?).into_owned())
    }

    fn boolean(&self, byte: u8, what: &str) -> Result<bool, Error> {
        match byte {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.malformed(format!("{what} is a boolean with value {byte}"))),
        }
    }

    pub(super) fn value(&mut self, key: &str) -> Result<Value, Error> {
        let what = &format!("key {}", quoted(key));
        Ok(match self.u32(what)? {
            code::U8 => Value::U8(u8::from_le_bytes(self.array(what)?)),
            code::I8 => Value::I8(i8::from_le_bytes(self.array(what)?)),
            code::U16 => Value::U16(u16::from_le_bytes(self.array(what)?)),
            code::I16 => Value::I16(i16::from_le_bytes(self.array(what)?)),
            code::U32 => Value::U32(self.u32(what)?),
            code::I32 => Value::I32(i32::from_le_bytes(self.array(what)?)),
            code::U64 => Value::U64(self.u64(what)?),
            code::I64 => Value::I64(i64::from_le_bytes(self.array(what)?)),
            code::F32 => Value::F32(f32::from_le_bytes(self.array(what)?)),
            code::F64 => Value::F64(f64::from_le_bytes(self.array(what)?)),
            code::BOOL => {
                let [byte] = self.array(what)?;
                Value::Bool(self.boolean(byte, what)?)
            }
            code::STRING => Value::String(self.text(what)?),
            code::ARRAY => Value::Array(self.elements(what)?),
            other => return Err(self.malformed(format!("{what} has unknown type {other}"))),
        })
    }

    fn elements(&mut self, what: &str) -> Result<Array, Error> {
        let kind = self.u32(what)?;
        let count = self.u64(what)?;
        Ok(match kind {
            code::U8 => Array::U8(self.numbers(count, what, u8::from_le_bytes)?),
            code::I8 => Array::I8(self.numbers(count, what, i8::from_le_bytes)?),
            code::U16 => Array::U16(self.numbers(count, what, u16::from_le_bytes)?),
            code::I16 => Array::I16(self.numbers(count, what, i16::from_le_bytes)?),
            code::U32 => Array::U32(self.numbers(count, what, u32::from_le_bytes)?),
            code::I32 => Array::I32(self.numbers(count, what, i32::from_le_bytes)?),
            code::U64 => Array::U64(self.numbers(count, what, u64::from_le_bytes)?),
            code::I64 => Array::I64(self.numbers(count, what, i64::from_le_bytes)?),
            code::F32 => Array::F32(self.numbers(count, what, f32::from_le_bytes)?),
            code::F64 => Array::F64(self.numbers(count, what, f64::from_le_bytes)?),
            code::BOOL => {
                let bytes = self.take(count, what)?;
                let values = bytes.iter().map(|&byte| self.boolean(byte, what));
                Array::Bool(values.collect::<Result<_, _>>()?)
            }
            code::STRING => {
                // Each string takes at least the 8 bytes of its length.
                self.justify(count, 8, &format!("strings in {what}"))?;
                let mut strings = Vec::with_capacity(count as usize);
                for _ in 0..count {
                    strings.push(self.text(what)?);
                }
                Array::String(strings)
            }
            // No known model has one, and unbounded nesting is a way to exhaust the stack.
            code::ARRAY => {
                let message = format!("{what} is an array of arrays, which is not supported");
                return Err(Error::new(ErrorKind::Unsupported, self.path, message));
            }
            other => {
                let message = format!("{what} is an array of unknown type {other}");
                return Err(self.malformed(message));
            }
        })
    }

    fn numbers<T, const N: usize>(
        &mut self,
        count: u64,
        what: &str,
        decode: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, Error> {
        self.justify(count, N as u64, &format!("numbers in {what}"))?;
        let bytes = self.take(count * N as u64, what)?;
        Ok(bytes.as_chunks::<N>().0.iter().map(|raw| decode(*raw)).collect())
    }
}
