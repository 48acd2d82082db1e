//! An allocator that counts the bytes that a thread holds, so that readers of files can be kept from taking
//! more memory than a file's size justifies.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    // Of this thread only, because tests run side by side.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, counting the bytes that this thread holds.
struct Counting;

impl Counting {
    fn add(bytes: isize) {
        // Fails only while a thread ends, when nothing is measured.
        let _ = LIVE.try_with(|live| {
            live.set(live.get() + bytes);
            PEAK.with(|peak| peak.set(peak.get().max(live.get())));
        });
    }
}

#[allow(unsafe_code)] // There is no other way to count allocations.
// SAFETY: every call goes unchanged to the system's allocator; the counters are plain cells of
// the thread, which neither allocate nor have a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::add(layout.size() as isize);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Counting::add(-(layout.size() as isize));
        // SAFETY: `pointer` came from `System.alloc` with this layout, as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs a reader, and fails if it held more memory at once than `per_byte` for each byte of the file and
/// `fixed` bytes besides.
pub fn measured<T>(
    file_bytes: usize,
    per_byte: usize,
    fixed: usize,
    read: impl FnOnce() -> T,
) -> T {
    let before = LIVE.get();
    PEAK.set(before);
    let result = read();
    let held = (PEAK.get() - before) as usize;
    let allowed = fixed + file_bytes * per_byte;
    assert!(held <= allowed, "{held} bytes held while reading a file of {file_bytes}");
    result
}
