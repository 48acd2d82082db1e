//! A matrix unit computes what vectors do, bit by bit: a prompt's logits do not depend on how it is cut.

use super::case;
use super::case::{
    Case, STEPS, beside_reference, check, logit_bits, map_pages, plan, plan_of_types, usual,
};
use crate::skip;
use crate::{CpuDevice, CpuOptions, CpuRecording, Level};
use pianola_formats::TensorType;
use pianola_plan::{DeviceId, Fault, Numeric};
use std::sync::Arc;

/// Levels with a matrix unit, each beside the same without it.
fn levels() -> impl Iterator<Item = (Level, Level)> {
    let levels = [(Level::EmulatedUnit, Level::Portable), (Level::Amx, Level::Avx512)];
    levels.into_iter().filter(|(level, _)| skip::has(level, level.available()))
}

fn record(case: &Case, level: Level, type_of: impl Fn(&str) -> TensorType) -> CpuRecording {
    let (plan, weights) = plan_of_types(case, CpuDevice::spec(), type_of);
    let cpu = CpuOptions::bare(level, case.threads);
    let plan = Arc::new(plan);
    let mut recording =
        CpuRecording::new(plan, DeviceId(0), &weights, cpu, &mut |_, _| ()).unwrap();
    map_pages(&mut recording);
    recording
}

#[test]
fn prompts_have_the_same_bits_with_and_without_a_unit() {
    for (level, without) in levels() {
        for &ty in TensorType::ALL {
            // The head of a few rows is refined otherwise.
            let case = Case { numeric: Numeric::Fast, threads: 3, reproducible: true, ..usual(ty) };
            let (mut on_unit, mut plain) =
                (record(&case, level, |_| ty), record(&case, without, |_| ty));
            for (rows, chunk) in [(64, 64), (64, 40), (33, 33), (32, 32), (32, 5)] {
                let expected = logit_bits(&mut plain, rows, rows);
                let found = logit_bits(&mut on_unit, rows, chunk);
                assert_eq!(expected, found, "{ty} on {level}: {rows} rows, {chunk} at a time");
            }
        }
    }
}

/// Parts of one product on the unit beside parts that have f32 rows, and beside parts of a type that stays
/// with vectors, as in files of mixed types.
#[test]
fn a_product_may_have_parts_that_the_unit_does_not_compute() {
    use TensorType::{BF16, F16, Q4_0, Q4K, Q6K};
    for (level, without) in levels() {
        for (most, value, up) in [(Q4_0, F16, BF16), (Q4K, Q6K, Q6K)] {
            let case = Case { numeric: Numeric::Fast, threads: 2, ..usual(most) };
            let type_of = |name: &str| match name {
                _ if name.contains("attn_v") => value,
                _ if name.contains("ffn_up") => up,
                _ => most,
            };
            let expected = logit_bits(&mut record(&case, without, type_of), 50, 50);
            let found = logit_bits(&mut record(&case, level, type_of), 50, 50);
            assert_eq!(expected, found, "{level}, {most} and {value}");
        }
    }
}

#[test]
fn products_on_a_unit_match_the_reference() {
    for (level, _) in levels() {
        for family in case::FAMILIES {
            let case = Case { family, biases: true, caps: true, ..usual(TensorType::Q4K) };
            let (plan, weights) = plan(&case, CpuDevice::spec());
            let cpu = CpuOptions::bare(level, 2);
            let (mut recording, mut reference_model) = beside_reference(plan, &weights, |plan| {
                CpuRecording::new(plan, DeviceId(0), &weights, cpu, &mut |_, _| ())
            });
            let long: &case::Runs = &[(0, 0, 40)];
            check(&mut recording, &mut reference_model, &[long])
                .and_then(|_| check(&mut recording, &mut reference_model, &STEPS))
                .unwrap_or_else(|reason| panic!("{family} on {level}: {reason}"));
        }
    }
}

/// Faults of products are planted in kernels for a unit, too, and noticed.
#[test]
fn faults_on_a_unit_are_noticed() {
    for (level, _) in levels() {
        let case = usual(TensorType::Q4_0);
        let (plan, weights) = plan(&case, CpuDevice::spec());
        let cpu = CpuOptions::bare(level, 2);
        let (mut recording, mut reference_model) = beside_reference(plan, &weights, |plan| {
            CpuRecording::new(plan, DeviceId(0), &weights, cpu, &mut |_, _| ())
        });
        let rows: &case::Runs = &[(0, 0, 43)];
        let faults = [Fault::DroppedBlock, Fault::WrongScale, Fault::StaleRow, Fault::WrongTail];
        for fault in faults.into_iter().map(Some).chain([None]) {
            recording.set_fault(fault);
            let result = check(&mut recording, &mut reference_model, &[rows]);
            assert_eq!(result.is_err(), fault.is_some(), "{fault:?} on {level}");
        }
    }
}
