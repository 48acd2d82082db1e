//! The cache that Hugging Face's own programs keep, in their layout:
//!
//! ```text
//! hub/
//!   .locks/models--owner--name/SUM.lock        held while a blob is being fetched
//!   models--owner--name/
//!     blobs/SUM                                 whole and checked
//!     blobs/SUM.pianola, SUM.pianola.blocks     ours, unfinished
//!     refs/main                                 a commit
//!     snapshots/COMMIT/PATH                     a link to a blob
//! ```
//!
//! An unfinished file is not called `SUM.incomplete`, which `huggingface_hub` takes for the start of the
//! file: ours has holes.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::choose::{self, INDEX, SizedFile};
use crate::error::HubError;
use crate::fetch::Progress;
use crate::name::Repository;
use crate::settings::Settings;
use crate::sum::Sum;

/// A repository's folder in the cache.
pub(crate) struct RepositoryCache {
    folder: PathBuf,
    locks: PathBuf,
}

impl RepositoryCache {
    pub fn new(settings: &Settings, repository: &Repository) -> RepositoryCache {
        let name = format!("models--{}--{}", repository.owner, repository.name);
        let locks = settings.cache.join(".locks").join(&name);
        RepositoryCache { folder: settings.cache.join(name), locks }
    }

    /// Where a whole file lies.
    pub fn blob(&self, sum: &Sum) -> PathBuf {
        self.folder.join("blobs").join(sum.text())
    }

    /// Where an unfinished one lies.
    pub fn unfinished(&self, sum: &Sum) -> PathBuf {
        self.folder.join("blobs").join(format!("{}.pianola", sum.text()))
    }

    /// The folder of a commit.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Whether a file is there and as long as it should be.
    pub fn has(&self, sum: &Sum, size: u64) -> bool {
        fs::metadata(self.blob(sum)).is_ok_and(|blob| blob.is_file() && blob.len() == size)
    }

    /// Creates the folder of blobs.
    pub fn prepare(&self) -> Result<(), HubError> {
        create_folder(&self.folder.join("blobs"))
    }

    /// Waits until nobody else, of whatever program, fetches this file.
    pub fn lock(&self, sum: &Sum, report: &mut dyn Progress) -> Result<Lock, HubError> {
        Lock::wait(&self.locks.join(format!("{}.lock", sum.text())), report)
    }

    /// Lets a commit's path stand for a blob.
    pub fn link(&self, commit: &str, path: &str, sum: &Sum) -> Result<(), HubError> {
        let place = self.snapshot(commit).join(path);
        if fs::metadata(&place).is_ok() {
            return Ok(());
        }
        if let Some(parent) = place.parent() {
            create_folder(parent)?;
        }
        // A link to nowhere, as after a blob was deleted by hand.
        match fs::remove_file(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(HubError::io("replace", &place)(error));
            }
            _ => {}
        }
        match self.put_link(&place, path, sum) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(HubError::io("create", &place)(error))
            }
            _ => Ok(()),
        }
    }

    #[cfg(unix)]
    fn put_link(&self, place: &Path, path: &str, sum: &Sum) -> io::Result<()> {
        // Relative, so that the cache can be moved.
        let up = "../".repeat(2 + path.matches('/').count());
        std::os::unix::fs::symlink(format!("{up}blobs/{}", sum.text()), place)
    }

    /// Where links need a privilege, the file itself goes there, as `huggingface_hub` has it too.
    #[cfg(not(unix))]
    fn put_link(&self, place: &Path, _: &str, sum: &Sum) -> io::Result<()> {
        fs::rename(self.blob(sum), place)
    }

    /// Notes the commit that a branch has.
    pub fn set_commit(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        let folder = self.folder.join("refs");
        create_folder(&folder)?;
        let (new, place) = (folder.join(format!(".{revision}.new")), folder.join(revision));
        fs::write(&new, commit).map_err(HubError::io("write", &new))?;
        fs::rename(&new, &place).map_err(HubError::io("create", &place))
    }

    /// The commit that a revision had when it was last fetched.
    fn commit(&self, revision: &str) -> Option<String> {
        let found = fs::read_to_string(self.folder.join("refs").join(revision));
        let commit = found.map_or(revision.to_string(), |text| text.trim().to_string());
        matches!(Sum::parse(&commit), Some(Sum::GitBlob(_))).then_some(commit)
    }

    /// The model that is asked for, if all of it is here; and how it was chosen.
    pub fn find(&self, repository: &Repository, memory: Option<u64>) -> Option<(PathBuf, String)> {
        let snapshot = self.snapshot(&self.commit(&repository.revision)?);
        let mut files = Vec::new();
        collect(&snapshot, "", &mut files);
        let selection = choose::choose(repository, &files, memory).ok()?;
        let path = match &selection.gguf {
            Some(path) => snapshot.join(path),
            None => is_whole(&snapshot).then_some(snapshot)?,
        };
        Some((path, selection.reason))
    }
}

/// Whether a folder of safetensors has all its weights and a tokeniser.
pub(crate) fn is_whole(folder: &Path) -> bool {
    let index = fs::read(folder.join(INDEX)).ok();
    let index = index.and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
    let shards = match index.as_ref().and_then(|index| index["weight_map"].as_object()) {
        Some(map) => {
            map.values().all(|file| file.as_str().is_some_and(|file| folder.join(file).is_file()))
        }
        None => folder.join("model.safetensors").is_file(),
    };
    shards && folder.join("config.json").is_file() && folder.join("tokenizer.json").is_file()
}

/// The files below a folder whose contents are there, with paths relative to it.
pub(crate) fn collect(folder: &Path, prefix: &str, files: &mut Vec<SizedFile>) {
    // Folders in repositories are few and shallow; a link to a folder is none of the hub's.
    if prefix.matches('/').count() > 8 {
        return;
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = format!("{prefix}{name}");
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), &format!("{path}/"), files);
        } else if let Ok(found) = fs::metadata(entry.path()) {
            files.push(SizedFile { path, size: found.len() });
        }
    }
}

pub(crate) fn create_folder(folder: &Path) -> Result<(), HubError> {
    fs::create_dir_all(folder).map_err(HubError::io("create", folder))
}

/// A file that is fetched by this process and no other. The system releases it when the process ends.
pub(crate) struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file would release it too; an error leaves it to that.
        let _ = self.file.unlock();
    }
}

impl Lock {
    /// Waits for it, and says so.
    pub fn wait(path: &Path, report: &mut dyn Progress) -> Result<Lock, HubError> {
        if let Some(parent) = path.parent() {
            create_folder(parent)?;
        }
        let mut told = false;
        loop {
            let file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
                .map_err(HubError::io("create", path))?;
            match file.try_lock() {
                // Other programs remove the file when they are done: then it is another one's now.
                Ok(()) if is_at(&file, path) => return Ok(Lock { file }),
                Ok(()) => continue,
                Err(TryLockError::Error(error)) => return Err(HubError::io("lock", path)(error)),
                Err(TryLockError::WouldBlock) => {}
            }
            if !told {
                report.notice("another program is fetching the same file; waiting for it");
                told = true;
            }
            if report.is_cancelled() {
                return Err(HubError::Cancelled);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Whether an open file is the one that the path names.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    file.metadata().is_ok_and(|open| fs::metadata(path).is_ok_and(|named| same(open, named)))
}

#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}
