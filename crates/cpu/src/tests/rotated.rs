//! Products of many rows in rotated form: every type and ragged shapes against the reference, faults that
//! are noticed in them, and plans that do without.

use super::case::{Case, Runs, beside_reference, check, logit_bits, map_pages, plan, usual};
use crate::skip;
use crate::{CpuDevice, CpuOptions, CpuRecording, Level, ReferenceModel};
use pianola_formats::TensorType;
use pianola_plan::{DeviceId, Fault, Numeric, Probe, Recording, Rounding, Step};
use std::sync::Arc;

/// More than products in rotated form have at least, a multiple of no tile, strip or page.
const ROWS: u32 = 203;

/// Levels with rotated products, by vectors and on a unit.
fn levels() -> impl Iterator<Item = Level> {
    [Level::AvxVnni, Level::Avx512, Level::Amx, Level::EmulatedUnit]
        .into_iter()
        .filter(|level| skip::has(level, level.available()))
}

fn many_rows(ty: TensorType) -> Case {
    Case { max_rows: 256, ..usual(ty) }
}

fn record(case: &Case, level: Level) -> (CpuRecording, ReferenceModel) {
    let (plan, weights) = plan(case, CpuDevice::spec());
    let cpu = CpuOptions::bare(level, case.threads);
    beside_reference(plan, &weights, |plan| {
        CpuRecording::new(plan, DeviceId(0), &weights, cpu, &mut |_, _| ())
    })
}

fn step(rows: u32) -> Step {
    let mut step = Step::default();
    (0..rows).for_each(|row| step.push(row % 50, 0, row, row + 1 == rows));
    step
}

/// Columns that share a scale in each product of a step, in order.
fn scaled(recording: &CpuRecording, rows: u32) -> Vec<usize> {
    let step = step(rows);
    let of_op = |op: usize| match recording.rounding(op, &step) {
        Rounding::Rotated { block, scaled } => {
            assert_eq!(block, if scaled == 128 { 128 } else { 64 });
            Some(scaled)
        }
        _ => None,
    };
    (0..recording.plan().ops.len()).filter_map(of_op).collect()
}

#[test]
fn every_type_matches_the_reference() {
    for level in levels() {
        // The emulated unit is slow, and computes all types alike.
        let some = |ty: &TensorType| level != Level::EmulatedUnit || *ty == TensorType::Q6K;
        for &ty in TensorType::ALL.iter().filter(|ty| some(ty)) {
            let (mut recording, mut reference_model) = record(&many_rows(ty), level);
            // Four products in each of two layers.
            assert_eq!(scaled(&recording, ROWS), [128; 8]);
            assert!(scaled(&recording, 100).is_empty());
            let steps: [&Runs; 2] = [&[(0, 0, ROWS)], &[(0, ROWS, 199), (1, 0, 1)]];
            let report = check(&mut recording, &mut reference_model, &steps)
                .unwrap_or_else(|reason| panic!("{ty} on {level}: {reason}"));
            println!("{ty} {level}: worst error {:.0} % of its bound", 100.0 * report.worst_share);
        }
    }
}

/// Rows of 64 times an odd number, of 32 times one, and ragged outputs.
#[test]
fn widths_that_128_does_not_divide_match_the_reference() {
    for level in levels() {
        for (family, rows, hidden, feed_forward, expected) in [
            ("gemma3", ROWS, 320, 192, [64, 128, 64, 192]),
            ("llama", 192, 192, 640, [192, 128, 192, 128]),
            ("llama", 193, 576, 448, [192, 128, 192, 64]),
            ("phi3", 215, 384, 320, [128, 128, 128, 64]),
        ] {
            let biases = true;
            let case = Case {
                family,
                hidden,
                feed_forward,
                biases,
                threads: 3,
                ..many_rows(TensorType::Q5_1)
            };
            let (mut recording, mut reference_model) = record(&case, level);
            assert_eq!(scaled(&recording, rows), [expected, expected].concat());
            check(&mut recording, &mut reference_model, &[&[(0, 0, rows)]])
                .unwrap_or_else(|reason| panic!("{hidden} of {family} on {level}: {reason}"));
        }
        let case = Case { hidden: 288, feed_forward: 416, ..many_rows(TensorType::Q4_0) };
        let (mut recording, mut reference_model) = record(&case, level);
        assert_eq!(scaled(&recording, ROWS), [128, 128], "the output of attention alone");
        check(&mut recording, &mut reference_model, &[&[(0, 0, ROWS)]])
            .unwrap_or_else(|reason| panic!("288 on {level}: {reason}"));
    }
}

#[test]
fn faults_are_noticed() {
    for level in levels() {
        let (mut recording, mut reference_model) = record(&many_rows(TensorType::Q4_0), level);
        let rows: &Runs = &[(0, 0, ROWS)];
        let faults = [Fault::DroppedBlock, Fault::WrongScale, Fault::StaleRow, Fault::WrongTail];
        for fault in faults.into_iter().map(Some).chain([None]) {
            recording.set_fault(fault);
            let result = check(&mut recording, &mut reference_model, &[rows]);
            assert_eq!(result.is_err(), fault.is_some(), "{fault:?} on {level}");
        }
    }
}

/// Bits of the logits of the last 8 rows, played `chunk` at a time.
fn logits(case: &Case, level: Level, chunk: u32) -> Vec<u32> {
    let (plan, weights) = plan(case, CpuDevice::spec());
    let cpu = CpuOptions::bare(level, case.threads);
    let mut recording =
        CpuRecording::new(Arc::new(plan), DeviceId(0), &weights, cpu, &mut |_, _| ()).unwrap();
    map_pages(&mut recording);
    logit_bits(&mut recording, ROWS, chunk)
}

/// What a row's neighbours may change, and what not.
#[test]
fn only_fast_plans_that_are_not_reproducible_depend_on_the_rows_of_a_step() {
    for level in levels() {
        let fast = many_rows(TensorType::Q4K);
        let differs = |case: &Case| logits(case, level, ROWS) != logits(case, level, 37);
        assert!(differs(&fast), "{level}: many rows are computed in another form");
        assert!(!differs(&Case { reproducible: true, ..fast.clone() }), "{level}");
        assert!(!differs(&Case { numeric: Numeric::Exact, ..fast.clone() }), "{level}");
        // The same kernels for any number of rows from there on.
        let case = Case { threads: 1, ..fast.clone() };
        assert_eq!(logits(&fast, level, ROWS), logits(&case, level, ROWS), "{level}: threads");
    }
}
