//! Read-only memory maps: the one place of this crate with `unsafe`.

use std::fs::{self, File};
use std::path::Path;

use memmap2::Mmap;

use crate::error::{Error, ErrorKind};

/// The bytes of a file: mapped, so that weights are read when first touched, or owned.
#[derive(Debug)]
pub(crate) enum Map {
    /// A mapped file.
    Mapped(Mmap),
    /// Bytes that were in memory already. Also an empty file: a map of no bytes is an error.
    Owned(Vec<u8>),
}

impl Map {
    /// Maps a regular file.
    ///
    /// Whoever runs the process must leave the file alone while it is open: another process that
    /// cuts it short makes the next read fault (SIGBUS), as with every program that maps files.
    /// Replacing it by rename is fine, the map keeps the old file.
    pub(crate) fn open(path: &Path) -> Result<Map, Error> {
        // Asked before opening, because opening a named pipe would wait for a writer for ever.
        let metadata = fs::metadata(path).map_err(|source| Error::io(path, "open", source))?;
        if !metadata.is_file() {
            let what = if metadata.is_dir() { "a folder" } else { "no regular file" };
            return Err(Error::new(
                ErrorKind::Argument,
                path,
                format!("is {what}; a file was expected"),
            ));
        }
        if metadata.len() == 0 {
            return Ok(Map::Owned(Vec::new()));
        }
        let file = File::open(path).map_err(|source| Error::io(path, "open", source))?;
        // SAFETY: the map is private to this module and handed out only as `&[u8]`, for which
        // every bit pattern is valid; nothing in this crate writes to a file in place (see
        // `replace`), and the promise about other processes is stated above.
        let map = unsafe { Mmap::map(&file) };
        map.map(Map::Mapped).map_err(|source| Error::io(path, "map into memory", source))
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Map::Mapped(map) => map,
            Map::Owned(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_and_absent_files_are_errors() {
        let folder = std::env::temp_dir();
        let error = Map::open(&folder).unwrap_err();
        assert!(error.to_string().contains("is a folder"), "{error}");
        let error = Map::open(&folder.join("pianola-no-such-file")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Missing);
    }

    #[test]
    fn an_empty_file_maps_to_no_bytes() {
        let path = std::env::temp_dir().join(format!("pianola-empty-{}", std::process::id()));
        fs::write(&path, b"").unwrap();
        let map = Map::open(&path);
        fs::remove_file(&path).unwrap();
        assert!(map.unwrap().bytes().is_empty());
    }
}
