//! Where models live on this machine.
//!
//! ```text
//! models/
//!   smollm2-135m.gguf          whole and checked: a file gets this name only when it is
//!   gemma3-270m.terms.html     terms handed on with a model
//!   my-own.gguf                anything the user put there, known by its stem
//!   .partial/
//!     gemma3-270m/             what an unfinished pull has so far
//!     gemma3-270m.lock         held while a pull or a removal runs
//! ```
//!
//! The names tell everything: there is no index that could disagree with the files.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use crate::catalogue::{self, CATALOGUE, Entry, Source};
use crate::disk::size_of;

/// The folder of models.
#[derive(Clone, Debug)]
pub struct Store {
    models: PathBuf,
}

/// What a model name given by the user turned out to be.
#[derive(Debug)]
pub enum Resolved {
    /// A model in the store.
    Installed(PathBuf),
    /// A model of the catalogue that is not in the store; those of the hub never are.
    NotYet(&'static Entry),
    /// A file or folder of the user.
    Path(PathBuf),
}

/// A line of the list of models.
#[derive(Debug, PartialEq)]
pub struct Listed {
    /// As it can be given to a command.
    pub name: String,
    /// On disk, now.
    pub bytes: u64,
    /// The file, or the folder of a partial one.
    pub path: PathBuf,
    /// Whether it can be used.
    pub state: State,
}

/// Whether a listed model can be used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    /// It can.
    Present,
    /// Its pull has not finished; pulling again resumes.
    Partial,
    /// Its size is not that of the catalogue; pulling again replaces it.
    Damaged,
}

impl State {
    /// The word for it in lists.
    pub fn name(self) -> &'static str {
        match self {
            State::Present => "present",
            State::Partial => "partial",
            State::Damaged => "damaged",
        }
    }
}

/// Why a model could not be found, listed or removed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No variable says where a user's files go.
    #[error(
        "there is no folder for models: PIANOLA_HOME, XDG_CACHE_HOME and HOME are all unset; \
         set PIANOLA_HOME to a folder"
    )]
    NoHome,
    /// Neither a name of the catalogue nor a path.
    #[error("no model is called '{name}'{}; `pianola list --all` shows the catalogue, owner/name fetches from Hugging Face's hub, ./NAME is a file", suggestion(.nearest))]
    Unknown {
        /// The given name or path.
        name: String,
        /// What was probably meant, the likeliest first.
        nearest: Vec<&'static str>,
    },
    /// It looks like a path, and nothing is there.
    #[error("there is no file or folder {}; check the path, or give a name of `pianola list --all` or owner/name of Hugging Face's hub", .path.display())]
    NoSuchPath {
        /// The given name or path.
        path: PathBuf,
    },
    /// A file of the store is not as long as it was when it was checked.
    #[error("{} is damaged: it has {found} bytes, not {expected}; run `pianola pull {name}` to replace it", .path.display())]
    Damaged {
        /// The model.
        name: &'static str,
        /// Its file.
        path: PathBuf,
        /// The size in the catalogue.
        expected: u64,
        /// The size on disk.
        found: u64,
    },
    /// Asked to remove what is not there.
    #[error("{name} is not in {}, so there is nothing to remove", .models.display())]
    NotInstalled {
        /// The model.
        name: String,
        /// The folder of models.
        models: PathBuf,
    },
    /// Asked to remove what the hub's cache keeps.
    #[error(
        "{name} is not in Pianola's folder: it is in the hub's cache ({repository}), which other programs share; delete it there, as with `hf cache delete`"
    )]
    InHubCache {
        /// The model.
        name: &'static str,
        /// `owner/name`
        repository: &'static str,
    },
    /// Asked to remove something that pianola did not put there.
    #[error("{name} is outside {}; pianola removes only models that it keeps there; delete it yourself", .models.display())]
    Outside {
        /// The given name or path.
        name: String,
        /// The folder of models.
        models: PathBuf,
    },
    /// Another process works on the same model.
    #[error("another pianola{} is working on {name}; wait until it is done, or end it", .process.map(|id| format!(" (process {id})")).unwrap_or_default())]
    Busy {
        /// The model.
        name: String,
        /// The other process, if it has said who it is.
        process: Option<u32>,
    },
    /// The file system refused.
    #[error("cannot {action} {}: {source}; {}", .path.display(), advice(source))]
    Io {
        /// What was tried: "read", "create", …
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The names that may have been meant, in a question.
fn suggestion(nearest: &[&str]) -> String {
    match nearest {
        [] => String::new(),
        [only] => format!(" (did you mean {only}?)"),
        [others @ .., last] => format!(" (did you mean {} or {last}?)", others.join(", ")),
    }
}

/// What to do about an error of the file system.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "allow writing there, or set PIANOLA_HOME to a folder of yours"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room on that disk, or set PIANOLA_HOME to a folder on another"
        }
        _ => "check that disk, or set PIANOLA_HOME to another folder",
    }
}

impl StoreError {
    /// No model is called so.
    pub fn unknown(name: &str) -> Self {
        Self::Unknown { name: name.into(), nearest: catalogue::nearest(name) }
    }

    /// Turns an error of the file system into one that says what was tried on which path.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }
}

/// Held while a pull or a removal works on a model; the system releases it when the process ends,
/// however it ends, so a stale one needs no clearing up.
#[derive(Debug)]
pub struct ModelLock {
    file: File,
}

impl Drop for ModelLock {
    fn drop(&mut self) {
        // Closing the file would release it too, but not while a process that was started just now
        // still has its copy. An error leaves it to that.
        let _ = self.file.unlock();
    }
}

impl Store {
    /// The user's store: `$PIANOLA_HOME/models`, else `$XDG_CACHE_HOME/pianola/models`, else
    /// `~/.cache/pianola/models`. Nothing is created until a model is fetched.
    pub fn open() -> Result<Self, StoreError> {
        Self::locate(|variable| std::env::var_os(variable)).ok_or(StoreError::NoHome)
    }

    /// A store in this folder.
    pub fn at(models: impl Into<PathBuf>) -> Self {
        Self { models: models.into() }
    }

    fn locate(variable: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let folder = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache =
            || folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|h| h.join(".cache")));
        let home = folder("PIANOLA_HOME").or_else(|| cache().map(|cache| cache.join("pianola")))?;
        Some(Self::at(home.join("models")))
    }

    /// The folder of models.
    pub fn models(&self) -> &Path {
        &self.models
    }

    /// Where a model is once it is whole.
    pub fn path_of(&self, entry: &Entry) -> PathBuf {
        self.models.join(format!("{}.gguf", entry.stem()))
    }

    /// Where the text of its terms is.
    pub fn terms_of(&self, entry: &Entry) -> PathBuf {
        self.models.join(format!("{}.terms.html", entry.stem()))
    }

    /// Where the parts of an unfinished pull are.
    pub fn partial_of(&self, entry: &Entry) -> PathBuf {
        self.models.join(".partial").join(entry.stem())
    }

    /// The whole model's file, if it is there; an error if its size is wrong. The store keeps only what
    /// comes in packages.
    pub fn installed(&self, entry: &Entry) -> Result<Option<PathBuf>, StoreError> {
        let Some(packages) = entry.packages() else { return Ok(None) };
        let path = self.path_of(entry);
        match fs::metadata(&path) {
            Ok(found) if found.len() == packages.bytes => Ok(Some(path)),
            Ok(found) => {
                let (expected, found) = (packages.bytes, found.len());
                Err(StoreError::Damaged { name: entry.name, path, expected, found })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io("read", &path)(error)),
        }
    }

    /// Finds what the user means by a model's name: a name of the catalogue first, then a model in
    /// the store, then a path. A file that shares its name with a model is meant by `./name`. What the
    /// user put into the store comes before a model of the hub: it is here.
    pub fn resolve(&self, name: &str) -> Result<Resolved, StoreError> {
        let catalogued = catalogue::find(name);
        if let Some(entry) = catalogued.filter(|entry| entry.packages().is_some()) {
            let found = self.installed(entry)?;
            return Ok(found.map_or(Resolved::NotYet(entry), Resolved::Installed));
        }
        if let Some(path) = self.own(name) {
            return Ok(Resolved::Installed(path));
        }
        if let Some(entry) = catalogued {
            return Ok(Resolved::NotYet(entry));
        }
        let path = PathBuf::from(name);
        if path.exists() {
            return Ok(Resolved::Path(path));
        }
        if path.components().count() > 1
            || name.ends_with(".gguf")
            || name.ends_with(".safetensors")
        {
            return Err(StoreError::NoSuchPath { path });
        }
        Err(StoreError::unknown(name))
    }

    /// A model that the user put into the store, by its file name or stem.
    fn own(&self, name: &str) -> Option<PathBuf> {
        let stem = name.strip_suffix(".gguf").unwrap_or(name);
        let mut components = Path::new(stem).components();
        let plain = matches!(components.next(), Some(Component::Normal(only)) if only == stem);
        let path = self.models.join(format!("{stem}.gguf"));
        (plain && components.next().is_none() && path.is_file()).then_some(path)
    }

    /// What is in the store: the catalogue's models in its order, then the user's own by name.
    pub fn list(&self) -> Result<Vec<Listed>, StoreError> {
        let mut listed = Vec::new();
        for entry in CATALOGUE {
            let Some(packages) = entry.packages() else { continue };
            let (name, path) = (entry.name.to_string(), self.path_of(entry));
            if let Ok(found) = fs::metadata(&path) {
                let bytes = found.len();
                let state = if bytes == packages.bytes { State::Present } else { State::Damaged };
                listed.push(Listed { name, bytes, path, state });
            } else if self.partial_of(entry).is_dir() {
                let path = self.partial_of(entry);
                listed.push(Listed { name, bytes: size_of(&path), path, state: State::Partial });
            }
        }
        let own = listed.len();
        for file in read_folder(&self.models)? {
            let path = file.path();
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let (Some(stem), Some("gguf")) = (stem, path.extension().and_then(|e| e.to_str()))
            else {
                continue;
            };
            let packaged = catalogue::find(stem).is_some_and(|entry| entry.packages().is_some());
            if !packaged && path.is_file() {
                let (name, bytes) = (stem.to_string(), size_of(&path));
                listed.push(Listed { name, bytes, path, state: State::Present });
            }
        }
        listed[own..].sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listed)
    }

    /// Removes a model, its terms and what an unfinished pull left, and returns the bytes freed.
    pub fn remove(&self, name: &str) -> Result<u64, StoreError> {
        let models = || self.models.clone();
        let stem = name.strip_suffix(".gguf").unwrap_or(name);
        let catalogued = catalogue::find(stem);
        let Some(entry) = catalogued.filter(|entry| entry.packages().is_some()) else {
            let Some(path) = self.own(name) else {
                if let Some((name, Source::Hub(file))) = catalogued.map(|e| (e.name, &e.source)) {
                    return Err(StoreError::InHubCache { name, repository: file.repository });
                }
                return Err(if Path::new(name).exists() {
                    StoreError::Outside { name: name.into(), models: models() }
                } else {
                    StoreError::unknown(name)
                });
            };
            return remove_all(&path);
        };
        let paths = [self.path_of(entry), self.terms_of(entry), self.partial_of(entry)];
        if !paths.iter().any(|path| path.symlink_metadata().is_ok()) {
            return Err(StoreError::NotInstalled { name: entry.name.into(), models: models() });
        }
        let _lock = self.lock(entry)?;
        paths.iter().try_fold(0, |freed, path| Ok(freed + remove_all(path)?))
    }

    /// Claims a model for this process, or says who has it.
    pub fn lock(&self, entry: &Entry) -> Result<ModelLock, StoreError> {
        let folder = self.models.join(".partial");
        fs::create_dir_all(&folder).map_err(StoreError::io("create", &folder))?;
        // The file stays when the lock goes: whoever deleted it could be deleting the one that
        // another process has opened in between and is about to lock.
        let path = folder.join(format!("{}.lock", entry.stem()));
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(StoreError::io("create", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // Who it is only helps the message: without it the message is shorter.
                let _ = file.read_to_string(&mut holder);
                let process = holder.trim().parse().ok();
                return Err(StoreError::Busy { name: entry.name.into(), process });
            }
            Err(TryLockError::Error(source)) => {
                return Err(StoreError::io("lock", &path)(source));
            }
        }
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(StoreError::io("write", &path))?;
        Ok(ModelLock { file })
    }
}

/// The files of a folder; none if it does not exist.
fn read_folder(folder: &Path) -> Result<Vec<fs::DirEntry>, StoreError> {
    match fs::read_dir(folder).and_then(Iterator::collect) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        files => files.map_err(StoreError::io("read", folder)),
    }
}

/// Removes a file, a link (not what it points to) or a folder; nothing there is no error.
/// Returns the bytes freed.
pub fn remove_all(path: &Path) -> Result<u64, StoreError> {
    let bytes = size_of(path);
    let is_folder = path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    let remove = || if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    let mut removed = remove();
    for _ in 0..3 {
        // A process that was left behind may have put a file into the folder meanwhile.
        if removed.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::DirectoryNotEmpty) {
            removed = remove();
        }
    }
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::io("remove", path)(error))
        }
        _ => Ok(bytes),
    }
}

#[cfg(test)]
pub mod tests;
