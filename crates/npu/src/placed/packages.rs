//! Which of the packages in a folder are used, and for what.

use std::fmt;

use super::options::{NpuOptions, Precision};
use super::session::Source;
use crate::amdxdna::{Device, Generation};
use crate::package::{self, Activation, ElementType, MatmulSpec, Operation, Package, PackageError};
use crate::runner::KernelRunner;

/// A package that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its name.
    pub package: String,
    /// Why.
    pub reason: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.package, self.reason)
    }
}

/// The packages in use.
#[derive(Clone, Debug)]
pub(super) struct Kernels {
    pub precision: Precision,
    /// Computes products with weights.
    pub products: Package,
    /// Computes attention's products, in bf16; none where `products` does, or there is none.
    pub attention: Option<Package>,
    /// Whole attentions, each of one shape.
    pub flash: Vec<Package>,
    /// Packages that cannot be read or failed their self-tests.
    pub refused: Vec<Refused>,
    /// Sound ones that nothing needs.
    pub unused: Vec<Refused>,
}

/// The seed of the self-tests' data.
pub(super) const SEED: u64 = 1;

/// Packages of a folder that can be read, and those that cannot.
pub(super) fn find(
    options: &NpuOptions,
    device: Generation,
) -> Result<(Vec<Package>, Vec<Refused>), PackageError> {
    let (mut found, mut refused) = (Vec::new(), Vec::new());
    for (path, package) in package::packages(&options.kernels, device)? {
        match package {
            Ok(package) => found.push(package),
            Err(error) => refused.push(Refused {
                package: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
                reason: error.to_string(),
            }),
        }
    }
    Ok((found, refused))
}

/// Runs the self-test of each package, one after another: the device has few contexts.
pub(super) fn test(
    source: &Source,
    device: &Device,
    packages: Vec<Package>,
    refused: &mut Vec<Refused>,
) -> Vec<Package> {
    let mut sound = Vec::new();
    for package in packages {
        let run = || KernelRunner::load(device, &package, source.run)?.self_test(SEED);
        match run() {
            Ok(_) => sound.push(package),
            Err(error) => {
                let reason = error.to_string();
                refused.push(Refused { package: package.name().to_string(), reason });
            }
        }
    }
    sound
}

/// The matmul of a package that can compute parts of any product.
pub(super) fn matmul(package: &Package) -> Option<&MatmulSpec> {
    match &package.manifest().operation {
        Operation::Matmul(spec) if spec.activation == Activation::None => Some(spec),
        _ => None,
    }
}

/// Chooses among packages that passed their self-tests; the refused ones if none computes products.
pub(super) fn choose(
    packages: Vec<Package>,
    options: &NpuOptions,
    refused: Vec<Refused>,
) -> Result<Kernels, Vec<Refused>> {
    let best = |input: ElementType| {
        let of_type = packages
            .iter()
            .filter(|package| matmul(package).is_some_and(|spec| spec.input == input));
        of_type.max_by_key(|package| rank(package)).cloned()
    };
    let (i8, bf16) = (best(ElementType::I8), best(ElementType::Bf16));
    // What is not rotated is several times worse in int8: only if nothing else is there.
    let wanted = match (options.precision, &bf16) {
        (None, Some(_)) if !options.rotation => Some(Precision::Bf16),
        (wanted, _) => wanted,
    };
    let (precision, products, attention) = match (wanted, i8, bf16) {
        (None | Some(Precision::Int8Pieces), Some(i8), bf16) => (Precision::Int8Pieces, i8, bf16),
        (None | Some(Precision::Bf16), _, Some(bf16)) => (Precision::Bf16, bf16, None),
        _ => return Err(refused),
    };
    let (mut flash, mut unused) = (Vec::new(), Vec::new());
    for package in packages {
        let reason = match &package.manifest().operation {
            Operation::Attention(spec) if spec.causal => {
                flash.push(package);
                continue;
            }
            Operation::Attention(_) => "it computes no causal attention".to_string(),
            Operation::Matmul(spec) if spec.activation != Activation::None => {
                "it applies an activation, which parts of a sum do not allow".to_string()
            }
            Operation::Matmul(_) => {
                let used = [Some(&products), attention.as_ref()];
                if used.into_iter().flatten().any(|used| used.name() == package.name()) {
                    continue;
                }
                "another package is used for products".to_string()
            }
        };
        unused.push(Refused { package: package.name().to_string(), reason });
    }
    Ok(Kernels { precision, products, attention, flash, refused, unused })
}

/// Sums that are not rounded to bf16 come first, then the largest products of a command.
fn rank(package: &Package) -> (bool, usize) {
    let Some(spec) = matmul(package) else { return (false, 0) };
    (spec.output != ElementType::Bf16, spec.shape.m * spec.shape.k * spec.shape.n)
}

impl Kernels {
    /// The matmul of products with weights.
    pub fn product_spec(&self) -> &MatmulSpec {
        matmul(&self.products).expect("chosen for its matmul")
    }

    /// The matmul of attention's products, in bf16.
    pub fn attention_spec(&self) -> Option<&MatmulSpec> {
        match (self.precision, &self.attention) {
            (Precision::Bf16, _) => Some(self.product_spec()),
            (Precision::Int8Pieces, Some(package)) => matmul(package),
            (Precision::Int8Pieces, None) => None,
        }
    }

    /// Configurations of the array that take turns in a plan: each change costs a switch.
    pub fn configurations(&self) -> usize {
        let used = std::iter::once(&self.products).chain(&self.attention).chain(&self.flash);
        let mut sums: Vec<&str> =
            used.map(|package| package.manifest().xclbin.file.as_str()).collect();
        sums.sort_unstable();
        sums.dedup();
        sums.len()
    }
}
