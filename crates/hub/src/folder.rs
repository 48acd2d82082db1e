//! The model that a user's folder holds.

use std::fs;
use std::path::{Path, PathBuf};

use crate::choose::is_model_name;

/// A folder holds several GGUF files, and no name says which is meant.
#[derive(Debug, thiserror::Error)]
#[error("{} holds {} GGUF files: {}; name one of them, as in {}", .folder.display(), .files.len(), listed(.files), .folder.join(&.files[0]).display())]
pub struct SeveralFiles {
    folder: PathBuf,
    /// Their names, at least two.
    files: Vec<String>,
}

/// The names, as far as a line has room for them.
fn listed(files: &[String]) -> String {
    const MOST: usize = 10;
    match files.len() {
        ..=MOST => files.join(", "),
        all => format!("{} and {} more", files[..MOST].join(", "), all - MOST),
    }
}

/// The model that a path means: the path itself, unless it is a folder that is no model and holds one
/// GGUF file.
pub fn model_at(path: PathBuf) -> Result<PathBuf, SeveralFiles> {
    let mut files = ggufs(&path);
    match files.len() {
        0 => Ok(path),
        1 => Ok(path.join(files.remove(0))),
        _ => Err(SeveralFiles { folder: path, files }),
    }
}

/// Whether a path is a folder with models in it, or a model itself.
pub fn holds_models(path: &Path) -> bool {
    path.join(CONFIG).is_file() || !ggufs(path).is_empty()
}

/// What makes a folder a model.
const CONFIG: &str = "config.json";

/// The GGUF files in a folder that is no model, in order.
fn ggufs(folder: &Path) -> Vec<String> {
    if folder.join(CONFIG).exists() {
        return Vec::new();
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter(|entry| entry.path().is_file()).map(|entry| entry.file_name());
    let mut names: Vec<String> = names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| is_model_name(name))
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::Folder;

    #[test]
    fn a_folder_stands_for_its_only_file() {
        let folder = Folder::new();
        let path = |name: &str| folder.path.join(name);
        let touch = |name: &str| fs::write(path(name), "").unwrap();
        assert_eq!(model_at(folder.path.clone()).unwrap(), folder.path);
        assert!(!holds_models(&folder.path));
        touch("notes.txt");
        touch("mmproj-a.gguf");
        assert_eq!(model_at(folder.path.clone()).unwrap(), folder.path);
        touch("a.gguf");
        assert_eq!(model_at(folder.path.clone()).unwrap(), path("a.gguf"));
        assert_eq!(model_at(path("a.gguf")).unwrap(), path("a.gguf"));
        assert!(holds_models(&folder.path) && !holds_models(&path("a.gguf")));
        touch("b.gguf");
        let message = model_at(folder.path.clone()).unwrap_err().to_string();
        assert!(message.contains("holds 2 GGUF files: a.gguf, b.gguf; name one"), "{message}");
        // With a configuration the folder is a model itself.
        touch("config.json");
        assert_eq!(model_at(folder.path.clone()).unwrap(), folder.path);
        assert!(holds_models(&folder.path));
    }

    #[test]
    fn a_long_list_is_cut() {
        let files: Vec<String> = (10..30).map(|number| format!("{number}.gguf")).collect();
        let message = SeveralFiles { folder: "x".into(), files }.to_string();
        assert!(
            message.contains("19.gguf and 10 more; name one of them, as in x/10.gguf"),
            "{message}"
        );
    }
}
