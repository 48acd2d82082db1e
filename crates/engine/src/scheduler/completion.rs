//! What a played step brought: tokens join their sequences, and requests are told.

use super::{Listener, Running, Scheduler, StepFailure, StepOutcome, StepPlan};
use crate::error::EngineError;
use crate::lane::Lane;
use crate::request::{Event, Finish};
use std::ops::ControlFlow;

impl Scheduler {
    /// Takes the outcome of the step that was planned last, and calls `listener` with the events
    /// that follow from it.
    pub fn complete(
        &mut self,
        plan: &StepPlan,
        outcome: &StepOutcome,
        listener: &mut Listener<'_>,
    ) {
        if let Some(failure) = &outcome.failure {
            return self.fail_running(failure, listener);
        }
        let before = self.counters.generated_tokens;
        let generating = self.running.iter().all(|running| running.share.pending == 1);
        let guessed = self.running.iter().any(|running| running.share.drafts > 0);
        self.read_rows(outcome, listener);
        let tokens = (self.counters.generated_tokens - before) as usize;
        let logits = plan.step.logits.len();
        let rows = plan.step.rows.len() + (plan.plays - 1) * logits;
        self.counters.steps += 1;
        self.counters.rows += rows as u64;
        // A step without logits returns before a GPU has finished; its time means nothing.
        if logits > 0 {
            let seconds = outcome.time.as_secs_f64();
            self.chunks.took(rows, seconds);
            if generating {
                self.plays.took(plan.plays, seconds);
                self.gauge.took(guessed, tokens, outcome.time);
            }
        }
    }

    fn read_rows(&mut self, outcome: &StepOutcome, listener: &mut Listener<'_>) {
        let mut row = 0;
        let mut at = 0;
        while at < self.running.len() {
            let id = self.running[at].lane.id;
            match self.advance(at, &mut row, outcome, listener) {
                Ok(None) => at += 1,
                Ok(Some(finish)) => self.tell_end(at, finish, listener),
                Err(error) => {
                    self.discard(at);
                    let _ = listener(id, Event::Failed(error));
                }
            }
        }
    }

    /// Takes the tokens of one request, whose rows with logits begin at `row`. Returns why it ends,
    /// if it does.
    fn advance(
        &mut self,
        at: usize,
        row: &mut usize,
        outcome: &StepOutcome,
        listener: &mut Listener<'_>,
    ) -> Result<Option<Finish>, EngineError> {
        let context = self.options.limits.context;
        let wants_token = self.wants_token(&self.running[at]);
        let Scheduler { running, counters, cache, text, .. } = self;
        let Running { lane, slot, share, guesses, boldness, .. } = &mut running[at];
        let mut tell = |lane: &Lane, event: Event<'_>| match listener(lane.id, event) {
            ControlFlow::Continue(()) => None,
            ControlFlow::Break(()) => Some(Finish::Cancelled),
        };
        let start = cache.len(*slot);
        let played = start + share.pending;
        if !wants_token {
            cache.append(*slot, &lane.tokens[start..played]);
            return Ok(match played < lane.tokens.len() {
                true => tell(lane, Event::Prompt),
                false => Some(Finish::MaxTokens),
            });
        }
        let first_row = *row;
        *row += 1 + share.drafts;
        let mut taken = 0;
        loop {
            // Of several plays the tokens are those of one row; guesses have a row each.
            let (row, play) = if share.drafts == 0 { (0, taken) } else { (taken, 0) };
            let tokens = outcome.tokens(first_row + row);
            // Weights or kernels are broken, and any token would be wrong.
            let Some(&token) = tokens.and_then(|tokens| tokens.get(play)) else {
                return Err(EngineError::NotANumber { position: lane.tokens.len() });
            };
            if taken == 0 {
                // Only now is it known that the rows are worth keeping.
                cache.append(*slot, &lane.tokens[start..played]);
            }
            let more = tokens.is_some_and(|tokens| play + 1 < tokens.len());
            let right = guesses[..share.drafts].get(taken) == Some(&token);
            taken += 1;
            counters.generated_tokens += 1;
            let ended = lane.take(token, text.as_deref(), context);
            // An end brings its text together with what was held back.
            let ended = if ended.is_some() { ended } else { tell(lane, Event::Text(lane.text())) };
            if ended.is_none() && (right || more) {
                // Its keys and values are there already.
                cache.append(*slot, &[token]);
                continue;
            }
            if share.drafts > 0 {
                let right = taken - usize::from(!right);
                boldness.learn(share.drafts, right);
                lane.timing.drafted_tokens += share.drafts;
                lane.timing.accepted_tokens += right;
                counters.drafted_tokens += share.drafts as u64;
                counters.accepted_tokens += right as u64;
            }
            return Ok(ended);
        }
    }

    fn tell_end(&mut self, at: usize, finish: Finish, listener: &mut Listener<'_>) {
        let mut lane = self.end(at);
        let answer = lane.finish(finish);
        // An answer that is over cannot be broken off.
        if finish != Finish::Cancelled && !lane.text().is_empty() {
            let _ = listener(lane.id, Event::Text(lane.text()));
        }
        let _ = listener(lane.id, Event::Finished(answer));
    }

    /// The device failed: nothing that runs can go on.
    fn fail_running(&mut self, failure: &StepFailure, listener: &mut Listener<'_>) {
        while let Some(last) = self.running.len().checked_sub(1) {
            // What the failed step left in its pages is not to be trusted.
            let lane = self.discard(last);
            let _ = listener(lane.id, Event::Failed(EngineError::Step(failure.reason.clone())));
        }
    }
}
