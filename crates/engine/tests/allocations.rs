//! A decoded token allocates nothing: counted by the allocator itself.

use pianola_engine::{Engine, LoadOptions, Wanted, sampler::Sampling};
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
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

#[path = "../../../tests/support/gpu.rs"]
mod gpu;

/// One test for all, because whatever runs beside it would be counted.
#[test]
fn decoding_allocates_nothing() {
    on_the_processor();
    on_a_gpu();
}

fn on_a_gpu() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gemma3");
    let gpu = gpu::open();
    let options = LoadOptions { gpu: Some(gpu::options(&gpu)), ..LoadOptions::default() };
    let mut engine = Engine::load(&folder, options, &mut |_, _| ()).unwrap();
    engine.feed(&[3; 40], 40, Wanted::Last, &mut |_, _| ()).unwrap();
    let greedy = Sampling::greedy();
    assert_eq!(engine.cannot_choose(&greedy, &[]), None);
    let mut sum = 0.0;
    // The first of each records what the others play.
    for token in 0..2 {
        engine.feed(&[token], 1, Wanted::Last, &mut |_, logits| sum += logits[0]).unwrap();
        engine.feed_choosing(token, 3, &greedy, &[]).unwrap();
    }
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    for token in 0..12 {
        engine.feed(&[token], 1, Wanted::Last, &mut |_, logits| sum += logits[0]).unwrap();
        engine.feed_choosing(token, 3, &greedy, &[]).unwrap();
    }
    assert_eq!(ALLOCATIONS.load(Ordering::SeqCst) - before, 0, "{sum}");
}

fn on_the_processor() {
    for case in ["gemma3", "llama-bias"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case);
        let mut engine = Engine::load(&folder, LoadOptions::default(), &mut |_, _| ()).unwrap();
        let mut largest = 0.0;
        engine.feed(&[3; 40], 40, Wanted::Last, &mut |_, _| ()).unwrap();
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        assert!(before > 0, "the allocator is not counting");
        // Across the border of a page.
        for token in 0..60 {
            engine.feed(&[token], 1, Wanted::Last, &mut |_, logits| largest += logits[0]).unwrap();
        }
        assert_eq!(ALLOCATIONS.load(Ordering::SeqCst) - before, 0, "{case}, {largest}");
    }
}
