//! The driver's statistics of every kernel that a known shape can launch.
//! usage: cargo run --release -p pianola-vulkan --example statistics SHAPE TYPE DEVICE

mod shared;

use pianola_vulkan::{VulkanOptions, compile_plan};
use shared::{Model, Steps};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let (options, arguments) = shared::arguments();
    let ([shape, ty, device], []) = (&arguments[..], &options[..]) else {
        return Err("usage: statistics SHAPE TYPE DEVICE".into());
    };
    let steps = Steps { rows: 512, sequences: 64, context: 4096 };
    let model = Model::new(shape, ty, 2, &steps)?;
    let gpu = shared::gpu(device)?;
    for kernel in compile_plan(&VulkanOptions::new(gpu), &model.plan)? {
        let list = |of: &[u32]| of.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let constants: Vec<String> =
            kernel.constants.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let statistics: Vec<String> =
            kernel.statistics.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        println!(
            "{} rows {} logits {}: {}\n    {}",
            kernel.kernel,
            list(&kernel.bodies),
            list(&kernel.heads),
            statistics.join(", "),
            constants.join(" "),
        );
    }
    Ok(())
}
