//! A package on the device: the context that its PDI configures, and its instructions; those of further
//! packages of the same xclbin run in the same context.

use std::time::Duration;

use super::RunError;
use crate::amdxdna::{
    Buffer, BufferKind, Columns, Command, ComputeUnit, Context, Device, Packet, Submission,
};
use crate::package::Package;

/// How packages run.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// How long a command or a chain may take.
    pub timeout: Duration,
}

impl Default for RunOptions {
    /// Ten seconds: a thousand times what the largest product takes.
    fn default() -> RunOptions {
        RunOptions { timeout: Duration::from_secs(10) }
    }
}

/// The index of the one compute unit that is configured.
const UNIT: u32 = 0;

#[derive(Debug)]
pub(super) struct Program {
    pub(super) context: Context,
    pub(super) device: Device,
    streams: Vec<Stream>,
    /// The package that the context was made for.
    package: String,
    /// What its array is configured by: the sum of the xclbin, and the kernel's name in it.
    configuration: (String, String),
    timeout: Duration,
}

/// Instructions in the device heap.
#[derive(Debug)]
struct Stream {
    instructions: Buffer,
    words: u32,
}

impl Stream {
    fn load(device: &Device, package: &Package) -> Result<Stream, RunError> {
        let instructions = upload(device, package.instructions().bytes())?;
        Ok(Stream { instructions, words: package.instructions().words() })
    }
}

fn configuration(package: &Package) -> (String, String) {
    let manifest = package.manifest();
    (manifest.xclbin.sha256.clone(), manifest.kernel.clone())
}

impl Program {
    /// Uploads a package's PDI and instructions and makes its context.
    pub(super) fn load(
        device: &Device,
        package: &Package,
        options: RunOptions,
    ) -> Result<Program, RunError> {
        let manifest = package.manifest();
        let (wanted, found) = (manifest.device, device.identity().generation);
        if wanted != found {
            let package = package.name().to_string();
            return Err(RunError::WrongDevice {
                package,
                wanted: wanted.name(),
                found: found.name(),
            });
        }
        let (image, function) = package.configuration()?;
        let pdi = upload(device, image)?;
        let stream = Stream::load(device, package)?;
        let partition = package.xclbin().partition();
        let columns = Columns {
            count: partition.columns,
            operations_per_cycle: partition.operations_per_cycle,
        };
        let context = Context::new(device, columns, vec![ComputeUnit { pdi, function }])?;
        Ok(Program {
            context,
            device: device.clone(),
            streams: vec![stream],
            package: package.name().to_string(),
            configuration: configuration(package),
            timeout: options.timeout,
        })
    }

    /// Uploads the instructions of a further package of the same xclbin; returns their number.
    pub(super) fn add(&mut self, package: &Package) -> Result<usize, RunError> {
        if configuration(package) != self.configuration {
            let (package, loaded) = (package.name().to_string(), self.package.clone());
            return Err(RunError::OtherConfiguration { package, loaded });
        }
        self.streams.push(Stream::load(&self.device, package)?);
        Ok(self.streams.len() - 1)
    }

    /// The command that runs a stream's instructions on buffers.
    pub(super) fn packet(&self, stream: usize, buffers: &[&Buffer]) -> Packet {
        let addresses: Vec<u64> = buffers.iter().map(|buffer| buffer.address()).collect();
        let Stream { instructions, words } = &self.streams[stream];
        Packet::start_cu(UNIT, instructions.address(), *words, &addresses)
    }

    /// Submits a command of a stream that uses `buffers`.
    pub(super) fn submit(
        &self,
        stream: usize,
        command: &Command,
        buffers: &[&Buffer],
    ) -> Result<Submission, RunError> {
        let mut all = vec![&self.streams[stream].instructions];
        all.extend(buffers);
        Ok(self.context.submit(command, &all)?)
    }

    /// Waits for a command within the time limit.
    pub(super) fn wait(&self, submission: Submission, command: &Command) -> Result<(), RunError> {
        Ok(self.context.wait(submission, command, self.timeout)?)
    }
}

/// Puts bytes into the device heap.
fn upload(device: &Device, bytes: &[u8]) -> Result<Buffer, RunError> {
    let mut buffer = Buffer::new(device, BufferKind::Device, bytes.len())?;
    buffer.write(0, bytes);
    buffer.flush(bytes.len())?;
    Ok(buffer)
}
