//! Small random models, and the check of a recording of one against the reference.

#![allow(dead_code, reason = "each test uses a part")]

use pianola_cpu::{CheckReport, ReferenceModel};
use pianola_formats::{TensorSource, TensorType};
use pianola_model::{Config, Dialect, Family, RandomWeights, RopeConfig, RopeScaling};
use pianola_plan::{
    Activation, DeviceError, DeviceSpec, Graph, KvType, Numeric, PAGE_TOKENS, Placement, Plan,
    PlanOptions, Recording, RopePairing, Step,
};
use proptest::prelude::*;
use std::sync::Arc;

/// What a random model may vary in.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name of the family.
    pub family: &'static str,
    pub pairing: RopePairing,
    pub hidden: usize,
    pub feed_forward: usize,
    pub vocabulary: usize,
    pub kv_heads: usize,
    pub group: usize,
    pub head_dim: usize,
    pub window: Option<usize>,
    pub caps: bool,
    pub biases: bool,
    pub ty: TensorType,
    pub numeric: Numeric,
    pub kv_type: Option<KvType>,
    pub threads: usize,
    /// Most rows of a step.
    pub max_rows: usize,
    pub reproducible: bool,
    pub seed: u64,
}

pub fn config(case: &Case) -> Config {
    let gemma = case.family.starts_with("gemma");
    Config {
        family: Family::named(case.family).unwrap(),
        dialect: Dialect::Gguf,
        prefix: String::new(),
        name: None,
        context: 512,
        vocabulary: case.vocabulary,
        hidden: case.hidden,
        feed_forward: case.feed_forward,
        layers: 2,
        heads: case.kv_heads * case.group,
        kv_heads: case.kv_heads,
        head_dim: case.head_dim,
        epsilon: 1e-6,
        activation: if gemma { Activation::GeluTanh } else { Activation::Silu },
        attention_scale: 1.0 / (case.head_dim as f32).sqrt(),
        rope: RopeConfig { base: 10_000.0, scaling: RopeScaling::None },
        window_rope: None,
        pairing: case.pairing,
        windows: vec![case.window, None],
        attention_soft_cap: case.caps.then_some(20.0),
        final_soft_cap: case.caps.then_some(30.0),
        tied: gemma,
        attention_bias: case.biases,
        output_bias: case.biases,
        feed_forward_bias: case.biases,
    }
}

/// Weights and plan of a case, for a device.
pub fn plan(case: &Case, device: DeviceSpec) -> (Plan, RandomWeights) {
    plan_of_types(case, device, |_| case.ty)
}

/// The same with a type for each matrix, by its name.
pub fn plan_of_types(
    case: &Case,
    device: DeviceSpec,
    type_of: impl Fn(&str) -> TensorType,
) -> (Plan, RandomWeights) {
    let config = config(case);
    // What is no whole number of blocks stays in f32, as a converter would leave it.
    let weights = RandomWeights::new(&config, case.seed, |name, _, columns| {
        let ty = type_of(name);
        if columns % ty.block_len() == 0 { ty } else { TensorType::F32 }
    });
    let graph = pianola_model::graph(&config, &weights, None).unwrap();
    let Case { numeric, kv_type, max_rows, reproducible, .. } = *case;
    let options = PlanOptions { max_rows, reproducible, ..plan_options(numeric, kv_type) };
    let placement = Placement::single(&graph, device);
    (Plan::new(graph, options, placement).unwrap(), weights)
}

/// Most rows of a step where a case says nothing else.
const FEW_ROWS: usize = 64;

fn plan_options(numeric: Numeric, kv_type: Option<KvType>) -> PlanOptions {
    PlanOptions {
        numeric,
        kv_type,
        max_rows: FEW_ROWS,
        max_logit_rows: 8,
        context: 512,
        sequences: 2,
        kv_bytes: None,
        fusion: true,
        reproducible: false,
    }
}

/// Plans any graph for two sequences.
pub fn plan_graph(
    graph: Graph,
    device: DeviceSpec,
    numeric: Numeric,
    kv_type: Option<KvType>,
) -> Plan {
    let placement = Placement::single(&graph, device);
    Plan::new(graph, plan_options(numeric, kv_type), placement).unwrap()
}

/// What `record` makes of a plan, its pages mapped, and the reference beside it.
pub fn beside_reference<R: Recording>(
    plan: Plan,
    weights: &dyn TensorSource,
    record: impl FnOnce(Arc<Plan>) -> Result<R, DeviceError>,
) -> (R, ReferenceModel) {
    let reference_model = ReferenceModel::new(plan.clone(), weights).unwrap();
    let mut recording = record(Arc::new(plan)).unwrap();
    map_pages(&mut recording);
    (recording, reference_model)
}

/// Gives two sequences pages that are interleaved and not in order.
pub fn map_pages(recording: &mut dyn Recording) {
    for group in 0..recording.plan().graph.kv_groups.len() {
        let pages = recording.plan().kv_pages[group] as u32;
        for index in 0..(pages / 2).min(512 / PAGE_TOKENS as u32) {
            recording.map_page(group, 0, index as usize, pages - 1 - 2 * index);
            recording.map_page(group, 1, index as usize, pages - 2 - 2 * index);
        }
    }
}

/// Bits of the logits of the last 8 of `rows` rows of one sequence, played `chunk` at a time. Pages are mapped.
pub fn logit_bits(recording: &mut dyn Recording, rows: u32, chunk: u32) -> Vec<u32> {
    let mut bits = Vec::new();
    for start in (0..rows).step_by(chunk as usize) {
        let mut step = Step::default();
        for position in start..rows.min(start + chunk) {
            step.push(position * 7 % 50, 0, position, position + 8 >= rows);
        }
        recording.play(&step).unwrap();
        for index in 0..step.logits.len() {
            bits.extend(recording.logits(0, index).iter().map(|logit| logit.to_bits()));
        }
    }
    bits
}

/// Rows of a step: (sequence, first position, rows).
pub type Runs = [(u32, u32, u32)];

/// Plays steps kernel by kernel beside the reference; the last row of each run wants logits.
pub fn check(
    recording: &mut dyn Recording,
    reference_model: &mut ReferenceModel,
    steps: &[&Runs],
) -> Result<CheckReport, String> {
    check_logits(recording, reference_model, steps, 1)
}

/// The same with logits for the last `wanted` rows of each run.
pub fn check_logits(
    recording: &mut dyn Recording,
    reference_model: &mut ReferenceModel,
    steps: &[&Runs],
    wanted: u32,
) -> Result<CheckReport, String> {
    let vocabulary = recording.plan().graph.vocabulary as u32;
    let mut worst = CheckReport::default();
    for runs in steps {
        let step = step_of(runs, vocabulary, wanted);
        recording.poison().unwrap();
        let report = reference_model.check_step(recording, &step).unwrap();
        let report = report.map_err(|failure| failure.to_string())?;
        worst.kernels += report.kernels;
        worst.worst_share = worst.worst_share.max(report.worst_share);
    }
    Ok(worst)
}

/// A step of these rows, with logits for the last `wanted` of each run.
pub fn step_of(runs: &Runs, vocabulary: u32, wanted: u32) -> Step {
    let mut step = Step::default();
    for &(sequence, first, rows) in runs {
        for position in first..first + rows {
            let token = (position * 31 + sequence * 17 + 5) % vocabulary;
            step.push(token, sequence, position, position + wanted >= first + rows);
        }
    }
    step
}

/// Steps that every kernel is checked with: a prompt, a token, and ragged ones: a chunk of one
/// sequence beside a single row of the other.
pub const STEPS: [&Runs; 4] =
    [&[(0, 0, 37)], &[(1, 0, 1)], &[(0, 37, 40), (1, 1, 1)], &[(1, 2, 9), (0, 77, 1)]];

/// Families that differ in what is fused: norms on heads and behind blocks, tensors of several weights.
pub const FAMILIES: [&str; 5] = ["llama", "qwen3", "phi3", "gemma2", "gemma3"];

/// Any case; widths are whole multiples of `unit` for types without blocks.
pub fn case(unit: usize) -> impl Strategy<Value = Case> {
    let shape = (1usize..6, 1usize..10, 17usize..90, 1usize..4, 1usize..4);
    let heads = (prop::sample::select(vec![8, 16, 24, 32, 64]), prop::option::of(1usize..150));
    let family = prop::sample::select(&FAMILIES);
    let flags = (family, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let types =
        (prop::sample::select(TensorType::ALL.to_vec()), prop::sample::select(&KvType::ALL));
    let rest = (types, 1usize..4, any::<u64>());
    (shape, heads, flags, rest).prop_map(move |(shape, heads, flags, rest)| {
        let ((ty, kv_type), threads, seed) = rest;
        let unit = if ty.is_quantized() { ty.block_len() } else { unit };
        Case {
            family: flags.0,
            pairing: if flags.1 { RopePairing::Halves } else { RopePairing::Adjacent },
            hidden: shape.0 * unit,
            feed_forward: shape.1 * 32,
            vocabulary: shape.2,
            kv_heads: shape.3,
            group: shape.4,
            head_dim: heads.0,
            window: heads.1,
            caps: flags.2,
            biases: flags.3,
            ty,
            numeric: if flags.4 { Numeric::Fast } else { Numeric::Exact },
            kv_type: Some(kv_type),
            threads,
            max_rows: FEW_ROWS,
            reproducible: false,
            seed,
        }
    })
}

/// A case of the given type with a bit of everything.
pub fn usual(ty: TensorType) -> Case {
    Case {
        family: "gemma3",
        pairing: RopePairing::Halves,
        hidden: 256,
        feed_forward: 512,
        vocabulary: 100,
        kv_heads: 2,
        group: 2,
        head_dim: 64,
        window: Some(20),
        caps: false,
        biases: false,
        ty,
        numeric: Numeric::Fast,
        kv_type: None,
        threads: 2,
        max_rows: FEW_ROWS,
        reproducible: false,
        seed: 3,
    }
}

/// A model whose products all have rows of 512: two super-blocks of the types that have them.
pub fn square(ty: TensorType, numeric: Numeric) -> Case {
    let (hidden, feed_forward) = (512, 512);
    let (kv_heads, group, head_dim) = (4, 4, 32);
    Case { hidden, feed_forward, kv_heads, group, head_dim, numeric, ..usual(ty) }
}
