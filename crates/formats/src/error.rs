//! The error of this crate: one opaque type, with a kind to branch on and a message to read.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What went wrong, for code that branches; the message is for people.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused to open, read, map, write or rename a file.
    Io,
    /// A file, key or tensor that is needed is not there.
    Missing,
    /// The file is of another format altogether.
    Foreign,
    /// The file ends before its own header says it should.
    Truncated,
    /// The file contradicts itself or its format.
    Malformed,
    /// The file is sound, but holds something this crate does not implement.
    Unsupported,
    /// The caller asked a writer for something that cannot be written.
    Argument,
}

/// Why a file could not be read or written. The message opens with the file's path.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    path: PathBuf,
    message: String,
    source: Option<io::Error>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, path: &Path, message: impl Into<String>) -> Error {
        Error { kind, path: path.to_path_buf(), message: message.into(), source: None }
    }

    pub(crate) fn io(path: &Path, doing: &str, source: io::Error) -> Error {
        let kind = match source.kind() {
            io::ErrorKind::NotFound => ErrorKind::Missing,
            _ => ErrorKind::Io,
        };
        let message = format!("cannot {doing}: {source}");
        Error { kind, path: path.to_path_buf(), message, source: Some(source) }
    }

    /// The class of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The file or folder at fault; empty where the source of a tensor has no path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.as_os_str().is_empty() {
            write!(formatter, "{}: ", self.path.display())?;
        }
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

/// A name out of a file, made fit for an error message: control characters escaped, long ones cut.
/// Without this a hostile file could write escape sequences to a terminal, or megabytes to a log.
pub(crate) fn quoted(name: &str) -> String {
    const LONGEST: usize = 120;
    let mut text: String = name.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if name.chars().nth(LONGEST).is_some() {
        text.push('…');
    }
    format!("'{text}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_opens_with_the_path() {
        let error = Error::new(ErrorKind::Malformed, Path::new("a/b.gguf"), "key 'x' is odd");
        assert_eq!(error.to_string(), "a/b.gguf: key 'x' is odd");
        assert_eq!(error.kind(), ErrorKind::Malformed);
    }

    #[test]
    fn names_in_messages_are_escaped_and_cut() {
        assert_eq!(quoted("a\u{1b}[31m"), "'a\\u{1b}[31m'");
        assert!(quoted(&"x".repeat(1 << 20)).len() < 200);
    }
}
