//! The step: the little that changes between plays.

use crate::error::DeviceError;
use crate::kv::PAGE_TOKENS;
use crate::plan::Plan;
use std::ops::Range;

/// One row of a step: a token of some sequence at some position. The layout is fixed (four
/// 32-bit words) because devices read it as it lies.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Row {
    /// Token id.
    pub token: u32,
    /// Slot of its sequence in the page tables.
    pub sequence: u32,
    /// Position in the sequence, from 0.
    pub position: u32,
    /// Zero; keeps the row at 16 bytes.
    pub reserved: u32,
}

/// The rows of one play. Rows of one sequence stand together, in order of position.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Step {
    /// T rows.
    pub rows: Vec<Row>,
    /// Indices into `rows` that want logits, ascending.
    pub logits: Vec<u32>,
}

impl Step {
    /// Empties the step, keeping its memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.logits.clear();
    }

    /// Appends a row; `logits` says whether its logits are wanted.
    pub fn push(&mut self, token: u32, sequence: u32, position: u32, logits: bool) {
        if logits {
            self.logits.push(self.rows.len() as u32);
        }
        self.rows.push(Row { token, sequence, position, reserved: 0 });
    }

    /// Whether a recording of `plan` can play this; `mapped` says whether an entry (group,
    /// sequence, index) of the page tables points at a page.
    pub fn check(
        &self,
        plan: &Plan,
        mapped: &dyn Fn(usize, usize, usize) -> bool,
    ) -> Result<(), DeviceError> {
        let options = &plan.options;
        let bad = |reason: String| Err(DeviceError::BadStep(reason));
        if self.rows.is_empty() || self.rows.len() > options.max_rows {
            return bad(format!("{} rows, of at most {}", self.rows.len(), options.max_rows));
        }
        let logits = self.logits.len();
        if logits > options.max_logit_rows {
            return bad(format!("{logits} logit rows, of at most {}", options.max_logit_rows));
        }
        if self.logits.iter().any(|&row| row as usize >= self.rows.len()) {
            return bad("logits of a row that is not there".to_string());
        }
        // Two rows at one place would be written at once.
        let follows = |pair: &[Row]| {
            pair[0].sequence != pair[1].sequence || pair[0].position < pair[1].position
        };
        let apart = |(index, run): (usize, Range<usize>)| {
            let sequence = self.rows[run.start].sequence;
            let mut earlier = self.runs().take(index);
            !earlier.any(|earlier| {
                self.rows[earlier.start].sequence == sequence
                    && self.rows[earlier.end].sequence != sequence
            })
        };
        if !self.rows.windows(2).all(follows) || !self.runs().enumerate().all(apart) {
            return bad("rows of one sequence do not stand together in rising order".to_string());
        }
        for row in &self.rows {
            if row.token as usize >= plan.graph.vocabulary {
                return bad(format!("token {} of {}", row.token, plan.graph.vocabulary));
            }
            let (position, sequence) = (row.position as usize, row.sequence as usize);
            if position >= options.context || sequence >= options.sequences {
                return bad(format!("position {position} of sequence {sequence}"));
            }
            for (index, group) in plan.graph.kv_groups.iter().enumerate() {
                let first = group.first_visible(position) / PAGE_TOKENS;
                let mut visible = first..=position / PAGE_TOKENS;
                if let Some(page) = visible.find(|&page| !mapped(index, sequence, page)) {
                    return bad(format!("sequence {sequence} has no page {page}"));
                }
            }
        }
        Ok(())
    }

    /// Whether every row is of another sequence, as where all only generate.
    pub fn is_one_row_per_sequence(&self) -> bool {
        // Rows of one sequence stand together.
        self.rows.windows(2).all(|pair| pair[0].sequence != pair[1].sequence)
    }

    /// Runs of rows that follow one another in one sequence, as `start..end`.
    pub fn runs(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        let mut start = 0;
        std::iter::from_fn(move || {
            let first = *self.rows.get(start)?;
            let follows = |(index, row): (usize, &Row)| {
                row.sequence == first.sequence
                    && row.position as usize == first.position as usize + index
            };
            let length =
                self.rows[start..].iter().enumerate().take_while(|&pair| follows(pair)).count();
            let run = start..start + length;
            start = run.end;
            Some(run)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_split_at_sequences_and_gaps() {
        let mut step = Step::default();
        for (sequence, position) in [(0, 4), (0, 5), (1, 6), (1, 9), (1, 10)] {
            step.push(7, sequence, position, position == 10);
        }
        assert_eq!(step.runs().collect::<Vec<_>>(), [0..2, 2..3, 3..5]);
        assert_eq!(step.logits, [4]);
        assert!(!step.is_one_row_per_sequence());
        step.rows = vec![step.rows[0], step.rows[2]];
        assert!(step.is_one_row_per_sequence());
    }
}
