//! The models that `serve` offers: those named, those of a folder, or all that are here.

use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use pianola_engine::{Engine, EngineError, ErrorKind, LoadOptions, Service, Text};
use pianola_hub::{Store, catalogue, obtain};
use pianola_model::ModelFile;
use pianola_plan::{WeightSpec, size_text};
use pianola_server::{
    LoadFailure, LoadFailureKind, ModelCard, ModelSource, PullProgress, PullStage,
};

use super::folder::add_folder;
use super::served::{Served, add, served, version_of};
use super::{Arguments, here};
use crate::console::Console;
use crate::failure::Failure;
use crate::model::{self, Located};
use crate::options::{ComputeOptions, DEFAULT_MODEL, SpeculationOptions, chosen};
use crate::progress::Progress;

/// Where the server's models come from.
pub struct Source {
    models: Mutex<Vec<Served>>,
    /// Serves all that is here, what comes later too.
    follows: bool,
    loading: Loading,
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
    /// Finds the models, fetching those that were named and are not here yet.
    pub fn new(arguments: &Arguments, console: Console) -> Result<Source, Failure> {
        let mut models = Vec::new();
        // One of the two is empty.
        let mut names: Vec<&str> =
            arguments.named.iter().chain(&arguments.model).map(String::as_str).collect();
        let follows = names.is_empty() && arguments.models_dir.is_none();
        if follows {
            models = here::find(&[], console)?;
            here::tell(&models, console);
        }
        if follows && models.is_empty() {
            names.push(DEFAULT_MODEL);
        }
        for name in names {
            let located = model::locate(name, console)?;
            // A file that is no model is an error now, not at the first request.
            add(&mut models, served(&located.label, &located.path)?)?;
        }
        if let Some(folder) = &arguments.models_dir {
            add_folder(&mut models, folder, console)?;
        }
        if let Some(first) = models.first_mut() {
            first.card.aliases.extend(arguments.alias.iter().cloned());
        }
        let loading = Loading {
            compute: arguments.compute.clone(),
            speculation: arguments.speculation.clone(),
            lanes: arguments.lanes,
            queue: arguments.queue,
            context: chosen(arguments.context),
            console,
        };
        Ok(Source { models: Mutex::new(models), follows, loading })
    }

    fn served(&self) -> MutexGuard<'_, Vec<Served>> {
        self.models.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn find(&self, id: &str) -> Result<Served, LoadFailure> {
        let found = self.served().iter().find(|served| served.card.id == id).cloned();
        found.ok_or_else(|| {
            LoadFailure::new(LoadFailureKind::Options, format!("{id} is not served any more"))
        })
    }
}

impl Loading {
    fn options(&self, console: Console) -> Result<LoadOptions, Failure> {
        let mut options = self.compute.load(console)?;
        options.lanes = self.lanes;
        options.queue = self.queue;
        options.context = self.context;
        Ok(options)
    }

    fn open(&self, located: &Located) -> Result<Engine, Failure> {
        let options = self.options(self.console)?;
        model::load_with_draft(located, options, &self.speculation, self.console)
    }

    /// Whether a model can be loaded once `reclaimable` more bytes are free, as far as its file and the
    /// plan for it tell.
    fn check(&self, path: &Path, reclaimable: u64) -> Result<(), Failure> {
        let file = ModelFile::open(path)?;
        let config = file.config()?;
        Text::of(&file).map_err(|error| Failure::from(error).about(path))?;
        // The load itself says which device it takes.
        let options = self.options(Console { quiet: true, verbose: false })?;
        let graph = pianola_model::graph(&config, file.source(), options.quantize)?;
        let weights: u64 = graph.weights.iter().map(WeightSpec::bytes).sum();
        let memory: Option<u64> = options.devices.iter().map(|device| device.memory()).sum();
        let most = memory.map_or(u64::MAX, |free| free.saturating_add(reclaimable));
        if weights > most {
            let (weights, most) = (size_text(weights), size_text(most));
            let message =
                format!("the weights take {weights}; without idle models {most} would be free");
            return Err(Failure::Memory(message).about(path));
        }
        match Engine::check_room(&file, &config, &options) {
            Ok(()) => Ok(()),
            // Which device has how much once models are unloaded is not known before.
            Err(error) if error.kind() == ErrorKind::OutOfMemory && reclaimable > 0 => Ok(()),
            Err(error) => Err(Failure::from(error).about(path)),
        }
    }
}

impl ModelSource for Source {
    fn models(&self) -> Vec<ModelCard> {
        self.served().iter().map(|served| served.card.clone()).collect()
    }

    fn refresh(&self) {
        if !self.follows {
            return;
        }
        let known = self.served().clone();
        // What cannot be listed now may be later; until then all stays as it was.
        let quiet = Console { quiet: true, verbose: false };
        let Ok(found) = here::find(&known, quiet) else { return };
        *self.served() = here::merged(known, found);
    }

    fn advice(&self, name: &str) -> String {
        here::advice(name, self.follows)
    }

    fn load(&self, id: &str) -> Result<Service, LoadFailure> {
        let located = Located { label: id.to_string(), path: self.find(id)?.path };
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

    fn check(&self, id: &str, reclaimable: u64) -> Result<(), LoadFailure> {
        let path = self.find(id)?.path;
        self.loading.check(&path, reclaimable).map_err(|failure| load_failure(&failure))
    }

    fn version(&self, id: &str) -> u64 {
        self.find(id).map_or(0, |served| version_of(&served.path))
    }

    fn pull(
        &self,
        name: &str,
        progress: &mut dyn FnMut(PullProgress) -> bool,
    ) -> Result<ModelCard, LoadFailure> {
        let failed = |message: String| LoadFailure::new(LoadFailureKind::Temporary, message);
        let Some(entry) = catalogue::find(name) else {
            let known: Vec<&str> = catalogue::CATALOGUE.iter().map(|entry| entry.name).collect();
            let message =
                format!("the catalogue has no model '{name}'; it has {}", known.join(", "));
            return Err(LoadFailure::new(LoadFailureKind::UnknownName, message));
        };
        let store = Store::open().map_err(|error| failed(error.to_string()))?;
        let state = PullProgress {
            stage: PullStage::Fetching,
            digest: entry.sha256().unwrap_or_default().to_string(),
            done: 0,
            total: 0,
        };
        let mut report = Pulled { progress, state, cancelled: false };
        let located = obtain::fetch(entry, &store, &mut report)
            .map_err(Failure::from)
            .map_err(|failure| failed(failure.message().unwrap_or("it was interrupted").into()))?;
        let model = served(entry.name, &located.path).map_err(|error| failed(error.to_string()))?;
        add(&mut self.served(), model.clone())
            .map_err(|failure| failed(failure.message().unwrap_or_default().to_string()))?;
        Ok(model.card)
    }
}

fn load_failure(failure: &Failure) -> LoadFailure {
    let kind = match failure {
        Failure::Usage(_) => LoadFailureKind::Options,
        Failure::Model(_) => LoadFailureKind::Files,
        Failure::Memory(_) => LoadFailureKind::Memory,
        _ => LoadFailureKind::Temporary,
    };
    LoadFailure::new(kind, failure.message().unwrap_or("it was interrupted"))
}

/// Passes the progress of a pull to the server.
struct Pulled<'a> {
    progress: &'a mut dyn FnMut(PullProgress) -> bool,
    state: PullProgress,
    cancelled: bool,
}

impl Pulled<'_> {
    fn tell(&mut self) {
        self.cancelled |= !(self.progress)(self.state.clone());
    }
}

impl Progress for Pulled<'_> {
    fn begin(&mut self, stage: &str, total: u64) {
        let stage = match stage.starts_with("fetching") {
            true => PullStage::Fetching,
            false => PullStage::Checking,
        };
        self.state = PullProgress { stage, done: 0, total, ..self.state.clone() };
        self.tell();
    }

    fn reach(&mut self, bytes: u64) {
        self.state.done = bytes;
    }

    fn is_cancelled(&mut self) -> bool {
        self.tell();
        self.cancelled
    }

    fn end(&mut self) {}

    fn note(&mut self, line: &str) {
        crate::console::to_stderr(line);
    }
}
