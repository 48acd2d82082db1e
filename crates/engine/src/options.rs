//! How to load a model.

use crate::speculate::MOST_GUESSES;
use pianola_cpu::{CpuDevice, CpuOptions};
use pianola_formats::TensorType;
use pianola_plan::{BUCKETS, Device, KvType, ModelPart, Numeric};
use pianola_vulkan::{VulkanDevice, VulkanOptions};
use std::sync::Arc;

/// Requests that a service runs at once unless told otherwise.
pub const DEFAULT_LANES: usize = 32;

/// Told of what happens while a model plays, in words.
pub type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// How to load a model.
#[derive(Clone)]
pub struct LoadOptions {
    /// Devices in the order in which they are filled: the head and the last layers go to the
    /// first, as many as it has memory for, the layers before them to the next, and what is left
    /// to the last.
    pub devices: Vec<Arc<dyn Device>>,
    /// Devices that may compute products in place of these, in steps of many rows, where that is faster.
    pub accelerators: Vec<Arc<dyn Device>>,
    /// Parts of the model that run on a device by its name, whatever else is planned.
    pub place: Vec<(ModelPart, String)>,
    /// What the plan says besides, such as why a device is not among these.
    pub remarks: Vec<String>,
    /// Told where a device fails that the model can do without, and where it works again.
    pub warn: Option<Warn>,
    /// Layers to put on the first of several devices, more than there are for all; by default as many
    /// as fit.
    pub layers_on_first: Option<usize>,
    /// Whether several devices work at once where that pays.
    pub overlap: bool,
    /// Numeric mode; by default fast where a weight is quantised, exact where none is.
    pub numeric: Option<Numeric>,
    /// Type of keys and values; by default that of the numeric mode.
    pub kv_type: Option<KvType>,
    /// Tokens of context; by default all that the model allows and the devices have memory for.
    pub context: Option<usize>,
    /// Most rows in one play.
    pub max_rows: usize,
    /// Rows with logits in one play, at least; lanes and guesses may need more.
    pub max_logit_rows: usize,
    /// Requests that run at once.
    pub lanes: usize,
    /// Requests that may wait for a lane.
    pub queue: usize,
    /// Most tokens that a device samples in one submission; none leaves it to the clock.
    pub tokens_per_submit: Option<usize>,
    /// Most bytes of KV pages; by default what is left beside the weights, as far as it is of use.
    pub kv_memory: Option<u64>,
    /// Type that unquantised matrices are converted to.
    pub quantize: Option<TensorType>,
    /// Whether operations are fused; see [`pianola_plan::PlanOptions::fusion`].
    pub fusion: bool,
    /// Whether an answer must not depend on what else runs; see
    /// [`pianola_plan::PlanOptions::reproducible`].
    pub reproducible: bool,
}

impl Default for LoadOptions {
    /// Everything on the processor.
    fn default() -> Self {
        LoadOptions {
            devices: LoadOptions::devices(Vec::new(), CpuOptions::default()),
            accelerators: Vec::new(),
            place: Vec::new(),
            remarks: Vec::new(),
            warn: None,
            layers_on_first: None,
            overlap: true,
            numeric: None,
            kv_type: None,
            context: None,
            max_rows: BUCKETS[BUCKETS.len() - 1],
            max_logit_rows: 1,
            lanes: 1,
            queue: 1024,
            tokens_per_submit: None,
            kv_memory: None,
            quantize: None,
            fusion: true,
            reproducible: false,
        }
    }
}

impl LoadOptions {
    /// Some GPUs, and the processor for what they have no memory for.
    pub fn devices(gpus: Vec<VulkanOptions>, cpu: CpuOptions) -> Vec<Arc<dyn Device>> {
        let several = gpus.len() > 1;
        let mut taken: Vec<usize> = Vec::new();
        let gpus: Vec<Arc<dyn Device>> = gpus
            .into_iter()
            .map(|options| {
                let index = options.gpu.description().index;
                // One device may be opened twice; no two of a plan share a name.
                let before = taken.iter().filter(|&&other| other == index).count();
                taken.push(index);
                let name = match (several, before) {
                    (false, _) => "vulkan".to_string(),
                    (true, 0) => format!("vulkan:{index}"),
                    (true, _) => format!("vulkan:{index}.{before}"),
                };
                Arc::new(VulkanDevice { name, options }) as Arc<dyn Device>
            })
            .collect();
        let cpu: Arc<dyn Device> = Arc::new(CpuDevice { options: cpu });
        gpus.into_iter().chain([cpu]).collect()
    }

    /// All devices, those that take products over behind the others.
    pub fn all_devices(&self) -> Vec<Arc<dyn Device>> {
        self.devices.iter().chain(&self.accelerators).cloned().collect()
    }

    /// The first GPU among the devices.
    pub fn gpu(&self) -> Option<&VulkanDevice> {
        self.devices.iter().find_map(|device| device.as_any().downcast_ref())
    }

    /// Rows with logits: one for each lane, and some for guesses while the lanes are few.
    pub(crate) fn logit_rows(&self) -> usize {
        const MOST_WITH_GUESSES: usize = 64;
        let guessed = self.lanes.saturating_mul(1 + MOST_GUESSES).min(MOST_WITH_GUESSES);
        self.max_logit_rows.max(self.lanes).max(guessed).min(self.max_rows)
    }
}
