//! Whole files or none: writes beside the target and renames when done.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, ErrorKind};

/// A file being written under a temporary name. Dropped unfinished, it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Replacement {
    file: BufWriter<File>,
    temporary: PathBuf,
    target: PathBuf,
    finished: bool,
}

impl Replacement {
    /// Starts a file that will become `target`. The temporary lies in the same folder, because a
    /// rename is atomic only within one file system.
    pub(crate) fn create(target: &Path) -> Result<Replacement, Error> {
        // Two writers of one target in one process must not share a temporary.
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let Some(name) = target.file_name() else {
            return Err(Error::new(ErrorKind::Argument, target, "is no file name to write to"));
        };
        let count = COUNTER.fetch_add(1, Ordering::Relaxed);
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}-{count}.partial", std::process::id()));
        let temporary = target.with_file_name(hidden);
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary);
        let file = file.map_err(|source| Error::io(&temporary, "create", source))?;
        Ok(Replacement {
            file: BufWriter::with_capacity(1 << 20, file),
            temporary,
            target: target.to_path_buf(),
            finished: false,
        })
    }

    /// Where the file will be.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Appends bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(|source| Error::io(&self.temporary, "write", source))
    }

    /// Overwrites the start of the file.
    pub(crate) fn patch_start(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let patched =
            self.file.seek(SeekFrom::Start(0)).and_then(|_| self.file.write_all(bytes)).and_then(
                |()| {
                    self.file.seek(SeekFrom::End(0))?;
                    Ok(())
                },
            );
        patched.map_err(|source| Error::io(&self.temporary, "write", source))
    }

    /// Flushes to the disk and takes the target's name.
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        let flushed = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        flushed.map_err(|source| Error::io(&self.temporary, "write", source))?;
        fs::rename(&self.temporary, &self.target)
            .map_err(|source| Error::io(&self.target, "rename the finished file to", source))?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.finished {
            // Nothing more can be done about a temporary that cannot be removed.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_appears_only_when_finished() {
        let folder = std::env::temp_dir().join(format!("pianola-replace-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let target = folder.join("file");

        let mut abandoned = Replacement::create(&target).unwrap();
        abandoned.write(b"half").unwrap();
        assert!(!target.exists());
        drop(abandoned);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "a temporary was left behind");

        let mut whole = Replacement::create(&target).unwrap();
        whole.write(b"....whole").unwrap();
        whole.patch_start(b"the ").unwrap();
        whole.write(b"!").unwrap();
        whole.finish().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"the whole!");
        fs::remove_dir_all(&folder).unwrap();
    }
}
