//! The models that `serve` offers: those named, those of a folder, those fetched since.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::UNIX_EPOCH;

use pianola_engine::{Engine, EngineError, ErrorKind, LoadOptions, Service, Text};
use pianola_formats::{HuggingFaceFolder, TensorInfo, TensorType};
use pianola_hub::catalogue::{self, Entry};
use pianola_hub::{Store, obtain, size_of};
use pianola_model::{ModelError, ModelFile};
use pianola_plan::{WeightSpec, size_text};
use pianola_server::{
    LoadFailure, LoadFailureKind, ModelCard, ModelFacts, ModelSource, PullProgress, PullStage,
};

use super::Arguments;
use crate::console::Console;
use crate::failure::Failure;
use crate::model::{self, Located};
use crate::options::{ComputeOptions, DEFAULT_MODEL, SpeculationOptions, chosen};
use crate::progress::Progress;

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
        let default = [DEFAULT_MODEL.to_string()];
        // One of the two is empty.
        let given = || arguments.named.iter().chain(&arguments.model);
        let names: Vec<&String> = match (given().next(), &arguments.models_dir) {
            (None, None) => default.iter().collect(),
            _ => given().collect(),
        };
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
        Ok(Source { models: Mutex::new(models), loading })
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

/// Adds the models of a folder. Those that cannot be read are named and left out.
fn add_folder(models: &mut Vec<Served>, folder: &Path, console: Console) -> Result<(), Failure> {
    let paths = in_folder(folder).into_iter().collect::<Result<Vec<PathBuf>, Failure>>()?;
    let (mut found, mut refused) = (Vec::new(), Vec::new());
    for path in paths {
        let id = obtain::stem(&path);
        match served(&id, &path) {
            Ok(model) => found.push(model),
            Err(error) => refused.push((id, Failure::from(error).about(&path))),
        }
    }
    if models.is_empty() && found.is_empty() {
        return refused.into_iter().next().map_or(Ok(()), |(_, failure)| Err(failure));
    }
    for (id, failure) in refused {
        let message = failure.message().unwrap_or_default();
        console.notice(&format!("{id} cannot be served: {message}"));
    }
    found.into_iter().try_for_each(|model| add(models, model))
}

/// Adds a model. Files that are served already get its names as aliases.
fn add(models: &mut Vec<Served>, model: Served) -> Result<(), Failure> {
    let real = |path: &Path| path.canonicalize().unwrap_or(path.to_path_buf());
    let path = real(&model.path);
    if let Some(same) = models.iter_mut().find(|other| real(&other.path) == path) {
        for name in std::iter::once(model.card.id).chain(model.card.aliases) {
            let card = &mut same.card;
            let known = std::iter::once(&card.id).chain(&card.aliases);
            if !known.into_iter().any(|other| other.eq_ignore_ascii_case(&name)) {
                card.aliases.push(name);
            }
        }
        return Ok(());
    }
    match models.iter().find(|other| other.card.id.eq_ignore_ascii_case(&model.card.id)) {
        None => {
            models.push(model);
            Ok(())
        }
        Some(other) => Err(Failure::usage(format!(
            "{} and {} are both called {}; rename one of them",
            other.path.display(),
            model.path.display(),
            model.card.id
        ))),
    }
}

/// A model by its files; an error if they are no model.
fn served(label: &str, path: &Path) -> Result<Served, ModelError> {
    let facts = facts(path)?;
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
        // A name may be a link to the file.
        bytes: Some(size_of(&path.canonicalize().unwrap_or(path.to_path_buf()))),
        modified: modified.map_or(0, |time| time.as_secs()),
        sha256: entry.and_then(Entry::sha256).map(String::from),
        facts: Some(Arc::new(facts)),
    };
    Ok(Served { card, path: path.to_path_buf() })
}

/// The properties of a model that its files state.
fn facts(path: &Path) -> Result<ModelFacts, ModelError> {
    let file = ModelFile::open(path)?;
    let config = file.config()?;
    let infos = file.source().tensor_infos();
    let elements = |info: &TensorInfo| info.shape.iter().map(|&size| size as u64).product::<u64>();
    let values =
        |ty: TensorType| -> u64 { infos.iter().filter(|info| info.ty == ty).map(elements).sum() };
    let most = infos.iter().map(|info| info.ty).max_by_key(|&ty| values(ty));
    let (format, chat_template) = match &file {
        ModelFile::Gguf(gguf) => {
            ("gguf", gguf.string("tokenizer.chat_template").map(str::to_string))
        }
        ModelFile::Folder(folder) => ("safetensors", template_of(folder)),
    };
    Ok(ModelFacts {
        format: format.to_string(),
        architecture: config.family.name.to_string(),
        parameters: infos.iter().map(elements).sum(),
        quantization: most.map_or("", TensorType::name).to_string(),
        context: config.context,
        embedding_width: config.hidden,
        layers: config.layers,
        vocabulary: config.vocabulary,
        chat_template,
    })
}

/// The chat template of a folder: a file of its own, or a field of the tokeniser's settings.
fn template_of(folder: &HuggingFaceFolder) -> Option<String> {
    let read = |name: &str| std::fs::read_to_string(folder.file(name)?).ok();
    read("chat_template.jinja").or_else(|| {
        let settings: serde_json::Value =
            serde_json::from_str(&read("tokenizer_config.json")?).ok()?;
        settings["chat_template"].as_str().map(str::to_string)
    })
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

/// A number that changes when the size or a time of one of the files does.
fn version_of(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut add = |path: &Path| {
        let found = path.metadata().ok();
        let times = |file: &std::fs::Metadata| {
            [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()]
        };
        (path, found.as_ref().map(|file| (file.len(), file.ino(), times(file)))).hash(&mut hasher);
    };
    add(path);
    let inside = std::fs::read_dir(path).into_iter().flatten().filter_map(|entry| entry.ok());
    let mut inside: Vec<PathBuf> = inside.map(|entry| entry.path()).collect();
    inside.sort();
    inside.iter().for_each(|path| add(path));
    hasher.finish()
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
