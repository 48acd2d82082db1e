//! The step as kernels read it; mirrors `StepBuffer` in `shaders/include/common.glsl`.

use pianola_plan::{Row, Step};
use std::ops::Range;

/// Most rows of a step: the largest bucket.
pub(crate) const MAX_ROWS: usize = 512;
/// Most rows of a block: attention on matrix units serves one with one workgroup a head, or some.
pub(crate) const BLOCK_ROWS: usize = 64;
/// Bytes of the header: counts of rows, logits and blocks, and padding.
const HEADER: usize = 16;
/// Where the lists begin: rows, rows with logits, blocks.
const LOGITS: usize = HEADER + MAX_ROWS * 16;
const BLOCKS: usize = LOGITS + MAX_ROWS * 4;
/// Bytes of a step.
pub(crate) const STEP_BYTES: u64 = (BLOCKS + MAX_ROWS * 8) as u64;

/// Rows that follow one another in one sequence.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Block {
    first_row: u32,
    row_count: u32,
}

/// All rows of a step in blocks.
fn blocks(step: &Step) -> impl Iterator<Item = Block> + '_ {
    step.runs().flat_map(|Range { start, end }| {
        (start..end).step_by(BLOCK_ROWS).map(move |first| Block {
            first_row: first as u32,
            row_count: (end - first).min(BLOCK_ROWS) as u32,
        })
    })
}

/// Most blocks of a step of `rows` rows of `sequences` sequences without gaps.
pub(crate) fn most_blocks(rows: u32, sequences: u32) -> u32 {
    rows.div_ceil(BLOCK_ROWS as u32) + sequences.clamp(1, rows) - 1
}

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
    // SAFETY: by the caller's promise; rows are four words each, blocks, of a row at least, are two,
    // and all lists fit.
    unsafe {
        words.write(step.rows.len() as u32);
        words.add(1).write(step.logits.len() as u32);
        let rows = start.add(HEADER).cast::<Row>();
        std::ptr::copy_nonoverlapping(step.rows.as_ptr(), rows, step.rows.len());
        let logits = start.add(LOGITS).cast::<u32>();
        std::ptr::copy_nonoverlapping(step.logits.as_ptr(), logits, step.logits.len());
        let list = start.add(BLOCKS).cast::<Block>();
        let mut count = 0;
        for block in blocks(step) {
            list.add(count).write(block);
            count += 1;
        }
        words.add(2).write(count as u32);
        words.add(3).write(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(runs: &[(u32, u32, u32)]) -> Step {
        let mut step = Step::default();
        for &(sequence, first, rows) in runs {
            (first..first + rows).for_each(|position| step.push(0, sequence, position, false));
        }
        step
    }

    #[test]
    fn blocks_end_with_runs_and_hold_every_row() {
        let found = |runs: &[(u32, u32, u32)]| {
            let step = step(runs);
            blocks(&step).map(|block| (block.first_row, block.row_count)).collect::<Vec<_>>()
        };
        assert_eq!(found(&[(0, 100, 130)]), [(0, 64), (64, 64), (128, 2)]);
        assert_eq!(
            found(&[(0, 7, 1), (1, 0, 65), (1, 70, 2)]),
            [(0, 1), (1, 64), (65, 1), (66, 2)]
        );
    }

    #[test]
    fn sequences_without_gaps_have_no_more_blocks_than_launches_are_made_for() {
        for lengths in [&[512][..], &[1; 64], &[65, 1, 1, 63, 129], &[33, 1]] {
            let runs: Vec<(u32, u32, u32)> =
                lengths.iter().enumerate().map(|(s, &rows)| (s as u32, 0, rows)).collect();
            let count = blocks(&step(&runs)).count() as u32;
            let most = most_blocks(lengths.iter().sum(), lengths.len() as u32);
            assert!(count <= most, "{lengths:?}: {count} of {most}");
        }
        assert_eq!(most_blocks(512, 1), 8);
    }
}
