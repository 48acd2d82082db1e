//! The models of the folder that `--models-dir` names.

use std::path::{Path, PathBuf};

use pianola_hub::obtain;

use super::served::{Served, add, served};
use crate::console::Console;
use crate::failure::Failure;

/// Adds the models of a folder. Those that cannot be read are named and left out.
pub fn add_folder(
    models: &mut Vec<Served>,
    folder: &Path,
    console: Console,
) -> Result<(), Failure> {
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
