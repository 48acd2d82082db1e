//! A decoded token allocates nothing: counted by the allocator itself.

use pianola_cpu::CpuOptions;
use pianola_engine::sampler::Sampling;
use pianola_engine::{Constraint, Engine, Event, LoadOptions, LogitRows, Request};
use pianola_formats::TensorType;
use pianola_plan::{DeviceId, DeviceSampler, SampleRow, Step};
use pianola_vulkan::{VulkanDevice, VulkanRecording};
use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards to the system's allocator, counting on the way.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[path = "../../../tests/support/case.rs"]
mod case;
#[path = "../../../tests/support/gpu.rs"]
mod gpu;
#[path = "../../../tests/support/tiny.rs"]
mod tiny;
#[path = "../../../tests/support/tiny_model.rs"]
mod tiny_model;

/// One test for all, because whatever runs beside it would be counted.
#[test]
fn decoding_allocates_nothing() {
    on_the_processor();
    on_a_gpu();
    for_several_sequences_on_a_gpu();
    in_lanes(false);
    in_lanes(true);
}

fn on_a_gpu() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gemma3");
    let gpu = gpu::open();
    let options = LoadOptions {
        devices: LoadOptions::devices(vec![gpu::options(&gpu)], CpuOptions::default()),
        ..LoadOptions::default()
    };
    let mut engine = Engine::load(&folder, options, &mut |_, _| ()).unwrap();
    engine.feed(&[3; 40], 40, LogitRows::Last, &mut |_, _| ()).unwrap();
    let mut sum = 0.0;
    // The first records what the others play.
    engine.feed(&[0], 1, LogitRows::Last, &mut |_, logits| sum += logits[0]).unwrap();
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    for token in 0..12 {
        engine.feed(&[token], 1, LogitRows::Last, &mut |_, logits| sum += logits[0]).unwrap();
    }
    assert_eq!(ALLOCATIONS.load(Ordering::SeqCst) - before, 0, "{sum}");
}

/// A constraint that allows every token.
struct Anything;

impl Constraint for Anything {
    fn fill_mask(&mut self, mask: &mut [u32]) {
        mask.fill(u32::MAX);
    }

    fn advance(&mut self, _: u32) -> bool {
        true
    }

    fn rollback(&mut self, _: usize) {}

    fn is_complete(&self) -> bool {
        false
    }

    fn clone_box(&self) -> Box<dyn Constraint> {
        Box::new(Anything)
    }
}

/// Requests that generate beside one another, on either device; on the processor also with log
/// probabilities and under a constraint.
fn in_lanes(on_gpu: bool) {
    let gpu = on_gpu.then(gpu::open);
    let gpu = gpu.as_ref().map(gpu::options);
    // One token a step: with the last token of a page the prefix tree grows, which may allocate.
    let tokens_per_submit = Some(1);
    let devices = tiny::one_thread(gpu);
    let options = LoadOptions { devices, lanes: 4, tokens_per_submit, ..LoadOptions::default() };
    let mut engine = tiny::tiny_engine(options).unwrap();
    let tokens = Arc::new(AtomicUsize::new(0));
    for lane in 0..4 {
        // From the best few, and from the whole vocabulary.
        let top_k = 7 * (lane % 2);
        let constraint: Option<Box<dyn Constraint>> =
            if lane == 2 && !on_gpu { Some(Box::new(Anything)) } else { None };
        let request = Request {
            max_tokens: Some(500),
            sampling: Sampling { top_k, ..Sampling::default() },
            seed: Some(5),
            logprobs: (lane == 3 && !on_gpu).then_some(4),
            constraint,
            ..Request::new(vec![3; 20])
        };
        assert_eq!(engine.sampling_unsupported(&request).is_none(), on_gpu);
        let tokens = tokens.clone();
        let sink = Box::new(move |event: Event<'_>| {
            let is_token = matches!(event, Event::Token(token) if !token.text.is_empty());
            tokens.fetch_add(usize::from(is_token), Ordering::SeqCst);
            ControlFlow::Continue(())
        });
        engine.submit_to(request, sink).unwrap();
    }
    // Prompts, and the first tokens, with which lists come to their lengths.
    (0..8).for_each(|_| engine.step().unwrap());
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    (0..4).for_each(|_| engine.step().unwrap());
    assert_eq!(ALLOCATIONS.load(Ordering::SeqCst) - before, 0);
    let tokens = tokens.load(Ordering::SeqCst);
    assert!(tokens >= 11 * 4, "{tokens} tokens");
}

fn for_several_sequences_on_a_gpu() {
    let (plan, weights) =
        case::plan(&case::usual(TensorType::Q8_0), VulkanDevice::spec_named("vulkan"));
    let options = gpu::options(&gpu::open());
    let mut recording =
        VulkanRecording::new(Arc::new(plan), DeviceId(0), &weights, options, &mut |_, _| ())
            .unwrap();
    case::map_pages(&mut recording);
    let sampling = Sampling { top_k: 5, logit_bias: vec![(3, 1.0)], ..Sampling::default() };
    let best =
        SampleRow { stop_tokens: &[9], history: &[1, 2], ..SampleRow::new(&sampling, &[0.5]) };
    // Of the whole vocabulary, with everything that a device reports.
    let wide = Sampling { top_p: 0.9, frequency_penalty: 0.5, ..Sampling::default() };
    let tokens: Vec<u32> = (0..300).map(|token| token % 50).collect();
    let whole = SampleRow {
        history: &tokens[..200],
        top_logprobs: Some(5),
        ..SampleRow::new(&wide, &[0.5])
    };
    let several = [best, whole].map(|row| Some(SampleRow { uniforms: &[0.5; 3], ..row }));
    let mut step = Step::default();
    let mut round = |position: u32| {
        // Several plays of two sequences, then three rows of one of them beside a prompt's.
        step.clear();
        (0..2).for_each(|sequence| step.push(1, sequence, position, true));
        recording.play_sampling(&step, &several).unwrap();
        assert!((0..2).all(|lane| recording.sampled(0, lane).is_some()));
        assert!(recording.logprobs(0, 1, 0).is_some_and(|found| found.top.len() == 5));
        step.clear();
        (0..3).for_each(|row| step.push(2, 0, position + row, true));
        (0..8).for_each(|row| step.push(2, 1, position + row, false));
        // The history grows, and a row is left to the host.
        let longer = SampleRow { history: &tokens[..200 + position as usize], ..whole };
        recording.play_sampling(&step, &[Some(best), Some(longer), None]).unwrap();
    };
    round(0);
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    (1..12).for_each(|position| round(8 * position));
    assert_eq!(ALLOCATIONS.load(Ordering::SeqCst) - before, 0);
}

fn on_the_processor() {
    for case in ["gemma3", "llama-bias"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case);
        let mut engine = Engine::load(&folder, LoadOptions::default(), &mut |_, _| ()).unwrap();
        let mut largest = 0.0;
        engine.feed(&[3; 40], 40, LogitRows::Last, &mut |_, _| ()).unwrap();
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        assert!(before > 0, "the allocator is not counting");
        // Across the border of a page.
        for token in 0..60 {
            engine
                .feed(&[token], 1, LogitRows::Last, &mut |_, logits| largest += logits[0])
                .unwrap();
        }
        assert_eq!(ALLOCATIONS.load(Ordering::SeqCst) - before, 0, "{case}, {largest}");
    }
}
