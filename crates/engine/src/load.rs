//! Loading: from a path to an engine that is ready to play.

use crate::draft::Drafter;
use crate::embed::HeadInput;
use crate::engine::{StepBuffers, scheduler_options};
use crate::error::EngineError;
use crate::executor::{DeviceUse, Executor, Span};
use crate::options::LoadOptions;
use crate::placement::EnginePlacement;
use crate::request::{EventSink, RequestId};
use crate::scheduler::Scheduler;
use crate::split::{self, Planned};
use crate::text::Text;
use pianola_cpu::ReferenceModel;
use pianola_formats::{TensorSource, TensorType};
use pianola_model::{Config, Mixture, ModelFile, RandomWeights, Shape, VisionTensors};
use pianola_plan::{
    Ceilings, Device, Graph, KernelTime, Numeric, Plan, PlanOptions, PlayStatistics, Probe,
    WeightSpec,
};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

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
    vision: VisionTensors,
    /// Devices of the plan, by their ids.
    devices: Vec<Arc<dyn Device>>,
}

impl Engine {
    /// Loads a GGUF file or a Hugging Face folder; `progress` is called with the bytes of weights done
    /// and the bytes in all.
    pub fn load(
        path: &Path,
        options: LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Engine, EngineError> {
        let start = Instant::now();
        let file = ModelFile::open(path)?;
        let config = file.config()?;
        let plan = plan(&config, file.source(), &options)?.checked()?;
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
        engine.vision = file.vision_tensors();
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
        let plan = plan(&config, &weights, &options)?.checked()?;
        Engine::record(name, config, None, plan, &weights, options, progress)
    }

    /// The plan that [`Engine::random`] would record.
    pub fn plan_of_random(
        shape: &Shape,
        ty: TensorType,
        options: &LoadOptions,
    ) -> Result<Plan, EngineError> {
        let config = shape.config();
        Ok(plan(&config, &random_weights(&config, ty), options)?.plan)
    }

    /// The plan of a file that is not here: of a known shape, in the types of its quantisation.
    pub fn plan_of_shape(
        shape: &Shape,
        mixture: &Mixture,
        options: &LoadOptions,
    ) -> Result<Plan, EngineError> {
        let config = shape.config();
        Ok(plan(&config, &mixture.weights(&config), options)?.plan)
    }

    /// The plan that loading with these options would record. Memory need not hold it.
    pub fn plan_of(
        file: &ModelFile,
        config: &Config,
        options: &LoadOptions,
    ) -> Result<Plan, EngineError> {
        Ok(plan(config, file.source(), options)?.plan)
    }

    /// Checks that a model can be loaded with these options, as far as its plan shows.
    pub fn check_room(
        file: &ModelFile,
        config: &Config,
        options: &LoadOptions,
    ) -> Result<(), EngineError> {
        plan(config, file.source(), options)?.checked().map(|_| ())
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
        let mut executor = Executor::record(plan, source, &options, progress)?;
        let devices = executor.plan().devices_among(&options.all_devices());
        // Requests that come and go bring steps of every size, and none should wait for its own.
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
            vision: VisionTensors::default(),
            devices,
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

    /// The plan's play, to be looked into kernel by kernel.
    pub fn probe_mut(&mut self) -> &mut dyn Probe {
        &mut self.executor
    }

    /// A device's recording, where it is of this kind.
    pub fn recording<R: 'static>(&self) -> Option<&R> {
        self.executor.recordings().find_map(|recording| recording.as_any().downcast_ref())
    }

    /// The same, to be changed.
    pub fn recording_mut<R: 'static>(&mut self) -> Option<&mut R> {
        self.executor.recordings_mut().find_map(|recording| recording.as_any_mut().downcast_mut())
    }

    /// Counters of plays since the engine was loaded.
    pub fn play_statistics(&self) -> PlayStatistics {
        self.executor.statistics()
    }

    /// Seconds that plays have taken, those of a draft model included.
    pub(crate) fn play_seconds(&self) -> f64 {
        let draft = self.drafter.as_ref().map_or(0.0, Drafter::play_seconds);
        self.executor.statistics().seconds + draft
    }

    /// From now on, time every kernel of every play. False where a device cannot.
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

    /// From now on, keep when each device worked on which segment.
    pub fn start_timeline(&mut self) {
        self.executor.start_timeline();
    }

    /// What was kept since, and an end to it.
    pub fn take_timeline(&mut self) -> Vec<Span> {
        self.executor.take_timeline()
    }

    /// What each device of the plan did so far, by device id.
    pub fn device_use(&self) -> impl Iterator<Item = DeviceUse> + '_ {
        self.executor.device_use()
    }

    /// Devices of the plan, by their ids.
    pub fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// What each device can reach at best, measured here and now, by their ids; none where one
    /// could not be measured.
    pub fn measure(&self) -> Option<Vec<Ceilings>> {
        let numeric = self.plan().options.numeric;
        let measured = self.devices.iter().zip(self.executor.recordings());
        measured
            .map(|(device, recording)| recording.measure().or_else(|| device.measure(numeric)))
            .collect()
    }

    /// The name of a device that is only imitated, so that no time says anything.
    pub fn emulated_device(&self) -> Option<&str> {
        let at = self.devices.iter().position(|device| device.is_emulated())?;
        Some(&self.plan().devices[at].name)
    }

    /// Whether a device is gone: the engine cannot be used any more, and a new one may be made.
    pub fn is_lost(&self) -> bool {
        self.devices.iter().any(|device| device.is_lost())
    }

    /// Whether a device keeps weights in a second form, for steps of many rows.
    pub fn keeps_prompt_weights(&self) -> bool {
        self.executor.recordings().any(|recording| recording.keeps_prompt_weights())
    }

    /// What computes, in words, and how many layers it leaves to others.
    pub fn runs_on(&self) -> String {
        let plan = self.plan();
        let head = plan.head_device();
        let mut text = self.devices[head.0].description();
        if self.keeps_prompt_weights() {
            text.push_str(", weights in two forms");
        }
        for id in plan.device_ids().filter(|&id| id != head) {
            let (count, name) = (plan.layers_on(id).len(), &plan.devices[id.0].name);
            text.push_str(&match plan.is_accelerator(id) {
                false if plan.shares_layers(id) => {
                    format!(", parts of {count} of {} layers on {name}", plan.layers())
                }
                false => format!(", {count} of {} layers on {name}", plan.layers()),
                true => format!(", products of prompts on {name}"),
            });
        }
        text
    }

    /// Where the model lies.
    pub fn placement(&self) -> EnginePlacement {
        EnginePlacement::of(self.plan(), self.executor.recordings())
    }

    /// The reference's copy of a model with random weights, to check an engine's kernels beside.
    pub fn random_reference_model(
        shape: &Shape,
        ty: TensorType,
        options: &LoadOptions,
    ) -> Result<ReferenceModel, EngineError> {
        let config = shape.config();
        let weights = random_weights(&config, ty);
        Ok(ReferenceModel::new(plan(&config, &weights, options)?.plan, &weights)?)
    }

    /// How long loading took.
    pub fn timing(&self) -> LoadTiming {
        self.timing
    }

    /// Tensors of the file that were left out because they read pictures.
    pub fn vision_tensors(&self) -> VisionTensors {
        self.vision
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

/// Random weights of a type for a configuration.
pub(crate) fn random_weights(config: &Config, ty: TensorType) -> RandomWeights {
    RandomWeights::new(config, 7, |_, _, columns| {
        // Not every width is a whole number of 256-blocks: eight bits there, as converters do.
        if columns % ty.block_len() == 0 { ty } else { TensorType::Q8_0 }
    })
}

/// The numeric mode where none was asked for: fast where a weight is quantised.
pub(crate) fn default_numeric(graph: &Graph) -> Numeric {
    match graph.matrices().any(|weight| weight.ty.is_quantized()) {
        true => Numeric::Fast,
        false => Numeric::Exact,
    }
}

fn plan(
    config: &Config,
    source: &dyn TensorSource,
    options: &LoadOptions,
) -> Result<Planned, EngineError> {
    let graph = pianola_model::graph(config, source, options.quantize)?;
    let converted =
        |weight: &WeightSpec| source.info(&weight.name).is_some_and(|info| info.ty != weight.ty);
    if options.quantize.is_some() && !graph.matrices().any(converted) {
        return Err(EngineError::NothingToQuantize);
    }
    let numeric = options.numeric.unwrap_or_else(|| default_numeric(&graph));
    if !(1..=options.max_rows).contains(&options.lanes) {
        return Err(EngineError::Lanes { found: options.lanes, most: options.max_rows });
    }
    let plan_options = PlanOptions {
        numeric,
        kv_type: options.kv_type,
        max_rows: options.max_rows,
        max_logit_rows: options.logit_rows(),
        context: options.context.unwrap_or(config.context),
        sequences: options.lanes,
        kv_bytes: options.kv_memory,
        fusion: options.fusion,
        reproducible: options.reproducible,
    };
    split::plan(graph, plan_options, options)
}
