//! Every kernel of small random models against the plain reference: all weight types, both numeric
//! modes, all row counts, chunked and mixed steps.
//!
//! Runs on the device that `PIANOLA_TEST_VULKAN` names (an index or part of a name), by default on
//! Mesa's software driver.

#[path = "../../../tests/support/case.rs"]
mod case;

use case::{Case, STEPS, check, map_pages, plan, usual};
use pianola_cpu::Twin;
use pianola_formats::TensorType;
use pianola_plan::{DeviceKind, Numeric};
use pianola_vulkan::{Gpu, Selection, Tuning, VulkanOptions, VulkanRecording};
use proptest::prelude::*;
use std::sync::{Arc, OnceLock};

fn gpu() -> Arc<Gpu> {
    static GPU: OnceLock<Arc<Gpu>> = OnceLock::new();
    GPU.get_or_init(|| {
        let name = std::env::var("PIANOLA_TEST_VULKAN").unwrap_or_else(|_| "llvmpipe".to_string());
        let selection = match name.parse() {
            Ok(index) => Selection::Index(index),
            Err(_) => Selection::Name(name),
        };
        Gpu::open(&selection).expect("a Vulkan device to test on (Debian: mesa-vulkan-drivers)")
    })
    .clone()
}

fn record(case: &Case) -> (VulkanRecording, Twin) {
    let (plan, weights) = plan(case, DeviceKind::Vulkan);
    let twin = Twin::new(plan.clone(), &weights).unwrap();
    let options = VulkanOptions { gpu: gpu(), memory: None, tuning: Tuning::default() };
    let mut recording = VulkanRecording::new(plan, &weights, options, &mut |_, _| ()).unwrap();
    map_pages(&mut recording);
    (recording, twin)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn kernels_match_the_reference(case in case::case(32)) {
        let (mut recording, mut twin) = record(&case);
        if let Err(reason) = check(&mut recording, &mut twin, &STEPS) {
            prop_assert!(false, "{reason}");
        }
    }
}

#[test]
fn every_type_in_both_modes() {
    for &ty in TensorType::ALL {
        for numeric in [Numeric::Exact, Numeric::Fast] {
            let (mut recording, mut twin) = record(&Case { numeric, ..usual(ty) });
            let steps: [&case::Runs; 6] = [
                &[(0, 0, 64)],
                &[(0, 64, 7)],
                &[(0, 71, 1)],
                &[(0, 72, 2)],
                &[(0, 74, 16)],
                &[(0, 90, 1)],
            ];
            let report = check(&mut recording, &mut twin, &steps)
                .unwrap_or_else(|reason| panic!("{ty} {numeric}: {reason}"));
            println!("{ty} {numeric}: worst error {:.0} % of its bound", 100.0 * report.worst_share);
        }
    }
}
