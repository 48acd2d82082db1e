//! The packages of a recording, loaded on the device.

use std::path::PathBuf;
use std::sync::Arc;

use super::packages::{Kernels, SEED};
use crate::amdxdna::{Calls, Device, DriverError};
use crate::package::Package;
use crate::runner::{KernelRunner, RunError, RunOptions, TiledMatmul, TiledOptions};

/// Where the device is, and how packages run on it.
#[derive(Clone)]
pub(super) struct Source {
    pub calls: Arc<dyn Calls>,
    pub node: PathBuf,
    pub run: RunOptions,
    pub tiled: TiledOptions,
}

impl Source {
    pub fn open(&self) -> Result<Device, DriverError> {
        Device::open_with(self.calls.clone(), &self.node)
    }
}

/// What a plan's part needs of the packages.
#[derive(Clone, Debug, Default)]
pub(super) struct Needs {
    /// Attention's products.
    pub attention: bool,
    /// Whole attentions, by their place in [`Kernels::flash`].
    pub flash: Vec<usize>,
}

/// Loaded packages, each of which passed its self-test after it was loaded.
pub(super) struct Session {
    products: TiledMatmul,
    attention: Option<TiledMatmul>,
    flash: Vec<(usize, KernelRunner)>,
}

impl Session {
    pub fn open(source: &Source, kernels: &Kernels, needs: &Needs) -> Result<Session, RunError> {
        let device = source.open()?;
        let load = |package: &Package| {
            let mut runner = KernelRunner::load(&device, package, source.run)?;
            runner.self_test(SEED)?;
            Ok::<_, RunError>(runner)
        };
        // Packages of one xclbin share a context.
        let tiled = |packages: &[Package]| {
            let mut runner = load(&packages[0])?;
            for package in &packages[1..] {
                runner = runner.with_stream(package)?;
                runner.self_test(SEED)?;
            }
            runner.into_tiled(source.tiled)
        };
        let products = tiled(&kernels.products)?;
        let attention = match needs.attention && !kernels.attention.is_empty() {
            true => Some(tiled(&kernels.attention)?),
            false => None,
        };
        let mut flash = Vec::new();
        for &index in &needs.flash {
            flash.push((index, load(&kernels.flash[index])?));
        }
        Ok(Session { products, attention, flash })
    }

    /// For products with weights.
    pub fn products(&mut self) -> &mut TiledMatmul {
        &mut self.products
    }

    /// For attention's products, in bf16.
    pub fn attention(&mut self) -> &mut TiledMatmul {
        self.attention.as_mut().unwrap_or(&mut self.products)
    }

    /// For whole attentions.
    ///
    /// # Panics
    /// If the recording did not ask for it.
    pub fn flash(&mut self, index: usize) -> &mut KernelRunner {
        let found = self.flash.iter_mut().find(|(known, _)| *known == index);
        &mut found.expect("an attention that the recording needs").1
    }
}
