//! The step as kernels read it; mirrors `StepBuffer` in `shaders/include/common.glsl`.

use pianola_plan::{Row, Step};

/// Most rows of a step: the largest bucket.
pub(crate) const MAX_ROWS: usize = 512;
/// Bytes of the header: row count, logit count and padding.
const HEADER: usize = 16;
/// Bytes of a step.
pub(crate) const STEP_BYTES: u64 = (HEADER + MAX_ROWS * 16 + MAX_ROWS * 4) as u64;

/// Writes `step` to where kernels will read it.
///
/// # Safety
/// `start` leads to [`STEP_BYTES`] bytes, aligned to 4, that nothing else reads or writes now.
///
/// # Panics
/// If the step has more rows than a bucket holds.
pub(crate) unsafe fn write_step(start: *mut u8, step: &Step) {
    assert!(step.rows.len() <= MAX_ROWS && step.logits.len() <= MAX_ROWS);
    let words = start.cast::<u32>();
    // SAFETY: by the caller's promise; rows are four words each, and both lists fit.
    unsafe {
        words.write(step.rows.len() as u32);
        words.add(1).write(step.logits.len() as u32);
        words.add(2).write(0);
        words.add(3).write(0);
        let rows = start.add(HEADER).cast::<Row>();
        std::ptr::copy_nonoverlapping(step.rows.as_ptr(), rows, step.rows.len());
        let logits = start.add(HEADER + MAX_ROWS * 16).cast::<u32>();
        std::ptr::copy_nonoverlapping(step.logits.as_ptr(), logits, step.logits.len());
    }
}
