//! Makes a package of what a build left.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::manifest::{FORMAT, check_name, sha256};
use super::{
    Design, FileSum, MAX_INSTRUCTIONS, MAX_XCLBIN, Manifest, Operation, Package, PackageError,
    WholeArrayName, read_limited,
};
use crate::instructions::Instructions;
use crate::xclbin::Xclbin;

/// How to import.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// The package's name.
    pub name: String,
    /// The kernel's name in the xclbin; mlir-aie's is `MLIR_AIE`.
    pub kernel: String,
    /// Whether a package of that name is replaced.
    pub replace: bool,
}

impl ImportOptions {
    /// Under a name, with mlir-aie's kernel, replacing nothing.
    pub fn new(name: &str) -> ImportOptions {
        let kernel = "MLIR_AIE".to_string();
        ImportOptions { name: name.to_string(), kernel, replace: false }
    }
}

/// Checks an xclbin and an instruction stream (binary, or text of hexadecimal words), and makes a
/// package of them in the folder of their device under `folder` (`npu_kernels`). The device is
/// the stream's, the columns are the xclbin's.
///
/// The manifest is written last, by a rename: a package is there whole or not at all, and an old
/// one stays until its successor is complete.
pub fn import(
    folder: &Path,
    (xclbin_path, stream_path): (&Path, &Path),
    operation: &Operation,
    options: &ImportOptions,
) -> Result<Package, PackageError> {
    check_name(&options.name)?;
    let xclbin_bytes = read_limited(xclbin_path, MAX_XCLBIN)?;
    let xclbin = Xclbin::parse(xclbin_bytes.clone())
        .map_err(|source| PackageError::Xclbin { path: xclbin_path.to_path_buf(), source })?;
    let instructions = read_stream(stream_path)?;
    let device = instructions.generation();
    let xclbin_file = FileSum::named(&xclbin_bytes, "xclbin");
    let stream_file = FileSum::named(instructions.bytes(), "insts.bin");
    let manifest = Manifest {
        format: FORMAT,
        device,
        columns: xclbin.partition().columns,
        operation: operation.clone(),
        kernel: options.kernel.clone(),
        arguments: Vec::new(),
        xclbin: xclbin_file.clone(),
        instructions: stream_file.clone(),
    };
    let mut package = Package { name: options.name.clone(), manifest, xclbin, instructions };
    // The rules come first: arguments of a shape that breaks them mean nothing.
    operation.check(device, package.manifest.columns)?;
    package.manifest.arguments = operation.arguments();
    package.check()?;
    check_name_of_build(&package, xclbin_path)?;
    check_name_of_build(&package, stream_path)?;

    let folder = folder.join(device.name());
    fs::create_dir_all(&folder).map_err(PackageError::io("create", &folder))?;
    let target = folder.join(format!("{}.json", options.name));
    if !options.replace && target.exists() {
        return Err(PackageError::Exists(target));
    }
    let old = if options.replace { Manifest::read(&target).ok() } else { None };
    write_whole(&folder.join(&xclbin_file.file), &xclbin_bytes, true)?;
    write_whole(&folder.join(&stream_file.file), package.instructions.bytes(), true)?;
    let mut text = serde_json::to_string_pretty(&package.manifest)
        .map_err(|source| PackageError::Manifest { path: target.clone(), source })?;
    text.push('\n');
    write_whole(&target, text.as_bytes(), options.replace)?;
    if let Some(old) = old {
        remove_unused(&folder, [&old.xclbin.file, &old.instructions.file])?;
    }
    Ok(package)
}

/// Where a file's name says shape, tile and columns, they are the operation's.
fn check_name_of_build(package: &Package, path: &Path) -> Result<(), PackageError> {
    let Operation::Matmul(spec) = &package.manifest.operation else { return Ok(()) };
    let Some(name) = WholeArrayName::parse(path) else { return Ok(()) };
    let columns = package.manifest.columns;
    let stated = WholeArrayName { shape: spec.shape, tile: spec.tile, columns };
    if spec.design != Design::WholeArray || name == stated {
        return Ok(());
    }
    let what = "shape, tile and columns by the file name and as stated";
    let (left, right) = (name.to_string(), stated.to_string());
    Err(PackageError::Mismatch { what, left, right })
}

impl FileSum {
    /// A file named by its sum.
    fn named(bytes: &[u8], ending: &str) -> FileSum {
        let sha256 = sha256(bytes);
        FileSum { file: format!("{}.{ending}", &sha256[..16]), sha256 }
    }
}

fn read_stream(path: &Path) -> Result<Instructions, PackageError> {
    let bytes = read_limited(path, MAX_INSTRUCTIONS)?;
    let failed = |source| PackageError::Instructions { path: path.to_path_buf(), source };
    Instructions::parse_file(bytes).map_err(failed)
}

/// Writes a file under a temporary name and renames it. Without `replace`, a file that is there is
/// an error and stays.
fn write_whole(target: &Path, bytes: &[u8], replace: bool) -> Result<(), PackageError> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let temporary =
        Temporary(target.with_extension(format!("{}-{count}.partial", std::process::id())));
    let path = &temporary.0;
    let mut file = fs::File::create_new(path).map_err(PackageError::io("create", path))?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    written.map_err(PackageError::io("write", path))?;
    if replace {
        return fs::rename(path, target).map_err(PackageError::io("rename to", target));
    }
    // Unlike a rename, a link fails where the name has been taken meanwhile.
    match fs::hard_link(path, target) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            Err(PackageError::Exists(target.to_path_buf()))
        }
        Err(error) => Err(PackageError::io("link", target)(error)),
    }
}

/// A file that goes when this does; a renamed one has gone already.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Removes files that no manifest of the folder names any more. A manifest that cannot be read may
/// name them, so that they stay.
fn remove_unused(folder: &Path, files: [&String; 2]) -> Result<(), PackageError> {
    let mut used = Vec::new();
    for entry in fs::read_dir(folder).map_err(PackageError::io("read", folder))? {
        let path = entry.map_err(PackageError::io("read", folder))?.path();
        if path.extension().is_none_or(|ending| ending != "json") {
            continue;
        }
        let Ok(manifest) = Manifest::read(&path) else { return Ok(()) };
        used.extend([manifest.xclbin.file, manifest.instructions.file]);
    }
    for file in files {
        if check_name(file).is_ok() && !used.contains(file) {
            let path = folder.join(file);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(PackageError::io("remove", &path)(error));
                }
                _ => {}
            }
        }
    }
    Ok(())
}
