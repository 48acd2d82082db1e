//! Bounds with teeth: at most twice the noise that is really there.

use crate::support::case::{Case, beside_reference, plan};
use crate::support::noise::{looseness, report, report_of_some, wide};
use pianola_cpu::{CpuDevice, CpuOptions, CpuRecording, Level, ReferenceModel};
use pianola_formats::TensorType;
use pianola_plan::{DeviceId, Numeric};

fn record(ty: TensorType, numeric: Numeric) -> (CpuRecording, ReferenceModel) {
    record_case(&wide(ty, numeric))
}

fn record_case(case: &Case) -> (CpuRecording, ReferenceModel) {
    let (plan, weights) = plan(case, CpuDevice::spec());
    let cpu = CpuOptions::bare(Level::best(), 2);
    beside_reference(plan, &weights, |plan| {
        CpuRecording::new(plan, DeviceId(0), &weights, cpu, &mut |_, _| ())
    })
}

/// Int8 in the layers, two int8 before the head.
#[test]
fn bounds_of_rounded_products_are_at_most_twice_their_noise() {
    for ty in [TensorType::Q4_0, TensorType::Q6K, TensorType::Q4K] {
        let (mut recording, mut reference_model) = record(ty, Numeric::Fast);
        let report = report(&mut recording, &mut reference_model, &[(0, 0, 4)], 3);
        let (_, most) = looseness(&format!("{ty}"), &report);
        assert!(most <= 2.0, "{ty}: {most}");
    }
}

/// Rotated int8 on both sides. The embeddings that the first product reads are few different values.
#[test]
fn bounds_of_rotated_products_are_at_most_twice_their_noise() {
    for ty in [TensorType::Q4_0, TensorType::Q4K] {
        let case = Case { max_rows: 256, ..wide(ty, Numeric::Fast) };
        let (mut recording, mut reference_model) = record_case(&case);
        let compared = [0, 77, 190, 199];
        let report = report_of_some(&mut recording, &mut reference_model, 200, &compared);
        let (_, most) = looseness(&format!("{ty}, rotated"), &report);
        assert!(most <= 2.0, "{ty}: {most}");
    }
}

/// In f32 the order of a sum decides, and the bound is for the worst in use: one piece, as here. The
/// first product's inputs are embeddings, few different values whose sums are often exact.
#[test]
fn bounds_of_sums_in_f32_are_at_most_twice_the_noise_of_sums_in_one_piece() {
    let (mut recording, mut reference_model) = record(TensorType::Q4_0, Numeric::Exact);
    let report = report(&mut recording, &mut reference_model, &[(0, 0, 4)], 3);
    let (least, most) = looseness("f32", &report);
    assert!(least <= 2.0 && most <= 4.0, "{least} to {most}");
}
