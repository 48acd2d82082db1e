//! Kernel packages, and an emulated NPU that knows what they compute.

#![allow(dead_code, reason = "each test uses a part")]

use pianola_npu::emulated::Emulated;
use pianola_npu::package::{
    Activation, BLayout, Design, ElementType, ImportOptions, MatmulSpec, Operation, Package, Shape,
    import,
};
use pianola_npu::placed::{Clock, NpuOptions};
use pianola_npu::runner::RunOptions;
use pianola_npu_model::{Config, Kernel, Model, artefacts, parse_kernels};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A folder of packages that goes with this.
pub struct Packages {
    folder: PathBuf,
    kernels: Vec<(Package, Kernel)>,
}

impl Packages {
    /// A product of int8 with pieces of 64 columns, and one of bf16.
    pub fn new() -> Packages {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("npu-packages-{}-{count}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let mut packages = Packages { folder, kernels: Vec::new() };
        let shape = Shape { m: 128, k: 64, n: 64 };
        packages.add("i8 i32", ElementType::I8, ElementType::I32, shape);
        packages.add("bf16 f32", ElementType::Bf16, ElementType::F32, shape);
        packages
    }

    fn add(&mut self, types: &str, input: ElementType, output: ElementType, shape: Shape) {
        let Shape { m, k, n } = shape;
        let line = format!("matmul {types} {m}x{k}x{n} tile=16x8x16 columns=4 layout=column");
        let kernel = parse_kernels(&line).unwrap().remove(0).kernel;
        let made = artefacts::make(&kernel);
        let (xclbin, stream) = (self.folder.join("a.xclbin"), self.folder.join("a.bin"));
        std::fs::write(&xclbin, &made.xclbin).unwrap();
        std::fs::write(&stream, &made.instructions).unwrap();
        let operation = Operation::Matmul(MatmulSpec {
            design: Design::WholeArray,
            input,
            output,
            shape,
            tile: Shape { m: 16, k: 8, n: 16 },
            b_layout: BLayout::ColumnMajor,
            activation: Activation::None,
        });
        let options = ImportOptions::new(&types.replace(' ', "_"));
        let package = import(&self.path(), (&xclbin, &stream), &operation, &options).unwrap();
        self.kernels.push((package, kernel));
    }

    /// The folder of packages.
    pub fn path(&self) -> PathBuf {
        self.folder.join("npu_kernels")
    }

    /// With a clock that a test need not wait for.
    pub fn options(&self) -> NpuOptions {
        NpuOptions {
            run: RunOptions { timeout: Duration::from_secs(100) },
            clock: Arc::new(Hasty::default()),
            ..NpuOptions::new(self.path())
        }
    }

    /// A machine whose model knows the packages; faults can be planned later.
    pub fn machine(&self) -> Arc<Emulated> {
        // A command that hangs is given up by the kernel, long before the driver does.
        let hang_limit = Duration::from_millis(20);
        let model = Model::new(Config { hang_limit, ..Config::default() });
        for (package, kernel) in &self.kernels {
            let pdi = package.configuration().unwrap().0;
            model.register(pdi, None, kernel.clone()).unwrap();
        }
        Arc::new(Emulated::new(model))
    }
}

impl Drop for Packages {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A clock on which a second passes between two looks.
#[derive(Debug, Default)]
struct Hasty(AtomicU64);

impl Clock for Hasty {
    fn now(&self) -> Duration {
        Duration::from_secs(self.0.fetch_add(1, Ordering::Relaxed))
    }
}
