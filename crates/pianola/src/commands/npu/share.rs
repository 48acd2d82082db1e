//! `npu share`: whether buffers pass between the NPU's driver and a GPU's.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use clap::Args;
use pianola_npu::amdxdna::{Device, DriverError, SystemCalls, discover};
use pianola_npu::sharing::{self, OtherBuffer, OtherDriver, Outcome, Passage};
use pianola_vulkan::{Gpu, HandleType, Selection, SharedBuffer};
use serde_json::json;

use super::processors;
use crate::console;
use crate::device::one_gpu;
use crate::failure::Failure;

/// Test whether the NPU and a GPU can share buffers by dma-buf (never run on real hardware).
///
/// The GPU imports a buffer of the NPU, writes a pattern into it and reads one from it. Then the same
/// is done with a buffer of the GPU. The CPU compares the bytes through the NPU's mapping. No kernel of
/// the NPU takes part, and models do not use shared buffers yet. If bytes are lost the exit code is 1.
///
/// Needs Linux 6.15 or newer, and a GPU driver with VK_KHR_external_memory_fd and
/// VK_EXT_external_memory_dma_buf.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  pianola npu share\n  pianola npu share --device vulkan:1 --json"
)]
pub struct Arguments {
    /// GPU: vulkan (the best one), vulkan:INDEX or vulkan:NAME
    #[arg(long, value_name = "DEVICE", default_value = "vulkan", value_parser = one_gpu)]
    device: Selection,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// A GPU that takes and gives dma-bufs.
struct GpuDriver(Arc<Gpu>);

/// A buffer of the GPU's.
struct GpuBuffer(SharedBuffer);

impl OtherDriver for GpuDriver {
    fn import(
        &mut self,
        fd: OwnedFd,
        bytes: usize,
    ) -> Result<Box<dyn OtherBuffer>, sharing::Failure> {
        let buffer = SharedBuffer::import(&self.0, HandleType::DmaBuf, fd, bytes as u64)?;
        Ok(Box::new(GpuBuffer(buffer)))
    }

    fn export(
        &mut self,
        bytes: usize,
    ) -> Result<(Box<dyn OtherBuffer>, OwnedFd), sharing::Failure> {
        let buffer = SharedBuffer::new(&self.0, HandleType::DmaBuf, bytes as u64)?;
        let fd = buffer.export()?;
        Ok((Box::new(GpuBuffer(buffer)), fd))
    }
}

impl OtherBuffer for GpuBuffer {
    fn write(&mut self, bytes: &[u8]) -> Result<(), sharing::Failure> {
        Ok(self.0.write(bytes)?)
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), sharing::Failure> {
        Ok(self.0.read(bytes)?)
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    // Discovery returns devices or an error.
    let found = discover()?.into_iter().next().ok_or(DriverError::NoDevice)?;
    let npu = Device::open_with(Arc::new(SystemCalls), &found.identity.path)?;
    let gpu = Gpu::open(&arguments.device).map_err(|error| Failure::failed(error.to_string()))?;
    let generation = found.identity.generation;
    let title = format!(
        "npu: {}, {}; vulkan:{} {}",
        generation.name(),
        processors(generation),
        gpu.description().index,
        gpu.description().name
    );
    let outcomes = sharing::check(&npu, &mut GpuDriver(gpu));
    if arguments.json {
        console::print_json(&object(&title, &outcomes))?;
    } else {
        console::print_line(&title)?;
        outcomes.iter().try_for_each(|outcome| console::print_line(&line(outcome)))?;
    }
    verdict(&outcomes)
}

fn words(Passage { of_npu, to_npu }: Passage) -> &'static str {
    match (of_npu, to_npu) {
        (true, true) => "the GPU writes into a buffer of the NPU's",
        (true, false) => "the GPU reads a buffer of the NPU's",
        (false, true) => "the NPU's driver reads a buffer of the GPU's",
        (false, false) => "the NPU's driver writes into a buffer of the GPU's",
    }
}

fn line(outcome: &Outcome) -> String {
    let words = words(outcome.passage);
    match &outcome.result {
        Ok(()) => format!("  ok    {words}: {} bytes compared", sharing::BYTES),
        Err(error) => format!("  FAIL  {words}: {error}"),
    }
}

fn object(title: &str, outcomes: &[Outcome]) -> serde_json::Value {
    let entry = |outcome: &Outcome| {
        json!({
            "what": words(outcome.passage),
            "passed": outcome.result.is_ok(),
            "problem": outcome.result.as_ref().err(),
        })
    };
    json!({
        "devices": title,
        "passed": outcomes.iter().all(|outcome| outcome.result.is_ok()),
        "bytes": sharing::BYTES,
        "passages": outcomes.iter().map(entry).collect::<Vec<_>>(),
    })
}

fn verdict(outcomes: &[Outcome]) -> Result<(), Failure> {
    let mut problems: Vec<&str> = outcomes
        .iter()
        .filter_map(|outcome| outcome.result.as_ref().err())
        .map(String::as_str)
        .collect();
    let failed = problems.len();
    problems.dedup();
    match failed {
        0 => Ok(()),
        _ => Err(Failure::failed(format!(
            "{failed} of {} ways failed: {}",
            outcomes.len(),
            problems.join("; ")
        ))),
    }
}
