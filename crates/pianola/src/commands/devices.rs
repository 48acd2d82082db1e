//! `devices`: what can compute here, and how fast at best.

use clap::Args;
use pianola_cpu::{CpuOptions, describe};
use pianola_engine::Device;
use pianola_plan::{Ceilings, Numeric};
use serde_json::json;

use crate::console::{self, Console};
use crate::failure::Failure;

/// Show the devices of this machine, with their measured ceilings.
///
/// Bandwidth is a plain read of a block larger than the caches; arithmetic is chains of the
/// multiply-adds that each numeric mode rests on (8-bit integers for fast, 32-bit floats for
/// exact). Both are measured on the spot, with all cores.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  pianola devices\n  pianola devices --json")]
pub struct Arguments {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments, _: Console) -> Result<(), Failure> {
    let description = describe();
    let device = Device::Cpu(CpuOptions::default());
    let fast = ceilings(&device, Numeric::Fast)?;
    let exact = ceilings(&device, Numeric::Exact)?;
    let bandwidth = fast.bytes_per_second.max(exact.bytes_per_second);
    let levels: Vec<&str> = description.levels.iter().map(|level| level.name()).collect();
    if arguments.json {
        return console::print_json(&json!([{
            "device": "cpu",
            "name": description.name,
            "cores": description.cores,
            "simd": levels,
            "memory_bytes": description.memory.map(|memory| memory.0),
            "memory_available_bytes": description.memory.map(|memory| memory.1),
            "bytes_per_second": bandwidth,
            "operations_per_second": {
                "fast": fast.operations_per_second,
                "exact": exact.operations_per_second,
            },
        }]));
    }
    let memory = description.memory.map_or("unknown".to_string(), |(all, available)| {
        format!("{:.1} GB, {:.1} GB of it available", all as f64 / 1e9, available as f64 / 1e9)
    });
    console::print(&format!(
        "cpu: {}\n  cores:      {}\n  simd:       {}\n  memory:     {memory}\n  \
         bandwidth:  {:.1} GB/s read\n  arithmetic: {:.0} GOP/s fast (int8), {:.0} GOP/s exact (f32)\n",
        description.name,
        description.cores,
        levels.join(", "),
        bandwidth / 1e9,
        fast.operations_per_second / 1e9,
        exact.operations_per_second / 1e9,
    ))
}

/// Measured ceilings, or why there are none.
pub fn ceilings(device: &Device, numeric: Numeric) -> Result<Ceilings, Failure> {
    device.measure(numeric).ok_or_else(|| {
        Failure::failed(format!(
            "{device} could not be measured: 256 MB of memory or the worker threads were not to \
             be had; close other programs, or use fewer --threads",
        ))
    })
}
