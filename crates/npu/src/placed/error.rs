//! Why the NPU cannot be a device of plans.

use std::path::PathBuf;

use pianola_plan::DeviceError;

use super::options::Precision;
use super::packages::Refused;
use crate::amdxdna::DriverError;
use crate::package::PackageError;

/// Why the NPU cannot be a device of plans.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The driver or the device.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The folder of packages, or a package that cannot be emulated.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// No kernels.
    #[error(
        "there is no kernel package for {device} in {}: build one and import it with `pianola npu \
         import`; see docs/how-to/try-an-npu.md", .folder.display()
    )]
    NoPackages {
        /// The folder.
        folder: PathBuf,
        /// The generation's name.
        device: &'static str,
    },
    /// Kernels, but none that computes products.
    #[error(
        "no kernel package of {} can be used for products{}{}. docs/how-to/try-an-npu.md has the \
         commands that build packages; `pianola npu check` checks them",
        .folder.display(),
        .precision.map_or(String::new(), |precision| format!(" in {precision}")),
        refusals(.refused)
    )]
    NoneUsable {
        /// The folder.
        folder: PathBuf,
        /// The precision that was asked for.
        precision: Option<Precision>,
        /// Each with its reason.
        refused: Vec<Refused>,
    },
}

fn refusals(refused: &[Refused]) -> String {
    let texts: Vec<String> = refused.iter().map(ToString::to_string).collect();
    if texts.is_empty() { String::new() } else { format!(": {}", texts.join("; ")) }
}

impl From<OpenError> for DeviceError {
    fn from(error: OpenError) -> DeviceError {
        DeviceError::Unsupported(error.to_string())
    }
}
