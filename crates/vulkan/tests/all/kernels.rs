//! Every kernel of small random models against the plain reference: all weight types, both numeric
//! modes, row counts up to 64, chunked and mixed steps.
//!
//! On Mesa's software driver nearly all the time goes into compiling pipelines, half a second each.
//! So the models are square (one pipeline serves several products), and of the row counts that
//! have kernels of their own each type sees some: types and row counts are constants of the same
//! source that do not know of each other.

use crate::support::case;
use crate::support::case::{
    Case, Runs, beside_reference, check, check_logits, plan, plan_of_types, square, usual,
};
use crate::support::gpu;
use pianola_cpu::ReferenceModel;
use pianola_formats::TensorType;
use pianola_model::RandomWeights;
use pianola_plan::{DeviceError, DeviceId, KvType, Numeric, Plan, RopePairing};
use pianola_vulkan::{Gpu, VulkanDevice, VulkanOptions, VulkanRecording};
use proptest::prelude::*;
use std::sync::{Arc, OnceLock};

fn record(
    gpu: &Arc<Gpu>,
    plan: Plan,
    weights: &RandomWeights,
) -> (VulkanRecording, ReferenceModel) {
    beside_reference(plan, weights, |plan| try_record(gpu, plan, weights))
}

fn try_record(
    gpu: &Arc<Gpu>,
    plan: Arc<Plan>,
    weights: &RandomWeights,
) -> Result<VulkanRecording, DeviceError> {
    let options = gpu::options(gpu);
    VulkanRecording::new(plan, DeviceId(0), weights, options, &mut |_, _| ())
}

/// Each type meets the kernels for one row, for few and for many, and heads of one row and of
/// more; which numbers these are goes round the types, and differs between the modes.
fn every_type(numeric: Numeric) {
    let gpu = gpu::open();
    let fast = numeric == Numeric::Fast;
    let mut types: Vec<(usize, TensorType)> = TensorType::ALL.iter().copied().enumerate().collect();
    if fast {
        // Floats last: by then the other test has compiled the same kernels for them.
        types.reverse();
    }
    for (index, ty) in types {
        let (plan, weights) = plan(&square(ty, numeric), VulkanDevice::spec_named("vulkan"));
        let (mut recording, mut reference_model) = record(&gpu, plan, &weights);
        let turn = index + usize::from(fast && ty.is_quantized());
        let few = [2, 3, 7][turn % 3];
        // A tile has 32 rows or 64. Those of 64 with integers take seconds to compile: one type
        // does.
        let large = if fast && ty.is_quantized() { ty == TensorType::Q4K } else { turn % 3 == 0 };
        let many = if large { 64 } else { 11 };
        // A head of at most four rows, or of eight, which in fast mode is one of many rows.
        let logits = [3, 6][turn % 2];
        let steps: [(&Runs, u32); 3] =
            [(&[(0, 0, many)], logits), (&[(1, 0, 1)], 1), (&[(0, many, few - 1), (1, 1, 1)], 1)];
        let mut worst = 0f64;
        for (step, logits) in steps {
            let report = check_logits(&mut recording, &mut reference_model, &[step], logits)
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
#[ignore = "takes a software driver most of a minute: scripts/acceptance runs it"]
fn types_mixed_in_one_product() {
    use TensorType::{F16, IQ4NL, IQ4XS, Q4_0, Q4K, Q6K, Q8_0};
    let gpu = gpu::open();
    for (ty, other, numeric) in [
        (Q4K, Q6K, Numeric::Fast),
        (Q8_0, F16, Numeric::Fast),
        (Q6K, Q4_0, Numeric::Exact),
        (IQ4XS, IQ4NL, Numeric::Fast),
    ] {
        let type_of = |name: &str| {
            let differs = ["attn_v", "ffn_up"].iter().any(|part| name.contains(part));
            if differs { other } else { ty }
        };
        let case = square(ty, numeric);
        let (plan, weights) = plan_of_types(&case, VulkanDevice::spec_named("vulkan"), type_of);
        let (mut recording, mut reference_model) = record(&gpu, plan, &weights);
        let steps: [&Runs; 3] = [&[(0, 0, 4)], &[(0, 4, 1)], &[(0, 5, 17)]];
        // Exact mode's tiles have no integers to mix with floats.
        let steps = if numeric == Numeric::Fast { &steps[..] } else { &steps[..2] };
        check(&mut recording, &mut reference_model, steps)
            .unwrap_or_else(|reason| panic!("{ty} with {other} {numeric}: {reason}"));
    }
}

/// Tiles that end in the middle: no number here is a whole number of them, neither outputs nor
/// columns nor rows of a play. With biases, and a gate whose parts differ in type.
#[test]
fn ragged_tiles() {
    use TensorType::{Q4_1, Q8_0};
    let case = Case {
        family: "llama",
        hidden: 288,
        feed_forward: 416,
        kv_heads: 3,
        group: 1,
        head_dim: 32,
        biases: true,
        ..usual(Q8_0)
    };
    let differs = |name: &str| ["attn_v", "ffn_up"].iter().any(|part| name.contains(part));
    let type_of = |name: &str| if differs(name) { Q4_1 } else { Q8_0 };
    let (plan, weights) = plan_of_types(&case, VulkanDevice::spec_named("vulkan"), type_of);
    let (mut recording, mut reference_model) = record(&gpu::open(), plan, &weights);
    check(&mut recording, &mut reference_model, &[&[(0, 0, 20), (1, 0, 3)]])
        .unwrap_or_else(|reason| panic!("{reason}"));
}

/// Keys and values of types that the modes do not choose by themselves: several rows, one row
/// alone, and one that begins a page.
#[test]
fn every_kv_type() {
    let gpu = gpu::open();
    for (ty, numeric, head_dim, group) in [
        (KvType::F32, Numeric::Fast, 64, 2),
        (KvType::F16, Numeric::Exact, 64, 2),
        (KvType::Q8, Numeric::Fast, 64, 2),
        (KvType::Q8, Numeric::Exact, 16, 3),
        // Six vectors, which 128 lanes do not share evenly.
        (KvType::Q8, Numeric::Fast, 96, 1),
    ] {
        let case = Case { head_dim, group, numeric, kv_type: Some(ty), ..usual(TensorType::Q8_0) };
        let (plan, weights) = plan(&case, VulkanDevice::spec_named("vulkan"));
        let (mut recording, mut reference_model) = record(&gpu, plan, &weights);
        let steps: [&Runs; 4] =
            [&[(0, 0, 64)], &[(0, 64, 1)], &[(1, 0, 1)], &[(0, 65, 3), (1, 1, 1)]];
        let report = check(&mut recording, &mut reference_model, &steps)
            .unwrap_or_else(|reason| panic!("{ty}, heads of {head_dim}, {numeric}: {reason}"));
        let share = 100.0 * report.worst_share;
        println!("{ty}, heads of {head_dim}: worst error {share:.0} % of its bound");
    }
}

/// Fused tensors in blocks, with fused biases, and every combination of norms.
#[test]
fn every_family() {
    let gpu = gpu::open();
    for family in case::FAMILIES {
        let case = Case { family, biases: true, caps: true, ..usual(TensorType::Q8_0) };
        let (plan, weights) = plan(&case, VulkanDevice::spec_named("vulkan"));
        let (mut recording, mut reference_model) = record(&gpu, plan, &weights);
        let steps: [&Runs; 3] = [&[(0, 0, 11)], &[(0, 11, 1)], &[(0, 12, 3), (1, 0, 1)]];
        let report = check(&mut recording, &mut reference_model, &steps)
            .unwrap_or_else(|reason| panic!("{family}: {reason}"));
        println!("{family}: worst error {:.0} % of its bound", 100.0 * report.worst_share);
    }
}

/// A device that counts its units: a single row is multiplied by a kernel of its own, which forms its
/// input itself. Every quantised type, mixed ones, every family, sums in whole and in broken batches, and
/// fewer and more workgroups than there is work for.
#[test]
fn single_rows_on_counted_units() {
    use TensorType::{Q4_0, Q4_1, Q4K, Q6K, Q8_0};
    let gpu = gpu::open();
    let quantized = TensorType::ALL.iter().copied().filter(|ty| ty.is_quantized());
    let types = quantized.map(|ty| (square(ty, Numeric::Fast), ty, 5));
    let ragged = |family, ty| Case {
        family,
        hidden: 288,
        feed_forward: 416,
        kv_heads: 3,
        group: 1,
        head_dim: 32,
        biases: true,
        caps: true,
        ..usual(ty)
    };
    let families = case::FAMILIES.iter().map(|family| (ragged(family, Q8_0), Q4_1, 3));
    let mixed = [(square(Q4K, Numeric::Fast), Q6K, 2), (ragged("llama", Q4_0), Q8_0, 200)];
    for (case, other, units) in types.chain(families).chain(mixed) {
        let differs = |name: &str| ["attn_v", "ffn_up"].iter().any(|part| name.contains(part));
        let type_of = |name: &str| if differs(name) { other } else { case.ty };
        let (plan, weights) = plan_of_types(&case, VulkanDevice::spec_named("vulkan"), type_of);
        let options = VulkanOptions { units: Some(units), ..gpu::options(&gpu) };
        let (mut recording, mut reference_model) = beside_reference(plan, &weights, |plan| {
            VulkanRecording::new(plan, DeviceId(0), &weights, options, &mut |_, _| ())
        });
        let steps: [&Runs; 2] = [&[(0, 0, 1)], &[(0, 1, 1)]];
        let report = check(&mut recording, &mut reference_model, &steps)
            .unwrap_or_else(|reason| panic!("{case:?} with {other}: {reason}"));
        let share = 100.0 * report.worst_share;
        println!(
            "{}, {} with {other}: worst error {share:.0} % of its bound",
            case.family, case.ty
        );
    }
}

/// The attention of single rows on such a device, with every type of keys and values and heads of one
/// vector to 64: a row that begins a sequence, one behind several pages, one that begins a page, and both at once.
#[test]
fn single_rows_attend_on_counted_units() {
    let gpu = gpu::open();
    for (kv_type, head_dim, group, pairing) in [
        (KvType::F16, 64, 2, RopePairing::Halves),
        (KvType::F32, 256, 1, RopePairing::Adjacent),
        (KvType::Q8, 128, 2, RopePairing::Halves),
        (KvType::Q8, 16, 2, RopePairing::Adjacent),
    ] {
        let kv_type = Some(kv_type);
        let case =
            Case { head_dim, group, pairing, kv_type, caps: true, ..usual(TensorType::Q8_0) };
        let (plan, weights) = plan(&case, VulkanDevice::spec_named("vulkan"));
        let options = VulkanOptions { units: Some(4), ..gpu::options(&gpu) };
        let (mut recording, mut reference_model) = beside_reference(plan, &weights, |plan| {
            VulkanRecording::new(plan, DeviceId(0), &weights, options, &mut |_, _| ())
        });
        let steps: [&Runs; 8] = [
            &[(1, 0, 1)],
            &[(0, 0, 64)],
            &[(0, 64, 1)],
            &[(0, 65, 64)],
            &[(0, 129, 1)],
            &[(0, 130, 1)],
            &[(1, 1, 1), (0, 131, 1)],
            &[(0, 132, 1), (1, 2, 1)],
        ];
        let report = check(&mut recording, &mut reference_model, &steps)
            .unwrap_or_else(|reason| panic!("{kv_type:?}, heads of {head_dim}: {reason}"));
        let share = 100.0 * report.worst_share;
        println!("{kv_type:?}, heads of {head_dim}: worst error {share:.0} % of its bound");
    }
}

/// Rows of whole blocks of 32 and heads of whole vectors, which is what the kernels take.
fn whole_blocks(case: &Case) -> bool {
    let vectors = case.kv_type != Some(KvType::Q8) || case.head_dim.is_multiple_of(16);
    vectors && (case.kv_heads * case.group * case.head_dim).is_multiple_of(32)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn random_models(case in case::case(32).prop_filter("whole blocks", whole_blocks)) {
        static GPU: OnceLock<Arc<Gpu>> = OnceLock::new();
        let (plan, weights) = plan(&case, VulkanDevice::spec_named("vulkan"));
        let (mut recording, mut reference_model) = record(GPU.get_or_init(gpu::open), plan, &weights);
        let steps: [&Runs; 3] = [&[(0, 0, 19)], &[(1, 0, 1)], &[(0, 19, 12), (1, 1, 1)]];
        // Several rows of logits: narrow heads are where rounding shows most.
        if let Err(reason) = check_logits(&mut recording, &mut reference_model, &steps, 3) {
            prop_assert!(false, "{reason}");
        }
    }
}

#[test]
fn heads_of_broken_vectors_are_refused_by_name() {
    let kv_type = Some(KvType::Q8);
    let case = Case { kv_heads: 4, group: 1, head_dim: 24, kv_type, ..usual(TensorType::F16) };
    let (plan, weights) = plan(&case, VulkanDevice::spec_named("vulkan"));
    let refusal = try_record(&gpu::open(), plan.into(), &weights).err().expect("heads of 24 bytes");
    let message = refusal.to_string();
    let named = ["multiple of 16", "not 24", "q8_0", "keys and values"];
    assert!(named.iter().all(|name| message.contains(name)), "{message}");
}

#[test]
fn rows_of_broken_blocks_are_refused_by_name() {
    let case = Case { kv_heads: 1, group: 3, head_dim: 16, ..usual(TensorType::F16) };
    let (plan, weights) = plan(&case, VulkanDevice::spec_named("vulkan"));
    let refusal = try_record(&gpu::open(), plan.into(), &weights).err().expect("rows of 48 values");
    let message = refusal.to_string();
    assert!(message.contains("attn_output") && message.contains("multiple of 32"), "{message}");
}
