//! JSON out of untrusted files: objects without duplicate keys, files of bounded size.

use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::marker::PhantomData;
use std::path::Path;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error as _, IgnoredAny};
use serde::de::{MapAccess, Visitor};

use crate::error::{Error, ErrorKind, quoted};

/// Larger JSON files are refused: the largest index in the wild is about 10 MB.
const LARGEST_FILE: u64 = 64 << 20;

/// A JSON object as a list in file order. A key that occurs twice is an error, where a map would
/// keep the last; `__metadata__`, which in safetensors names no tensor, is skipped.
#[derive(Debug)]
pub(crate) struct Entries<V>(pub(crate) Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Entries<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries<V>, D::Error> {
        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}

struct EntriesVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for EntriesVisitor<V> {
    type Value = Entries<V>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object with one entry for each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<V>, A::Error> {
        let mut entries = Vec::new();
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom(format!("key {} occurs twice", quoted(&key))));
            }
            if key == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
            } else {
                entries.push((key, map.next_value()?));
            }
        }
        Ok(Entries(entries))
    }
}

/// Reads and decodes a JSON file.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let metadata = fs::metadata(path).map_err(|source| Error::io(path, "open", source))?;
    if !metadata.is_file() {
        return Err(Error::new(ErrorKind::Argument, path, "is no regular file"));
    }
    let file = File::open(path).map_err(|source| Error::io(path, "open", source))?;
    let mut bytes = Vec::new();
    // One byte more than allowed, so that a file of any size is told apart without reading it.
    let read = file.take(LARGEST_FILE + 1).read_to_end(&mut bytes);
    read.map_err(|source| Error::io(path, "read", source))?;
    if bytes.len() as u64 > LARGEST_FILE {
        let message = format!("is larger than {} MiB, no plausible JSON", LARGEST_FILE >> 20);
        return Err(Error::new(ErrorKind::Malformed, path, message));
    }
    serde_json::from_slice(&bytes).map_err(|error| invalid(path, "JSON", &error))
}

/// The error for text that does not decode; it says where in the text.
pub(crate) fn invalid(path: &Path, what: &str, error: &serde_json::Error) -> Error {
    let kind = if error.is_eof() { ErrorKind::Truncated } else { ErrorKind::Malformed };
    Error::new(kind, path, format!("invalid {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_order_and_refuse_duplicates() {
        let text = r#"{"b": 1, "__metadata__": {"format": [null]}, "a": 2}"#;
        let entries: Entries<u32> = serde_json::from_str(text).unwrap();
        assert_eq!(entries.0, [("b".to_string(), 1), ("a".to_string(), 2)]);
        let error = serde_json::from_str::<Entries<u32>>(r#"{"a": 1, "a": 2}"#).unwrap_err();
        assert!(error.to_string().contains("key 'a' occurs twice"), "{error}");
    }
}
