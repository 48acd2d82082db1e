//! The model of the device and of its kernel driver, with a package that it can run.

use std::sync::Arc;

use pianola_npu::amdxdna::Device;
use pianola_npu::emulated::Emulated;
use pianola_npu::package::{BLayout, ElementType, ImportOptions, Operation, Package, import};
use pianola_npu::runner::{KernelRunner, RunError, RunOptions};
use pianola_npu_model::{Config, Kernel, Model, artefacts, parse_kernels};

use super::{Scratch, packages};

/// The smallest product of bytes, as the model describes it.
const SMALL: &str = "matmul i8 i32 128x16x64 tile=16x8x16 columns=4";

/// A machine with an emulated NPU, and the package of a kernel that it knows.
pub struct Machine {
    pub calls: Arc<Emulated>,
    pub package: Package,
    kernel: Kernel,
}

impl Machine {
    /// `line` describes the kernel to the model, `operation` states it to the driver.
    pub fn new(config: Config, line: &str, operation: Operation) -> Machine {
        let kernel = parse_kernels(line).unwrap().remove(0).kernel;
        let made = artefacts::make(&kernel);
        let scratch = Scratch::new();
        let (xclbin, stream) = (scratch.0.join("final.xclbin"), scratch.0.join("insts.bin"));
        std::fs::write(&xclbin, &made.xclbin).unwrap();
        std::fs::write(&stream, &made.instructions).unwrap();
        let (folder, options) = (scratch.0.join("npu_kernels"), ImportOptions::new("kernel"));
        let package = import(&folder, (&xclbin, &stream), &operation, &options).unwrap();
        Machine::with_package(config, kernel, package)
    }

    fn with_package(config: Config, kernel: Kernel, package: Package) -> Machine {
        let model = Model::new(config);
        model.register(package.configuration().unwrap().0, None, kernel.clone()).unwrap();
        Machine { calls: Arc::new(Emulated::new(model)), package, kernel }
    }

    /// Another machine with the same package.
    pub fn another(&self, config: Config) -> Machine {
        Machine::with_package(config, self.kernel.clone(), self.package.clone())
    }

    /// With the smallest product of bytes.
    pub fn small(config: Config) -> Machine {
        let spec = packages::matmul(ElementType::I8, ElementType::I32, BLayout::RowMajor);
        Machine::new(config, SMALL, Operation::Matmul(spec))
    }

    pub fn open(&self) -> Device {
        Device::open_with(self.calls.clone(), Emulated::path()).unwrap()
    }

    /// Opens the device and loads the package.
    pub fn load(&self, options: RunOptions) -> Result<KernelRunner, RunError> {
        let device = Device::open_with(self.calls.clone(), Emulated::path())?;
        KernelRunner::load(&device, &self.package, options)
    }

    /// Why the model refused something since the last call.
    pub fn complaints(&self) -> Vec<String> {
        self.calls.model().complaints()
    }
}
