//! What can go wrong when a package runs.

use crate::amdxdna::DriverError;
use crate::package::PackageError;

/// Why a package did not run, or why its result is not to be trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A package of another xclbin than the one that was loaded.
    #[error("{package} and {loaded} have different xclbin files: they share no hardware context")]
    OtherConfiguration {
        /// The package.
        package: String,
        /// The one that was loaded before.
        loaded: String,
    },
    /// Packages that cannot compute parts of the same products.
    #[error("{package} and {loaded} differ in more than M and N: one product cannot use both")]
    OtherProducts {
        /// The package.
        package: String,
        /// The one that was loaded before.
        loaded: String,
    },
    /// The driver or the device.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The package.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// A package for another array.
    #[error("the package {package} is for {wanted}, this device is {found}: build it for {found}")]
    WrongDevice {
        /// The package.
        package: String,
        /// Its device.
        wanted: &'static str,
        /// The device here.
        found: &'static str,
    },
    /// A package that computes something else.
    #[error("the package {package} computes {found}, not {wanted}: load another one")]
    WrongOperation {
        /// The package.
        package: String,
        /// What was asked for.
        wanted: &'static str,
        /// What it computes.
        found: String,
    },
    /// A slice of the wrong length.
    #[error("{what} has {found} elements, the shape needs {expected}")]
    Length {
        /// Which argument.
        what: &'static str,
        /// By the shape.
        expected: usize,
        /// Given.
        found: usize,
    },
    /// An activation cannot be applied to parts of a sum.
    #[error(
        "the package applies an activation to products of {k} columns; a product of {asked} would \
         be cut into several: use a package without an activation, or of a larger K"
    )]
    SplitActivation {
        /// The package's K.
        k: usize,
        /// The K asked for.
        asked: usize,
    },
    /// A sum of bytes that may leave 32 bits.
    #[error("a sum of {0} products of bytes may leave 32 bits; at most 131,071 are safe")]
    TooLong(usize),
    /// A shape whose sizes leave the machine's integers.
    #[error("a product of {0} x {1} x {2} is impossible")]
    Impossible(usize, usize, usize),
    /// The staging memory holds not even one tile.
    #[error("{budget} bytes of staging hold no tile; one in two banks needs {needed}")]
    Staging {
        /// Bytes allowed.
        budget: usize,
        /// Bytes of the smallest arrangement.
        needed: usize,
    },
    /// The kernel left an element of its output as it was, or wrote what is no number.
    #[error(
        "the package {package} gave no result: an element was not written or is not finite. Load it \
         again; if its self-test then fails, build it again"
    )]
    NoResult {
        /// The package.
        package: String,
    },
    /// The kernel computes wrongly.
    #[error(
        "the package {package} computes wrongly and is refused: {problem}. Build it again with a \
         newer compiler, and check that its manifest states types and layout as built"
    )]
    SelfTest {
        /// The package.
        package: String,
        /// The first wrong element, in words.
        problem: String,
    },
}

impl RunError {
    /// The error where a slice has another length than its shape.
    pub(super) fn length(
        what: &'static str,
        expected: usize,
        found: usize,
    ) -> Result<(), RunError> {
        match expected == found {
            true => Ok(()),
            false => Err(RunError::Length { what, expected, found }),
        }
    }
}
