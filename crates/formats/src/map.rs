//! Read-only memory maps: the one place of this crate with `unsafe`.

#[cfg(target_os = "linux")]
mod fault;

use std::fs::{self, File};
use std::path::Path;

use memmap2::Mmap;
#[cfg(unix)]
use {memmap2::UncheckedAdvice, std::ops::Range};

use crate::error::{Error, ErrorKind};

/// The bytes of a file: mapped, so that weights are read when first touched, or owned.
#[derive(Debug)]
pub(crate) enum Map {
    /// A mapped file.
    Mapped(Mapped),
    /// Bytes that were in memory already. Also an empty file: a map of no bytes is an error.
    Owned(Vec<u8>),
}

/// A map, and what tells whether its file is still whole.
#[derive(Debug)]
pub(crate) struct Mapped {
    // Dropped before the map.
    #[cfg(target_os = "linux")]
    guard: fault::Guard,
    map: Mmap,
    file: File,
}

impl Map {
    /// Maps a regular file.
    ///
    /// Another process may cut the file short while it is open. What is read behind its end is zeros
    /// then, and [`Map::check`] says so. Replacing it by rename is fine, the map keeps the old file.
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
        let map = map.map_err(|source| Error::io(path, "map into memory", source))?;
        Ok(Map::Mapped(Mapped {
            #[cfg(target_os = "linux")]
            guard: fault::Guard::over(&map),
            map,
            file,
        }))
    }

    /// An error if the file is shorter than it was, or something that was read could not be. To be asked
    /// once what was read is to be used.
    pub(crate) fn check(&self, path: &Path) -> Result<(), Error> {
        let Map::Mapped(mapped) = self else { return Ok(()) };
        let length = mapped.file.metadata().map(|metadata| metadata.len());
        let length = length.map_err(|source| Error::io(path, "ask for the length", source))?;
        let before = mapped.map.len() as u64;
        if length < before {
            let message = format!(
                "became shorter while it was read, from {before} to {length} bytes; load it again \
                 once nothing writes to it"
            );
            return Err(Error::new(ErrorKind::Truncated, path, message));
        }
        #[cfg(target_os = "linux")]
        if mapped.guard.faulted() {
            let message = "could not be read to its end; check the disk, or whether something \
                           writes to the file, and load it again";
            return Err(Error::new(ErrorKind::Io, path, message));
        }
        Ok(())
    }

    /// Lets the system take back the memory of `bytes`, if they lie in this map; whoever reads them
    /// again reads the file again.
    pub(crate) fn release(&self, bytes: &[u8]) {
        #[cfg(unix)]
        if let Map::Mapped(Mapped { map, .. }) = self
            && let Some(Range { start, end }) = windows_of(map, bytes)
        {
            // SAFETY: the map is shared and never written, so that a page that is dropped comes back
            // from the file with the same bytes; borrowed slices stay valid.
            let dropped = unsafe {
                map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start)
            };
            // A system that refuses keeps the pages, which costs memory and nothing else.
            let _ = dropped;
        }
        #[cfg(not(unix))]
        let _ = bytes;
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Map::Mapped(mapped) => &mapped.map,
            Map::Owned(bytes) => bytes,
        }
    }
}

/// Linux maps this much of a file around the page that a read asks for, aligned to its size. Dropping
/// whole windows also drops what a read brought in beside the bytes it was for.
#[cfg(unix)]
const WINDOW: usize = 64 << 10;

/// The windows of `map` that `part` lies in, in whole: what others read of the first and the last is one
/// more read of theirs. None where `part` is empty or lies elsewhere.
#[cfg(unix)]
fn windows_of(map: &[u8], part: &[u8]) -> Option<Range<usize>> {
    let first = (part.as_ptr() as usize).checked_sub(map.as_ptr() as usize)?;
    let end = first.checked_add(part.len()).filter(|&end| end <= map.len())?;
    let last = end.next_multiple_of(WINDOW).min(map.len());
    (!part.is_empty()).then_some(first / WINDOW * WINDOW..last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn released_bytes_are_read_again_from_the_file() {
        let path = std::env::temp_dir().join(format!("pianola-release-{}", std::process::id()));
        let bytes: Vec<u8> = (0..3 * WINDOW + 17).map(|at| (at / 7) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        let map = Map::open(&path).unwrap();
        let whole = map.bytes();
        assert_eq!(windows_of(whole, &whole[1..WINDOW + 1]), Some(0..2 * WINDOW));
        assert_eq!(windows_of(whole, &whole[2 * WINDOW..]), Some(2 * WINDOW..whole.len()));
        assert_eq!(windows_of(whole, &whole[5..WINDOW - 1]), Some(0..WINDOW));
        assert_eq!(windows_of(whole, &whole[5..5]), None);
        assert_eq!(windows_of(whole, &bytes), None);
        map.release(&whole[WINDOW / 2..]);
        map.release(&bytes);
        fs::remove_file(&path).unwrap();
        assert!(map.bytes() == bytes);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_that_was_cut_short_is_an_error_and_no_signal() {
        let path = std::env::temp_dir().join(format!("pianola-short-{}", std::process::id()));
        fs::write(&path, vec![7; 3 * WINDOW]).unwrap();
        let map = Map::open(&path).unwrap();
        map.check(&path).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(WINDOW as u64).unwrap();
        assert_eq!((map.bytes()[0], map.bytes()[2 * WINDOW]), (7, 0));
        let error = map.check(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Truncated);
        assert!(error.to_string().contains("from 196608 to 65536 bytes"), "{error}");
        // Written again: what was read meanwhile is still wrong.
        file.set_len(3 * WINDOW as u64).unwrap();
        assert!(map.check(&path).unwrap_err().to_string().contains("could not be read"));
        fs::remove_file(&path).unwrap();
    }

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
