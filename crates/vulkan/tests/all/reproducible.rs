//! `PlanOptions::reproducible`: the logits of a row have the same bits alone, among 31 other
//! sequences, behind any chunks of its prompt, and beside guesses.

use crate::support::case::{Case, plan, plan_of_types, usual};
use crate::support::gpu;
use pianola_formats::TensorType;
use pianola_model::RandomWeights;
use pianola_plan::{
    BUCKETS, DeviceId, KvType, Numeric, PAGE_TOKENS, Placement, Plan, PlanOptions, Recording, Step,
};
use pianola_vulkan::{VulkanDevice, VulkanOptions, VulkanRecording};
use std::sync::Arc;

const SEQUENCES: u32 = 32;
/// Tokens of the sequence that is looked at: three pages, the last one begun.
const LENGTH: u32 = 140;
/// Its last rows, whose logits are compared.
const LAST: u32 = 4;

fn record(
    options: VulkanOptions,
    (plan, weights): (Plan, RandomWeights),
    reproducible: bool,
) -> VulkanRecording {
    let plan_options = PlanOptions {
        reproducible,
        max_rows: 256,
        max_logit_rows: SEQUENCES as usize + 8,
        sequences: SEQUENCES as usize,
        context: 256,
        ..plan.options
    };
    let placement = Placement::single(&plan.graph, VulkanDevice::spec_named("vulkan"));
    let plan = Arc::new(Plan::new(plan.graph, plan_options, placement).unwrap());
    let mut recording =
        VulkanRecording::new(plan, DeviceId(0), &weights, options, &mut |_, _| ()).unwrap();
    for group in 0..recording.plan().graph.kv_groups.len() {
        let pages = 256 / PAGE_TOKENS as u32;
        for (sequence, index) in (0..SEQUENCES).flat_map(|s| (0..pages).map(move |i| (s, i))) {
            let available = recording.plan().kv_pages[group] as u32;
            let page = (sequence * pages + index) % available;
            recording.map_page(group, sequence as usize, index as usize, page);
        }
    }
    recording
}

fn token(recording: &VulkanRecording, sequence: u32, position: u32) -> u32 {
    (position * 31 + sequence * 17 + 5) % recording.plan().graph.vocabulary as u32
}

/// How the looked-at sequence is played.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Rows of its prompt in a play.
    chunk: u32,
    /// Rows of its last few in a play: one, or several as guesses are.
    last: u32,
    /// Whether the other sequences have rows in the same plays, before and behind.
    others: bool,
}

/// Bits of the logits of the last rows.
fn bits(recording: &mut VulkanRecording, way: Way) -> Vec<Vec<u32>> {
    let looked_at = 9;
    let push = |recording: &VulkanRecording, step: &mut Step, sequence, position, logits| {
        let token = token(recording, sequence, position);
        step.push(token, sequence, position, logits);
    };
    let mut found = Vec::new();
    let mut position = 0;
    let mut plays = 0;
    while position < LENGTH {
        let is_last = position >= LENGTH - LAST;
        let end =
            if is_last { position + way.last } else { (position + way.chunk).min(LENGTH - LAST) };
        let mut step = Step::default();
        for sequence in 0..SEQUENCES {
            if sequence == looked_at {
                (position..end).for_each(|at| push(recording, &mut step, sequence, at, is_last));
            } else if way.others && is_last {
                push(recording, &mut step, sequence, plays, true);
            } else if way.others && sequence % 5 == 0 && end - position < 64 {
                push(recording, &mut step, sequence, 100 + plays, false);
            }
        }
        recording.play(&step).unwrap();
        for (index, &row) in step.logits.iter().enumerate() {
            if step.rows[row as usize].sequence == looked_at {
                let row = recording.logits(0, index);
                assert!(row.iter().all(|logit| logit.is_finite()));
                found.push(row.iter().map(|logit| logit.to_bits()).collect());
            }
        }
        plays += 1;
        position = end;
    }
    found
}

const WAYS: [Way; 3] = [
    Way { chunk: 256, last: 1, others: false },
    Way { chunk: 37, last: 4, others: false },
    Way { chunk: 11, last: 2, others: true },
];

/// How many of the ways give other bits than the first.
fn differing(recording: &mut VulkanRecording) -> usize {
    let found = WAYS.map(|way| bits(recording, way));
    found.iter().filter(|bits| **bits != found[0]).count()
}

fn cases() -> Vec<(&'static str, (Plan, RandomWeights))> {
    use TensorType::{F16, Q4_0, Q4K, Q6K};
    let spec = || VulkanDevice::spec_named("vulkan");
    let other = |name: &str| if name.contains("attn_v") { Q6K } else { Q4K };
    let gate = |name: &str| if name.contains("ffn_down") { F16 } else { Q4_0 };
    let bytes = Case { kv_type: Some(KvType::Q8), window: Some(100), ..usual(Q4_0) };
    let exact = Case { family: "qwen3", window: None, numeric: Numeric::Exact, ..usual(Q4_0) };
    vec![
        ("types mixed", plan_of_types(&usual(Q4K), spec(), other)),
        ("integers and floats", plan_of_types(&usual(Q4_0), spec(), gate)),
        ("keys and values of bytes", plan(&bytes, spec())),
        ("exact", plan(&exact, spec())),
    ]
}

/// Two types in one kernel. The other cases take a software driver minutes.
#[test]
fn logits_are_the_same_however_they_are_played() {
    let (name, made) = cases().swap_remove(0);
    let mut recording = record(gpu::options(&gpu::open()), made, true);
    assert_eq!(differing(&mut recording), 0, "{name}");
}

#[test]
#[ignore = "takes minutes: scripts/acceptance"]
fn logits_of_other_types_are_the_same_however_they_are_played() {
    let gpu = gpu::open();
    for (name, made) in cases().split_off(1) {
        let mut recording = record(gpu::options(&gpu), made, true);
        assert_eq!(differing(&mut recording), 0, "{name}");
    }
    // A large card splits attention into more parts, and products otherwise.
    let options = VulkanOptions { parallelism: Some(1 << 17), ..gpu::options(&gpu) };
    let (name, made) = cases().swap_remove(2);
    assert_eq!(differing(&mut record(options, made, true)), 0, "{name}, as on a large card");
}

/// What the tests above would find if kernels were chosen by the number of rows.
#[test]
#[ignore = "takes a minute: scripts/acceptance"]
fn otherwise_they_differ() {
    let gpu = gpu::open();
    let (_, made) = cases().swap_remove(3);
    assert_ne!(differing(&mut record(gpu::options(&gpu), made, false)), 0);
}

#[test]
fn every_row_count_runs_the_same_pipelines() {
    let gpu = gpu::open();
    for parallelism in [None, Some(1 << 14), Some(1 << 17)] {
        let options = VulkanOptions { parallelism, ..gpu::options(&gpu) };
        for (name, made) in cases() {
            let recording = record(options.clone(), made, true);
            let pipelines = |rows: usize, logits: usize| {
                let launches = recording.launches(rows, logits).unwrap();
                let pipeline =
                    |launch: pianola_vulkan::OpLaunch| (launch.op, launch.kernel, launch.constants);
                launches.into_iter().map(pipeline).collect::<Vec<_>>()
            };
            let one = pipelines(1, 1);
            for rows in BUCKETS.into_iter().filter(|&rows| rows <= 256) {
                assert_eq!(one, pipelines(rows, rows.min(40)), "{name}, {rows} rows");
                assert_eq!(one, pipelines(rows, 1), "{name}, {rows} rows");
            }
        }
    }
}
