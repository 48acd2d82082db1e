//! One step: who gets rows, what is played, and what becomes of the logits.

use super::{Listener, Running, Scheduler};
use crate::draft::Guess;
use crate::error::EngineError;
use crate::lane::Lane;
use crate::load::Engine;
use crate::request::{Answer, Event, Finish, Request};
use crate::sampler::{Sampling, uniform};
use crate::schedule::{Room, RowDemand, Share, share};
use crate::speculate::{Speculation, look_up};
use crate::text::Text;
use pianola_plan::{DeviceError, SampleRow, bucket};
use std::ops::ControlFlow;
use std::time::Instant;

/// Tokens that end a lane's answer.
fn stop_tokens<'a>(text: Option<&'a Text>, lane: &Lane) -> &'a [u32] {
    match text {
        Some(text) if !lane.request.ignore_end => text.tokenizer.stop_tokens(),
        _ => &[],
    }
}

/// An empty list in the memory of another, whose items lived for another time.
fn recycled<'a>(mut rows: Vec<Option<SampleRow<'_>>>) -> Vec<Option<SampleRow<'a>>> {
    rows.clear();
    rows.into_iter().map(|_| unreachable!("it is empty")).collect()
}

impl Engine {
    /// Plays one step for all that run, and tells `listener` what came of it. Does nothing if there
    /// is nothing to do. An error is of the device: every request under way has then failed, and
    /// was told.
    pub fn step(&mut self, listener: &mut Listener<'_>) -> Result<(), EngineError> {
        self.admit();
        let begun = Instant::now();
        self.guess();
        self.divide();
        let on_device = self.is_sampled_on_device();
        let plays = if on_device { self.plays() } else { 1 };
        let plays = self.reserve(plays);
        if self.scheduler.running.is_empty() {
            return Ok(());
        }
        self.write_step();
        let played = match on_device {
            true => self.play_sampling(plays),
            false => self.executor.play(&self.step),
        };
        if let Err(error) = played {
            self.fail_all(&error.to_string(), listener);
            return Err(error.into());
        }
        let before = self.scheduler.counters.generated_tokens;
        let generating = self.scheduler.running.iter().all(|running| running.share.pending == 1);
        let guessed = self.scheduler.running.iter().any(|running| running.share.drafts > 0);
        let (rows, logits) = (self.step.rows.len(), self.step.logits.len());
        self.read_step(on_device, listener);
        let scheduler = &mut self.scheduler;
        let tokens = (scheduler.counters.generated_tokens - before) as usize;
        scheduler.counters.steps += 1;
        let rows = rows + (plays - 1) * logits;
        scheduler.counters.rows += rows as u64;
        // Without logits a GPU may still be at it.
        if logits > 0 {
            let time = begun.elapsed();
            scheduler.chunks.took(rows, time.as_secs_f64());
            if generating {
                scheduler.plays.took(plays, time.as_secs_f64());
                scheduler.gauge.took(guessed, tokens, time);
            }
        }
        Ok(())
    }

    /// Guesses what comes next, for those who generate.
    fn guess(&mut self) {
        let context = self.context();
        let cache = &self.cache;
        let Scheduler { running, speculation, gauge, drafter, draft_failure, .. } =
            &mut self.scheduler;
        running.iter_mut().for_each(|running| running.guesses.clear());
        if *speculation == Speculation::Off || !gauge.guesses() {
            return;
        }
        let mut asked = Vec::new();
        for running in running {
            let Running { lane, slot, guesses, boldness, .. } = running;
            // The last token that may come need not be guessed.
            let most = boldness.guesses().min(lane.left(context).saturating_sub(1));
            if lane.tokens.len() - cache.len(*slot) != 1 || most == 0 {
                continue;
            }
            match speculation {
                Speculation::Off => {}
                Speculation::Lookup => look_up(&lane.tokens, most, guesses),
                Speculation::Draft => {
                    let Lane { tokens, sampler, .. } = lane;
                    asked.push(Guess { slot: *slot, tokens, sampler, most, guesses });
                }
            }
        }
        if let Some(Err(error)) = drafter.as_mut().map(|drafter| drafter.guess(&mut asked)) {
            // Answers do not depend on it; whoever asks is told.
            *speculation = Speculation::Off;
            *drafter = None;
            *draft_failure = Some(error.to_string());
        }
    }

    /// Decides how many rows each gets.
    fn divide(&mut self) {
        let options = self.executor.plan().options;
        let Scheduler { running, chunks, demands, shares, .. } = &mut self.scheduler;
        let want = |running: &Running| RowDemand {
            pending: running.lane.tokens.len() - self.cache.len(running.slot),
            drafts: running.guesses.len(),
        };
        demands.clear();
        demands.extend(running.iter().map(want));
        let mut chunk = chunks.rows(options.max_rows);
        if self.executor.plan().devices.iter().any(|device| device.rounds_rows) {
            // Rows are rounded up there in any case.
            let generating = demands.iter().filter(|want| want.pending == 1).count();
            let rounded = bucket(chunk + generating).unwrap_or(options.max_rows);
            chunk = rounded.saturating_sub(generating);
        }
        let room = Room { rows: options.max_rows, logits: options.max_logit_rows, chunk };
        share(demands, room, shares);
        for (running, &share) in running.iter_mut().zip(shares.iter()) {
            running.share = share;
        }
    }

    /// Plays of the next submission: several where the device chooses tokens and everybody
    /// generates one by one.
    fn plays(&self) -> usize {
        let context = self.context();
        let Scheduler { running, plays, .. } = &self.scheduler;
        let most = self.executor.max_tokens_per_submit();
        let alone = |running: &Running| running.share == Share { pending: 1, drafts: 0 };
        if most == 1 || running.is_empty() || !running.iter().all(alone) {
            return 1;
        }
        let left = running.iter().map(|running| running.lane.left(context)).min().unwrap_or(1);
        plays.plays(left, most)
    }

    fn write_step(&mut self) {
        let context = self.context();
        self.step.clear();
        for running in &self.scheduler.running {
            let wants_token = running.wants_token(&self.cache, context);
            let Running { lane, slot, share, guesses, .. } = running;
            let start = self.cache.len(*slot);
            let end = start + share.pending;
            for (position, &token) in lane.tokens.iter().enumerate().take(end).skip(start) {
                let wanted = wants_token && position + 1 == end;
                self.step.push(token, *slot as u32, position as u32, wanted);
            }
            for (index, &guess) in guesses.iter().take(share.drafts).enumerate() {
                self.step.push(guess, *slot as u32, (end + index) as u32, true);
            }
        }
    }

    /// Whether the device can choose as all who want a token in this step asked for.
    fn is_sampled_on_device(&self) -> bool {
        let context = self.context();
        let demands = |running: &&Running| running.wants_token(&self.cache, context);
        let wanting = || self.scheduler.running.iter().filter(demands);
        let rows: usize = wanting().map(|running| 1 + running.share.drafts).sum();
        (1..=self.executor.max_sample_rows()).contains(&rows)
            && wanting().all(|Running { lane, .. }| {
                let stop_tokens = stop_tokens(self.text.as_deref(), lane);
                let row = SampleRow { stop_tokens, ..SampleRow::new(lane.sampler.sampling(), &[]) };
                self.executor.sampling_unsupported(&row).is_none()
            })
    }

    /// Why the device cannot choose tokens so; the processor then does, from the logits.
    pub fn sampling_unsupported(&self, sampling: &Sampling) -> Option<&'static str> {
        let stops = self.text.as_ref().map_or(&[][..], |text| text.tokenizer.stop_tokens());
        let row = SampleRow { stop_tokens: stops, ..SampleRow::new(sampling, &[]) };
        self.executor.sampling_unsupported(&row)
    }

    fn play_sampling(&mut self, plays: usize) -> Result<(), DeviceError> {
        let Engine { executor, cache, scheduler, step, text, .. } = self;
        let Scheduler { running, samples: kept, .. } = scheduler;
        let context = executor.plan().options.context;
        for running in running.iter_mut().filter(|running| running.wants_token(cache, context)) {
            let Running { lane, share, guesses, uniforms, history, .. } = running;
            let drafts = &guesses[..share.drafts];
            let seed = lane.sampler.sampling().seed;
            let first = lane.tokens.len();
            let numbers = first..first + drafts.len().max(plays - 1) + 1;
            uniforms.clear();
            uniforms.extend(numbers.map(|position| uniform(seed, position as u64) as f32));
            history.clear();
            // Only the end of it counts, and no more of it is there to be looked at.
            let known = first.saturating_sub(lane.sampler.sampling().penalty_window);
            if lane.sampler.sampling().penalises() {
                history.extend_from_slice(&lane.tokens[known..]);
                history.extend_from_slice(drafts);
            }
        }
        let mut rows = recycled(std::mem::take(kept));
        for running in running.iter().filter(|running| running.wants_token(cache, context)) {
            let Running { lane, share, uniforms, history, .. } = running;
            let stop_tokens = stop_tokens(text.as_deref(), lane);
            for row in 0..=share.drafts {
                let known = history.len().saturating_sub(share.drafts - row);
                rows.push(Some(SampleRow {
                    sampling: lane.sampler.sampling(),
                    stop_tokens,
                    history: &history[..known],
                    uniforms: &uniforms[row..row + plays],
                    mask: None,
                    top_logprobs: None,
                }));
            }
        }
        let played = executor.play_sampling(step, &rows);
        *kept = recycled(rows);
        played
    }

    /// Hands the tokens that the step brought on, chosen from its logits or by the device.
    fn read_step(&mut self, on_device: bool, listener: &mut Listener<'_>) {
        let mut row = 0;
        let mut at = 0;
        while at < self.scheduler.running.len() {
            let id = self.scheduler.running[at].lane.id;
            match self.advance(at, &mut row, on_device, listener) {
                Ok(None) => at += 1,
                Ok(Some(finish)) => self.tell_end(at, finish, listener),
                Err(error) => {
                    self.discard(at);
                    let _ = listener(id, Event::Failed(error));
                }
            }
        }
    }

    /// Takes the tokens of one lane, whose logits begin at `row`. Returns why it ends, if it does.
    fn advance(
        &mut self,
        at: usize,
        row: &mut usize,
        on_device: bool,
        listener: &mut Listener<'_>,
    ) -> Result<Option<Finish>, EngineError> {
        let context = self.context();
        let Engine { executor, cache, scheduler, text, .. } = self;
        let Scheduler { running, counters, .. } = scheduler;
        let Running { lane, slot, share, guesses, boldness, .. } = &mut running[at];
        let mut tell = |lane: &Lane, event: Event<'_>| match listener(lane.id, event) {
            ControlFlow::Continue(()) => None,
            ControlFlow::Break(()) => Some(Finish::Cancelled),
        };
        let start = cache.len(*slot);
        let played = start + share.pending;
        if played < lane.tokens.len() {
            cache.append(*slot, &lane.tokens[start..played]);
            return Ok(tell(lane, Event::Prompt));
        }
        if lane.left(context) == 0 {
            cache.append(*slot, &lane.tokens[start..played]);
            return Ok(Some(Finish::MaxTokens));
        }
        let first_row = *row;
        *row += 1 + share.drafts;
        let mut taken = 0;
        loop {
            let broken = EngineError::NotANumber { position: lane.tokens.len() };
            // Of several plays the tokens are those of one row; guesses have a row each.
            let (token, more) = match on_device {
                true if share.drafts == 0 => match executor.sampled(first_row) {
                    Some(chosen) => (chosen[taken], taken + 1 < chosen.len()),
                    None => return Err(broken),
                },
                true => match executor.sampled(first_row + taken) {
                    Some(chosen) => (chosen[0], false),
                    None => return Err(broken),
                },
                false => {
                    let logits = executor.logits(first_row + taken);
                    // Weights or kernels are broken, and any token would be a lie. No early exit,
                    // which would keep the loop from being vectorised.
                    if logits.iter().fold(false, |found, logit| found | logit.is_nan()) {
                        return Err(broken);
                    }
                    (lane.sampler.sample(logits, lane.tokens.len() as u64), false)
                }
            };
            if taken == 0 {
                // Only now is it known that the rows are worth keeping.
                cache.append(*slot, &lane.tokens[start..played]);
            }
            let right = taken < share.drafts && guesses[taken] == token;
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
            let right = taken - usize::from(!right);
            if share.drafts > 0 {
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
        let mut lane = self.end(at).lane;
        let answer = lane.finish(finish);
        // Nobody breaks off an answer that is over.
        if finish != Finish::Cancelled && !lane.text().is_empty() {
            let _ = listener(lane.id, Event::Text(lane.text()));
        }
        let _ = listener(lane.id, Event::Finished(answer));
    }

    /// The device failed: nothing that runs can go on.
    fn fail_all(&mut self, reason: &str, listener: &mut Listener<'_>) {
        while let Some(last) = self.scheduler.running.len().checked_sub(1) {
            // What the failed step left in its pages is not to be trusted.
            let lane = self.discard(last).lane;
            let _ = listener(lane.id, Event::Failed(EngineError::Step(reason.to_string())));
        }
    }

    /// Generates one answer; `emit` gets the text as it becomes certain and may break off. It is
    /// also called with nothing, after each part of the prompt and where a token completed no text,
    /// so that breaking off need not wait. A model without a tokeniser emits its tokens' ids, each
    /// with a space behind it. Other requests that were submitted go on meanwhile, unheard.
    pub fn generate(
        &mut self,
        request: &Request,
        emit: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, EngineError> {
        let mine = self.submit(request.clone())?;
        let mut result = None;
        loop {
            let stepped = self.step(&mut |id, event| {
                match event {
                    _ if id != mine => {}
                    Event::Prompt => return emit(""),
                    Event::Text(text) => return emit(text),
                    Event::Finished(answer) => result = Some(Ok(answer)),
                    Event::Failed(error) => result = Some(Err(error)),
                }
                ControlFlow::Continue(())
            });
            if let Err(error) = stepped {
                // It may still have been waiting.
                self.cancel(mine);
                return Err(error);
            }
            if let Some(result) = result {
                return result;
            }
        }
    }
}
