//! Models that are not in the store: of Hugging Face's hub, by the catalogue's names or the hub's own, at
//! an address, and of other programs on this machine.

use pianola_hub::{
    Fetched, Hub, HubError, LocalModels, Offer, Progress, Reference, Repository, Settings,
};
use pianola_vulkan::{GpuKind, Instance};

use crate::catalogue::{Entry, HubFile};
use crate::console::Console;
use crate::failure::Failure;
use crate::model::{Located, stem};
use crate::progress;
use crate::store::Store;

/// Whether the hub is asked for what is newest, or only for what is not here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// What is here will do.
    AnyCopy,
    /// The newest, if the hub can be reached.
    Newest,
}

/// Finds or fetches a model by a name that the store does not know; none where it is no name of the
/// hub, no address and no model of another program.
pub fn locate(
    name: &str,
    freshness: Freshness,
    store: &Store,
    console: Console,
) -> Result<Option<Located>, Failure> {
    let settings = match Settings::from_environment() {
        Ok(settings) => settings,
        // A plain name and a path need no hub.
        Err(error) if name.contains('/') && !name.starts_with(['/', '.', '~']) => {
            return Err(error.into());
        }
        Err(_) => return Ok(None),
    };
    let reference = Reference::parse(name, &settings)?;
    let hub = Hub::new(settings.clone());
    let mut report = progress::on_stderr(console.quiet);
    match &reference {
        Some(Reference::Address(address)) => {
            let path = hub.fetch_address(address, store.models(), report.as_mut())?;
            return Ok(Some(Located { label: stem(&path), path }));
        }
        Some(Reference::Repository(repository)) if freshness == Freshness::AnyCopy => {
            if let Some(found) = hub.cached(repository, memory_for(repository)) {
                console.notice(&format!("{repository}: {}, from the hub's cache", found.reason));
                return Ok(Some(Located { label: label_of(name, repository), path: found.path }));
            }
        }
        _ => {}
    }
    if !name.starts_with("hf:") {
        let found = LocalModels::find(Some(&settings));
        if let Some(model) = found.resolve(name)? {
            let (label, path) = (model.full_name(), model.path.clone());
            console.notice(&format!("{label}: run where it is, {}", path.display()));
            return Ok(Some(Located { label, path }));
        }
    }
    let Some(Reference::Repository(repository)) = reference else { return Ok(None) };
    let path = fetch(&hub, &repository, report.as_mut())?.path;
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
    pub fn look() -> Result<OnMachine, Failure> {
        let settings = Settings::from_environment()?;
        let local = LocalModels::find(Some(&settings));
        Ok(OnMachine { settings, local })
    }

    /// The catalogue's model, if the hub's cache has its file, or another program a model of its name.
    pub fn catalogued(&self, entry: &Entry, file: &HubFile) -> Result<Option<Located>, Failure> {
        let repository = repository_of(file, &self.settings)?;
        if let Some(found) = Hub::new(self.settings.clone()).cached(&repository, None) {
            return Ok(Some(Located { label: entry.name.to_string(), path: found.path }));
        }
        let model = self.local.resolve(entry.name)?;
        Ok(model.map(|model| Located { label: model.full_name(), path: model.path.clone() }))
    }
}

/// Fetches the catalogue's model from the hub, as far as its cache lacks it.
pub fn fetch_catalogued(
    entry: &Entry,
    file: &HubFile,
    report: &mut dyn Progress,
) -> Result<Located, Failure> {
    let settings = Settings::from_environment()?;
    report.note(entry.terms.summary);
    let repository = repository_of(file, &settings)?;
    let path = fetch(&Hub::new(settings), &repository, report)?.path;
    Ok(Located { label: entry.name.to_string(), path })
}

/// A file of the catalogue as the hub's crate has it.
fn repository_of(file: &HubFile, settings: &Settings) -> Result<Repository, HubError> {
    let name = file.reference();
    match Reference::parse(&name, settings)? {
        Some(Reference::Repository(repository)) => Ok(repository),
        _ => Err(HubError::Name { given: name, reason: "it must have an owner and a name" }),
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
pub fn ahead(name: &str) -> Result<Option<Ahead>, Failure> {
    let settings = Settings::from_environment()?;
    let Some(Reference::Repository(repository)) = Reference::parse(name, &settings)? else {
        return Ok(None);
    };
    let (hub, memory) = (Hub::new(settings), memory_for(&repository));
    if let Some(found) = hub.cached(&repository, memory) {
        let located = Located { label: label_of(name, &repository), path: found.path };
        return Ok(Some(Ahead::Cached(located)));
    }
    Ok(Some(Ahead::Offered(hub.offer(&repository, memory)?)))
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
fn fetch(
    hub: &Hub,
    repository: &Repository,
    report: &mut dyn Progress,
) -> Result<Fetched, HubError> {
    let memory = memory_for(repository);
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
fn memory_for(repository: &Repository) -> Option<u64> {
    if repository.choice.is_none() { memory() } else { None }
}

/// Bytes that weights may take: of the GPU that `--device auto` would take if it has memory of its own,
/// else of the machine.
fn memory() -> Option<u64> {
    let gpus = Instance::load().and_then(|instance| pianola_vulkan::describe(&instance));
    let own = gpus
        .into_iter()
        .flatten()
        .filter(|gpu| gpu.kind == GpuKind::Discrete && gpu.missing.is_empty());
    let local = own.map(|gpu| {
        gpu.heaps.iter().filter(|heap| heap.device_local).map(|heap| heap.budget).max().unwrap_or(0)
    });
    let available = || pianola_cpu::describe().memory.map(|(_, available)| available);
    // An eighth of what the machine has is left to others.
    local.max().or_else(|| available().map(|bytes| bytes - bytes / 8))
}
