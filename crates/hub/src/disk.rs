//! What files take on a disk, and what is left of it.

use std::fs;
use std::path::Path;

/// Bytes of a file, or of all files in a folder and below. What vanishes meanwhile counts as
/// nothing: another process may be at work there.
pub fn size_of(path: &Path) -> u64 {
    let Ok(metadata) = path.symlink_metadata() else { return 0 };
    if !metadata.is_dir() {
        return metadata.len();
    }
    let files = fs::read_dir(path).into_iter().flatten().flatten();
    files.map(|file| size_of(&file.path())).sum()
}

/// Bytes an ordinary user may still write where this folder is or will be; none if unknown.
#[cfg(unix)]
pub fn free_space(folder: &Path) -> Option<u64> {
    let existing = folder.ancestors().find(|folder| folder.exists())?;
    let disk = rustix::fs::statvfs(existing).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(not(unix))]
pub fn free_space(_: &Path) -> Option<u64> {
    None
}
