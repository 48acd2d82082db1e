//! What a service says about its engine.

use crate::cache::CacheUse;
use crate::executor::DeviceUse;
use crate::load::Engine;
use crate::placement::EnginePlacement;
use crate::scheduler::EngineCounters;
use pianola_formats::TensorType;
use pianola_plan::{Graph, KvGroup};

/// How an engine is doing.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Report {
    /// Requests that wait.
    pub waiting: usize,
    /// Requests that run.
    pub running: usize,
    /// Counts since the start.
    pub counters: EngineCounters,
    /// How the KV pages are used.
    pub cache: CacheUse,
    /// How long the devices have computed.
    pub busy: BusyTime,
    /// What each device did, as far as there is room; see [`ServiceInfo::placement`] for their names.
    pub devices: [DeviceUse; MOST_DEVICES],
}

/// Devices that a report has room for.
pub const MOST_DEVICES: usize = 4;

/// What the devices of an engine did.
pub(super) fn device_use(engine: &Engine) -> [DeviceUse; MOST_DEVICES] {
    let mut all = [DeviceUse::default(); MOST_DEVICES];
    all.iter_mut().zip(engine.device_use()).for_each(|(to, from)| *to = from);
    all
}

/// How long the devices have computed. Both numbers only grow, so that the difference between two
/// reports gives the share of the time between them.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct BusyTime {
    /// Seconds in which steps were played, from their submission to their results: what the devices
    /// compute while the host samples or plans is counted once it is waited for.
    pub seconds: f64,
    /// Seconds since the service was started.
    pub wall_seconds: f64,
}

/// What a service serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceInfo {
    /// Name of the model.
    pub model: String,
    /// Family of models, as GGUF files name it, such as `gemma3`.
    pub architecture: String,
    /// Weights of the model.
    pub parameters: u64,
    /// Bytes of its weights as they are loaded.
    pub weight_bytes: u64,
    /// Type of most weights, such as `q4_k`.
    pub quantization: &'static str,
    /// Values of an embedding: the width of the model's layers.
    pub embedding_width: usize,
    /// Layers.
    pub layers: usize,
    /// What computes, in words.
    pub devices: String,
    /// Where the weights lie.
    pub placement: EnginePlacement,
    /// Entries of the vocabulary.
    pub vocabulary: usize,
    /// Tokens that prompt and answer may have together.
    pub context: usize,
    /// Tokens that the model was made for.
    pub model_context: usize,
    /// Bytes of KV pages that a token takes in all layers; those with a window forget it in the end.
    pub kv_bytes_per_token: u64,
    /// Requests that run at once.
    pub lanes: usize,
    /// Requests that may wait for a lane.
    pub queue: usize,
}

impl ServiceInfo {
    pub(super) fn of(engine: &Engine) -> ServiceInfo {
        let limits = engine.scheduler.limits();
        let (plan, config) = (engine.plan(), engine.config());
        let kv_bytes = |group: &KvGroup| (group.layers * group.token_bytes()) as u64;
        ServiceInfo {
            model: engine.name().to_string(),
            architecture: config.family.name.to_string(),
            parameters: plan.graph.parameters(),
            weight_bytes: plan.weight_bytes(),
            quantization: most_common_type(&plan.graph).map_or("none", TensorType::name),
            embedding_width: config.hidden,
            layers: plan.layers(),
            devices: engine.runs_on(),
            placement: engine.placement(),
            vocabulary: limits.vocabulary,
            context: limits.context,
            model_context: limits.model_context,
            kv_bytes_per_token: plan.graph.kv_groups.iter().map(kv_bytes).sum(),
            lanes: limits.lanes,
            queue: limits.queue,
        }
    }
}

/// The type that most values of all matrices have.
fn most_common_type(graph: &Graph) -> Option<TensorType> {
    let values = |ty: TensorType| -> u64 {
        let alike = graph.matrices().filter(|weight| weight.ty == ty);
        alike.map(|weight| weight.elements()).sum()
    };
    graph.matrices().map(|weight| weight.ty).max_by_key(|&ty| values(ty))
}
