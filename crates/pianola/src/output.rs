//! Files that commands write: what was there stays until there is something to replace it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Whether a file could be written, without changing one that is there.
pub fn check_writable(path: &Path) -> io::Result<()> {
    if path.exists() {
        return File::options().append(true).open(path).map(|_| ());
    }
    // A file that is made and removed again shows what permissions alone do not.
    let probe = beside(path)?;
    File::options().write(true).create_new(true).open(&probe)?;
    fs::remove_file(probe)
}

/// Writes a file: it appears, or replaces the one before, when it is whole. Devices and pipes, which
/// cannot be replaced, are written to.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    if path.exists() && !path.is_file() {
        return File::options().write(true).open(path)?.write_all(text.as_bytes());
    }
    // A link stays, and what it leads to is replaced.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let unfinished = beside(&target)?;
    let written = fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, &target));
    if written.is_err() {
        // The error that matters is the one before.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// A name in the same folder that nothing else has.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no name of a file"));
    };
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}.partial", std::process::id()));
    Ok(path.with_file_name(hidden))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_stays_until_it_is_replaced() {
        let folder = std::env::temp_dir().join(format!("pianola-output-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("file");
        check_writable(&path).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "a probe was left behind");
        fs::write(&path, "before").unwrap();
        check_writable(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        write(&path, "after").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "after");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        assert!(check_writable(&folder.join("absent/file")).is_err());
        assert!(write(&folder, "x").is_err() && check_writable(Path::new("/")).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
