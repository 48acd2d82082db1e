//! What the examples share: their arguments, and a model of a known shape with random weights, planned for one GPU.

#![allow(dead_code)] // Each example uses its part.

use pianola_formats::TensorType;
use pianola_model::{RandomWeights, SHAPES};
use pianola_plan::{DeviceId, Numeric, PAGE_TOKENS, Placement, Plan, PlanOptions, Recording};
use pianola_vulkan::{Gpu, Selection, VulkanDevice, VulkanOptions, VulkanRecording};
use std::error::Error;
use std::sync::Arc;

/// The command line's options and its other arguments.
pub fn arguments() -> (Vec<String>, Vec<String>) {
    std::env::args().skip(1).partition(|argument| argument.starts_with("--"))
}

/// The GPU with this text in its name.
pub fn gpu(name: &str) -> Result<Arc<Gpu>, Box<dyn Error>> {
    Ok(Gpu::open(&Selection::Name(name.to_string()))?)
}

/// The largest step that a plan is made for.
pub struct Steps {
    pub rows: usize,
    pub sequences: usize,
    pub context: usize,
}

impl Steps {
    /// Steps of one row, and of prompts before it.
    pub fn single(context: usize) -> Steps {
        Steps { rows: 64, sequences: 1, context }
    }
}

/// A planned model.
pub struct Model {
    pub plan: Arc<Plan>,
    pub weights: RandomWeights,
    /// Layers that are loaded, and layers of the whole model.
    pub layers: usize,
    pub all_layers: usize,
}

impl Model {
    /// At most `layers` layers of a known shape, its weights of one type.
    pub fn new(
        shape: &str,
        ty: &str,
        layers: usize,
        steps: &Steps,
    ) -> Result<Model, Box<dyn Error>> {
        let known = SHAPES.iter().find(|known| known.name == shape).ok_or("no such shape")?;
        let ty: TensorType = ty.parse()?;
        let mut config = known.config();
        let all_layers = config.layers;
        config.layers = layers.min(all_layers);
        config.windows.truncate(config.layers);
        let weights = RandomWeights::new(&config, 1, |_, _, _| ty);
        let options = PlanOptions {
            numeric: Numeric::Fast,
            max_rows: steps.rows,
            max_logit_rows: steps.sequences,
            context: steps.context.next_multiple_of(PAGE_TOKENS),
            sequences: steps.sequences,
            fusion: true,
            reproducible: false,
            kv_bytes: None,
            kv_type: None,
        };
        let graph = pianola_model::graph(&config, &weights, None)?;
        let placement = Placement::single(&graph, VulkanDevice::spec_named("vulkan"));
        let plan = Arc::new(Plan::new(graph, options, placement)?);
        Ok(Model { plan, weights, layers: config.layers, all_layers })
    }

    /// The model's recording.
    pub fn record(&self, options: VulkanOptions) -> Result<VulkanRecording, Box<dyn Error>> {
        let (plan, weights) = (self.plan.clone(), &self.weights);
        Ok(VulkanRecording::new(plan, DeviceId(0), weights, options, &mut |_, _| ())?)
    }
}

/// Gives the only sequence the pages of a whole context.
pub fn map_pages(recording: &mut VulkanRecording) {
    for group in 0..recording.plan().graph.kv_groups.len() {
        let pages = recording.plan().kv_pages[group];
        for index in 0..recording.plan().options.context / PAGE_TOKENS {
            recording.map_page(group, 0, index, (index % pages) as u32);
        }
    }
}
