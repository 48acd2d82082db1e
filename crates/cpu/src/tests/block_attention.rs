//! Attention of many rows in bf16, where the processor has it: every type of keys and values, ragged heads,
//! windows and several sequences against the reference, and faults that are noticed in it.

use super::case::{Case, Runs, beside_reference, check, plan, usual};
use crate::skip;
use crate::{CpuDevice, CpuOptions, CpuRecording, Level, ReferenceModel};
use pianola_formats::TensorType;
use pianola_plan::{DeviceId, Fault, KvType, Probe, Recording, Rounding, Step};

/// More than attention in bf16 has at least, a multiple of no tile, strip or page.
const ROWS: u32 = 203;

fn many_rows(head_dim: usize, kv_type: KvType) -> Case {
    let usual = usual(TensorType::Q8_0);
    Case { max_rows: 256, head_dim, kv_type: Some(kv_type), hidden: 128, ..usual }
}

fn record(case: &Case) -> (CpuRecording, ReferenceModel) {
    let (plan, weights) = plan(case, CpuDevice::spec());
    let cpu = CpuOptions::bare(Level::best(), case.threads);
    beside_reference(plan, &weights, |plan| {
        CpuRecording::new(plan, DeviceId(0), &weights, cpu, &mut |_, _| ())
    })
}

/// Kernels of a step that attend in bf16.
fn in_bf16(recording: &CpuRecording, rows: u32) -> usize {
    let mut step = Step::default();
    (0..rows).for_each(|row| step.push(row % 50, 0, row, row + 1 == rows));
    let is_bf16 = |op: &usize| recording.rounding(*op, &step) == Rounding::Bf16;
    (0..recording.plan().ops.len()).filter(is_bf16).count()
}

#[test]
fn heads_and_types_match_the_reference() {
    for ty in KvType::ALL {
        for head_dim in [64, 40, 24] {
            let (mut recording, mut reference_model) = record(&many_rows(head_dim, ty));
            if in_bf16(&recording, ROWS) == 0 {
                skip::skip("no dot products of bf16 here");
                return;
            }
            assert_eq!(in_bf16(&recording, 100), 0);
            let steps: [&Runs; 2] = [&[(0, 0, ROWS)], &[(0, ROWS, 199), (1, 0, 1)]];
            let report = check(&mut recording, &mut reference_model, &steps)
                .unwrap_or_else(|reason| panic!("{ty}, heads of {head_dim}: {reason}"));
            println!(
                "{ty}, {head_dim}: worst error {:.0} % of its bound",
                100.0 * report.worst_share
            );
        }
    }
}

#[test]
fn capped_scores_match_the_reference() {
    for (window, caps) in [(Some(20), true), (Some(150), true), (None, true), (None, false)] {
        let case = Case { window, caps, ..many_rows(64, KvType::F16) };
        let (mut recording, mut reference_model) = record(&case);
        let rows: &Runs = &[(0, 0, ROWS)];
        check(&mut recording, &mut reference_model, &[rows])
            .unwrap_or_else(|reason| panic!("{window:?}, caps {caps}: {reason}"));
    }
}

#[test]
fn faults_of_attention_are_noticed() {
    let (mut recording, mut reference_model) = record(&many_rows(64, KvType::F16));
    let rows: &Runs = &[(0, 0, ROWS)];
    let faults = [
        Fault::StaleKey,
        Fault::WrongPosition,
        Fault::WrongPage,
        Fault::LostSplit,
        Fault::LongWindow,
    ];
    for fault in faults.into_iter().map(Some).chain([None]) {
        recording.set_fault(fault);
        let result = check(&mut recording, &mut reference_model, &[rows]);
        assert_eq!(result.is_err(), fault.is_some(), "{fault:?}");
    }
}

#[test]
fn reproducible_plans_attend_in_f32() {
    let case = Case { reproducible: true, ..many_rows(64, KvType::F16) };
    assert_eq!(in_bf16(&record(&case).0, ROWS), 0);
}
