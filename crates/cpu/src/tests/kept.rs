//! Weights kept in rotated form: the bits of panels that are made as weights are read, from fewer rows on; and
//! plans that keep none.

use super::case::{Case, Runs, beside_reference, check, logit_bits, map_pages, plan, usual};
use crate::skip;
use crate::{CpuDevice, CpuOptions, CpuRecording, Level, ReferenceModel};
use pianola_formats::TensorType;
use pianola_plan::{
    AllocationKind, Device, DeviceId, Fault, Numeric, Placement, Plan, PlanOptions, Probe,
    PromptWeights, Recording, Rounding, Step, WeightShape,
};
use std::sync::Arc;

/// More rows than products in rotated form have at least where panels are made, a multiple of no tile, strip or page.
const MANY: u32 = 203;

fn levels() -> impl Iterator<Item = Level> {
    [Level::AvxVnni, Level::Avx512, Level::Amx, Level::EmulatedUnit]
        .into_iter()
        .filter(|level| skip::has(level, level.available()))
}

/// Least rows in rotated form where panels are kept.
fn least_rows(level: Level) -> u32 {
    if matches!(level, Level::Amx | Level::EmulatedUnit) { 32 } else { 16 }
}

/// All that there are, but of the emulated unit, which is slow and computes all types alike.
fn types(level: Level) -> impl Iterator<Item = TensorType> {
    let some = move |ty: &TensorType| level != Level::EmulatedUnit || *ty == TensorType::Q6K;
    TensorType::ALL.iter().copied().filter(|ty| ty.is_quantized()).filter(some)
}

fn case_of(ty: TensorType) -> Case {
    Case { max_rows: 256, ..usual(ty) }
}

/// Widths that 128 divides, that 64 divides and that neither does, and ragged outputs.
fn cases_of_widths() -> impl Iterator<Item = Case> {
    [("gemma3", 320, 192), ("llama", 192, 640), ("phi3", 384, 320), ("llama", 288, 416)]
        .map(|(family, hidden, feed_forward)| Case {
            family,
            hidden,
            feed_forward,
            biases: true,
            threads: 3,
            ..case_of(TensorType::Q5_1)
        })
        .into_iter()
}

fn cpu(level: Level, threads: usize, prompt_weights: PromptWeights) -> CpuOptions {
    CpuOptions { prompt_weights, ..CpuOptions::bare(level, threads) }
}

fn keeping(case: &Case, level: Level) -> (CpuRecording, ReferenceModel) {
    let (plan, weights) = plan(case, CpuDevice::spec());
    beside_reference(plan, &weights, |plan| {
        let cpu = cpu(level, case.threads, PromptWeights::On);
        CpuRecording::new(plan, DeviceId(0), &weights, cpu, &mut |_, _| ())
    })
}

fn step(rows: u32) -> Step {
    let mut step = Step::default();
    (0..rows).for_each(|row| step.push(row % 50, 0, row, row + 1 == rows));
    step
}

/// Bits of the logits of the last 8 of `rows` rows, played `chunk` at a time.
fn logits(case: &Case, cpu: CpuOptions, (rows, chunk): (u32, u32)) -> Vec<u32> {
    let (plan, weights) = plan(case, CpuDevice::spec());
    let mut recording =
        CpuRecording::new(Arc::new(plan), DeviceId(0), &weights, cpu, &mut |_, _| ()).unwrap();
    map_pages(&mut recording);
    logit_bits(&mut recording, rows, chunk)
}

#[test]
fn kept_panels_give_the_bits_of_panels_that_are_made() {
    for level in levels() {
        for case in types(level).map(case_of).chain(cases_of_widths()) {
            let of = |prompt_weights| {
                logits(&case, cpu(level, case.threads, prompt_weights), (MANY, MANY))
            };
            let (made, kept) = (of(PromptWeights::Off), of(PromptWeights::On));
            assert!(made == kept, "{} of {} on {level}", case.ty, case.family);
        }
    }
}

/// From the least number on a row's bits do not depend on how many there are, on as few as on many threads. Attention
/// of 192 rows is another.
#[test]
fn rows_beside_a_row_change_nothing_from_the_least_number_on() {
    for level in levels() {
        let case = case_of(TensorType::Q4K);
        let of =
            |threads, chunk| logits(&case, cpu(level, threads, PromptWeights::On), (180, chunk));
        let expected = of(2, 180);
        for (threads, chunk) in [(1, 180), (2, 90), (2, 60), (3, 36)] {
            assert!(of(threads, chunk) == expected, "{level}: {chunk} rows, {threads} threads");
        }
        assert!(of(2, least_rows(level) - 1) != expected, "{level}: fewer are rounded otherwise");
    }
}

#[test]
fn every_type_matches_the_reference_from_the_least_rows_on() {
    for level in levels() {
        let least = least_rows(level);
        for case in types(level).map(case_of).chain(cases_of_widths()) {
            let (mut recording, mut reference_model) = keeping(&case, level);
            let rotated = |rows: u32| {
                let ops = 0..recording.plan().ops.len();
                let rounding = |op| recording.rounding(op, &step(rows));
                ops.filter(|&op| matches!(rounding(op), Rounding::Rotated { .. })).count()
            };
            assert_eq!(rotated(least - 1), 0);
            assert!(rotated(least) >= 2 && rotated(least) == rotated(MANY), "{}", case.family);
            let steps: [&Runs; 3] =
                [&[(0, 0, least)], &[(0, least, least + 5)], &[(0, 2 * least + 5, 97), (1, 0, 1)]];
            check(&mut recording, &mut reference_model, &steps).unwrap_or_else(|reason| {
                panic!("{} of {} on {level}: {reason}", case.ty, case.family)
            });
        }
    }
}

/// Heads of as many rows, which panels are never made for.
#[test]
fn heads_of_many_rows_match_the_reference() {
    for level in levels() {
        for family in ["llama", "gemma3"] {
            let case = Case { family, ..case_of(TensorType::Q6K) };
            let (plan, weights) = plan(&case, CpuDevice::spec());
            let options = PlanOptions { max_logit_rows: 64, ..plan.options };
            let placement = Placement::single(&plan.graph, CpuDevice::spec());
            let plan = Plan::new(plan.graph, options, placement).unwrap();
            let (mut recording, mut reference_model) = beside_reference(plan, &weights, |plan| {
                let cpu = cpu(level, 2, PromptWeights::On);
                CpuRecording::new(plan, DeviceId(0), &weights, cpu, &mut |_, _| ())
            });
            for rows in [least_rows(level) - 1, least_rows(level), 61] {
                let mut step = Step::default();
                (0..rows).for_each(|row| step.push(row % 50, 0, row, true));
                let head = (0..recording.plan().ops.len())
                    .find(|&op| recording.plan().is_head(op))
                    .unwrap();
                let rotates = matches!(recording.rounding(head, &step), Rounding::Rotated { .. });
                assert_eq!(rotates, rows >= least_rows(level), "{rows} rows on {level}");
                let report = reference_model.check_step(&mut recording, &step).unwrap();
                report.unwrap_or_else(|reason| panic!("{family} on {level}: {reason}"));
            }
        }
    }
}

#[test]
fn faults_are_noticed() {
    for level in levels() {
        let (mut recording, mut reference_model) = keeping(&case_of(TensorType::Q4_0), level);
        let rows: &Runs = &[(0, 0, 45)];
        let faults = [Fault::DroppedBlock, Fault::WrongScale, Fault::StaleRow, Fault::WrongTail];
        for fault in faults.into_iter().map(Some).chain([None]) {
            recording.set_fault(fault);
            let result = check(&mut recording, &mut reference_model, &[rows]);
            assert_eq!(result.is_err(), fault.is_some(), "{fault:?} on {level}");
        }
    }
}

/// What a device would allocate for the form.
fn form_bytes(plan: &Plan, options: CpuOptions) -> u64 {
    let all = CpuDevice { options }.allocations(plan, DeviceId(0)).unwrap();
    let forms = all.iter().filter(|allocation| allocation.kind == AllocationKind::PromptWeights);
    forms.map(|allocation| allocation.bytes).sum()
}

#[test]
fn the_form_is_listed_where_it_is_kept() {
    let level = levels().next().unwrap();
    let case = Case { family: "llama", ..case_of(TensorType::Q4_0) };
    let (made, _) = plan(&case, CpuDevice::spec());
    let bytes = |multiplied: &dyn Fn(&str) -> bool| {
        let weights = made.graph.weights.iter().filter(|spec| multiplied(&spec.name));
        let weights = weights.map(|spec| match spec.shape {
            WeightShape::Matrix { rows, columns } => rows.next_multiple_of(16) * columns,
            WeightShape::Vector { .. } => 0,
        });
        // A byte a weight, and a scale for 128.
        weights.sum::<usize>() as u64 * 33 / 32
    };
    let layers = bytes(&|name| name.starts_with("blk."));
    let of = |prompt_weights| form_bytes(&made, cpu(level, 2, prompt_weights));
    // Eight rows with logits are too few for the head's panels; no embedding is multiplied.
    assert_eq!(of(PromptWeights::On), layers);
    let mut many = made.clone();
    many.options.max_logit_rows = 64;
    let head = bytes(&|name| name == "output.weight");
    assert!(head > 0);
    assert_eq!(form_bytes(&many, cpu(level, 2, PromptWeights::On)), layers + head);
    assert_eq!(of(PromptWeights::Off), 0);
    assert_eq!(of(PromptWeights::Auto), of(PromptWeights::On), "little memory is always spent");
    // Levels without, and plans that compute all rows alike.
    assert_eq!(form_bytes(&made, cpu(Level::Avx2, 2, PromptWeights::Auto)), 0);
    let reproducible = Case { reproducible: true, ..case.clone() };
    for other in [reproducible, Case { numeric: Numeric::Exact, ..case.clone() }] {
        let (other, weights) = plan(&other, CpuDevice::spec());
        assert_eq!(form_bytes(&other, cpu(level, 2, PromptWeights::Auto)), 0);
        let asked = cpu(level, 2, PromptWeights::On);
        let device = CpuDevice { options: asked };
        assert!(device.allocations(&other, DeviceId(0)).is_err());
        let other = Arc::new(other);
        assert!(CpuRecording::new(other, DeviceId(0), &weights, asked, &mut |_, _| ()).is_err());
    }
    assert!(
        CpuDevice { options: cpu(Level::Avx2, 2, PromptWeights::On) }
            .allocations(&made, DeviceId(0))
            .is_err()
    );
}

/// Checks count what can be launched, so that the list has all of it and nothing that never is.
#[test]
fn variants_name_kept_weights() {
    for level in levels() {
        let (recording, _) = keeping(&case_of(TensorType::Q4K), level);
        let options = cpu(level, 2, PromptWeights::On);
        let plan = recording.plan();
        let listed = CpuDevice { options }.variants(plan, DeviceId(0)).unwrap();
        let used = |rows: u32| {
            let step = step(rows);
            let of_op = |op| recording.variants(op, &step).unwrap();
            (0..plan.ops.len()).flat_map(of_op).collect::<Vec<_>>()
        };
        for rows in [1, 15, 16, 31, 32, 191, MANY] {
            let kept = used(rows).iter().filter(|it| it.choices.contains("kept")).count();
            assert_eq!(kept > 0, rows >= least_rows(level), "{rows} rows on {level}");
            assert!(used(rows).iter().all(|variant| listed.contains(variant)), "{rows} rows");
        }
        let made = |choices: &str| choices.contains("rotated") && !choices.contains("kept");
        assert!(!listed.iter().any(|variant| made(&variant.choices)), "{level}");
    }
}
