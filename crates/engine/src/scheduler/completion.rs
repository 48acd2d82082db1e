//! What a played step brought: tokens join their sequences, and requests are told.

use super::{Listener, Running, Scheduler, StepFailure, StepOutcome, StepPlan};
use crate::error::EngineError;
use crate::lane::Lane;
use crate::request::{Event, Finish, Token};
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
        let mut next = NextRows::default();
        let mut at = 0;
        while at < self.running.len() {
            let id = self.running[at].lane.id;
            match self.advance(at, &mut next, outcome, listener) {
                Ok(None) => at += 1,
                Ok(Some(end)) => self.tell_end(at, end, outcome, listener),
                Err(error) => {
                    self.discard(at);
                    let _ = listener(id, Event::Failed(error));
                }
            }
        }
    }

    /// Takes the outcome of one request, whose rows are the `next`. Returns how it ends, if it does.
    fn advance(
        &mut self,
        at: usize,
        next: &mut NextRows,
        outcome: &StepOutcome,
        listener: &mut Listener<'_>,
    ) -> Result<Option<End>, EngineError> {
        let wants_token = self.wants_token(&self.running[at]);
        let Running { lane, slot, share, .. } = &mut self.running[at];
        let start = self.cache.len(*slot);
        let played = start + share.pending;
        if let Some(pooled) = &mut lane.pooled {
            self.cache.append(*slot, &lane.tokens[start..played]);
            if share.pending > 0 {
                pooled.add(outcome.embedding(next.embedding));
                next.embedding += 1;
            }
        } else if wants_token {
            let first_row = next.sample;
            next.sample += 1 + share.drafts;
            return self.take_tokens(at, first_row, outcome, listener);
        } else {
            self.cache.append(*slot, &lane.tokens[start..played]);
        }
        Ok(match (played < lane.tokens.len(), listener(lane.id, Event::Prompt)) {
            (_, ControlFlow::Break(())) => Some(End::of(Finish::Cancelled)),
            (true, ControlFlow::Continue(())) => None,
            (false, ControlFlow::Continue(())) => Some(End::of(Finish::MaxTokens)),
        })
    }

    /// Takes the tokens of one request, whose rows with logits begin at `first_row`.
    fn take_tokens(
        &mut self,
        at: usize,
        first_row: usize,
        outcome: &StepOutcome,
        listener: &mut Listener<'_>,
    ) -> Result<Option<End>, EngineError> {
        let context = self.options.limits.context;
        let Scheduler { running, counters, cache, text, .. } = self;
        let Running { lane, slot, share, guesses, boldness, dead_end } = &mut running[at];
        let start = cache.len(*slot);
        let played = start + share.pending;
        let mut taken = 0;
        loop {
            // Of several plays the tokens are those of one row; guesses have a row each.
            let (row, play) = if share.drafts == 0 { (0, taken) } else { (taken, 0) };
            let tokens = outcome.tokens(first_row + row);
            // Weights or kernels are broken, and any token would be wrong.
            let Some(&token) = tokens.and_then(|tokens| tokens.get(play)) else {
                return Err(EngineError::NotANumber { position: lane.tokens.len() });
            };
            if *dead_end == Some(taken) {
                return Err(EngineError::ConstraintUnmet { position: lane.tokens.len() });
            }
            if taken == 0 {
                // Only now is it known that the rows are worth keeping.
                cache.append(*slot, &lane.tokens[start..played]);
            }
            let more = tokens.is_some_and(|tokens| play + 1 < tokens.len());
            let right = guesses[..share.drafts].get(taken) == Some(&token);
            taken += 1;
            counters.generated_tokens += 1;
            let place = (first_row + row, play);
            let finish = lane.take(token, text.as_deref(), context)?;
            // At the end the text that was held back comes with the token.
            let end = match finish {
                Some(finish) => Some(End { finish, last_token: Some(place) }),
                None => match listener(lane.id, token_event(token, lane, outcome, place)) {
                    ControlFlow::Continue(()) => None,
                    ControlFlow::Break(()) => Some(End::of(Finish::Cancelled)),
                },
            };
            if end.is_none() && (right || more) {
                // Its keys and values are there already.
                cache.append(*slot, &[token]);
                continue;
            }
            if share.drafts > 0 {
                let right = taken - usize::from(!right);
                boldness.learn(share.drafts, right);
                lane.usage.drafted_tokens += share.drafts;
                lane.usage.accepted_tokens += right;
                counters.drafted_tokens += share.drafts as u64;
                counters.accepted_tokens += right as u64;
            }
            return Ok(end);
        }
    }

    fn tell_end(
        &mut self,
        at: usize,
        end: End,
        outcome: &StepOutcome,
        listener: &mut Listener<'_>,
    ) {
        let mut lane = self.end(at);
        // A request that is over cannot be broken off.
        if let Some(pooled) = lane.pooled.take() {
            let position = lane.tokens.len();
            let _ = match (end.finish, pooled.finish()) {
                (Finish::Cancelled, _) => {
                    listener(lane.id, Event::Finished(lane.finish(Finish::Cancelled)))
                }
                (_, Some(values)) => listener(lane.id, Event::Embedding(values)),
                (_, None) => listener(lane.id, Event::Failed(EngineError::NotANumber { position })),
            };
            return;
        }
        let answer = lane.finish(end.finish);
        if let (Some(place), Some(&token)) = (end.last_token, lane.tokens.last()) {
            let _ = listener(lane.id, token_event(token, &lane, outcome, place));
        }
        let _ = listener(lane.id, Event::Finished(answer));
    }

    /// The device failed. Where it is lost, requests wait for another; else those that ran fail.
    fn fail_running(&mut self, failure: &StepFailure, listener: &mut Listener<'_>) {
        if failure.lost {
            return self.requeue_running();
        }
        while let Some(last) = self.running.len().checked_sub(1) {
            // What the failed step left in its pages is not to be trusted.
            let lane = self.discard(last);
            let StepFailure { reason, kind, .. } = failure;
            let error = EngineError::StepFailed { reason: reason.clone(), kind: *kind };
            let _ = listener(lane.id, Event::Failed(error));
        }
    }
}

/// Rows of a step that the next request's outcome begins at.
#[derive(Default)]
struct NextRows {
    sample: usize,
    embedding: usize,
}

/// How a request ends.
struct End {
    finish: Finish,
    /// Row and play of the last token, if its event is still to come.
    last_token: Option<(usize, usize)>,
}

impl End {
    fn of(finish: Finish) -> End {
        End { finish, last_token: None }
    }
}

/// The event of the token that a request took last.
fn token_event<'a>(
    id: u32,
    lane: &'a Lane,
    outcome: &'a StepOutcome,
    (row, play): (usize, usize),
) -> Event<'a> {
    Event::Token(Token { id, text: lane.text(), logprobs: outcome.logprobs(row, play) })
}
