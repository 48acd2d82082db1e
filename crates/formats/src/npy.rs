//! NumPy `.npy` arrays: tokens and floats that tests exchange with Python.

use std::path::Path;

use crate::error::{Error, ErrorKind, quoted};
use crate::map::Map;
use crate::replace::Replacement;
use crate::sniff;

/// Bytes of the header that [`F32Writer`] writes: NumPy wants a multiple of 64, and the largest
/// row and column counts fit.
const WRITTEN_HEADER: usize = 128;

/// Reads tokens: one dimension, or two with a single row, of non-negative integers.
pub fn read_tokens(path: impl AsRef<Path>) -> Result<Vec<u32>, Error> {
    let path = path.as_ref();
    let map = Map::open(path)?;
    let (header, data) = parse(path, map.bytes())?;
    if !matches!(header.shape[..], [_] | [1, _]) {
        let message = format!(
            "has shape {:?}; tokens are one dimension, or two with a single row",
            header.shape
        );
        return Err(Error::new(ErrorKind::Unsupported, path, message));
    }
    let read = match header.descr.as_str() {
        "<u2" => tokens(path, data, |raw: [u8; 2]| u16::from_le_bytes(raw).into()),
        "<i4" => tokens(path, data, |raw: [u8; 4]| i32::from_le_bytes(raw).into()),
        "<u4" => tokens(path, data, |raw: [u8; 4]| u32::from_le_bytes(raw).into()),
        "<i8" => tokens(path, data, |raw: [u8; 8]| i64::from_le_bytes(raw).into()),
        "<u8" => tokens(path, data, |raw: [u8; 8]| u64::from_le_bytes(raw).into()),
        other => {
            let wanted = "tokens are little-endian u16, i32, u32, i64 or u64";
            let message = format!("has dtype {}; {wanted}", quoted(other));
            Err(Error::new(ErrorKind::Unsupported, path, message))
        }
    };
    map.check(path)?;
    read
}

fn tokens<const N: usize>(
    path: &Path,
    data: &[u8],
    decode: fn([u8; N]) -> i128,
) -> Result<Vec<u32>, Error> {
    let values = data.as_chunks::<N>().0.iter().map(|raw| decode(*raw)).enumerate();
    let tokens = values.map(|(index, value)| {
        u32::try_from(value).map_err(|_| {
            let message = format!("element {index} is {value}, which is no token");
            Error::new(ErrorKind::Malformed, path, message)
        })
    });
    tokens.collect()
}

/// Reads an array of single floats and its shape, outermost dimension first.
pub fn read_f32(path: impl AsRef<Path>) -> Result<(Vec<usize>, Vec<f32>), Error> {
    let path = path.as_ref();
    let map = Map::open(path)?;
    let (header, data) = parse(path, map.bytes())?;
    if header.descr != "<f4" {
        let message =
            format!("has dtype {}; little-endian float32 was expected", quoted(&header.descr));
        return Err(Error::new(ErrorKind::Unsupported, path, message));
    }
    let floats = data.as_chunks::<4>().0.iter().map(|raw| f32::from_le_bytes(*raw)).collect();
    map.check(path)?;
    Ok((header.shape, floats))
}

/// Writes a matrix of single floats row by row. The file appears under its name only when
/// [`F32Writer::finish`] succeeds, so a partial file never looks whole.
#[derive(Debug)]
pub struct F32Writer {
    file: Replacement,
    columns: usize,
    rows: usize,
}

impl F32Writer {
    /// Starts a matrix of `columns` columns (at least 1) and rows to come.
    pub fn create(path: impl AsRef<Path>, columns: usize) -> Result<F32Writer, Error> {
        let path = path.as_ref();
        if columns == 0 {
            return Err(Error::new(ErrorKind::Argument, path, "a matrix needs a column"));
        }
        let mut file = Replacement::create(path)?;
        // The number of rows is known at the end: `finish` writes over this.
        file.write(&matrix_header(0, columns))?;
        Ok(F32Writer { file, columns, rows: 0 })
    }

    /// Appends whole rows.
    pub fn push_rows(&mut self, values: &[f32]) -> Result<(), Error> {
        if !values.len().is_multiple_of(self.columns) {
            let message =
                format!("{} values are no whole rows of {} columns", values.len(), self.columns);
            return Err(Error::new(ErrorKind::Argument, self.file.target(), message));
        }
        // A piece at a time, so that logits of a long text are not copied whole.
        let mut bytes = Vec::with_capacity(4 * values.len().min(4096));
        for piece in values.chunks(4096) {
            bytes.clear();
            bytes.extend(piece.iter().flat_map(|value| value.to_le_bytes()));
            self.file.write(&bytes)?;
        }
        self.rows += values.len() / self.columns;
        Ok(())
    }

    /// Completes the header and gives the file its name.
    pub fn finish(mut self) -> Result<(), Error> {
        self.file.patch_start(&matrix_header(self.rows, self.columns))?;
        self.file.finish()
    }
}

fn matrix_header(rows: usize, columns: usize) -> [u8; WRITTEN_HEADER] {
    let text =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    let mut header = [b' '; WRITTEN_HEADER];
    header[..8].copy_from_slice(b"\x93NUMPY\x01\x00");
    header[8..10].copy_from_slice(&(WRITTEN_HEADER as u16 - 10).to_le_bytes());
    header[10..10 + text.len()].copy_from_slice(text.as_bytes());
    header[WRITTEN_HEADER - 1] = b'\n';
    header
}

/// The description of an array.
#[derive(PartialEq, Debug)]
struct Header {
    descr: String,
    shape: Vec<usize>,
}

/// Splits a file into its header and its data, whose length is checked against the shape.
fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<(Header, &'a [u8]), Error> {
    let truncated = |message: String| Error::new(ErrorKind::Truncated, path, message);
    let Some(rest) = bytes.strip_prefix(b"\x93NUMPY") else {
        let message = format!("is no .npy array: it {}", sniff::describe(bytes));
        return Err(Error::new(ErrorKind::Foreign, path, message));
    };
    // Version 1 has a u16 for the header's length, versions 2 and 3 a u32; 3 allows UTF-8.
    let (length, rest) = match rest {
        [1, _, a, b, rest @ ..] => (u16::from_le_bytes([*a, *b]).into(), rest),
        [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]), rest),
        [1..=3, ..] | [] => return Err(truncated("ends within its header".to_string())),
        [version, ..] => {
            let message = format!("is .npy version {version}; versions 1 to 3 are read");
            return Err(Error::new(ErrorKind::Unsupported, path, message));
        }
    };
    let Some((text, data)) = rest.split_at_checked(length as usize) else {
        let message = format!("the header needs {length} bytes, the file has {}", rest.len());
        return Err(truncated(message));
    };
    let (header, fortran_order) =
        std::str::from_utf8(text).ok().and_then(dictionary).ok_or_else(|| {
            let text = quoted(&String::from_utf8_lossy(text));
            let wanted = "a plain array's descr, fortran_order and shape";
            let message = format!("the header is {text}, where {wanted} were expected");
            Error::new(ErrorKind::Malformed, path, message)
        })?;
    // The order matters only where two dimensions have more than one element.
    if fortran_order && header.shape.iter().filter(|&&extent| extent != 1).count() > 1 {
        let message = "is stored by columns (fortran_order); save it with numpy.ascontiguousarray";
        return Err(Error::new(ErrorKind::Unsupported, path, message));
    }
    check_length(path, &header, data.len())?;
    Ok((header, data))
}

fn check_length(path: &Path, header: &Header, found: usize) -> Result<(), Error> {
    let Header { descr, shape } = header;
    let width = descr.get(2..).and_then(|width| width.parse::<usize>().ok());
    let Some(width) = width.filter(|_| descr.starts_with(['<', '|'])) else {
        let wanted = "little-endian numbers were expected";
        let message = format!("has dtype {}; {wanted}", quoted(descr));
        return Err(Error::new(ErrorKind::Unsupported, path, message));
    };
    let needed = shape.iter().try_fold(width, |bytes, &extent| bytes.checked_mul(extent));
    if needed == Some(found) {
        return Ok(());
    }
    let kind = match needed {
        Some(needed) if needed < found => ErrorKind::Malformed,
        _ => ErrorKind::Truncated,
    };
    let needed = needed.map_or("more bytes than fit".to_string(), |needed| needed.to_string());
    let message = format!("shape {shape:?} of {descr} needs {needed} bytes of data, found {found}");
    Err(Error::new(kind, path, message))
}

/// Reads the header's Python dictionary: exactly `descr`, `fortran_order` and `shape`.
fn dictionary(text: &str) -> Option<(Header, bool)> {
    let (mut descr, mut order, mut shape) = (None, None, None);
    let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
    while !rest.is_empty() {
        let (key, after) = string(rest)?;
        let value = after.trim_start().strip_prefix(':')?.trim_start();
        let after = match key {
            "descr" if descr.is_none() => {
                let (text, after) = string(value)?;
                descr = Some(text.to_string());
                after
            }
            "fortran_order" if order.is_none() => {
                let yes = value.strip_prefix("True").map(|after| (true, after));
                let (value, after) =
                    yes.or_else(|| value.strip_prefix("False").map(|after| (false, after)))?;
                order = Some(value);
                after
            }
            "shape" if shape.is_none() => {
                let (inside, after) = value.strip_prefix('(')?.split_once(')')?;
                shape = Some(extents(inside)?);
                after
            }
            _ => return None,
        };
        let after = after.trim_start();
        // A comma follows every entry; the last may go without.
        rest = match after.strip_prefix(',') {
            Some(after) => after.trim_start(),
            None if after.is_empty() => after,
            None => return None,
        };
    }
    Some((Header { descr: descr?, shape: shape? }, order?))
}

/// A quoted string without escapes at the start of `text`, and what follows.
fn string(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    let (inside, after) = text[1..].split_once(quote)?;
    (!inside.contains('\\')).then_some((inside, after))
}

/// The numbers of a tuple: `3, 4` or `3,` or nothing.
fn extents(inside: &str) -> Option<Vec<usize>> {
    /// More dimensions than NumPy allows.
    const TOO_MANY: usize = 65;
    let inside = inside.trim();
    let inside = inside.strip_suffix(',').unwrap_or(inside);
    if inside.is_empty() {
        return Some(Vec::new());
    }
    let numbers = inside.split(',').take(TOO_MANY).map(|number| number.trim().parse().ok());
    let numbers: Vec<usize> = numbers.collect::<Option<_>>()?;
    (numbers.len() < TOO_MANY).then_some(numbers)
}
