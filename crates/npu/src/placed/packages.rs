//! Which of the packages in a folder are used, and for what.

use std::fmt;

use super::options::{NpuOptions, Precision};
use super::session::Source;
use crate::amdxdna::{Device, Generation};
use crate::package::{
    self, Activation, ElementType, MatmulSpec, Operation, Package, PackageError, Shape,
};
use crate::runner::{KernelRunner, cheapest};

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
    /// Compute products with weights: the largest, then others of its xclbin. Never empty.
    pub products: Vec<Package>,
    /// The same for attention's products, in bf16; none where `products` do, or there is none.
    pub attention: Vec<Package>,
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
    let products = with_streams(products, &packages);
    let attention = attention.map_or(Vec::new(), |package| with_streams(package, &packages));
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
                let mut used = products.iter().chain(&attention);
                if used.any(|used| used.name() == package.name()) {
                    continue;
                }
                "another package is used for products".to_string()
            }
        };
        unused.push(Refused { package: package.name().to_string(), reason });
    }
    Ok(Kernels { precision, products, attention, flash, refused, unused })
}

/// A package with the others that compute parts of the same products in the same hardware context.
fn with_streams(first: Package, packages: &[Package]) -> Vec<Package> {
    let serves = |other: &&Package| {
        let (left, right) = (first.manifest(), other.manifest());
        let same = (&left.xclbin.sha256, &left.kernel) == (&right.xclbin.sha256, &right.kernel);
        let specs = matmul(&first).zip(matmul(other));
        same && other.name() != first.name()
            && specs.is_some_and(|(left, right)| left.shares_products_with(right))
    };
    let others: Vec<Package> = packages.iter().filter(serves).cloned().collect();
    std::iter::once(first).chain(others).collect()
}

/// Sums that are not rounded to bf16 come first, then the largest products of a command.
fn rank(package: &Package) -> (bool, usize) {
    let Some(spec) = matmul(package) else { return (false, 0) };
    (spec.output != ElementType::Bf16, spec.shape.m * spec.shape.k * spec.shape.n)
}

impl Kernels {
    /// The matmul of products with weights.
    pub fn product_spec(&self) -> &MatmulSpec {
        matmul(&self.products[0]).expect("chosen for its matmul")
    }

    /// The matmul of attention's products, in bf16.
    pub fn attention_spec(&self) -> Option<&MatmulSpec> {
        match self.precision {
            Precision::Bf16 => Some(self.product_spec()),
            Precision::Int8Pieces => matmul(self.attention.first()?),
        }
    }

    /// The matmul that computes a product of so many rows and columns.
    pub fn product_spec_for(&self, rows: usize, columns: usize) -> &MatmulSpec {
        let specs: Vec<&MatmulSpec> = self.products.iter().filter_map(matmul).collect();
        let shape = Shape { m: rows, k: 1, n: columns };
        specs[cheapest(specs.iter().copied(), shape)]
    }

    /// Configurations of the array that take turns in a plan: each change costs a switch.
    pub fn configurations(&self) -> usize {
        let used = self.products.iter().chain(&self.attention).chain(&self.flash);
        let mut sums: Vec<&str> =
            used.map(|package| package.manifest().xclbin.file.as_str()).collect();
        sums.sort_unstable();
        sums.dedup();
        sums.len()
    }
}
