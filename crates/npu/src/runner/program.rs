//! A package on the device: the context that its PDI configures, and its instructions.

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
    instructions: Buffer,
    words: u32,
    timeout: Duration,
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
        let instructions = upload(device, package.instructions().bytes())?;
        let partition = package.xclbin().partition();
        let columns = Columns {
            count: partition.columns,
            operations_per_cycle: partition.operations_per_cycle,
        };
        let context = Context::new(device, columns, vec![ComputeUnit { pdi, function }])?;
        let words = package.instructions().words();
        let device = device.clone();
        Ok(Program { context, device, instructions, words, timeout: options.timeout })
    }

    /// The command that runs the instructions on buffers.
    pub(super) fn packet(&self, buffers: &[&Buffer]) -> Packet {
        let addresses: Vec<u64> = buffers.iter().map(|buffer| buffer.address()).collect();
        Packet::start_cu(UNIT, self.instructions.address(), self.words, &addresses)
    }

    /// Submits a command that uses `buffers`.
    pub(super) fn submit(
        &self,
        command: &Command,
        buffers: &[&Buffer],
    ) -> Result<Submission, RunError> {
        let mut all = vec![&self.instructions];
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
