//! Kernel packages: what a user built with AMD's open tools, with a manifest that says what it
//! computes.
//!
//! ```text
//! npu_kernels/npu1/matmul_i8_512.json        the manifest
//!                 /4f0c….xclbin              named by their sums, so that streams of several
//!                 /91ab….insts.bin           shapes share one xclbin
//! ```
//!
//! A package is checked before it is used: sums, the xclbin, the stream, and that all agree on the
//! device, the columns and the design's rules. What it computes only a run can tell
//! (`KernelRunner::self_test`).

mod file_name;
mod import;
mod manifest;
mod operation;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

pub use file_name::{IronName, WholeArrayName};
pub use import::{ImportOptions, import};
pub use manifest::{FileSum, Manifest};
pub use operation::{
    Activation, Argument, AttentionSpec, BLayout, Design, ElementType, MatmulSpec, Operation,
    Packing, Shape,
};

use crate::amdxdna::Generation;
use crate::instructions::{Instructions, InstructionsError};
use crate::xclbin::{Kernel, Pdi, Xclbin, XclbinError};

/// Why a package cannot be read, checked or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackageError {
    /// The system refused.
    #[error("cannot {doing} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file that cannot be what it should.
    #[error("{} has more than {limit} bytes: it is no such file", .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes that the largest real one stays under.
        limit: u64,
    },
    /// A manifest that is no JSON of the right form.
    #[error("{} is no kernel manifest: {source}; import the package again", .path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What was wrong with it.
        source: serde_json::Error,
    },
    /// A manifest of another version.
    #[error(
        "the manifest has format {found}, this program knows {known}: import the package again"
    )]
    Format {
        /// By the manifest.
        found: u32,
        /// Known.
        known: u32,
    },
    /// A name with a path or other characters in it.
    #[error("`{0}` is no name: letters, digits, `_`, `-` and `.` only, not starting with `.`")]
    Name(String),
    /// A file that is not what was imported.
    #[error("{} has the SHA-256 {actual}, the manifest says {expected}: import it again", .path.display())]
    Sum {
        /// The file.
        path: PathBuf,
        /// By the manifest.
        expected: String,
        /// By the file.
        actual: String,
    },
    /// The xclbin cannot be used.
    #[error("{}: {source}", .path.display())]
    Xclbin {
        /// The file.
        path: PathBuf,
        /// Why.
        source: XclbinError,
    },
    /// The stream cannot be used.
    #[error("{}: {source}", .path.display())]
    Instructions {
        /// The file.
        path: PathBuf,
        /// Why.
        source: InstructionsError,
    },
    /// Parts that are of different kernels.
    #[error("{what}: {left} and {right}; xclbin and instructions must come from one build")]
    Mismatch {
        /// What they disagree on.
        what: &'static str,
        /// One.
        left: String,
        /// The other.
        right: String,
    },
    /// No kernel of that name, or no configuration for it.
    #[error("the xclbin has no kernel `{name}` with a configuration; it has {present}")]
    NoKernel {
        /// The name.
        name: String,
        /// What there is.
        present: String,
    },
    /// A rule of the design is broken.
    #[error("the package breaks a rule of its design: {0}")]
    Rule(String),
    /// A package of that name is there already.
    #[error("{} exists already: choose another name, or ask for it to be replaced", .0.display())]
    Exists(PathBuf),
}

impl PackageError {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| PackageError::Io { doing, path, source }
    }
}

/// The largest files that are read: configurations of the whole array have a few megabytes.
const MAX_XCLBIN: u64 = 64 << 20;
const MAX_INSTRUCTIONS: u64 = 16 << 20;

/// A package whose files have been checked.
#[derive(Clone, Debug)]
pub struct Package {
    name: String,
    manifest: Manifest,
    xclbin: Xclbin,
    instructions: Instructions,
}

impl Package {
    /// Reads and checks a package by its manifest.
    pub fn load(path: &Path) -> Result<Package, PackageError> {
        let manifest = Manifest::read(path)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let xclbin_path = folder.join(&manifest.xclbin.file);
        let bytes = manifest.xclbin.read(&xclbin_path, MAX_XCLBIN)?;
        let xclbin = Xclbin::parse(bytes)
            .map_err(|source| PackageError::Xclbin { path: xclbin_path, source })?;
        let stream_path = folder.join(&manifest.instructions.file);
        let bytes = manifest.instructions.read(&stream_path, MAX_INSTRUCTIONS)?;
        let instructions = Instructions::parse(bytes)
            .map_err(|source| PackageError::Instructions { path: stream_path, source })?;
        let package = Package { name: name.to_string(), manifest, xclbin, instructions };
        package.check()?;
        Ok(package)
    }

    /// What the parts must agree on.
    fn check(&self) -> Result<(), PackageError> {
        let manifest = &self.manifest;
        let same = |what, left: &dyn std::fmt::Display, right: &dyn std::fmt::Display| {
            let (left, right) = (left.to_string(), right.to_string());
            if left == right { Ok(()) } else { Err(PackageError::Mismatch { what, left, right }) }
        };
        let (stream, partition) = (&self.instructions, self.xclbin.partition());
        same("the device", &manifest.device.name(), &stream.generation().name())?;
        same("the xclbin's columns", &manifest.columns, &partition.columns)?;
        self.check_columns()?;
        manifest.operation.check(manifest.device, manifest.columns)?;
        let arguments = manifest.operation.arguments();
        if manifest.arguments != arguments {
            return Err(PackageError::Rule("the arguments are those of the operation".into()));
        }
        same("data buffers of the stream and the operation", &stream.buffers(), &arguments.len())?;
        find_kernel(&self.xclbin, &manifest.kernel).map(|_| ())
    }

    /// The stream's header names the partition's columns or, by some tools, all of the device's;
    /// what it writes to must be the partition's.
    fn check_columns(&self) -> Result<(), PackageError> {
        let (stream, columns) = (&self.instructions, self.manifest.columns);
        let device = stream.generation().array_columns();
        let named = u16::from(stream.columns());
        let what = match (named == columns || named == device, stream.used_columns()) {
            (true, used) if used <= u32::from(columns) => return Ok(()),
            (true, _) => "columns that the stream writes to",
            (false, _) => "columns by the stream's header",
        };
        let found = if what.ends_with("header") { named.into() } else { stream.used_columns() };
        let (left, right) = (found.to_string(), format!("{columns} of the xclbin"));
        Err(PackageError::Mismatch { what, left, right })
    }

    /// The manifest's name without its ending.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the package says of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The array's configuration.
    pub fn xclbin(&self) -> &Xclbin {
        &self.xclbin
    }

    /// The instruction stream.
    pub fn instructions(&self) -> &Instructions {
        &self.instructions
    }

    /// The kernel's PDI image and its unit's function.
    pub fn configuration(&self) -> Result<(&[u8], u8), PackageError> {
        let (kernel, pdi) = find_kernel(&self.xclbin, &self.manifest.kernel)?;
        Ok((self.xclbin.image(pdi), kernel.function))
    }
}

/// A kernel by its name before the colon, with the PDI that runs it.
fn find_kernel<'a>(xclbin: &'a Xclbin, name: &str) -> Result<(&'a Kernel, &'a Pdi), PackageError> {
    let mut named =
        xclbin.kernels().iter().filter(|kernel| kernel.name.split(':').next() == Some(name));
    let found = named.find_map(|kernel| Some((kernel, xclbin.pdi_of(kernel)?)));
    found.ok_or_else(|| {
        let names: Vec<&str> = xclbin.kernels().iter().map(|kernel| kernel.name.as_str()).collect();
        let present = if names.is_empty() { "none".to_string() } else { names.join(", ") };
        PackageError::NoKernel { name: name.to_string(), present }
    })
}

/// The packages for a device under `folder` (`npu_kernels`), each by its manifest, in the order of
/// their names. A damaged one is an error of its own and does not hide the others; a folder that
/// is not there has none.
#[allow(clippy::type_complexity)] // The pair is the point: which one, and what came of it.
pub fn packages(
    folder: &Path,
    device: Generation,
) -> Result<Vec<(PathBuf, Result<Package, PackageError>)>, PackageError> {
    let folder = folder.join(device.name());
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(PackageError::io("read", &folder)(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(PackageError::io("read", &folder))?.path();
        if path.extension().is_some_and(|ending| ending == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    let load = |path: PathBuf| {
        let package = Package::load(&path).and_then(|package| {
            let (left, right) = (package.manifest.device.name(), device.name());
            match left == right {
                true => Ok(package),
                false => Err(PackageError::Mismatch {
                    what: "the device and the folder",
                    left: left.to_string(),
                    right: right.to_string(),
                }),
            }
        });
        (path, package)
    };
    Ok(paths.into_iter().map(load).collect())
}

/// Reads a file that should have at most `limit` bytes.
fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>, PackageError> {
    let file = fs::File::open(path).map_err(PackageError::io("open", path))?;
    let mut bytes = Vec::new();
    // One byte more than allowed tells a file that is too large, even one that grows.
    file.take(limit + 1).read_to_end(&mut bytes).map_err(PackageError::io("read", path))?;
    if bytes.len() as u64 > limit {
        return Err(PackageError::TooLarge { path: path.to_path_buf(), limit });
    }
    Ok(bytes)
}
