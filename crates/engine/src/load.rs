//! Loading: from a path to an engine that is ready to play.

use crate::draft::Drafter;
use crate::embed::HeadInput;
use crate::engine::{StepBuffers, scheduler_options};
use crate::error::EngineError;
use crate::executor::Executor;
use crate::hybrid::HybridRecording;
use crate::place::{self, Placement, Requested};
use crate::request::{EventSink, RequestId};
use crate::scheduler::Scheduler;
use crate::speculate::MOST_GUESSES;
use pianola_cpu::{CpuOptions, CpuRecording, ReferenceModel};
use pianola_formats::{TensorSource, TensorType};
use pianola_model::{Config, ModelFile, RandomWeights, Shape};
use pianola_plan::{
    BUCKETS, Ceilings, DeviceKind, KernelTime, KvType, Numeric, Plan, PlanOptions, Probe,
    WeightShape, WeightSpec,
};
use pianola_text::{ChatTemplate, TemplateOrigin, Tokenizer};
use pianola_vulkan::{Gpu, VulkanOptions, VulkanRecording};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Requests that a service runs at once unless told otherwise.
pub const DEFAULT_LANES: usize = 32;

/// How to load a model.
#[derive(Clone)]
pub struct LoadOptions {
    /// Workers and instruction set.
    pub cpu: CpuOptions,
    /// The GPU to compute on; none leaves everything to the processor.
    pub gpu: Option<VulkanOptions>,
    /// Numeric mode; by default fast where a weight is quantised, exact where none is.
    pub numeric: Option<Numeric>,
    /// Type of keys and values; by default that of the numeric mode.
    pub kv_type: Option<KvType>,
    /// Tokens of context; by default all that the model allows and the GPU has memory for.
    pub context: Option<usize>,
    /// Layers to put on the GPU, the first of the others staying on the processor; by default as
    /// many as fit.
    pub layers_on_gpu: Option<usize>,
    /// Most rows in one play.
    pub max_rows: usize,
    /// Rows with logits in one play, at least; lanes and guesses may need more.
    pub max_logit_rows: usize,
    /// Requests that run at once.
    pub lanes: usize,
    /// Requests that may wait for a lane.
    pub queue: usize,
    /// Most tokens that a GPU chooses in one submission; none leaves it to the clock.
    pub tokens_per_submit: Option<usize>,
    /// Most bytes of KV pages; by default what is left beside the weights, as far as it is of use.
    pub kv_memory: Option<u64>,
    /// Type that unquantised matrices are converted to.
    pub quantize: Option<TensorType>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            cpu: CpuOptions::default(),
            gpu: None,
            numeric: None,
            kv_type: None,
            context: None,
            layers_on_gpu: None,
            max_rows: BUCKETS[BUCKETS.len() - 1],
            max_logit_rows: 1,
            lanes: 1,
            queue: 1024,
            tokens_per_submit: None,
            kv_memory: None,
            quantize: None,
        }
    }
}

impl LoadOptions {
    /// What will compute.
    pub fn device(&self) -> Device {
        match &self.gpu {
            None => Device::Cpu(self.cpu),
            Some(vulkan) => Device::Vulkan(vulkan.gpu.clone()),
        }
    }
}

/// The text side of a model.
pub struct Text {
    /// Tokeniser.
    pub tokenizer: Tokenizer,
    /// Chat template and where it came from, if the model has one.
    pub template: Option<(ChatTemplate, TemplateOrigin)>,
}

/// Seconds that loading took.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadTiming {
    /// Opening and checking the file, building graph and plan.
    pub open: f64,
    /// Tokeniser and template.
    pub text: f64,
    /// Reading and packing weights, recording.
    pub weights: f64,
}

/// A model, loaded and recorded, and the requests to it.
pub struct Engine {
    pub(crate) name: String,
    pub(crate) config: Config,
    pub(crate) text: Option<Arc<Text>>,
    pub(crate) executor: Executor,
    pub(crate) head_input: Option<HeadInput>,
    pub(crate) scheduler: Scheduler,
    pub(crate) drafter: Option<Drafter>,
    /// Why the draft model was given up.
    pub(crate) draft_failure: Option<EngineError>,
    pub(crate) buffers: StepBuffers,
    /// Who is told of a request's events.
    pub(crate) sinks: HashMap<RequestId, EventSink>,
    timing: LoadTiming,
    device: Device,
    /// Workers and instruction set of what the processor computes.
    cpu: CpuOptions,
}

/// What an engine computes on.
#[derive(Clone)]
pub enum Device {
    /// The processor.
    Cpu(CpuOptions),
    /// A GPU.
    Vulkan(Arc<Gpu>),
}

impl Device {
    /// `cpu` or `vulkan`.
    pub fn kind(&self) -> DeviceKind {
        match self {
            Device::Cpu(_) => DeviceKind::Cpu,
            Device::Vulkan(_) => DeviceKind::Vulkan,
        }
    }

    /// What it can reach at best in a numeric mode, measured here and now; none where nothing
    /// could be measured.
    pub fn measure(&self, numeric: Numeric) -> Option<Ceilings> {
        match self {
            Device::Cpu(options) => pianola_cpu::measure(*options, numeric),
            Device::Vulkan(gpu) => pianola_vulkan::measure(gpu, numeric).ok(),
        }
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Device::Cpu(CpuOptions { level, threads }) => {
                let threads_word = if *threads == 1 { "thread" } else { "threads" };
                write!(f, "cpu ({level}, {threads} {threads_word})")
            }
            Device::Vulkan(gpu) => write!(f, "vulkan ({})", gpu.description().name),
        }
    }
}

impl Engine {
    /// Loads a GGUF file or a Hugging Face folder; `progress` hears of bytes of weights done and
    /// in all.
    pub fn load(
        path: &Path,
        options: LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Engine, EngineError> {
        let start = Instant::now();
        let file = ModelFile::open(path)?;
        let config = file.config()?;
        let plan = Engine::plan_of(&file, &config, &options)?;
        let open = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let text = Text::of(&file)?;
        let text_seconds = start.elapsed().as_secs_f64();
        // A folder's name may have dots of its own.
        let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
        let name = name.map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let mut engine =
            Engine::record(name, config, text, plan, file.source(), options, progress)?;
        engine.timing.open = open;
        engine.timing.text = text_seconds;
        Ok(engine)
    }

    /// An engine with random weights in the shape of a known model.
    pub fn random(
        shape: &Shape,
        ty: TensorType,
        options: LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Engine, EngineError> {
        let name = format!("{} {ty} (random weights)", shape.name);
        Engine::random_of(name, shape.config(), ty, options, progress)
    }

    /// An engine with random weights for any configuration.
    pub fn random_of(
        name: String,
        config: Config,
        ty: TensorType,
        options: LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Engine, EngineError> {
        let weights = random_weights(&config, ty);
        let plan = plan(&config, &weights, &options)?;
        Engine::record(name, config, None, plan, &weights, options, progress)
    }

    /// The plan that [`Engine::random`] would record.
    pub fn plan_of_random(
        shape: &Shape,
        ty: TensorType,
        options: &LoadOptions,
    ) -> Result<Plan, EngineError> {
        let config = shape.config();
        plan(&config, &random_weights(&config, ty), options)
    }

    /// The plan that loading with these options would record.
    pub fn plan_of(
        file: &ModelFile,
        config: &Config,
        options: &LoadOptions,
    ) -> Result<Plan, EngineError> {
        plan(config, file.source(), options)
    }

    fn record(
        name: String,
        config: Config,
        text: Option<Text>,
        plan: Plan,
        source: &dyn TensorSource,
        options: LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Engine, EngineError> {
        let start = Instant::now();
        let head_input = HeadInput::of(&plan, source)?;
        let lanes = plan.options.sequences;
        let (queue, tokens_per_submit) = (options.queue, options.tokens_per_submit);
        let device = options.device();
        let recording: Box<dyn Probe> = match options.gpu {
            None => Box::new(CpuRecording::new(plan, source, options.cpu, progress)?),
            Some(vulkan) if plan.options.cpu_layers > 0 => {
                Box::new(HybridRecording::new(plan, source, options.cpu, vulkan, progress)?)
            }
            Some(vulkan) => Box::new(VulkanRecording::new(plan, source, vulkan, progress)?),
        };
        // Requests that come and go bring steps of every size, and none should wait for its own.
        let mut executor = Executor::new(recording);
        if lanes > 1 {
            executor.record_ahead()?;
        }
        let text = text.map(Arc::new);
        let mut scheduling = scheduler_options(&executor, &config, queue);
        scheduling.tokens_per_submit = tokens_per_submit;
        let timing = LoadTiming { weights: start.elapsed().as_secs_f64(), ..LoadTiming::default() };
        Ok(Engine {
            name,
            config,
            scheduler: Scheduler::new(scheduling, text.clone()),
            text,
            head_input,
            drafter: None,
            draft_failure: None,
            buffers: StepBuffers::default(),
            sinks: HashMap::new(),
            executor,
            timing,
            device,
            cpu: options.cpu,
        })
    }

    /// Name of the file or folder, without its ending.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The plan that is played.
    pub fn plan(&self) -> &Plan {
        self.executor.plan()
    }

    /// The recording, for checks and counters.
    pub fn recording(&self) -> &dyn Probe {
        self.executor.probe()
    }

    /// The same, to be played.
    pub fn recording_mut(&mut self) -> &mut dyn Probe {
        self.executor.probe_mut()
    }

    /// From now on, time every kernel of every play. False where no device can.
    pub fn start_profile(&mut self) -> bool {
        let started = self.executor.start_profile();
        self.assign_samplers();
        started
    }

    /// What was timed since, and an end to it.
    pub fn take_profile(&mut self) -> Vec<KernelTime> {
        let profile = self.executor.take_profile();
        self.assign_samplers();
        profile
    }

    /// What computes.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What the processor can reach at best, where it computes layers that the GPU has no room for.
    pub(crate) fn host_ceilings(&self) -> Option<Ceilings> {
        let options = self.plan().options;
        let split = self.plan().ops.iter().any(|op| op.device != options.device);
        split.then(|| pianola_cpu::measure(self.cpu, options.numeric)).flatten()
    }

    /// Whether the device is gone: the engine is of no more use, and a new one may be made.
    pub fn is_lost(&self) -> bool {
        match &self.device {
            Device::Cpu(_) => false,
            Device::Vulkan(gpu) => gpu.is_lost(),
        }
    }

    /// What computes, in words, and how many layers it leaves to the processor.
    pub fn runs_on(&self) -> String {
        match self.plan().options.cpu_layers {
            0 => self.device.to_string(),
            count => format!("{}, {count} of {} layers on cpu", self.device, self.plan().layers()),
        }
    }

    /// Where the model lies.
    pub fn placement(&self) -> Placement {
        let recording = self.executor.probe().as_any();
        let hybrid = recording.downcast_ref().map(HybridRecording::gpu);
        let gpu = hybrid.or(recording.downcast_ref::<VulkanRecording>());
        Placement {
            layers: self.plan().layers(),
            cpu_layers: self.plan().options.cpu_layers,
            cpu_bytes: self.plan().weight_bytes_on(DeviceKind::Cpu),
            gpu: gpu.map(VulkanRecording::placement),
        }
    }

    /// The reference's copy of a model in a file, to check an engine's kernels beside.
    pub fn reference_model(
        path: &Path,
        options: &LoadOptions,
    ) -> Result<ReferenceModel, EngineError> {
        let file = ModelFile::open(path)?;
        let plan = Engine::plan_of(&file, &file.config()?, options)?;
        Ok(ReferenceModel::new(plan, file.source())?)
    }

    /// The same for random weights.
    pub fn random_reference_model(
        shape: &Shape,
        ty: TensorType,
        options: &LoadOptions,
    ) -> Result<ReferenceModel, EngineError> {
        let config = shape.config();
        let weights = random_weights(&config, ty);
        Ok(ReferenceModel::new(plan(&config, &weights, options)?, &weights)?)
    }

    /// How long loading took.
    pub fn timing(&self) -> LoadTiming {
        self.timing
    }

    /// Tokens of context.
    pub fn context(&self) -> usize {
        self.plan().options.context
    }

    /// Tokeniser and template, or an error that says the model has none.
    pub fn text(&self) -> Result<&Text, EngineError> {
        self.text.as_deref().ok_or_else(|| EngineError::NoTokenizer(self.name.clone()))
    }
}

impl Text {
    /// The text side of a file; none where it carries no vocabulary.
    pub fn of(file: &ModelFile) -> Result<Option<Text>, EngineError> {
        match file {
            ModelFile::Gguf(gguf) => {
                if gguf.strings("tokenizer.ggml.tokens").is_none() {
                    return Ok(None);
                }
                let tokenizer = Tokenizer::from_gguf(gguf)?;
                let template = ChatTemplate::from_gguf(gguf, &tokenizer)?;
                Ok(Some(Text { tokenizer, template }))
            }
            ModelFile::Folder(folder) => {
                let read = |name: &str| match folder.file(name) {
                    None => Ok(None),
                    Some(path) => std::fs::read(&path).map(Some).map_err(|error| {
                        let (path, reason) = (path.display().to_string(), error.to_string());
                        EngineError::Unreadable { path, reason }
                    }),
                };
                let Some(json) = read("tokenizer.json")? else { return Ok(None) };
                let settings = read("tokenizer_config.json")?;
                let mut tokenizer = Tokenizer::from_tokenizer_json(&json, settings.as_deref())?;
                for id in end_tokens(folder.generation_config()) {
                    tokenizer.add_stop_token(id);
                }
                let template = ChatTemplate::from_folder(folder.path(), &tokenizer)?;
                Ok(Some(Text { tokenizer, template }))
            }
        }
    }
}

/// Rows with logits: one for each lane, and some for guesses while the lanes are few.
fn logit_rows(options: &LoadOptions) -> usize {
    const MOST_WITH_GUESSES: usize = 64;
    let guessed = options.lanes.saturating_mul(1 + MOST_GUESSES).min(MOST_WITH_GUESSES);
    options.max_logit_rows.max(options.lanes).max(guessed).min(options.max_rows)
}

fn random_weights(config: &Config, ty: TensorType) -> RandomWeights {
    RandomWeights::new(config, 7, |_, _, columns| {
        // Not every width is a whole number of 256-blocks: eight bits there, as converters do.
        if columns % ty.block_len() == 0 { ty } else { TensorType::Q8_0 }
    })
}

/// `eos_token_id` of a generation configuration: one id or several.
fn end_tokens(config: Option<&serde_json::Value>) -> Vec<u32> {
    let Some(value) = config.and_then(|config| config.get("eos_token_id")) else { return vec![] };
    let id = |value: &serde_json::Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value.as_array() {
        Some(list) => list.iter().filter_map(id).collect(),
        None => id(value).into_iter().collect(),
    }
}

fn plan(
    config: &Config,
    source: &dyn TensorSource,
    options: &LoadOptions,
) -> Result<Plan, EngineError> {
    let graph = pianola_model::graph(config, source, options.quantize)?;
    let matrices =
        || graph.weights.iter().filter(|weight| matches!(weight.shape, WeightShape::Matrix { .. }));
    let converted =
        |weight: &WeightSpec| source.info(&weight.name).is_some_and(|info| info.ty != weight.ty);
    if options.quantize.is_some() && !matrices().any(converted) {
        return Err(EngineError::NothingToQuantize);
    }
    let quantized = matrices().any(|weight| weight.ty.is_quantized());
    let default = if quantized { Numeric::Fast } else { Numeric::Exact };
    let numeric = options.numeric.unwrap_or(default);
    let plan_options = PlanOptions {
        device: if options.gpu.is_some() { DeviceKind::Vulkan } else { DeviceKind::Cpu },
        numeric,
        kv_type: options.kv_type,
        max_rows: options.max_rows,
        max_logit_rows: logit_rows(options),
        context: options.context.unwrap_or(config.context),
        sequences: options.lanes,
        kv_bytes: options.kv_memory,
        cpu_layers: 0,
    };
    if !(1..=options.max_rows).contains(&options.lanes) {
        return Err(EngineError::Lanes { found: options.lanes, most: options.max_rows });
    }
    let asked = Requested { layers_on_gpu: options.layers_on_gpu, context: options.context };
    match &options.gpu {
        Some(gpu) => place::on_gpu(graph, plan_options, asked, gpu),
        None if asked.layers_on_gpu.is_some() => Err(EngineError::LayersWithoutGpu),
        None => place::on_cpu(graph, plan_options, asked),
    }
}
