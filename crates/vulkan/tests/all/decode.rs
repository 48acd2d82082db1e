//! Single rows by kernels that wait for one another, beside dispatches with barriers: on Mesa's software driver. It runs
//! one dispatch after another. Debian 12's (22.3) computes chained attention wrong, so that `scripts/acceptance` runs
//! these tests on a newer one.

use crate::support::case::{Case, map_pages, plan, plan_of_types, usual};
use crate::support::gpu;
use pianola_formats::TensorType;
use pianola_model::RandomWeights;
use pianola_plan::{DeviceId, DeviceSampler, Numeric, Plan, Recording, SampleRow, Sampling, Step};
use pianola_vulkan::{ChainTrial, Decode, Gpu, VulkanDevice, VulkanOptions, VulkanRecording};
use std::sync::Arc;

/// Workgroups that run at once wherever the tests run.
const WORKGROUPS: u32 = 2;

type Made = (Plan, RandomWeights);

fn record(gpu: &Arc<Gpu>, made: &Made, decode: Decode, chain: ChainTrial) -> VulkanRecording {
    let options = VulkanOptions { units: Some(WORKGROUPS), decode, chain, ..gpu::options(gpu) };
    let plan = Arc::new(made.0.clone());
    let mut recording =
        VulkanRecording::new(plan, DeviceId(0), &made.1, options, &mut |_, _| ()).unwrap();
    map_pages(&mut recording);
    recording
}

fn record_dispatches(gpu: &Arc<Gpu>, made: &Made) -> VulkanRecording {
    record(gpu, made, Decode::Dispatches, ChainTrial::default())
}

fn step(token: u32, sequence: u32, position: u32, logits: bool) -> Step {
    let mut step = Step::default();
    step.push(token, sequence, position, logits);
    step
}

/// Logits of tokens of two sequences in turn: one begins, the other passes from one page to the next.
fn generate(recording: &mut VulkanRecording) -> Vec<Vec<f32>> {
    for position in 0..61 {
        recording.play(&step((7 * position + 3) % 100, 0, position, false)).unwrap();
    }
    let mut found = Vec::new();
    for index in 0..8 {
        for (sequence, position) in [(0, 61 + index), (1, index)] {
            recording.play(&step((31 * index + 5) % 100, sequence, position, true)).unwrap();
            found.push(recording.logits(0, 0).to_vec());
        }
    }
    found
}

/// Fails where logits differ in a bit.
fn assert_same(found: &[Vec<f32>], expected: &[Vec<f32>], name: &str) {
    assert!(found == expected, "{name}: apart by {:e}", difference(expected, found));
}

/// The largest difference, relative to the largest logit of a row.
fn difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    let rows = a.iter().zip(b).map(|(a, b)| {
        let largest = a.iter().fold(0f32, |most, x| most.max(x.abs()));
        let apart = a.iter().zip(b).map(|(a, b)| (a - b).abs());
        // What is no number is infinitely far away.
        apart.map(|x| if x.is_nan() { f32::INFINITY } else { x }).fold(0f32, f32::max) / largest
    });
    rows.fold(0f32, f32::max)
}

fn llama(ty: TensorType) -> Case {
    Case {
        family: "llama",
        hidden: 256,
        kv_heads: 1,
        group: 4,
        window: None,
        biases: true,
        ..usual(ty)
    }
}

/// Three layouts of Gemma 3's and Llama's shape: head norms and norms of what is added, a window; biases; types that
/// differ between weights, between layers and in a gate.
fn made() -> Vec<(&'static str, Made)> {
    use TensorType::{Q4_0, Q4K, Q6K, Q8_0};
    let spec = || VulkanDevice::spec_named("vulkan");
    let mixed = |name: &str| {
        let differs = name.contains("attn_v") || name.contains("blk.1.ffn_down");
        if differs { Q6K } else { Q4K }
    };
    vec![
        ("gemma3 q4_0", plan(&usual(Q4_0), spec())),
        ("llama q8_0", plan(&llama(Q8_0), spec())),
        (
            "llama q4_k and q6_k",
            plan_of_types(
                &Case { head_dim: 128, kv_heads: 2, group: 1, ..llama(Q4K) },
                spec(),
                mixed,
            ),
        ),
    ]
}

/// Kernels that wait for a workgroup that never comes.
const ABSENT: ChainTrial = ChainTrial { absent: true, most_asked: Some(2000) };

#[test]
#[ignore = "needs a newer software driver than Debian 12's: scripts/acceptance"]
fn chained_kernels_give_the_logits_of_those_with_barriers_bit_by_bit() {
    let gpu = gpu::open();
    for (name, made) in made() {
        let mut dispatches = record_dispatches(&gpu, &made);
        assert!(!dispatches.is_chained());
        let expected = generate(&mut dispatches);
        let mut chained = record(&gpu, &made, Decode::Chained, ChainTrial::default());
        assert!(chained.is_chained());
        assert_same(&generate(&mut chained), &expected, name);
        assert_eq!(chained.take_notice(), None);
        // Again by the same recording, and with barriers by the same recording.
        assert_same(&generate(&mut chained), &expected, name);
        assert!(chained.set_chained(false).unwrap() && !chained.is_chained());
        assert_same(&generate(&mut chained), &expected, name);
    }
}

#[test]
#[ignore = "needs a newer software driver than Debian 12's: scripts/acceptance"]
fn a_chain_that_is_given_up_is_played_again_with_barriers() {
    let gpu = gpu::open();
    let (_, made) = made().remove(0);
    let mut dispatches = record_dispatches(&gpu, &made);
    let expected = generate(&mut dispatches);
    let mut chained = record(&gpu, &made, Decode::Chained, ABSENT);
    assert!(chained.is_chained());
    assert_same(&generate(&mut chained), &expected, "again with barriers");
    let notice = chained.take_notice().expect("told once");
    assert!(notice.contains("by dispatches"), "{notice}");
    assert_eq!(chained.take_notice(), None);
    assert!(!chained.is_chained() && !chained.set_chained(true).unwrap());
}

/// The same where the device samples, several tokens in one submission.
#[test]
#[ignore = "needs a newer software driver than Debian 12's: scripts/acceptance"]
fn tokens_are_sampled_alike() {
    let gpu = gpu::open();
    let (_, made) = made().remove(0);
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    let sample = |recording: &mut VulkanRecording| {
        let uniforms = [0.5; 6];
        let row = SampleRow { history: &[5], ..SampleRow::new(&sampling, &uniforms) };
        recording.play_sampling(&step(5, 0, 0, true), &[Some(row)]).unwrap();
        recording.sampled(0, 0).expect("sampled here").to_vec()
    };
    let mut dispatches = record_dispatches(&gpu, &made);
    let expected = sample(&mut dispatches);
    assert_eq!(expected.len(), 6);
    for (trial, notices) in [(ChainTrial::default(), 0), (ABSENT, 1)] {
        let mut chained = record(&gpu, &made, Decode::Chained, trial);
        assert_eq!(sample(&mut chained), expected);
        assert_eq!(sample(&mut chained), expected);
        assert_eq!(usize::from(chained.take_notice().is_some()), notices);
    }
}

/// `auto` chains where units are counted, in fast mode.
#[test]
fn single_rows_are_chained_by_themselves() {
    let gpu = gpu::open();
    let spec = || VulkanDevice::spec_named("vulkan");
    let fast = plan(&usual(TensorType::Q8_0), spec());
    let exact = plan(&Case { numeric: Numeric::Exact, ..usual(TensorType::Q8_0) }, spec());
    for (made, units, chained) in [(&fast, 2, true), (&fast, 0, false), (&exact, 2, false)] {
        let options = VulkanOptions { units: Some(units), ..gpu::options(&gpu) };
        let plan = Arc::new(made.0.clone());
        let chosen =
            VulkanRecording::new(plan, DeviceId(0), &made.1, options, &mut |_, _| ()).unwrap();
        assert_eq!(chosen.is_chained(), chained);
    }
}

/// What cannot be played so is refused by name, with the way out.
#[test]
fn what_does_not_fit_is_refused_in_words() {
    let gpu = gpu::open();
    let spec = || VulkanDevice::spec_named("vulkan");
    let fast = plan(&usual(TensorType::Q8_0), spec());
    let exact = plan(&Case { numeric: Numeric::Exact, ..usual(TensorType::Q8_0) }, spec());
    for (made, units) in [(&fast, None), (&exact, Some(2))] {
        let options = VulkanOptions { units, decode: Decode::Chained, ..gpu::options(&gpu) };
        let plan = Arc::new(made.0.clone());
        let refused = VulkanRecording::new(plan, DeviceId(0), &made.1, options, &mut |_, _| ());
        let message = refused.err().expect("refused").to_string();
        assert!(message.contains("cards that count their units"), "{message}");
        assert!(message.contains("--decode dispatches"), "{message}");
    }
}
