//! Every kernel of small random models against the reference: all weight types, all instruction
//! sets, ragged shapes, both numeric modes, chunked and mixed steps.

use crate::support::case;
use crate::support::case::{Case, STEPS, beside_reference, check, plan, usual};
use crate::support::skip;
use pianola_cpu::{CpuDevice, CpuOptions, CpuRecording, Level, ReferenceModel};
use pianola_formats::TensorType;
use pianola_plan::{DeviceId, KvType, Numeric};
use proptest::prelude::*;

fn record(case: &Case, level: Level) -> (CpuRecording, ReferenceModel) {
    let (plan, weights) = plan(case, CpuDevice::spec());
    let cpu = CpuOptions::bare(level, case.threads);
    beside_reference(plan, &weights, |plan| {
        CpuRecording::new(plan, DeviceId(0), &weights, cpu, &mut |_, _| ())
    })
}

fn levels() -> impl Iterator<Item = Level> {
    let levels = Level::ALL.into_iter().filter(|level| *level != Level::Reference);
    levels.filter(|level| skip::has(level, level.available()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 30, ..ProptestConfig::default() })]

    #[test]
    fn kernels_match_the_reference(case in case::case(6)) {
        for level in levels() {
            let (mut recording, mut reference_model) = record(&case, level);
            if let Err(reason) = check(&mut recording, &mut reference_model, &STEPS) {
                prop_assert!(false, "{level}: {reason}");
            }
        }
    }
}

#[test]
fn every_type_on_every_level() {
    for &ty in TensorType::ALL {
        for level in levels() {
            let (mut recording, mut reference_model) = record(&usual(ty), level);
            let steps: [&case::Runs; 3] = [&[(0, 0, 64)], &[(0, 64, 5)], &[(0, 69, 1)]];
            let report = check(&mut recording, &mut reference_model, &steps)
                .unwrap_or_else(|reason| panic!("{ty} on {level}: {reason}"));
            println!("{ty} {level}: worst error {:.0} % of its bound", 100.0 * report.worst_share);
        }
    }
}

/// Fused tensors in blocks, with fused biases, and every combination of norms.
#[test]
fn every_family_on_every_level() {
    for family in case::FAMILIES {
        for level in levels() {
            let case = Case { family, biases: true, caps: true, ..usual(TensorType::Q4K) };
            let (mut recording, mut reference_model) = record(&case, level);
            check(&mut recording, &mut reference_model, &STEPS)
                .unwrap_or_else(|reason| panic!("{family} on {level}: {reason}"));
        }
    }
}

/// Heads of whole vectors and others, on the border of a page and across it.
#[test]
fn every_kv_type_on_every_level() {
    for ty in KvType::ALL {
        for (level, head_dim) in levels().flat_map(|level| [(level, 64), (level, 24)]) {
            for numeric in [Numeric::Exact, Numeric::Fast] {
                let usual = usual(TensorType::Q8_0);
                let case = Case { numeric, kv_type: Some(ty), head_dim, hidden: 96, ..usual };
                let (mut recording, mut reference_model) = record(&case, level);
                let steps: [&case::Runs; 4] =
                    [&[(0, 0, 64)], &[(0, 64, 5), (1, 0, 2)], &[(0, 69, 1)], &[(1, 2, 1)]];
                let report = check(&mut recording, &mut reference_model, &steps)
                    .unwrap_or_else(|reason| panic!("{ty} on {level}, {numeric}: {reason}"));
                let share = 100.0 * report.worst_share;
                println!("{ty} {level} {numeric}: worst error {share:.0} % of its bound");
            }
        }
    }
}
