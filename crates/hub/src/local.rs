//! Models that other programs have put on this machine, to be run where they are.
//!
//! | program | folder | names |
//! |---|---|---|
//! | Hugging Face's own | the hub's cache | `owner/name:file.gguf`, `owner/name` |
//! | Ollama | `OLLAMA_MODELS`, `~/.ollama/models`, that of the system's service | `ollama:name:tag` |
//! | llama.cpp | `LLAMA_CACHE`, `~/.cache/llama.cpp` | `llama.cpp:file` |
//! | LM Studio | `~/.lmstudio/models`, `~/.cache/lm-studio/models` | `lmstudio:owner/name/file` |

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::cache::{collect, is_whole};
use crate::choose::{SizedFile, is_model};
use crate::error::HubError;
use crate::settings::Settings;
use crate::sum::Sum;

/// Whose model it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Anything that uses the hub's cache, this program too.
    Hub,
    /// Ollama.
    Ollama,
    /// llama.cpp.
    LlamaCpp,
    /// LM Studio.
    LmStudio,
}

impl Program {
    /// What stands before its models' names and a colon.
    pub fn prefix(self) -> &'static str {
        match self {
            Program::Hub => "hf",
            Program::Ollama => "ollama",
            Program::LlamaCpp => "llama.cpp",
            Program::LmStudio => "lmstudio",
        }
    }
}

/// A model of another program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalModel {
    /// Whose it is.
    pub program: Program,
    /// What it is called there.
    pub name: String,
    /// Its file or folder.
    pub path: PathBuf,
    /// Of its weights.
    pub bytes: u64,
}

impl LocalModel {
    /// The name that means this model and no other: a model of the hub needs no prefix.
    pub fn full_name(&self) -> String {
        match self.program {
            Program::Hub => self.name.clone(),
            program => format!("{}:{}", program.prefix(), self.name),
        }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct LocalModels {
    /// By program and name.
    pub models: Vec<LocalModel>,
    /// What could not be read, and why.
    pub unreadable: Vec<String>,
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
}

impl LocalModels {
    /// Looks where the user's programs keep theirs.
    pub fn find(settings: Option<&Settings>) -> LocalModels {
        LocalModels::find_in(settings, |variable| std::env::var_os(variable))
    }

    fn find_in(
        settings: Option<&Settings>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> LocalModels {
        let folder =
            |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = folder("HOME");
        let under_home = |path: &str| home.as_ref().map(|home| home.join(path));
        let cache = folder("XDG_CACHE_HOME").or_else(|| under_home(".cache"));
        let mut found = LocalModels::default();
        if let Some(settings) = settings {
            found.hub(&settings.cache);
        }
        // The service that Ollama's installer sets up has a home of its own.
        let service = PathBuf::from("/usr/share/ollama/.ollama/models");
        let ollama = match folder("OLLAMA_MODELS") {
            Some(folder) => vec![folder],
            None => under_home(".ollama/models").into_iter().chain([service]).collect(),
        };
        for folder in ollama {
            found.ollama(&folder);
        }
        let llama = folder("LLAMA_CACHE").or_else(|| cache.map(|cache| cache.join("llama.cpp")));
        if let Some(folder) = llama {
            found.files(Program::LlamaCpp, &folder, false);
        }
        let studio = [".lmstudio/models", ".cache/lm-studio/models"];
        for folder in studio.into_iter().filter_map(under_home) {
            found.files(Program::LmStudio, &folder, true);
        }
        found
            .models
            .sort_by(|a, b| (a.program.prefix(), &a.name).cmp(&(b.program.prefix(), &b.name)));
        found.models.dedup_by(|a, b| a.path == b.path);
        found
    }

    /// The model of this name: with its program in front, or without where that is clear.
    pub fn resolve(&self, name: &str) -> Result<Option<&LocalModel>, HubError> {
        let programs = [Program::Ollama, Program::LlamaCpp, Program::LmStudio];
        let prefixed = programs.into_iter().find_map(|program| {
            Some((program, name.strip_prefix(program.prefix())?.strip_prefix(':')?))
        });
        let candidates = |model: &&LocalModel| match prefixed {
            Some((program, name)) => model.program == program && model.is_called(name),
            None => model.program != Program::Hub && model.is_called(name),
        };
        let found: Vec<&LocalModel> = self.models.iter().filter(candidates).collect();
        match (&found[..], prefixed) {
            ([], Some(_)) => {
                let unreadable = self.unreadable.join("; ");
                Err(HubError::NoLocal { name: name.to_string(), unreadable })
            }
            ([], None) => Ok(None),
            ([only], _) => Ok(Some(only)),
            (several, _) => {
                let found: Vec<String> = several.iter().map(|model| model.full_name()).collect();
                Err(HubError::SeveralLocal { name: name.to_string(), found: found.join(", ") })
            }
        }
    }

    /// The entries of a folder; none where there is none, and a word where it cannot be read.
    fn entries(&mut self, folder: &Path) -> Vec<PathBuf> {
        match fs::read_dir(folder) {
            Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
            Err(error) => {
                // A file where a folder might be is no folder of models.
                if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) {
                    self.cannot_read(folder, &error);
                }
                Vec::new()
            }
        }
    }

    fn cannot_read(&mut self, path: &Path, error: &io::Error) {
        let advice = match error.kind() {
            io::ErrorKind::PermissionDenied => "allow this user to read it",
            io::ErrorKind::NotFound => "it is listed but gone, fetch it again with that program",
            _ => "check that disk",
        };
        self.unreadable.push(format!("{} cannot be read ({error}): {advice}", path.display()));
    }

    /// Models in the cache of the hub.
    fn hub(&mut self, cache: &Path) {
        for repository in self.entries(cache) {
            let name = file_name(&repository);
            let Some((owner, name)) =
                name.strip_prefix("models--").and_then(|name| name.split_once("--"))
            else {
                continue;
            };
            let main = fs::read_to_string(repository.join("refs/main")).unwrap_or_default();
            let snapshot = repository.join("snapshots").join(main.trim());
            if main.trim().is_empty() || !snapshot.is_dir() {
                continue;
            }
            let mut files = Vec::new();
            collect(&snapshot, "", &mut files);
            let program = Program::Hub;
            for file in files.iter().filter(|file| is_model(file)) {
                let (name, path) =
                    (format!("{owner}/{name}:{}", file.path), snapshot.join(&file.path));
                self.models.push(LocalModel { program, name, path, bytes: file.size });
            }
            if is_whole(&snapshot) {
                let weights = files.iter().filter(|file| file.path.ends_with(".safetensors"));
                let bytes = weights.map(|file| file.size).sum();
                self.models.push(LocalModel {
                    program,
                    name: format!("{owner}/{name}"),
                    path: snapshot,
                    bytes,
                });
            }
        }
    }

    /// Models of Ollama: `manifests/HOST/OWNER/NAME/TAG`, each a list of blobs.
    fn ollama(&mut self, folder: &Path) {
        for host in self.entries(&folder.join("manifests")) {
            for owner in self.entries(&host) {
                for name in self.entries(&owner) {
                    for tag in self.entries(&name) {
                        let plain = format!("{}:{}", file_name(&name), file_name(&tag));
                        let name = match file_name(&owner).as_str() {
                            "library" => plain,
                            owner => format!("{owner}/{plain}"),
                        };
                        self.ollama_model(folder, name, &tag);
                    }
                }
            }
        }
    }

    fn ollama_model(&mut self, folder: &Path, name: String, manifest: &Path) {
        let bytes = match fs::read(manifest) {
            Ok(bytes) => bytes,
            Err(error) => return self.cannot_read(manifest, &error),
        };
        let Ok(manifest) = serde_json::from_slice::<Manifest>(&bytes) else { return };
        let model = |layer: &&Layer| layer.media_type == "application/vnd.ollama.image.model";
        let digest = manifest.layers.iter().find(model).and_then(|layer| {
            let Some(sum @ Sum::Sha256(_)) = Sum::parse(layer.digest.strip_prefix("sha256:")?)
            else {
                return None;
            };
            Some(sum)
        });
        // A model of theirs may run elsewhere, and then has no file.
        let Some(sum) = digest else { return };
        let path = folder.join("blobs").join(format!("sha256-{}", sum.text()));
        match File::open(&path).and_then(|file| file.metadata()) {
            Ok(found) => {
                let (program, bytes) = (Program::Ollama, found.len());
                self.models.push(LocalModel { program, name, path, bytes });
            }
            Err(error) => self.cannot_read(&path, &error),
        }
    }

    /// GGUF files in a folder, and in folders below it if `deep`.
    fn files(&mut self, program: Program, folder: &Path, deep: bool) {
        let entries = self.entries(folder);
        let mut files = Vec::new();
        if deep && !entries.is_empty() {
            collect(folder, "", &mut files);
        } else {
            let sized = |path: &PathBuf| Some((file_name(path), fs::metadata(path).ok()?));
            let plain = entries.iter().filter_map(sized).filter(|(_, found)| found.is_file());
            files.extend(plain.map(|(path, found)| SizedFile { path, size: found.len() }));
        }
        for file in files.iter().filter(|file| is_model(file)) {
            let name = file.path.trim_end_matches(".gguf").to_string();
            let path = folder.join(&file.path);
            self.models.push(LocalModel { program, name, path, bytes: file.size });
        }
    }
}

impl LocalModel {
    /// Whether a name without the program means it: the whole name, its end behind a slash, the folder
    /// it is in, or for Ollama the name without `:latest`.
    fn is_called(&self, asked: &str) -> bool {
        let (own, asked) = (self.name.to_ascii_lowercase(), asked.to_ascii_lowercase());
        let own = own.strip_suffix(":latest").unwrap_or(&own);
        let asked = asked.strip_suffix(":latest").unwrap_or(&asked);
        let asked = asked.strip_suffix(".gguf").unwrap_or(asked);
        let is_end = own.strip_suffix(asked).is_some_and(|rest| rest.ends_with('/'));
        let folder = own.rsplit_once('/').map(|(folder, _)| folder);
        own == asked
            || (is_end && !asked.is_empty())
            || folder.is_some_and(|f| f == asked && f.contains('/'))
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
#[path = "local/tests.rs"]
mod tests;
