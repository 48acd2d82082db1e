//! The steps of a check, and which of their rows the reference computes.

use pianola_cpu::SampledRows;
use pianola_plan::{PAGE_TOKENS, Step};

/// Sequences of a check's plans: the lanes that steps have at most.
pub(super) const SEQUENCES: usize = 64;
/// Tokens of context that a check's plans have: more pages than attention is ever cut into.
pub(super) const CONTEXT: usize = 33 * PAGE_TOKENS;
/// Longest window that is checked; longer ones are checked as this one.
pub(super) const LONGEST_WINDOW: usize = 1024;

/// What a step is made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum StepKind {
    /// A row of each of several sequences.
    Lanes(usize),
    /// Rows of one sequence.
    Prompt(usize),
    /// Rows of one sequence beside a row of each of several others.
    Mixed(usize, usize),
}

impl StepKind {
    /// Rows of such a step.
    pub fn rows(self) -> usize {
        match self {
            StepKind::Lanes(rows) | StepKind::Prompt(rows) => rows,
            StepKind::Mixed(prompt, lanes) => prompt + lanes,
        }
    }

    /// Every kind of step that a check plays: each row count that a device has kernels for, just
    /// above the last and at its end.
    pub fn all() -> Vec<StepKind> {
        let lanes = [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64].map(StepKind::Lanes);
        let prompts = [2, 3, 5, 9, 17, 33, 64, 65, 128, 256, 512].map(StepKind::Prompt);
        lanes.into_iter().chain(prompts).chain([StepKind::Mixed(20, 12)]).collect()
    }

    /// Steps of a quick check: those that it always plays, then those that it adds while there is
    /// time. Together one kind for each row count that a device has kernels for, with tiles that end
    /// in the middle. Compiling a kernel may take a software driver many seconds, so that types
    /// beside the one that is used have few that are always played.
    pub fn few(used: bool) -> (Vec<StepKind>, Vec<StepKind>) {
        let lanes = [1, 8, 64, 3, 2, 4, 9, 17].map(StepKind::Lanes);
        let prompts = [450, 65, 17, 130, 3, 33, 9, 5, 2].map(StepKind::Prompt);
        let mixed = StepKind::Mixed(20, 12);
        let lanes_first = if used { 3 } else { 1 };
        let first = [&prompts[..1], &lanes[..lanes_first]].concat();
        let further = [&[mixed], &lanes[lanes_first..], &prompts[1..]].concat();
        (first, further)
    }
}

impl std::fmt::Display for StepKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StepKind::Lanes(1) => f.write_str("1 lane"),
            StepKind::Lanes(rows) => write!(f, "{rows} lanes"),
            StepKind::Prompt(rows) => write!(f, "a prompt of {rows} rows"),
            StepKind::Mixed(rows, lanes) => {
                write!(f, "a prompt of {rows} rows beside {lanes} lanes")
            }
        }
    }
}

/// Most rows that the reference computes of a step, and most of them with logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RowLimits {
    pub rows: usize,
    pub logits: usize,
}

/// Rows of a step that the reference computes: the first, the last, then those at the edges of
/// tiles and of sequences, of which `turn` chooses where there are too many.
pub(super) fn sample_rows(step: &Step, limits: RowLimits, turn: usize) -> SampledRows {
    let count = step.rows.len();
    let mut edges: Vec<usize> = [8, 16, 32, 64, 128, 256]
        .into_iter()
        .flat_map(|tile| [tile - 1, tile])
        .chain(step.runs().filter(|run| run.len() > 1).flat_map(|run| [run.start, run.end - 1]))
        .filter(|&row| row < count)
        .collect();
    if !edges.is_empty() {
        let middle = turn % edges.len();
        edges.rotate_left(middle);
    }
    let mut rows = Vec::new();
    for row in [0, count - 1].into_iter().chain(edges).chain(1..count) {
        if rows.len() < limits.rows && !rows.contains(&row) {
            rows.push(row);
        }
    }
    rows.sort_unstable();
    let sampled = |&index: &usize| rows.binary_search(&(step.logits[index] as usize)).is_ok();
    let mut logits: Vec<usize> = (0..step.logits.len()).filter(sampled).collect();
    // The last ones: of a prompt only the last row has any.
    logits.drain(..logits.len().saturating_sub(limits.logits));
    SampledRows { rows, logits }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pianola_plan::bucket;

    fn prompt(rows: u32) -> Step {
        let mut step = Step::default();
        (0..rows).for_each(|row| step.push(0, 0, row, row + 3 >= rows));
        step
    }

    #[test]
    fn sampled_rows_have_both_ends_and_edges_of_tiles() {
        let limits = RowLimits { rows: 8, logits: 2 };
        assert_eq!(sample_rows(&prompt(1), limits, 5).rows, [0]);
        assert_eq!(sample_rows(&prompt(3), limits, 0).rows, [0, 1, 2]);
        let sampled = sample_rows(&prompt(65), limits, 0);
        assert_eq!(sampled.rows, [0, 7, 8, 15, 16, 31, 32, 64]);
        // Of the rows with logits, 62 to 64, one is sampled.
        assert_eq!(sampled.logits, [2]);
        let mut seen = Vec::new();
        for turn in 0..12 {
            let sampled = sample_rows(&prompt(512), RowLimits { rows: 4, logits: 1 }, turn);
            assert_eq!(sampled.rows.len(), 4);
            assert!(sampled.rows.contains(&0) && sampled.rows.contains(&511));
            assert!(sampled.rows.windows(2).all(|pair| pair[0] < pair[1]));
            seen.extend(sampled.rows);
        }
        assert!([63, 64, 127, 128].iter().all(|row| seen.contains(row)), "{seen:?}");
    }

    #[test]
    fn steps_meet_every_row_count_that_has_kernels() {
        let (first, further) = StepKind::few(true);
        for kinds in [StepKind::all(), [first, further].concat()] {
            let lanes = |bucket_rows| {
                kinds.iter().any(|kind| {
                    matches!(kind, StepKind::Lanes(rows) if bucket(*rows) == Some(bucket_rows))
                })
            };
            let prompts = |bucket_rows| {
                kinds.iter().any(|kind| {
                    matches!(kind, StepKind::Prompt(rows) if bucket(*rows) == Some(bucket_rows))
                })
            };
            assert!([1, 2, 4, 8, 16, 32, 64].into_iter().all(lanes));
            assert!([2, 4, 8, 16, 32, 64, 128, 256, 512].into_iter().all(prompts));
        }
    }
}
