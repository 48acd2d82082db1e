//! Constraints: the masks of a step's rows.

use super::{Running, Scheduler, StepPlan};
use crate::constraint::allowed_guesses;

impl Scheduler {
    /// Fills the masks of all rows whose requests have a constraint. This takes a while, and needs
    /// nothing of what the step computes.
    pub fn fill_masks(&mut self, plan: &mut StepPlan) {
        let words = pianola_plan::mask_words(self.options.limits.vocabulary);
        let mut index = 0;
        while index < plan.samples.len() {
            let first = index;
            let lane = plan.samples[first].lane;
            while plan.samples.get(index).is_some_and(|sample| sample.lane == lane) {
                index += 1;
            }
            let Running { lane, guesses, dead_end, .. } = &mut self.running[lane];
            *dead_end = None;
            let Some(constraint) = &mut lane.constraint else { continue };
            // Each row follows the guesses before it, which are taken back at the end: a guess may
            // be wrong.
            for row in first..index {
                let before = row - first;
                let follows = before == 0 || constraint.advance(guesses[before - 1]);
                let filled =
                    follows && plan.push_mask(row, words, |mask| constraint.fill_mask(mask));
                if !filled {
                    *dead_end = Some(before);
                    constraint.rollback(before - usize::from(!follows));
                    break;
                }
                if row + 1 == index {
                    constraint.rollback(before);
                }
            }
        }
    }

    /// Leaves out guesses that a constraint forbids, and those behind them.
    pub(super) fn check_guesses(&mut self) {
        for Running { lane, guesses, .. } in &mut self.running {
            if let Some(constraint) = &mut lane.constraint {
                let is_end = |token: u32| lane.options.stop_tokens.contains(&token);
                let allowed = allowed_guesses(constraint.as_mut(), guesses, &is_end);
                guesses.truncate(allowed);
            }
        }
    }
}
