//! Where the sequences of a check stand: one long one, and others that begin with its first pages.

use super::steps::{CONTEXT, SEQUENCES, StepKind};
use pianola_plan::{PAGE_TOKENS, Recording, Step};

/// Pages of each group that the sequences need: all of the long one, and one for each other.
pub(super) const PAGES: usize = CONTEXT / PAGE_TOKENS + SEQUENCES;

/// Positions of a check's sequences. The first one reads prompts; once they are read, the others
/// share full pages of it, each another number of them, and go on in a page of their own: contexts
/// of every length at the price of one.
pub(super) struct Sequences {
    next: [u32; SEQUENCES],
    vocabulary: u32,
    branched: bool,
}

impl Sequences {
    /// Nothing read yet.
    pub fn new(vocabulary: usize) -> Sequences {
        Sequences { next: [0; SEQUENCES], vocabulary: vocabulary as u32, branched: false }
    }

    /// Tokens of the long sequence.
    pub fn length(&self) -> usize {
        self.next[0] as usize
    }

    /// Gives the long sequence its pages, in falling order, so that neighbours in the sequence are
    /// none in memory.
    pub fn map_first(recording: &mut dyn Recording) {
        for group in 0..recording.plan().graph.kv_groups.len() {
            let pages = recording.plan().kv_pages[group] as u32;
            for index in 0..CONTEXT / PAGE_TOKENS {
                recording.map_page(group, 0, index, pages - 1 - index as u32);
            }
        }
    }

    /// Lets the other sequences begin, if they have not: for each the number of pages that it
    /// shares.
    pub fn branch(&mut self) -> Vec<(usize, usize)> {
        if std::mem::replace(&mut self.branched, true) {
            return Vec::new();
        }
        let full = self.length() / PAGE_TOKENS;
        let shared = |sequence: usize| full * ((sequence * 37 + 27) % SEQUENCES) / (SEQUENCES - 1);
        let branches: Vec<(usize, usize)> =
            (1..SEQUENCES).map(|sequence| (sequence, shared(sequence))).collect();
        for &(sequence, pages) in &branches {
            self.next[sequence] = (pages * PAGE_TOKENS) as u32;
        }
        branches
    }

    /// Points the pages of the other sequences where [`Sequences::branch`] says.
    pub fn map_branches(recording: &mut dyn Recording, branches: &[(usize, usize)]) {
        for group in 0..recording.plan().graph.kv_groups.len() {
            let pages = recording.plan().kv_pages[group] as u32;
            for &(sequence, shared) in branches {
                for index in 0..shared {
                    recording.map_page(group, sequence, index, pages - 1 - index as u32);
                }
                recording.map_page(group, sequence, shared, sequence as u32 - 1);
            }
        }
    }

    /// The next step of a kind; `wanted` says which rows of it want logits, counted from the last.
    pub fn step(&mut self, kind: StepKind, wanted: usize) -> Step {
        let (prompt, lanes) = match kind {
            StepKind::Lanes(lanes) => (0, 0..lanes),
            StepKind::Prompt(rows) => (rows, 0..0),
            StepKind::Mixed(rows, lanes) => (rows, 1..1 + lanes),
        };
        let rows = kind.rows();
        let mut step = Step::default();
        for sequence in std::iter::repeat_n(0, prompt).chain(lanes) {
            let position = self.next[sequence];
            let token = (position * 7919 + sequence as u32 * 104_729 + 13) % self.vocabulary;
            let logits = step.rows.len() + wanted >= rows;
            step.push(token, sequence as u32, position, logits);
            self.next[sequence] += 1;
        }
        step
    }
}
