//! A model that is served, and what its files say of it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use pianola_formats::{HuggingFaceFolder, TensorInfo, TensorType};
use pianola_hub::catalogue::{self, Entry};
use pianola_hub::size_of;
use pianola_model::{ModelError, ModelFile};
use pianola_server::{ModelCard, ModelFacts};

use crate::failure::Failure;

/// A model that is served.
#[derive(Clone)]
pub struct Served {
    pub card: ModelCard,
    pub path: PathBuf,
}

/// A model by its files; an error if they are no model.
pub fn served(label: &str, path: &Path) -> Result<Served, ModelError> {
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

/// Adds a model. Files that are served already get its names as aliases.
pub fn add(models: &mut Vec<Served>, model: Served) -> Result<(), Failure> {
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

/// A number that changes when the size or a time of one of the files does.
pub fn version_of(path: &Path) -> u64 {
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
