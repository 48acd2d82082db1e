//! `tune` on a small model: what it chooses computes what the policy's choice does, and a candidate
//! that computes something else is refused.

use crate::support::case::{Case, beside_reference, check, plan, usual};
use crate::support::gpu;
use pianola_cpu::ReferenceModel;
use pianola_formats::TensorType;
use pianola_plan::DeviceId;
use pianola_vulkan::{Trial, VulkanDevice, VulkanOptions, VulkanRecording, tune, tune_spoiled};

/// A model of products with gates, tails and codes for the next, small because each candidate is
/// compiled.
fn small() -> Case {
    let (hidden, feed_forward, vocabulary) = (64, 64, 40);
    let (kv_heads, group, head_dim) = (1, 2, 32);
    Case { hidden, feed_forward, vocabulary, kv_heads, group, head_dim, ..usual(TensorType::Q4_0) }
}

fn record(options: VulkanOptions) -> (VulkanRecording, ReferenceModel) {
    let (plan, weights) = plan(&small(), VulkanDevice::spec_named("vulkan"));
    beside_reference(plan, &weights, |plan| {
        VulkanRecording::new(plan, DeviceId(0), &weights, options, &mut |_, _| ())
    })
}

#[test]
fn what_is_chosen_computes_the_same() {
    let gpu = gpu::open();
    let (mut recording, _) = record(gpu::options(&gpu));
    let mut trials: Vec<Trial> = Vec::new();
    let tuning = tune(&mut recording, &mut |trial, all| {
        trials.push(trial.clone());
        assert!(trials.len() <= all);
    })
    .unwrap();
    assert!(trials.len() >= 3 && tuning.len() == trials.len(), "{trials:?}");
    for trial in &trials {
        assert!(trial.refused.is_empty() && trial.candidates > 1, "{trial:?}");
        assert!(trial.after > 0.0 && trial.after <= trial.before, "{trial:?}");
    }
    let (mut tuned, mut reference_model) = record(VulkanOptions { tuning, ..gpu::options(&gpu) });
    check(&mut tuned, &mut reference_model, &[&[(0, 0, 5)], &[(0, 5, 1)], &[(1, 0, 1)]])
        .unwrap_or_else(|reason| panic!("{reason}"));
}

/// The same on a device that counts its units.
#[test]
#[ignore = "compiles a hundred kernels: scripts/acceptance runs it"]
fn what_is_chosen_on_counted_units_computes_the_same() {
    let gpu = gpu::open();
    let options = VulkanOptions { units: Some(3), ..gpu::options(&gpu) };
    let (mut recording, _) = record(options.clone());
    let mut trials: Vec<Trial> = Vec::new();
    let tuning =
        tune_spoiled(&mut recording, 1, &mut |trial, _| trials.push(trial.clone())).unwrap();
    for trial in &trials {
        let [refusal] = &trial.refused[..] else { panic!("{trial:?}") };
        assert!(refusal.contains("instead of") && trial.candidates > 1, "{trial:?}");
    }
    let (mut tuned, mut reference_model) = record(VulkanOptions { tuning, ..options });
    check(&mut tuned, &mut reference_model, &[&[(0, 0, 5)], &[(0, 5, 1)], &[(1, 0, 1)]])
        .unwrap_or_else(|reason| panic!("{reason}"));
}

#[test]
fn a_candidate_that_computes_something_else_is_refused() {
    let (mut recording, _) = record(gpu::options(&gpu::open()));
    let mut trials: Vec<Trial> = Vec::new();
    let tuning =
        tune_spoiled(&mut recording, 1, &mut |trial, _| trials.push(trial.clone())).unwrap();
    assert_eq!(tuning.len(), trials.len());
    for trial in &trials {
        let [refusal] = &trial.refused[..] else { panic!("{trial:?}") };
        assert!(refusal.contains("instead of"), "{refusal}");
        assert!(!refusal.starts_with(&trial.choice), "{trial:?}");
    }
}
