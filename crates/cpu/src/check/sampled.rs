//! Which rows of a step the reference computes.

use pianola_plan::{RowSet, Step};

/// The part of a step that the reference computes: all columns of some rows. The others only play.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SampledRows {
    /// Rows of the step, ascending.
    pub rows: Vec<usize>,
    /// Indices into the step's rows with logits, ascending, each of a row in `rows`.
    pub logits: Vec<usize>,
}

impl SampledRows {
    /// Every row.
    pub fn all(step: &Step) -> SampledRows {
        SampledRows {
            rows: (0..step.rows.len()).collect(),
            logits: (0..step.logits.len()).collect(),
        }
    }

    /// The step of these rows alone.
    pub(super) fn sub_step(&self, step: &Step) -> SubStep {
        let row_of = |&index: &usize| step.logits[index] as usize;
        let place = |row: usize| self.rows.binary_search(&row).expect("a sampled row") as u32;
        let logit_rows: Vec<usize> = self.logits.iter().map(row_of).collect();
        SubStep {
            step: Step {
                rows: self.rows.iter().map(|&row| step.rows[row]).collect(),
                logits: logit_rows.iter().map(|&row| place(row)).collect(),
            },
            rows: self.rows.clone(),
            logit_rows,
        }
    }
}

/// A step of some rows of another step, and which these are.
pub(super) struct SubStep {
    pub step: Step,
    rows: Vec<usize>,
    logit_rows: Vec<usize>,
}

impl SubStep {
    /// For each row of a tensor the row of the whole step that it is of.
    pub fn rows(&self, set: RowSet) -> &[usize] {
        match set {
            RowSet::All => &self.rows,
            RowSet::Logits => &self.logit_rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_named_by_the_whole_step() {
        let mut step = Step::default();
        (0..6).for_each(|row| step.push(0, 0, row, row >= 3));
        let sub = SampledRows { rows: vec![0, 4, 5], logits: vec![1] }.sub_step(&step);
        assert_eq!(sub.step.rows, [step.rows[0], step.rows[4], step.rows[5]]);
        assert_eq!(sub.step.logits, [1]);
        assert_eq!(sub.rows(RowSet::All), [0, 4, 5]);
        assert_eq!(sub.rows(RowSet::Logits), [4]);
    }
}
