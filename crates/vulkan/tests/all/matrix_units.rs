//! Kernels for matrix units against the plain reference, on a device that has cooperative matrices:
//! `project_fragments`, `project_matrix` and `project_rotated` with all of their tiles, and `attention_matrix`. Debian 12's Mesa has none, so
//! `scripts/acceptance` runs these with a newer one; a device without matrices fails them.
//!
//! Compiling a kernel for a software driver takes seconds, so that types and sizes are not combined.

use crate::support::case::{
    Case, Runs, beside_reference, check_logits, plan, plan_of_types, square, step_of, usual,
};
use crate::support::gpu;
use pianola_cpu::{Noise, ReferenceModel};
use pianola_formats::TensorType;
use pianola_model::RandomWeights;
use pianola_plan::{DeviceId, Numeric, Placement, Plan, PlanOptions, Probe, RopePairing};
use pianola_vulkan::{Gpu, PromptWeights, VulkanDevice, VulkanOptions, VulkanRecording};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Rows and logits of a play.
const MOST_ROWS: usize = 512;
const MOST_LOGITS: usize = 72;

/// Opens a device with matrices.
fn open() -> Arc<Gpu> {
    let gpu = gpu::open();
    let description = gpu.description();
    assert!(
        description.matrices.iter().any(|shape| shape.types == ["f16", "f32"]),
        "{} ({}) has no cooperative matrices, and these tests are of nothing else: \
         scripts/acceptance runs them with a driver that has",
        description.name,
        description.driver
    );
    gpu
}

/// Side of the matrices that kernels use.
fn side(gpu: &Gpu) -> u32 {
    let mut sizes = gpu.description().matrices.iter().map(|shape| shape.size);
    if sizes.any(|size| size == [16; 3]) { 16 } else { 8 }
}

/// A recording with room for long prompts beside the reference, and the launches that it was seen
/// to make.
struct Bench {
    recording: VulkanRecording,
    reference_model: ReferenceModel,
    seen: BTreeSet<(&'static str, [u32; 2])>,
}

impl Bench {
    fn new(options: VulkanOptions, (plan, weights): (Plan, RandomWeights)) -> Bench {
        let plan_options =
            PlanOptions { max_rows: MOST_ROWS, max_logit_rows: MOST_LOGITS, ..plan.options };
        let placement = Placement::single(&plan.graph, VulkanDevice::spec_named("vulkan"));
        let plan = Plan::new(plan.graph, plan_options, placement).unwrap();
        let (recording, reference_model) = beside_reference(plan, &weights, |plan| {
            VulkanRecording::new(plan, DeviceId(0), &weights, options, &mut |_, _| ())
        });
        Bench { recording, reference_model, seen: BTreeSet::new() }
    }

    /// Plays steps of one run beside the reference, and checks that every product of theirs is
    /// computed by `kernel`, unless it is the head of a few rows.
    fn check(&mut self, kernel: &str, steps: &[(&Runs, u32)]) {
        for &(runs, logits) in steps {
            let rows: u32 = runs.iter().map(|run| run.2).sum();
            let launches = self.recording.launches(rows as usize, logits as usize).unwrap();
            let head = |op: usize| self.recording.plan().is_head(op);
            for launch in launches.iter().filter(|launch| launch.kernel.starts_with("project")) {
                assert!(
                    launch.kernel == kernel || (head(launch.op) && logits < rows),
                    "{rows} rows: {launch:?} instead of {kernel}"
                );
                self.seen.extend(launch.tile.map(|tile| (launch.kernel, tile)));
            }
            let (recording, model) = (&mut self.recording, &mut self.reference_model);
            let report = check_logits(recording, model, &[runs], logits)
                .unwrap_or_else(|reason| panic!("{kernel}, {rows} rows: {reason}"));
            let share = 100.0 * report.worst_share;
            println!("{kernel}, {rows} rows, {logits} with logits: {share:.0} % of the bound");
        }
    }
}

impl Bench {
    /// Plays a step of one run, and checks that what is expected of the roundings of bare products is at
    /// most twice what is there.
    fn check_teeth(&mut self, rows: u32) {
        let step = step_of(&[(1, 0, rows)], self.recording.plan().graph.vocabulary as u32, 1);
        let report = self.reference_model.check_step(&mut self.recording, &step).unwrap();
        let noise = report.unwrap_or_else(|failure| panic!("{rows} rows: {failure}")).noise;
        let bare = |noise: &&Noise| {
            ["attn_output", "ffn_down"].iter().any(|name| noise.tensor.contains(name))
        };
        assert!(noise.iter().any(|noise| bare(&noise)), "{noise:?}");
        for Noise { tensor, found, limit } in noise.iter().filter(bare) {
            println!("    {tensor}: {found:.2} of the noise, of {limit:.2}");
            assert!(*found > 0.5, "{tensor}: {found:.2} of the noise");
        }
    }
}

impl Bench {
    /// Plays steps of several runs beside the reference, and checks that all that attend do it on
    /// matrix units. Pages hold no numbers until they are written.
    fn check_attention(&mut self, name: &str, steps: &[&Runs]) {
        self.recording.poison_kv().unwrap();
        for &runs in steps {
            let rows: u32 = runs.iter().map(|run| run.2).sum();
            let launches = self.recording.launches(rows as usize, 1).unwrap();
            let launched = |kernel: &str| launches.iter().any(|launch| launch.kernel == kernel);
            assert!(launched("attention_matrix") && !launched("attention"), "{name}, {rows} rows");
            let step = step_of(runs, self.recording.plan().graph.vocabulary as u32, 1);
            self.recording.poison().unwrap();
            let report = self.reference_model.check_step(&mut self.recording, &step).unwrap();
            let report = report.unwrap_or_else(|failure| panic!("{name}, {runs:?}: {failure}"));
            let of_attention = |noise: &&Noise| noise.tensor.ends_with("attention");
            assert!(report.noise.iter().any(|noise| of_attention(&noise)), "{name}, {runs:?}");
            for noise in report.noise.iter().filter(of_attention) {
                let Noise { tensor, found, limit } = noise;
                println!("{name}, {runs:?}: {tensor}: {found:.2} of the noise, of {limit:.2}");
                // What is expected of roundings is at most twice what is there.
                assert!(*found > 0.5, "{name}, {runs:?}: {tensor}: {found:.2} of the noise");
            }
        }
    }
}

fn quantised() -> impl Iterator<Item = TensorType> {
    TensorType::ALL.iter().copied().filter(|ty| ty.is_quantized())
}

/// Which of a device's answers the kernel rests on is in `policy/fragments.rs`.
#[test]
#[ignore = "needs cooperative matrices: scripts/acceptance"]
fn fragments_of_every_type() {
    let gpu = open();
    for ty in quantised() {
        let made = plan(&square(ty, Numeric::Fast), VulkanDevice::spec_named("vulkan"));
        let mut bench = Bench::new(gpu::options(&gpu), made);
        println!("{ty}");
        bench.check("project_fragments", &[(&[(0, 0, 9), (1, 0, 2)], 1)]);
        // Attention and, for up to 16 rows, gate+up leave their outputs as fragments: nothing forms them.
        for (rows, down) in [(11, false), (17, true)] {
            let launches = bench.recording.launches(rows, 1).unwrap();
            let formed = launches.iter().filter(|launch| launch.kernel == "prologue");
            let names: Vec<&str> =
                formed.map(|launch| bench.recording.plan().ops[launch.op].name.as_str()).collect();
            let forms = |end: &str| names.iter().any(|name| name.ends_with(end));
            assert_eq!((forms("attn_output"), forms("ffn_down")), (false, down), "{names:?}");
        }
    }
}

/// Every size of tile, the last rows of each in the middle of one, and columns and rows of weights
/// that no tile divides.
#[test]
#[ignore = "needs cooperative matrices: scripts/acceptance"]
fn fragments_of_every_size() {
    let gpu = open();
    for parallelism in [1, 1 << 17] {
        let options = VulkanOptions { parallelism: Some(parallelism), ..gpu::options(&gpu) };
        let mut bench = Bench::new(options, ragged([TensorType::Q8_0, TensorType::Q4_1]));
        bench.check(
            "project_fragments",
            &[
                (&[(0, 0, 3)], 3),
                (&[(0, 3, 9)], 9),
                (&[(0, 12, 20)], 20),
                (&[(0, 32, 63), (1, 0, 1)], 64),
            ],
        );
        let tokens: BTreeSet<u32> = bench.seen.iter().map(|seen| seen.1[1]).collect();
        // Half of a matrix's columns where the device has such matrices, then one matrix, two and four.
        let side = side(&gpu);
        let matrices = &gpu.description().matrices;
        let narrow =
            matrices.iter().any(|shape| shape.size == [16, 8, 16] && shape.types == ["f16", "f32"]);
        let half = (side == 16 && narrow).then_some(side / 2);
        let expected: Vec<u32> =
            half.into_iter().chain([1, 2, 4].map(|count| count * side)).collect();
        assert!(tokens.into_iter().eq(expected), "{:?}", bench.seen);
        // On a device that has room for more, products of few weight rows have pieces of one matrix, too.
        let single = bench.seen.iter().any(|seen| seen.1[0] == side);
        assert!(single, "{:?}", bench.seen);
    }
}

/// A model of biases and two types in which no number is a whole number of tiles.
fn ragged([most, others]: [TensorType; 2]) -> (Plan, RandomWeights) {
    let (hidden, feed_forward) = (288, 416);
    let (kv_heads, group, head_dim) = (3, 1, 32);
    let case = Case {
        family: "llama",
        biases: true,
        hidden,
        feed_forward,
        kv_heads,
        group,
        head_dim,
        ..usual(most)
    };
    let differs = |name: &str| ["attn_v", "ffn_up"].iter().any(|part| name.contains(part));
    let type_of = |name: &str| if differs(name) { others } else { most };
    plan_of_types(&case, VulkanDevice::spec_named("vulkan"), type_of)
}

#[test]
#[ignore = "needs cooperative matrices: scripts/acceptance"]
fn tiles_of_every_type() {
    let gpu = open();
    for &ty in TensorType::ALL {
        let made = plan(&square(ty, Numeric::Fast), VulkanDevice::spec_named("vulkan"));
        let mut bench = Bench::new(gpu::options(&gpu), made);
        println!("{ty}");
        bench.check("project_matrix", &[(&[(0, 0, 100)], 72)]);
    }
}

/// A gate of quantised weights and floats, which are multiplied as floats without matrix units, in both orders.
#[test]
#[ignore = "needs cooperative matrices: scripts/acceptance"]
fn gates_of_two_kinds() {
    use TensorType::{F16, Q8_0};
    let gpu = open();
    for (gate, up) in [(Q8_0, F16), (F16, Q8_0)] {
        let type_of = |name: &str| if name.contains("ffn_up") { up } else { gate };
        let case = square(gate, Numeric::Fast);
        let made = plan_of_types(&case, VulkanDevice::spec_named("vulkan"), type_of);
        let mut bench = Bench::new(gpu::options(&gpu), made);
        for runs in [&[(0, 0, 17)], &[(0, 17, 100)]] {
            let (recording, model) = (&mut bench.recording, &mut bench.reference_model);
            let report = check_logits(recording, model, &[runs], 1).unwrap();
            println!("{gate}, {up}, {runs:?}: {:.0} % of the bound", 100.0 * report.worst_share);
        }
    }
}

/// Both tiles of every number of rows, where no number is a whole number of them.
#[test]
#[ignore = "needs cooperative matrices: scripts/acceptance"]
fn tiles_of_every_size() {
    let gpu = open();
    let mut seen = BTreeSet::new();
    // With room for nothing more the larger tile is chosen, with room for much the smaller.
    let quantised = [TensorType::Q8_0, TensorType::Q4_1];
    let floats = [TensorType::F16, TensorType::F32];
    for (parallelism, types) in
        [1, 1 << 15].into_iter().flat_map(|room| [quantised, floats].map(|types| (room, types)))
    {
        let options = VulkanOptions {
            parallelism: Some(parallelism),
            fragments: false,
            ..gpu::options(&gpu)
        };
        let mut bench = Bench::new(options, ragged(types));
        let kernel = "project_matrix";
        bench.check(kernel, &[(&[(0, 0, 13)], 13), (&[(0, 13, 30)], 30), (&[(1, 0, 50)], 50)]);
        bench.check(kernel, &[(&[(1, 50, 200), (0, 43, 1)], 1), (&[(0, 44, 301)], 1)]);
        seen.extend(bench.seen);
    }
    assert_eq!(seen.len(), 8, "{seen:?}");
}

/// The tile of many outputs on a large card, in a gate and in a product of three parts, beside the
/// smaller ones of products with fewer.
#[test]
#[ignore = "needs cooperative matrices: scripts/acceptance"]
fn large_tile() {
    use TensorType::{BF16, F16, F32, Q4_0, Q4K, Q6K, Q8_0};
    let gpu = open();
    let options = VulkanOptions { parallelism: Some(1 << 16), ..gpu::options(&gpu) };
    for (ty, other) in [(Q4_0, Q4_0), (Q8_0, Q8_0), (Q4K, Q6K), (F16, F16), (F32, BF16)] {
        let case = Case {
            feed_forward: 1280,
            kv_heads: 16,
            group: 3,
            head_dim: 32,
            ..square(ty, Numeric::Fast)
        };
        let type_of = |name: &str| if name.contains("attn_v") { other } else { ty };
        let made = plan_of_types(&case, VulkanDevice::spec_named("vulkan"), type_of);
        let mut bench = Bench::new(options.clone(), made);
        println!("{ty}, {other}");
        bench.check("project_matrix", &[(&[(0, 0, 512)], 1), (&[(1, 0, 430)], 1)]);
        // Two pieces by two, each of four matrices by four; of three by four where that fills the card better.
        let side = side(&gpu);
        for tile in [[8 * side; 2], [6 * side, 8 * side]] {
            assert!(bench.seen.contains(&("project_matrix", tile)), "{tile:?}: {:?}", bench.seen);
        }
        assert!(bench.seen.len() > 1, "{:?}", bench.seen);
    }
}

/// Options with weights of their own for prompts.
fn with_prompt_weights(gpu: &Arc<Gpu>) -> VulkanOptions {
    VulkanOptions { prompt_weights: PromptWeights::On, ..gpu::options(gpu) }
}

#[test]
#[ignore = "needs cooperative matrices: scripts/acceptance"]
fn rotated_of_every_type() {
    let gpu = open();
    for ty in quantised() {
        let made = plan(&square(ty, Numeric::Fast), VulkanDevice::spec_named("vulkan"));
        let mut bench = Bench::new(with_prompt_weights(&gpu), made);
        println!("{ty}");
        bench.check("project_rotated", &[(&[(0, 0, 100)], 1)]);
        bench.check_teeth(70);
    }
}

/// Every tile, where no number is a whole number of them and rows end in the middle of a chunk.
#[test]
#[ignore = "needs cooperative matrices: scripts/acceptance"]
fn rotated_of_every_size() {
    use TensorType::{Q4_1, Q8_0};
    let gpu = open();
    let mut seen = BTreeSet::new();
    // With room for few tiles a large one is chosen, with room for many a small one.
    for parallelism in [1, 1 << 12, 1 << 17] {
        let options = VulkanOptions { parallelism: Some(parallelism), ..with_prompt_weights(&gpu) };
        let case = Case {
            family: "llama",
            biases: true,
            hidden: 320,
            feed_forward: 448,
            kv_heads: 5,
            group: 1,
            head_dim: 64,
            ..usual(Q8_0)
        };
        let differs = |name: &str| ["attn_v", "ffn_up"].iter().any(|part| name.contains(part));
        let type_of = |name: &str| if differs(name) { Q4_1 } else { Q8_0 };
        let made = plan_of_types(&case, VulkanDevice::spec_named("vulkan"), type_of);
        let mut bench = Bench::new(options, made);
        bench.check("project_rotated", &[(&[(0, 0, 100)], 1), (&[(1, 0, 200), (0, 100, 1)], 1)]);
        seen.extend(bench.seen);
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}

/// Plays of few rows, and exact or reproducible plans, read the weights as they are in the file.
#[test]
#[ignore = "needs cooperative matrices: scripts/acceptance"]
fn rotated_is_for_prompts_in_fast_mode() {
    let gpu = open();
    let made =
        |numeric| plan(&square(TensorType::Q8_0, numeric), VulkanDevice::spec_named("vulkan"));
    let bench = Bench::new(with_prompt_weights(&gpu), made(Numeric::Fast));
    for rows in [1, 16, 64, 65] {
        let launches = bench.recording.launches(rows, 1).unwrap();
        let rotated = launches.iter().any(|launch| launch.kernel == "project_rotated");
        assert_eq!(rotated, rows > 64, "{rows} rows");
    }
    let (plan, weights) = made(Numeric::Exact);
    let options = with_prompt_weights(&gpu);
    let refused =
        VulkanRecording::new(Arc::new(plan), DeviceId(0), &weights, options, &mut |_, _| ());
    let error = refused.err().expect("exact mode rounds nothing").to_string();
    assert!(error.contains("exact mode"), "{error}");
}

/// A prompt; one that goes on behind several pages, beside another sequence; and one whose rows are
/// no whole blocks, beside a single row, and whose product reads fragments.
const PROMPTS: [&Runs; 3] =
    [&[(0, 0, 100)], &[(0, 100, 150), (1, 0, 30)], &[(1, 30, 50), (0, 250, 1)]];

/// Windows shorter than the prompt and none, one to eight queries a key, both rotations, with and
/// without norms of queries and caps of scores.
#[test]
#[ignore = "needs cooperative matrices: scripts/acceptance"]
fn attention_of_every_head() {
    use RopePairing::{Adjacent, Halves};
    let gpu = open();
    for (family, head_dim, [kv_heads, group], window, pairing, caps) in [
        ("gemma3", 64, [2, 1], Some(20), Halves, false),
        ("llama", 128, [1, 2], Some(100), Adjacent, false),
        ("gemma3", 256, [1, 4], Some(70), Halves, false),
        ("gemma2", 64, [1, 8], Some(64), Halves, true),
        ("qwen3", 96, [2, 3], None, Halves, false),
    ] {
        let case = Case {
            family,
            pairing,
            hidden: 64,
            feed_forward: 64,
            kv_heads,
            group,
            head_dim,
            window,
            caps,
            ..usual(TensorType::Q8_0)
        };
        let name = format!("{family}, {group} heads of {head_dim} a key, window {window:?}");
        let made = plan(&case, VulkanDevice::spec_named("vulkan"));
        Bench::new(gpu::options(&gpu), made).check_attention(&name, &PROMPTS);
    }
}

/// The tile that keeps queries in registers.
#[test]
#[ignore = "needs cooperative matrices: scripts/acceptance"]
fn attention_on_a_large_card() {
    let gpu = open();
    let options = VulkanOptions { parallelism: Some(1 << 17), ..gpu::options(&gpu) };
    for head_dim in [64, 128] {
        let case = Case { hidden: 64, feed_forward: 64, head_dim, ..usual(TensorType::Q8_0) };
        let made = plan(&case, VulkanDevice::spec_named("vulkan"));
        let name = format!("large card, heads of {head_dim}");
        Bench::new(options.clone(), made).check_attention(&name, &PROMPTS);
    }
}
