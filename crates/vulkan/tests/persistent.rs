//! All products between two attentions of a single row in one dispatch, beside the five dispatches a layer that otherwise
//! play it: on Mesa's software driver, which runs as many workgroups at once as it has threads. Debian 12's (22.3) crashes
//! in this kernel, so that `scripts/acceptance` runs these on a newer one.

#[path = "../../../tests/support/case.rs"]
mod case;
#[path = "../../../tests/support/gpu.rs"]
mod gpu;

use case::{Case, map_pages, plan, plan_of_types, usual};
use pianola_formats::TensorType;
use pianola_model::RandomWeights;
use pianola_plan::{DeviceId, DeviceSampler, Numeric, Plan, Recording, SampleRow, Sampling, Step};
use pianola_vulkan::{Decode, Gpu, PersistentTrial, VulkanDevice, VulkanOptions, VulkanRecording};
use std::sync::Arc;

/// Workgroups that run at once wherever the tests run.
const WORKGROUPS: u32 = 2;

type Made = (Plan, RandomWeights);

fn record(gpu: &Arc<Gpu>, made: &Made, decode: Decode, trial: PersistentTrial) -> VulkanRecording {
    let persistent = PersistentTrial { resident: true, ..trial };
    let options =
        VulkanOptions { units: Some(WORKGROUPS), decode, persistent, ..gpu::options(gpu) };
    let plan = Arc::new(made.0.clone());
    let mut recording =
        VulkanRecording::new(plan, DeviceId(0), &made.1, options, &mut |_, _| ()).unwrap();
    map_pages(&mut recording);
    recording
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

#[test]
#[ignore = "needs a newer software driver than Debian 12's: scripts/acceptance"]
fn one_dispatch_gives_the_logits_of_many_bit_by_bit() {
    let gpu = gpu::open();
    for (name, made) in made() {
        let mut dispatches = record(&gpu, &made, Decode::Dispatches, PersistentTrial::default());
        assert_eq!(dispatches.persistent_fit(), None);
        let expected = generate(&mut dispatches);
        let mut persistent = record(&gpu, &made, Decode::Persistent, PersistentTrial::default());
        assert_eq!(persistent.persistent_fit().map(|fit| fit.0), Some(WORKGROUPS));
        let found = generate(&mut persistent);
        assert_eq!(persistent.take_notice(), None);
        println!("{name}: apart by {:e}", difference(&expected, &found));
        assert_eq!(found, expected, "{name}");
        // Again by the same recording, and by dispatches of the same recording.
        assert_eq!(generate(&mut persistent), expected, "{name}");
        assert!(persistent.set_persistent(false).unwrap());
        assert_eq!(generate(&mut persistent), expected, "{name}");
    }
}

#[test]
#[ignore = "needs a newer software driver than Debian 12's: scripts/acceptance"]
fn fewer_weights_ahead_change_little() {
    let gpu = gpu::open();
    let (name, made) = made().remove(0);
    let mut dispatches = record(&gpu, &made, Decode::Dispatches, PersistentTrial::default());
    let expected = generate(&mut dispatches);
    let trial = PersistentTrial { words: Some(20), ..PersistentTrial::default() };
    let mut persistent = record(&gpu, &made, Decode::Persistent, trial);
    let found = generate(&mut persistent);
    let apart = difference(&expected, &found);
    println!("{name}: apart by {apart:e}");
    // Roundings of sums move few codes of the following input by one.
    assert!(apart < 1e-2, "{apart}");
}

/// Workgroups that give up: one of them never comes.
#[test]
#[ignore = "needs a newer software driver than Debian 12's: scripts/acceptance"]
fn a_step_that_is_given_up_is_played_again_by_dispatches() {
    let gpu = gpu::open();
    let (_, made) = made().remove(0);
    let mut dispatches = record(&gpu, &made, Decode::Dispatches, PersistentTrial::default());
    let expected = generate(&mut dispatches);
    let trial =
        PersistentTrial { absent: Some(1), spins: Some(2000), ..PersistentTrial::default() };
    let mut persistent = record(&gpu, &made, Decode::Persistent, trial);
    assert!(persistent.persistent_fit().is_some());
    assert_eq!(generate(&mut persistent), expected);
    let notice = persistent.take_notice().expect("told once");
    assert!(notice.contains("by dispatches"), "{notice}");
    assert_eq!(persistent.take_notice(), None);
    assert_eq!(persistent.persistent_fit(), None);
    assert!(!persistent.set_persistent(true).unwrap());
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
    let mut dispatches = record(&gpu, &made, Decode::Dispatches, PersistentTrial::default());
    let expected = sample(&mut dispatches);
    assert_eq!(expected.len(), 6);
    let whole = PersistentTrial::default();
    let absent = PersistentTrial { absent: Some(0), spins: Some(2000), ..whole };
    for (trial, notices) in [(whole, 0), (absent, 1)] {
        let mut persistent = record(&gpu, &made, Decode::Persistent, trial);
        assert_eq!(sample(&mut persistent), expected);
        assert_eq!(sample(&mut persistent), expected);
        assert_eq!(usize::from(persistent.take_notice().is_some()), notices);
    }
}

/// `auto` plays narrow rows so, where units are counted, and wide ones not.
#[test]
#[ignore = "needs a newer software driver than Debian 12's: scripts/acceptance"]
fn narrow_rows_are_played_so_by_themselves() {
    let gpu = gpu::open();
    let spec = || VulkanDevice::spec_named("vulkan");
    let narrow = plan(&usual(TensorType::Q8_0), spec());
    let wide = plan(&Case { hidden: 2304, ..usual(TensorType::Q8_0) }, spec());
    for (made, expected) in [(narrow, Some(WORKGROUPS)), (wide, None)] {
        let chosen = record(&gpu, &made, Decode::Auto, PersistentTrial::default());
        assert_eq!(chosen.persistent_fit().map(|fit| fit.0), expected);
    }
}

/// What cannot be played so is refused by name, with the way out.
#[test]
fn what_does_not_fit_is_refused_in_words() {
    let gpu = gpu::open();
    let spec = || VulkanDevice::spec_named("vulkan");
    let refusal = |made: &Made, units: Option<u32>| {
        let options = VulkanOptions { units, decode: Decode::Persistent, ..gpu::options(&gpu) };
        let plan = Arc::new(made.0.clone());
        let refused = VulkanRecording::new(plan, DeviceId(0), &made.1, options, &mut |_, _| ());
        refused.err().expect("refused").to_string()
    };
    let fast = plan(&usual(TensorType::Q8_0), spec());
    let message = refusal(&fast, None);
    assert!(message.contains("does not count the device's units"), "{message}");
    assert!(message.contains("--decode dispatches"), "{message}");
    let exact = plan(&Case { numeric: Numeric::Exact, ..usual(TensorType::Q8_0) }, spec());
    let message = refusal(&exact, Some(2));
    assert!(message.contains("exact"), "{message}");
    let message = refusal(&fast, Some(4096));
    assert!(message.contains("too small to give 4096 workgroups"), "{message}");
}
