//! The models that `serve` offers: those named, those of a folder, those fetched since.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::UNIX_EPOCH;

use pianola_engine::{Engine, EngineError, Service};
use pianola_server::{LoadFailure, ModelCard, ModelSource, PullProgress};

use super::Arguments;
use crate::catalogue;
use crate::console::Console;
use crate::failure::Failure;
use crate::model::{self, Located};
use crate::options::{ComputeOptions, SpeculationOptions};
use crate::progress::Progress;
use crate::pull;
use crate::store::{Store, size_of};

/// Where the server's models come from.
pub struct Source {
    models: Mutex<Vec<Served>>,
    loading: Loading,
}

/// A model that is served.
#[derive(Clone)]
struct Served {
    card: ModelCard,
    path: PathBuf,
}

/// How models are loaded.
#[derive(Clone)]
struct Loading {
    compute: ComputeOptions,
    speculation: SpeculationOptions,
    lanes: usize,
    queue: usize,
    context: Option<usize>,
    console: Console,
}

impl Source {
    /// Finds the models, fetching those that are not here yet.
    pub fn new(arguments: &Arguments, console: Console) -> Result<Source, Failure> {
        let mut models = Vec::new();
        for name in &arguments.model {
            let located = model::locate(name, console)?;
            // A file that is no model is an error now, not at the first request.
            pianola_model::ModelFile::open(&located.path)?.config()?;
            add(&mut models, served(&located.label, &located.path));
        }
        for path in arguments.models_dir.iter().flat_map(|folder| in_folder(folder)) {
            let path = path?;
            add(&mut models, served(&model::stem(&path), &path));
        }
        if let Some(first) = models.first_mut() {
            first.card.aliases.extend(arguments.alias.iter().cloned());
        }
        let loading = Loading {
            compute: arguments.compute.clone(),
            speculation: arguments.speculation.clone(),
            lanes: arguments.lanes,
            queue: arguments.queue,
            context: arguments.context,
            console,
        };
        Ok(Source { models: Mutex::new(models), loading })
    }

    /// Models that are served.
    pub fn count(&self) -> usize {
        self.served().len()
    }

    fn served(&self) -> MutexGuard<'_, Vec<Served>> {
        self.models.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Adds a model, unless one of that name is there.
fn add(models: &mut Vec<Served>, model: Served) {
    if !models.iter().any(|other| other.card.id == model.card.id) {
        models.push(model);
    }
}

fn served(label: &str, path: &Path) -> Served {
    let entry = catalogue::find(label);
    let modified = path.metadata().and_then(|metadata| metadata.modified()).ok();
    let modified = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let mut aliases: Vec<String> =
        entry.map_or(Vec::new(), |entry| entry.aliases.iter().map(|a| a.to_string()).collect());
    // Clients that know files by name send that.
    aliases.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
    let card = ModelCard {
        id: label.to_string(),
        aliases,
        bytes: Some(size_of(path)),
        modified: modified.map_or(0, |time| time.as_secs()),
        sha256: entry.map(|entry| entry.sha256.to_string()),
    };
    Served { card, path: path.to_path_buf() }
}

/// GGUF files and folders with a config.json.
fn in_folder(folder: &Path) -> Vec<Result<PathBuf, Failure>> {
    let unreadable = |error: std::io::Error| {
        Failure::failed(format!("cannot list the models of {}: {error}", folder.display()))
    };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return vec![Err(unreadable(error))],
    };
    let is_model = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "gguf")
            || path.join("config.json").is_file()
    };
    let mut paths: Vec<PathBuf> =
        entries.filter_map(|entry| entry.ok()).map(|entry| entry.path()).filter(is_model).collect();
    paths.sort();
    if paths.is_empty() {
        let message = format!("{} holds no GGUF file and no model folder", folder.display());
        return vec![Err(Failure::failed(message))];
    }
    paths.into_iter().map(Ok).collect()
}

impl Loading {
    fn open(&self, located: &Located) -> Result<Engine, Failure> {
        let mut options = self.compute.load(self.console)?;
        options.lanes = self.lanes;
        options.queue = self.queue;
        options.context = self.context;
        model::load_with_draft(located, options, &self.speculation, self.console)
    }
}

impl ModelSource for Source {
    fn models(&self) -> Vec<ModelCard> {
        self.served().iter().map(|served| served.card.clone()).collect()
    }

    fn load(&self, id: &str) -> Result<Service, LoadFailure> {
        let found = self.served().iter().find(|served| served.card.id == id).cloned();
        let Some(served) = found else {
            let message = format!("{id} is not served any more");
            return Err(LoadFailure { message, out_of_memory: false });
        };
        let located = Located { label: id.to_string(), path: served.path };
        let engine = self.loading.open(&located).map_err(|failure| load_failure(&failure))?;
        let loading = self.loading.clone();
        // A lost device is opened again with the same options.
        let reopen = move || {
            loading.open(&located).map_err(|failure| {
                EngineError::DeviceLost(failure.message().unwrap_or_default().to_string())
            })
        };
        Ok(Service::start_with(engine, Box::new(reopen)))
    }

    fn pull(
        &self,
        name: &str,
        progress: &mut dyn FnMut(PullProgress) -> bool,
    ) -> Result<ModelCard, LoadFailure> {
        let failed = |message: String| LoadFailure { message, out_of_memory: false };
        let Some(entry) = catalogue::find(name) else {
            let known: Vec<&str> = catalogue::CATALOGUE.iter().map(|entry| entry.name).collect();
            let message =
                format!("the catalogue has no model '{name}'; it has {}", known.join(", "));
            return Err(failed(message));
        };
        let store = Store::open().map_err(|error| failed(error.to_string()))?;
        let mut report = Pulled { progress, state: PullProgress::default() };
        let path =
            pull::pull(entry, &store, &mut report).map_err(|error| failed(error.to_string()))?;
        let model = served(entry.name, &path);
        add(&mut self.served(), model.clone());
        Ok(model.card)
    }
}

fn load_failure(failure: &Failure) -> LoadFailure {
    let message = failure.message().unwrap_or("it was interrupted").to_string();
    LoadFailure { out_of_memory: message.contains("memory"), message }
}

/// Hands the progress of a pull on.
struct Pulled<'a> {
    progress: &'a mut dyn FnMut(PullProgress) -> bool,
    state: PullProgress,
}

impl Progress for Pulled<'_> {
    fn begin(&mut self, _: &str, total: u64) {
        self.state = PullProgress { done: 0, total };
        (self.progress)(self.state);
    }

    fn reach(&mut self, bytes: u64) {
        self.state.done = bytes;
        (self.progress)(self.state);
    }

    fn end(&mut self) {}

    fn note(&mut self, line: &str) {
        crate::console::to_stderr(line);
    }
}
