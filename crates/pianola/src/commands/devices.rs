//! `devices`: what can compute here, and how fast at best.

use std::fmt::Write;
use std::sync::Arc;

use clap::Args;
use pianola_cpu::{CpuDevice, describe};
use pianola_npu::amdxdna::{DriverError, discover};
use pianola_plan::{Ceilings, Device, DeviceError, Numeric};
use pianola_vulkan::{
    Gpu, GpuDescription, Instance, Properties, VulkanDevice, VulkanOptions, description_json,
    shape_text,
};
use serde_json::{Value, json};

use crate::commands::npu;
use crate::console::{self, Console};
use crate::failure::Failure;

/// Show the devices of this machine and measure their ceilings.
///
/// Bandwidth is that of reading a block larger than the caches. Arithmetic is that of multiply-adds:
/// 8-bit integers for fast mode, 32-bit floats for exact mode. --device takes the names that are shown.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  pianola devices\n  pianola devices --json")]
pub struct Arguments {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// Measured ceilings in both modes.
struct Measured {
    bandwidth: f64,
    fast: f64,
    exact: f64,
}

impl Measured {
    fn of(device: &dyn Device) -> Result<Measured, Failure> {
        let fast = ceilings(device, Numeric::Fast)?;
        let exact = ceilings(device, Numeric::Exact)?;
        Ok(Measured {
            bandwidth: fast.bytes_per_second.max(exact.bytes_per_second),
            fast: fast.operations_per_second,
            exact: exact.operations_per_second,
        })
    }

    fn lines(&self) -> String {
        format!(
            "  bandwidth:   {:.1} GB/s read\n  arithmetic:  {:.0} GOP/s fast (int8), {:.0} GOP/s exact (f32)\n",
            self.bandwidth / 1e9,
            self.fast / 1e9,
            self.exact / 1e9
        )
    }
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    let (mut text, mut list) = (String::new(), Vec::new());
    let (cpu_text, cpu_value) = processor()?;
    text.push_str(&cpu_text);
    list.push(cpu_value);
    match graphics() {
        Ok(devices) => {
            for (description, gpu) in devices {
                let properties = match &gpu {
                    Ok(gpu) => Properties::of(gpu).to_json(),
                    Err(_) => description_json(&description),
                };
                let measured = gpu.and_then(|gpu| {
                    if description.heaps.is_empty() {
                        return Err("it has no memory".to_string());
                    }
                    let measured = Measured::of(&VulkanDevice::new(VulkanOptions::new(gpu)));
                    measured.map_err(|failure| failure.message().unwrap_or_default().to_string())
                });
                text.push_str(&gpu_text(&description, measured.as_ref()));
                list.push(gpu_value(properties, measured.as_ref().ok()));
            }
        }
        // A machine without Vulkan is a machine all the same.
        Err(reason) => console.notice(&format!("no Vulkan device: {reason}")),
    }
    match discover() {
        Ok(devices) => {
            for device in &devices {
                text.push_str(&npu::device_text(device));
                text.push_str("  use:         with kernel packages, products of prompts: --device npu+vulkan or npu+cpu\n");
                list.push(npu::device_value(device));
            }
        }
        // Most machines have none.
        Err(DriverError::NoDevice) => {}
        Err(error) => console.notice(&error.to_string()),
    }
    match arguments.json {
        true => console::print_json(&Value::Array(list)),
        false => console::print(&text),
    }
}

fn processor() -> Result<(String, Value), Failure> {
    let description = describe();
    let measured = Measured::of(&CpuDevice::default())?;
    let levels: Vec<&str> = description.levels.iter().map(|level| level.name()).collect();
    let memory = description.memory.map_or("unknown".to_string(), |(all, available)| {
        format!("{:.1} GB, {:.1} GB of it available", all as f64 / 1e9, available as f64 / 1e9)
    });
    let text = format!(
        "cpu: {}\n  cores:       {}\n  simd:        {}\n  memory:      {memory}\n{}",
        description.name,
        description.cores,
        levels.join(", "),
        measured.lines(),
    );
    let value = json!({
        "device": "cpu",
        "name": description.name,
        "cores": description.cores,
        "simd": levels,
        "memory_bytes": description.memory.map(|memory| memory.0),
        "memory_available_bytes": description.memory.map(|memory| memory.1),
        "bytes_per_second": measured.bandwidth,
        "operations_per_second": { "fast": measured.fast, "exact": measured.exact },
    });
    Ok((text, value))
}

/// A Vulkan device, opened, or why it is not.
type Found = (GpuDescription, Result<Arc<Gpu>, String>);

/// All Vulkan devices, opened where they have what the kernels need.
fn graphics() -> Result<Vec<Found>, DeviceError> {
    let instance = Instance::load()?;
    let described = pianola_vulkan::describe(&instance)?;
    let open = |description: GpuDescription| {
        let gpu = if !description.missing.is_empty() {
            Err(format!("it lacks {}", description.missing.join(", ")))
        } else {
            Gpu::open_described(instance.clone(), description.clone())
                .map_err(|error| error.to_string())
        };
        (description, gpu)
    };
    Ok(described.into_iter().map(open).collect())
}

fn gpu_text(gpu: &GpuDescription, measured: Result<&Measured, &String>) -> String {
    let (major, minor, patch) = gpu.api;
    let mut text = format!(
        "vulkan:{}: {}\n  driver:      {}, Vulkan {major}.{minor}.{patch}\n  type:        {}\n",
        gpu.index, gpu.name, gpu.driver, gpu.kind
    );
    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
    for heap in &gpu.heaps {
        let _ = writeln!(
            text,
            "  heap:        {:.1} GB {}, {:.1} GB of it for this process, {:.1} GB used",
            gigabytes(heap.size),
            if heap.device_local { "device-local" } else { "host" },
            gigabytes(heap.budget),
            gigabytes(heap.used),
        );
    }
    let (default, least, most) = gpu.subgroup;
    let matrices = match gpu.matrices.is_empty() {
        true => "none".to_string(),
        false => gpu.matrices.iter().map(shape_text).collect::<Vec<_>>().join(", "),
    };
    let dot = if gpu.integer_dot { "accelerated" } else { "emulated by the driver" };
    let _ = write!(
        text,
        "  subgroups:   {default} lanes (from {least} to {most})\n  matrices:    {matrices}\n  \
         integer dot: {dot}\n  limits:      {} KiB shared memory, bindings up to {:.2} GB, \
         allocations up to {:.2} GB\n",
        gpu.shared_memory / 1024,
        gigabytes(gpu.largest_binding),
        gigabytes(gpu.largest_allocation),
    );
    match measured {
        Ok(measured) => text.push_str(&measured.lines()),
        Err(reason) => {
            let _ = writeln!(text, "  not usable:  {reason}");
        }
    }
    text
}

/// What a device is, and what was measured of it.
fn gpu_value(mut properties: Value, measured: Option<&Measured>) -> Value {
    properties["bytes_per_second"] = json!(measured.map(|measured| measured.bandwidth));
    properties["operations_per_second"] = json!(
        measured.map(|measured| { json!({ "fast": measured.fast, "exact": measured.exact }) })
    );
    properties
}

/// Measured ceilings, or why there are none.
pub fn ceilings(device: &dyn Device, numeric: Numeric) -> Result<Ceilings, Failure> {
    device.measure(numeric).ok_or_else(|| {
        Failure::failed(format!(
            "{} could not be measured: memory or worker threads were not to be had; close other \
             programs, or use fewer --threads",
            device.description()
        ))
    })
}
