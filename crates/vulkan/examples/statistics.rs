//! The driver's statistics of every kernel that a known shape can launch.
//! usage: cargo run --release -p pianola-vulkan --example statistics SHAPE TYPE DEVICE

use pianola_formats::TensorType;
use pianola_model::{RandomWeights, SHAPES};
use pianola_plan::{Numeric, Placement, Plan, PlanOptions};
use pianola_vulkan::{Gpu, Selection, VulkanDevice, VulkanOptions, compile_plan};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [shape, ty, device] = &arguments[..] else {
        return Err("usage: statistics SHAPE TYPE DEVICE".into());
    };
    let known = SHAPES.iter().find(|known| known.name == shape).ok_or("no such shape")?;
    let ty: TensorType = ty.parse()?;
    let mut config = known.config();
    config.layers = 2;
    config.windows.truncate(2);
    let weights = RandomWeights::new(&config, 1, |_, _, _| ty);
    let options = PlanOptions {
        numeric: Numeric::Fast,
        max_rows: 512,
        max_logit_rows: 64,
        context: 4096,
        sequences: 64,
        fusion: true,
        reproducible: false,
        kv_bytes: None,
        kv_type: None,
    };
    let graph = pianola_model::graph(&config, &weights, None)?;
    let placement = Placement::single(&graph, VulkanDevice::spec_named("vulkan"));
    let plan = Plan::new(graph, options, placement)?;
    let gpu = Gpu::open(&Selection::Name(device.clone()))?;
    for kernel in compile_plan(&VulkanOptions::new(gpu), &plan)? {
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
