//! Bounds with teeth: at most twice the noise that is really there.

use crate::support::case::{Runs, beside_reference, plan};
use crate::support::gpu;
use crate::support::noise::{looseness, report, wide};
use pianola_formats::TensorType;
use pianola_plan::{DeviceId, Numeric};
use pianola_vulkan::{VulkanDevice, VulkanRecording};

/// The least and the most that bounds are of the noise, over a chunk and a single row.
fn range(ty: TensorType, numeric: Numeric) -> (f64, f64) {
    let (plan, weights) = plan(&wide(ty, numeric), VulkanDevice::spec_named("vulkan"));
    let options = gpu::options(&gpu::open());
    let (mut recording, mut reference_model) = beside_reference(plan, &weights, |plan| {
        VulkanRecording::new(plan, DeviceId(0), &weights, options, &mut |_, _| ())
    });
    let steps: [(&Runs, u32); 2] = [(&[(0, 0, 9)], 8), (&[(0, 9, 1)], 1)];
    let ranges = steps.map(|(runs, wanted)| {
        let report = report(&mut recording, &mut reference_model, runs, wanted);
        looseness(&format!("{ty} {numeric} {runs:?}"), &report)
    });
    (ranges[0].0.min(ranges[1].0), ranges[0].1.max(ranges[1].1))
}

/// Int8 in the layers and two int8 before the head, or half floats where the device has matrix units.
#[test]
fn bounds_of_rounded_products_are_at_most_twice_their_noise() {
    for ty in [TensorType::Q4_0, TensorType::Q4K] {
        let (_, most) = range(ty, Numeric::Fast);
        assert!(most <= 2.0, "{ty}: {most}");
    }
}

/// In f32 the order of a sum decides, and the bound is for the worst in use: one piece, as the kernel
/// for many rows has it. That for one row takes a sum in hundreds, and its error is a tenth.
#[test]
fn bounds_of_sums_in_f32_are_at_most_twice_the_noise_of_sums_in_one_piece() {
    let (least, most) = range(TensorType::Q4_0, Numeric::Exact);
    assert!(least <= 2.0 && most <= 40.0, "{least} to {most}");
}
