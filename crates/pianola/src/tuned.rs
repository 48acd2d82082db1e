//! What is kept of a GPU on disk, beside the models: measured choices and compiled pipelines, a file a
//! device each.

use std::path::{Path, PathBuf};

use pianola_hub::Store;
use pianola_vulkan::{Gpu, Tuning};

use crate::console::Console;
use crate::failure::Failure;

/// Where a device's choices are kept.
pub fn path(gpu: &Gpu) -> Result<PathBuf, Failure> {
    place(gpu, "tuning", "txt")
}

/// Where a device's compiled pipelines are kept, if there is a place.
pub fn pipeline_file(gpu: &Gpu) -> Option<PathBuf> {
    place(gpu, "pipelines", "bin").ok()
}

fn place(gpu: &Gpu, folder: &str, ending: &str) -> Result<PathBuf, Failure> {
    let word = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = gpu.description().name.chars().map(word).collect();
    let models = Store::open()?.models().to_path_buf();
    let home = models.parent().map_or(models.clone(), PathBuf::from);
    Ok(home.join(folder).join(format!("{}.{ending}", name.trim_matches('-'))))
}

/// Choices measured before; none, with a notice, where they are stale or cannot be read.
pub fn load(gpu: &Gpu, console: Console) -> Tuning {
    let Ok(path) = path(gpu) else { return Tuning::default() };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Tuning::default(),
        Err(error) => {
            console.notice(&format!(
                "the measured choices in {} are ignored: {error}",
                path.display()
            ));
            return Tuning::default();
        }
    };
    match Tuning::from_text(&text, gpu) {
        Ok(tuning) => {
            console.detail(&format!(
                "tuning: {} measured choices from {}",
                tuning.len(),
                path.display()
            ));
            tuning
        }
        Err(stale) => {
            console.notice(&format!(
                "the measured choices in {} are ignored: {stale}; run `pianola tune` again",
                path.display()
            ));
            Tuning::default()
        }
    }
}

/// Makes the folder that choices are kept in: what cannot be kept need not be measured.
pub fn prepare(gpu: &Gpu) -> Result<PathBuf, Failure> {
    let path = path(gpu)?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|error| failed(&path, &error))?;
    }
    Ok(path)
}

/// Keeps choices for the next time.
pub fn save(gpu: &Gpu, tuning: &Tuning) -> Result<PathBuf, Failure> {
    let path = prepare(gpu)?;
    std::fs::write(&path, tuning.to_text(gpu)).map_err(|error| failed(&path, &error))?;
    Ok(path)
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!(
        "{} cannot be written: {error}; set PIANOLA_HOME to a folder of yours",
        path.display()
    ))
}
