//! Running kernel packages.
//!
//! ```text
//! Package ─► KernelRunner ─ self_test ─► matmul_i8, matmul_bf16, attention_bf16   its one shape
//!                 ├─ with_stream ─► the same context, another shape of the same xclbin
//!                 └─ into_tiled ─► TiledMatmul                                     any shape
//! ```

mod attention;
mod choice;
mod element;
mod error;
mod matrix;
mod pool;
mod program;
mod reference;
mod self_test;
mod tiled;

use half::bf16;

pub use choice::Work;
pub(crate) use choice::cheapest;
pub use error::RunError;
pub use matrix::{Factor, Order};
pub use program::RunOptions;
pub use reference::reference_matmul_i8;
pub use self_test::SelfTest;
pub use tiled::{TiledMatmul, TiledOptions};

use crate::amdxdna::{Buffer, BufferKind, Command, Device};
use crate::package::{ElementType, MatmulSpec, Operation, Package};
use element::{Element, poison};
use matrix::Matrix;
use program::Program;

/// A package loaded into a hardware context, with buffers for its arguments: runs the operation on
/// exactly the package's shape.
#[derive(Debug)]
pub struct KernelRunner {
    // Dropped first: with the context gone, no command of it touches the buffers any more.
    program: Program,
    name: String,
    operation: Operation,
    /// The number of its instructions in the program.
    stream: usize,
    /// Name and operation of each stream before it.
    before: Vec<(String, Operation)>,
    command: Command,
    /// The data buffers with the bytes that each has by the operation.
    arguments: Vec<(Buffer, usize)>,
}

impl KernelRunner {
    /// Loads a package. Run [`KernelRunner::self_test`] before trusting its results.
    pub fn load(
        device: &Device,
        package: &Package,
        options: RunOptions,
    ) -> Result<KernelRunner, RunError> {
        let program = Program::load(device, package, options)?;
        KernelRunner::new(program, package, 0, Vec::new())
    }

    /// Loads the instructions of another package of the same xclbin, say for another shape, into the same
    /// context: from now on its operation is run. [`KernelRunner::into_tiled`] uses all of them.
    pub fn with_stream(self, package: &Package) -> Result<KernelRunner, RunError> {
        let KernelRunner { mut program, name, operation, mut before, .. } = self;
        before.push((name, operation));
        let stream = program.add(package)?;
        KernelRunner::new(program, package, stream, before)
    }

    fn new(
        program: Program,
        package: &Package,
        stream: usize,
        before: Vec<(String, Operation)>,
    ) -> Result<KernelRunner, RunError> {
        let device = &program.device;
        let operation = package.manifest().operation.clone();
        let mut arguments = Vec::new();
        for argument in operation.arguments() {
            let buffer = Buffer::new(device, BufferKind::Share, argument.bytes)?;
            arguments.push((buffer, argument.bytes));
        }
        let buffers: Vec<&Buffer> = arguments.iter().map(|(buffer, _)| buffer).collect();
        let mut command = Command::new(device)?;
        command.set(&program.packet(stream, &buffers));
        let name = package.name().to_string();
        Ok(KernelRunner { program, name, operation, stream, before, command, arguments })
    }

    /// The package's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the package computes.
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// Whether the context is gone; the package must be loaded again.
    pub fn is_lost(&self) -> bool {
        self.program.context.is_lost()
    }

    /// `out = a b` with a of M x K, b of K x N and out of M x N, all row-major.
    pub fn matmul_i8(&mut self, a: &[i8], b: &[i8], out: &mut [i32]) -> Result<(), RunError> {
        self.matmul(a, b, out)
    }

    /// The same for bf16. A package that rounds its result to bf16 has that widened.
    pub fn matmul_bf16(&mut self, a: &[bf16], b: &[bf16], out: &mut [f32]) -> Result<(), RunError> {
        self.matmul(a, b, out)
    }

    fn matmul<E: Element>(&mut self, a: &[E], b: &[E], out: &mut [E::Sum]) -> Result<(), RunError> {
        let spec = self.matmul_spec(E::TYPE)?.clone();
        let shape = spec.shape;
        let a = Matrix::new("a", a, (shape.m, shape.k), Order::RowMajor)?;
        let b = Matrix::new("b", b, (shape.k, shape.n), Order::RowMajor)?;
        RunError::length("out", shape.m * shape.n, out.len())?;
        let mut staged = Vec::new();
        a.lay_out_a((0, 0), shape, &mut staged);
        self.write_argument(0, E::bytes(&staged))?;
        b.lay_out_b((0, 0), shape, spec.b_layout, &mut staged);
        self.write_argument(1, E::bytes(&staged))?;
        self.run(2)?;
        out.fill(E::Sum::default());
        let mut bytes = vec![0; self.arguments[2].1];
        self.read_argument(2, &mut bytes)?;
        E::add(&bytes, spec.output, out);
        if !E::are_results(&bytes, spec.output) && a.is_finite() && b.is_finite() {
            return Err(RunError::NoResult { package: self.name.clone() });
        }
        Ok(())
    }

    fn matmul_spec(&self, input: ElementType) -> Result<&MatmulSpec, RunError> {
        match &self.operation {
            Operation::Matmul(spec) if spec.input == input => Ok(spec),
            _ => Err(self.wrong_operation(match input {
                ElementType::I8 => "a product of i8",
                _ => "a product of bf16",
            })),
        }
    }

    fn wrong_operation(&self, wanted: &'static str) -> RunError {
        let found = match &self.operation {
            Operation::Matmul(spec) => format!("a product of {:?}", spec.input),
            Operation::Attention(_) => "attention".to_string(),
        };
        RunError::WrongOperation { package: self.name.clone(), wanted, found }
    }

    /// Writes an input and moves it to memory.
    fn write_argument(&mut self, index: usize, bytes: &[u8]) -> Result<(), RunError> {
        let (buffer, length) = &mut self.arguments[index];
        debug_assert_eq!(bytes.len(), *length);
        buffer.write(0, bytes);
        Ok(buffer.flush(*length)?)
    }

    /// Reads an output that the device wrote.
    fn read_argument(&self, index: usize, bytes: &mut [u8]) -> Result<(), RunError> {
        let (buffer, length) = &self.arguments[index];
        buffer.invalidate(*length)?;
        buffer.read(0, bytes);
        Ok(())
    }

    /// Runs the command once. The output is filled before with what is no result.
    fn run(&mut self, output: usize) -> Result<(), RunError> {
        let (buffer, length) = &mut self.arguments[output];
        let fill = poison(self.operation.output());
        buffer.write(0, &fill.repeat(length.div_ceil(fill.len()))[..*length]);
        buffer.flush(*length)?;
        let buffers: Vec<&Buffer> = self.arguments.iter().map(|(buffer, _)| buffer).collect();
        self.command.set(&self.program.packet(self.stream, &buffers));
        let submission = self.program.submit(self.stream, &self.command, &buffers)?;
        self.program.wait(submission, &self.command)
    }

    /// Gives up the buffers of the one shape and keeps the context, for products of any shape. Each is computed
    /// by the stream that has the least work with it.
    pub fn into_tiled(mut self, options: TiledOptions) -> Result<TiledMatmul, RunError> {
        let mut all = std::mem::take(&mut self.before);
        all.push((self.name.clone(), self.operation.clone()));
        let mut streams: Vec<(String, MatmulSpec)> = Vec::new();
        for (name, operation) in all {
            let Operation::Matmul(spec) = operation else {
                return Err(self.wrong_operation("a product of matrices"));
            };
            if let Some((loaded, first)) = streams.first()
                && !first.shares_products_with(&spec)
            {
                let loaded = loaded.clone();
                return Err(RunError::OtherProducts { package: name, loaded });
            }
            streams.push((name, spec));
        }
        TiledMatmul::new(self.program, streams, options)
    }
}
