//! A decoded token allocates nothing: counted by the allocator itself.

use pianola_engine::{Engine, LoadOptions, Wanted};
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

#[test]
fn decoding_allocates_nothing() {
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
