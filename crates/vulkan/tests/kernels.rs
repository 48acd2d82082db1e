//! Every kernel of small random models against the plain reference: all weight types, both numeric
//! modes, all row counts, chunked and mixed steps.
//!
//! On Mesa's software driver nearly all the time goes into compiling pipelines, half a second each.
//! So the models are square (one pipeline serves several products), and of the row counts that
//! have kernels of their own each type sees some: types and row counts are constants of the same
//! source that do not know of each other.

#[allow(dead_code, reason = "shared with the processor's tests")]
#[path = "../../../tests/support/case.rs"]
mod case;
#[path = "../../../tests/support/gpu.rs"]
mod gpu;

use case::{Case, Runs, check, check_logits, map_pages, plan, plan_of_types, usual};
use pianola_cpu::Twin;
use pianola_formats::TensorType;
use pianola_model::RandomWeights;
use pianola_plan::{DeviceError, DeviceKind, Numeric, Plan};
use pianola_vulkan::{Gpu, Tuning, VulkanOptions, VulkanRecording};
use proptest::prelude::*;
use std::sync::{Arc, OnceLock};

fn record(gpu: &Arc<Gpu>, plan: Plan, weights: &RandomWeights) -> (VulkanRecording, Twin) {
    let twin = Twin::new(plan.clone(), weights).unwrap();
    let mut recording = try_record(gpu, plan, weights).unwrap();
    map_pages(&mut recording);
    (recording, twin)
}

fn try_record(
    gpu: &Arc<Gpu>,
    plan: Plan,
    weights: &RandomWeights,
) -> Result<VulkanRecording, DeviceError> {
    let options = VulkanOptions { gpu: gpu.clone(), memory: None, tuning: Tuning::default() };
    VulkanRecording::new(plan, weights, options, &mut |_, _| ())
}

/// A model whose products all have rows of 512: two super-blocks of the types that have them.
fn square(ty: TensorType, numeric: Numeric) -> Case {
    let (hidden, feed_forward, group) = (512, 512, 4);
    Case { hidden, feed_forward, group, numeric, ..usual(ty) }
}

/// Each type meets the kernels for one row, for few and for many, and heads of one row and of
/// more; which numbers these are goes round the types, and differs between the modes.
fn every_type(numeric: Numeric) {
    let gpu = gpu::open();
    let shift = usize::from(numeric == Numeric::Fast);
    for (index, &ty) in TensorType::ALL.iter().enumerate() {
        let (plan, weights) = plan(&square(ty, numeric), DeviceKind::Vulkan);
        let (mut recording, mut twin) = record(&gpu, plan, &weights);
        let few = [2, 3, 7][(index + shift) % 3];
        // A tile has 32 rows or 64, a head of four or eight rows is one of few rows or of many.
        let (many, logits) = [(11, 3), (64, 6)][(index + shift) % 2];
        let steps: [(&Runs, u32); 3] =
            [(&[(0, 0, many)], logits), (&[(0, many, few)], 1), (&[(0, many + few, 1)], 1)];
        let mut worst = 0f64;
        for (step, logits) in steps {
            let report = check_logits(&mut recording, &mut twin, &[step], logits)
                .unwrap_or_else(|reason| panic!("{ty} {numeric} {step:?}: {reason}"));
            worst = worst.max(report.worst_share);
        }
        println!("{ty} {numeric}: worst error {:.0} % of its bound", 100.0 * worst);
    }
}

#[test]
fn every_type_in_exact_mode() {
    every_type(Numeric::Exact);
}

#[test]
fn every_type_in_fast_mode() {
    every_type(Numeric::Fast);
}

/// Quantisers give values and some others more bits than the rest, so that the parts of one
/// product differ; some meet the input as integers and some as floats.
#[test]
fn types_mixed_in_one_product() {
    use TensorType::{F16, Q4_0, Q4K, Q6K, Q8_0};
    let gpu = gpu::open();
    for (ty, other, numeric) in
        [(Q4K, Q6K, Numeric::Fast), (Q8_0, F16, Numeric::Fast), (Q6K, Q4_0, Numeric::Exact)]
    {
        let type_of = |name: &str| {
            let differs = ["attn_v", "ffn_up"].iter().any(|part| name.contains(part));
            if differs { other } else { ty }
        };
        let case = square(ty, numeric);
        let (plan, weights) = plan_of_types(&case, DeviceKind::Vulkan, type_of);
        let (mut recording, mut twin) = record(&gpu, plan, &weights);
        check(&mut recording, &mut twin, &[&[(0, 0, 17)], &[(0, 17, 4)], &[(0, 21, 1)]])
            .unwrap_or_else(|reason| panic!("{ty} with {other} {numeric}: {reason}"));
    }
}

/// Rows of whole blocks of 32, which is what the kernels take.
fn whole_blocks(case: &Case) -> bool {
    (case.kv_heads * case.group * case.head_dim).is_multiple_of(32)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn random_models(case in case::case(32).prop_filter("whole blocks", whole_blocks)) {
        static GPU: OnceLock<Arc<Gpu>> = OnceLock::new();
        let (plan, weights) = plan(&case, DeviceKind::Vulkan);
        let (mut recording, mut twin) = record(GPU.get_or_init(gpu::open), plan, &weights);
        let rows = if case.seed % 4 == 0 { 37 } else { 19 };
        let steps: [&Runs; 3] = [&[(0, 0, rows)], &[(1, 0, 1)], &[(1, 1, 5), (0, rows, 1)]];
        if let Err(reason) = check(&mut recording, &mut twin, &steps) {
            prop_assert!(false, "{reason}");
        }
    }
}

#[test]
fn rows_of_broken_blocks_are_refused_by_name() {
    let case = Case { kv_heads: 1, group: 3, head_dim: 16, ..usual(TensorType::F16) };
    let (plan, weights) = plan(&case, DeviceKind::Vulkan);
    let refusal = try_record(&gpu::open(), plan, &weights).err().expect("rows of 48 values");
    let message = refusal.to_string();
    assert!(message.contains("attn_output") && message.contains("multiple of 32"), "{message}");
}
