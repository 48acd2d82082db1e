//! What can be said of a GGUF file that does not open: everything before the first thing that is
//! wrong, and what that is.

use std::path::Path;

use super::parse::{Reader, header};
use super::value::Value;
use crate::error::Error;
use crate::map::Map;
use crate::tensor::stored_bytes;
use crate::types::{TensorType, ggml_type_name};

/// A GGUF file as far as it can be read.
#[derive(Debug)]
pub struct GgufSurvey {
    /// Version of the format.
    pub version: u32,
    /// Metadata up to the first pair that cannot be read.
    pub metadata: Vec<(String, Value)>,
    /// Tensors up to the first entry of the list that cannot be read.
    pub tensors: Vec<SurveyedTensor>,
    /// Tensors that the file claims to have.
    pub claimed: u64,
    /// Why the file does not open; none where it does.
    pub problem: Option<Error>,
}

/// An entry of the list of tensors, whose bytes need not be there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SurveyedTensor {
    /// Its name.
    pub name: String,
    /// Its type's name, which need not be one that can be decoded.
    pub ty: String,
    /// Its shape, the contiguous dimension last.
    pub shape: Vec<u64>,
    /// Bytes that it takes, where its type is known.
    pub bytes: Option<u64>,
}

impl GgufSurvey {
    /// Reads what can be read. An error means that the file is no GGUF file, or has no whole head.
    pub fn open(path: &Path) -> Result<GgufSurvey, Error> {
        let map = Map::open(path)?;
        let bytes = map.bytes();
        let problem = header(path, bytes).err();
        let mut reader = Reader::begin(path, bytes);
        let (Ok(version), Ok(claimed), Ok(pairs)) =
            (reader.u32("the version"), reader.u64("tensors"), reader.u64("pairs"))
        else {
            return Err(problem.unwrap_or_else(|| reader.malformed("has no head")));
        };
        if !bytes.starts_with(b"GGUF") || !(2..=3).contains(&version) {
            return Err(problem.unwrap_or_else(|| reader.malformed("is not a GGUF file")));
        }
        let mut metadata = Vec::new();
        let mut pair = || -> Result<(String, Value), Error> {
            let key = reader.name(|| "a key".to_string())?;
            let value = reader.value(&key)?;
            Ok((key, value))
        };
        // Each takes bytes of the file, so that a count that is a lie ends with the file.
        while (metadata.len() as u64) < pairs
            && let Ok(found) = pair()
        {
            metadata.push(found);
        }
        let mut tensors = Vec::new();
        // Behind a pair that cannot be read, nobody knows where the list begins.
        while metadata.len() as u64 == pairs
            && (tensors.len() as u64) < claimed
            && let Ok(tensor) = tensor(&mut reader)
        {
            tensors.push(tensor);
        }
        map.check(path)?;
        Ok(GgufSurvey { version, metadata, tensors, claimed, problem })
    }
}

fn tensor(reader: &mut Reader<'_>) -> Result<SurveyedTensor, Error> {
    const MOST_DIMENSIONS: u32 = 16;
    let name = reader.name(|| "a tensor's name".to_string())?;
    let dimensions = reader.u32("dimensions")?;
    if dimensions > MOST_DIMENSIONS {
        return Err(reader.malformed(format!("a tensor has {dimensions} dimensions")));
    }
    let extents = (0..dimensions).map(|_| reader.u64("an extent"));
    let mut shape = extents.collect::<Result<Vec<u64>, Error>>()?;
    shape.reverse();
    let code = reader.u32("a type")?;
    reader.u64("an offset")?;
    let known = TensorType::from_ggml(code);
    let sizes = shape.iter().map(|&extent| usize::try_from(extent).ok());
    let bytes = known.zip(sizes.collect::<Option<Vec<usize>>>());
    Ok(SurveyedTensor {
        name,
        ty: known.map_or_else(|| ggml_type_name(code), |ty| ty.to_string()),
        bytes: bytes.and_then(|(ty, shape)| stored_bytes(ty, &shape).ok()).map(|b| b as u64),
        shape,
    })
}
