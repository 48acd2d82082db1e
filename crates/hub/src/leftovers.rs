//! What is not whole in the hub's cache, for a user who wonders where the disk space went.

use std::fs;
use std::path::{Path, PathBuf};

/// A file that is no whole one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// `owner/name`.
    pub repository: String,
    /// The file.
    pub path: PathBuf,
    /// What it takes on disk.
    pub bytes: u64,
    /// Why it is not whole.
    pub kind: LeftoverKind,
}

/// Why a file is not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftoverKind {
    /// A download of this crate that has not ended; fetching again continues it.
    Unfinished,
    /// The same of another program, which alone may touch it.
    UnfinishedElsewhere,
    /// A name of a commit whose contents are gone.
    NoContents,
}

/// All of them, by path.
pub fn leftovers(cache: &Path) -> Vec<Leftover> {
    let mut found = Vec::new();
    for folder in entries(cache) {
        let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(repository) = name.strip_prefix("models--") else { continue };
        let repository = repository.replacen("--", "/", 1);
        let mut push = |path: PathBuf, kind| {
            let (repository, bytes) = (repository.clone(), on_disk(&path));
            found.push(Leftover { repository, path, bytes, kind });
        };
        for blob in entries(&folder.join("blobs")) {
            match blob.extension().and_then(|extension| extension.to_str()) {
                Some("pianola") => push(blob, LeftoverKind::Unfinished),
                Some("incomplete") => push(blob, LeftoverKind::UnfinishedElsewhere),
                _ => {}
            }
        }
        let mut links = Vec::new();
        for commit in entries(&folder.join("snapshots")) {
            dangling(&commit, 0, &mut links);
        }
        links.into_iter().for_each(|link| push(link, LeftoverKind::NoContents));
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Links below a folder that lead nowhere.
fn dangling(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    // Folders in repositories are few and shallow.
    if depth > 8 {
        return;
    }
    for path in entries(folder) {
        let Ok(metadata) = path.symlink_metadata() else { continue };
        if metadata.is_dir() {
            dangling(&path, depth + 1, found);
        } else if metadata.is_symlink() && !path.exists() {
            found.push(path);
        }
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Unfinished files have holes.
#[cfg(unix)]
fn on_disk(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    path.symlink_metadata().map_or(0, |metadata| metadata.blocks() * 512)
}

#[cfg(not(unix))]
fn on_disk(path: &Path) -> u64 {
    path.symlink_metadata().map_or(0, |metadata| metadata.len())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_whole_is_found() {
        let cache = std::env::temp_dir().join(format!("pianola-leftovers-{}", std::process::id()));
        let folder = cache.join("models--me--tiny--model");
        let (blobs, commit) = (folder.join("blobs"), folder.join("snapshots/abc/sub"));
        fs::create_dir_all(&blobs).unwrap();
        fs::create_dir_all(&commit).unwrap();
        for name in ["a", "b.pianola", "b.pianola.blocks", "c.incomplete"] {
            fs::write(blobs.join(name), "x").unwrap();
        }
        std::os::unix::fs::symlink("../../../blobs/a", commit.join("whole")).unwrap();
        std::os::unix::fs::symlink("../../../blobs/gone", commit.join("gone")).unwrap();
        let found = leftovers(&cache);
        let kinds: Vec<LeftoverKind> = found.iter().map(|leftover| leftover.kind).collect();
        let expected =
            [LeftoverKind::Unfinished, LeftoverKind::UnfinishedElsewhere, LeftoverKind::NoContents];
        assert_eq!(kinds, expected);
        assert!(found.iter().all(|leftover| leftover.repository == "me/tiny--model"));
        assert!(leftovers(&cache.join("absent")).is_empty());
        fs::remove_dir_all(&cache).unwrap();
    }
}
