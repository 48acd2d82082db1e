//! The manifest of a package.

use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::operation::{Argument, Operation};
use super::{PackageError, read_limited};
use crate::amdxdna::Generation;

/// The version of the manifest's form.
pub(super) const FORMAT: u32 = 1;
/// A manifest has about a kilobyte.
const MAX_MANIFEST: u64 = 64 << 10;

/// A file beside the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSum {
    /// Its name, without a folder.
    pub file: String,
    /// Its SHA-256 in hexadecimal.
    pub sha256: String,
}

impl FileSum {
    /// Reads the file and compares its sum.
    pub(super) fn read(&self, path: &Path, limit: u64) -> Result<Vec<u8>, PackageError> {
        check_name(&self.file)?;
        let bytes = read_limited(path, limit)?;
        let actual = sha256(&bytes);
        if actual != self.sha256 {
            let (path, expected) = (path.to_path_buf(), self.sha256.clone());
            return Err(PackageError::Sum { path, expected, actual });
        }
        Ok(bytes)
    }
}

/// What a package is: written by [`super::import`], read by [`super::Package::load`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of this form.
    pub format: u32,
    /// The array it was built for.
    pub device: Generation,
    /// The columns it uses.
    pub columns: u16,
    /// What it computes.
    pub operation: Operation,
    /// The kernel's name in the xclbin, before the colon.
    pub kernel: String,
    /// The data buffers in the order of the instructions' argument indices.
    pub arguments: Vec<Argument>,
    /// The array's configuration.
    pub xclbin: FileSum,
    /// The instruction stream.
    pub instructions: FileSum,
}

impl Manifest {
    /// Reads a manifest; its files are not looked at.
    pub(super) fn read(path: &Path) -> Result<Manifest, PackageError> {
        /// The one field that every version has.
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let bytes = read_limited(path, MAX_MANIFEST)?;
        let failed = |source| PackageError::Manifest { path: path.to_path_buf(), source };
        let Version { format } = serde_json::from_slice(&bytes).map_err(failed)?;
        if format != FORMAT {
            return Err(PackageError::Format { found: format, known: FORMAT });
        }
        serde_json::from_slice(&bytes).map_err(failed)
    }
}

/// A sum in hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Names stay inside the package's folder.
pub(super) fn check_name(name: &str) -> Result<(), PackageError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let sound = (1..=200).contains(&name.len()) && name.bytes().all(plain);
    match sound && !name.starts_with('.') {
        true => Ok(()),
        false => Err(PackageError::Name(name.to_string())),
    }
}
